"""Makes a plan: the six cells with every number of workers, where they cross, and whether to distribute at all."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import exchange_model as model
import sync_cells as cells
from cost_book import MEMORY, SOCKETS, CostBook
from predictions import plan_name
from workload import BUCKET_BYTES, SHARED_BUCKET_BYTES, Cluster, Workload

# A further server must shorten the step by this share, or the smaller number is taken.
SERVER_GAIN_MIN = 0.03
# So many times as fast as one process must a job be, or the plan says not to distribute.
GAIN_MIN = 1.1
DOUBLING_GAIN_MIN = 1.25  # of twice as many workers
BAND_MAX = 0.9
# What our programs refuse (common/base/limits.h): more servers, and over TCP, where servers are ranks too, more ranks.
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

    def rate(self, batch: int) -> float:
        """samples/s of all workers."""
        return self.workers * batch / self.step_s

    def rate_low(self, batch: int) -> float:
        return self.rate(batch) / (1 + self.band)

    def rate_high(self, batch: int) -> float:
        return self.rate(batch) / (1 - min(self.band, BAND_MAX))


@dataclasses.dataclass(frozen=True)
class Line:
    name: str
    place: cells.Cell
    points: Sequence[Point | None]  # for each number of workers; None where our programs refuse such a job
    median_error: float  # of the model, relative, on sizes that the fit of this cell's costs has not seen
    worst_error: float  # likewise

    @property
    def own_hosts(self) -> bool:
        return self.place.placement == cells.OWN_HOSTS


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

    def best(self, index: int, choose: Callable[[Line], bool] = lambda _: True) -> tuple[Line, Point]:
        """The line with the shortest step among those chosen, with the index-th number of workers. Never empty: the
        ranks may be as many as a plan has workers, in a ring and in a star."""
        found = [(line, point) for line in self.lines if choose(line)
                 for point in (line.points[index],) if point is not None]
        return min(found, key=lambda pair: pair[1].step_s)


def places(cluster: Cluster) -> list[cells.Cell]:
    """The six cells and, between hosts, those with servers once more, on hosts of their own."""
    found = []
    for cell in cells.CELLS:
        found.append(cell)
        if cell.has_servers and cluster.hosts > 1:
            found.append(dataclasses.replace(cell, placement=cells.OWN_HOSTS))
    return found


def line_name(place: cells.Cell) -> str:
    """star/grpc on own hosts: what comes before the first space is the cell's name (predictions.py)."""
    where = {cells.RANKS: "", cells.SERVERS: " with the workers", cells.OWN_HOSTS: " on own hosts"}
    return plan_name(place) + where[place.placement]


def servers_max(place: cells.Cell, workers: int) -> int:
    """The most servers that our programs accept."""
    return min(SERVERS_MAX, RANKS_MAX - workers) if place.transport == "tcp" else SERVERS_MAX


def server_counts(place: cells.Cell, workers: int) -> list[int]:
    """Those that are tried: powers of two, and as many as workers, as far as there may be so many."""
    powers = {2 ** power for power in range(workers.bit_length()) if 2 ** power <= workers}
    return sorted(count for count in powers | {workers} if count <= servers_max(place, workers))


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
    return SHARED_BUCKET_BYTES if place.has_servers else BUCKET_BYTES


def _point(place: cells.Cell, workers: int, cluster: Cluster, workload: Workload, book: CostBook,
           servers: int | None) -> Point | None:
    costs, _ = book.find(place.sync, _medium(place, workers, cluster))

    def predicted(count: int) -> model.Prediction:
        chosen = dataclasses.replace(workload, bucket_bytes=bucket_bytes(place, workers, count, cluster, workload))
        return model.predict(model.Job(place, workers, count), cluster, chosen, costs, book.wasted_by(place),
                             book.jitter)

    if not place.has_servers:
        counts = [0]
    elif servers:
        counts = [servers] if servers <= servers_max(place, workers) else []
    else:
        counts = server_counts(place, workers)
    if not counts:
        return None
    steps = {count: predicted(count) for count in counts}
    shortest = min(one.step_s for one in steps.values())
    chosen = next(count for count in counts if steps[count].step_s <= (1 + SERVER_GAIN_MIN) * shortest)
    return Point(workers, chosen, steps[chosen].step_s, steps[chosen].exposed_s,
                 costs.band_at(workers, workload.bytes), costs.is_extrapolated(workers, workload.bytes))


def make(workload: Workload, cluster: Cluster, workers: Sequence[int], book: CostBook, servers: int | None = None
         ) -> Plan:
    """The plan; with `servers`, every star with servers has so many. CostsError if the book has no costs of a cell."""
    lines: list[Line] = []
    notes: list[str] = []
    measured_until = max(workers)
    for place in places(cluster):
        medium = SOCKETS if cluster.hosts > 1 else MEMORY
        costs, note = book.find(place.sync, medium)
        notes += [note] if note and note not in notes else []
        measured_until = 0 if workload.bytes > costs.bytes_max else int(min(measured_until, costs.workers_max))
        lines.append(Line(line_name(place), place, [_point(place, count, cluster, workload, book, servers)
                                                    for count in workers], costs.median_error, costs.worst_error))
    alone = workload.batch / (workload.compute_s + workload.bytes * costs.seconds["apply_byte"])
    if cluster.hosts > 1 and not book.wasted_buckets:
        notes.append("how much of a link each cell wastes was not measured, and is planned as nothing: "
                     "bazel run //bench:growth -- --lab=1gbit:4")
    return Plan(workload, cluster, list(workers), lines, alone, measured_until, notes,
                f"measured on {book.machine} at {book.commit}, {book.date}, by {book.command}")


