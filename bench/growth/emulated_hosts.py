"""Measures the exchange of all cells between the hosts of bench/netlab, and compares it with predictions."""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Mapping, Sequence

import alone
import exchange_model as model
import machine
import netlab
import programs
import sync_cells as cells
from cost_book import SOCKETS, CostBook
from workload import Cluster, Workload, WorkloadError

SIZES = (262144, 1048576, 4194304, 16777216)
STEPS_MAX = 20  # at 200 Mbit/s a step may take a second
ERROR_MAX = 0.10
RANKS_BUCKET_BYTES = 1 << 30  # ring_bench's default, as alone.py starts it: the whole vector
SMALL, LARGE = 4096, 4194304  # what a link's latency and its rate are measured with
# By the names in the rows of alone.py.
PLACES = {**cells.BY_SYNC, alone.OWN_HOSTS: dataclasses.replace(cells.BY_SYNC["star"], placement=cells.OWN_HOSTS)}


def parse_labs(text: str) -> list[netlab.Netlab]:
    """1gbit:2-4,200mbit:6 to the labs with 2, 3 and 4 hosts at 1 Gbit/s and the one with 6 at 200 Mbit/s."""
    labs = []
    for word in text.split(","):
        match = re.fullmatch(r"(\d+(?:k|m|g)bit):(\d+)(?:-(\d+))?", word)
        first, last = (int(match[2]), int(match[3] or match[2])) if match else (0, 0)
        if match is None or not 2 <= first <= last:
            raise WorkloadError(f"{word!r} is not like 1gbit:2-4: a rate, and the smallest and largest number of "
                                "hosts, at least 2")
        labs += [netlab.Netlab(hosts, match[1]) for hosts in range(first, last + 1)]
    return labs


def measured_link(seconds: Mapping[int, float], costs: model.Costs, cores: float, burst_s: float = 0.0) -> Cluster:
    """Two hosts with so many cores, and the link between them, on which a ring of two ranks takes {bytes: seconds}."""
    job = model.Job(cells.BY_SYNC["ring"], 2, 0)
    # The ranks' own costs are known, so the rest is the link's: latency in a short exchange, the rate in a long one.
    # Without bytes on the link, the parts are these costs, whatever the rate.
    hosts = Cluster(hosts=2, cores=cores, bytes_per_second=1.0, burst_s=burst_s)
    short, long = (model.loads(job, hosts, size, RANKS_BUCKET_BYTES)[0] for size in (SMALL, LARGE))
    own_short, own_long = (model.parts(dataclasses.replace(load, link_bytes=0.0), hosts, costs)
                           for load in (short, long))
    latency = max(0.0, (seconds[SMALL] - own_short.exchange_s) / long.hops)
    idle = own_long.start_s + long.hops * latency
    on_wire = seconds[LARGE] - max(0.0, idle - burst_s)
    # Without that limit a link that is faster than the cores would seem to be of any rate.
    rate = long.link_bytes / max(on_wire, own_long.cpu_s)
    return dataclasses.replace(hosts, bytes_per_second=rate, latency_s=latency)


@dataclasses.dataclass(frozen=True)
class Comparison:
    place: cells.Cell
    lab: str
    workers: int
    bytes: int
    measured_s: float
    predicted_s: float


def _medians(lab: netlab.Netlab, syncs: Sequence[str], workers: int, sizes: Sequence[int], repeats: int
             ) -> tuple[dict[tuple[str, int, int], float], list[str]]:
    """Seconds by sync, servers and bytes, and what has failed."""
    found: dict[tuple[str, int, int], list[float]] = {}
    failures: dict[str, None] = {}
    for repeat in range(repeats):
        print(f"{lab.section}, round {repeat + 1} of {repeats}", flush=True)
        times, missing, _ = alone.exchanges(syncs, workers, 0, None, sizes, lab, STEPS_MAX)
        for one in times:
            found.setdefault((one["sync"], one["servers"], one["bytes"]), []).append(1e-6 * one["latency_us"])
        failures |= {f"{lab.section}: {gap['sync']}: {gap['reason']}": None for gap in missing}
    return {key: statistics.median(values) for key, values in found.items()}, list(failures)


