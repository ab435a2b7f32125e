#!/usr/bin/env python3
"""Predicts the steps of the six cells on a cluster, and says which to take, or not to distribute at all.

    bazel run //bench:plan -- --bytes=40MiB --compute_ms=100 --hosts=4 --gbits=10
    bazel run //bench:plan -- --bytes=44700000 --compute_ms=120 --measure=node1,node2,node3,node4 --out=plan.json
    bazel run //bench:plan -- --check=1gbit:2-4,200mbit:2-6

The costs of the exchange come from costs.json of bench:growth, or are the shipped ones of another machine. Each plan
lists what it assumes. --check measures on emulated hosts (root only) and compares. Exit status 0: printed, and --check
within 10 %; 1: --check is not, or a cell has failed; 2: refused.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import math
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from subprocess import SubprocessError

_BENCH = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
sys.path[:0] = [os.path.join(_BENCH, room)
                for room in ("growth", "compare", "compare/measured", "compare/judgement", "netlab")]

import alone
import cost_book
import emulated_hosts
import growth_runs
import machine
import plan_plot
import planning
import programs
import sync_cells as cells
from netlab import NetlabError
from options import names, numbers, positive, user_path
from report import labels
from workload import Cluster, Workload, WorkloadError

PAYLOAD_SHARE = 0.957  # of a link's rate; the rest are headers of Ethernet, IP and TCP
OWN_COSTS = "data/growth/costs.json"
MODEL_STEPS = 60
LINK_SECONDS_MAX = 120
NO_GPUS = ("GPUs are not modelled yet, neither their copies nor NCCL nor NVLink. --device=cpu plans for CPUs, and "
           "bazel run //bench:compare measures on GPUs")
# Words that ask for GPUs: a device that is no CPU, and flags that plan does not have.
OF_GPUS = re.compile(r"--(device=(?!cpu$)|[^=]*(gpu|cuda|nccl|nvlink))|cuda(:\d+)?$", re.IGNORECASE)
PARAMETERS = r", (\d+) parameters, on "  # in the worker's first line, which --progress=none leaves out


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)(KiB|MiB|GiB|)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes, such as 44700000 or 40MiB")
    return int(found[1]) << {"": 0, "KiB": 10, "MiB": 20, "GiB": 30}[found[2]]


def amount(text: str) -> float:
    found = float(text)
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no finite number of 0 or more")
    return found


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="plan", allow_abbrev=False, description=__doc__.partition("\n")[0])
    add = found.add_argument
    add("--model", default="", help="a model of worker/model/models, whose size and time are measured here")
    add("--dataset", default="fashion-mnist", help="of --model")
    add("--bytes", type=_bytes, default=0, help="of the parameters, such as 40MiB, instead of --model")
    add("--compute_ms", type=amount, default=0.0, help="forward and backward of one worker; default: as --model, or 0")
    add("--device", choices=("cpu",), default="cpu", help="of the workers; plans with GPUs are refused")
    add("--batch", type=positive, default=64, help="samples of one worker in a step")
    add("--threads", type=positive, default=1, help="compute threads per worker")
    add("--bucket_bytes", type=positive, default=0, help="as --bucket_bytes of the worker; default: the worker's")
    add("--hosts", type=positive, default=0, help="for workers and servers; default 1, or those of --measure")
    add("--workers_per_host", type=positive, default=0, help="at most; default 1, on a single host as many as cores")
    add("--cores", type=amount, default=float(len(machine.cores())), help="of a host; default: of this machine")
    add("--gbits", type=amount, default=0.0, help="rate of every link, both ways")
    add("--latency_us", type=amount, default=50.0, help="of a link")
    add("--measure", default="", help="node1,node2: measures the link between the first two by mpirun, over TCP")
    add("--workers", type=numbers, default=[], help="default: up to what the hosts take")
    add("--syncs", type=names(cells.SYNCS), default=list(cells.SYNCS), help=",".join(cells.SYNCS))
    add("--servers", type=positive, default=None, help="of each star with servers; default: the plan chooses")
    add("--costs", type=user_path, default=None, help=f"of bench:growth; default: {OWN_COSTS}, or the shipped ones")
    add("--jitter", type=amount, default=None, help="relative scatter of a worker's computing; default: of the costs")
    add("--out", type=user_path, default=None, help="plan.json, for compare --plans")
    add("--csv", type=user_path, default=None, help="plan.csv: a row for each cell and number of workers")
    add("--plot", type=user_path, default=None, help="plan.svg: step time over the fastest cell's")
    add("--check", default="", help="1gbit:2-4,200mbit:2-6: measures on emulated hosts, and compares")
    add("--repeats", type=positive, default=1, help="rounds of --check; a lab takes some minutes a round")
    return found


def model_facts(model: str, dataset: str, batch: int, threads: int) -> tuple[int, float]:
    """The bytes of a model's parameters, and the seconds that one worker computes in a step, on this machine's first
    cores."""
    with tempfile.TemporaryDirectory() as folder:
        record = os.path.join(folder, "record.json")
        cores = ",".join(map(str, machine.cores()[:threads]))
        text = programs.run(["taskset", "-c", cores, programs.binary("worker/worker"), "--sync=local",
                             "--model=" + model, "--dataset=" + dataset, f"--global_batch={batch}",
                             f"--threads={threads}", f"--max_steps={MODEL_STEPS}", "--epochs=100000",
                             "--device=cpu", "--progress=plain", "--checkpoint_dir=none", "--record=" + record])
        with open(record, encoding="utf-8") as file:
            spent = json.load(file)["breakdown_ms"]
    found = re.search(PARAMETERS, text)
    if found is None:
        raise WorkloadError(f"the worker does not say how many parameters {model} has: give --bytes and --compute_ms")
    return 4 * int(found[1]), 1e-3 * (spent["forward"] + spent["backward"] + spent["data_wait"] + spent["other"])


def link(hosts: Sequence[str], book: cost_book.CostBook) -> Cluster:
    """The first two hosts and the link between them, by two ranks that mpirun starts there, and by TCP, which all cells
    without MPI use. The programs must be at the same path on both."""
    if len(hosts) < 2:
        raise WorkloadError(f"--measure={','.join(hosts)}: a link is measured between two hosts, such as node1,node2")
    sizes = f"{emulated_hosts.SMALL},{emulated_hosts.LARGE}"
    text = programs.run(["mpirun", "-np", "2", "--host", ",".join(f"{host}:1" for host in hosts[:2]), "--map-by",
                         "node", *growth_runs.MPI_BY_SOCKETS, programs.binary("bench/ring_bench"), "--format=json",
                         "--syncs=ring", "--bytes=" + sizes, "--steps_max=100"], programs.MPI_ENVIRONMENT,
                        LINK_SECONDS_MAX)
    seconds = {int(row["bytes"]): 1e-6 * float(row["latency_us"]) for row in alone.rows(text)}
    return emulated_hosts.measured_link(seconds, book.find("ring", cost_book.SOCKETS), len(machine.cores()))


def workload_of(options: argparse.Namespace) -> Workload:
    size, compute_s, name = options.bytes, 1e-3 * options.compute_ms, options.model
    if bool(name) == bool(size):
        raise WorkloadError("give either --model=mlp, or --bytes=B and --compute_ms=T")
    if name:
        size, measured_s = model_facts(name, options.dataset, options.batch, options.threads)
        compute_s = compute_s or measured_s
    return Workload(name or "a model", size, compute_s, options.batch, options.threads, options.bucket_bytes)


def book_of(path: str | None) -> tuple[cost_book.CostBook, str]:
    """The costs, and a sentence if they are the shipped ones."""
    own = user_path(OWN_COSTS)
    path = path or (own if os.path.exists(own) else cost_book.SHIPPED)
    book = cost_book.read(path)
    if not os.path.samefile(path, cost_book.SHIPPED):
        return book, ""
    return cost_book.widened(book), (
        f"SHIPPED COSTS of {', '.join(book.machine.split(', ')[:2])}: yours may be half or twice as high. "
        f"{cost_book.HOW_TO_MEASURE} -- --quick measures them in 5 minutes")


def cluster_of(options: argparse.Namespace, book: cost_book.CostBook) -> Cluster:
    here = {"workers_per_host": options.workers_per_host or 1, "cores": options.cores}
    if options.measure:
        if options.gbits:
            raise WorkloadError("give either --measure, or --gbits and --latency_us")
        hosts = options.measure.split(",")
        return dataclasses.replace(link(hosts, book), hosts=options.hosts or len(hosts), **here)
    if options.hosts in (0, 1):
        largest = max(options.workers or [2, min(planning.RANKS_MAX, int(options.cores))])
        return Cluster(1, options.workers_per_host or largest, options.cores)
    return Cluster(options.hosts, bytes_per_second=1.25e8 * PAYLOAD_SHARE * options.gbits,
                   latency_s=1e-6 * options.latency_us, **here)


def workers_of(asked: Sequence[int], cluster: Cluster) -> list[int]:
    """Those asked for, or up to what the hosts take: all numbers to 4, and powers of two."""
    most, largest = planning.RANKS_MAX, cluster.hosts * cluster.workers_per_host
    if asked and not 2 <= min(asked) <= max(asked) <= most:
        raise WorkloadError(f"--workers={','.join(map(str, asked))}: plans are for 2 to {most} workers")
    if max(asked or [2]) > largest:
        raise WorkloadError(f"{max(asked or [2])} workers, and room for {largest}: {cluster.hosts} hosts with "
                            f"{labels.workers(cluster.workers_per_host)} each: give --hosts or --workers_per_host")
    return list(asked or sorted({count for count in (2, 3, *(2 ** power for power in range(2, 11)), min(most, largest))
                                 if count <= largest}))


def _row(title: str, entries: Iterable[str]) -> str:
    return f"{title:26}" + "".join(f"{entry:>9}" for entry in entries)


def _table(plan: planning.Plan, title: str, value: Callable[[planning.Point], str]) -> list[str]:
    return [_row(title, (f"{count:,} " for count in plan.workers)),
            *(_row(line.name, (value(point) + " *"[point.extrapolated] if point else "- " for point in line.points))
              for line in plan.lines), ""]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g}"


def text_of(plan: planning.Plan, mark: str = "") -> list[str]:
    """What is printed. `mark` says if the costs are not the user's."""
    workload, cluster = plan.workload, plan.cluster
    between = (f", {8e-9 * cluster.bytes_per_second:.3g} Gbit/s of payload and {1e6 * cluster.latency_s:.0f} us "
               "between hosts" if cluster.hosts > 1 else "")
    lines = [f"{workload.name}: {workload.bytes:,} bytes, {1e3 * workload.compute_s:.2f} ms of computing for "
             f"{workload.batch} samples; hosts: {cluster.hosts}, each with {cluster.cores:g} cores and up to "
             f"{labels.workers(cluster.workers_per_host)}{between}",
             f"Costs of the exchange: {plan.source}.", *[mark + "."] * bool(mark), ""]
    lines += _table(plan, "step ms, workers:", lambda one: _ms(one.step_s))
    lines[-1:] = [_row(title, (_ms(one) + " " for one in seconds)) for title, seconds in (
        ("of it computing", plan.computing_s), ("of it jitter of the cores", plan.jitter_s))] + [""]
    lines += _table(plan, "of it exposed exchange", lambda one: _ms(one.exposed_s))
    lines += _table(plan, "step ms, at least (bound)", lambda one: _ms(one.bound_s))
    lines += _table(plan, "band of the step, %", lambda one: f"-{100 * (1 - one.low_s / one.step_s):.0f}"
                                                             f"+{100 * (one.high_s / one.step_s - 1):.0f}")
    if plan.alone:
        lines += _table(plan, "samples/s", lambda one: f"{one.rate(workload.batch):,.0f}")
    lines += _table(plan, "servers", lambda one: str(one.servers))
    lines += [f"{'error on sizes not seen, %':26}{'median':>8} {'worst':>8}"]
    lines += [f"{line.name:26}{100 * line.costs.median_error:8.0f} {100 * line.costs.worst_error:8.0f}"
              for line in plan.lines]
    lines += ["", "The error is of the exchange alone, on the host of the costs, at sizes that their fit has not seen."]
    points = [point for line in plan.lines for point in line.points]
    if any(point and point.extrapolated for point in points):
        lines.append("* extrapolated: more workers, or more bytes, than bench:growth measured with that cell.")
    if not all(points):
        lines.append(f"- is no job: more servers on own hosts than hosts are left, or over {planning.SERVERS_MAX} "
                     f"servers, or over TCP more than {planning.RANKS_MAX} workers and servers together.")
    lines += ["Assumed:", *(f"- {sentence}." for sentence in plan.assumptions)]
    lines += ["Verdict:", *(f"- {sentence}." for sentence in (*planning.crossings(plan), *planning.verdict(plan)))]
    return lines + [f"- {mark}."] * bool(mark)


