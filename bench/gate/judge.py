"""Judges the rows of two programs that ran in turns: is the new one slower, does it need more memory or messages?"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

import ratios
from cells import Cell

KIND_MAX = 1.01  # the geometric mean of a kind's ratios
CELL_MAX = 1.03  # no cell's 95 % interval is wholly above
MEMORY_MAX = 1.02
MESSAGES_MAX = 1.01  # a message at either end of the measured steps may be counted or not

# By repeat: what the old program measured, and what the new one did, one shortly after the other.
Pairs = Mapping[Cell, Sequence[tuple[float, float]]]


@dataclasses.dataclass(frozen=True)
class Judged:
    cell: Cell
    ratio: ratios.Ratio  # new to old
    old: float
    new: float  # medians


def of_cells(pairs: Pairs) -> list[Judged]:
    """The ratio of each cell. REQUIRES: no value is 0."""
    return [Judged(cell, ratios.of_pairs([math.log(new / old) for old, new in values]),
                   statistics.median(old for old, _ in values), statistics.median(new for _, new in values))
            for cell, values in pairs.items()]


def is_slower(judged: Judged) -> bool:
    low = judged.ratio["low"]
    return low is not None and low > CELL_MAX


def means_of_kinds(cells: Sequence[Judged]) -> dict[str, float]:
    logs = collections.defaultdict(list)
    for judged in cells:
        logs[judged.cell.kind].append(math.log(judged.ratio["value"]))
    return {kind: math.exp(statistics.fmean(values)) for kind, values in logs.items()}


def failures_of_times(what: str, cells: Sequence[Judged]) -> list[str]:
    """A line for each bar that is missed."""
    lines = [f"{what} of {kind}: the geometric mean is {mean:.3f}, and at most {KIND_MAX} is allowed"
             for kind, mean in means_of_kinds(cells).items() if mean > KIND_MAX]
    return lines + [f"{what} of {name_of(judged.cell)}: {ratios.text(judged.ratio)} is wholly above {CELL_MAX}"
                    for judged in cells if is_slower(judged)]


def failures_of_counts(what: str, cells: Sequence[Judged], most: float) -> list[str]:
    """The same for what scatters little: medians are compared."""
    return [f"{what} of {name_of(judged.cell)}: {judged.old:.1f} before, {judged.new:.1f} now, above {most} times"
            for judged in cells if judged.new > most * judged.old]


def name_of(cell: Cell) -> str:
    return f"{cell.kind}, {cell.way}, {cell.ranks} ranks, {size_text(cell.bytes)}"


def size_text(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def table_of_kinds(cells: Sequence[Judged]) -> str:
    """Markdown: a kind a row, with the mean and the cell whose interval begins highest."""
    lines = ["| kind | cells | geometric mean | the slowest cell |", "| --- | --- | --- | --- |"]
    for kind, mean in means_of_kinds(cells).items():
        of_kind = [judged for judged in cells if judged.cell.kind == kind]
        worst = max(of_kind, key=lambda judged: judged.ratio["low"] or judged.ratio["value"])
        lines.append(f"| {kind} | {len(of_kind)} | {mean:.3f} | {worst.cell.way}, {worst.cell.ranks} ranks, "
                     f"{size_text(worst.cell.bytes)}: {ratios.text(worst.ratio)} |")
    return "\n".join(lines)


def table_of_cells(cells: Sequence[Judged], unit: str) -> str:
    lines = [f"| cell | old, {unit} | new, {unit} | ratio |", "| --- | --- | --- | --- |"]
    lines += [f"| {name_of(judged.cell)} | {judged.old:.1f} | {judged.new:.1f} | {ratios.text(judged.ratio)} |"
              for judged in cells]
    return "\n".join(lines)
