"""Finds the costs of a cell from measurements of its exchange, and tests them on sizes that the fit has not seen.

The costs of summing and updating come from common_bench. What is left of each measured time is split over the other
costs by non-negative least squares of the relative errors, so that a microsecond at 4 KiB counts as much as a
millisecond at 4 MiB. The size of the cache is the one of CACHES with the smallest error, and contention the one of
CONTENTIONS that explains the steps with computing best. What the costs alone get wrong at the fitted sizes becomes the
corrections.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import exchange_model as model
import least_squares
import sync_cells as cells
from correction import Correction
from cost_book import MEMORY
from workload import BUCKET_BYTES, Cluster, Workload

MEDIAN_ERROR_MAX, WORST_ERROR_MAX = 0.10, 0.25  # the targets on sizes left out
FIT_BYTES = tuple(4096 << i for i in range(13))  # to 16 MiB
TEST_BYTES = tuple(6144 << 2 * i for i in range(6))  # between them, to 6 MiB
CACHES = (1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
CONTENTIONS = (1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0)
# Where one process copies from the memory of another, the kernel looks up every page. By sockets this cost would stand
# for what one bucket cannot overlap.
OF_MEMORY = ("small_page_byte",)
BAND_SHARE = 0.9  # of the errors are within the band
BAND_MIN = 0.02  # a few points that happen to fit promise no more


class FitError(Exception):
    """There are too few measurements; the message says of what."""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Median of the runs of one bench on one host."""
    sync: str
    medium: str  # memory or sockets
    workers: int
    servers: int
    bytes: int
    bucket_bytes: int
    compute_s: float
    seconds: float  # of a whole step, computing included
    scatter: float = 0.0  # mean distance of the rounds from their median, relatively

    @property
    def is_test(self) -> bool:
        return self.bytes in TEST_BYTES and not self.compute_s


@dataclasses.dataclass(frozen=True)
class Errors:
    """Relative errors of predictions, without signs."""
    count: int
    median: float
    worst: float
    worst_at: str = ""

    @property
    def met(self) -> bool:
        return self.count > 0 and self.median <= MEDIAN_ERROR_MAX and self.worst <= WORST_ERROR_MAX


@dataclasses.dataclass(frozen=True)
class Fit:
    costs: model.Costs
    fitted: int  # measurements
    test: Errors
    bare_test: Errors  # of the costs alone, without corrections
    scatter: tuple[float, float]  # of what it is tested on: median and worst


def _job(one: Measurement) -> model.Job:
    return model.Job(cells.BY_SYNC[one.sync], one.workers, one.servers)


def predicted_s(one: Measurement, cores: float, costs: model.Costs) -> float:
    workload = Workload(one.sync, one.bytes, one.compute_s, bucket_bytes=one.bucket_bytes)
    return model.predict(_job(one), Cluster(cores=cores), workload, costs, bench=True).step_s


def errors(measured: Iterable[Measurement], cores: float, costs: model.Costs) -> Errors:
    found = sorted(((abs(predicted_s(one, cores, costs) / one.seconds - 1), one) for one in measured),
                   key=lambda pair: pair[0])
    if not found:
        return Errors(0, math.nan, math.nan)
    worst, where = found[-1]
    return Errors(len(found), statistics.median(error for error, _ in found), worst,
                  f"{where.workers} workers, {where.servers} servers, {where.bytes} bytes")


def band(measured: Sequence[Measurement], cores: float, costs: model.Costs) -> float:
    found = sorted(abs(predicted_s(one, cores, costs) / one.seconds - 1) for one in measured)
    return max(BAND_MIN, found[min(len(found) - 1, math.ceil(BAND_SHARE * len(found)) - 1)]) if found else 0.0


def _seconds(measured: Sequence[Measurement], cores: float, kernels: Mapping[str, float],
             cache: float) -> dict[str, float]:
    rows, right = [], []
    medium = measured[0].medium
    names = [name for name in model.FITTED if medium == MEMORY or name not in OF_MEMORY]
    for one in measured:
        load, = model.loads(_job(one), Cluster(cores=cores), one.bytes, one.bucket_bytes)
        counts = model.terms(load, Cluster(cores=cores), cache)
        known = sum(kernels[name] * counts[name] for name in model.KERNELS)
        # A kernel alone may seem to take longer than the whole step where its data is in a cache.
        rest = max(one.seconds - known, 0.1 * one.seconds)
        rows.append([counts[name] / one.seconds for name in names])
        right.append(rest / one.seconds)
    return {**kernels, **dict.fromkeys(model.FITTED, 0.0), **dict(zip(names, least_squares.non_negative(rows, right)))}


def _corrections(measured: Sequence[Measurement], cores: float, costs: model.Costs) -> tuple[Correction, ...]:
    """From the runs with the usual buckets: others differ in what the costs count, messages and bytes alike."""
    return tuple(Correction(one.workers, one.servers, one.bytes, one.seconds / predicted_s(one, cores, costs))
                 for one in measured if one.bucket_bytes == BUCKET_BYTES)


def fit(measured: Sequence[Measurement], cores: float, kernels: Mapping[str, float]) -> Fit:
    """The costs of one cell with one medium. FitError if there are fewer measurements than costs."""
    alone = [one for one in measured if not one.compute_s]
    known, test = [one for one in alone if not one.is_test], [one for one in alone if one.is_test]
    if len(known) < len(model.FITTED):
        raise FitError(f"{len(known)} measurements to fit {len(model.FITTED)} costs: give more --workers")
    candidates = [model.Costs(_seconds(known, cores, kernels, cache), cache) for cache in CACHES]

    def mean_square(costs: model.Costs) -> float:
        return sum((predicted_s(one, cores, costs) / one.seconds - 1) ** 2 for one in known)

    bare = min(candidates, key=mean_square)
    costs = dataclasses.replace(bare, cores=cores, corrections=_corrections(known, cores, bare))
    computing = [one for one in measured if one.compute_s]
    if computing:
        costs = min((dataclasses.replace(costs, contention=value) for value in CONTENTIONS),
                    key=lambda candidate: errors(computing, cores, candidate).median)
    bare = dataclasses.replace(costs, corrections=())
    unseen = [*test, *computing]
    costs = dataclasses.replace(costs, band=band(unseen, cores, costs) or band(known, cores, bare),
                                bare_band=band(unseen or known, cores, bare),
                                workers_max=max(one.workers for one in measured),
                                bytes_max=max(one.bytes for one in measured))
    scatters = [one.scatter for one in test] or [0.0]
    return Fit(costs, len(known), errors(test, cores, costs), errors(test, cores, bare),
               (statistics.median(scatters), max(scatters)))
