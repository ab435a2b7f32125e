"""Measures parts of a step alone: the exchange, and the loading of data."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TYPE_CHECKING, cast

import jobs
import machine
import programs
import results as schema
import sync_cells as cells

if TYPE_CHECKING:  # bench/netlab is imported only for a comparison between hosts
    from netlab import Netlab

BYTES = (4096, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
BENCH_SECONDS_MAX = 900
OWN_HOSTS = "star-own-hosts"  # in place of `star`, where its servers have hosts of their own
# Libraries whose allreduce Python calls under mpirun: the modules that are needed, and how to get them.
LIBRARIES = {
    "mpi4py": (("numpy", "mpi4py"), "apt-get install python3-mpi4py"),
    "horovod": (("horovod.torch",), "bench/results/2026-11-22-building-horovod.md has the commands"),
}


class NotHereError(programs.ProgramError):
    """What is to be measured is not on this machine, which is no failure. The message says how to get it."""


def rows(text: str) -> list[dict[str, Any]]:
    """The JSON objects among the lines of `text`."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def _exchange(row: dict[str, Any], servers: int, section: str) -> schema.ExchangeTime:
    return {"sync": row["sync"], "workers": row["workers"], "servers": servers, "bytes": row["bytes"],
            "latency_us": row["latency_us"], "bus_gb_per_s": row["bus_gb_per_s"], "section": section}


