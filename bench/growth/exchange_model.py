"""Predicts a step: how long the exchange of a cell takes, and how much of it computing does not hide.

Words. A *place* is a cell with its placement (bench/compare/measured/sync_cells.py). A *load* counts what one step asks
of one host. *Costs* are seconds per unit of a load; cost_fit.py finds them from measurements.

The exchange alone takes

    start + max(cpu, wire) + unhidden - saved

    start     a fixed time, and `hops` messages that wait for each other: each costs its latency, and its turn on a core
              where a host has more processes than cores
    cpu       the host's messages, bytes, sums and updates, over the cores that its processes can use
    wire      the busiest link's bytes over its rate
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
from workload import Cluster, Workload, bucket_sizes, groups

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
    workers: int
    processes: int  # workers, and servers
    buckets: int
    hops: int
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
    served: bool = False  # there are servers

    def usable_cores(self, cluster: Cluster) -> float:
        return min(cluster.cores, float(self.processes))


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


def _of_ranks(job: Job, cluster: Cluster, total: int, asked_bucket: int) -> Load:
    """The load of the busiest host's ranks, each of which is a worker and may be an owner."""
    workers, ring = job.workers, job.place.topology == "ring"
    buckets = sum(count for _, count in bucket_sizes(total, asked_bucket, workers))
    here = cluster.most_on_a_host(workers, workers)
    messages = long_messages = carried = summed = applied = link_bytes = 0.0
    for group in groups(total, asked_bucket, workers, few_owners=not ring):
        owners_here = -(-here * group.owners // workers)
        owned = group.count * group.bytes * owners_here / group.owners
        # A rank sends to each other owner and receives from it; an owner does so with each other rank.
        count = 2 * group.count * (owners_here * (workers - 1) + here * group.owners - owners_here)
        message_bytes = group.bytes / group.owners
        messages += count
        long_messages += count * (message_bytes > EAGER_BYTES)
        carried += count * message_bytes
        summed += owned * workers * (workers > 1)
        applied += owned
        link_bytes += group.count * message_bytes * (here * (group.owners - owners_here)
                                                     + owners_here * (workers - here))
    if ring:
        link_bytes = 2 * (workers - 1) / workers * total
    return Load(workers=here, processes=here, buckets=buckets,
                hops=2 * (workers - 1) if ring else 2 * (workers > 1), messages=messages, long_messages=long_messages,
                senders=1 if ring else workers - 1, bytes=carried, summed=summed, applied=applied,
                working_set=COPIES * here * total, small_pages=total < HUGE_PAGE_BYTES,
                link_bytes=link_bytes * (cluster.hosts_of(workers) > 1))


def loads(job: Job, cluster: Cluster, total: int, asked_bucket: int) -> list[Load]:
    """The load of each kind of host: the workers', and the servers' where these have hosts of their own."""
    workers, servers = job.workers, job.servers
    if not job.place.has_servers:
        return [_of_ranks(job, cluster, total, asked_bucket)]
    sizes = bucket_sizes(total, asked_bucket, 1)  # servers own no chunks of blocks (common/job/bucket_map.h)
    buckets = sum(count for _, count in sizes)
    # A slice is one message, whatever its length.
    long_buckets = sum(count for size, count in sizes if size / servers > EAGER_BYTES)

    def load(here: int, servers_here: int, link_bytes: float, fill: float = 1.0) -> Load:
        slices = 2 * (here * servers + servers_here * workers)  # of a bucket, pushed and pulled
        owned = servers_here * total / servers
        return Load(workers=here, processes=here + servers_here, buckets=buckets, hops=2, messages=slices * buckets,
                    long_messages=slices * long_buckets, senders=workers if servers_here else 1,
                    bytes=2 * (here * total + workers * owned), summed=workers * owned, applied=owned,
                    working_set=COPIES * (here * total + owned), small_pages=total < HUGE_PAGE_BYTES,
                    link_bytes=link_bytes, fill=fill, served=True)

    here = cluster.most_on_a_host(workers, workers)
    if job.place.placement == cells.OWN_HOSTS and cluster.hosts > 1:
        fill = 1 + 1 / buckets
        return [load(here, 0, here * total, fill), load(0, 1, workers * total / servers, fill)]
    servers_here = cluster.most_on_a_host(servers, workers)
    crossing = here * total * (servers - servers_here) / servers + servers_here * total / servers * (workers - here)
    return [load(here, servers_here, crossing * (cluster.hosts_of(workers) > 1))]


def terms(load: Load, cluster: Cluster, cache_bytes: float) -> dict[str, float]:
    """How often each cost occurs one after the other, so that time is the sum over costs of cost times this."""
    share = 1 / load.usable_cores(cluster)
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


def parts(load: Load, cluster: Cluster, costs: Costs) -> Parts:
    """The exchange of one step, as this kind of host sees it, while nothing computes."""
    seconds = {name: count * costs.seconds.get(name, 0.0)
               for name, count in terms(load, cluster, costs.cache_bytes).items()}
    start = sum(seconds.pop(name) for name in ("step", "hop", "wake", "crowd"))
    start += load.hops * cluster.latency_s * (load.link_bytes > 0)
    cpu = sum(seconds.values())
    carried = load.link_bytes / cluster.bytes_per_second if load.link_bytes else 0.0
    wire = load.fill * carried
    unhidden = load.served * min(cpu, wire) / load.buckets
    # A direction is idle while the other one carries all, too.
    idle = start + max(cpu, wire) + unhidden - carried
    return Parts(start, cpu, wire, unhidden, min(idle, load.fill * min(cluster.burst_s, carried)))


def compute_s(workers: int, cluster: Cluster, workload: Workload, jitter: float = 0.0) -> float:
    """Computing of the slowest of all workers, where workers have too few cores together if need be."""
    here = cluster.most_on_a_host(workers, workers)
    # Workers of emulated hosts cannot have more of a core than there is, nor can one use more than its threads.
    crowded = max(1.0, here * workload.threads / cluster.cores)
    # The mean of the largest of N times that scatter by `jitter`, relatively, is about sqrt(2 ln N) scatters longer.
    return workload.compute_s * crowded * (1 + jitter * math.sqrt(2 * math.log(workers)))


def _step_s(load: Load, cluster: Cluster, workload: Workload, costs: Costs, computing_s: float, bench: bool) -> float:
    """A step in which every worker computes `computing_s`, as this kind of host sees it."""
    found = parts(load, cluster, costs)
    service = max(found.cpu_s, found.wire_s) / load.buckets
    # When the first and the last bucket leave, as shares of computing. The benches submit a bucket and compute then.
    first, last = ((0.0, (load.buckets - 1) / load.buckets) if bench else
                   (FORWARD_SHARE + (1 - FORWARD_SHARE) / load.buckets, 1.0))
    served = max(first * computing_s + load.buckets * service, last * computing_s + service, computing_s)
    busy = load.workers * workload.compute_s * workload.threads  # of all cores of this host together
    work = found.cpu_s * load.usable_cores(cluster)
    contended = min(work, busy)  # only work that meets computing is dearer
    return max(found.start_s + found.unhidden_s - found.saved_s + served,
               (busy + work + (costs.contention - 1) * contended) / cluster.cores)


def predict_s(job: Job, cluster: Cluster, workload: Workload, costs: Costs, jitter: float = 0.0, bench: bool = False
              ) -> float:
    """One step of a job; with `bench`, of ring_bench or star_bench."""
    computing_s = compute_s(job.workers, cluster, workload, jitter)
    return max(_step_s(load, cluster, workload, costs, computing_s, bench)
               for load in loads(job, cluster, workload.bytes, workload.bucket_bytes))
