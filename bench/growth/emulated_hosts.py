"""Measures the exchange of all cells between the hosts of bench/netlab, and compares it with predictions."""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Callable, Sequence

import alone
import exchange_model as model
import machine
import netlab
import programs
import sync_cells as cells
from cost_book import SOCKETS, CostBook, place_key
from workload import Cluster

SIZES = (262144, 1048576, 4194304, 16777216)
STEPS_MAX = 20  # at 200 Mbit/s a step may take a second
ERROR_MAX = 0.10
RANKS_BUCKET_BYTES = 1 << 30  # ring_bench's default, as alone.py starts it: the whole vector
SMALL, LARGE = 4096, 4194304  # what a link's latency and its rate are measured with


class LabsError(Exception):
    """The text names no labs; the message says what it can be."""


@dataclasses.dataclass(frozen=True)
class Lab:
    rate: str  # of tc: 1gbit, 200mbit
    hosts: int


def parse_labs(text: str) -> list[Lab]:
    """1gbit:2-4,200mbit:6 to the labs with 2, 3 and 4 hosts at 1 Gbit/s and the one with 6 at 200 Mbit/s."""
    labs = []
    for word in text.split(","):
        match = re.fullmatch(r"(\d+(?:k|m|g)bit):(\d+)(?:-(\d+))?", word)
        first, last = (int(match[2]), int(match[3] or match[2])) if match else (0, 0)
        if match is None or not 2 <= first <= last:
            raise LabsError(f"{word!r} is not like 1gbit:2-4: a rate, and the smallest and largest number of hosts, "
                            "at least 2")
        labs += [Lab(match[1], hosts) for hosts in range(first, last + 1)]
    return labs


@dataclasses.dataclass(frozen=True)
class Link:
    bytes_per_second: float
    latency_s: float
    burst_s: float = 0.0  # Cluster.burst_s


def measured_link(seconds: dict[int, float], costs: model.Costs, cores: float, burst_s: float = 0.0) -> Link:
    """A link's rate and latency from the time of a ring of two ranks on two hosts, {bytes: seconds}.

    What the ranks themselves cost is known, so the rest is the link's: of a short exchange the latency, of a long one
    the rate.
    """
    job = model.Job(cells.BY_SYNC["ring"], 2, 0)
    # Without bytes on the link, the parts are what the ranks cost themselves, whatever the rate.
    cluster = Cluster(hosts=2, cores=cores, bytes_per_second=1.0)
    short, long = (model.loads(job, cluster, size, RANKS_BUCKET_BYTES)[0] for size in (SMALL, LARGE))
    own_short, own_long = (model.parts(dataclasses.replace(load, link_bytes=0.0), cluster, costs)
                           for load in (short, long))
    latency = max(0.0, (seconds[SMALL] - own_short.exchange_s) / long.hops)
    idle = own_long.start_s + long.hops * latency
    on_wire = seconds[LARGE] - max(0.0, idle - burst_s)
    # Without that limit a link that is faster than the cores would seem to be of any rate.
    return Link(long.link_bytes / max(on_wire, own_long.cpu_s), latency, burst_s)


@dataclasses.dataclass(frozen=True)
class Comparison:
    place: cells.Cell
    lab: str
    workers: int
    servers: int
    bytes: int
    measured_s: float
    predicted_s: float
    wire_bound: bool = False  # by the prediction
    bucket_s: float = 0.0  # of the link's time, of which it may waste some (Load.wasting)

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


def cluster_of(link: Link, hosts: int) -> Cluster:
    """`hosts` emulated hosts: they share this machine's cores."""
    return Cluster(hosts=hosts, cores=len(machine.cores()) / hosts, bytes_per_second=link.bytes_per_second,
                   latency_s=link.latency_s, burst_s=link.burst_s)


def _place(sync: str) -> cells.Cell:
    if sync == alone.OWN_HOSTS:
        return dataclasses.replace(cells.BY_SYNC["star"], placement=cells.OWN_HOSTS)
    return cells.BY_SYNC[sync]


def predict(book: CostBook, place: cells.Cell, workers: int, servers: int, size: int, cluster: Cluster
            ) -> tuple[float, bool, float]:
    """The seconds of an exchange as alone.py measures it, whether the link is what limits it, and those of a bucket on
    the link where the cell can waste them (Load.wasting)."""
    costs = book.find(place.sync, SOCKETS)
    job, wasted = model.Job(place, workers, servers), book.wasted_by(place)
    bucket = cells.bucket_bytes_between_hosts(servers) if place.has_servers else RANKS_BUCKET_BYTES
    each = [(model.parts(load, cluster, costs, wasted), load) for load in model.loads(job, cluster, size, bucket)]
    slowest, load = max(each, key=lambda one: one[0].exchange_s)
    return (slowest.exchange_s, slowest.wire_s > slowest.cpu_s,
            load.wasting * load.link_bytes / cluster.bytes_per_second)


Times = dict[tuple[str, int, int], float]  # seconds by sync, servers and bytes


def _medians(lab: netlab.Netlab, syncs: Sequence[str], workers: int, sizes: Sequence[int], repeats: int,
             say: Callable[[str], None]) -> tuple[Times, dict[str, str]]:
    """The times, and by sync why it failed."""
    found: dict[tuple[str, int, int], list[float]] = {}
    reasons: dict[str, str] = {}
    for repeat in range(repeats):
        say(f"{lab.section}, round {repeat + 1} of {repeats}")
        times, missing, _ = alone.exchanges(syncs, workers, 0, None, sizes, lab, STEPS_MAX)
        for one in times:
            found.setdefault((one["sync"], one["servers"], one["bytes"]), []).append(1e-6 * one["latency_us"])
        reasons = {**{gap["sync"]: gap["reason"] for gap in missing}, **reasons}
    for sync, reason in reasons.items():
        say(f"{lab.section}: {sync} has failed: {reason}")
    return {key: statistics.median(values) for key, values in found.items()}, reasons


