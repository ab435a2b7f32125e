"""Runs ring_bench and star_bench with many numbers of workers, which compute nothing or a given time, in turns."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import alone
import machine
import programs
import sync_cells as cells
from cost_book import MEDIA, MEMORY, SOCKETS
from cost_fit import FIT_BYTES, TEST_BYTES, Measurement
from workload import BUCKET_BYTES

# These numbers bound the time of all runs: three rounds shall end within about an hour on two cores.
WORKERS = (1, 2, 3, 4, 8, 16, 32, 64)
QUICK_WORKERS = (1, 2, 4, 8)  # of --quick, whose one round shall end within 5 minutes on two cores
QUICK_STEPS_SHARE = 1 / 4  # of the steps, with every second size
# All processes' vectors together; more would measure this machine's memory, and take minutes a step.
BYTES_OF_ALL_MAX = 64 << 20
# Many steps, because a few show only one of the ways in which processes take turns on few cores.
STEPS_MAX, STEPS_MIN = 1000, 10
STEP_MESSAGES = 16_000  # of all steps of a size, counted as workers times those whom each talks to
STEPS_BYTES = 256 << 20  # of a size, as ring_bench has it
COMPUTING_S_MAX = 1.0  # of all steps of a size
SERVERS_MAX = 4
LARGE_BYTES = 16 << 20  # a step of more takes up to a second, and 64 such vectors do not fit into memory
LARGE_STEPS = 8
BENCH_SECONDS_MAX = 900
COMPUTE_S = (0.002, 0.01)
COMPUTE_BYTES = (262144, 1048576, 8388608)
COMPUTE_BUCKET_BYTES = 262144
# Many messages of one step, to tell a message's cost from that of its bytes; of a size that the fit sees.
MESSAGES = (16 << 20, 128 << 10)  # bytes, bytes of a bucket
# These of --workers send many messages, and vectors up to 256 MiB. Those that fit on the cores compute, too.
MORE_WORKERS = (2, 4)
JITTER_COMPUTE_US, JITTER_STEPS = 10_000, 300
SCATTER_MAX = 0.05  # of the rounds of a size; runs with more are measured again
MORE_ROUNDS = 3
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
    quick: bool = False

    @property
    def text(self) -> str:
        servers = f", {self.servers} servers" if self.servers else ""
        computing = f", {1e3 * self.compute_s:g} ms of computing" if self.compute_s else ""
        return (f"{' '.join(self.syncs)} by {self.medium}, {self.workers} workers{servers}, buckets of "
                f"{self.bucket_bytes >> 10} KiB{computing}{', large' * (min(self.sizes) > LARGE_BYTES)}")

    def command(self) -> list[str]:
        steps = min(STEPS_MAX, STEP_MESSAGES // (self.workers * (self.servers or self.workers)))
        if self.compute_s:
            steps = min(steps, round(COMPUTING_S_MAX / self.compute_s))
        steps = LARGE_STEPS if min(self.sizes) > LARGE_BYTES else max(STEPS_MIN, steps)
        steps = math.ceil(steps * (QUICK_STEPS_SHARE if self.quick else 1))
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


def plan_runs(syncs: Sequence[str], workers: Sequence[int], cores: int, quick: bool = False) -> list[Run]:
    """All commands of one round."""
    runs = []
    every = sorted((*FIT_BYTES[::2], *TEST_BYTES[::2]) if quick else (*FIT_BYTES, *TEST_BYTES))

    def sizes(count: int) -> tuple[int, ...]:
        return tuple(size for size in every if size <= min(LARGE_BYTES, BYTES_OF_ALL_MAX // count))

    large = tuple(size for size in every if size > LARGE_BYTES)
    for medium in MEDIA:
        # Between ranks no message over TCP goes through memory.
        found = [cell for cell in cells.CELLS
                 if cell.sync in syncs and (cell.transport != "tcp" or cell.has_servers or medium == SOCKETS)]
        ranks = tuple(cell.sync for cell in found if not cell.has_servers)
        stars = [(cell.sync,) for cell in found if cell.has_servers]
        for count in workers:
            if count > 1 and ranks:
                runs.append(Run(ranks, medium, count, 0, sizes(count)))
            runs += [Run(star, medium, count, servers, sizes(count))
                     for star in stars for servers in sorted({1, min(count, SERVERS_MAX)})]
        for count in sorted({*MORE_WORKERS} & {*workers}):
            parts = [(ranks, 0)] * bool(ranks) + [(star, servers) for star in stars
                                                  for servers in ((count,) if quick else (1, count))]
            for part, servers in parts:
                runs += [Run(part, medium, count, servers, MESSAGES[:1], MESSAGES[1]),
                         Run(part, medium, count, servers, large)]
                if count <= max(2, cores):
                    runs += [Run(part, medium, count, servers, COMPUTE_BYTES, COMPUTE_BUCKET_BYTES, computing)
                             for computing in COMPUTE_S]
    return [dataclasses.replace(run, quick=quick) for run in runs]


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


def rounds(runs: Sequence[Run], repeats: int, say: Callable[[str], None], more_rounds: int = MORE_ROUNDS
           ) -> Iterator[tuple[list[Measurement], list[str]]]:
    """After each round over all runs, every other one backwards, the medians so far, and what failed.

    After `repeats` rounds come at most `more_rounds` over those runs alone whose rounds differ: many processes on few
    cores share them in more than one way, a disturbance of one round would be half of a median of two, and the cores of
    a virtual machine move, which makes an exchange in memory take twice as long.
    """
    found: dict[Run, list[Measurement]] = {run: [] for run in runs}  # of all rounds
    failed: dict[Run, str] = {}
    for repeat in range(repeats + more_rounds):
        chosen = [run for run in runs if run not in failed
                  and (repeat < repeats or any(one.scatter > SCATTER_MAX for one in medians(found[run])))]
        if not chosen:
            break
        began = time.monotonic()
        name = f"round {repeat + 1} of {repeats}" if repeat < repeats else "again, as rounds differ"
        for place, run in enumerate(chosen[::-1 if repeat % 2 else 1]):
            say(f"{name}, {place + 1} of {len(chosen)}: {run.text}")
            try:
                found[run] += rows_of(run, programs.run(run.command(), MPI_ENVIRONMENT, BENCH_SECONDS_MAX))
            except programs.ProgramError as error:
                failed[run] = f"{run.text}: {str(error).splitlines()[0]}"
        say(f"this round took {time.monotonic() - began:.0f} s; rounds that are left: at most "
            f"{repeats + more_rounds - repeat - 1}")
        yield medians(one for ones in found.values() for one in ones), list(failed.values())


def measure_kernels() -> dict[str, float]:
    """sum_byte and apply_byte from a server's whole step, in nanoseconds, with two numbers of workers."""
    times: dict[int, tuple[int, float]] = {}  # by workers: the largest count of elements and its seconds
    text = programs.run(["taskset", "-c", str(machine.cores()[0]), programs.binary("bench/common_bench"),
                         "--benchmark_format=json", "--benchmark_filter=ShardChain/.*workers:(2|8)/",
                         "--benchmark_min_time=0.3"])
    for row in json.loads(text)["benchmarks"]:
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
