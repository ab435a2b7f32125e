"""Configurations that are compared with each other: analysis.py finds them, verdict.py and the report read them."""

from __future__ import annotations

from typing import TypedDict

import ratios


class Rates(TypedDict):
    """Samples per second over the runs of a configuration."""
    median: float
    min: float
    max: float
    spread: float


class Row(TypedDict):
    """A configuration among those that it is compared with."""
    id: str
    sync: str
    accounting: str
    samples_per_second: Rates
    step_ms_p50: float
    to_best: ratios.Ratio | None  # None without a common repeat
    tie_with: list[str]  # ids
    undecided: bool  # too few repeats to tell it from the best
    best: bool
    bottleneck: dict[str, str]  # name, why
    efficiency: float | None


class Step(TypedDict):
    """One cell after another: how many times as fast `second` is as `first`."""
    first: str  # ids
    second: str
    changes: list[str]  # "transport: mpi to tcp"
    differences: int  # more than one if the cells between were not measured
    ratio: ratios.Ratio
    outcome: str  # faster, slower, tie, undecided: of the second


class CellSteps(TypedDict):
    """The cells of a group side by side."""
    path: list[Step]  # from the first ring to the last star; the product of their ratios is the total's
    total: Step | None
    others: list[Step]  # all other pairs of cells that differ in one thing


class Group(TypedDict):
    """Configurations that are compared with each other, the fastest first."""
    model: str
    workers: int
    scaling: str
    section: str
    calls_winner: bool
    rows: list[Row]
    steps: CellSteps
