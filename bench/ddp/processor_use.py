"""Measures the CPU time of this process and its children (a DataLoader's) between resume() and pause()."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Optional, Tuple

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def _children_seconds() -> float:
    seconds = 0.0
    for child in multiprocessing.active_children():
        try:
            with open(f"/proc/{child.pid}/stat", encoding="utf-8") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        seconds += (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
    return seconds


class ProcessorUse:
    """The CPU use over all periods between resume() and pause()."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0
        self.begin: Optional[Tuple[float, float]] = None  # wall and CPU time; None: paused

    def resume(self) -> None:
        if self.begin is None:
            self.begin = (time.perf_counter(), time.process_time() + _children_seconds())

    def pause(self) -> None:
        if self.begin is not None:
            self.wall += time.perf_counter() - self.begin[0]
            self.cpu += time.process_time() + _children_seconds() - self.begin[1]
            self.begin = None

    def percent(self) -> float:
        """100 is one core."""
        return 100 * self.cpu / self.wall if self.wall > 0 else 0.0
