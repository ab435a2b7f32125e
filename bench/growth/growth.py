#!/usr/bin/env python3
"""Measures how the exchange of each cell grows with the number of workers, and fits what its parts cost.

    bazel run //bench:growth -- --quick                          5 minutes on two cores, with wider bands
    bazel run //bench:growth -- --workers=1,2,4,8,16,32,64 --repeats=5 --out=data/growth

Workers compute nothing, so many of them fit on one machine. The defaults take about an hour on two quiet cores. Writes
costs.json for bench:plan to the folder --out after each round, so an interruption loses one round. The fit sees some of
the sizes (cost_fit.py); the table states the model's error on the others. Exit status 0: all was measured; 1: not all;
2: nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import shlex
import sys
from collections.abc import Sequence

_BENCH = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
sys.path[:0] = [os.path.join(_BENCH, room) for room in ("growth", "compare", "compare/measured", "compare/judgement")]

import cost_book
import cost_fit
import growth_runs
import machine
import programs
import sync_cells as cells
from options import names, numbers, positive, user_path

Fits = dict[tuple[str, str], cost_fit.Fit]  # by sync and medium


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="growth", allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=numbers, default=None)
    parser.add_argument("--quick", action="store_true", help="few sizes, steps and workers: 5 minutes a round")
    parser.add_argument("--repeats", type=positive, default=0, help="rounds over all runs, in turns; default 3, or 1")
    parser.add_argument("--syncs", type=names(cells.SYNCS), default=list(cells.SYNCS), help=",".join(cells.SYNCS))
    parser.add_argument("--out", type=user_path, default="data/growth", help="the folder of the results")
    options = parser.parse_args(arguments)
    options.workers = options.workers or list(growth_runs.QUICK_WORKERS if options.quick else growth_runs.WORKERS)
    # Many processes on few cores share them in more than one way. The cores of a virtual machine move, too, which makes
    # an exchange in memory take twice as long. The median of three rounds leaves out one such round.
    options.repeats = options.repeats or (1 if options.quick else 3)
    return options


def measure(options: argparse.Namespace) -> tuple[Fits, list[str]]:
    """The fits, and what has failed. Writes the costs after each round: what is there outlives an interruption.
    CostsError if there is no fit."""
    cores, facts = len(machine.cores()), machine.describe(machine.Gpus())
    kernels = growth_runs.measure_kernels()
    book = cost_book.CostBook({}, growth_runs.measure_jitter(), f"{facts['cpu']}, {cores} cores, {facts['os']}",
                              programs.commit(), datetime.date.today().isoformat(),
                              "bazel run //bench:growth" + " -- " * bool(sys.argv[1:]) + shlex.join(sys.argv[1:]))
    runs = growth_runs.plan_runs(options.syncs, options.workers, cores, options.quick)
    fits: Fits = {}
    failures: list[str] = []
    for measured, failures in growth_runs.rounds(runs, options.repeats):
        for key in sorted({(one.sync, one.medium) for one in measured}):
            try:
                fits[key] = cost_fit.fit([one for one in measured if (one.sync, one.medium) == key], cores, kernels)
            except cost_book.CostsError as error:
                failures.append(f"{key[0]} by {key[1]}: {error}")
        if fits:
            costs = {key: fit.costs for key, fit in fits.items()}
            cost_book.write(os.path.join(options.out, "costs.json"), dataclasses.replace(book, costs=costs))
    if not fits:
        raise cost_book.CostsError("no cell could be fitted: " + "; ".join(failures))
    return fits, failures


def table(fits: Fits) -> list[str]:
    """The error of each fit."""
    lines = [f"{'error on sizes not seen, %':26}" + "".join(
        f"{name:>9}" for name in ("median", "worst", "band", "compute")) + "  worst error at"]
    for (sync, medium), fit in fits.items():
        shares = (fit.costs.median_error, fit.costs.worst_error, fit.costs.band, fit.computing_error)
        at = f"  {fit.worst_at.workers} workers, {fit.worst_at.servers} servers, {fit.worst_at.bytes} bytes"
        lines.append(f"{sync + ' by ' + medium:26}" + "".join(f"{100 * share:9.1f}" for share in shares) + at)
    return lines


def main() -> int:
    options = parse()
    try:
        os.makedirs(options.out, exist_ok=True)
        fits, failures = measure(options)
    except (programs.ProgramError, cost_book.CostsError, OSError, ValueError, LookupError) as error:
        print(f"growth: {error}", file=sys.stderr)
        return 2
    print("\n".join([*table(fits), *(f"not measured: {failure}" for failure in failures)]))
    print(f"{options.out}: {', '.join(sorted(os.listdir(options.out)))}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
