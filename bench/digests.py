#!/usr/bin/env python3
"""Runs one job in every cell and with several numbers of workers, and compares the digests.

    bazel run //bench:digests -- --workers=2,3,4,5,8 --models=logreg,mlp,lenet5
    bazel run //bench:digests -- --micro_batches=8 --workers=1,2,3,4,5,6,7,8 --servers=1,2,3 --models=lenet5,resnet20

A row is a model, a number of workers and an order of sums. Its first digest is that of tests/reference_job, one process
that adds all gradients in the order of common/arithmetic/reduction_order.h and has no exchange; every cell must have
the same. Rings refuse the order `tree`, so their fields are empty there. With --micro_batches all rows of a model have
one digest, and every job the losses and accuracies of the job without an exchange. Exit status 0: every digest is
right, and there is one; 1: a job failed or has another digest; 2: the command line was refused.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import sync_cells

LAUNCH = os.path.abspath("deploy/launch")
REFERENCE_JOB = os.path.abspath("tests/reference_job/reference_job")
JOB_SECONDS_MAX = 600
ORDERS = ("chain", "tree")
# Eight processes may share two cores.
PATIENT = ["--progress=none", "--checkpoint_dir=none", "--join_deadline_s=120", "--exchange_deadline_s=120"]


# A number of workers may be a job of its own, without an exchange.
LOCAL = "local"


def job_flags(model: str, steps: int) -> list[str]:
    # 517 images: the last batch of an epoch is a short one. The default optimizer has momentum, so owners have a state.
    images = ["--synthetic_size=32", "--synthetic_channels=3", "--augment=crop_flip"] if model == "resnet20" else []
    return ["--model=" + model, "--dataset=synthetic", "--synthetic_train_count=517", "--synthetic_test_count=300",
            "--global_batch=64", "--epochs=100", "--max_steps=%d" % steps, "--seed=1", *images]


def reference_digest(leaves: int, order: str, flags: list[str]) -> str:
    """What no job has if the program fails."""
    try:
        return subprocess.run([REFERENCE_JOB, str(leaves), *flags, "--sum_order=" + order], check=True,
                              stdout=subprocess.PIPE, text=True, timeout=JOB_SECONDS_MAX).stdout.strip()
    except subprocess.SubprocessError as error:
        print("digests: the formula failed: %s" % error, flush=True)
        return "**failed**"


def run_record(command: list[str], flags: list[str]) -> dict[str, Any]:
    """The record of a job. Raises RuntimeError with the job's output if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        record = os.path.join(folder, "record.json")
        done = subprocess.run([*command, *flags, *PATIENT, "--record=" + record], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                              timeout=JOB_SECONDS_MAX, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stdout[-2000:])
        with open(record, encoding="utf-8") as file:
            loaded: dict[str, Any] = json.load(file)
            return loaded


def values_of(record: dict[str, Any]) -> list[Any]:
    """What does not depend on the number of workers, with --micro_batches."""
    names = ("train_loss", "test_loss", "test_accuracy")
    return [[epoch[name] for name in names] for epoch in record["epochs"]] + [
        [one["step"], one["loss"]] for one in record["losses"]]


def columns(options: argparse.Namespace) -> Iterator[tuple[str, sync_cells.Cell, int]]:
    """The title of each column, its cell, and the number of servers."""
    for sync in options.syncs:
        cell = sync_cells.BY_SYNC[sync]
        for servers in options.servers if cell.has_servers else [0]:
            yield sync + (" %d" % servers if servers and len(options.servers) > 1 else ""), cell, servers


class Row:
    """The jobs of a model and a number of workers."""

    def __init__(self, options: argparse.Namespace, model: str, workers: int, order: str) -> None:
        self.options, self.workers, self.order = options, workers, order
        self.flags = job_flags(model, options.steps)
        leaves = options.micro_batches or workers
        self.expected = reference_digest(leaves, order, self.flags)
        self.values: list[Any] | None = None
        if options.micro_batches:
            self.flags += ["--micro_batches=%d" % options.micro_batches, "--record_losses"]
            self.name = [model, str(workers), "%d leaves" % leaves]
        else:
            self.flags.append("--sum_order=" + order)
            self.name = [model, str(workers), order]

    def field(self, title: str, command: list[str]) -> str:
        try:
            record = run_record(command, self.flags)
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            print("digests: %s, %s failed: %s" % (", ".join(self.name), title, error), flush=True)
            return "**failed**"
        found = str(record["parameter_sha256"])
        if found != self.expected:
            return "**%s**" % found[:12]
        if self.options.micro_batches:
            values = values_of(record)
            self.values = self.values or values
            if values != self.values:
                return "**other losses**"
        return "equal"

    def fields(self) -> list[str]:
        found = [*self.name, self.expected[:12]]
        if self.options.micro_batches:
            found.append(self.field(LOCAL, [LAUNCH, "--sync=local", "--"]))
        for title, cell, servers in columns(self.options):
            command = [LAUNCH, *cell.flags, "--workers=%d" % self.workers]
            if cell.has_servers:
                command.append("--servers=%d" % servers)
            is_refused = self.order == "tree" and cell.topology == "ring"
            own = sync_cells.WORKER_FLAGS.get(cell.sync, [])
            found.append("" if is_refused else self.field(title, [*command, "--", *own]))
        return found


def measure(options: argparse.Namespace) -> bool:
    right, cells = 0, 0
    local = [LOCAL] if options.micro_batches else []
    rows = [["model", "workers", "order", "formula", *local, *(title for title, _, _ in columns(options))]]
    rows.append(["---"] * len(rows[0]))
    for model in options.models:
        for workers in options.workers:
            for order in ["tree"] if options.micro_batches else options.orders:
                fields = Row(options, model, workers, order).fields()
                right += fields.count("equal")
                cells += len([field for field in fields[4:] if field])
                rows.append(fields)
                print("digests: %s" % " ".join(field for field in fields if field), flush=True)
    print("\n".join("| %s |" % " | ".join(fields) for fields in rows))
    print("digests: %d of %d jobs have the formula's digest, %d steps each" % (right, cells, options.steps))
    return right == cells > 0


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
    parser = argparse.ArgumentParser(prog="digests", allow_abbrev=False,
                                     description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--workers", type=numbers, default=[2, 3, 4, 5, 8], help="(default: 2,3,4,5,8)")
    parser.add_argument("--models", type=names_of("logreg", "mlp", "lenet5", "mnist_cnn", "resnet20"),
                        default=["mlp"], help="(default: mlp)")
    parser.add_argument("--orders", type=names_of(*ORDERS), default=None, help="(default: chain,tree)")
    parser.add_argument("--syncs", type=names_of(*sync_cells.SYNCS), default=list(sync_cells.SYNCS),
                        help="the cells (default: all)")
    parser.add_argument("--servers", type=numbers, default=[2], help="of the cells that have some (default: 2)")
    parser.add_argument("--micro_batches", type=int, default=0,
                        help="the leaves of every job; 0: a worker's part of a batch is one (default: 0)")
    parser.add_argument("--steps", type=int, default=20, help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.steps < 1 or options.micro_batches < 0:
        parser.error("--steps must be 1 or more, --micro_batches 0 or more")
    if options.micro_batches and options.orders:
        parser.error("--micro_batches are added as a tree: leave out --orders")
    if 0 < options.micro_batches < max(options.workers):
        parser.error("each of %d workers needs one of --micro_batches=%d" % (
            max(options.workers), options.micro_batches))
    options.orders = options.orders or list(ORDERS)
    return 0 if measure(options) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
