"""The gate of a change to the exchanges: runs the programs of an earlier commit and those of this one in turns.

    bazel run //bench:gate -- --keep=FOLDER       before the change: keeps this commit's programs there
    bazel run //bench:gate -- --old=FOLDER        after it: compares, on two quiet cores in some 20 minutes

Compared are the time of a step with 2 and 4 ranks, processor time and messages of a step with 8 ranks, and the resident
memory of a process. The change is refused, with exit status 1, if

    the geometric mean of the ratios of a kind of cells is above 1.01, or a cell's 95 % interval is wholly above 1.03;
    a process needs more than 1.02 times the memory, or a step more than 1.01 times the messages.

The ratio of a cell is the geometric mean of its repeats' ratios, whose logarithms give Student's t interval.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import alone
import cells
import judge
import machine
import programs
from cells import Cell, Run

RUN_SECONDS_MAX = 120
REPEATS_MANY, REPEATS_MEMORY = 3, 2

Rows = dict[Cell, list[dict[str, Any]]]
Start = Callable[[Run, str], list[dict[str, Any]]]


def start(run: Run, folder: str) -> list[dict[str, Any]]:
    return alone.rows(programs.run(run.argv(folder, len(machine.cores())), programs.MPI_ENVIRONMENT,
                                   RUN_SECONDS_MAX))


def measure(runs: Sequence[Run], folders: Sequence[str], repeats: int, start_run: Start,
            say: Callable[[str], None]) -> list[Rows]:
    """The rows of each folder's programs, by cell, a row a repeat. The folders take turns in who begins."""
    found: list[Rows] = [{} for _ in folders]
    for repeat in range(repeats):
        began = time.monotonic()
        for run in runs:
            order = range(len(folders))
            for index in order if repeat % 2 == 0 else reversed(order):
                for row in start_run(run, folders[index]):
                    cell = Cell(*run.names[row["sync"]], run.ranks, row["bytes"])
                    found[index].setdefault(cell, []).append(row)
        say(f"repeat {repeat + 1} of {repeats}: {time.monotonic() - began:.0f} s")
    return found


def pairs(old: Rows, new: Rows, field: str) -> dict[Cell, list[tuple[float, float]]]:
    """The values of `field` that both have, and that are not 0."""
    return {cell: [(one[field], other[field]) for one, other in zip(rows, new[cell])]
            for cell, rows in old.items() if cell in new and all(row[field] > 0 for row in [*rows, *new[cell]])}


def compare(folders: Sequence[str], repeats: int, start_run: Start, say: Callable[[str], None]
            ) -> tuple[str, list[str]]:
    """The page, and a line for each bar that is missed."""
    few = [run for ranks in cells.RANKS for run in cells.runs(ranks, cells.SIZES)]
    old, new = measure(few, folders, repeats, start_run, say)
    times = judge.of_cells(pairs(old, new, "latency_us"))
    many = cells.runs(cells.RANKS_MANY, cells.SIZES_MANY)
    old, new = measure(many, folders, min(repeats, REPEATS_MANY), start_run, say)
    processor = judge.of_cells(pairs(old, new, "cpu_us"))
    messages = judge.of_cells(pairs(old, new, "messages"))
    old, new = measure(cells.runs_of_memory(), folders, min(repeats, REPEATS_MEMORY), start_run, say)
    memory = judge.of_cells(pairs(old, new, "resident_kib"))
    failures = (judge.failures_of_times("the time of a step", times) +
                judge.failures_of_times("the processor time of a step", processor) +
                judge.failures_of_counts("messages", messages, judge.MESSAGES_MAX) +
                judge.failures_of_counts("resident KiB", memory, judge.MEMORY_MAX))
    parts = [f"## Time of a step, {repeats} repeats\n\n{judge.table_of_kinds(times)}",
             f"## Processor time of a step, {cells.RANKS_MANY} ranks\n\n{judge.table_of_kinds(processor)}",
             f"## Messages that a rank sends in a step, {cells.RANKS_MANY} ranks\n\n"
             f"{judge.table_of_cells(messages, 'messages')}",
             f"## Resident memory of a process, {judge.size_text(cells.SIZE_OF_MEMORY)}\n\n"
             f"{judge.table_of_cells(memory, 'KiB')}",
             f"## Every cell\n\n{judge.table_of_cells(times, 'us')}"]
    return "\n\n".join(parts), failures


def keep(folder: str) -> None:
    os.makedirs(folder, exist_ok=True)
    for name in cells.PROGRAMS:
        # The programs of Bazel cannot be written; a copy over one that is kept already would fail.
        path = os.path.join(folder, name)
        if os.path.exists(path):
            os.remove(path)
        shutil.copy(programs.binary("bench/" + name), path)
    with open(os.path.join(folder, "commit"), "w") as file:
        file.write(programs.commit())


def commit_of(folder: str) -> str:
    try:
        with open(os.path.join(folder, "commit")) as file:
            return file.read().strip()
    except OSError:
        return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--keep", metavar="FOLDER", help="copy this commit's programs there, and end")
    what.add_argument("--old", metavar="FOLDER", help="compare with the programs that --keep has put there")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", metavar="FILE", help="write the page there, too")
    flags = parser.parse_args()
    if flags.repeats < 2:
        parser.error(f"--repeats={flags.repeats}: an interval needs at least 2")
    # `bazel run` starts programs in a folder of its own.
    here = os.environ.get("BUILD_WORKING_DIRECTORY", ".")
    if flags.keep:
        keep(os.path.join(here, flags.keep))
        return 0
    with tempfile.TemporaryDirectory() as today:
        keep(today)
        folders = [os.path.join(here, flags.old), today]
        missing = [path for name in cells.PROGRAMS
                   for path in [os.path.join(folders[0], name)] if not os.access(path, os.X_OK)]
        if missing:
            parser.error(f"no {', '.join(missing)}: --keep puts the programs there")
        print(f"{commit_of(folders[0])} against {commit_of(folders[1])}", file=sys.stderr)
        page, failures = compare(folders, flags.repeats, start, lambda line: print(line, file=sys.stderr, flush=True))
    print(page)
    if flags.out:
        with open(os.path.join(here, flags.out), "w") as file:
            file.write(page + "\n")
    for line in failures:
        print("gate: " + line, file=sys.stderr)
    print(f"gate: {'refused' if failures else 'passed'}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except programs.ProgramError as error:
        sys.exit(f"gate: {error}")
