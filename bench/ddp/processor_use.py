"""CPU time of this process and its children (a DataLoader's) over the stretches of wall time that are watched."""

import multiprocessing
import os
import time

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def _children_seconds():
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
    def __init__(self):
        self.wall = self.cpu = 0.0
        self.begin = None

    def resume(self):
        if self.begin is None:
            self.begin = (time.perf_counter(), time.process_time() + _children_seconds())

    def pause(self):
        if self.begin is not None:
            self.wall += time.perf_counter() - self.begin[0]
            self.cpu += time.process_time() + _children_seconds() - self.begin[1]
            self.begin = None

    def percent(self):
        """100 is one core."""
        return 100 * self.cpu / self.wall if self.wall > 0 else 0.0
