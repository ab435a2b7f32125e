#!/usr/bin/env python3
"""How good does lenet5 become on MNIST in a second of steps? Trains it from several seeds.

    bazel run //bench/records:mnist -- --data_dir=FOLDER [--seeds=1-20] [--device=auto]

FOLDER is one that deploy/get_data.sh has filled. Each run has the flags of RECIPE, three epochs in all. Prints for each
seed the accuracy on the 10,000 test images after the last epoch, and two times:

  steps s   all steps of the run, from the first batch to the last update: captures of graphs and warm-up included,
            evaluations left out
  whole s   the process, from its start to its end: reading data, the GPU's context, and evaluations too

Exit status: 0; 1 a run failed, or the mean accuracy is below --target; 2 nothing was trained.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

HERE = os.path.dirname(os.path.abspath(__file__))
# In a bundle, in runfiles and in a source tree.
WORKERS = ("../../bin/worker", "../../worker/worker", "../../bazel-bin/worker/worker")
RECIPE = ["--model=lenet5", "--dataset=mnist", "--global_batch=64", "--epochs=3", "--learning_rate=0.05",
          "--momentum=0.9", "--nesterov", "--schedule=cosine", "--warmup_steps=100"]
RUN_SECONDS_MAX = 1800


class RecordsError(Exception):
    """The message says what failed."""


class Run(NamedTuple):
    """What one run's record says."""
    seed: int
    accuracy: float
    steps_s: float
    whole_s: float
    steps: int
    p50_ms: float
    device: str


def seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    if not first.isdigit() or not (last or first).isdigit() or int(last or first) < int(first):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor like 1-20")
    return list(range(int(first), int(last or first) + 1))


def worker_path(given: str) -> str:
    places = [given] if given else [os.path.normpath(os.path.join(HERE, place)) for place in WORKERS]
    for path in places:
        if os.path.isfile(path):
            return path
    raise RecordsError("none of these exists: " + ", ".join(places))


def command(flags: argparse.Namespace, seed: int, record: str) -> list[str]:
    """--train_flags replace those of the recipe."""
    more = shlex.split(flags.train_flags)
    names = {flag.partition("=")[0] for flag in more}
    recipe = [flag for flag in RECIPE if flag.partition("=")[0] not in names]
    data = [f"--data_dir={flags.data_dir}"] if flags.data_dir else []
    return [flags.worker, "--sync=local", f"--device={flags.device}", *recipe, *more, *data, f"--seed={seed}",
            "--progress=none", "--checkpoint_dir=none", f"--record={record}"]


def run_of(seed: int, record: dict[str, Any], whole_s: float) -> Run:
    return Run(seed=seed, accuracy=record["epochs"][-1]["test_accuracy"],
               steps_s=sum(epoch["seconds"] for epoch in record["epochs"]), whole_s=whole_s, steps=record["steps"],
               p50_ms=record["step_ms"]["p50"], device=record["host"]["device"])


def train(flags: argparse.Namespace, seed: int) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "record.json")
        begin = time.monotonic()
        done = subprocess.run(command(flags, seed, path), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False, timeout=RUN_SECONDS_MAX)
        whole_s = time.monotonic() - begin
        if done.returncode != 0:
            raise RecordsError(f"seed {seed}: exit status {done.returncode}: {done.stderr.strip()}")
        with open(path, encoding="utf-8") as file:
            return run_of(seed, json.load(file), whole_s)


def line(run: Run) -> str:
    return f"{run.seed:>4}  {100 * run.accuracy:7.2f} %  {run.steps_s:8.3f}  {run.whole_s:8.3f}  {run.p50_ms:8.4f}"


def conclusion(runs: list[Run], target: float) -> list[str]:
    """Sentences about all runs."""
    accuracies = [run.accuracy for run in runs]
    spread = f", standard deviation {100 * statistics.stdev(accuracies):.2f}" if len(runs) > 1 else ""
    reached = sum(accuracy >= target for accuracy in accuracies)
    return [f"{len(runs)} seeds, {runs[0].steps} steps each, on {runs[0].device}",
            f"accuracy: mean {100 * statistics.mean(accuracies):.2f} %, least {100 * min(accuracies):.2f} %, most "
            f"{100 * max(accuracies):.2f} %{spread}; {reached} of {len(runs)} reach {100 * target:.2f} %",
            f"seconds of steps: median {statistics.median(run.steps_s for run in runs):.3f}, most "
            f"{max(run.steps_s for run in runs):.3f}; of the whole process: median "
            f"{statistics.median(run.whole_s for run in runs):.3f}"]


def parse_flags(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0], allow_abbrev=False)
    parser.add_argument("--data_dir", default="", help="the folder with MNIST; empty: the worker's default")
    parser.add_argument("--seeds", type=seeds, default="1-20")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--target", type=float, default=0.99, help="mean accuracy below which the exit status is 1")
    parser.add_argument("--train_flags", default="", help="more flags of the worker, such as --math=tf32")
    parser.add_argument("--worker", default="", help="the worker's binary")
    flags = parser.parse_args(arguments)
    # `bazel run` starts us in another folder.
    if flags.data_dir:
        flags.data_dir = os.path.abspath(os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", "."), flags.data_dir))
    return flags


def main() -> int:
    flags = parse_flags()
    runs: list[Run] = []
    failed = False
    try:
        flags.worker = worker_path(flags.worker)
        print("worker " + shlex.join(command(flags, 1, "record.json")[1:]))
        print("seed   accuracy   steps s   whole s    p50 ms")
        for seed in flags.seeds:
            runs.append(train(flags, seed))
            print(line(runs[-1]), flush=True)
    except (RecordsError, subprocess.TimeoutExpired, KeyboardInterrupt) as error:
        print(f"mnist: {str(error) or 'stopped: what follows is of the seeds so far'}", file=sys.stderr)
        failed = True
    if not runs:
        return 2
    print("\n".join(conclusion(runs, flags.target)))
    return 1 if failed or statistics.mean(run.accuracy for run in runs) < flags.target else 0


if __name__ == "__main__":
    sys.exit(main())
