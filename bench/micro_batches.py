#!/usr/bin/env python3
"""Measures what --micro_batches costs, and what --elastic costs on top while nothing happens.

    bazel build -c opt //worker //server //deploy:launch
    python3 bench/micro_batches.py               M leaves against one
    python3 bench/micro_batches.py --elastic     an elastic star against one whose members are fixed

All ways of a row run in turn. A leaf is computed as a batch of its own, so M leaves cost M times what a batch
costs whatever its size, and their gradients are added. A cell has the ratio of the smallest p50 of the runs, the
first one its milliseconds: of one leaf, or of one for each worker. Two workers exchange through the servers of a star
on this machine.

With --elastic a row has, of two workers and two servers: the smallest p50 of a fixed star's runs; the ratio of that of
an elastic star to it; the ratios of the p50 of a step, of the time of the whole epoch, and of the processor time of all
processes per step, each the median of the pairs of runs with its quartiles; and of one run with timelines the part of
the time in which a server copies snapshots, and in which the reporting worker collects what a snapshot has besides
parameters. No p50 knows of what comes between two steps, nor of what only some steps have, as snapshots are: the epoch
does. Processor time is the difference between a whole run and one with a quarter of the steps, so that starting and
ending do not count.

A job that fails ends the program with exit status 1. One in which something has happened, so that it has more than one
generation, is named on standard error.
"""

from __future__ import annotations

import argparse
import dataclasses
import glob
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
# Steps of a run, by global batch: enough for a p50, and seconds at most. Large models take a part of them.
STEPS = {64: 600, 512: 100}
STEPS_PART = {"mnist_cnn": 4, "resnet20": 10}
REPEATS, REPEATS_ELASTIC = 7, 15
RUN_SECONDS_MAX = 1800
MODELS = ("logreg", "mlp", "lenet5", "mnist_cnn", "resnet20")


@dataclasses.dataclass(frozen=True)
class Run:
    p50_ms: float  # of a step
    epoch_s: float  # of all steps, with what comes between them
    cpu_s: float  # of all processes