class _Alone:
    """Measures the exchange alone in one section: on this machine, or with one worker on each host of a lab."""

    def __init__(self, workers: int, servers: int, torch: programs.Torch | None, sizes: Sequence[int],
                 lab: Netlab | None, steps_max: int | None = None) -> None:
        self.workers, self.servers, self.torch, self.sizes, self.lab = workers, servers, torch, sizes, lab
        self.steps = [] if steps_max is None else [f"--steps_max={steps_max}"]
        self.size_flag = "--bytes=" + ",".join(map(str, sizes))

    def star(self, sync: str) -> list[dict[str, Any]]:
        transport = cells.BY_SYNC[sync].transport
        bench = [programs.binary("bench/star_bench"), f"--workers={self.workers}", "--format=json", *self.steps,
                 "--transport=" + transport]
        servers = self.servers or self.workers
        if self.lab is None:
            found = rows(programs.run([*bench, f"--servers={servers}", self.size_flag], seconds_max=BENCH_SECONDS_MAX))
        else:
            found = self._star_between_hosts(self.lab, bench, servers, own_hosts=False, transport=transport)
        found = [{**row, "servers": servers} for row in found]
        # Over TCP only training is measured with servers on hosts of their own: the report has no name for it here.
        if self.lab is not None and self.lab.server_hosts and transport == "grpc":
            servers = self.servers or self.lab.server_hosts
            found += [{**row, "sync": OWN_HOSTS, "servers": servers}
                      for row in self._star_between_hosts(self.lab, bench, servers, own_hosts=True,
                                                          transport=transport)]
        return found

    def _star_between_hosts(self, lab: Netlab, bench: list[str], servers: int, own_hosts: bool,
                            transport: str) -> list[dict[str, Any]]:
        return rows("".join(_star_between_hosts(lab, bench, self.workers, size, servers, own_hosts, transport)
                            for size in self.sizes))

    def _mpirun(self, argv: list[str], more: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        lab = self.lab
        argv = lab.mpirun(argv, self.workers) if lab else ["mpirun", "-np", str(self.workers), *binding(self.workers),
                                                           *argv]
        environment = lab.environment() if lab else programs.MPI_ENVIRONMENT
        return rows(programs.run(argv, {**environment, **(more or {})}, BENCH_SECONDS_MAX))

    def between_ranks(self, syncs: Sequence[str]) -> list[dict[str, Any]]:
        """Those whose owners are the ranks, and mpi: one program measures them in turns, over TCP and in shared memory
        only if asked to."""
        bench = [programs.binary("bench/ring_bench"), "--format=json", self.size_flag, *self.steps]
        if set(syncs) & {*cells.BY_RENDEZVOUS, *cells.SYNCS_IN_MEMORY}:
            host = self.lab.addresses[0] if self.lab else "127.0.0.1"
            bench += ["--syncs=" + ",".join(syncs), f"--rendezvous={host}:0"]
        return self._mpirun(bench)

    def of_library(self, name: str) -> list[dict[str, Any]]:
        modules, how_to_get = LIBRARIES[name]
        python = programs.find_python(modules)
        if python is None:
            raise NotHereError(f"no python3 here has {name}: {how_to_get}")
        return self._mpirun([python, programs.peer("exchange_by_mpirun"), "--library=" + name, self.size_flag],
                            programs.ONE_THREAD)

    def of_torch(self, syncs: Sequence[str]) -> list[dict[str, Any]]:
        """Gloo's allreduce, and those of starring.torch: one program measures them in turns."""
        if self.torch is None:
            raise NotHereError(f"no python3 here has PyTorch: {programs.HOW_TO_GET_TORCH}")
        argv = [self.torch.python, programs.peer("exchange"), f"--world_size={self.workers}", self.size_flag,
                "--syncs=" + ",".join(syncs)]
        library = programs.starring_library() if set(syncs) & set(jobs.HOOKS) else {}
        if self.lab is None:
            return rows(programs.run(argv, {**programs.ONE_THREAD, **library}, BENCH_SECONDS_MAX))
        places = {**programs.ONE_THREAD, **library, **self.lab.torch_environment(self.workers)}
        return rows(_run_on_hosts(self.lab, [(argv, {**places, "RANK": str(rank)}) for rank in range(self.workers)]))


def exchanges(syncs: Sequence[str], workers: int, servers: int, torch: programs.Torch | None,
              sizes: Sequence[int] = BYTES, lab: Netlab | None = None, steps_max: int | None = None
              ) -> tuple[list[schema.ExchangeTime], list[schema.Missing], list[programs.ProgramError]]:
    """Entries of `exchanges` and of `missing_exchanges` for this number of workers, and the failures, which are among
    the latter. `servers` of 0: as many as workers, or as the lab has hosts for them. `steps_max` limits the steps
    of ring_bench and star_bench.

    mpi brings mpi4py, MPI's allreduce as Python calls it; ddp brings Gloo's allreduce, which DDP calls, and Horovod's.
    ddp+star and ddp+ring are our allreduces as starring.torch calls them.
    """
    section = "machine" if lab is None else lab.section
    alone = _Alone(workers, servers, torch, sizes, lab, steps_max)
    of_ranks = [sync for sync in syncs
                if sync in cells.WITHOUT_SERVERS and (lab is None or sync not in cells.SYNCS_IN_MEMORY)]
    parts: list[tuple[list[str], Callable[[], list[dict[str, Any]]]]] = []
    if "star" in syncs:
        parts.append((["star"] + [OWN_HOSTS] * bool(lab and lab.server_hosts), functools.partial(alone.star, "star")))
    if "star-servers-tcp" in syncs:
        parts.append((["star-servers-tcp"], functools.partial(alone.star, "star-servers-tcp")))
    if of_ranks:
        parts.append((of_ranks, functools.partial(alone.between_ranks, of_ranks)))
    if "mpi" in syncs:
        parts.append((["mpi4py"], functools.partial(alone.of_library, "mpi4py")))
    if any(sync in jobs.PEERS for sync in syncs):
        of_torch = ["gloo", *(sync for sync in syncs if sync in jobs.HOOKS)]
        parts.append((of_torch, functools.partial(alone.of_torch, of_torch)))
        parts.append((["horovod"], functools.partial(alone.of_library, "horovod")))
    found: list[schema.ExchangeTime] = []
    missing: list[schema.Missing] = []
    failures = []
    for names, measure in parts:
        try:
            found += [_exchange(row, row.get("servers", 0), section) for row in measure() if row["sync"] in names]
        except programs.ProgramError as error:
            reason = str(error).splitlines()[0]
            missing += [{"sync": name, "workers": workers, "section": section, "reason": reason} for name in names]
            if not isinstance(error, NotHereError):
                failures.append(error)
    return found, missing, failures


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


def _star_between_hosts(lab: Netlab, bench: list[str], workers: int, size: int, servers: int, own_hosts: bool,
                        transport: str) -> str:
    """Runs the servers, and a worker on each host, for one size: a server serves one job and then ends."""
    secret = lab.make_secret(programs.binary("deploy/launch"))
    starts, _ = lab.star_commands([programs.binary("server/server")], [], secret, servers, workers, own_hosts,
                                  transport)
    if transport == "tcp":
        place = next(word for word in starts[0] if word.startswith("--rendezvous="))
    else:
        place = "--addresses=" + ",".join(
            word.partition("=")[2] for argv in starts for word in argv if word.startswith("--listen="))
    argv = [*bench, place, f"--servers={servers}", f"--bytes={size}", "--shared_memory=false", "--pin=false",
            f"--bucket_bytes={cells.bucket_bytes_between_hosts(servers)}", "--job_secret=" + secret]
    with contextlib.ExitStack() as running:
        for start in starts:
            process = subprocess.Popen(start, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
            running.callback(process.wait, timeout=10)
            running.callback(process.kill)
        return _run_on_hosts(lab, [([*argv, f"--rank={rank}"], {}) for rank in range(workers)])
    raise AssertionError("an ExitStack suppresses no exception here")


def binding(workers: int) -> list[str]:
    """The flags of mpirun that give each worker a core, as far as there are enough."""
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