def predicted_s(book: CostBook, place: cells.Cell, workers: int, servers: int, size: int, cluster: Cluster) -> float:
    """An exchange as alone.py measures it."""
    bucket = cells.bucket_bytes_between_hosts(servers) if place.has_servers else RANKS_BUCKET_BYTES
    return model.predict_s(model.Job(place, workers, servers), cluster, Workload(place.name, size, bucket_bytes=bucket),
                           book.find(place.sync, SOCKETS))


def compare(lab: netlab.Netlab, book: CostBook, repeats: int) -> tuple[list[Comparison], list[str]]:
    """Measures all cells that have costs with a worker on each host and, with half of the hosts for servers, the star
    once more. The second result says what has failed. CostsError without costs of the ring, which measures the link;
    ProgramError if it fails."""
    ring = book.find("ring", SOCKETS)
    syncs = [sync for sync in cells.SYNCS if (sync, SOCKETS) in book.costs]
    print(f"cells that have costs: {', '.join(syncs)}", flush=True)
    measured = []
    with lab:
        times, failed = _medians(lab, ["ring"], 2, (SMALL, LARGE), repeats)
        if len(times) < 2:
            raise programs.ProgramError("the link cannot be measured: " + "; ".join(failed))
        link = measured_link({size: seconds for (_, _, size), seconds in times.items()}, ring,
                             len(machine.cores()) / 2, lab.burst_s)
        print(f"{lab.section}: {8e-6 * link.bytes_per_second:.1f} Mbit/s of payload, {1e6 * link.latency_s:.0f} us, "
              f"bursts of {1e6 * link.burst_s:.0f} us", flush=True)
        measured.append((lab, lab.hosts, *_medians(lab, syncs, lab.hosts, SIZES, repeats)))
    if lab.hosts % 2 == 0 and "star" in syncs:
        half = lab.hosts // 2
        with netlab.Netlab(half, lab.rate, server_hosts=half) as halves:
            measured.append((halves, half, *_medians(halves, ["star"], half, SIZES, repeats)))
    # Emulated hosts share this machine's cores.
    cluster = dataclasses.replace(link, hosts=lab.hosts, cores=len(machine.cores()) / lab.hosts)
    # The second lab has measured the star next to the workers, too, which with two hosts is no exchange between hosts.
    found = [Comparison(PLACES[sync], hosts.section, workers, size, seconds,
                        predicted_s(book, PLACES[sync], workers, servers, size, cluster))
             for hosts, workers, times, _ in measured for (sync, servers, size), seconds in times.items()
             if hosts is lab or sync == alone.OWN_HOSTS]
    return found, [failure for *_, failures in measured for failure in failures]


def table(found: Sequence[Comparison], failures: Sequence[str]) -> tuple[bool, list[str]]:
    """Whether all predictions are met, and a line for each comparison, for each failure, and for this verdict."""
    lines = [f"{'cell':24} {'lab':22} {'workers':>7} {'bytes':>10} {'measured ms':>12} {'predicted ms':>12} "
             f"{'error':>7}"]
    errors = [one.predicted_s / one.measured_s - 1 for one in found]
    for one, error in zip(found, errors):
        lines.append(f"{cells.name_of(one.place)[:24]:24} {one.lab:22} {one.workers:7} {one.bytes:10} "
                     f"{1e3 * one.measured_s:12.2f} {1e3 * one.predicted_s:12.2f} {100 * error:+6.1f}%")
    lines += [f"not measured: {failure}" for failure in failures]
    if not found:
        return False, [*lines, "missed: nothing was measured"]
    off = [abs(error) for error in errors]
    within = sum(one <= ERROR_MAX for one in off)
    met = within == len(off) and not failures
    lines.append(f"{'met' if met else 'missed'}: {within} of {len(off)} predictions are within "
                 f"{100 * ERROR_MAX:.0f} % of what was measured; median {100 * statistics.median(off):.1f} %, "
                 f"worst {100 * max(off):.1f} %")
    return met, lines


def check(labs: Sequence[netlab.Netlab], book: CostBook, repeats: int) -> bool:
    """Whether all predictions are met. Prints the comparisons so far after each lab: slow links take minutes, and may
    be interrupted."""
    found: list[Comparison] = []
    failures: list[str] = []
    met = False
    for lab in labs:
        more, failed = compare(lab, book, repeats)
        found, failures = [*found, *more], [*failures, *failed]
        met, lines = table(found, failures)
        print("\n".join(lines), flush=True)
    return met
