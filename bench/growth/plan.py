#!/usr/bin/env python3
"""Predicts the steps of the six cells on a cluster, and says which to take, or not to distribute at all.

    bazel run //bench:plan -- --model=mlp --hosts=4 --gbits=1 --latency_us=50
    bazel run //bench:plan -- --bytes=44700000 --compute_ms=120 --measure=node1,node2,node3,node4 --out=plan.json
    bazel run //bench:plan -- --check=1gbit:2-4,200mbit:2-6

The costs of the exchange come from costs.json of bench:growth; hosts are taken to be as fast as the one that was
measured. A plan with more workers or bytes than bench:growth measured is extrapolated, marked *, and its band grows.
--check measures on emulated hosts (root only) and compares. Exit status 0: printed, and --check within 10 %; 1: --check
is not, or a cell has failed; 2: refused.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence

_HERE = os.path.dirname(os.path.realpath(__file__))
_BENCH = os.path.dirname(_HERE)
sys.path[:0] = [_HERE, *(os.path.join(_BENCH, room)
                         for room in ("compare", "compare/measured", "compare/judgement", "netlab"))]

import alone
import cost_book
import emulated_hosts
import growth_runs
import line_plot
import machine
import netlab
import planning
import programs
from cost_book import user_path
from workload import Cluster, Workload, WorkloadError

WORKERS_MAX = planning.RANKS_MAX
PAYLOAD_SHARE = 0.957  # of a link's rate; the rest are headers of Ethernet, IP and TCP
OWN_COSTS = "data/growth/costs.json"
MODEL_STEPS = 60
LINK_SECONDS_MAX = 120
PARAMETERS = r", (\d+) parameters, on "  # in the worker's first line, which --progress=none leaves out


def _numbers(text: str) -> list[int]:
    found = sorted({int(word) for word in text.split(",")})
    if found[0] < 2 or found[-1] > WORKERS_MAX:
        raise argparse.ArgumentTypeError(f"{text}: plans are for 2 to {WORKERS_MAX} workers")
    return found


def _servers(text: str) -> int:
    if not 0 <= int(text) <= planning.SERVERS_MAX:
        raise argparse.ArgumentTypeError(f"{text}: a star has 1 to {planning.SERVERS_MAX} servers; 0: the plan chooses")
    return int(text)


def _names(text: str) -> list[str]:
    found = [name for name in text.split(",") if name]
    if len(found) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: a link is measured between two hosts, such as node1,node2")
    return found


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="plan", allow_abbrev=False, description=__doc__.partition("\n")[0])
    add = found.add_argument
    add("--model", default="", help="a model of worker/model/models, whose size and time are measured here")
    add("--dataset", default="fashion-mnist", help="of --model")
    add("--bytes", type=int, default=0, help="of the parameters, instead of --model")
    add("--compute_ms", type=float, default=0.0, help="forward and backward of one worker; with --model: instead of "
                                                      "measuring it")
    add("--batch", type=int, default=64, help="samples of one worker in a step")
    add("--threads", type=int, default=1, help="compute threads per worker")
    add("--bucket_bytes", type=int, default=0, help="as --bucket_bytes of the worker; 0: its default, 4 MiB where "
                                                    "servers share memory with the workers, 128 KiB a "
                                                    "server, at most 1 MiB, where they are elsewhere, else 1 MiB")
    add("--hosts", type=int, default=0, help="of the cluster; a plan goes beyond them, but 1 stays 1. Default 1, or "
                                             "those of --measure")
    add("--workers_per_host", type=int, default=1)
    add("--cores", type=float, default=float(len(machine.cores())), help="of a host; default: of this machine")
    add("--gbits", type=float, default=0.0, help="rate of every link, both ways")
    add("--latency_us", type=float, default=50.0, help="of a link")
    add("--measure", type=_names, default=None, help="hosts: measures the link between the first two by mpirun, over "
                                                     "TCP even where MPI has a faster network")
    add("--workers", type=_numbers, default=None, help=f"up to {WORKERS_MAX}; default: powers of two")
    add("--servers", type=_servers, default=0, help="of each star with servers; 0: the plan chooses")
    add("--costs", type=user_path, default=None, help=f"of bench:growth; default: {OWN_COSTS}, or the shipped one")
    add("--out", type=user_path, default=None, help="plan.json, for compare --plans")
    add("--plot", type=user_path, default=None, help="plan.svg: samples/s over workers")
    add("--check", default="", help="1gbit:2-4,200mbit:2-6: measures on emulated hosts, and compares")
    add("--repeats", type=int, default=1, help="rounds of --check; a lab takes some minutes a round")
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
                             "--device=cpu", "--progress=plain", "--record=" + record])
        with open(record, encoding="utf-8") as file:
            spent = json.load(file)["breakdown_ms"]
    found = re.search(PARAMETERS, text)
    if found is None:
        raise WorkloadError(f"the worker does not say how many parameters {model} has: give --bytes and --compute_ms")
    return 4 * int(found[1]), 1e-3 * (spent["forward"] + spent["backward"] + spent["data_wait"] + spent["other"])


def link(hosts: Sequence[str], book: cost_book.CostBook) -> emulated_hosts.Link:
    """The link between the first two hosts, by two ranks that mpirun starts there, and by TCP, which all cells without
    MPI use. The programs must be at the same path on both."""
    sizes = f"{emulated_hosts.SMALL},{emulated_hosts.LARGE}"
    text = programs.run(["mpirun", "-np", "2", "--host", ",".join(f"{host}:1" for host in hosts[:2]), "--map-by",
                         "node", *growth_runs.MPI_BY_SOCKETS, programs.binary("bench/ring_bench"), "--format=json",
                         "--syncs=ring", "--bytes=" + sizes, "--steps_max=100"], growth_runs.MPI_ENVIRONMENT,
                        LINK_SECONDS_MAX)
    seconds = {int(row["bytes"]): 1e-6 * float(row["latency_us"]) for row in alone.rows(text)}
    costs, _ = book.find("ring", cost_book.SOCKETS)
    return emulated_hosts.measured_link(seconds, costs, len(machine.cores()))


def workload_of(options: argparse.Namespace) -> Workload:
    size, compute_s, name = options.bytes, 1e-3 * options.compute_ms, options.model
    if bool(name) == bool(size):
        raise WorkloadError("give either --model=mlp, or --bytes=B and --compute_ms=T")
    if name:
        size, measured_s = model_facts(name, options.dataset, options.batch, options.threads)
        compute_s = compute_s or measured_s
    if compute_s <= 0:
        raise WorkloadError("--bytes needs --compute_ms=T, the milliseconds of forward and backward of one worker")
    return Workload(name or f"{size:,} bytes", size, compute_s, options.batch, options.threads, options.bucket_bytes)


def cluster_of(options: argparse.Namespace, book: cost_book.CostBook) -> Cluster:
    if options.measure:
        if options.gbits:
            raise WorkloadError("give either --measure, or --gbits and --latency_us")
        found = link(options.measure, book)
        return Cluster(options.hosts or len(options.measure), options.workers_per_host, options.cores,
                       found.bytes_per_second, found.latency_s)
    if options.hosts in (0, 1):
        return Cluster(1, options.workers_per_host, options.cores)
    return Cluster(options.hosts, options.workers_per_host, options.cores, 1.25e8 * PAYLOAD_SHARE * options.gbits,
                   1e-6 * options.latency_us)


def default_workers(cluster: Cluster) -> list[int]:
    """Powers of two; on one host up to twice its cores."""
    largest = WORKERS_MAX if cluster.hosts > 1 else max(4, min(WORKERS_MAX, int(2 * cluster.cores)))
    return [2 ** power for power in range(1, largest.bit_length()) if 2 ** power <= largest]


def _table(plan: planning.Plan, title: str, value: Callable[[planning.Point], str]) -> list[str]:
    lines = [f"{title:26}" + "".join(f"{count:>8,} " for count in plan.workers)]
    for line in plan.lines:
        entries = [value(point) + " *"[point.extrapolated] if point else "- " for point in line.points]
        lines.append(f"{line.name:26}" + "".join(f"{entry:>9}" for entry in entries))
    return [*lines, ""]


def text_of(plan: planning.Plan) -> list[str]:
    """What is printed."""
    workload, cluster = plan.workload, plan.cluster
    between = (f", {8e-9 * cluster.bytes_per_second:.3g} Gbit/s of payload and {1e6 * cluster.latency_s:.0f} us "
               "between hosts" if cluster.hosts > 1 else "")
    lines = [f"{workload.name}: {workload.bytes:,} bytes, {1e3 * workload.compute_s:.2f} ms of computing for "
             f"{workload.batch} samples; {cluster.workers_per_host} workers a host with {cluster.cores:g} cores"
             + between,
             f"Costs of the exchange: {plan.source}.", f"One process: {plan.alone:,.0f} samples/s.", ""]
    lines += _table(plan, "step ms, workers:", lambda one: f"{1e3 * one.step_s:.4g}")
    lines += _table(plan, "exposed exchange ms", lambda one: f"{1e3 * one.exposed_s:.4g}")
    lines += _table(plan, "samples/s", lambda one: f"{one.rate(workload.batch):,.0f}")
    lines += _table(plan, "band of the step +- %", lambda one: f"{100 * one.band:.0f}")
    lines += _table(plan, "servers", lambda one: str(one.servers))
    lines += [f"{'error on sizes not seen, %':26}{'median':>8} {'worst':>8}"]
    lines += [f"{line.name:26}{100 * line.median_error:8.0f} {100 * line.worst_error:8.0f}" for line in plan.lines]
    lines += ["", "The error is of the exchange alone, on the host of the costs, at sizes that their fit has not seen."]
    points = [point for line in plan.lines for point in line.points]
    if any(point and point.extrapolated for point in points):
        lines.append("* extrapolated: more workers, or more bytes, than bench:growth measured with that cell.")
    if not all(points):
        lines.append(f"- is no job: at most {planning.SERVERS_MAX} servers, and over TCP at most {planning.RANKS_MAX} "
                     "workers and servers together.")
    lines += [sentence + "." for sentence in planning.crossings(plan)]
    lines += ["Verdict: " + "; ".join(planning.verdict(plan)) + "."]
    return lines + [f"Note: {note}." for note in plan.notes]


def picture_of(plan: planning.Plan) -> str:
    batch = plan.workload.batch
    drawn = [(line, [point for point in line.points if point]) for line in plan.lines]
    lines = [line_plot.Line(line.name, [one.workers for one in points], [one.rate(batch) for one in points],
                            [one.rate_low(batch) for one in points], [one.rate_high(batch) for one in points],
                            dashed=line.place.has_servers) for line, points in drawn if points]
    return line_plot.draw(f"{plan.workload.name}: predicted samples/s", "workers", "samples/s", lines,
                          plan.measured_until)


def run(options: argparse.Namespace) -> int:
    book = cost_book.read_first((options.costs,) if options.costs else (user_path(OWN_COSTS), cost_book.SHIPPED))
    if options.check:
        compared = emulated_hosts.compare_all(emulated_hosts.parse_labs(options.check), book, options.repeats,
                                              lambda text: print(text, flush=True))
        return 0 if emulated_hosts.is_met(*compared) else 1
    cluster = cluster_of(options, book)
    plan = planning.make(workload_of(options), cluster, options.workers or default_workers(cluster), book,
                         options.servers or None)
    print("\n".join(text_of(plan)))
    if options.out:
        line_plot.write(options.out, json.dumps(planning.to_json(plan), indent=1) + "\n")
    if options.plot:
        line_plot.write(options.plot, picture_of(plan))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        return run(options)
    except (WorkloadError, cost_book.CostsError, emulated_hosts.LabsError, netlab.NetlabError, programs.ProgramError,
            OSError, subprocess.SubprocessError) as error:
        print(f"plan: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
