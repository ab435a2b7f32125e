"""Measures what a plan needs to know of the user's own model and cluster."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Sequence

import alone
import emulated_hosts
import machine
import programs
from cost_book import SOCKETS, CostBook
from growth_runs import MPI_BY_SOCKETS, MPI_ENVIRONMENT
from workload import Cluster, WorkloadError

MODEL_STEPS = 60
LINK_SECONDS_MAX = 120
PARAMETERS = r", (\d+) parameters, on "  # in the worker's first line, which --progress=none leaves out


def model_facts(model: str, dataset: str, batch: int, threads: int) -> tuple[int, float]:
    """The bytes of a model's parameters, and the seconds that one worker computes in a step, on this machine's first
    cores."""
    with tempfile.TemporaryDirectory() as folder:
        record = os.path.join(folder, "record.json")
        cores = ",".join(map(str, machine.cores()[:threads]))
        text = programs.run(["taskset", "-c", cores, programs.binary("worker/worker"), "--sync=local",
                             "--model=" + model, "--dataset=" + dataset, f"--global_batch={batch}",
                             f"--threads={threads}", f"--max_steps={MODEL_STEPS}", "--epochs=100000",
                             "--device=cpu", "--progress=plain", "--record=" + record])
        with open(record, encoding="utf-8") as file:
            spent = json.load(file)["breakdown_ms"]
    found = re.search(PARAMETERS, text)
    if found is None:
        raise WorkloadError(f"the worker does not say how many parameters {model} has: give --bytes and --compute_ms")
    return 4 * int(found[1]), 1e-3 * (spent["forward"] + spent["backward"] + spent["data_wait"] + spent["other"])


def link(hosts: Sequence[str], book: CostBook) -> Cluster:
    """The first two hosts with their link, by two ranks that mpirun starts there, and by TCP, which all cells without
    MPI use. The programs must be at the same path on both."""
    sizes = f"{emulated_hosts.SMALL},{emulated_hosts.LARGE}"
    text = programs.run(["mpirun", "-np", "2", "--host", ",".join(f"{host}:1" for host in hosts[:2]), "--map-by",
                         "node", *MPI_BY_SOCKETS, programs.binary("bench/ring_bench"), "--format=json", "--syncs=ring",
                         "--bytes=" + sizes, "--steps_max=100"], MPI_ENVIRONMENT, LINK_SECONDS_MAX)
    seconds = {int(row["bytes"]): 1e-6 * float(row["latency_us"]) for row in alone.rows(text)}
    costs, _ = book.find("ring", SOCKETS)
    return emulated_hosts.measured_link(seconds, costs, len(machine.cores()))
