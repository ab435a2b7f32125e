"""Which device the jobs of a comparison train on. All of them on the same: else it would compare devices."""

import dataclasses
import json
import os
import tempfile

import programs

# Relative, of the losses of Starring and of the peer: a GPU's sums are of another order.
TOLERANCE = {"cpu": 1e-4, "fp32": 1e-3, "tf32": 1e-2, "bf16": 5e-2}


@dataclasses.dataclass(frozen=True)
class Device:
    kind: str = "cpu"  # cpu, cuda
    gpus: int = 0  # that jobs may use
    note: str = ""  # what a person should know of the choice

    def shared(self, workers):
        return self.kind == "cuda" and workers > self.gpus

    def flags(self, workers):
        """Of worker and peer alike."""
        return ["--device=" + self.kind] + ["--share_gpus"] * self.shared(workers)

    def tolerance(self, math="fp32"):
        return TOLERANCE["cpu" if self.kind == "cpu" else math]


def _try_worker():
    """ProgramError with the worker's own words where it cannot train on a GPU."""
    with tempfile.TemporaryDirectory() as folder:
        record = os.path.join(folder, "record.json")
        programs.run([programs.binary("worker/worker"), "--sync=local", "--device=cuda", "--dataset=synthetic",
                      "--synthetic_train_count=64", "--synthetic_test_count=1", "--model=logreg", "--max_steps=1",
                      "--progress=none", "--record=" + record])
        with open(record, encoding="utf-8") as file:
            return json.load(file)["host"]["device"]


def _why_not(torches, wants_torch):
    """Why the jobs cannot all train on a GPU; empty if they can."""
    try:
        _try_worker()
    except programs.ProgramError as error:
        return str(error).rstrip().rpartition("\n")[2]
    if wants_torch and torches and not any(torch.gpus for torch in torches):
        found = ", ".join(f"{torch.python} has {torch.version}" for torch in torches)
        return (f"no PyTorch sees a GPU ({found}): pip install torch for the python3 on PATH brings one with CUDA, or "
                "leave ddp out of --syncs")
    return ""


def choose(asked, gpu_count, torches, wants_torch):
    """(Device, the Torch to compare with or None). `gpu_count` is the driver's. ProgramError if --device=cuda cannot be
    had."""
    first = torches[0] if torches else None
    if asked == "cpu" or (asked == "auto" and gpu_count == 0):
        return Device(), first
    why = _why_not(torches, wants_torch)
    if why and asked == "cuda":
        raise programs.ProgramError(f"--device=cuda cannot be had: {why}; or give --device=cpu")
    if why:
        return Device(note=f"all jobs train on the CPU, though the driver shows {gpu_count} GPUs: {why}"), first
    torch = next((torch for torch in torches if torch.gpus), None)
    return Device("cuda", torch.gpus if torch else gpu_count), torch
