"""Says how well the shares of an elastic star fit workers that are not equally fast. Pure functions.

Words. A *leaf* is a micro-batch of a step. The *best split* gives k leaves to the one worker and the others to the
other one, so that the slower of the two takes as little time as possible: the least max(k * t1, (M - k) * t2), where
t1 and t2 are the workers' measured times for a leaf. A step has more than that: the exchange and the optimizer.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from counted import Page

Pages = Mapping[int, Page]  # by worker


@dataclasses.dataclass(frozen=True)
class Watch:
    """Readings of a run with two workers: two while all had equal shares, two after the shares were dealt anew."""
    generation: int  # of the last two
    equal: tuple[Pages, Pages]
    dealt: tuple[Pages, Pages]
    steps: tuple[int, int]  # the positions between the last two


def leaves_by_rank(log: str, generation: int) -> list[int]:
    """From what `server --print_log` prints; empty if the log does not have the generation."""
    found = re.search(rf"^commit {{.* generation: {generation} first_.* leaf_owners: \[([\d, ]+)\]", log, re.MULTILINE)
    owners = [int(word) for word in found[1].split(",")] if found else []
    return [owners.count(rank) for rank in range(max(owners, default=-1) + 1)]


def best_split(seconds_per_leaf: Sequence[float], leaves: int) -> tuple[list[int], float]:
    """The leaves of each of the two workers, and the time of the slower one. Each has one leaf at least."""
    first, second = seconds_per_leaf
    times = {count: max(count * first, (leaves - count) * second) for count in range(1, leaves)}
    best = min(times, key=lambda count: times[count])
    return [best, leaves - best], times[best]


def assign(leaves: Sequence[int], compute_s: Sequence[float], per_leaf: Sequence[float]) -> list[int]:
    """The leaves of each worker. The log knows workers by their rank, and the pages by the process.

    `compute_s` has each worker's time in a step, and `per_leaf` its time for a leaf while the shares were equal: in the
    right order both say the same about how fast the workers are."""
    def misfit(order: Iterable[int]) -> float:
        return sum(abs(math.log(seconds / count / before))
                   for count, seconds, before in zip(order, compute_s, per_leaf))

    return list(min(itertools.permutations(leaves), key=misfit))


def step_seconds(losses: Sequence[Mapping[str, Any]], begin: int, end: int) -> list[float]:
    """The times of the steps from `begin` to `end`, from the losses of a run record."""
    ends = [one["seconds"] for one in losses if begin <= one["step"] < end]
    return [later - earlier for earlier, later in zip(ends, ends[1:])]


def _compute_seconds(pages: tuple[Pages, Pages]) -> list[float]:
    """Each worker's time in forward and backward of a step, between two readings; empty without two readings of both
    workers and steps between them."""
    begin, end = pages
    both = sorted(begin.keys() & end.keys())
    steps = [end[worker].steps - begin[worker].steps for worker in both]
    if both != [0, 1] or min(steps) <= 0:
        return []
    return [(end[worker].compute_s - begin[worker].compute_s) / count for worker, count in zip(both, steps)]


def describe(watch: Watch, log: str, losses: Sequence[Mapping[str, Any]], leaf_count: int) -> dict[str, Any] | None:
    """What results.Shares says of a single run; None if a page, the log or the losses are missing."""
    leaves = leaves_by_rank(log, watch.generation)
    before, after = _compute_seconds(watch.equal), _compute_seconds(watch.dealt)
    steps = step_seconds(losses, *watch.steps)
    if len(leaves) != 2 or not before or not after or not steps:
        return None
    leaves = assign(leaves, after, [seconds / (leaf_count / 2) for seconds in before])
    per_leaf = [seconds / count for seconds, count in zip(after, leaves)]
    best, best_seconds = best_split(per_leaf, leaf_count)
    return {"leaves": leaves, "seconds_per_leaf": per_leaf, "best_leaves": best, "best_ms": 1e3 * best_seconds,
            "step_ms_p50": 1e3 * statistics.median(steps)}
