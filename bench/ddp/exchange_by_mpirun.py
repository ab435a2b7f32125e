#!/usr/bin/env python3
"""Measures the allreduce of mpi4py or Horovod alone, to compare with bench/ring_bench.cc (whose exchanges also apply an
optimizer) and with Gloo's in exchange.py.

    mpirun -np 2 --bind-to core /usr/bin/python3 bench/ddp/exchange_by_mpirun.py --library=mpi4py --bytes=4096,1048576

Prints a JSON object for each size. Bus bandwidth is 2 (N - 1) / N * bytes / time of the slowest rank.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

DEFAULT_BYTES = "4096,65536,262144,1048576,4194304,16777216,67108864"


class Library(NamedTuple):
    """What a library offers to one rank."""
    rank: int
    workers: int
    make: Callable[[int], Any]  # a vector of so many bytes
    allreduce: Callable[[Any], None]  # sums it in place
    barrier: Callable[[], None]
    slowest: Callable[[float], float]  # of the ranks' seconds


def open_mpi4py() -> Library:
    import numpy
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    return Library(world.rank, world.size, lambda size: numpy.full(size // 4, 1e-3, numpy.float32),
                   lambda values: world.Allreduce(MPI.IN_PLACE, values), world.Barrier,
                   lambda seconds: world.allreduce(seconds, MPI.MAX))


def open_horovod() -> Library:
    import horovod.torch as horovod
    import torch
    horovod.init()
    torch.set_num_threads(1)

    def slowest(seconds: float) -> float:
        return float(horovod.allgather(torch.tensor([seconds], dtype=torch.float64), name="seconds").max())

    return Library(horovod.rank(), horovod.size(), lambda size: torch.full((size // 4,), 1e-3),
                   # A name for each size, as a model has one for each tensor: Horovod remembers what it has agreed on.
                   lambda values: horovod.allreduce_(values, op=horovod.Sum, name=f"values{len(values)}"),
                   # A sum of nothing is a barrier in every version of Horovod.
                   lambda: horovod.allreduce_(torch.zeros(1), op=horovod.Sum, name="barrier"), slowest)


LIBRARIES = {"mpi4py": open_mpi4py, "horovod": open_horovod}


def measure(library: Library, size: int) -> float:
    """The median in seconds, without a fifth of the repetitions at the start, which is warm-up. As often as
    exchange.py."""
    values = library.make(size)
    repetitions = max(10, min(1000, (128 << 20) // size))
    times = []
    for repetition in range(repetitions + repetitions // 5):
        library.barrier()
        start = time.perf_counter()
        library.allreduce(values)
        seconds = library.slowest(time.perf_counter() - start)
        if repetition >= repetitions // 5:
            times.append(seconds)
    return sorted(times)[len(times) // 2]


def row(name: str, workers: int, size: int, seconds: float) -> dict[str, Any]:
    """An object of the output."""
    return {"sync": name, "workers": workers, "bytes": size, "latency_us": 1e6 * seconds,
            "bus_gb_per_s": 1e-9 * 2 * (workers - 1) / workers * size / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--library", required=True, choices=sorted(LIBRARIES))
    parser.add_argument("--bytes", default=DEFAULT_BYTES)
    flags = parser.parse_args()
    library = LIBRARIES[flags.library]()
    for size in map(int, flags.bytes.split(",")):
        seconds = measure(library, size)
        if library.rank == 0:
            print(json.dumps(row(flags.library, library.workers, size, seconds)), flush=True)


if __name__ == "__main__":
    main()
