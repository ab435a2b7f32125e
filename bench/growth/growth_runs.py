"""Runs ring_bench and star_bench with many numbers of workers, which compute nothing or a given time, in turns."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import alone
import machine
import programs
import sync_cells as cells
from cost_book import MEDIA, MEMORY, SOCKETS
from cost_fit import FIT_BYTES, TEST_BYTES, Measurement
from workload import BUCKET_BYTES

# These numbers bound the time of all runs: three rounds shall end within about an hour on two cores.
WORKERS = (1, 2, 3, 4, 8, 16, 32, 64)
# All processes' vectors together; more would measure this machine's memory, and take minutes a step.
BYTES_OF_ALL_MAX = 64 << 20
# Many steps, because a few show only one of the ways in which processes take turns on few cores.
STEPS_MAX, STEPS_MIN = 1000, 10
STEP_MESSAGES = 16_000  # of all steps of a size, counted as workers times those whom each talks to
STEPS_BYTES = 256 << 20  # of a size, as ring_bench has it
COMPUTING_S_MAX = 1.0  # of all steps of a size
SERVERS_MAX = 4
BENCH_SECONDS_MAX = 900
COMPUTE_S = (0.002, 0.01)
COMPUTE_BYTES = (262144, 1048576, 8388608)
COMPUTE_BUCKET_BYTES = 262144
# Many messages of one step, to tell a message's cost from that of its bytes; of a size that the fit sees.
MESSAGES = (16 << 20, 128 << 10)  # bytes, bytes of a bucket
MORE_WORKERS = (2, 4)  # of --workers; these send many messages, and those that fit on the cores compute
JITTER_COMPUTE_US, JITTER_STEPS = 10_000, 300
SCATTER_MAX = 0.05  # of the rounds of a size; runs with more are measured again
MORE_ROUNDS = 3
CORES_FACTOR = 1.6  # between two times of a cache line's way that count as one
NORMAL_95 = 1.645  # standard deviations from the median to the 95th percentile
# MPI takes shared memory within a host, and between hosts the fastest network, unless it is told not to. Only its part
# ob1 obeys the choice of a btl.
MPI_BY_SOCKETS = ("--mca", "pml", "ob1", "--mca", "btl", "tcp,self")
MPI_ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                   "OMPI_MCA_rmaps_base_oversubscribe": "1"}


@dataclasses.dataclass(frozen=True)
class Run:
    """One command, which measures some cells with some sizes."""
    syncs: tuple[str, ...]
    medium: str
    workers: int
    servers: int  # 0: the ranks are the owners
    sizes: tuple[int, ...]
    bucket_bytes: int = BUCKET_BYTES
    compute_s: float = 0.0

    @property
    def text(self) -> str:
        servers = f", {self.servers} servers" if self.servers else ""
        computing = f", {1e3 * self.compute_s:g} ms of computing" if self.compute_s else ""
        return (f"{' '.join(self.syncs)} by {self.medium}, {self.workers} workers{servers}, buckets of "
                f"{self.bucket_bytes >> 10} KiB{computing}")

    def command(self) -> list[str]:
        steps = min(STEPS_MAX, STEP_MESSAGES // (self.workers * (self.servers or self.workers)))
        if self.compute_s:
            steps = min(steps, round(COMPUTING_S_MAX / self.compute_s))
        steps = max(STEPS_MIN, steps)
        flags = ["--format=json", "--bytes=" + ",".join(map(str, self.sizes)), f"--bucket_bytes={self.bucket_bytes}",
                 f"--steps_max={steps}", f"--compute_us={round(1e6 * self.compute_s)}"]
        if self.servers:
            sync, = self.syncs
            return [programs.binary("bench/star_bench"), f"--workers={self.workers}", f"--servers={self.servers}",
                    f"--transport={cells.BY_SYNC[sync].transport}", f"--steps_bytes={STEPS_BYTES}",
                    f"--shared_memory={str(self.medium == MEMORY).lower()}", *flags]
        binding = "core" if self.workers <= len(machine.cores()) else "none"
        by_sockets = MPI_BY_SOCKETS if self.medium == SOCKETS else ()
        return ["mpirun", "-np", str(self.workers), "--bind-to", binding, *by_sockets,
                programs.binary("bench/ring_bench"), "--syncs=" + ",".join(self.syncs), *flags]


def _sizes(workers: int, sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(size for size in sizes if size * workers <= BYTES_OF_ALL_MAX))


def plan_runs(syncs: Sequence[str], workers: Sequence[int], cores: int) -> list[Run]:
    """All commands of one round."""
    runs = []
    sizes = (*FIT_BYTES, *TEST_BYTES)
    for medium in MEDIA:
        # Between ranks no message over TCP goes through memory.
        found = [cell for cell in cells.CELLS
                 if cell.sync in syncs and (cell.transport != "tcp" or cell.has_servers or medium == SOCKETS)]
        ranks = tuple(cell.sync for cell in found if not cell.has_servers)
        stars = [(cell.sync,) for cell in found if cell.has_servers]
        for count in workers:
            if count > 1 and ranks:
                runs.append(Run(ranks, medium, count, 0, _sizes(count, sizes)))
            runs += [Run(star, medium, count, servers, _sizes(count, sizes))
                     for star in stars for servers in sorted({1, min(count, SERVERS_MAX)})]
        for count in sorted({*MORE_WORKERS} & {*workers}):
            parts = [(ranks, 0)] * bool(ranks) + [(star, servers) for star in stars for servers in (1, count)]
            for part, servers in parts:
                runs.append(Run(part, medium, count, servers, MESSAGES[:1], MESSAGES[1]))
                if count <= max(2, cores):
                    runs += [Run(part, medium, count, servers, COMPUTE_BYTES, COMPUTE_BUCKET_BYTES, computing)
                             for computing in COMPUTE_S]
    return runs


def rows_of(run: Run, output: str) -> list[Measurement]:
    """The measurements that a run printed. Its latency_us is the step's time beyond computing."""
    return [Measurement(row["sync"], run.medium, run.workers, run.servers, int(row["bytes"]), run.bucket_bytes,
                        run.compute_s, 1e-6 * float(row["latency_us"]) + run.compute_s)
            for row in alone.rows(output) if row["sync"] in run.syncs]


