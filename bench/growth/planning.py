"""Makes a plan: the six cells with every number of workers, where they cross, and whether to distribute at all."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import exchange_model as model
import sync_cells as cells
from cost_book import MEMORY, SOCKETS, CostBook, band, is_extrapolated
from predictions import plan_name
from workload import BUCKET_BYTES, SHARED_BUCKET_BYTES, Cluster, Workload

# A further server must shorten the step by this share, or the smaller number is taken.
SERVER_GAIN_MIN = 0.03
# So many times as fast as one process must a job be, or the plan says not to distribute.
GAIN_MIN = 1.1
DOUBLING_GAIN_MIN = 1.25  # of twice as many workers
BAND_MAX = 0.9
# Our programs refuse more (common/base/limits.h). Over TCP servers are ranks, too.
SERVERS_MAX = 256
RANKS_MAX = 1024


@dataclasses.dataclass(frozen=True)
class Point:
    """One cell with one number of workers."""
    workers: int
    servers: int
    step_s: float
    exposed_s: float
    band: float  # relative, of step_s
    extrapolated: bool

    @property
    def slowest_s(self) -> float:
        """The upper end of the band of step_s."""
        return self.step_s * (1 + self.band)

    @property
    def fastest_s(self) -> float:
        """The lower end of the band of step_s."""
        return self.step_s * (1 - min(self.band, BAND_MAX))


@dataclasses.dataclass(frozen=True)
class Line:
    name: str
    place: cells.Cell
    points: Sequence[Point | None]  # for each number of workers; None where our programs refuse such a job


@dataclasses.dataclass(frozen=True)
class Plan:
    workload: Workload
    cluster: Cluster
    workers: Sequence[int]
    lines: Sequence[Line]
    alone: float  # samples/s of one process
    measured_until: int  # with more workers some line is extrapolated; 0: always
    notes: Sequence[str]
    source: str  # of the costs

    def rate(self, workers: int, step_s: float) -> float:
        """samples/s of all workers."""
        return workers * self.workload.batch / step_s

    def best(self, index: int, choose: Callable[[Line], bool] = lambda _: True) -> tuple[Line, Point]:
        """The line with the shortest step among those chosen, with the index-th number of workers. Never empty: the
        ranks may be as many as a plan has workers, in a ring and in a star."""
        found = [(line, point) for line in self.lines if choose(line)
                 for point in (line.points[index],) if point is not None]
        return min(found, key=lambda pair: pair[1].step_s)


def places(cluster: Cluster) -> list[cells.Cell]:
    """The six cells and, between hosts, those with servers once more, on hosts of their own."""
    return [dataclasses.replace(cell, placement=placement) for cell in cells.CELLS
            for placement in (cell.placement, *[cells.OWN_HOSTS] * (cell.has_servers and cluster.hosts > 1))]


def line_name(place: cells.Cell) -> str:
    """star/grpc on own hosts: what comes before the first space is the cell's name (predictions.py)."""
    where = {cells.RANKS: "", cells.SERVERS: " with the workers", cells.OWN_HOSTS: " on own hosts"}
    return plan_name(place) + where[place.placement]


def server_counts(place: cells.Cell, workers: int, servers: int | None = None) -> list[int]:
    """Those that are tried: `servers`, or powers of two and as many as workers, as far as our programs accept them."""
    most = min(SERVERS_MAX, RANKS_MAX - workers) if place.transport == "tcp" else SERVERS_MAX
    tried = {servers} if servers else {workers, *(2 ** power for power in range(workers.bit_length()))}
    return sorted(count for count in tried if count <= most)


def _medium(place: cells.Cell, workers: int, cluster: Cluster) -> str:
    between = cluster.hosts_of(workers) > 1 or place.placement == cells.OWN_HOSTS
    return SOCKETS if between else MEMORY


def bucket_bytes(place: cells.Cell, workers: int, servers: int, cluster: Cluster, workload: Workload) -> int:
    """The workload's, or the default of the worker: larger where servers share memory with the workers, smaller where
    they are on other hosts."""
    if workload.bucket_bytes:
        return workload.bucket_bytes
    if place.has_servers and _medium(place, workers, cluster) == SOCKETS:
        return cells.bucket_bytes_between_hosts(servers)
    return SHARED_BUCKET_BYTES if place.transport == "grpc" else BUCKET_BYTES


def _point(place: cells.Cell, workers: int, cluster: Cluster, workload: Workload, book: CostBook,
           servers: int | None) -> Point | None:
    costs, _ = book.find(place.sync, _medium(place, workers, cluster))

    steps = {}
    for count in server_counts(place, workers, servers) if place.has_servers else [0]:
        sized = dataclasses.replace(workload, bucket_bytes=bucket_bytes(place, workers, count, cluster, workload))
        steps[count] = model.predict(model.Job(place, workers, count), cluster, sized, costs, book.wasted_by(place),
                                     book.jitter)
    shortest = min((one.step_s for one in steps.values()), default=0.0)
    return next((Point(workers, count, one.step_s, one.exposed_s, band(costs, workers, workload.bytes),
                       is_extrapolated(costs, workers, workload.bytes))
                 for count, one in steps.items() if one.step_s <= (1 + SERVER_GAIN_MIN) * shortest), None)


