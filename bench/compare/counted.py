"""What of a disturbed run counts, from what its processes print and serve. Pure functions.

Words. A run's *position* is the number of steps that are part of its result. It falls when a worker is killed and the
run goes back to its last checkpoint or snapshot. What *counted* between two times is the difference of the positions:
a step that was computed twice counts once. In a run that is disturbed at regular intervals both positions are taken
just before a disturbance, so that what the first one costs is in the interval, and what the last one would cost is not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

OTHER_SHARES = "other shares are faster"


class Page(NamedTuple):
    """What a worker's metrics page tells."""
    position: int | None  # None: no step has been finished by this process
    steps: int  # finished by this process, repeated ones too
    compute_s: float  # in forward and backward, of these steps


def page(text: str) -> Page:
    """Reads Prometheus text; a missing number is 0."""
    values: dict[str, float] = {}
    for name, labels, value in re.findall(r"^(starring_\w+)(\{[^}]*\})? ([-+.\deE]+)$", text, re.MULTILINE):
        values[name + labels] = float(value)
    steps = int(values.get("starring_steps_total", 0))
    compute = sum(values.get(f'starring_step_seconds_total{{part="{part}"}}', 0.0) for part in ("forward", "backward"))
    return Page(int(values.get("starring_step", 0)) + 1 if steps else None, steps, compute)


def metrics_address(line: str) -> tuple[int, str] | None:
    """(worker, address) of the line in which a worker says where its page is."""
    found = re.search(r"worker (\d+): metrics at (\S+)", line)
    return (int(found[1]), found[2]) if found else None


def generation(line: str) -> tuple[int, int] | None:
    """(number, first step) of the line in which a generation begins."""
    found = re.search(r"generation (\d+) from step (\d+) with \d+ worker", line)
    return (int(found[1]), int(found[2])) if found else None


def deals_shares(line: str) -> bool:
    """Whether a generation ends because other shares are faster."""
    return re.search(r"generation \d+ ends at its next snapshot: " + OTHER_SHARES, line) is not None


def samples(step_count: int, train_count: int, global_batch: int) -> int:
    """The samples of a run's first steps; the last batch of an epoch may be smaller."""
    epochs, steps = divmod(step_count, -(-train_count // global_batch))
    return epochs * train_count + min(steps * global_batch, train_count)


def rate(begin: int, end: int, seconds: float, train_count: int, global_batch: int) -> float:
    """Samples per second that counted between two positions; 0 if the run has only gone back."""
    counted = samples(end, train_count, global_batch) - samples(begin, train_count, global_batch)
    return max(0, counted) / seconds


def periods(step_seconds: float, wanted_seconds: Sequence[float]) -> list[int]:
    """Steps between two checkpoints, for about so many seconds between them."""
    return sorted({max(1, round(seconds / step_seconds)) for seconds in wanted_seconds})
