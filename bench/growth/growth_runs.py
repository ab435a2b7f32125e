"""Runs ring_bench and star_bench with many numbers of workers, which compute nothing or a given time, in turns."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence

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
NORMAL_95 = 1.645  # standard deviations from the median to the 95th percentile
# MPI takes shared memory within a host, and between hosts the fastest network, unless it is told not to. Only its part
# ob1 obeys the choice of a btl.
MPI_BY_SOCKETS = ("--mca", "pml", "ob1", "--mca", "btl", "tcp,self")


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

    def measure(self) -> list[Measurement]:
        """ProgramError if its program fails."""
        rows = alone.rows(programs.run(self.command(), programs.MPI_ENVIRONMENT, BENCH_SECONDS_MAX))
        # latency_us is the step's time beyond computing.
        return [Measurement(row["sync"], self.medium, self.workers, self.servers, int(row["bytes"]), self.bucket_bytes,
                            self.compute_s, 1e-6 * float(row["latency_us"]) + self.compute_s)
                for row in rows if row["sync"] in self.syncs]

    @property
    def text(self) -> str:
        return (f"{' '.join(self.syncs)} by {self.medium}, {self.workers} workers, {self.servers} servers, "
                f"{len(self.sizes)} sizes to {max(self.sizes) >> 10} KiB, buckets of {self.bucket_bytes >> 10} KiB, "
                f"{1e3 * self.compute_s:g} ms of computing")

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
        by_sockets = MPI_BY_SOCKETS if self.medium == SOCKETS else ()
        return ["mpirun", "-np", str(self.workers), *alone.binding(self.workers), *by_sockets,
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


def medians(rounds: Iterable[Measurement]) -> list[Measurement]:
    """One measurement for each thing that was measured: the median of its rounds."""
    found: dict[Measurement, list[float]] = {}
    for one in rounds:
        found.setdefault(dataclasses.replace(one, seconds=0.0), []).append(one.seconds)
    return [dataclasses.replace(key, seconds=statistics.median(seconds)) for key, seconds in found.items()
            if min(seconds) > 0]


def rounds(runs: Sequence[Run], repeats: int) -> Iterator[tuple[list[Measurement], list[str]]]:
    """After each round over all runs, every other one backwards, the medians so far, and what failed."""
    found: list[Measurement] = []  # of all rounds
    failed: dict[Run, str] = {}
    for repeat in range(repeats):
        began = time.monotonic()
        for place, run in enumerate(runs[::-1 if repeat % 2 else 1]):
            if run not in failed:
                print(f"round {repeat + 1} of {repeats}, {place + 1} of {len(runs)}: {run.text}", flush=True)
                try:
                    found += run.measure()
                except programs.ProgramError as error:
                    failed[run] = f"{run.text}: {str(error).splitlines()[0]}"
        print(f"this round took {time.monotonic() - began:.0f} s; rounds that are left: {repeats - repeat - 1}",
              flush=True)
        yield medians(found), list(failed.values())


def measure_kernels() -> dict[str, float]:
    """sum_byte and apply_byte from a server's whole step, in nanoseconds, with two numbers of workers."""
    text = programs.run(["taskset", "-c", str(machine.cores()[0]), programs.binary("bench/common_bench"),
                         "--benchmark_format=json", "--benchmark_filter=ShardChain/.*workers:(2|8)/",
                         "--benchmark_min_time=0.3"])
    seconds = {tuple(map(int, re.findall(r"\d+", row["name"])[:2])): 1e-9 * float(row["real_time"])
               for row in json.loads(text)["benchmarks"]}  # by elements and workers
    most, _ = max(seconds)
    few, many = (seconds[most, workers] / (4 * most) for workers in (2, 8))
    added = max(0.0, (many - few) / (8 - 2))
    return {"sum_byte": added, "apply_byte": max(0.0, few - 2 * added)}


def measure_jitter() -> float:
    """How much computing alone scatters, relatively, on one core of this machine."""
    text = programs.run(["mpirun", "-np", "1", "--bind-to", "core", programs.binary("bench/ring_bench"),
                         "--syncs=library", "--bytes=4096", "--format=json", f"--steps_max={JITTER_STEPS}",
                         f"--compute_us={JITTER_COMPUTE_US}"], programs.MPI_ENVIRONMENT)
    row, = alone.rows(text)
    median = row["latency_us"] + JITTER_COMPUTE_US
    return max(0.0, (row["p95_us"] - median) / median / NORMAL_95)
