"""Chooses the device of a process of the peer, by the rules of worker/options/device_choice.h, and the backend of its
exchange.

Processes that each have a GPU use NCCL. So do two on one GPU from NCCL 2.30 on, where it is an experiment of NVIDIA's;
an older NCCL refuses that, and more may hang. Other processes that share a GPU use Gloo, as on the CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import os
from contextlib import AbstractContextManager
from typing import Any, Dict

import torch
import torch.distributed as dist

# The first release of NCCL that allows several ranks on one GPU, and how many it is made for
# (NCCL_MULTI_RANK_GPU_ENABLE in NVIDIA's list of environment variables).
SHARING_RELEASE = (2, 30)
RANKS_ON_A_GPU_MAX = 2

HOW_TO_GET_CUDA = "pip install torch brings a PyTorch with CUDA"


class DeviceError(Exception):
    """The device cannot be used. The message says why, and what to do."""


@dataclasses.dataclass(frozen=True)
class Device:
    """The device of one process, and how it communicates."""
    torch: torch.device
    math: str = "fp32"
    backend: str = ""  # nccl or gloo; empty for one process
    world_size: int = 1
    shared: bool = False  # with another process of this machine, maybe

    @property
    def is_gpu(self) -> bool:
        return self.torch.type == "cuda"

    def set_up(self, flags: argparse.Namespace) -> None:
        """Sets PyTorch's switches, which are global to the process."""
        if flags.deterministic:
            torch.use_deterministic_algorithms(True, warn_only=True)
        if not self.is_gpu:
            return
        torch.cuda.set_device(self.torch)
        # By default PyTorch's convolutions round to TF32 and its matrix products do not.
        torch.backends.cuda.matmul.allow_tf32 = self.math == "tf32"
        torch.backends.cudnn.allow_tf32 = self.math == "tf32"
        torch.backends.cudnn.benchmark = flags.cudnn_benchmark and not flags.deterministic

    def join(self, rank: int, init_method: str, deadline_s: int) -> None:
        if self.shared and self.backend == "nccl":
            os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"  # NCCL reads it when it starts
        dist.init_process_group(self.backend, init_method=init_method, rank=rank, world_size=self.world_size,
                                timeout=datetime.timedelta(seconds=deadline_s))

    def autocast(self) -> AbstractContextManager[None]:
        return torch.autocast("cuda", dtype=torch.bfloat16) if self.math == "bf16" else contextlib.nullcontext()

    def sum_over_ranks(self, values: list[float]) -> list[float]:
        return self._over_ranks(values, dist.ReduceOp.SUM)

    def max_over_ranks(self, values: list[float]) -> list[float]:
        return self._over_ranks(values, dist.ReduceOp.MAX)

    def _over_ranks(self, values: list[float], operation: dist.ReduceOp) -> list[float]:
        total = torch.tensor(values, dtype=torch.float64, device=self.torch)  # NCCL requires a GPU's memory
        if self.world_size > 1:
            dist.all_reduce(total, operation)
        return total.tolist()

    def name(self) -> str:
        """The GPU's name; empty for the CPU."""
        return torch.cuda.get_device_name(self.torch) if self.is_gpu else ""

    def versions(self) -> dict[str, str]:
        found: Dict[str, str] = {}
        if self.is_gpu:
            found.update(cuda=str(torch.version.cuda), cudnn=str(torch.backends.cudnn.version()))
        if self.backend:
            found["backend"] = self.backend if self.backend == "gloo" else "nccl " + nccl_version()
            if self.shared:
                found["backend"] += ", shared GPUs"
        return found


def nccl_version() -> str:
    nccl: Any = torch.cuda.nccl
    return ".".join(map(str, nccl.version()))


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"


def _why_no_gpu() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA: {HOW_TO_GET_CUDA}, or give --device=cpu"
    return (f"torch {torch.__version__} (CUDA {torch.version.cuda}) finds no GPU that it can use: look at nvidia-smi, "
            "or give --device=cpu")


def choose(flags: argparse.Namespace, world_size: int, local_rank: int, local_size: int) -> Device:
    """The device of process `local_rank` of `local_size` on this machine. DeviceError where the worker would refuse."""
    gloo = "gloo" if world_size > 1 else ""
    gpu_count = torch.cuda.device_count() if flags.device != "cpu" and torch.cuda.is_available() else 0
    if gpu_count == 0:
        if flags.device == "cuda":
            raise DeviceError("flag --device cannot be \"cuda\": " + _why_no_gpu())
        if flags.math != "fp32":
            raise DeviceError(f"flag --math cannot be \"{flags.math}\": the CPU computes in fp32: drop one of the two")
        return Device(torch.device("cpu"), backend=gloo, world_size=world_size)
    shared = local_size > gpu_count
    if shared and not flags.share_gpus:
        raise DeviceError(f"{local_size} workers on this machine, but PyTorch sees only {_gpus(gpu_count)}: start "
                          "fewer, let them share with --share_gpus, or give --device=cpu")
    fits = not shared or (local_size <= RANKS_ON_A_GPU_MAX * gpu_count and dist.is_nccl_available() and
                          torch.cuda.nccl.version()[:2] >= SHARING_RELEASE)
    backend = "nccl" if gloo and fits and dist.is_nccl_available() else gloo
    return Device(torch.device("cuda", local_rank % gpu_count), flags.math, backend, world_size, shared)
