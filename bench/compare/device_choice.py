"""Chooses the device of a comparison. All its jobs train on the same device, or it would compare devices."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Sequence

import programs

# Relative difference allowed between the losses of Starring and the peer. A GPU adds in another order.
TOLERANCE = {"cpu": 1e-4, "fp32": 1e-3, "tf32": 1e-2, "bf16": 5e-2}


@dataclasses.dataclass(frozen=True)
class Device:
    kind: str = "cpu"  # cpu, cuda
    gpus: int = 0  # the number that jobs may use
    note: str = ""  # a sentence about the choice, for the report

    def shared(self, workers: int) -> bool:
        return self.kind == "cuda" and workers > self.gpus

    def flags(self, workers: int) -> list[str]:
        """Flags for worker and peer."""
        return ["--device=" + self.kind] + ["--share_gpus"] * self.shared(workers)

    def backend(self, torch: programs.Torch, workers: Sequence[int]) -> str:
        """The backends of jobs with these numbers of workers, which bench/ddp/device.py chooses in the same way."""
        if self.kind == "cpu":
            return "gloo, cpu" + (f" ({torch.libraries})" if torch.libraries else "")
        shared = [str(count) for count in workers if self.shared(count) or (count > 1 and not torch.nccl)]
        nccl = f"nccl {torch.nccl}, " if len(shared) < len(workers) and torch.nccl else ""
        gloo = f"gloo for {' and '.join(shared)} workers, " if shared else ""
        return f"{nccl}{gloo}CUDA {torch.cuda}"

    def tolerance(self, math: str = "fp32") -> float:
        return TOLERANCE["cpu" if self.kind == "cpu" else math]


def _try_worker() -> None:
    """Trains one step on a GPU. ProgramError with the worker's own message if it cannot."""
    with tempfile.TemporaryDirectory() as folder:
        record = os.path.join(folder, "record.json")
        programs.run([programs.binary("worker/worker"), "--sync=local", "--device=cuda", "--dataset=synthetic",
                      "--synthetic_train_count=64", "--synthetic_test_count=1", "--model=logreg", "--max_steps=1",
                      "--progress=none", "--checkpoint_dir=none", "--record=" + record])


def _why_not(torches: list[programs.Torch], wants_torch: bool) -> str:
    """Why not all jobs can train on a GPU; empty if they can."""
    try:
        _try_worker()
    except programs.ProgramError as error:
        return str(error).rstrip().rpartition("\n")[2]
    if wants_torch and torches and not any(torch.gpus for torch in torches):
        found = ", ".join(f"{torch.python} has {torch.version}" for torch in torches)
        return (f"no PyTorch sees a GPU ({found}): pip install torch for the python3 on PATH brings one with CUDA, or "
                "leave ddp out of --syncs")
    return ""


def choose(asked: str, gpu_count: int, torches: list[programs.Torch],
           wants_torch: bool) -> tuple[Device, programs.Torch | None]:
    """The device, and the Torch to compare with, or None. `gpu_count` is the number that the driver reports.

    ProgramError if --device=cuda is asked for and cannot be used."""
    first = torches[0] if torches else None
    if asked == "cpu" or (asked == "auto" and gpu_count == 0):
        return Device(), first
    why = _why_not(torches, wants_torch)
    if why and asked == "cuda":
        raise programs.ProgramError(f"--device=cuda cannot be used: {why}; or give --device=cpu")
    if why:
        return Device(note=f"all jobs train on the CPU, though the driver shows {gpu_count} GPUs: {why}"), first
    torch = next((torch for torch in torches if torch.gpus), None)
    return Device("cuda", torch.gpus if torch else gpu_count), torch