def make(workload: Workload, cluster: Cluster, workers: Sequence[int], book: CostBook, servers: int | None = None
         ) -> Plan:
    """The plan; with `servers`, every star with servers has so many. CostsError if the book has no costs of a cell."""
    lines: list[Line] = []
    notes: list[str] = []
    measured_until = max(workers)
    for place in places(cluster):
        costs, note = book.find(place.sync, SOCKETS if cluster.hosts > 1 else MEMORY)
        notes += [note] if note and note not in notes else []
        measured_until = 0 if workload.bytes > costs.bytes_max else int(min(measured_until, costs.workers_max))
        lines.append(Line(line_name(place), place, [_point(place, count, cluster, workload, book, servers)
                                                    for count in workers]))
    alone = workload.batch / (workload.compute_s + workload.bytes * costs.seconds["apply_byte"])
    if cluster.hosts > 1 and not book.wasted_buckets:
        notes.append("how much of a link each cell wastes was not measured, and is planned as nothing: "
                     "bazel run //bench:growth -- --lab=1gbit:4")
    return Plan(workload, cluster, list(workers), lines, alone, measured_until, notes,
                f"measured on {book.machine} at {book.commit}, {book.date}, by {book.command}")


def _extent(texts: Iterable[str]) -> str:
    """2 to 4, or 2 if both are alike."""
    return " to ".join(dict.fromkeys(texts))


def crossings(plan: Plan) -> list[str]:
    """Which line is fastest where, and by how much the other topology is slower there."""
    sentences = []
    for name, group in itertools.groupby(range(len(plan.workers)), lambda index: plan.best(index)[0].name):
        indices = list(group)
        best = [plan.best(index) for index in indices]
        other = "star" if best[0][0].place.topology == "ring" else "ring"
        pairs = [(ours, plan.best(index, lambda one: one.place.topology == other)[1])
                 for index, (_, ours) in zip(indices, best)]
        margins = [theirs.step_s / ours.step_s for ours, theirs in pairs]
        tied = [theirs.fastest_s <= ours.slowest_s for ours, theirs in pairs]
        workers = _extent(f"{plan.workers[index]:,}" for index in (indices[0], indices[-1]))
        servers = _extent(str(pairs[index][0].servers) for index in (0, -1))
        sentences.append(f"{workers} workers: {name}{f' with {servers} servers' * best[0][0].place.has_servers} is the "
                         f"fastest; the best {other} takes "
                         f"{_extent(f'{margin:.2f}' for margin in (min(margins), max(margins)))} times as long"
                         + (f", which is {'' if all(tied) else 'partly '}within the bands" if any(tied) else ""))
    return sentences


def verdict(plan: Plan) -> list[str]:
    """Whether to distribute, and until where more workers pay."""
    workers = plan.workers
    best = [plan.rate(count, plan.best(index)[1].step_s) for index, count in enumerate(workers)]
    gains = [rate / plan.alone for rate in best]
    fastest = max(range(len(best)), key=lambda index: best[index])
    if gains[fastest] < GAIN_MIN:
        return [f"do not distribute this: one process makes {plan.alone:,.0f} samples/s, and the best job "
                f"{best[fastest]:,.0f} with {workers[fastest]:,} workers ({gains[fastest]:.2f} times)"]
    sentences = []
    if worse := [f"{count:,}" for count, gain in zip(workers, gains) if gain < GAIN_MIN]:
        sentences.append(f"{', '.join(worse)} workers make fewer than {GAIN_MIN} times the samples/s of one process")
    last = max((index for index in range(1, len(best)) if best[index] >= best[index - 1] * (
        1 + (DOUBLING_GAIN_MIN - 1) * (workers[index] / workers[index - 1] - 1))), default=0)
    if last < len(best) - 1:
        sentences.append(f"beyond {workers[last]:,} workers, more of them gain little: "
                         f"{best[last + 1] / best[last]:.2f} times the samples/s with {workers[last + 1]:,}")
    sentences.append(f"the most samples/s: {best[fastest]:,.0f} with {workers[fastest]:,} workers, "
                     f"{gains[fastest]:.1f} times one process's {plan.alone:,.0f}")
    return sentences


def to_json(plan: Plan) -> Mapping[str, Any]:
    """The fields that predictions.py reads, and more. Numbers of workers that some line cannot have are left out."""
    workload, cluster = dataclasses.asdict(plan.workload), dataclasses.asdict(plan.cluster)
    del cluster["burst_s"]
    kept = [index for index in range(len(plan.workers)) if all(line.points[index] for line in plan.lines)]

    def line_of(line: Line) -> dict[str, Any]:
        points = [point for index in kept for point in (line.points[index],) if point]
        return {"name": line.name, "own_hosts": line.place.placement == cells.OWN_HOSTS,
                "servers": [one.servers for one in points],
                "step_ms": [1e3 * one.step_s for one in points], "exposed_ms": [1e3 * one.exposed_s for one in points],
                "samples_per_second": [plan.rate(one.workers, one.step_s) for one in points],
                "samples_per_second_low": [plan.rate(one.workers, one.slowest_s) for one in points],
                "samples_per_second_high": [plan.rate(one.workers, one.fastest_s) for one in points]}

    return {"title": f"{plan.workload.name}, predicted", "workload": workload, "cluster": cluster, "alone": plan.alone,
            "workers": [plan.workers[index] for index in kept], "measured_until": plan.measured_until,
            "costs": plan.source, "notes": list(plan.notes), "crossings": crossings(plan), "verdict": verdict(plan),
            "lines": [line_of(line) for line in plan.lines]}
