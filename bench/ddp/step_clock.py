"""Where the time of each step goes: on the host's clock, or on a GPU's own, which no step waits for."""

import time
from typing import Dict, NamedTuple

import torch


class StepTime(NamedTuple):
    """In seconds, `begin` and `end` since the first step began. `end` is where the next step begins."""
    begin: float
    end: float
    parts: Dict[str, float]


class HostClock:
    """start_step and done of each part as it ends, for every step; then read."""

    def __init__(self):
        self._steps = []  # of each: [(part, time at its end)], the first of them (None, time at which the step began)

    def start_step(self):
        self._steps.append([(None, self._now())])

    def done(self, part):
        """What this step did since its last mark was `part`. The same part twice in a step adds up."""
        self._steps[-1].append((part, self._now()))

    def read(self):
        """A StepTime for each step since the last call. Waits until they are over."""
        self.start_step()  # the end of the last
        self._wait()
        steps, self._steps = self._steps, []
        origin, found = steps[0][0][1], []
        for marks, following in zip(steps, steps[1:]):
            parts = {}
            for (_, begin), (part, end) in zip(marks, marks[1:]):
                parts[part] = parts.get(part, 0.0) + self._seconds(begin, end)
            found.append(StepTime(self._seconds(origin, marks[0][1]), self._seconds(origin, following[0][1]), parts))
        self._release(steps)
        return found

    def _now(self):
        return time.perf_counter()

    def _seconds(self, begin, end):
        return end - begin

    def _wait(self):
        pass

    def _release(self, steps):
        pass


class GpuClock(HostClock):
    """Marks are events in the GPU's queue: it notes the time as it comes by, while the host is steps ahead.

    So a part is what the GPU spent on it, or spent idle because the host or another worker was late with it.
    """

    def __init__(self):
        super().__init__()
        self._unused = []

    def done(self, part):
        # An event in a graph has no time that could be read.
        if not torch.cuda.is_current_stream_capturing():
            super().done(part)

    def _now(self):
        event = self._unused.pop() if self._unused else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, begin, end):
        return begin.elapsed_time(end) / 1e3

    def _wait(self):
        torch.cuda.synchronize()

    def _release(self, steps):
        self._unused += [event for marks in steps for _, event in marks]
