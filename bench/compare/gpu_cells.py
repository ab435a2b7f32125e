"""Measures the cells of two workers on one GPU beside a control and PyTorch's DDP, with bench/gpu_exchange.py."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence

import programs
import results as schema

# The same sums by way of the host's memory, of shared memory and of the GPUs' own.
CELLS = tuple(f"{sync}:tcp:--same_host={memory}" for sync in ("star", "ring")
              for memory in ("socket", "shared_memory", "gpu_memory"))
STEPS = {"mlp": 600, "mnist_cnn": 200, "resnet20": 60}
STEPS_OF_OTHERS = 200
SECONDS_MAX = 3600
LAST_JOB_SECONDS = 120  # the job that runs when the time is over may take so long, and then there is a record


def command(models: Sequence[str], repeats: int, batch: int, syncs: Sequence[str], torch: programs.Torch | None,
            record: str) -> list[str]:
    """The command whose record `measure` reads."""
    cells = [*CELLS, *(["nccl:tcp"] if "nccl" in syncs else []), *(["ddp"] if torch is not None else [])]
    steps = ",".join(f"{model}:{STEPS.get(model, STEPS_OF_OTHERS)}" for model in models)
    return [sys.executable, os.path.join(programs.ROOT, "bench/gpu_exchange.py"), f"--models={steps}",
            f"--repeats={repeats}", f"--batch={batch}", f"--seconds={SECONDS_MAX - LAST_JOB_SECONDS}",
            "--worker=" + programs.binary("worker/worker"),
            "--launch=" + programs.binary("deploy/launch"), "--record=" + record,
            *(["--torch_python=" + torch.python] if torch is not None else []), *cells]


def measure(models: Sequence[str], repeats: int, batch: int, syncs: Sequence[str],
            torch: programs.Torch | None) -> schema.GpuCells:
    """ProgramError if nothing could be measured. A cell that failed is in the result, with its reason."""
    with tempfile.TemporaryDirectory() as folder:
        record = os.path.join(folder, "record.json")
        try:
            programs.run(command(models, repeats, batch, syncs, torch, record), seconds_max=SECONDS_MAX)
        except programs.ProgramError:
            if not os.path.exists(record):
                raise
        with open(record, encoding="utf-8") as file:
            try:
                found: schema.GpuCells = json.load(file)
            except json.JSONDecodeError as error:
                raise programs.ProgramError(f"the record of bench/gpu_exchange.py has no end: {error}") from error
    return found
