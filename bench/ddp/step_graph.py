"""Captures a training step once in a CUDA graph and then launches it as a whole.

Follows PyTorch's notes on CUDA graphs. Some steps run before the capture; here these are ordinary steps of training.
All of them, and the construction of DistributedDataParallel, are off the default stream. Tensors that the graph reads
and writes keep their addresses.
"""

from __future__ import annotations

import argparse
import inspect
from typing import Any, Callable, Dict, List, Sequence, Tuple, TYPE_CHECKING

import torch

if TYPE_CHECKING:  # torch_steps.py in a bundle has no device.py
    from device import Device

EAGER_STEPS = 11  # steps before a capture, which DDP needs; one process would need fewer


class CaptureError(RuntimeError):
    """PyTorch could not capture the step. The process should end, since its state after a failed capture is unknown."""


def _version() -> tuple[int, ...]:
    return tuple(int(number) for number in torch.__version__.split("+")[0].split(".")[:2] if number.isdigit())


def obstacle(flags: argparse.Namespace, device: Device) -> str:
    """Why no step of this job can be captured; empty if no reason is known."""
    if flags.graph_failure:
        return flags.graph_failure
    if not device.is_gpu:
        return "the CPU has none"
    if flags.data == "dataloader":
        return "the batches of a DataLoader are on the host"
    if device.backend == "gloo":
        return "Gloo's allreduce runs on the host"
    if flags.hook != "none" and device.world_size > 1:
        return f"the {flags.hook} of --hook runs on the host"
    if device.world_size > 1 and _version() < (2, 0):
        return f"torch {torch.__version__} captures no step of DistributedDataParallel, 2.0 does"
    if flags.schedule == "cosine" or flags.warmup_steps > 0:
        return "the learning rate changes in every step, and a captured optimizer keeps its own"
    return ""


def capture(work: Callable[[], Any]) -> Callable[[], Any]:
    """A function that does the work of `work` by one launch. It returns the tensors that `work` returned during the
    capture, which every launch overwrites."""
    # During the capture NCCL's watchdog thread queries older work. By default that would end the capture.
    known = "capture_error_mode" in inspect.signature(torch.cuda.graph.__init__).parameters
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, **({"capture_error_mode": "thread_local"} if known else {})):
            result = work()
    except RuntimeError as error:
        raise CaptureError(str(error).split("\n", maxsplit=1)[0]) from error

    def launch() -> Any:
        graph.replay()
        return result

    return launch


class GraphedStep:
    """Calls `work` with tensors: the first EAGER_STEPS times directly, then by a graph for each `key`. The key is
    everything else on which `work` depends, such as the learning rate. All calls have tensors of the same shapes."""

    def __init__(self, work: Callable[..., torch.Tensor]) -> None:
        self._work = work
        self._eager_left = EAGER_STEPS
        # By key: the tensors that the graph reads, and the function that launches it.
        self._graphs: Dict[float, Tuple[List[torch.Tensor], Callable[[], torch.Tensor]]] = {}

    def __call__(self, key: float, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        if self._eager_left > 0:
            self._eager_left -= 1
            return self._work(*tensors)
        if key not in self._graphs:
            inputs = [tensor.clone() for tensor in tensors]
            self._graphs[key] = inputs, capture(lambda: self._work(*inputs))
        inputs, launch = self._graphs[key]
        for mine, given in zip(inputs, tensors):
            mine.copy_(given, non_blocking=True)
        return launch().clone()
