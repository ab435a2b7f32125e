#!/usr/bin/env python3
"""Measures all-reduces of Python alone, Gloo's and ours, to compare with bench/ring_bench.cc and bench/star_bench.cc.

    /usr/bin/python3 bench/ddp/exchange.py --world_size=2 --bytes=4096,1048576
    torchrun --nproc_per_node=2 bench/ddp/exchange.py --bytes=4096,1048576 --syncs=gloo,ddp+star,ddp+ring

Prints a JSON object for each size and sync. Bus bandwidth is 2 (N - 1) / N * bytes / time of the slowest rank.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from typing import Any, Union

import torch
import torch.distributed as dist

PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "worker", "python")  # starring
SYNCS = ("gloo", "ddp+star", "ddp+ring")
DEFAULT_BYTES = "4096,65536,262144,1048576,4194304,16777216,67108864"


class Gloo:
    """torch.distributed's."""

    def all_reduce(self, values: torch.Tensor) -> None:
        dist.all_reduce(values)

    def close(self) -> None:
        pass


class Starring:
    """A star or a ring of libstarring.so, as the hook of DDP calls it."""

    def __init__(self, sync: str) -> None:
        sys.path.append(PACKAGE)
        import starring.torch
        self._group = starring.torch.connect(sync=sync)
        self._step = 0

    def all_reduce(self, values: torch.Tensor) -> None:
        ticket = self._group.allreduce(self._step, 0, 0, values.data_ptr(), values.numel(), 0, 1.0)
        self._step += 1
        while not self._group.wait(ticket, 1000):
            pass

    def close(self) -> None:
        self._group.close()


def measure(exchange: Union[Gloo, Starring], size: int) -> float:
    """The median in seconds, without a fifth of the repetitions at the start, which is warm-up."""
    values = torch.full((size // 4,), 1e-3)
    repetitions = max(10, min(1000, (128 << 20) // size))
    times = []
    for repetition in range(repetitions + repetitions // 5):
        dist.barrier()
        start = time.perf_counter()
        exchange.all_reduce(values)
        slowest = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        if repetition >= repetitions // 5:
            times.append(slowest.item())
    return sorted(times)[len(times) // 2]


def pin_and_work(rank: int, *arguments: Any) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    work(rank, *arguments)


def work(rank: int, world_size: int, init_method: str, sizes: list[int], syncs: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size)
    exchanges: dict[str, Gloo | Starring] = {
        sync: Gloo() if sync == "gloo" else Starring(sync.partition("+")[2]) for sync in syncs}
    for size in sizes:
        for sync, exchange in exchanges.items():
            seconds = measure(exchange, size)
            if rank == 0:
                bus_bytes = 2 * (world_size - 1) / world_size * size
                print(json.dumps({"sync": sync, "workers": world_size, "bytes": size, "latency_us": 1e6 * seconds,
                                  "bus_gb_per_s": 1e-9 * bus_bytes / seconds}), flush=True)
    for exchange in exchanges.values():
        exchange.close()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--world_size", type=int, default=2)
    parser.add_argument("--bytes", default=DEFAULT_BYTES)
    parser.add_argument("--syncs", default="gloo", help="some of gloo, ddp+star, ddp+ring, separated by commas")
    flags = parser.parse_args()
    sizes = [int(size) for size in flags.bytes.split(",")]
    syncs = flags.syncs.split(",")
    for sync in syncs:
        if sync not in SYNCS:
            parser.error(f"{sync!r} of --syncs is not one of {', '.join(SYNCS)}")
    if "RANK" in os.environ and "MASTER_ADDR" in os.environ:  # torchrun
        work(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", sizes, syncs)
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (flags.world_size, f"file://{folder}/rendezvous", sizes, syncs)
        torch.multiprocessing.spawn(pin_and_work, arguments, flags.world_size)


if __name__ == "__main__":
    main()