def medians(rounds: Iterable[Measurement]) -> list[Measurement]:
    """One measurement for each thing that was measured: the median of its rounds, which may be medians themselves."""
    found: dict[Measurement, list[Measurement]] = {}
    for one in rounds:
        found.setdefault(dataclasses.replace(one, seconds=0.0, scatter=0.0), []).append(one)
    result = []
    for key, ones in found.items():
        median = statistics.median(one.seconds for one in ones)
        if min(one.seconds for one in ones) > 0:
            spread = statistics.mean(abs(one.seconds / median - 1) for one in ones)
            result.append(dataclasses.replace(key, seconds=median, scatter=max(spread, *(one.scatter for one in ones))))
    return result


def _common_bench(names: str, seconds: float, prefix: Sequence[str] = ()) -> list[dict[str, Any]]:
    text = programs.run([*prefix, programs.binary("bench/common_bench"), "--benchmark_format=json",
                         "--benchmark_filter=" + names, f"--benchmark_min_time={seconds}"])
    found: list[dict[str, Any]] = json.loads(text)["benchmarks"]
    return found


def core_round_trip_ns() -> float:
    """How long a cache line takes from the first of our cores to the second and back; 0 with one core.

    A virtual machine's cores change places: now they share a cache, and it takes 110 ns, and then they do not, it takes
    600, and an exchange in memory twice as long. Costs must be those of one machine.
    """
    if len(machine.cores()) < 2:
        return 0.0
    row, = _common_bench("CoreRoundTrip", 0.02)
    return float(row["real_time"])


def _are_alike(some_ns: float, other_ns: float) -> bool:
    return max(some_ns, other_ns) <= CORES_FACTOR * min(some_ns, other_ns)


