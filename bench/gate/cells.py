"""What the gate measures: programs with flags, and the names of the rows that they print.

Words. A *run* is one start of a program, which prints a row for each way of exchanging and each size. A *cell* is one
row's place in the comparison: (kind, way, ranks, bytes). A *kind* is a group of cells that share code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

PROGRAMS = ("ring_bench", "star_bench", "sum_bench")
RANKS = (2, 4)
RANKS_MANY = 8  # more than cores: compared by processor time and messages
SIZES = (4096, 262144, 4194304)
SIZES_MANY = (262144, 4194304)
SIZE_OF_MEMORY = 16777216  # large enough to stand out from the libraries of a process
BUCKETS = "--bucket_bytes=1048576"
STEPS = {2: 100, 4: 60, 8: 30}  # by ranks: so that the whole gate takes less than 20 minutes
STEPS_BYTES = f"--steps_bytes={256 << 20}"


class Cell(NamedTuple):
    kind: str
    way: str
    ranks: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Run:
    program: str
    ranks: int
    flags: tuple[str, ...]
    names: dict[str, tuple[str, str]]  # of a row by its `sync`: kind and way

    def argv(self, folder: str, cores: int) -> list[str]:
        program = f"{folder}/{self.program}"
        if self.program != "ring_bench":
            return [program, *self.flags]
        binding = "core" if self.ranks <= cores else "none"
        return ["mpirun", "-np", str(self.ranks), "--bind-to", binding, program, *self.flags]


_RING_BENCH = {"ring": ("ring", "MPI"), "ring-tcp": ("ring", "TCP"), "mpi": ("control", "MPI_Allreduce"),
               "star-mpi": ("star among ranks", "MPI"), "star-tcp": ("star among ranks", "TCP"),
               "star-mpi-shm": ("star in memory", "MPI"), "star-tcp-shm": ("star in memory", "TCP")}


def _steps(ranks: int) -> str:
    return f"--steps_max={STEPS[ranks]}"


def _of_ring_bench(ranks: int, sizes: str, syncs: tuple[str, ...], more: tuple[str, ...], suffix: str) -> Run:
    names = {sync: (kind, way + suffix) for sync, (kind, way) in _RING_BENCH.items() if sync in syncs}
    return Run("ring_bench", ranks,
               ("--format=json", _steps(ranks), BUCKETS, sizes, "--syncs=" + ",".join(syncs), *more), names)


def _ring_benches(ranks: int, sizes: str) -> Iterator[Run]:
    yield _of_ring_bench(ranks, sizes, tuple(_RING_BENCH), (), "")
    yield _of_ring_bench(ranks, sizes, ("star-mpi", "star-tcp", "star-tcp-shm"), ("--sum_order=tree",), ", tree")
    # Twelve leaves give each of 2 and of 4 ranks a share of two nodes.
    yield _of_ring_bench(ranks, sizes, ("star-tcp", "star-tcp-shm"), ("--micro_batches=12",), ", 12 micro-batches")


def _star_benches(ranks: int, sizes: str) -> Iterator[Run]:
    tcp, sockets = "--transport=tcp", "--shared_memory=false"
    for way, flags in (("gRPC, shared memory", ()), ("gRPC", (sockets,)), ("TCP, shared memory", (tcp,)),
                       ("TCP", (tcp, sockets)), ("TCP, tree", (tcp, sockets, "--sum_order=tree"))):
        names = {sync: ("star with servers", way) for sync in ("star", "star-servers-tcp")}
        yield Run("star_bench", ranks, ("--format=json", _steps(ranks), STEPS_BYTES, sizes, f"--workers={ranks}",
                                        "--servers=2", *flags), names)


def _sum_benches(ranks: int, sizes: str) -> Iterator[Run]:
    for way, flags in (("star", ()), ("star of servers", ("--servers=2",)), ("ring", ("--topology=ring",)),
                       ("star, bfloat16", ("--element_type=bfloat16",))):
        places = (("memory", ()), ("sockets", ("--shared_memory=false",)))
        for place, more in places if "bfloat16" not in way else places[1:]:
            names = {sync: ("libstarring", f"{way}, {place}") for sync in ("sum-star", "sum-star-servers", "sum-ring")}
            yield Run("sum_bench", ranks, (_steps(ranks), STEPS_BYTES, sizes, f"--ranks={ranks}", *flags, *more), names)


def runs(ranks: int, sizes: tuple[int, ...]) -> list[Run]:
    text = "--bytes=" + ",".join(map(str, sizes))
    return [*_ring_benches(ranks, text), *_star_benches(ranks, text), *_sum_benches(ranks, text)]


def runs_of_memory() -> list[Run]:
    """Each way in processes of its own: the largest memory of a process is that of all it has done."""
    alone = []
    for run in runs(2, (SIZE_OF_MEMORY,)):
        if run.program != "ring_bench":
            alone.append(run)
            continue
        for sync, name in run.names.items():
            flags = tuple("--syncs=" + sync if flag.startswith("--syncs=") else flag for flag in run.flags)
            alone.append(dataclasses.replace(run, flags=flags, names={sync: name}))
    return alone
