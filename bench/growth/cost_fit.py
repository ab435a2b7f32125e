"""Finds the costs of a cell from measurements of its exchange, and states their error on sizes that it has not seen.

The costs of summing and updating come from common_bench. The rest of each measured time is split over the other costs
by non-negative least squares of the relative errors, so that a microsecond at 4 KiB counts as much as a millisecond at
4 MiB. The size of the cache is the one of CACHES with the smallest error, and contention the one of CONTENTIONS that
explains the steps with computing best.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import exchange_model as model
import least_squares
import sync_cells as cells
from cost_book import MEMORY
from workload import Cluster, Workload

MEDIAN_ERROR_MAX, WORST_ERROR_MAX = 0.10, 0.25  # the targets on sizes left out
FIT_BYTES = tuple(4096 << i for i in range(13))  # to 16 MiB
TEST_BYTES = tuple(6144 << 2 * i for i in range(6))  # between them, to 6 MiB
CACHES = (1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
CONTENTIONS = (1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0)
# Where one process copies from the memory of another, the kernel looks up every page. By sockets this cost would stand
# for the part of one bucket that nothing overlaps.
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

    @property
    def job(self) -> model.Job:
        return model.Job(cells.BY_SYNC[self.sync], self.workers, self.servers)

    def predicted_s(self, cores: float, costs: model.Costs) -> float:
        workload = Workload(self.sync, self.bytes, self.compute_s, bucket_bytes=self.bucket_bytes)
        return model.predict(self.job, Cluster(cores=cores), workload, costs, bench=True).step_s

    def error(self, cores: float, costs: model.Costs) -> float:
        """The prediction's error, relative and without a sign."""
        return abs(self.predicted_s(cores, costs) / self.seconds - 1)


@dataclasses.dataclass(frozen=True)
class Errors:
    """Relative errors of predictions, without signs."""
    count: int
    median: float
    worst: float
    worst_at: str
    band: float  # BAND_SHARE of the errors are within it

    @property
    def met(self) -> bool:
        return self.count > 0 and self.median <= MEDIAN_ERROR_MAX and self.worst <= WORST_ERROR_MAX


@dataclasses.dataclass(frozen=True)
class Fit:
    costs: model.Costs
    fitted: int  # measurements
    test: Errors  # on sizes that the fit has not seen
    scatter: tuple[float, float]  # of the measurements of the test: median and worst


def errors(measured: Iterable[Measurement], cores: float, costs: model.Costs) -> Errors:
    found = sorted(((one.error(cores, costs), one) for one in measured), key=lambda pair: pair[0])
    if not found:
        return Errors(0, math.nan, math.nan, "", 0.0)
    worst, where = found[-1]
    band, _ = found[math.ceil(BAND_SHARE * len(found)) - 1]
    return Errors(len(found), statistics.median(error for error, _ in found), worst,
                  f"{where.workers} workers, {where.servers} servers, {where.bytes} bytes", max(BAND_MIN, band))


def _seconds(measured: Sequence[Measurement], cores: float, kernels: Mapping[str, float],
             cache: float) -> dict[str, float]:
    rows, right = [], []
    names = [name for name in model.FITTED if measured[0].medium == MEMORY or name not in OF_MEMORY]
    for one in measured:
        load, = model.loads(one.job, Cluster(cores=cores), one.bytes, one.bucket_bytes)
        counts = load.counts(Cluster(cores=cores), cache)
        known = sum(kernels[name] * counts[name] for name in model.KERNELS)
        # A kernel alone may seem to take longer than the whole step where its data is in a cache.
        rest = max(one.seconds - known, 0.1 * one.seconds)
        rows.append([counts[name] / one.seconds for name in names])
        right.append(rest / one.seconds)
    return {**kernels, **dict.fromkeys(model.FITTED, 0.0), **dict(zip(names, least_squares.non_negative(rows, right)))}


def fit(measured: Sequence[Measurement], cores: float, kernels: Mapping[str, float]) -> Fit:
    """The costs of one cell with one medium. FitError if there are fewer measurements than costs."""
    computing = [one for one in measured if one.compute_s]
    test = [one for one in measured if one.is_test]
    known = [one for one in measured if not one.compute_s and not one.is_test]
    if len(known) < len(model.FITTED):
        raise FitError(f"{len(known)} measurements to fit {len(model.FITTED)} costs: give more --workers")
    costs = min((model.Costs(_seconds(known, cores, kernels, cache), cache) for cache in CACHES),
                key=lambda candidate: sum(one.error(cores, candidate) ** 2 for one in known))
    if computing:
        costs = min((dataclasses.replace(costs, contention=value) for value in CONTENTIONS),
                    key=lambda candidate: errors(computing, cores, candidate).median)
    # The fit has seen neither the sizes of the test nor, but for contention, the steps with computing.
    costs = dataclasses.replace(costs, band=errors([*test, *computing] or known, cores, costs).band,
                                workers_max=max(one.workers for one in measured),
                                bytes_max=max(one.bytes for one in measured))
    scatters = [one.scatter for one in test] or [0.0]
    return Fit(costs, len(known), errors(test, cores, costs), (statistics.median(scatters), max(scatters)))
