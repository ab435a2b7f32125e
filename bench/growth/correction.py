"""Corrects predictions by the ratio of what was measured to what a cell's costs alone predict, interpolated.

Costs are few, and a step's time is not quite linear in their counts: caches bend it, lengths at which a library changes
its protocol, and processes that wait for their turn on a core. The last makes corrections hold only where as many cores
work as in the measurements: many processes on few cores say nothing about hosts with one process each.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping


@dataclasses.dataclass(frozen=True)
class Correction:
    """The ratio of a measurement to its prediction."""
    workers: int
    servers: int
    bytes: int
    factor: float


def _between(values: Mapping[int, float], at: int) -> float:
    """The value at a position: linear in the logarithms of both between the two nearest, constant beyond the ends."""
    low = max((place for place in values if place <= at), default=min(values))
    high = min((place for place in values if place >= at), default=max(values))
    if low >= high:
        return values[low]
    share = math.log(at / low) / math.log(high / low)
    return values[low] ** (1 - share) * values[high] ** share


def factor(corrections: Iterable[Correction], workers: int, servers: int, size: int, jump: int = 0) -> float:
    """What to multiply a prediction by; 1 without corrections. The costs alone jump at the size `jump`, so a ratio from
    its other side says nothing."""
    found: dict[int, dict[int, dict[int, float]]] = {}
    for one in corrections:
        if (one.bytes < jump) != (size < jump):
            continue
        found.setdefault(one.workers, {}).setdefault(one.servers, {})[one.bytes] = one.factor
    if not found:
        return 1.0
    return _between({count: _between({number: _between(sizes, size) for number, sizes in by_servers.items()}, servers)
                     for count, by_servers in found.items()}, workers)
