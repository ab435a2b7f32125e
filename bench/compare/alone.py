"""Measures parts of a step alone: the exchange, and the loading of data."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any, TYPE_CHECKING, cast

import machine
import programs
import results as schema

if TYPE_CHECKING:  # bench/netlab is imported only for a comparison between hosts
    from netlab import Netlab

BYTES = (4096, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
BENCH_SECONDS_MAX = 900


def rows(text: str) -> list[dict[str, Any]]:
    """The JSON objects among the lines of `text`."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def _exchange(row: dict[str, Any], servers: int, section: str) -> schema.ExchangeTime:
    return {"sync": row["sync"], "workers": row["workers"], "servers": servers, "bytes": row["bytes"],
            "latency_us": row["latency_us"], "bus_gb_per_s": row["bus_gb_per_s"], "section": section}


def exchanges(syncs: list[str], workers: int, servers: int, torch: programs.Torch | None, sizes: Sequence[int] = BYTES,
              lab: Netlab | None = None) -> list[schema.ExchangeTime]:
    """Entries of `exchanges` for this number of workers; in a lab, one worker on each host."""
    section = "machine" if lab is None else f"netlab:{lab.hosts},{lab.rate}"
    size_flag = "--bytes=" + ",".join(map(str, sizes))
    found = []
    if "star" in syncs:
        bench = [programs.binary("bench/star_bench"), f"--workers={workers}", "--format=json"]
        if lab is None:
            text = programs.run([*bench, f"--servers={servers}", size_flag], seconds_max=BENCH_SECONDS_MAX)
        else:
            text = "".join(_star_between_hosts(lab, bench, workers, size) for size in sizes)
        found += [_exchange(row, servers, section) for row in rows(text)]
    if {"ring", "mpi"} & set(syncs):
        bench = [programs.binary("bench/ring_bench"), "--format=json", size_flag]
        argv = lab.mpirun(bench, workers) if lab else ["mpirun", "-np", str(workers), *_binding(workers), *bench]
        environment = lab.environment() if lab else {"OMPI_ALLOW_RUN_AS_ROOT": "1",
                                                     "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                                                     "OMPI_MCA_rmaps_base_oversubscribe": "1"}
        found += [_exchange(row, 0, section) for row in rows(programs.run(argv, environment, BENCH_SECONDS_MAX))
                  if row["sync"] in syncs]
    if torch is not None and any(sync.startswith("ddp") for sync in syncs):
        argv = [torch.python, programs.peer("exchange"), f"--world_size={workers}", size_flag]
        if lab is None:
            text = programs.run(argv, programs.ONE_THREAD, BENCH_SECONDS_MAX)
        else:
            places = {**programs.ONE_THREAD, **lab.torch_environment(workers)}
            text = _run_on_hosts(lab, [(argv, {**places, "RANK": str(rank)}) for rank in range(workers)])
        found += [_exchange(row, 0, section) for row in rows(text)]
    return found


def _run_on_hosts(lab: Netlab, commands: list[tuple[list[str], dict[str, str]]]) -> str:
    """Runs each of `commands`, an (argv, environment), on the host of its index. Returns the first one's output."""
    with contextlib.ExitStack() as others:
        for host, (argv, environment) in reversed(list(enumerate(commands))):
            argv = lab.command(host % lab.hosts, argv)
            if host == 0:
                return programs.run(argv, environment, BENCH_SECONDS_MAX)
            process = subprocess.Popen(argv, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL)
            others.callback(process.wait, timeout=10)
            others.callback(process.terminate)
    raise ValueError("no command was given")


def _star_between_hosts(lab: Netlab, bench: list[str], workers: int, size: int) -> str:
    """Runs a server and a worker on each host, for one size: a server serves one job and then ends."""
    secret = lab.make_secret(programs.binary("deploy/launch"))
    servers, _ = lab.star_commands([programs.binary("server/server")], [], secret, workers, workers)
    addresses = ",".join(word.partition("=")[2] for argv in servers for word in argv if word.startswith("--listen="))
    argv = [*bench, "--addresses=" + addresses, f"--bytes={size}", "--shared_memory=false", "--pin=false",
            "--job_secret=" + secret]
    with contextlib.ExitStack() as running:
        for server in servers:
            process = subprocess.Popen(server, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
            running.callback(process.wait, timeout=10)
            running.callback(process.kill)
        return _run_on_hosts(lab, [([*argv, f"--rank={rank}"], {}) for rank in range(workers)])
    raise AssertionError("an ExitStack suppresses no exception here")


def _binding(workers: int) -> list[str]:
    return ["--bind-to", "core"] if workers <= len(machine.cores()) else ["--bind-to", "none"]


_LOADERS = {"BM_LoaderMnist": ("mnist", "none"), "BM_LoaderCifarCropFlip": ("cifar10", "crop_flip")}


def loaders(torch: programs.Torch | None) -> list[schema.LoaderRate]:
    """Entries of `loaders`, for batches of 64 images of the sizes of MNIST and CIFAR-10."""
    core = ["taskset", "-c", str(machine.cores()[0])]
    text = programs.run([*core, programs.binary("bench/loader_bench"), "--benchmark_format=json",
                         "--benchmark_filter=BM_Loader.*threads:1/depth:0", "--benchmark_min_time=0.3"])
    found: list[schema.LoaderRate] = []
    for row in json.loads(text)["benchmarks"]:
        dataset, augment = _LOADERS[row["name"].partition("/")[0]]
        found.append({"name": "starring", "dataset": dataset, "augment": augment, "threads": 1,
                      "samples_per_second": row["items_per_second"]})
    if torch is None:
        return found
    for workers in (0, 2):
        text = programs.run([torch.python, programs.peer("dataloader"), f"--workers={workers}", "--format=json"],
                            programs.ONE_THREAD)
        found += cast(list[schema.LoaderRate], rows(text))
    return found
