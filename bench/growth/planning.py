"""Makes a plan: the six cells with every number of workers, where they cross, and whether to distribute at all."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import exchange_model as model
import sync_cells as cells
from cost_book import MEMORY, SOCKETS, CostBook, CostsError
from predictions import plan_name
from workload import BUCKET_BYTES, SHARED_BUCKET_BYTES, Cluster, Workload, WorkloadError

# A further server must shorten the step by this share, or the smaller number is taken.
SERVER_GAIN_MIN = 0.03
# So many times as fast as one process must a job be, or the plan says not to distribute.
GAIN_MIN = 1.1
DOUBLING_GAIN_MIN = 1.25  # of twice as many workers
# Steps nearer to each other are a tie, too: where links decide, predictions were off by 8 % at most, mostly by less.
TIE_MIN = 0.05
# Our programs refuse more servers and, over TCP, where servers are ranks too, more ranks (common/base/limits.h).
SERVERS_MAX = 256
RANKS_MAX = 1024


@dataclasses.dataclass(frozen=True)
class Point:
    """One cell with one number of workers."""
    place: cells.Cell
    workers: int
    servers: int
    hosts: int  # of workers and servers
    step_s: float
    exposed_s: float
    low_s: float  # of the step, with costs as much smaller as their band
    high_s: float
    bound_s: float  # of the step, by links and computing alone
    extrapolated: bool  # more workers or bytes than were measured, so that the band has grown

    def rate(self, batch: int) -> float:
        """samples/s of all workers."""
        return self.workers * batch / self.step_s


@dataclasses.dataclass(frozen=True)
class Line:
    name: str
    place: cells.Cell
    # For each number of workers; None where our programs refuse such a job, or there are too few hosts for it.
    points: Sequence[Point | None]
    costs: model.Costs


@dataclasses.dataclass(frozen=True)
class Plan:
    workload: Workload
    cluster: Cluster
    workers: Sequence[int]
    computing_s: Sequence[float]  # of the slowest worker without jitter, for each number of workers
    jitter_s: Sequence[float]  # what jitter adds to it, likewise
    lines: Sequence[Line]
    alone: float  # samples/s of one process
    assumptions: Sequence[str]
    source: str  # of the costs


def places(cluster: Cluster, syncs: Sequence[str] = cells.SYNCS) -> list[cells.Cell]:
    """The cells and, between hosts, those with servers once more, on hosts of their own."""
    return [place for cell in (cells.BY_SYNC[sync] for sync in syncs)
            for place in (cell, dataclasses.replace(cell, placement=cells.OWN_HOSTS))
            if place == cell or (cell.has_servers and cluster.hosts > 1)]


def line_name(place: cells.Cell) -> str:
    """star/grpc on own hosts: what comes before the first space is the cell's name (predictions.py)."""
    where = {cells.RANKS: "", cells.SERVERS: " with the workers", cells.OWN_HOSTS: " on own hosts"}
    return plan_name(place) + where[place.placement]


def server_counts(place: cells.Cell, workers: int, cluster: Cluster, asked: int | None = None) -> list[int]:
    """Those that are tried: `asked`, or powers of two and as many as workers, as far as our programs accept so many
    and, where each has a host of its own, there are so many. Only [0] where the ranks are the owners."""
    if not place.has_servers:
        return [0]
    largest = min(SERVERS_MAX, RANKS_MAX - workers) if place.transport == "tcp" else SERVERS_MAX
    if place.placement == cells.OWN_HOSTS:
        largest = min(largest, cluster.hosts - cluster.hosts_of(workers))
    if asked:
        return [asked] if asked <= largest else []
    largest = min(workers, largest)
    return sorted({2 ** power for power in range(largest.bit_length())} | {largest}) if largest > 0 else []


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
           asked: int | None) -> Point | None:
    costs = book.find(place.sync, _medium(place, workers, cluster))

    def step_s(servers: int, by: model.Costs = costs) -> float:
        chosen = dataclasses.replace(workload, bucket_bytes=bucket_bytes(place, workers, servers, cluster, workload))
        return model.predict_s(model.Job(place, workers, servers), cluster, chosen, by, book.jitter)

    steps = {servers: step_s(servers) for servers in server_counts(place, workers, cluster, asked)}
    if not steps:
        return None
    servers = next(one for one, step in steps.items() if step <= (1 + SERVER_GAIN_MIN) * min(steps.values()))
    band = costs.band_at(workers, workload.bytes)
    computing_s = model.compute_s(workers, cluster, workload, book.jitter)
    return Point(place, workers, servers, cluster.hosts_of(workers) + servers * (place.placement == cells.OWN_HOSTS),
                 steps[servers], steps[servers] - computing_s, step_s(servers, costs.scaled(1 / (1 + band))),
                 step_s(servers, costs.scaled(1 + band)), step_s(servers, model.BOUND), band > costs.band)


