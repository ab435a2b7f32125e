"""Parts of a step measured alone: the exchange, and the loading of data."""

import json

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
    """Entries of `exchanges` for so many workers; in a lab, one worker on each host, without the star."""
    section = "machine" if lab is None else f"netlab:{lab.hosts},{lab.rate}"
    size_flag = "--bytes=" + ",".join(map(str, sizes))
    found = []
    if "star" in syncs and lab is None:
        text = programs.run([programs.binary("bench/star_bench"), f"--workers={workers}", f"--servers={servers}",
                             "--format=json", size_flag], seconds_max=PADDING_SECONDS)
        found += [_exchange(row, servers, section) for row in rows(text)]
    if {"ring", "mpi"} & set(syncs):
        bench = [programs.binary("bench/ring_bench"), "--format=json", size_flag]
        argv = lab.mpirun(bench, workers) if lab else ["mpirun", "-np", str(workers), *_binding(workers), *bench]
        environment = lab.environment() if lab else {"OMPI_ALLOW_RUN_AS_ROOT": "1",
                                                     "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                                                     "OMPI_MCA_rmaps_base_oversubscribe": "1"}
        found += [_exchange(row, 0, section) for row in rows(programs.run(argv, environment, PADDING_SECONDS))
                  if row["sync"] in syncs]
    if torch is not None and lab is None and any(sync.startswith("ddp") for sync in syncs):
        text = programs.run([torch.python, programs.peer("exchange"), f"--world_size={workers}", size_flag],
                            programs.ONE_THREAD, PADDING_SECONDS)
        found += [_exchange(row, 0, section) for row in rows(text)]
    return found


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