def run(binaries: str, launch_flags: list[str], flags: list[str]) -> Run:
    """Without flags of the launcher: one worker without it."""
    with tempfile.TemporaryDirectory() as folder:
        record = os.path.join(folder, "record")
        command = [os.path.join(binaries, "worker/worker"), "--sync=local"]
        if launch_flags:
            command = [os.path.join(binaries, "deploy/launch"), *launch_flags, "--"]
        before = cpu_seconds_of_children()
        try:
            done = subprocess.run([*command, *flags, "--record=" + record, "--progress=none", "--checkpoint_dir=none"],
                                  check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  timeout=RUN_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            sys.exit("%s has not ended after %d s" % (" ".join(command + flags), RUN_SECONDS_MAX))
        if done.returncode != 0:
            sys.exit("%s: %s" % (" ".join(command + flags), done.stdout))
        generations = len(re.findall(r"server 0: generation \d+ from step", done.stdout))
        if generations > 1:
            print("%s had %d generations: its numbers are those of a disturbed run" % (
                " ".join(command + flags), generations), file=sys.stderr, flush=True)
        with open(record) as file:
            found = json.load(file)
        return Run(found["step_ms"]["p50"], sum(epoch["seconds"] for epoch in found["epochs"]),
                   cpu_seconds_of_children() - before)


def cpu_seconds_of_children() -> float:
    """Of those that have ended, and of their own."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def steps_of(model: str, batch: int) -> int:
    return STEPS.get(batch, 100) // STEPS_PART.get(model, 1)


def job(model: str, batch: int, steps: int) -> list[str]:
    # One epoch: an elastic star has a snapshot at the end of each.
    flags = ["--model=" + model, "--global_batch=%d" % batch, "--dataset=synthetic", "--epochs=1", "--device=cpu",
             "--synthetic_train_count=%d" % (batch * steps), "--synthetic_test_count=64", "--seed=1"]
    return flags + (["--synthetic_size=32", "--synthetic_channels=3"] if model == "resnet20" else [])


def in_turn(binaries: str, repeats: int, ways: list[tuple[list[str], list[str]]]) -> list[float]:
    """The smallest p50 of each way. Every second round goes backwards."""
    times: list[list[float]] = [[] for _ in ways]
    for repeat in range(repeats):
        for values, (launch_flags, flags) in list(zip(times, ways))[::-1 if repeat % 2 else 1]:
            values.append(run(binaries, launch_flags, flags).p50_ms)
    return [min(values) for values in times]


def part_of_time(folder: str, pattern: str, name: str) -> float:
    """The part of a timeline that the spans called `name` take; the largest of all files. Without such a span nothing
    was measured, which is not 0: the program ends.

    A track keeps its newest events alone, and one with many spans in a step reaches back less far than others: the part
    is that of the time from the first to the last event of the track."""
    parts = []
    for path in glob.glob(os.path.join(folder, pattern)):
        tracks: dict[int, list[dict[str, Any]]] = {}
        with open(path) as file:
            for event in json.load(file)["traceEvents"]:
                if event.get("ph") == "X":
                    tracks.setdefault(event["tid"], []).append(event)
        part = 0.0
        for spans in tracks.values():
            all_us = max(event["ts"] + event["dur"] for event in spans) - min(event["ts"] for event in spans)
            part += sum(event["dur"] for event in spans if event["name"] == name) / max(all_us, 1)
        parts += [part] if part else []
    if not parts:
        sys.exit("no timeline %s has a span %s" % (pattern, name))
    return max(parts)


def ratio(pairs: list[tuple[float, float]]) -> str:
    """Of the second of each pair to the first: the median, and the quartiles."""
    ratios = [second / first for first, second in pairs]
    if len(ratios) == 1:
        return "%.3f" % ratios[0]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return "%.3f (%.3f to %.3f)" % (median, low, high)


def elastic_row(binaries: str, repeats: int, model: str, batch: int) -> list[str]:
    fixed = ["--sync=star", "--workers=2", "--servers=2"]
    ways = [fixed, [*fixed, "--elastic"]]
    steps = 4 * steps_of(model, batch)
    flags = [*job(model, batch, steps), "--micro_batches=8"]
    fewer = [*job(model, batch, steps // 4), "--micro_batches=8"]
    pairs: list[tuple[Run, Run]] = []  # their processor time is that of three quarters of the steps
    for repeat in range(repeats):
        found: dict[int, Run] = {}
        for way in ((0, 1), (1, 0))[repeat % 2]:
            whole = run(binaries, ways[way], flags)
            cpu_s = whole.cpu_s - run(binaries, ways[way], fewer).cpu_s
            found[way] = dataclasses.replace(whole, cpu_s=cpu_s)
        pairs.append((found[0], found[1]))
    with tempfile.TemporaryDirectory() as folder:
        run(binaries, [*ways[1], "--trace=" + os.path.join(folder, "trace.json")], flags)
        fixed_ms, elastic_ms = (min(one.p50_ms for one in runs) for runs in zip(*pairs))
        return ["%.2f ms" % fixed_ms, "%.3f" % (elastic_ms / fixed_ms),
                ratio([(fixed.p50_ms, elastic.p50_ms) for fixed, elastic in pairs]),
                ratio([(fixed.epoch_s, elastic.epoch_s) for fixed, elastic in pairs]),
                ratio([(fixed.cpu_s, elastic.cpu_s) for fixed, elastic in pairs]),
                "%.2f %%" % (100 * part_of_time(folder, "trace.server-*.json", "snapshot")),
                "%.2f %%" % (100 * part_of_time(folder, "trace.worker-*.json", "history"))]


def numbers(text: str) -> list[int]:
    """Ascending, each once."""
    found = sorted({int(word) for word in text.split(",")})
    if found[0] < 1:
        raise ValueError(text)
    return found


def models_of(text: str) -> list[str]:
    found = text.split(",")
    if not set(found) <= set(MODELS):
        raise argparse.ArgumentTypeError("%r: names of %s, with commas" % (text, ", ".join(MODELS)))
    return found


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="micro_batches", allow_abbrev=False, description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=None,
                        help="(default: %d, with --elastic %d)" % (REPEATS, REPEATS_ELASTIC))
    parser.add_argument("--elastic", action="store_true", help="compare an elastic star with a fixed one")
    parser.add_argument("--models", type=models_of, default=list(MODELS[1:]),
                        help="(default: %s)" % ",".join(MODELS[1:]))
    parser.add_argument("--micro_batches", type=numbers, default=None,
                        help="the others are compared to the first one (default: 1,2,4,8,16)")
    parser.add_argument("--batches", type=numbers, default=sorted(STEPS), help="(default: 64,512)")
    parser.add_argument("--workers", type=numbers, default=None, help="(default: 1,2)")
    parser.add_argument("--binaries", default=os.path.join(ROOT, "bazel-bin"), help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.elastic and (options.micro_batches or options.workers):
        parser.error("with --elastic there are two workers and 8 micro-batches: leave out --workers, --micro_batches")
    options.micro_batches, options.workers = options.micro_batches or [1, 2, 4, 8, 16], options.workers or [1, 2]
    if options.workers[-1] > options.micro_batches[-1]:
        parser.error("%d workers need as many micro-batches, and --micro_batches has %d at most" % (
            options.workers[-1], options.micro_batches[-1]))
    if options.repeats is None:
        options.repeats = REPEATS_ELASTIC if options.elastic else REPEATS
    if options.repeats < 1:
        parser.error("--repeats=%d: it is at least 1" % options.repeats)
    return options


def main(arguments: list[str]) -> None:
    options = parse(arguments)
    models, batches, leaves = options.models, options.batches, options.micro_batches
    if options.elastic:
        head = ["model", "global batch", "star", "elastic star", "in pairs", "its epoch", "its processor time",
                "snapshots", "history"]
        print("| %s |\n|%s" % (" | ".join(head), " --- |" * len(head)))
        for model in models:
            for batch in batches:
                row = [model, str(batch), *elastic_row(options.binaries, options.repeats, model, batch)]
                print("| %s |" % " | ".join(row), flush=True)
        return
    print("| model | workers | global batch | %s |\n|%s" % (" | ".join("M = %d" % m for m in leaves),
                                                            " --- |" * (3 + len(leaves))))
    for model in models:
        for workers in options.workers:
            launch = ["--sync=star", "--workers=%d" % workers, "--servers=1"] if workers > 1 else []
            possible = [m for m in leaves if m >= workers]  # each worker computes one at least
            for batch in batches:
                times = in_turn(options.binaries, options.repeats,
                                [(launch, [*job(model, batch, steps_of(model, batch)), "--micro_batches=%d" % m])
                                 for m in possible])
                cells = ["-"] * (len(leaves) - len(possible))
                cells += ["%.2f ms" % times[0], *("%.3f" % (ms / times[0]) for ms in times[1:])]
                print("| %s | %d | %d | %s |" % (model, workers, batch, " | ".join(cells)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
