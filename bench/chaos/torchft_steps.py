"""What the workers of a torchft job have written into their common file, and what an event has caused."""

from __future__ import annotations

import bisect
import dataclasses

from bench.chaos.timeline import Measures


@dataclasses.dataclass(frozen=True)
class Try:
    """A worker's try to make a step. If any worker commits it, it is made."""
    at: float  # seconds of the clock that all processes of a machine have in common
    worker: int
    step: int
    quorum: int  # its number. A new lighthouse begins with 1 again
    shares: int  # the number of workers whose samples counted
    committed: bool


def parse(line: str) -> Try | tuple[float, int]:
    """A line of torchft_worker.py: a try, or when a worker was ready to begin, and which."""
    what, at, *numbers = line.split()
    if what == "ready":
        worker, = map(int, numbers)
        return float(at), worker
    if what not in ("step", "failed"):
        raise ValueError("a line must begin with ready, step or failed: %r" % line)
    worker, step, quorum, shares = map(int, numbers)
    return Try(float(at), worker, step, quorum, shares, what == "step")


class Steps:
    """All lines so far."""

    def __init__(self) -> None:
        self.ready: dict[int, list[float]] = {}  # when each worker was ready to begin, for each of its starts
        self.newest: dict[int, Try] = {}  # of each worker
        self.shares: dict[int, int] = {}  # of each step that was made; the later ones if it was made twice
        self._tries: list[Try] = []
        self._times: list[float] = []  # of the tries; none is before the one above
        self._made: dict[tuple[int, int], float] = {}  # when (quorum, step) was made
        self._highest: list[Try] = []  # those that made a step above all before

    def add(self, line: str) -> None:
        found = parse(line)
        if not isinstance(found, Try):
            self.ready.setdefault(found[1], []).append(found[0])
            return
        self.newest[found.worker] = found
        self._tries.append(found)
        self._times.append(max([found.at, *self._times[-1:]]))
        if found.committed:
            self.shares[found.step] = found.shares
            self._made.setdefault((found.quorum, found.step), found.at)
            if found.step > self.step:
                self._highest.append(found)

    @property
    def step(self) -> int:
        """The highest one that was made; -1: none."""
        return self._highest[-1].step if self._highest else -1

    @property
    def quorum(self) -> int:
        """That of the highest step."""
        return self._highest[-1].quorum if self._highest else -1

    def has_step_after(self, at: float) -> bool:
        """Whether a step was made after `at` that is above all before."""
        return bool(self._highest) and self._highest[-1].at > at

    def back(self, worker: int, since: float) -> float | None:
        """When a worker that was killed at `since` has made its first step again."""
        ready = next((at for at in self.ready.get(worker, []) if at > since), float("inf"))
        return next((one.at for one in self._tries[bisect.bisect_right(self._times, ready):]
                     if one.worker == worker and one.committed), None)

    def measure(self, begin: float, end: float, needs_change: bool) -> Measures:
        """What an event has caused that lasted from `begin` to `end`, as far as it was seen.

        The next step is the first one above all before, in another quorum. Unless `needs_change`, one after `end` in
        the same quorum will do as well."""
        index = bisect.bisect_right(self._highest, begin, key=lambda one: one.at)
        quorum, top = (self._highest[index - 1].quorum, self._highest[index - 1].step) if index > 0 else (-1, -1)
        following = next((one for one in self._highest[index:]
                          if one.quorum != quorum or not needs_change and one.at > end), None)
        until = float("inf") if following is None else following.at
        window = self._tries[bisect.bisect_right(self._times, begin):bisect.bisect_right(self._times, until)]
        failed = [one for one in window if not one.committed]
        return Measures(detection_s=failed[0].at - begin if failed else None,
                        next_step_s=None if following is None else following.at - begin, start_s=0.0,
                        again_steps=self._again(window, begin, top),
                        changed=following is not None and following.quorum != quorum)

    def _again(self, window: list[Try], begin: float, top: int) -> int:
        """The steps that no worker made of those that were tried, and those that were made before a checkpoint was
        loaded: all workers had died."""
        tried = {(one.quorum, one.step) for one in window}
        lost = sum(pair not in self._made for pair in tried)
        since = [step for quorum, step in tried if self._made.get((quorum, step), 0.0) > begin]
        return lost + max(0, top + 1 - min(since, default=top + 1))
