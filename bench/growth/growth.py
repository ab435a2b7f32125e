#!/usr/bin/env python3
"""Measures how the exchange of each cell grows with the number of workers, and fits what its parts cost.

    bazel run //bench:growth -- --quick                          5 minutes on two cores, with wider bands
    bazel run //bench:growth -- --workers=1,2,4,8,16,32,64 --repeats=5 --lab=1gbit:4 --out=data/growth
    bazel run //bench:growth -- --runs=data/growth/runs.json     fits what an interrupted run has measured

Workers compute nothing, so many of them fit on one machine. The defaults take about an hour on two quiet cores.
Runs whose rounds differ are measured up to three times more. The fit sees some of the sizes (cost_fit.py); the table
states the model's error on the others, and how much the rounds scatter there. Writes costs.json for bench:plan to the
folder --out, and runs.json with all medians after each round. --lab also measures between emulated hosts (root only)
how much of a link each cell wastes. Exit status 0: all was measured; 1: not all; 2: nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

_HERE = os.path.dirname(os.path.realpath(__file__))
_BENCH = os.path.dirname(_HERE)
sys.path[:0] = [_HERE, *(os.path.join(_BENCH, room)
                         for room in ("compare", "compare/measured", "compare/judgement", "netlab"))]

import cost_book
import cost_fit
import emulated_hosts
import growth_runs
import machine
import netlab
import programs
import sync_cells as cells


def say(text: str) -> None:
    print(text, flush=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        found = sorted({int(word) for word in text.split(",")})
        if found[0] < 1:
            raise argparse.ArgumentTypeError(f"{found[0]} is below 1")
        return found

    parser = argparse.ArgumentParser(prog="growth", allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=numbers, default=None)
    parser.add_argument("--quick", action="store_true", help="few sizes, steps and workers: 5 minutes a round")
    parser.add_argument("--repeats", type=int, default=None, help="rounds over all runs, in turns; default 3, or 1")
    parser.add_argument("--syncs", type=cost_book.syncs, default=list(cells.SYNCS), help=",".join(cells.SYNCS))
    parser.add_argument("--lab", default="", help="emulated hosts, such as 1gbit:4: what each cell wastes of a link")
    parser.add_argument("--out", default="data/growth", help="the folder of the results")
    parser.add_argument("--runs", default="",
                        help="runs.json of an earlier run: fits its rounds, and measures only --lab")
    options = parser.parse_args(arguments)
    options.workers = options.workers or list(growth_runs.QUICK_WORKERS if options.quick else growth_runs.WORKERS)
    options.repeats = options.repeats if options.repeats is not None else 1 if options.quick else 3
    if options.repeats < 1:
        parser.error(f"--repeats={options.repeats}: it is at least 1")
    try:
        options.labs = emulated_hosts.parse_labs(options.lab) if options.lab else []
    except emulated_hosts.LabsError as error:
        parser.error(f"--lab: {error}")
    return options


def commit() -> str:
    done = subprocess.run(["git", "-C", os.path.dirname(_BENCH), "rev-parse", "--short=7", "HEAD"],
                          capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


@dataclasses.dataclass
class Runs:
    """What runs.json has."""
    measured: list[cost_fit.Measurement]
    kernels: dict[str, float]
    jitter: float
    cores: int
    machine: str
    commit: str
    date: str
    failures: list[str]

    def save(self, path: str) -> None:
        """Under another name first: what is there already outlives an interruption."""
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(self), file, indent=1)
        os.replace(path + ".part", path)

    @staticmethod
    def load(path: str) -> Runs:
        with open(path, encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
        found["measured"] = [cost_fit.Measurement(**one) for one in found["measured"]]
        return Runs(**found)


def measure(options: argparse.Namespace, path: str) -> Runs:
    """Saves the runs after each round."""
    cores = len(machine.cores())
    plan = growth_runs.plan_runs(options.syncs, options.workers, cores, options.quick)
    kernels, jitter = growth_runs.measure_kernels(), growth_runs.measure_jitter()
    facts = machine.describe(machine.Gpus())
    runs = Runs([], kernels, jitter, cores, f"{facts['cpu']}, {cores} cores, {facts['os']}", commit(),
                datetime.date.today().isoformat(), [])
    more = 0 if options.quick else growth_runs.MORE_ROUNDS
    for runs.measured, runs.failures in growth_runs.rounds(plan, options.repeats, say, more):
        runs.save(path)
    return runs


def fit_all(runs: Runs) -> tuple[dict[tuple[str, str], cost_fit.Fit], list[str]]:
    """The fits by sync and medium, and what could not be fitted."""
    fits, failures = {}, []
    for key in sorted({(one.sync, one.medium) for one in runs.measured}):
        try:
            fits[key] = cost_fit.fit([one for one in runs.measured if (one.sync, one.medium) == key], runs.cores,
                                     runs.kernels)
        except cost_fit.FitError as error:
            failures.append(f"{key[0]} by {key[1]}: {error}")
    return fits, failures


def table(fits: dict[tuple[str, str], cost_fit.Fit]) -> list[str]:
    """The error of each fit."""
    lines = [f"{'error on sizes not seen, %':26}" + "".join(
        f"{name:>9}" for name in ("median", "worst", "band", "scatter", "worst", "compute")) + "  worst error at"]
    for (sync, medium), fit in fits.items():
        shares = (fit.costs.median_error, fit.costs.worst_error, fit.costs.band, *fit.scatter, fit.computing_error)
        at = f"  {fit.worst_at.workers} workers, {fit.worst_at.servers} servers, {fit.worst_at.bytes} bytes"
        lines.append(f"{sync + ' by ' + medium:26}" + "".join(f"{100 * share:9.1f}" for share in shares) + at)
    return lines


def main() -> int:
    options = parse()
    out = cost_book.user_path(options.out)
    os.makedirs(out, exist_ok=True)
    command = "bazel run //bench:growth" + (" -- " + shlex.join(sys.argv[1:]) if sys.argv[1:] else "")
    runs_path, costs_path = os.path.join(out, "runs.json"), os.path.join(out, "costs.json")
    try:
        runs = Runs.load(cost_book.user_path(options.runs)) if options.runs else measure(options, runs_path)
    except (programs.ProgramError, OSError, ValueError, TypeError, LookupError) as error:
        print(f"growth: {error}", file=sys.stderr)
        return 2
    runs.save(runs_path)
    fits, unfitted = fit_all(runs)
    failures = [*runs.failures, *unfitted]
    if not fits:
        print("growth: no cell could be fitted: " + "; ".join(failures), file=sys.stderr)
        return 2
    book = cost_book.CostBook({key: fit.costs for key, fit in fits.items()}, {}, runs.jitter, runs.machine, runs.commit,
                              runs.date, command)
    cost_book.write(costs_path, book)  # now: --lab takes minutes, and may fail
    try:
        if options.labs:
            compared, not_measured = emulated_hosts.compare_all(options.labs, book, options.repeats, say)
            failures += not_measured
            cost_book.write(costs_path, dataclasses.replace(
                book, wasted_buckets=emulated_hosts.wasted_buckets(compared)))
    except (netlab.NetlabError, programs.ProgramError, cost_book.CostsError, LookupError, OSError,
            subprocess.SubprocessError) as error:
        failures.append(f"--lab={options.lab}: {error}")
    lines = [*table(fits), *(f"not measured: {failure}" for failure in failures)]
    say("\n".join(lines))
    say(f"{out}: {', '.join(sorted(os.listdir(out)))}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
