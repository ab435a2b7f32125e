"""What an elastic job was seen to do and when, and what an event has caused: detection, next step, repeated steps."""

from __future__ import annotations

import bisect
import dataclasses
import re
import threading

# Kinds after which steps count only in a later generation: until then they may have been made before the event.
CAUSE_CHANGE = ("kill", "kill-two", "join", "leave", "report-error")

_GENERATION = re.compile(r"^s0 \| server 0: generation (\d+) from step (\d+) with (\d+) worker")
_CUT = re.compile(r"^s0 \| server 0: generation (\d+) is cut short at step (\d+)")
_STARTS_AGAIN = re.compile(r"^launch: (s\d+) .*: starting it again")
_LISTENS = re.compile(r"^(s\d+) \| listening on ")


@dataclasses.dataclass(frozen=True)
class Generation:
    """A generation that has begun."""
    at: float  # all times are those of one clock, in seconds
    number: int
    first_step: int
    workers: int


@dataclasses.dataclass(frozen=True)
class Cut:
    """A generation that an event has cut short."""
    at: float
    step: int


@dataclasses.dataclass
class Start:
    """The start of a server in place of one that has died."""
    name: str
    begin: float
    end: float | None = None  # when it listens


@dataclasses.dataclass(frozen=True)
class Measures:
    """What an event has caused. Times are seconds since its begin; None: it has not happened."""
    detection_s: float | None  # until the coordinator said that the generation is cut short
    next_step_s: float | None  # until the first step that no worker had made before
    start_s: float  # the part of next_step_s in which servers were started
    again_steps: int  # computed twice, as far as generations had begun when that step was made
    changed: bool  # another generation had begun by then


def covered(intervals: list[tuple[float, float]]) -> float:
    """The length of what the intervals cover together."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


class Timeline:
    """What was seen. `at` never decreases from call to call of one method.

    Thread safety: any thread may call any method.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._step_times: list[float] = []  # when a step was first seen that is above all before
        self._steps: list[int] = []  # these steps, so in ascending order
        self._generations: list[Generation] = []
        self._cuts: list[Cut] = []
        self._starts: list[Start] = []

    def on_step(self, at: float, step: int) -> None:
        """A worker shows `step` as its newest."""
        with self._lock:
            if not self._steps or step > self._steps[-1]:
                self._step_times.append(max([at, *self._step_times[-1:]]))
                self._steps.append(step)

    def on_line(self, at: float, line: str) -> None:
        """The launcher of the job has printed `line`."""
        with self._lock:
            if found := _GENERATION.match(line):
                self._generations.append(Generation(at, int(found[1]), int(found[2]), int(found[3])))
            elif found := _CUT.match(line):
                self._cuts.append(Cut(at, int(found[2])))
            elif found := _STARTS_AGAIN.match(line):
                self._starts.append(Start(found[1], at))
            elif found := _LISTENS.match(line):
                for start in self._starts:
                    if start.name == found[1] and start.end is None:
                        start.end = at

    @property
    def generation(self) -> Generation | None:
        """The newest one."""
        with self._lock:
            return self._generations[-1] if self._generations else None

    @property
    def step(self) -> int:
        """The highest one seen; -1: none."""
        with self._lock:
            return self._steps[-1] if self._steps else -1

    def has_step_after(self, at: float) -> bool:
        """Whether a step was made after `at` that is above all before."""
        with self._lock:
            return bool(self._step_times) and self._step_times[-1] > at

    def measure(self, kind: str, begin: float, end: float) -> Measures:
        """What an event has caused that lasted from `begin` to `end`, as far as it was seen."""
        with self._lock:
            next_step = self._next_step(self._counts_from(kind, begin, end))
            until = float("inf") if next_step is None else next_step
            changes = [one for one in self._generations if begin < one.at <= until]
            cuts = [one for one in self._cuts if begin < one.at <= until]
            starts = [(max(one.begin, begin), min(one.end or until, until)) for one in self._starts
                      if one.begin <= until and (one.end is None or one.end > begin)]
            return Measures(detection_s=cuts[0].at - begin if cuts else None,
                            next_step_s=None if next_step is None else next_step - begin,
                            start_s=0.0 if next_step is None else covered(starts),
                            again_steps=self._again(begin, changes, cuts), changed=bool(changes))

    def _counts_from(self, kind: str, begin: float, end: float) -> float | None:
        """From when on a step is a next step; None: it is not known yet."""
        change = next((one.at for one in self._generations if one.at > begin), None)
        if kind in CAUSE_CHANGE:
            return change
        if kind.endswith("-long"):  # the others need not wait until the process wakes up, or is connected
            return end if change is None else min(change, end)
        return end if kind == "stop-short" else begin

    def _next_step(self, since: float | None) -> float | None:
        if since is None:
            return None
        index = bisect.bisect_right(self._step_times, since)
        return self._step_times[index] if index < len(self._step_times) else None

    def _again(self, begin: float, changes: list[Generation], cuts: list[Cut]) -> int:
        """Up to the highest step that the coordinator names or a page shows: the coordinator names none if it has died,
        and an old one if the workers have that could have told it."""
        total, since = 0, begin
        for change in changes:
            reached = [cut.step for cut in cuts if since < cut.at <= change.at]
            if since == begin:
                seen = bisect.bisect_right(self._step_times, change.at)
                reached += self._steps[max(0, seen - 1):seen]
            total += max([0, *(step - change.first_step for step in reached)])
            since = change.at
        return total