def _measured_link(lab: netlab.Netlab, costs: model.Costs, repeats: int, say: Callable[[str], None]) -> Link:
    """As two hosts of the lab find it. ProgramError if their ring fails: nothing can be predicted without the link."""
    sizes = (SMALL, LARGE)
    times, reasons = _medians(lab, ["ring"], 2, sizes, repeats, say)
    if any(("ring", 0, size) not in times for size in sizes):
        raise programs.ProgramError(f"{lab.section}: the link cannot be measured: {reasons.get('ring', 'no times')}")
    return measured_link({size: times["ring", 0, size] for size in sizes}, costs, len(machine.cores()) / 2, lab.burst_s)


def compare(lab: Lab, book: CostBook, repeats: int, say: Callable[[str], None]) -> tuple[list[Comparison], list[str]]:
    """Measures all cells that have costs with a worker on each host and, with half of the hosts for servers, the star
    once more. The second result says what has failed. CostsError without costs of the ring, which measures the link."""
    ring = book.find("ring", SOCKETS)
    syncs = [sync for sync in cells.SYNCS if (sync, SOCKETS) in book.costs]
    say(f"cells that have costs: {', '.join(syncs)}")
    found: list[tuple[str, int, Times]] = []
    failures: list[str] = []

    def add(hosts: netlab.Netlab, workers: int, measured: Sequence[str], only: str = "") -> None:
        times, reasons = _medians(hosts, measured, workers, SIZES, repeats, say)
        found.append((hosts.section, workers, {key: one for key, one in times.items() if only in ("", key[0])}))
        failures.extend(f"{hosts.section}: {sync}: {reason}" for sync, reason in reasons.items() if only in ("", sync))

    with netlab.Netlab(hosts=lab.hosts, rate=lab.rate) as hosts:
        link = _measured_link(hosts, ring, repeats, say)
        say(f"{hosts.section}: {8e-6 * link.bytes_per_second:.1f} Mbit/s of payload, {1e6 * link.latency_s:.0f} us, "
            f"bursts of {1e6 * link.burst_s:.0f} us")
        add(hosts, lab.hosts, syncs)
    if lab.hosts % 2 == 0 and "star" in syncs:
        half = lab.hosts // 2
        with netlab.Netlab(hosts=half, rate=lab.rate, server_hosts=half) as hosts:
            add(hosts, half, ["star"], only=alone.OWN_HOSTS)
    return [Comparison(_place(sync), section, workers, servers, size, seconds,
                       *predict(book, _place(sync), workers, servers, size, cluster_of(link, lab.hosts)))
            for section, workers, times in found for (sync, servers, size), seconds in times.items()], failures


def compare_all(labs: Sequence[Lab], book: CostBook, repeats: int, say: Callable[[str], None]
                ) -> tuple[list[Comparison], list[str]]:
    """Says the comparisons so far after each lab: slow links take minutes, and may be interrupted."""
    found: list[Comparison] = []
    failures: list[str] = []
    for lab in labs:
        more, failed = compare(lab, book, repeats, say)
        found, failures = [*found, *more], [*failures, *failed]
        say("\n".join(table(found, failures)))
    return found, failures


def wasted_buckets(found: Sequence[Comparison]) -> dict[str, float]:
    """How many buckets' time on a link each cell wastes in a step, from long exchanges that a link limits and that were
    predicted with none: least squares of the relative errors. At least 0, as no cell can be faster than its link."""
    sums: dict[str, tuple[float, float]] = {}
    for one in found:
        if one.wire_bound and one.bytes >= LARGE:
            more, bucket = one.measured_s / one.predicted_s - 1, one.bucket_s / one.predicted_s
            products, squares = sums.get(place_key(one.place), (0.0, 0.0))
            sums[place_key(one.place)] = products + more * bucket, squares + bucket * bucket
    return {key: max(0.0, products / squares) if squares else 0.0 for key, (products, squares) in sums.items()}


def is_met(found: Sequence[Comparison], failures: Sequence[str]) -> bool:
    return bool(found) and not failures and all(abs(one.error) <= ERROR_MAX for one in found)


def table(found: Sequence[Comparison], failures: Sequence[str] = ()) -> list[str]:
    """A line for each comparison, what has failed, and the verdict in the last one."""
    lines = [f"{'cell':24} {'lab':22} {'workers':>7} {'bytes':>10} {'measured ms':>12} {'predicted ms':>12} "
             f"{'error':>7}"]
    for one in found:
        lines.append(f"{cells.name_of(one.place)[:24]:24} {one.lab:22} {one.workers:7} {one.bytes:10} "
                     f"{1e3 * one.measured_s:12.2f} {1e3 * one.predicted_s:12.2f} {100 * one.error:+6.1f}%")
    lines += [f"not measured: {failure}" for failure in failures]
    if not found:
        return [*lines, "missed: nothing was measured"]
    errors = [abs(one.error) for one in found]
    within = sum(error <= ERROR_MAX for error in errors)
    lines.append(f"{'met' if is_met(found, failures) else 'missed'}: {within} of {len(errors)} predictions are within "
                 f"{100 * ERROR_MAX:.0f} % of what was measured; median {100 * statistics.median(errors):.1f} %, "
                 f"worst {100 * max(errors):.1f} %")
    return lines
