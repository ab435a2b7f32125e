"""A rank of ../ddp_job.py whose gradients are added in GPU memory, over the emulated driver of LD_LIBRARY_PATH.

This machine's PyTorch has no GPU. So a bucket is on the CPU, and is copied to memory of the emulated GPU before the
library sees it, and back after the sum.
"""

from __future__ import annotations

import ctypes
import threading
import types
from typing import Any, Dict, Optional, Tuple
from unittest import mock

import ddp_job
import gpu_job
import numpy as np
import torch

import starring.torch
from starring import _exchange, _library

_TYPES = {_library.FLOAT32: np.float32, _library.BFLOAT16: np.uint16, _library.FLOAT16: np.float16}
_threads = threading.local()
_gpu_wish = starring.torch._gpu_wish


def gpu_of_thread() -> gpu_job.Gpu:
    """A thread's own has a stream, and the context that a thread must have."""
    if not hasattr(_threads, "gpu"):
        _threads.gpu = gpu_job.Gpu()
    return _threads.gpu


class Group(_library.Group):
    def __init__(self, settings: _library.Settings) -> None:
        super().__init__(settings)
        assert self.adds_in_gpu_memory, self.why_no_gpu_memory
        self._places: Dict[int, Tuple[int, Any]] = {}  # by ticket

    def allreduce(self, step: int, bucket: int, layout: int, address: int, count: int, element_type: int,
                  divisor: float, stream: Optional[int] = None) -> int:
        gpu, size_bytes = gpu_of_thread(), count * np.dtype(_TYPES[element_type]).itemsize
        values = np.frombuffer((ctypes.c_char * size_bytes).from_address(address), _TYPES[element_type])
        place = gpu.allocate(size_bytes)
        gpu.put(values, place)
        ticket = super().allreduce(step, bucket, layout, place, count, element_type, divisor, gpu.stream.value)
        self._places[ticket] = place, values
        return ticket

    def wait(self, ticket: int, milliseconds: int) -> bool:
        if not super().wait(ticket, milliseconds):
            return False
        place, values = self._places.pop(ticket)
        values[:] = gpu_of_thread().get(place, values)
        gpu_of_thread().free(place)
        return True


def wish(model: Any, sync: str) -> _library.Gpu:
    return _library.Gpu(0, _gpu_wish(model, sync).memory_bytes)


if __name__ == "__main__":
    ddp_job.DEADLINES["same_host"] = "gpu_memory"  # each attach has them
    with mock.patch.object(_library, "Group", Group), mock.patch.object(starring.torch, "_gpu_wish", wish), \
            mock.patch.object(_exchange.BucketExchange, "_check_values"), \
            mock.patch.object(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=0)):
        ddp_job.main()