def run(options: argparse.Namespace) -> int:
    book, mark = book_of(options.costs)
    if options.check:
        labs = emulated_hosts.parse_labs(options.check)
        return 0 if emulated_hosts.check(labs, book, options.repeats) else 1
    if options.jitter is not None:
        book = dataclasses.replace(book, jitter=options.jitter)
    cluster = cluster_of(options, book)
    plan = planning.make(workload_of(options), cluster, workers_of(options.workers, cluster), book,
                         options.servers, options.syncs)
    print("\n".join(text_of(plan, mark)))
    if options.out:
        text = json.dumps({"mark": mark, **planning.to_json(plan)}, indent=1)
        pathlib.Path(options.out).write_text(text + "\n", encoding="utf-8")
    if options.csv:
        rows = planning.rows(plan)
        with open(options.csv, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([rows[0].keys(), *(one.values() for one in rows)])
    if options.plot:
        pathlib.Path(options.plot).write_text(plan_plot.picture_of(plan), encoding="utf-8")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        asks = next(filter(OF_GPUS.match, arguments), None)
        if asks:
            raise WorkloadError(f"{asks}: {NO_GPUS}")
        return run(parser().parse_args(arguments))
    except (WorkloadError, cost_book.CostsError, NetlabError, programs.ProgramError, OSError, SubprocessError) as error:
        print(f"plan: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