def assumptions_of(workload: Workload, cluster: Cluster, book: CostBook) -> list[str]:
    """What a plan takes for granted, a sentence each."""
    found = [f"each host has {cluster.cores:g} cores (--cores), as fast as those of the costs",
             "workers compute on CPUs: GPUs, NCCL and NVLink are not modelled",
             "backward takes two thirds of computing", "bands are of the costs: links and computing are as given"]
    if not workload.compute_s:
        found.append("computing takes no time, so nothing hides the exchange: --compute_ms=T says how long it takes")
    if not book.jitter:
        found.append("cores have no jitter: --jitter=0.05 makes a worker's computing scatter by 5 %")
    if min(cluster.hosts, cluster.workers_per_host) > 1:
        found.append(f"workers fill a host, with {cluster.workers_per_host}, before the next one: --workers_per_host=1 "
                     "puts each on a host of its own")
    if cluster.hosts > 1:
        found += ["messages between hosts travel by TCP", "links share no bottleneck", "no cell wastes part of a link"]
    return found


def make(workload: Workload, cluster: Cluster, workers: Sequence[int], book: CostBook, servers: int | None = None,
         syncs: Sequence[str] = cells.SYNCS) -> Plan:
    """The plan of the cells in `syncs` that have costs; CostsError if none has. With `servers`, every star with servers
    has so many."""
    lines: list[Line] = []
    left_out: dict[str, None] = {}
    for place in places(cluster, syncs):
        try:
            points = [_point(place, count, cluster, workload, book, servers) for count in workers]
            costs = book.find(place.sync, SOCKETS if cluster.hosts > 1 else MEMORY)
        except CostsError as error:
            left_out[f"left out: {error}"] = None
        else:
            lines.append(Line(line_name(place), place, points, costs))
    if not lines:
        raise CostsError("no cell can be planned; " + "; ".join(left_out))
    if not any(point for line in lines for point in line.points):
        raise WorkloadError("no such job: there are too few hosts for these servers, or too many processes")
    computing = [model.compute_s(count, cluster, workload) for count in workers]
    jitter = [model.compute_s(count, cluster, workload, book.jitter) - one for count, one in zip(workers, computing)]
    update_s = workload.bytes * costs.seconds.get("apply_byte", 0.0)
    alone = workload.batch / (workload.compute_s + update_s) if workload.compute_s else 0.0
    return Plan(workload, cluster, list(workers), computing, jitter, lines, alone,
                [*assumptions_of(workload, cluster, book), *left_out],
                f"measured on {book.machine} at {book.commit}, {book.date}, by {book.command}")


@dataclasses.dataclass(frozen=True)
class Winner:
    """The fastest cell with one number of workers."""
    point: Point
    rival: Point | None  # the fastest cell of the other topology

    @property
    def is_tie(self) -> bool:
        """The rival may be the faster one within the bands."""
        return self.rival is not None and (self.rival.low_s <= self.point.high_s
                                           or self.rival.step_s <= (1 + TIE_MIN) * self.point.step_s)


def winners(plan: Plan) -> list[Winner]:
    """For each number of workers that has a job."""
    found = []
    for each in zip(*(line.points for line in plan.lines)):
        ranked = sorted((one for one in each if one), key=lambda one: one.step_s)
        if ranked:
            rivals = (one for one in ranked if one.place.topology != ranked[0].place.topology)
            found.append(Winner(ranked[0], next(rivals, None)))
    return found


def _span(values: Sequence[float], text: Callable[[float], str]) -> str:
    first, last = text(min(values)), text(max(values))
    return first if first == last else f"{first} to {last}"


