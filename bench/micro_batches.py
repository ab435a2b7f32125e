#!/usr/bin/env python3
"""Measures what --micro_batches costs, and what --elastic costs on top while nothing happens.

    bazel build -c opt //worker //server //deploy:launch
    python3 bench/micro_batches.py --repeats=7               M leaves against one
    python3 bench/micro_batches.py --repeats=15 --elastic    an elastic star against one whose members are fixed

All ways of a row run in turn. A leaf is computed as a batch of its own, so M leaves cost M times what a batch
costs whatever its size, and their gradients are added. A cell has the ratio of the smallest p50 of the runs, the
first one its milliseconds: of one leaf, or of one for each worker. Two workers exchange through the servers of a star
on this machine.

With --elastic a row has, of two workers and two servers: the smallest p50 of a fixed star's runs; the ratio of that of
an elastic star to it; the ratios of the p50 of a step and of the processor time of all processes per step, each the
median of the pairs of runs with its quartiles; and of one run with timelines the part of the time in which a server
copies snapshots, and in which the reporting worker collects what a snapshot has besides parameters. Processor time
is the difference between a whole run and one with a quarter of the steps, so that starting and ending do not count.
"""

from __future__ import annotations

import argparse
import dataclasses
import glob
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
# Steps of a run, by global batch: enough for a p50, and seconds at most.
STEPS = {64: 600, 512: 100}


@dataclasses.dataclass(frozen=True)
class Run:
    p50_ms: float  # of a step
    cpu_s: float  # of all processes


def run(binaries: str, launch_flags: list[str], flags: list[str]) -> Run:
    """Without flags of the launcher: one worker without it."""
    with tempfile.TemporaryDirectory() as folder:
        record = os.path.join(folder, "record")
        command = [os.path.join(binaries, "worker/worker"), "--sync=local"]
        if launch_flags:
            command = [os.path.join(binaries, "deploy/launch"), *launch_flags, "--"]
        before = cpu_seconds_of_children()
        done = subprocess.run([*command, *flags, "--record=" + record, "--progress=none"], check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit("%s: %s" % (" ".join(command + flags), done.stdout))
        with open(record) as file:
            return Run(json.load(file)["step_ms"]["p50"], cpu_seconds_of_children() - before)


def cpu_seconds_of_children() -> float:
    """Of those that have ended, and of their own."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def job(model: str, batch: int, steps: int) -> list[str]:
    # One epoch: an elastic star has a snapshot at the end of each.
    flags = ["--model=" + model, "--global_batch=%d" % batch, "--dataset=synthetic", "--epochs=1", "--device=cpu",
             "--synthetic_train_count=%d" % (batch * steps), "--synthetic_test_count=64", "--seed=1"]
    return flags + (["--synthetic_size=32", "--synthetic_channels=3"] if model == "resnet20" else [])


def in_turn(binaries: str, repeats: int, ways: list[tuple[list[str], list[str]]]) -> list[float]:
    """The smallest p50 of each way."""
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats):
        for values, (launch_flags, flags) in zip(times, ways):
            values.append(run(binaries, launch_flags, flags).p50_ms)
    return [min(values) for values in times]


def part_of_time(folder: str, pattern: str, name: str) -> float:
    """The part of a timeline that the spans called `name` take; the largest of all files."""
    parts = [0.0]
    for path in glob.glob(os.path.join(folder, pattern)):
        with open(path) as file:
            spans = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
        if spans:
            all_us = max(event["ts"] + event["dur"] for event in spans) - min(event["ts"] for event in spans)
            parts.append(sum(event["dur"] for event in spans if event["name"] == name) / max(all_us, 1))
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
    steps = 4 * STEPS.get(batch, 100)
    flags = [*job(model, batch, steps), "--micro_batches=8"]
    fewer = [*job(model, batch, steps // 4), "--micro_batches=8"]
    p50s: list[tuple[float, float]] = []
    cpu_s: list[tuple[float, float]] = []
    for repeat in range(repeats):
        found: dict[int, tuple[float, float]] = {}
        for way in ((0, 1), (1, 0))[repeat % 2]:
            whole = run(binaries, ways[way], flags)
            found[way] = whole.p50_ms, whole.cpu_s - run(binaries, ways[way], fewer).cpu_s
        p50s.append((found[0][0], found[1][0]))
        cpu_s.append((found[0][1], found[1][1]))
    with tempfile.TemporaryDirectory() as folder:
        run(binaries, [*ways[1], "--trace=" + os.path.join(folder, "trace.json")], flags)
        fixed_ms, elastic_ms = (min(values) for values in zip(*p50s))
        return ["%.2f ms" % fixed_ms, "%.3f" % (elastic_ms / fixed_ms), ratio(p50s), ratio(cpu_s),
                "%.2f %%" % (100 * part_of_time(folder, "trace.server-*.json", "snapshot")),
                "%.2f %%" % (100 * part_of_time(folder, "trace.worker-*.json", "history"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--elastic", action="store_true", help="compare an elastic star with a fixed one")
    parser.add_argument("--models", default="mlp,lenet5,mnist_cnn,resnet20")
    parser.add_argument("--micro_batches", default="1,2,4,8,16", help="the others are compared to the first one")
    parser.add_argument("--batches", default="64,512")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--binaries", default=os.path.join(ROOT, "bazel-bin"))
    options = parser.parse_args()
    models, batches = options.models.split(","), [int(text) for text in options.batches.split(",")]
    if options.elastic:
        head = ["model", "global batch", "star", "elastic star", "in pairs", "its processor time", "snapshots",
                "history"]
        print("| %s |\n|%s" % (" | ".join(head), " --- |" * len(head)))
        for model in models:
            for batch in batches:
                row = [model, str(batch), *elastic_row(options.binaries, options.repeats, model, batch)]
                print("| %s |" % " | ".join(row), flush=True)
        return
    leaves = [int(text) for text in options.micro_batches.split(",")]
    print("| model | workers | global batch | %s |\n|%s" % (" | ".join("M = %d" % m for m in leaves),
                                                            " --- |" * (3 + len(leaves))))
    for model in models:
        for workers in map(int, options.workers.split(",")):
            launch = ["--sync=star", "--workers=%d" % workers, "--servers=1"] if workers > 1 else []
            possible = [m for m in leaves if m >= workers]  # each worker computes one at least
            for batch in batches:
                times = in_turn(options.binaries, options.repeats,
                                [(launch, [*job(model, batch, STEPS.get(batch, 100)), "--micro_batches=%d" % m])
                                 for m in possible])
                cells = ["-"] * (len(leaves) - len(possible))
                cells += ["%.2f ms" % times[0], *("%.3f" % (ms / times[0]) for ms in times[1:])]
                print("| %s | %d | %d | %s |" % (model, workers, batch, " | ".join(cells)), flush=True)


if __name__ == "__main__":
    main()
