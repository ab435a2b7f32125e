#!/usr/bin/env python3
"""Measures how the exchange of each cell grows with the number of workers, and fits what its parts cost.

    bazel run //bench:growth
    bazel run //bench:growth -- --workers=1,2,4,8,16,32,64 --repeats=5 --lab=1gbit:4 --out=data/growth
    bazel run //bench:growth -- --syncs=ring --out=data/ring     in parts, and then all together:
    bazel run //bench:growth -- --runs=data/ring/runs.json,data/star/runs.json

Workers compute nothing, so many of them fit on one machine. The defaults take about an hour on two quiet cores.
Runs whose rounds differ are measured up to three times more, and the table says how much rounds scatter. The fit sees
some of the sizes (cost_fit.py), and the table states its error on the others: the targets are a median within 10 % and
a worst case within 25 %. A plan's band holds 9 of 10 of these errors and of those of steps with computing.
Writes to the folder --out: costs.json for bench:plan, runs.json with all medians, after each round, growth.svg,
table.txt. --lab also measures between emulated hosts (root only) how much of a link each cell wastes. Exit status 0:
all measured, however large the error; 1: not all; 2: nothing.
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

_HERE = os.path.dirname(os.path.realpath(__file__))
_BENCH = os.path.dirname(_HERE)
sys.path[:0] = [_HERE, *(os.path.join(_BENCH, room)
                         for room in ("compare", "compare/measured", "compare/judgement", "netlab"))]

import cost_book
import cost_fit
import emulated_hosts
import exchange_model as model
import growth_runs
import line_plot
import machine
import netlab
import programs
import sync_cells as cells
from cost_book import user_path

PLOTTED_BYTES = 1 << 20
Fits = dict[tuple[str, str], cost_fit.Fit]  # by sync and medium


def say(text: str) -> None:
    print(text, flush=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        found = sorted({int(word) for word in text.split(",")})
        if found[0] < 1:
            raise argparse.ArgumentTypeError(f"{found[0]} is below 1")
        return found

    def syncs(text: str) -> list[str]:
        for name in text.split(","):
            if name not in cells.SYNCS:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(cells.SYNCS)}")
        return text.split(",")

    parser = argparse.ArgumentParser(prog="growth", allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=numbers, default=list(growth_runs.WORKERS))
    parser.add_argument("--repeats", type=int, default=3, help="rounds over all runs, in turns")
    parser.add_argument("--syncs", type=syncs, default=list(cells.SYNCS), help="cells: " + ",".join(cells.SYNCS))
    parser.add_argument("--lab", default="", help="emulated hosts, such as 1gbit:4: what each cell wastes of a link")
    parser.add_argument("--out", type=user_path, default="data/growth", help="the folder of the results")
    parser.add_argument("--runs", type=lambda text: [user_path(path) for path in text.split(",")], default=[],
                        help="runs.json of earlier runs, separated by commas: fits these, and measures only --lab")
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error(f"--repeats={options.repeats}: it is at least 1")
    try:
        options.labs = emulated_hosts.parse_labs(options.lab) if options.lab else []
    except emulated_hosts.LabsError as error:
        parser.error(f"--lab: {error}")
    return options


@dataclasses.dataclass
class Runs:
    """The content of runs.json."""
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
        cost_book.write_text(path + ".part", json.dumps(dataclasses.asdict(self), indent=1))
        os.replace(path + ".part", path)

    @staticmethod
    def load(paths: Sequence[str]) -> Runs:
        """The runs of all files together: parts of one measurement, which all have the facts of the first file."""
        loaded = []
        for path in paths:
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
            found["measured"] = [cost_fit.Measurement(**one) for one in found["measured"]]
            loaded.append(Runs(**found))
        first = loaded[0]
        for other in loaded[1:]:
            if (other.machine, other.commit) != (first.machine, first.commit):
                raise ValueError(f"runs of {first.machine} at {first.commit} and of {other.machine} at {other.commit}: "
                                 "only runs of one machine and commit can be fitted together")
        return dataclasses.replace(first, measured=growth_runs.medians(one for each in loaded for one in each.measured),
                                   failures=[text for each in loaded for text in each.failures])


def measure(options: argparse.Namespace, path: str) -> Runs:
    """Saves the runs after each round."""
    cores = len(machine.cores())
    plan = growth_runs.plan_runs(options.syncs, options.workers, cores)
    kernels, jitter = growth_runs.measure_kernels(), growth_runs.measure_jitter()
    facts = machine.describe(machine.Gpus())
    commit = subprocess.run(["git", "-C", _BENCH, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True,
                            check=False).stdout.strip()
    runs = Runs([], kernels, jitter, cores, f"{facts['cpu']}, {cores} cores, {facts['os']}", commit or "unknown",
                datetime.date.today().isoformat(), [])
    for runs.measured, runs.failures in growth_runs.rounds(plan, options.repeats, say):
        runs.save(path)
    return runs


def fit_all(runs: Runs) -> tuple[Fits, list[str]]:
    """The fits, and what could not be fitted."""
    fits, failures = {}, []
    for key in sorted({(one.sync, one.medium) for one in runs.measured}):
        try:
            fits[key] = cost_fit.fit([one for one in runs.measured if (one.sync, one.medium) == key], runs.cores,
                                     runs.kernels)
        except cost_fit.FitError as error:
            failures.append(f"{key[0]} by {key[1]}: {error}")
    return fits, failures


def table(fits: Fits) -> list[str]:
    """The costs of each fit, and its error."""
    names = {f"{sync} by {medium}": fit for (sync, medium), fit in fits.items()}
    of_things = [cost for cost in model.FITTED if "byte" not in cost]
    of_bytes = [cost for cost in (*model.FITTED, *model.KERNELS) if "byte" in cost]
    lines = []
    for unit, factor, costs in (("microseconds", 1e6, of_things), ("nanoseconds a KiB", 1024e9, of_bytes)):
        lines.append(f"{unit:26}" + "".join(f"{cost:>16}" for cost in costs))
        lines += [f"{name:26}" + "".join(f"{factor * fit.costs.seconds[cost]:16.2f}" for cost in costs)
                  for name, fit in names.items()] + [""]
    lines.append("On sizes left out of the fit (targets: median {:.0f} %, worst {:.0f} %):".format(
        100 * cost_fit.MEDIAN_ERROR_MAX, 100 * cost_fit.WORST_ERROR_MAX))
    for name, fit in names.items():
        test = fit.test
        scatter = "{:.1f} %, at worst {:.1f} %".format(*(100 * part for part in fit.scatter))
        found = (f"median {100 * test.median:5.1f} %, worst {100 * test.worst:5.1f} % ({test.worst_at}); {test.count} "
                 f"tested, whose rounds scatter by {scatter}" if test.count else "no test")
        lines.append(f"{name:26} {'met   ' if test.met else 'MISSED'} {found}; {fit.fitted} fitted; contention "
                     f"{fit.costs.contention:.2f}; a plan's band is {100 * fit.costs.band:.0f} %")
    return lines


def plot(runs: Runs) -> str | None:
    """Time over workers for one size. None if nothing has that size."""
    lines = []
    for medium in cost_book.MEDIA:
        for sync in cells.SYNCS:
            # A star's point is the run with most servers.
            points = {one.workers: 1e3 * one.seconds for one in sorted(runs.measured, key=lambda one: one.servers)
                      if (one.sync, one.medium, one.bytes, one.compute_s) == (sync, medium, PLOTTED_BYTES, 0.0)}
            if points:
                lines.append(line_plot.Line(f"{sync} by {medium}", sorted(points),
                                            [points[count] for count in sorted(points)],
                                            dashed=medium == cost_book.SOCKETS))
    title = f"Exchange alone of {PLOTTED_BYTES / 2**20:g} MiB on one host"
    return line_plot.draw(title, "workers", "ms", lines) if lines else None


def main() -> int:
    options = parse()
    os.makedirs(options.out, exist_ok=True)
    command = "bazel run //bench:growth" + (" -- " + shlex.join(sys.argv[1:]) if sys.argv[1:] else "")
    runs_path, costs_path = os.path.join(options.out, "runs.json"), os.path.join(options.out, "costs.json")
    try:
        runs = Runs.load(options.runs) if options.runs else measure(options, runs_path)
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
            found, not_measured = emulated_hosts.compare_all(options.labs, book, options.repeats, say)
            failures += not_measured
            wasted = emulated_hosts.wasted_buckets(found)
            cost_book.write(costs_path, dataclasses.replace(book, wasted_buckets=wasted))
    except (netlab.NetlabError, programs.ProgramError, cost_book.CostsError, LookupError, OSError,
            subprocess.SubprocessError) as error:
        failures.append(f"--lab={options.lab}: {error}")
    lines = [*table(fits), *(f"not measured: {failure}" for failure in failures)]
    say("\n".join(lines))
    cost_book.write_text(os.path.join(options.out, "table.txt"), "\n".join(lines) + "\n")
    if (picture := plot(runs)) is not None:
        cost_book.write_text(os.path.join(options.out, "growth.svg"), picture)
    say(f"{options.out}: {', '.join(sorted(os.listdir(options.out)))}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
