"""Measures the parts of each step with the host's clock, or with a GPU's own clock, for which no step waits."""

from __future__ import annotations

import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch


Mark = Tuple[Optional[str], Any]  # a part, and the time at its end; (None, ...): the time at which the step began


class StepTime(NamedTuple):
    """Seconds. `begin` and `end` count from the beginning of the first step; the next step begins at `end`."""
    begin: float
    end: float
    parts: Dict[str, float]


class HostClock:
    """Call start_step() for every step, done() as each of its parts ends, and read() when the steps are over."""

    def __init__(self) -> None:
        self._steps: List[List[Mark]] = []

    def start_step(self) -> None:
        self._steps.append([(None, self._now())])

    def done(self, part: str) -> None:
        """The time since the last mark was `part`. Times of the same part in a step are added."""
        self._steps[-1].append((part, self._now()))

    def read(self) -> list[StepTime]:
        """A StepTime for each step since the last call. Waits until the steps are over."""
        self.start_step()  # marks the end of the last step
        self._wait()
        steps, self._steps = self._steps, []
        origin = steps[0][0][1]
        found = []
        for marks, following in zip(steps, steps[1:]):
            parts: Dict[str, float] = {}
            for (_, begin), (part, end) in zip(marks, marks[1:]):
                assert part is not None  # only the first mark of a step has no part
                parts[part] = parts.get(part, 0.0) + self._seconds(begin, end)
            found.append(StepTime(self._seconds(origin, marks[0][1]), self._seconds(origin, following[0][1]), parts))
        self._release(steps)
        return found

    def _now(self) -> Any:
        return time.perf_counter()

    def _seconds(self, begin: Any, end: Any) -> float:
        return end - begin

    def _wait(self) -> None:
        pass

    def _release(self, steps: list[list[Mark]]) -> None:
        pass


class GpuClock(HostClock):
    """Marks are events in the GPU's queue. The GPU notes the time when it reaches them; the host may be steps ahead.

    So a part is the GPU's time for it, including idle time while the GPU waited for the host or another worker.
    """

    def __init__(self) -> None:
        super().__init__()
        self._unused: List[Any] = []

    def done(self, part: str) -> None:
        # The time of an event inside a graph cannot be read.
        if not torch.cuda.is_current_stream_capturing():
            super().done(part)

    def _now(self) -> Any:
        event = self._unused.pop() if self._unused else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, begin: Any, end: Any) -> float:
        return begin.elapsed_time(end) / 1e3

    def _wait(self) -> None:
        torch.cuda.synchronize()

    def _release(self, steps: list[list[Mark]]) -> None:
        self._unused += [event for marks in steps for _, event in marks]
