"""Parts of a step measured alone: the exchange, and the loading of data."""

import contextlib
import json
import os
import subprocess

import machine
import programs

BYTES = (4096, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
PADDING_SECONDS = 900


def rows(text):
    """The JSON objects among the lines of `text`."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def _exchange(row, servers, section):
    return {"sync": row["sync"], "workers": row["workers"], "servers": servers, "bytes": row["bytes"],
            "latency_us": row["latency_us"], "bus_gb_per_s": row["bus_gb_per_s"], "section": section}


def exchanges(syncs, workers, servers, torch, sizes=BYTES, lab=None):
    """Entries of `exchanges` for so many workers; in a lab, one worker on each host."""
    section = "machine" if lab is None else f"netlab:{lab.hosts},{lab.rate}"
    size_flag = "--bytes=" + ",".join(map(str, sizes))
    found = []
    if "star" in syncs:
        bench = [programs.binary("bench/star_bench"), f"--workers={workers}", "--format=json"]
        if lab is None:
            text = programs.run([*bench, f"--servers={servers}", size_flag], seconds_max=PADDING_SECONDS)
        else:
            text = "".join(_star_between_hosts(lab, bench, workers, size) for size in sizes)
        found += [_exchange(row, servers, section) for row in rows(text)]
    if {"ring", "mpi"} & set(syncs):
        bench = [programs.binary("bench/ring_bench"), "--format=json", size_flag]
        argv = lab.mpirun(bench, workers) if lab else ["mpirun", "-np", str(workers), *_binding(workers), *bench]
        environment = lab.environment() if lab else {"OMPI_ALLOW_RUN_AS_ROOT": "1",
                                                     "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                                                     "OMPI_MCA_rmaps_base_oversubscribe": "1"}
        found += [_exchange(row, 0, section) for row in rows(programs.run(argv, environment, PADDING_SECONDS))
                  if row["sync"] in syncs]
    if torch is not None and any(sync.startswith("ddp") for sync in syncs):
        argv = [torch.python, programs.peer("exchange"), f"--world_size={workers}", size_flag]
        if lab is None:
            text = programs.run(argv, programs.ONE_THREAD, PADDING_SECONDS)
        else:
            places = {**programs.ONE_THREAD, **lab.torch_environment(workers)}
            text = _run_on_hosts(lab, [(argv, {**places, "RANK": str(rank)}) for rank in range(workers)])
        found += [_exchange(row, 0, section) for row in rows(text)]
    return found


def _run_on_hosts(lab, commands):
    """What the first of `commands` printed. Each is (argv, environment) and runs on the host of its place."""
    with contextlib.ExitStack() as others:
        for host, (argv, environment) in reversed(list(enumerate(commands))):
            argv = lab.command(host % lab.hosts, argv)
            if host == 0:
                return programs.run(argv, environment, PADDING_SECONDS)
            process = subprocess.Popen(argv, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL)
            others.callback(process.wait, timeout=10)
            others.callback(process.terminate)
    raise ValueError("no command was given")


def _star_between_hosts(lab, bench, workers, size):
    """A server and a worker on each host; servers serve one job, so one size."""
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


def _binding(workers):
    return ["--bind-to", "core"] if workers <= len(machine.cores()) else ["--bind-to", "none"]


_LOADERS = {"BM_LoaderMnist": ("mnist", "none"), "BM_LoaderCifarCropFlip": ("cifar10", "crop_flip")}


def loaders(torch):
    """Entries of `loaders`: images of the sizes of MNIST and CIFAR-10, batches of 64."""
    core = ["taskset", "-c", str(machine.cores()[0])]
    text = programs.run([*core, programs.binary("bench/loader_bench"), "--benchmark_format=json",
                         "--benchmark_filter=BM_Loader.*threads:1/depth:0", "--benchmark_min_time=0.3"])
    found = []
    for row in json.loads(text)["benchmarks"]:
        dataset, augment = _LOADERS[row["name"].partition("/")[0]]
        found.append({"name": "starring", "dataset": dataset, "augment": augment, "threads": 1,
                      "samples_per_second": row["items_per_second"]})
    if torch is None:
        return found
    for workers in (0, 2):
        text = programs.run([torch.python, programs.peer("dataloader"), f"--workers={workers}", "--format=json"],
                            programs.ONE_THREAD)
        found += rows(text)
    return found
