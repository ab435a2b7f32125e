#!/usr/bin/env python3
"""Times whole training steps on one GPU: Starring against PyTorch in its best settings.

    bazel build //worker && bench/gpu_steps.py --torch_python=/path/to/python3

For each of --maths (fp32: exact; tf32; bf16), model and batch, the jobs are interleaved (A B C A B C ...), in the same
run on the same GPU; shown are medians of --repeats, in milliseconds a step, and ratios. A step of Starring is all of
it, from the loader to the optimizer, on synthetic data; it runs with and without its graph, with cuDNN where that is
found, and with convolutions of its own. PyTorch's data set is in the GPU's memory (ddp/torch_steps.py),
its optimizer is fused, and it runs eager, captured in a CUDA graph, and captured with images in channels_last. A run
takes --steps steps and --seconds seconds at least, after a second of warm-up; its value is the median, for Starring of
its steps, of which that second is a part. Targets: at batch 64 at most a quarter of PyTorch eager and 0.9 of PyTorch
captured, at batch 512 at most the best of PyTorch's.

Exit status: 0 all targets met, 1 not all, 2 where nothing could be measured. --device=cpu shows that the script works,
and nothing else.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
WORKERS = ("../bin/worker", "../bazel-bin/worker/worker")  # of a bundle, of a source tree
JOB_SECONDS_MAX = 900
OURS = ("graph", "no graph", "own conv")  # own conv: a graph, and convolutions without cuDNN
THEIRS = ("eager", "captured", "nhwc")  # nhwc: captured, channels_last
MATHS = ("fp32", "tf32", "bf16")
# No short last batch, which would be captured and planned for in the middle of a run: divisible by 64 and by 512.
TRAIN_COUNT = 61440
PROBE_STEPS = 300
# {batch: {whom against: at most this ratio}}
TARGETS = {64: {"eager": 0.25, "captured": 0.9}, 512: {"best": 1.0}}


class BenchError(Exception):
    """What could not be measured, for the person who started it."""


def existing(*paths):
    for path in paths:
        if os.path.exists(path):
            return path
    raise BenchError("none of these is there: " + ", ".join(paths))


def run(command):
    """Standard output."""
    try:
        done = subprocess.run(command, text=True, capture_output=True, timeout=JOB_SECONDS_MAX, check=False)
    except OSError as error:
        raise BenchError(f"{command[0]}: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{' '.join(command)}: no end after {JOB_SECONDS_MAX} s") from error
    if done.returncode != 0:
        raise BenchError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout


def time_worker(flags, math, job, model, batch):
    """(milliseconds a step, device)."""
    if flags.device == "cpu":
        return run_worker(flags, math, job, model, batch, flags.steps)
    probe_ms, _ = run_worker(flags, math, job, model, batch, PROBE_STEPS)
    seconds = flags.warmup_s + flags.seconds
    return run_worker(flags, math, job, model, batch, max(flags.steps, int(1000 * seconds / probe_ms)))


def run_worker(flags, math, job, model, batch, steps):
    with tempfile.TemporaryDirectory() as folder:
        record_file = os.path.join(folder, "record.json")
        size = ["--synthetic_size=32", "--synthetic_channels=3"] if model == "resnet20" else []
        run([flags.worker, "--sync=local", f"--device={flags.device}", f"--math={math}", f"--model={model}",
             "--dataset=synthetic", *size, f"--synthetic_train_count={TRAIN_COUNT}", f"--global_batch={batch}",
             "--synthetic_test_count=10", "--epochs=100000", f"--max_steps={steps}", "--progress=none",
             f"--loader_threads={flags.loader_threads}", f"--record={record_file}",
             *(["--nocuda_graph"] if job == "no graph" else []), *(["--conv=own"] if job == "own conv" else [])])
        with open(record_file, encoding="utf-8") as file:
            record = json.load(file)
    return record["step_ms"]["p50"], record["host"]["device"]


def time_torch(flags, math, job, model, batch):
    """Likewise."""
    mode = "eager" if job == "eager" else "captured"
    line = run([flags.torch_python, existing(f"{HERE}/ddp/torch_steps.py"), f"--model={model}", f"--batch={batch}",
                f"--mode={mode}", f"--math={math}", f"--device={flags.device}", f"--steps={flags.steps}",
                f"--seconds={flags.seconds}", f"--warmup_s={flags.warmup_s}",
                *(["--channels_last"] if job == "nhwc" else [])])
    result = json.loads(line)
    return result["step_ms"], f"{result['device']}, torch {result['torch']}"


def targets_of(batch, medians):
    """[(text, ratio, limit)] of one row."""
    ours = medians["graph"]
    found = []
    for whom, limit in TARGETS.get(batch, {}).items():
        peers = [medians[name] for name in (THEIRS if whom == "best" else (whom,)) if name in medians]
        if peers:
            found.append((whom, ours / min(peers), limit))
    return found


def table(jobs, rows):
    """Lines of text. rows: [(math, model, batch, {job: [milliseconds]})]."""
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


def all_met(rows):
    return all(ratio <= limit
               for _, _, batch, times in rows
               for _, ratio, limit in targets_of(batch, {job: statistics.median(v) for job, v in times.items()}))


def measure(flags, jobs):
    rows, devices = [], {}
    for math, model, batch in itertools.product(flags.maths.split(","), flags.models.split(","),
                                                map(int, flags.batches.split(","))):
        times = {job: [] for job in jobs}
        for _ in range(flags.repeats):
            for job in jobs:
                timer = time_worker if job in OURS else time_torch
                milliseconds, devices[job] = timer(flags, math, job, model, batch)
                times[job].append(milliseconds)
        rows.append((math, model, batch, times))
        print(table(jobs, rows)[-1], file=sys.stderr, flush=True)
    return rows, devices


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0], allow_abbrev=False)
    parser.add_argument("--models", default="lenet5,mnist_cnn,mlp,resnet20")
    parser.add_argument("--batches", default="64,512")
    parser.add_argument("--maths", default=",".join(MATHS))
    parser.add_argument("--steps", type=int, default=5000, help="of each run, at least")
    parser.add_argument("--seconds", type=float, default=2, help="of each run, at least")
    parser.add_argument("--warmup_s", type=float, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--loader_threads", type=int, default=2)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--worker", default="", help="the worker's binary")
    parser.add_argument("--torch_python", default="python3", help="a python3 with torch, on a GPU one with CUDA")
    parser.add_argument("--record", default="", help="writes what was measured to this file, JSON")
    flags = parser.parse_args()
    for math in flags.maths.split(","):
        if math not in MATHS:
            parser.error(f"--maths has {math!r}: it must be of {', '.join(MATHS)}")
    if flags.device == "cpu":
        flags.maths = "fp32"
    return flags


def main():
    flags = parse_flags()
    jobs = [*OURS, *THEIRS] if flags.device == "cuda" else ["graph", "eager"]
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
        print("THIS WAS A CPU: the numbers say nothing about the targets, which are a GPU's")
        return 0
    return 0 if all_met(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
