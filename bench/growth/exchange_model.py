"""Predicts a step: how long the exchange of a cell takes, and how much of it computing does not hide.

Words. A *place* is a cell with its placement (bench/compare/measured/sync_cells.py). A *load* counts what one step asks
of one host. *Costs* are seconds per unit of a load; cost_fit.py finds them from measurements.

The exchange alone takes

    start + max(cpu, wire) + unhidden - saved

    start     the step's fixed time, and what its hops cost: messages that wait for each other
    cpu       the host's messages, bytes, sums and updates, over the cores that its processes can use
    wire      the busiest link's bytes over its rate, and the time of the buckets that the cell wastes (Load.wasting)
    unhidden  min(cpu, wire) of one bucket where there are servers: push, update and pull of a bucket follow each other,
              and no other bucket is there to work on meanwhile
    saved     by an emulated link, which catches up on its idle time, up to a burst (Cluster.burst_s)

In a step with computing a bucket leaves when its part of backward is done, and buckets are served one after the other:

    step = max(start + unhidden - saved + time at which the last bucket is served, all work of the host / its cores)

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

# All costs, each in seconds for one of what is named here. Load.counts() counts them.
WAITING = {
    "step": "a step",
    "hop": "a message that the next one waits for",
    "wake": "a hop on a host with more processes than cores, in addition: a process that waits there sleeps",
    "crowd": "a hop and each further process on its core, in addition: that one's turn may come first",
}
WORKING = {
    "message": "a message sent or received",
    "long_message": "a message longer than EAGER_BYTES, in addition",
    "incast": "a message and each doubling of the senders to its owner, in addition: few are under way at once",
    "byte": "a byte sent or received",
    "cold_byte": "a byte sent or received that is in no cache, in addition",
    "small_page_byte": "a byte sent or received where the parameters are shorter than a huge page, in addition",
}
# common_bench measures these, and no fit finds them.
KERNELS = {"sum_byte": "a byte of a contribution that is added", "apply_byte": "a byte of parameters that is updated"}
FITTED = (*WAITING, *WORKING)

EAGER_BYTES = 4095  # MPI and gRPC hand over longer messages in another way; MPI's 4,096 has a header, too
HUGE_PAGE_BYTES = 2 << 20  # shorter arrays are in pages of 4 KiB (common/base/memory.cc), each of which is looked up
COPIES = 3  # gradient, parameters, and what the optimizer keeps: a worker's working set in units of M
# The worker's forward is about a third of its computing: backward does two products where forward does one.
FORWARD_SHARE = 1 / 3


@dataclasses.dataclass(frozen=True)
class Load:
    """The work of one step for all processes of one host."""
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
    served: bool = False  # there are servers
    meeting: int = 1  # processes of other hosts that send to one of this host at once; 1 for ranks, which waste nothing
    fill: float = 1.0  # the link's time, times this, where a first or last bucket leaves one direction idle

    @property
    def wasting(self) -> float:
        """A bucket's share of the link's time, where a cell can waste it: several senders meet, some bytes of a bucket
        come early and others late, and what follows waits. The first bucket of a step waits for none."""
        return 1 / self.buckets if self.meeting > 1 and self.buckets > 1 else 0.0

    def cores_of(self, cluster: Cluster) -> float:
        """The cores that its processes can use."""
        return min(cluster.cores, float(self.processes))

    def counts(self, cluster: Cluster, cache_bytes: float) -> dict[str, float]:
        """How often each cost occurs one after the other, so that time is the sum over costs of cost times this."""
        share = 1 / self.cores_of(cluster)
        cold = max(0.0, 1 - cache_bytes / self.working_set) if self.working_set else 0.0
        return {"step": 1.0, "hop": float(self.hops), "wake": float(self.hops * (self.processes > cluster.cores)),
                "crowd": self.hops * max(0.0, self.processes / cluster.cores - 1),
                "message": share * self.messages, "long_message": share * self.long_messages,
                "incast": share * self.messages * math.log2(max(1, self.senders)),
                "byte": share * self.bytes, "cold_byte": share * self.bytes * cold,
                "small_page_byte": share * self.bytes * self.small_pages,
                "sum_byte": share * self.summed, "apply_byte": share * self.applied}


@dataclasses.dataclass(frozen=True)
class Costs:
    """The costs of one cell with one medium, and how far they hold."""
    seconds: Mapping[str, float]  # by the names of FITTED and KERNELS
    cache_bytes: float = math.inf  # a working set beyond it is in no cache
    contention: float = 1.0  # the work of an exchange costs so many times as much while the worker computes
    band: float = 0.1  # relative error that 9 of 10 predictions do not exceed
    workers_max: float = math.inf  # of the measurements
    bytes_max: float = math.inf  # likewise


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


def _ranks_load(job: Job, cluster: Cluster, total: int, asked_bucket: int) -> Load:
    """The busiest host's load. Its ranks are workers and may be owners."""
    workers, ring = job.workers, job.place.topology == "ring"
    here, several = cluster.workers_here(workers), cluster.hosts_of(workers) > 1
    messages = long_messages = sent = summed = applied = crossed = 0.0
    for group in groups(total, asked_bucket, workers, few_owners=not ring):
        owners_here = -(-here * group.owners // workers)
        owned = group.count * group.bytes * owners_here / group.owners
        # A rank sends to each other owner and receives from it; an owner does so with each other rank.
        count = 2 * group.count * (owners_here * (workers - 1) + here * group.owners - owners_here)
        size = group.bytes / group.owners
        messages += count
        long_messages += count * (size > EAGER_BYTES)
        sent += count * size
        summed += owned * workers * (workers > 1)
        applied += owned
        crossed += group.count * size * (here * (group.owners - owners_here) + owners_here * (workers - here))
    return Load(hops=2 * (workers - 1) if ring else 2 * (workers > 1), processes=here,
                buckets=bucket_count(total, asked_bucket, workers), messages=messages, long_messages=long_messages,
                senders=1 if ring else workers - 1, bytes=sent, summed=summed, applied=applied,
                working_set=here * COPIES * total, small_pages=total < HUGE_PAGE_BYTES,
                link_bytes=several * (2 * (workers - 1) / workers * total if ring else crossed))


def _server_loads(job: Job, cluster: Cluster, total: int, asked_bucket: int) -> list[Load]:
    """The load of a host with workers and servers; or of one with workers, and of one with a server."""
    workers, servers, hosts, here = (job.workers, job.servers, cluster.hosts_of(job.workers),
                                     cluster.workers_here(job.workers))
    sizes = bucket_sizes(total, asked_bucket, 1)  # servers own no chunks of blocks (common/job/bucket_map.h)
    buckets = bucket_count(total, asked_bucket, 1)
    # A slice is one message, whatever its length.
    long_buckets = sum(count for size, count in sizes if size / servers > EAGER_BYTES)

    def load(workers_here: int, servers_here: int, link_bytes: float, meeting: int, fill: float = 1.0) -> Load:
        messages = 2.0 * (workers_here * servers + servers_here * workers)  # of a bucket
        slices = servers_here * total / servers
        return Load(hops=2, processes=workers_here + servers_here, buckets=buckets, messages=messages * buckets,
                    long_messages=messages * long_buckets, senders=workers if servers_here else 1,
                    bytes=2.0 * workers_here * total + 2.0 * workers * slices, summed=workers * slices, applied=slices,
                    working_set=COPIES * (workers_here * total + slices), small_pages=total < HUGE_PAGE_BYTES,
                    link_bytes=link_bytes, served=True, meeting=meeting, fill=fill)

    if job.place.placement == cells.OWN_HOSTS and cluster.hosts > 1:
        return [load(here, 0, here * total, servers, 1 + 1 / buckets),
                load(0, 1, workers * total / servers, workers, 1 + 1 / buckets)]
    both = -(-servers // hosts)
    crossed = (here * (servers - both) + both * (workers - here)) * total / servers if hosts > 1 else 0.0
    return [load(here, both, crossed, max(workers - here, servers - both))]


def loads(job: Job, cluster: Cluster, total: int, asked_bucket: int) -> list[Load]:
    """The load of each kind of host: the workers', and the servers' where these have hosts of their own."""
    if job.place.has_servers:
        return _server_loads(job, cluster, total, asked_bucket)
    return [_ranks_load(job, cluster, total, asked_bucket)]


def parts(load: Load, cluster: Cluster, costs: Costs, wasted_buckets: float = 0.0) -> Parts:
    """The exchange of one step, as this kind of host sees it, while nothing computes."""
    seconds = {name: count * costs.seconds.get(name, 0.0)
               for name, count in load.counts(cluster, costs.cache_bytes).items()}
    start = sum(seconds[name] for name in WAITING)
    cpu = sum(seconds[name] for name in (*WORKING, *KERNELS))
    carried = 0.0
    if load.link_bytes:
        start += load.hops * cluster.latency_s
        carried = load.link_bytes / cluster.bytes_per_second
    wire = (load.fill + wasted_buckets * load.wasting) * carried
    unhidden = min(cpu, wire) / load.buckets if load.served else 0.0
    # A direction is idle while the other one carries all, too.
    idle = start + max(cpu, wire) + unhidden - carried
    return Parts(start, cpu, wire, unhidden, min(idle, load.fill * min(cluster.burst_s, carried)))


def compute_s(job: Job, cluster: Cluster, workload: Workload, jitter: float = 0.0) -> float:
    """Computing of the slowest of all workers, where workers have too few cores together if need be.

    The mean of the largest of N times that scatter by `jitter`, relatively, is about sqrt(2 ln N) scatters longer.
    """
    # Workers of emulated hosts cannot have more of a core than there is, nor can one use more than its threads.
    crowded = max(1.0, cluster.workers_here(job.workers) * workload.threads / cluster.cores)
    return workload.compute_s * crowded * (1 + jitter * math.sqrt(2 * math.log(job.workers)))


@dataclasses.dataclass(frozen=True)
class Prediction:
    step_s: float
    exposed_s: float  # what the step takes beyond computing


def predict(job: Job, cluster: Cluster, workload: Workload, costs: Costs, wasted_buckets: float = 0.0,
            jitter: float = 0.0, bench: bool = False) -> Prediction:
    """One step of a job; with `bench`, of ring_bench or star_bench, which submit a bucket and compute then."""
    computing = compute_s(job, cluster, workload, jitter)
    busy = cluster.workers_here(job.workers) * workload.compute_s * workload.threads  # of all cores of a workers' host
    longest = 0.0
    for load in loads(job, cluster, workload.bytes, workload.bucket_bytes):
        found = parts(load, cluster, costs, wasted_buckets)
        bucket = max(found.cpu_s, found.wire_s) / load.buckets
        first = 0.0 if bench else FORWARD_SHARE + (1 - FORWARD_SHARE) / load.buckets
        last = (load.buckets - 1) / load.buckets if bench else 1.0
        served = max(first * computing + load.buckets * bucket, last * computing + bucket, computing)
        work = found.cpu_s * load.cores_of(cluster)
        contended = (costs.contention - 1) * min(work, busy)  # only work that meets computing is dearer
        longest = max(longest, found.start_s + found.unhidden_s - found.saved_s + served,
                      (busy + work + contended) / cluster.cores)
        busy = 0.0  # a host of servers alone computes nothing
    return Prediction(longest, longest - computing)
