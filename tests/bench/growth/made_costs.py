"""Made-up costs, and the measurements that they would give."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import cost_book
import cost_fit
import exchange_model as model
import growth_runs
import sync_cells as cells

FREE = model.Costs({name: 0.0 for name in (*model.FITTED, *model.KERNELS)})
COSTS = model.Costs({"step": 5e-6, "hop": 8e-6, "wake": 7e-6, "crowd": 3e-6, "message": 4e-6, "long_message": 2e-6,
                     "incast": 2e-6, "byte": 3e-10, "cold_byte": 1e-10, "small_page_byte": 2e-10, "sum_byte": 1e-10,
                     "apply_byte": 4e-10},
                    cache_bytes=16 << 20, contention=1.5, band=0.05, workers_max=64, bytes_max=16 << 20)
KERNELS = {name: COSTS.seconds[name] for name in model.KERNELS}
CORES = 2


def of_medium(costs: model.Costs, medium: str) -> model.Costs:
    """The costs without those of the other medium."""
    if medium == cost_book.MEMORY:
        return costs
    return dataclasses.replace(costs, seconds={**costs.seconds, **dict.fromkeys(cost_fit.OF_MEMORY, 0.0)})


def make_measurements(syncs: Sequence[str] = cells.SYNCS, workers: Sequence[int] = growth_runs.WORKERS,
                      costs: model.Costs = COSTS, noise: float = 0.0) -> list[cost_fit.Measurement]:
    """What bench:growth would measure; `noise` is the relative standard deviation of each."""
    numbers = random.Random(1)
    found = []
    for run in growth_runs.plan_runs(syncs, workers, CORES):
        for sync in run.syncs:
            for size in run.sizes:
                one = cost_fit.Measurement(sync, run.medium, run.workers, run.servers, size, run.bucket_bytes,
                                           run.compute_s, 1.0)
                seconds = cost_fit.predicted_s(one, CORES, of_medium(costs, run.medium)) * (1 + numbers.gauss(0, noise))
                found.append(dataclasses.replace(one, seconds=seconds))
    return found


def make_book(costs: model.Costs = COSTS, syncs: Sequence[str] = cells.SYNCS) -> cost_book.CostBook:
    return cost_book.CostBook({(sync, medium): costs for sync in syncs for medium in cost_book.MEDIA},
                              0.0, "a machine", "abc1234", "2026-11-22", "bazel run //bench:growth")
