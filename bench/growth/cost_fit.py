"""Finds the costs of a cell from measurements of its exchange, and tests them on sizes that the fit has not seen.

The costs of summing and updating come from common_bench. What is left of each measured time is split over the other
costs by non-negative least squares of the relative errors, so that a microsecond at 4 KiB counts as much as a
millisecond at 4 MiB. The size of the cache is the one of CACHES with the smallest error, and contention the one of
CONTENTIONS that explains the steps with computing best. The python3 of `bazel run` may lack numpy.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import exchange_model as model
import sync_cells as cells
from cost_book import MEMORY, CostsError
from workload import Cluster, Workload

FIT_BYTES = (*(4096 << i for i in range(13)), 64 << 20, 256 << 20)
TEST_BYTES = tuple(6144 << 2 * i for i in range(8))  # between them, to 96 MiB
CACHES = (1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
CONTENTIONS = (1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0)
# Where one process copies from the memory of another, the kernel looks up every page. By sockets this cost would stand
# for what one bucket cannot overlap.
OF_MEMORY = ("small_page_byte",)
BAND_SHARE = 0.9  # of the measurements are within the band
BAND_MIN = 0.02  # a few points that happen to fit promise no more
_RIDGE = 1e-12  # of columns of length 1: without it the equations of two that are alike have no answer
_TOLERANCE = 1e-10


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

    @property
    def job(self) -> model.Job:
        return model.Job(cells.BY_SYNC[self.sync], self.workers, self.servers)

    @property
    def is_test(self) -> bool:
        return self.bytes in TEST_BYTES and not self.compute_s


@dataclasses.dataclass(frozen=True)
class Fit:
    costs: model.Costs
    worst_at: Measurement  # of the sizes that the fit has not seen
    computing_error: float  # median, of steps that compute; 0 if there are none


def predicted_s(one: Measurement, cores: float, costs: model.Costs) -> float:
    workload = Workload(one.sync, one.bytes, one.compute_s, bucket_bytes=one.bucket_bytes)
    return model.predict_s(one.job, Cluster(cores=cores), workload, costs, bench=True)


def errors(measured: Iterable[Measurement], cores: float, costs: model.Costs) -> list[float]:
    """Relative errors of the predictions, without signs."""
    return [abs(predicted_s(one, cores, costs) / one.seconds - 1) for one in measured]


def band_of(measured: Sequence[Measurement], cores: float, costs: model.Costs) -> float:
    """By so much, relatively, costs would have to be higher or lower for nine of ten exchanges alone."""
    ratios = [predicted_s(one, cores, costs) / one.seconds for one in measured]
    factors = sorted(max(ratio, 1 / ratio) for ratio in ratios)
    return max(BAND_MIN, factors[math.ceil(BAND_SHARE * len(factors)) - 1] - 1)


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss and Jordan's elimination. `matrix` is positive definite, so no rows need to be exchanged."""
    rows = [[*row, value] for row, value in zip(matrix, right)]
    for column, pivot in enumerate(rows):
        pivot[:] = [value / pivot[column] for value in pivot]
        for row in rows:
            if row is not pivot:
                row[:] = [one - row[column] * other for one, other in zip(row, pivot)]
    return [row[-1] for row in rows]


def non_negative(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """The x >= 0 for which |matrix x - right| is smallest, by the pivots of Murty (1974). An unknown is either
    free or kept at 0. A free one that is negative is kept at 0; one that is kept at 0, though more would be better,
    becomes free. The first such unknown changes, until none is left."""
    width = len(matrix[0])
    # Costs differ by ten orders of magnitude. With columns of length 1 one tolerance serves all.
    lengths = [sum(row[i] ** 2 for row in matrix) ** 0.5 or 1.0 for i in range(width)]
    scaled = [[value / length for value, length in zip(row, lengths)] for row in matrix]
    gram = [[sum(row[i] * row[j] for row in scaled) + _RIDGE * (i == j) for j in range(width)] for i in range(width)]
    against = [sum(row[i] * value for row, value in zip(scaled, right)) for i in range(width)]
    free: list[int] = []
    for _ in range(2 ** width):
        found = dict(zip(free, _solve([[gram[i][j] for j in free] for i in free], [against[i] for i in free])))
        gradient = [against[i] - sum(gram[i][j] * x for j, x in found.items()) for i in range(width)]
        wrong = [i for i in range(width) if (found[i] < 0 if i in found else gradient[i] > _TOLERANCE)]
        if not wrong:
            break
        free = sorted({*free} ^ {min(wrong)})
    return [max(0.0, found.get(i, 0.0)) / lengths[i] for i in range(width)]


def _seconds(measured: Sequence[Measurement], cores: float, kernels: Mapping[str, float],
             cache: float) -> dict[str, float]:
    rows, right = [], []
    medium = measured[0].medium
    names = [name for name in model.FITTED if medium == MEMORY or name not in OF_MEMORY]
    for one in measured:
        load, = model.loads(one.job, Cluster(cores=cores), one.bytes, one.bucket_bytes)
        counts = model.terms(load, Cluster(cores=cores), cache)
        known = sum(kernels[name] * counts[name] for name in model.KERNELS)
        # A kernel alone may seem to take longer than the whole step where its data is in a cache.
        rest = max(one.seconds - known, 0.1 * one.seconds)
        rows.append([counts[name] / one.seconds for name in names])
        right.append(rest / one.seconds)
    return {**kernels, **dict.fromkeys(model.FITTED, 0.0), **dict(zip(names, non_negative(rows, right)))}


def fit(measured: Sequence[Measurement], cores: float, kernels: Mapping[str, float]) -> Fit:
    """The costs of one cell with one medium. CostsError if there are fewer measurements than costs, or none to test."""
    alone = [one for one in measured if not one.compute_s]
    known, test = [one for one in alone if not one.is_test], [one for one in alone if one.is_test]
    if len(known) < len(model.FITTED) or not test:
        raise CostsError(f"{len(known)} measurements to fit {len(model.FITTED)} costs, and {len(test)} to test them: "
                         "give more --workers")
    candidates = [model.Costs(_seconds(known, cores, kernels, cache), cache) for cache in CACHES]
    costs = min(candidates, key=lambda one: sum(error ** 2 for error in errors(known, cores, one)))
    computing = [one for one in measured if one.compute_s]
    if computing:
        costs = min((dataclasses.replace(costs, contention=value) for value in CONTENTIONS),
                    key=lambda one: statistics.median(errors(computing, cores, one)))
    found = errors(test, cores, costs)
    costs = dataclasses.replace(costs, median_error=statistics.median(found), worst_error=max(found),
                                band=band_of(test, cores, costs),
                                workers_max=max(one.workers for one in measured),
                                bytes_max=max(one.bytes for one in measured))
    return Fit(costs, test[found.index(max(found))],
               statistics.median(errors(computing, cores, costs)) if computing else 0.0)
