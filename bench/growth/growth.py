#!/usr/bin/env python3
"""Measures how the exchange of each cell grows with the number of workers, and fits what its parts cost.

    bazel run //bench:growth
    bazel run //bench:growth -- --workers=1,2,4,8,16,32,64 --repeats=5 --lab=1gbit:4 --out=data/growth
    bazel run //bench:growth -- --syncs=ring --out=data/ring     in parts, and then all together:
    bazel run //bench:growth -- --runs=data/ring/runs.json,data/star/runs.json

Workers compute nothing, so many of them fit on one machine. The defaults take about an hour on two quiet cores.
Runs whose rounds differ are measured up to three times more. The fit sees some of the sizes (cost_fit.py); the table
states the model's error on the others, and how much the rounds scatter there. Writes to the folder --out: costs.json
for bench:plan, runs.json with all medians, after each round, growth.svg, table.txt. --lab also measures between
emulated hosts (root only) how much of a link each cell wastes. Exit status 0: all was measured; 1: not all; 2: nothing.
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
import growth_runs
import line_plot
import machine
import netlab
import programs
import sync_cells as cells

Key = tuple[str, str]  # sync and medium


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
    parser.add_argument("--out", default="data/growth", help="the folder of the results")
    parser.add_argument("--runs", default="",
                        help="runs.json of earlier runs, separated by commas: fits these, and measures only --lab")
    options = parser.parse_args(arguments)
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
    runs = Runs([], kernels, jitter, cores, f"{facts['cpu']}, {cores} cores, {facts['os']}", commit(),
                datetime.date.today().isoformat(), [])
    for runs.measured, runs.failures in growth_runs.rounds(plan, options.repeats, say):
        runs.save(path)
    return runs


def fit_all(runs: Runs) -> tuple[dict[Key, cost_fit.Fit], list[str]]:
    """The fits, and what could not be fitted."""
    fits, failures = {}, []
    for key in sorted({(one.sync, one.medium) for one in runs.measured}):
        try:
            fits[key] = cost_fit.fit([one for one in runs.measured if (one.sync, one.medium) == key], runs.cores,
                                     runs.kernels)
        except cost_fit.FitError as error:
            failures.append(f"{key[0]} by {key[1]}: {error}")
    return fits, failures


def table(fits: dict[Key, cost_fit.Fit]) -> list[str]:
    """The costs of each fit, and its error."""
    micro = ("step", "hop", "wake", "crowd", "message", "long_message", "incast")
    nano = ("byte", "cold_byte", "small_page_byte", "sum_byte", "apply_byte")
    lines = [f"{'microseconds':26}" + "".join(f"{name:>16}" for name in micro)]
    lines += [f"{sync + ' by ' + medium:26}" + "".join(f"{1e6 * fit.costs.seconds[name]:16.2f}" for name in micro)
              for (sync, medium), fit in fits.items()]
    lines += ["", f"{'nanoseconds a KiB':26}" + "".join(f"{name:>16}" for name in (*nano, "contention"))]
    lines += [f"{sync + ' by ' + medium:26}" + "".join(f"{1024e9 * fit.costs.seconds[name]:16.2f}" for name in nano)
              + f"{fit.costs.contention:16.2f}" for (sync, medium), fit in fits.items()]
    lines += ["", f"{'error on sizes not seen, %':26}" + "".join(
        f"{name:>9}" for name in ("median", "worst", "band", "scatter", "worst", "fitted", "tested"))
        + "  worst error at"]
    for (sync, medium), fit in fits.items():
        shares = (fit.costs.median_error, fit.costs.worst_error, fit.costs.band, *fit.scatter)
        at = f"{fit.worst_at.workers} workers, {fit.worst_at.servers} servers, {fit.worst_at.bytes} bytes"
        lines.append(f"{sync + ' by ' + medium:26}" + "".join(f"{100 * share:9.1f}" for share in shares)
                     + f"{fit.fitted:9}{fit.tested:9}  {at}")
    return lines


def plot(runs: Runs, size: int = 1 << 20) -> str | None:
    """Time over workers for one size. None if nothing has that size."""
    lines = []
    for medium in cost_book.MEDIA:
        for cell in cells.CELLS:
            # Of a star the runs with most servers.
            points = {one.workers: one.seconds for one in sorted(runs.measured, key=lambda one: one.servers)
                      if (one.sync, one.medium, one.bytes, one.compute_s) == (cell.sync, medium, size, 0.0)}
            if points:
                lines.append(line_plot.Line(f"{cell.sync} by {medium}", sorted(points),
                                            [1e3 * points[count] for count in sorted(points)],
                                            dashed=medium == cost_book.SOCKETS))
    title = f"Exchange alone of {size / 2**20:g} MiB on one host"
    return line_plot.draw(title, "workers", "ms", lines) if lines else None


def main() -> int:
    options = parse()
    out = cost_book.user_path(options.out)
    os.makedirs(out, exist_ok=True)
    command = "bazel run //bench:growth" + (" -- " + shlex.join(sys.argv[1:]) if sys.argv[1:] else "")
    runs_path, costs_path = os.path.join(out, "runs.json"), os.path.join(out, "costs.json")
    try:
        runs = (Runs.load([cost_book.user_path(path) for path in options.runs.split(",")]) if options.runs
                else measure(options, runs_path))
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
    line_plot.write(os.path.join(out, "table.txt"), "\n".join(lines) + "\n")
    picture = plot(runs)
    if picture is not None:
        line_plot.write(os.path.join(out, "growth.svg"), picture)
    say(f"{out}: {', '.join(sorted(os.listdir(out)))}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
