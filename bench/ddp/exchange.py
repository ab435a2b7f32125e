#!/usr/bin/env python3
"""Measures Gloo's all-reduce alone, to compare with bench/ring_bench.cc and bench/star_bench.cc.

    /usr/bin/python3 bench/ddp/exchange.py --world_size=2 --bytes=4096,1048576
    torchrun --nproc_per_node=2 bench/ddp/exchange.py --bytes=4096,1048576

Prints a JSON object for each size. Bus bandwidth is 2 (N - 1) / N * bytes / time of the slowest rank.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist

DEFAULT_BYTES = "4096,65536,262144,1048576,4194304,16777216,67108864"


def measure(size: int) -> float:
    """The median in seconds, without a fifth of the repetitions at the start, which is warm-up."""
    values = torch.full((size // 4,), 1e-3)
    repetitions = max(10, min(1000, (128 << 20) // size))
    times = []
    for repetition in range(repetitions + repetitions // 5):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(values)
        slowest = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        if repetition >= repetitions // 5:
            times.append(slowest.item())
    return sorted(times)[len(times) // 2]


def pin_and_work(rank: int, *arguments: Any) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    work(rank, *arguments)


def work(rank: int, world_size: int, init_method: str, sizes: list[int]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size)
    for size in sizes:
        seconds = measure(size)
        if rank == 0:
            bus_bytes = 2 * (world_size - 1) / world_size * size
            print(json.dumps({"sync": "gloo", "workers": world_size, "bytes": size, "latency_us": 1e6 * seconds,
                              "bus_gb_per_s": 1e-9 * bus_bytes / seconds}), flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--world_size", type=int, default=2)
    parser.add_argument("--bytes", default=DEFAULT_BYTES)
    flags = parser.parse_args()
    sizes = [int(size) for size in flags.bytes.split(",")]
    if "RANK" in os.environ and "MASTER_ADDR" in os.environ:  # torchrun
        work(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", sizes)
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (flags.world_size, f"file://{folder}/rendezvous", sizes)
        torch.multiprocessing.spawn(pin_and_work, arguments, flags.world_size)


if __name__ == "__main__":
    main()
