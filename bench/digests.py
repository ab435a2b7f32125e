#!/usr/bin/env python3
"""Runs one job in every cell and with several numbers of workers, and compares the digests.

    bazel run //bench:digests -- --workers=2,3,4,5,8 --models=logreg,mlp,lenet5

A row is a model, a number of workers and an order of sums. Its first digest is that of tests/reference_job, one process
that adds all gradients in the order of common/arithmetic/reduction_order.h and has no exchange; every cell must have
the same. Rings refuse the order `tree`, so their fields are empty there. Exit status 0: every digest is right, 1: a job
failed or has another digest, 2: the command line was refused.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable

import sync_cells

LAUNCH = os.path.abspath("deploy/launch")
REFERENCE_JOB = os.path.abspath("tests/reference_job/reference_job")
JOB_SECONDS_MAX = 600
ORDERS = ("chain", "tree")
# Eight processes may share two cores.
PATIENT = ["--progress=none", "--join_deadline_s=120", "--exchange_deadline_s=120"]


def job_flags(model: str, order: str, steps: int) -> list[str]:
    # 517 images: the last batch of an epoch is a short one. The default optimizer has momentum, so owners have a state.
    return ["--model=" + model, "--dataset=synthetic", "--synthetic_train_count=517", "--synthetic_test_count=64",
            "--global_batch=64", "--epochs=100", "--max_steps=%d" % steps, "--seed=1",
            "--sum_order=" + order]


def reference_digest(workers: int, flags: list[str]) -> str:
    return subprocess.run([REFERENCE_JOB, str(workers), *flags], check=True, stdout=subprocess.PIPE, text=True,
                          timeout=JOB_SECONDS_MAX).stdout.strip()


def cell_digest(cell: sync_cells.Cell, workers: int, flags: list[str]) -> str:
    """The digest of a job in that cell. Raises RuntimeError with the job's output if it failed."""
    command = [LAUNCH, *cell.flags, "--workers=%d" % workers]
    if cell.has_servers:
        command.append("--servers=2")
    with tempfile.TemporaryDirectory() as folder:
        record = os.path.join(folder, "record.json")
        done = subprocess.run([*command, "--", *flags, *PATIENT, "--record=" + record], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                              timeout=JOB_SECONDS_MAX, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stdout[-2000:])
        with open(record, encoding="utf-8") as file:
            return str(json.load(file)["parameter_sha256"])


def row(model: str, workers: int, order: str, options: argparse.Namespace) -> tuple[list[str], bool]:
    """The row's fields, and whether all of its digests are equal."""
    flags = job_flags(model, order, options.steps)
    expected = reference_digest(workers, flags)
    fields, good = [model, str(workers), order, expected[:12]], True
    for sync in options.syncs:
        cell = sync_cells.BY_SYNC[sync]
        if order == "tree" and cell.topology == "ring":
            fields.append("")
            continue
        try:
            found = cell_digest(cell, workers, flags)
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            print("digests: %s, %d workers, %s, %s failed: %s" % (model, workers, order, sync, error), flush=True)
            found = "failed"
        good = good and found == expected
        fields.append("equal" if found == expected else "**%s**" % found[:12])
    return fields, good


def measure(options: argparse.Namespace) -> bool:
    good, right, cells = True, 0, 0
    rows = [["model", "workers", "order", "formula", *options.syncs]]
    rows.append(["---"] * len(rows[0]))
    for model in options.models:
        for workers in options.workers:
            for order in options.orders:
                fields, is_good = row(model, workers, order, options)
                good = good and is_good
                right += fields.count("equal")
                cells += len([field for field in fields[4:] if field])
                rows.append(fields)
                print("digests: %s" % " ".join(field for field in fields if field), flush=True)
    print("\n".join("| %s |" % " | ".join(fields) for fields in rows))
    print("digests: %d of %d jobs have the formula's digest, %d steps each" % (right, cells, options.steps))
    return good


def numbers(text: str) -> list[int]:
    values = [int(word) for word in text.split(",") if word]
    if not values or any(value < 1 for value in values):
        raise ValueError(text)
    return values


def names_of(*known: str) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        if not names or not set(names) <= set(known):
            raise argparse.ArgumentTypeError("%r: names of %s, with commas" % (text, ", ".join(known)))
        return names
    return parse


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="digests", description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--workers", type=numbers, default=[2, 3, 4, 5, 8], help="(default: 2,3,4,5,8)")
    parser.add_argument("--models", type=names_of("logreg", "mlp", "lenet5", "mnist_cnn", "resnet20"),
                        default=["mlp"], help="(default: mlp)")
    parser.add_argument("--orders", type=names_of(*ORDERS), default=list(ORDERS), help="(default: chain,tree)")
    parser.add_argument("--syncs", type=names_of(*sync_cells.SYNCS), default=list(sync_cells.SYNCS),
                        help="the cells (default: all)")
    parser.add_argument("--steps", type=int, default=20, help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    return 0 if measure(options) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