class Visits:
    """What each command printed in all rounds. Where the cores usually are is where they were in most visits; others
    count only for commands that have none of these."""

    def __init__(self, runs: Iterable[Run]) -> None:
        # The rows, and core_round_trip_ns before and after; nan if it changed.
        self._of: dict[Run, list[tuple[list[Measurement], float]]] = {run: [] for run in runs}

    def make(self, run: Run) -> None:
        before = core_round_trip_ns()
        rows = rows_of(run, programs.run(run.command(), MPI_ENVIRONMENT, BENCH_SECONDS_MAX))
        self._of[run].append((rows, before if _are_alike(before, core_round_trip_ns()) else math.nan))

    def usual_ns(self) -> float:
        found = [core_ns for visits in self._of.values() for _, core_ns in visits if not math.isnan(core_ns)]
        return statistics.median_low(found) if found else math.nan

    def _usual(self, run: Run) -> list[list[Measurement]]:
        usual = self.usual_ns()
        return [rows for rows, core_ns in self._of[run] if _are_alike(core_ns, usual)]

    def medians(self, runs: Iterable[Run]) -> list[Measurement]:
        return medians(one for run in runs for rows in self._usual(run) or [rows for rows, _ in self._of[run]]
                       for one in rows)

    def is_wanting(self, run: Run, repeats: int) -> bool:
        """The command was made too seldom while the cores were as usual, or its rounds differ."""
        return len(self._usual(run)) < repeats or any(one.scatter > SCATTER_MAX for one in self.medians([run]))


def rounds(runs: Sequence[Run], repeats: int, say: Callable[[str], None]
           ) -> Iterator[tuple[list[Measurement], list[str]]]:
    """After each round over all runs, every other one backwards, the medians so far, and what failed.

    After `repeats` rounds come at most MORE_ROUNDS over those runs alone that are wanting: many processes on few cores
    share them in more than one way, a disturbance of one round would be half of a median of two, and cores may move.
    """
    visits = Visits(runs)
    failed: dict[Run, str] = {}
    for repeat in range(repeats + MORE_ROUNDS):
        chosen = [run for run in runs if run not in failed and (repeat < repeats or visits.is_wanting(run, repeats))]
        if not chosen:
            break
        name = f"round {repeat + 1} of {repeats}" if repeat < repeats else "again, as rounds differ"
        for place, run in enumerate(chosen[::-1 if repeat % 2 else 1]):
            say(f"{name}, {place + 1} of {len(chosen)}: {run.text}")
            try:
                visits.make(run)
            except programs.ProgramError as error:
                failed[run] = f"{run.text}: {str(error).splitlines()[0]}"
        say(f"a cache line takes {visits.usual_ns():.0f} ns from core to core and back, usually")
        yield visits.medians(runs), list(failed.values())


def measure_kernels() -> dict[str, float]:
    """sum_byte and apply_byte from a server's whole step, in nanoseconds, with two numbers of workers."""
    times: dict[int, tuple[int, float]] = {}  # by workers: the largest count of elements and its seconds
    for row in _common_bench("ShardChain/.*workers:(2|8)/", 0.3, ["taskset", "-c", str(machine.cores()[0])]):
        if match := re.match(r"ShardChain/(\d+)/workers:(\d+)/", row["name"]):
            count, workers = int(match[1]), int(match[2])
            times[workers] = max(times.get(workers, (0, 0.0)), (count, 1e-9 * float(row["real_time"])))
    few, many = (times[workers][1] / (4 * times[workers][0]) for workers in (2, 8))
    added = max(0.0, (many - few) / (8 - 2))
    return {"sum_byte": added, "apply_byte": max(0.0, few - 2 * added)}


def measure_jitter() -> float:
    """How much computing alone scatters, relatively, on one core of this machine."""
    text = programs.run(["mpirun", "-np", "1", "--bind-to", "core", programs.binary("bench/ring_bench"),
                         "--syncs=library", "--bytes=4096", "--format=json", f"--steps_max={JITTER_STEPS}",
                         f"--compute_us={JITTER_COMPUTE_US}"], MPI_ENVIRONMENT)
    row, = alone.rows(text)
    median = row["latency_us"] + JITTER_COMPUTE_US
    return max(0.0, (row["p95_us"] - median) / median / NORMAL_95)
