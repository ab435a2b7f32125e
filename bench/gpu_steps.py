#!/usr/bin/env python3
"""Times whole training steps on one GPU: Starring against PyTorch with its best settings.

    bazel build //worker && bench/gpu_steps.py --torch_python=/path/to/python3

For each of --maths (fp32: exact; tf32; bf16), model and batch, the jobs run in turns (A B C A B C ...) on the same GPU.
The table has medians of --repeats in milliseconds per step, and ratios. Starring's step is the whole step, from the
loader to the optimizer, on synthetic data. It runs with and without its graph, and with the convolutions that
--conv=auto does not take: cuDNN's in fp32, its own otherwise. PyTorch's data set is in the GPU's memory
(ddp/torch_steps.py) and its optimizer is fused; it runs eagerly, captured in a CUDA graph, and captured with images in
channels_last. A run takes at least --steps steps and --seconds seconds after a second of warm-up, and its value is the
median of the steps (Starring's include the warm-up). With --seconds=0 and --warmup_s=0 it has just --steps steps.
Targets: at batch 64 at most a quarter of PyTorch eager and 0.9 of PyTorch captured, at batch 512 PyTorch's best.

Exit status: 0 all targets met, 1 not all, 2 nothing could be measured. --device=cpu only shows that the script works.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Dict, List, Tuple

HERE = os.path.dirname(os.path.abspath(__file__))
WORKERS = ("../bin/worker", "../bazel-bin/worker/worker")  # in a bundle, in a source tree
JOB_SECONDS_MAX = 900
OURS = ("graph", "no graph", "other conv")  # other conv: a graph, and the convolutions that --conv=auto does not take
THEIRS = ("eager", "captured", "nhwc")  # nhwc: captured, channels_last
MATHS = ("fp32", "tf32", "bf16")
# Divisible by 64 and by 512: a shorter last batch would need a graph of its own in the middle of a run.
TRAIN_COUNT = 61440
PROBE_STEPS = 300
# {batch: {the peer's job: the largest ratio allowed}}
TARGETS: Dict[int, Dict[str, float]] = {64: {"eager": 0.25, "captured": 0.9}, 512: {"best": 1.0}}

Row = Tuple[str, str, int, Dict[str, List[float]]]  # math, model, batch, {job: milliseconds}


class BenchError(Exception):
    """Nothing could be measured; the message says why."""


def existing(*paths: str) -> str:
    for path in paths:
        if os.path.exists(path):
            return path
    raise BenchError("none of these exists: " + ", ".join(paths))


def run(command: list[str]) -> str:
    """Runs a program and returns its standard output."""
    try:
        done = subprocess.run(command, text=True, capture_output=True, timeout=JOB_SECONDS_MAX, check=False)
    except OSError as error:
        raise BenchError(f"{command[0]}: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{' '.join(command)}: no end after {JOB_SECONDS_MAX} s") from error
    if done.returncode != 0:
        raise BenchError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout


def time_worker(flags: argparse.Namespace, math: str, job: str, model: str, batch: int) -> tuple[float, str]:
    """Milliseconds per step, and the device."""
    seconds = flags.warmup_s + flags.seconds
    if flags.device == "cpu" or seconds == 0:
        return run_worker(flags, math, job, model, batch, flags.steps)
    probe_ms, _ = run_worker(flags, math, job, model, batch, PROBE_STEPS)
    return run_worker(flags, math, job, model, batch, max(flags.steps, int(1000 * seconds / probe_ms)))


def run_worker(flags: argparse.Namespace, math: str, job: str, model: str, batch: int, steps: int) -> tuple[float, str]:
    with tempfile.TemporaryDirectory() as folder:
        record_file = os.path.join(folder, "record.json")
        size = ["--synthetic_size=32", "--synthetic_channels=3"] if model == "resnet20" else []
        other_conv = "cudnn" if math == "fp32" else "own"
        run([flags.worker, "--sync=local", f"--device={flags.device}", f"--math={math}", f"--model={model}",
             "--dataset=synthetic", *size, f"--synthetic_train_count={TRAIN_COUNT}", f"--global_batch={batch}",
             "--synthetic_test_count=10", "--epochs=100000", f"--max_steps={steps}", "--progress=none",
             "--checkpoint_dir=none",
             f"--loader_threads={flags.loader_threads}", f"--record={record_file}",
             *(["--nocuda_graph"] if job == "no graph" else []),
             *([f"--conv={other_conv}"] if job == "other conv" else [])])
        with open(record_file, encoding="utf-8") as file:
            record = json.load(file)
    return record["step_ms"]["p50"], record["host"]["device"]


def time_torch(flags: argparse.Namespace, math: str, job: str, model: str, batch: int) -> tuple[float, str]:
    """Milliseconds per step, and the device."""
    mode = "eager" if job == "eager" else "captured"
    line = run([flags.torch_python, existing(f"{HERE}/ddp/torch_steps.py"), f"--model={model}", f"--batch={batch}",
                f"--mode={mode}", f"--math={math}", f"--device={flags.device}", f"--steps={flags.steps}",
                f"--seconds={flags.seconds}", f"--warmup_s={flags.warmup_s}",
                *(["--channels_last"] if job == "nhwc" else [])])
    result = json.loads(line)
    return result["step_ms"], f"{result['device']}, torch {result['torch']}"


def targets_of(batch: int, medians: dict[str, float]) -> list[tuple[str, float, float]]:
    """(the peer's job, ratio, limit) of each target of one row."""
    ours = medians["graph"]
    found = []
    for whom, limit in TARGETS.get(batch, {}).items():
        peers = [medians[name] for name in (THEIRS if whom == "best" else (whom,)) if name in medians]
        if peers:
            found.append((whom, ours / min(peers), limit))
    return found


def table(jobs: list[str], rows: list[Row]) -> list[str]:
    """The lines of the table."""
    lines = [f"{'math':<5}{'model':<10} {'batch':>5} " + "".join(f"{job + ' ms':>13}{'spread':>8}" for job in jobs) +
             "".join(f"{'/ ' + job:>11}" for job in jobs if job in THEIRS) + "  targets"]
    for math, model, batch, times in rows:
        medians = {job: statistics.median(values) for job, values in times.items()}
        line = f"{math:<5}{model:<10} {batch:>5} "
        for job in jobs:
            spread = 100 * (max(times[job]) - min(times[job])) / medians[job]
            line += f"{medians[job]:>13.4f}{spread:>7.1f}%"
        line += "".join(f"{medians['graph'] / medians[job]:>11.3f}" for job in jobs if job in THEIRS)
        marks = [f"{'met' if ratio <= limit else 'MISSED'} (<= {limit} of {whom})"
                 for whom, ratio, limit in targets_of(batch, medians)]
        lines.append(line + "  " + (", ".join(marks) or "-"))
    return lines


def all_met(rows: list[Row]) -> bool:
    return all(ratio <= limit
               for _, _, batch, times in rows
               for _, ratio, limit in targets_of(batch, {job: statistics.median(v) for job, v in times.items()}))


def measure(flags: argparse.Namespace, jobs: list[str]) -> tuple[list[Row], dict[str, str]]:
    rows: List[Row] = []
    devices: Dict[str, str] = {}
    for math, model, batch in itertools.product(flags.maths.split(","), flags.models.split(","),
                                                map(int, flags.batches.split(","))):
        times: Dict[str, List[float]] = {job: [] for job in jobs}
        for _ in range(flags.repeats):
            for job in jobs:
                timer = time_worker if job in OURS else time_torch
                milliseconds, devices[job] = timer(flags, math, job, model, batch)
                times[job].append(milliseconds)
        rows.append((math, model, batch, times))
        print(table(jobs, rows)[-1], file=sys.stderr, flush=True)
    return rows, devices


def parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0], allow_abbrev=False)
    parser.add_argument("--models", default="lenet5,mnist_cnn,mlp,resnet20")
    parser.add_argument("--batches", default="64,512")
    parser.add_argument("--maths", default=",".join(MATHS))
    parser.add_argument("--steps", type=int, default=5000, help="least number of steps of each run")
    parser.add_argument("--seconds", type=float, default=2, help="least time of each run")
    parser.add_argument("--warmup_s", type=float, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--loader_threads", type=int, default=2)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--worker", default="", help="the worker's binary")
    parser.add_argument("--torch_python", default="python3",
                        help="a python3 with torch, for a GPU with CUDA; empty: times Starring alone")
    parser.add_argument("--record", default="", help="file for the results, JSON")
    flags = parser.parse_args()
    for math in flags.maths.split(","):
        if math not in MATHS:
            parser.error(f"--maths has {math!r}: it can have {', '.join(MATHS)}")
    if flags.device == "cpu":
        flags.maths = "fp32"
    return flags


def main() -> int:
    flags = parse_flags()
    jobs = [*OURS, *THEIRS] if flags.device == "cuda" else ["graph", "eager"]
    if not flags.torch_python:
        jobs = ["graph", "no graph"]
    try:
        flags.worker = flags.worker or existing(*(os.path.normpath(os.path.join(HERE, path)) for path in WORKERS))
        rows, devices = measure(flags, jobs)
    except BenchError as error:
        print(f"gpu_steps: NOTHING WAS MEASURED: {error}", file=sys.stderr)
        return 2
    for job in jobs:
        print(f"{job:<9} {devices[job]}")
    print("\n".join(table(jobs, rows)))
    if flags.record:
        with open(flags.record, "w", encoding="utf-8") as file:
            json.dump({"devices": devices, "rows": [{"math": math, "model": model, "batch": batch, "step_ms": times}
                                                    for math, model, batch, times in rows]}, file, indent=1)
    if flags.device == "cpu":
        print("THIS WAS A CPU: the targets are for a GPU")
        return 0
    return 0 if all_met(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