def _counts(workers: Sequence[int]) -> str:
    return f"{workers[0]:,} workers" if len(workers) == 1 else f"{workers[0]:,} to {workers[-1]:,} workers"


def crossings(plan: Plan) -> list[str]:
    """Which line is fastest where, and by how much the other topology is slower there."""
    sentences = []
    for name, group in itertools.groupby(range(len(plan.workers)), lambda index: plan.best(index)[0].name):
        indices = list(group)
        best = [plan.best(index) for index in indices]
        other = "star" if best[0][0].place.topology == "ring" else "ring"
        rivals = [plan.best(index, lambda one, other=other: one.place.topology == other)[1]  # type: ignore[misc]
                  for index in indices]
        margins = [theirs.step_s / ours.step_s for (_, ours), theirs in zip(best, rivals)]
        tied = [theirs.step_s * (1 - min(theirs.band, BAND_MAX)) <= ours.step_s * (1 + ours.band)
                for (_, ours), theirs in zip(best, rivals)]
        extent = f"{min(margins):.2f}" if len(margins) == 1 else f"{min(margins):.2f} to {max(margins):.2f}"
        servers = [ours.servers for _, ours in best]
        with_servers = f" with {servers[0]}{f' to {servers[-1]}' * (servers[-1] != servers[0])} servers" * bool(
            servers[0])
        sentences.append(f"{_counts([plan.workers[index] for index in indices])}: {name}{with_servers} is the fastest; "
                         f"the best {other} takes {extent} times as long"
                         + (f", which is {'' if all(tied) else 'partly '}within the bands" if any(tied) else ""))
    return sentences


def verdict(plan: Plan) -> list[str]:
    """Whether to distribute, and until where more workers pay."""
    batch = plan.workload.batch
    best = [plan.best(index)[1].rate(batch) for index in range(len(plan.workers))]
    gains = [rate / plan.alone for rate in best]
    fastest = max(range(len(best)), key=lambda index: best[index])
    if gains[fastest] < GAIN_MIN:
        return [f"do not distribute this: one process makes {plan.alone:,.0f} samples/s, and the best job "
                f"{best[fastest]:,.0f} with {plan.workers[fastest]:,} workers ({gains[fastest]:.2f} times)"]
    sentences = []
    worse = [workers for workers, gain in zip(plan.workers, gains) if gain < GAIN_MIN]
    if worse:
        sentences.append(f"{', '.join(f'{count:,}' for count in worse)} workers make fewer than {GAIN_MIN} times the "
                         "samples/s of one process")
    pay = [index + 1 for index in range(len(best) - 1) if best[index + 1] >= best[index] * (
        1 + (DOUBLING_GAIN_MIN - 1) * (plan.workers[index + 1] / plan.workers[index] - 1))]
    last = max(pay, default=0)
    if last < len(best) - 1:
        sentences.append(f"beyond {plan.workers[last]:,} workers, more of them gain little: "
                         f"{best[last + 1] / best[last]:.2f} times the samples/s with {plan.workers[last + 1]:,}")
    sentences.append(f"the most samples/s: {best[fastest]:,.0f} with {plan.workers[fastest]:,} workers, "
                     f"{gains[fastest]:.1f} times one process's {plan.alone:,.0f}")
    return sentences


def to_json(plan: Plan) -> Mapping[str, Any]:
    """What predictions.py reads, and more, without the numbers of workers that some line cannot have."""
    batch = plan.workload.batch
    kept = [index for index in range(len(plan.workers)) if all(line.points[index] for line in plan.lines)]
    points = [[point for index in kept for point in (line.points[index],) if point] for line in plan.lines]
    return {
        "title": f"{plan.workload.name}, predicted", "workload": dataclasses.asdict(plan.workload),
        "cluster": dataclasses.asdict(plan.cluster), "alone": plan.alone,
        "workers": [plan.workers[index] for index in kept], "measured_until": plan.measured_until,
        "costs": plan.source, "notes": list(plan.notes), "crossings": crossings(plan), "verdict": verdict(plan),
        "lines": [{"name": line.name, "own_hosts": line.own_hosts, "median_error": line.median_error,
                   "worst_error": line.worst_error, "servers": [one.servers for one in each],
                   "step_ms": [1e3 * one.step_s for one in each],
                   "exposed_ms": [1e3 * one.exposed_s for one in each],
                   "samples_per_second": [one.rate(batch) for one in each],
                   "samples_per_second_low": [one.rate_low(batch) for one in each],
                   "samples_per_second_high": [one.rate_high(batch) for one in each]}
                  for line, each in zip(plan.lines, points)]}
