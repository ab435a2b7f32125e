"""Predicts a step: how long the exchange of a cell takes, and how much of it computing does not hide.

Words. A *place* is a cell with its placement (bench/compare/measured/sync_cells.py). A *load* counts what one step asks
of one host. *Costs* are seconds per unit of a load; cost_fit.py finds them from measurements.

The exchange alone takes

    start + max(cpu, wire) + unhidden - saved

    start     a fixed time, and `hops` messages that wait for each other: each costs its latency, and its turn on a core
              where a host has more processes than cores
    cpu       the host's messages, bytes, sums and updates, over the cores that its processes can use
    wire      the busiest link's bytes over its rate, and the time of as many buckets as the cell wastes (Load.wasting)
    unhidden  min(cpu, wire) of one bucket where there are servers: push, update and pull of a bucket follow each other,
              and there is no other bucket to work on meanwhile
    saved     by an emulated link, which may catch up on its idle time, but not on more than a burst (Cluster.burst_s)

A load is linear in the costs, so that they can be fitted by least squares. A step of N workers, each of which computes
T, lets bucket i leave when its part of backward is done, and serves the buckets one after the other:

    step = max(start + time at which the last bucket is served, all work of the host / its cores)

Let M be the bytes of parameters in b buckets, S the servers, B the rate of a link. With costs of zero this is the bound
of each cell: 2 (N - 1) / N M/B between ranks; (1 + 1/b) max(1, N / S) M/B with servers on hosts of their own. In a
star between ranks the few owners of a short last block (workload.groups) carry more than that.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import sync_cells as cells
from workload import Cluster, Workload, bucket_count, bucket_sizes, groups

# Seconds for each of these:
FITTED = (
    "step",
    "hop",
    "wake",  # in addition for a hop on a host with more processes than cores: a process that waits there sleeps
    "crowd",  # in addition for a hop and each further process on its core, whose turn may come first
    "message",  # sent or received
    "long_message",  # in addition for one longer than EAGER_BYTES
    "incast",  # in addition for a message and each doubling of the senders to its owner: few are under way at once
    "byte",  # sent or received
    "cold_byte",  # in addition for one that is in no cache
    "small_page_byte",  # in addition where the parameters are shorter than a huge page
)
# A byte of a contribution added, and of parameters updated: measured by common_bench, not fitted.
KERNELS = ("sum_byte", "apply_byte")
EAGER_BYTES = 4095  # MPI and gRPC hand over longer messages in another way; MPI's 4,096 has a header, too
# The worker's forward is about a third of its computing: backward does two products where forward does one.
FORWARD_SHARE = 1 / 3
HUGE_PAGE_BYTES = 2 << 20  # shorter arrays are in pages of 4 KiB (common/base/memory.cc), each of which is looked up
# Beyond the measured numbers of workers and bytes a band grows by this share of itself for each doubling.
BAND_GROWTH = 0.5
COPIES = 3  # gradient, parameters, and what the optimizer keeps: a worker's working set in units of M


@dataclasses.dataclass(frozen=True)
class Load:
    """What one step asks of one host, all its processes together."""
    hops: int
    processes: int
    buckets: int
    messages: float
    long_messages: float
    senders: int  # that send to one owner at once
    bytes: float
    summed: float
    applied: float
    working_set: float
    small_pages: bool
    link_bytes: float  # in the busier direction
    fill: float = 1.0  # the link's time, times this, where a first or last bucket leaves one direction idle
    meeting: int = 1  # processes of other hosts that send to one of this host at once; 1 for ranks, which waste nothing
    served: bool = False  # there are servers

    @property
    def wasting(self) -> float:
        """A bucket's share of the link's time, where a cell can waste it: several senders meet, some bytes of a bucket
        come early and others late, and what follows waits. The first bucket of a step waits behind none."""
        return 1 / self.buckets if self.meeting > 1 and self.buckets > 1 else 0.0

    @property
    def unhidden(self) -> float:
        """The share of the faster one of cores and link that does not hide behind the slower one."""
        return 1 / self.buckets if self.served else 0.0


@dataclasses.dataclass(frozen=True)
class Costs:
    """Of one cell with one medium."""
    seconds: Mapping[str, float]  # by the names of FITTED and KERNELS
    cache_bytes: float = math.inf  # a working set beyond it is in no cache
    contention: float = 1.0  # the work of an exchange costs so many times as much while the worker computes
    median_error: float = 0.0  # relative, on sizes that the fit has not seen
    worst_error: float = 0.0  # likewise
    # Nine of ten exchanges on these sizes are between the predictions with costs times 1 / (1 + band) and 1 + band.
    band: float = 0.1
    workers_max: float = math.inf  # of the measurements
    bytes_max: float = math.inf  # likewise

    def is_extrapolated(self, workers: int, size: int) -> bool:
        """Whether that is beyond the measurements."""
        return workers > self.workers_max or size > self.bytes_max

    def scaled(self, factor: float) -> Costs:
        return dataclasses.replace(self, seconds={name: factor * value for name, value in self.seconds.items()})

    def band_at(self, workers: int, size: int) -> float:
        """The relative band of the costs. It is a rule of thumb beyond the measurements."""
        doublings = math.log2(max(1.0, workers / self.workers_max)) + math.log2(max(1.0, size / self.bytes_max))
        return self.band * (1 + BAND_GROWTH * doublings)


BOUND = Costs({})  # what links and computing take at least


@dataclasses.dataclass(frozen=True)
class Parts:
    start_s: float
    cpu_s: float
    wire_s: float
    unhidden_s: float
    saved_s: float

    @property
    def exchange_s(self) -> float:
        return self.start_s + max(self.cpu_s, self.wire_s) + self.unhidden_s - self.saved_s


@dataclasses.dataclass(frozen=True)
class Job:
    place: cells.Cell
    workers: int
    servers: int  # 0 where the ranks are the owners


def _of_ranks(job: Job, cluster: Cluster, total: int, asked_bucket: int, load: Load) -> Load:
    """`load` with the messages of the busiest host's ranks, each of which is a worker and may be an owner."""
    workers, here = job.workers, load.processes
    ring = job.place.topology == "ring"
    for group in groups(total, asked_bucket, workers, few_owners=not ring):
        owners_here = -(-here * group.owners // workers)
        owned = group.count * group.bytes * owners_here / group.owners
        # A rank sends to each other owner and receives from it; an owner does so with each other rank.
        messages = 2 * group.count * (owners_here * (workers - 1) + here * group.owners - owners_here)
        message_bytes = group.bytes / group.owners
        crossing = here * (group.owners - owners_here) + owners_here * (workers - here)
        load = dataclasses.replace(
            load, messages=load.messages + messages,
            long_messages=load.long_messages + messages * (message_bytes > EAGER_BYTES),
            bytes=load.bytes + messages * message_bytes, summed=load.summed + owned * workers * (workers > 1),
            applied=load.applied + owned,
            link_bytes=load.link_bytes + (0.0 if ring else group.count * crossing * message_bytes))
    if ring:
        load = dataclasses.replace(load, link_bytes=2 * (workers - 1) / workers * total)
    return load if cluster.hosts_of(workers) > 1 else dataclasses.replace(load, link_bytes=0.0)


def loads(job: Job, cluster: Cluster, total: int, asked_bucket: int) -> list[Load]:
    """The load of each kind of host: the workers', and the servers' where these have hosts of their own."""
    place, workers, servers = job.place, job.workers, job.servers
    cut_for = 1 if place.has_servers else workers  # servers own no chunks of blocks (common/job/bucket_map.h)
    buckets = bucket_count(total, asked_bucket, cut_for)
    hosts = cluster.hosts_of(workers)
    here = -(-workers // hosts)
    idle = Load(hops=2, processes=here, buckets=buckets, messages=0.0, long_messages=0.0, senders=1, bytes=0.0,
                summed=0.0, applied=0.0, working_set=here * COPIES * total,
                small_pages=total < HUGE_PAGE_BYTES, link_bytes=0.0, served=place.has_servers)
    if not place.has_servers:
        ring = place.topology == "ring"
        idle = dataclasses.replace(idle, hops=2 * (workers - 1) if ring else 2 * (workers > 1),
                                   senders=1 if ring else workers - 1)
        return [_of_ranks(job, cluster, total, asked_bucket, idle)]
    # A slice is one message, whatever its length.
    long_buckets = sum(count for size, count in bucket_sizes(total, asked_bucket, cut_for)
                       if size / servers > EAGER_BYTES)
    of_workers = dataclasses.replace(idle, messages=2.0 * here * servers * buckets,
                                     long_messages=2.0 * here * servers * long_buckets, bytes=2.0 * here * total)
    own = place.placement == cells.OWN_HOSTS and cluster.hosts > 1
    servers_here = 1 if own else -(-servers // hosts)
    of_servers = dataclasses.replace(
        of_workers, processes=servers_here, senders=workers, messages=2.0 * servers_here * workers * buckets,
        long_messages=2.0 * servers_here * workers * long_buckets, bytes=2.0 * servers_here * workers * total / servers,
        summed=servers_here * workers * total / servers, applied=servers_here * total / servers,
        working_set=servers_here * COPIES * total / servers)
    if own:
        fill = 1 + 1 / buckets
        return [dataclasses.replace(of_workers, link_bytes=float(here * total), fill=fill, meeting=servers),
                dataclasses.replace(of_servers, link_bytes=workers * total / servers, fill=fill, meeting=workers)]
    crossing_bytes = (here * total * (servers - servers_here) / servers
                      + servers_here * total / servers * (workers - here)) if hosts > 1 else 0.0
    return [dataclasses.replace(
        of_servers, processes=here + servers_here, messages=of_workers.messages + of_servers.messages,
        long_messages=of_workers.long_messages + of_servers.long_messages, bytes=of_workers.bytes + of_servers.bytes,
        working_set=of_workers.working_set + of_servers.working_set, link_bytes=crossing_bytes,
        meeting=max(workers - here, servers - servers_here))]


def usable_cores(load: Load, cluster: Cluster) -> float:
    return min(cluster.cores, float(load.processes))


def terms(load: Load, cluster: Cluster, cache_bytes: float) -> dict[str, float]:
    """How often each cost occurs one after the other, so that time is the sum over costs of cost times this."""
    share = 1 / usable_cores(load, cluster)
    cold = max(0.0, 1 - cache_bytes / load.working_set) if load.working_set else 0.0
    return {"step": 1.0, "hop": float(load.hops),
            "wake": float(load.hops * (load.processes > cluster.cores)),
            "crowd": load.hops * max(0.0, load.processes / cluster.cores - 1),
            "message": share * load.messages,
            "long_message": share * load.long_messages,
            "incast": share * load.messages * math.log2(max(1, load.senders)),
            "byte": share * load.bytes, "cold_byte": share * load.bytes * cold,
            "small_page_byte": share * load.bytes * load.small_pages,
            "sum_byte": share * load.summed, "apply_byte": share * load.applied}


_START = ("step", "hop", "wake", "crowd")


def parts(load: Load, cluster: Cluster, costs: Costs, wasted_buckets: float = 0.0) -> Parts:
    """The exchange of one step, as this kind of host sees it, while nothing computes."""
    seconds = {name: count * costs.seconds.get(name, 0.0)
               for name, count in terms(load, cluster, costs.cache_bytes).items()}
    start = sum(seconds[name] for name in _START)
    carried = 0.0
    if load.link_bytes:
        start += load.hops * cluster.latency_s
        carried = load.link_bytes / cluster.bytes_per_second
    wire = (load.fill + wasted_buckets * load.wasting) * carried
    cpu = sum(seconds.values()) - sum(seconds[name] for name in _START)
    unhidden = load.unhidden * min(cpu, wire)
    # A direction is idle while the other one carries all, too.
    idle = start + max(cpu, wire) + unhidden - carried
    return Parts(start, cpu, wire, unhidden, min(idle, load.fill * min(cluster.burst_s, carried)))


def compute_s(job: Job, cluster: Cluster, workload: Workload, jitter: float = 0.0) -> float:
    """Computing of the slowest of all workers, where workers have too few cores together if need be.

    The mean of the largest of N times that scatter by `jitter`, relatively, is about sqrt(2 ln N) scatters longer.
    """
    here = -(-job.workers // cluster.hosts_of(job.workers))
    # Workers of emulated hosts cannot have more of a core than there is, nor can one use more than its threads.
    crowded = max(1.0, here * workload.threads / cluster.cores)
    return workload.compute_s * crowded * (1 + jitter * math.sqrt(2 * math.log(job.workers)))


def step_s(load: Load, cluster: Cluster, costs: Costs, computing_s: float, busy_s: float, bench: bool,
           wasted_buckets: float = 0.0) -> float:
    """A step in which every worker computes `computing_s`; `busy_s`: of all cores of this host together."""
    found = parts(load, cluster, costs, wasted_buckets)
    service = max(found.cpu_s, found.wire_s) / load.buckets
    # When the first and the last bucket leave, as shares of computing. The benches submit a bucket and compute then.
    first, last = ((0.0, (load.buckets - 1) / load.buckets) if bench else
                   (FORWARD_SHARE + (1 - FORWARD_SHARE) / load.buckets, 1.0))
    served = max(first * computing_s + load.buckets * service, last * computing_s + service, computing_s)
    work = found.cpu_s * usable_cores(load, cluster)
    contended = min(work, busy_s)  # only work that meets computing is dearer
    return max(found.start_s + found.unhidden_s - found.saved_s + served,
               (busy_s + work + (costs.contention - 1) * contended) / cluster.cores)


@dataclasses.dataclass(frozen=True)
class Prediction:
    step_s: float
    exposed_s: float  # what the step takes beyond computing


def predict(job: Job, cluster: Cluster, workload: Workload, costs: Costs, wasted_buckets: float = 0.0,
            jitter: float = 0.0, bench: bool = False) -> Prediction:
    """One step of a job; with `bench`, of ring_bench or star_bench."""
    computing = compute_s(job, cluster, workload, jitter)
    here = -(-job.workers // cluster.hosts_of(job.workers))
    steps = []
    for place, load in enumerate(loads(job, cluster, workload.bytes, workload.bucket_bytes)):
        busy = here * workload.compute_s * workload.threads if place == 0 else 0.0
        steps.append(step_s(load, cluster, costs, computing, busy, bench, wasted_buckets))
    return Prediction(max(steps), max(steps) - computing)
