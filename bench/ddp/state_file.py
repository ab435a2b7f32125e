"""Saves a run every few steps, so that torchrun can start it again from there, and tells how far the run is.

A state is the parameters, buffers, the optimizer's state and the number of finished steps, from which the sampler's
position follows. Rank 0 writes it to a temporary file, flushes that to the disk and renames it, as the worker writes a
checkpoint: a kill leaves the state before or the new one.
"""

from __future__ import annotations

import argparse
import os
from typing import Optional

import torch


class StateFile:
    """The files of --state_file and --position_file; either may be missing."""

    def __init__(self, flags: argparse.Namespace, rank: int) -> None:
        self._path, self._every_steps, self._rank = flags.state_file, flags.state_every_steps, rank
        self._position: Optional[int] = None
        if flags.position_file and rank == 0:
            # A file of its own for each start: whoever removes it sees when the next start has its first step.
            self._position = os.open(flags.position_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)

    def restore(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
        """Sets both from the file, on every rank, and returns the number of finished steps; 0 without a file."""
        if not self._path or not os.path.exists(self._path):
            return 0
        state = torch.load(self._path, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return state["step"]

    def after_step(self, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """`step` steps of the run are finished."""
        if self._rank != 0:
            return
        if self._position is not None:
            os.pwrite(self._position, b"%d\n" % step, 0)  # steps only grow, so that no digit of the last one is left
        if self._path and step % self._every_steps == 0:
            self._save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()})

    def _save(self, state: dict[str, object]) -> None:
        temporary = f"{self._path}.{os.getpid()}.tmp"
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path)