def crossings(plan: Plan) -> list[str]:
    """Which line is fastest where, and by how much the other topology is slower there. Within the bands is a tie."""
    sentences = []
    for (name, tie), group in itertools.groupby(winners(plan), lambda one: (line_name(one.point.place), one.is_tie)):
        ones = list(group)
        servers = (f" with {_span([one.point.servers for one in ones], str)} servers "
                   f"({_span([one.point.hosts for one in ones], str)} hosts in all)") * bool(ones[0].point.servers)
        rivals = [one.rival for one in ones if one.rival]
        times = _span([rival.step_s / one.point.step_s for one, rival in zip(ones, rivals)],
                      lambda ratio: f"{ratio:.2f}") if rivals else ""
        others = " or ".join(dict.fromkeys(line_name(rival.place) for rival in rivals))
        sentences.append(f"{_span([one.point.workers for one in ones], '{:,}'.format)} workers: " + (
            f"a tie within the bands: {name}{servers}, and {others}, which takes {times} times as long" if tie else
            f"{name}{servers} is the fastest"
            + (f"; the best {rivals[0].place.topology} takes {times} times as long" if rivals else "")))
    return sentences


def verdict(plan: Plan) -> list[str]:
    """Whether to distribute, and until where more workers pay. Nothing can be said without the time of computing."""
    if not plan.alone:
        return []
    batch = plan.workload.batch
    counts, best = zip(*((one.point.workers, one.point.rate(batch)) for one in winners(plan)))
    gains = [rate / plan.alone for rate in best]
    fastest = max(range(len(best)), key=lambda index: best[index])
    if gains[fastest] < GAIN_MIN:
        return [f"do not distribute this: one process makes {plan.alone:,.0f} samples/s, and the best job "
                f"{best[fastest]:,.0f} with {counts[fastest]:,} workers ({gains[fastest]:.2f} times)"]
    sentences = []
    worse = [workers for workers, gain in zip(counts, gains) if gain < GAIN_MIN]
    if worse:
        sentences.append(f"{', '.join(f'{count:,}' for count in worse)} workers make fewer than {GAIN_MIN} times the "
                         "samples/s of one process")
    pay = [index + 1 for index in range(len(best) - 1) if best[index + 1] >= best[index] * (
        1 + (DOUBLING_GAIN_MIN - 1) * (counts[index + 1] / counts[index] - 1))]
    last = max(pay, default=0)
    if last < len(best) - 1:
        sentences.append(f"beyond {counts[last]:,} workers, more of them gain little: "
                         f"{best[last + 1] / best[last]:.2f} times the samples/s with {counts[last + 1]:,}")
    sentences.append(f"the most samples/s: {best[fastest]:,.0f} with {counts[fastest]:,} workers, "
                     f"{gains[fastest]:.1f} times one process's {plan.alone:,.0f}")
    return sentences


def rows(plan: Plan) -> list[dict[str, Any]]:
    """One for each job: what predictions.py reads, and --csv has."""
    return [{"cell": line.name, "own_hosts": line.place.placement == cells.OWN_HOSTS, "workers": one.workers,
             "servers": one.servers, "hosts": one.hosts, "step_ms": 1e3 * one.step_s, "step_ms_low": 1e3 * one.low_s,
             "step_ms_high": 1e3 * one.high_s, "bound_ms": 1e3 * one.bound_s, "computing_ms": 1e3 * computing_s,
             "jitter_ms": 1e3 * jitter_s, "exposed_ms": 1e3 * one.exposed_s,
             "samples_per_second": one.rate(plan.workload.batch), "extrapolated": one.extrapolated,
             "median_error": line.costs.median_error, "worst_error": line.costs.worst_error, "costs": plan.source}
            for line in plan.lines
            for one, computing_s, jitter_s in zip(line.points, plan.computing_s, plan.jitter_s) if one]


def to_json(plan: Plan) -> dict[str, Any]:
    return {"title": f"{plan.workload.name}, predicted", "workload": dataclasses.asdict(plan.workload),
            "cluster": dataclasses.asdict(plan.cluster), "alone": plan.alone, "costs": plan.source,
            "assumptions": list(plan.assumptions), "crossings": crossings(plan), "verdict": verdict(plan),
            "rows": rows(plan)}
