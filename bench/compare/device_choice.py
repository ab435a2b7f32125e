"""Chooses the device of a comparison. All its jobs train on the same device, or it would compare devices."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Sequence

import programs

# Relative difference allowed between the losses of Starring and the peer. A GPU adds in another order.
TOLERANCE = {"cpu": 1e-4, "fp32": 1e-3, "tf32": 1e-2, "bf16": 5e-2}
# As in bench/ddp/device.py.
SHARING_RELEASE = (2, 30)
RANKS_ON_A_GPU_MAX = 2


@dataclasses.dataclass(frozen=True)
class Device:
    kind: str = "cpu"  # cpu, cuda
    gpus: int = 0  # the number that jobs may use
    note: str = ""  # a sentence about the choice, for the report

    def check(self, syncs: Sequence[str], workers: Sequence[int]) -> None:
        """ProgramError for what this device cannot do."""
        if "nccl" not in syncs:
            return
        if self.kind == "cpu":
            raise programs.ProgramError("nccl adds in the memory of GPUs, and all jobs train on the CPU: leave it out "
                                        "of --syncs")
        most = max(workers, default=1)
        if most > RANKS_ON_A_GPU_MAX * self.gpus:
            raise programs.ProgramError(f"nccl takes at most {RANKS_ON_A_GPU_MAX} ranks on a GPU, and {most} workers "
                                        f"share {self.gpus}: leave nccl out of --syncs, or give a smaller --workers")

    def shared(self, workers: int) -> bool:
        return self.kind == "cuda" and workers > self.gpus

    def flags(self, workers: int) -> list[str]:
        """Flags for worker and peer."""
        return ["--device=" + self.kind] + ["--share_gpus"] * self.shared(workers)

    def environment(self, workers: int) -> dict[str, str]:
        """For a worker of ours that uses NCCL, which refuses ranks on one GPU otherwise, and in older releases always.
        bench/ddp/device.py sets it itself."""
        return {"NCCL_MULTI_RANK_GPU_ENABLE": "1"} if self.shared(workers) else {}

    def backend(self, torch: programs.Torch, workers: Sequence[int]) -> str:
        """The backends of jobs with these numbers of workers, which bench/ddp/device.py chooses in the same way."""
        if self.kind == "cpu":
            return "gloo, cpu" + (f" ({torch.libraries})" if torch.libraries else "")
        by_gloo = [str(count) for count in workers if count > 1 and not self._uses_nccl(torch, count)]
        sharing = [str(count) for count in workers if self.shared(count) and self._uses_nccl(torch, count)]
        nccl = f"nccl {torch.nccl}, " if len(by_gloo) < len(workers) and torch.nccl else ""
        shared = f"where {' and '.join(sharing)} workers share GPUs, " if sharing else ""
        gloo = f"gloo for {' and '.join(by_gloo)} workers, " if by_gloo else ""
        return f"{nccl}{shared}{gloo}CUDA {torch.cuda}"

    def _uses_nccl(self, torch: programs.Torch, workers: int) -> bool:
        if not torch.nccl or not self.shared(workers):
            return bool(torch.nccl)
        release = tuple(int(number) for number in torch.nccl.split(".")[:2])
        return release >= SHARING_RELEASE and workers <= RANKS_ON_A_GPU_MAX * self.gpus

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
