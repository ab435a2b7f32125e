#!/usr/bin/env python3
"""Times the same training job by Starring and by PyTorch, interleaved (A B C A B C), and prints medians and ratios.

    bazel build //server //worker //deploy:launch
    bench/side_by_side.py --jobs=local,torch --models=lenet5,mnist_cnn,mlp --workers=1
    bench/side_by_side.py --jobs=star,ring,mpi,torch --models=lenet5,mlp --workers=2

samples/s is the global batch over the mean time of a step, warm-up left out; every worker has one compute thread and
64 samples a step. The peer has its data in memory as tensors. Exit status 1 if a job fails.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAUNCH = os.path.join(ROOT, "bazel-bin/deploy/launch")
PEER = os.path.join(ROOT, "bench/ddp/train.py")
JOB_SECONDS_MAX = 1800


def find_torch():
    """A python3 that has torch."""
    for python in ("python3", "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0:
            return python
    sys.exit("no python3 with torch: apt-get install python3-torch libopenblas0-pthread")


def command(job, model, flags, record):
    shared = ["--model=" + model, "--dataset=" + flags.dataset, "--global_batch=%d" % (64 * flags.workers),
              "--epochs=1000", "--max_steps=%d" % flags.steps, "--record=" + record]
    if flags.data_dir:
        shared.append("--data_dir=" + flags.data_dir)
    if job == "torch":
        return [find_torch(), PEER, "--world_size=%d" % flags.workers, *shared]
    servers = ["--servers=%d" % flags.servers] if job == "star" else []
    ours = ["--device=cpu", "--progress=none"]  # as the peer
    return [LAUNCH, "--sync=" + job, "--workers=%d" % flags.workers, *servers, "--", *shared, *ours]


def run(job, model, flags):
    with tempfile.TemporaryDirectory() as folder:
        record = os.path.join(folder, "record.json")
        environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        done = subprocess.run(command(job, model, flags, record), env=environment, text=True, capture_output=True,
                              timeout=JOB_SECONDS_MAX, check=False)
        if done.returncode != 0:
            sys.exit("%s %s ended with %d:\n%s%s" % (job, model, done.returncode, done.stdout, done.stderr))
        with open(record) as file:
            return json.load(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", default="local,torch", help="local, star, ring, mpi, torch")
    parser.add_argument("--models", default="lenet5,mnist_cnn,mlp")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--servers", type=int, default=2, help="star")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dataset", default="fashion-mnist")
    parser.add_argument("--data_dir", default="")
    flags = parser.parse_args()
    jobs = flags.jobs.split(",")
    print("%-10s %-6s %12s %9s %9s %12s %8s" %
          ("model", "job", "samples/s", "(spread)", "p50 ms", "exposed ms", "ratio"))
    for model in flags.models.split(","):
        records = {job: [] for job in jobs}
        for _ in range(flags.repeats):
            for job in jobs:
                records[job].append(run(job, model, flags))
        rates = {job: [64e3 * flags.workers / r["step_ms"]["mean"] for r in records[job]] for job in jobs}
        base = statistics.median(rates[jobs[-1]])
        for job in jobs:
            median = statistics.median(rates[job])
            print("%-10s %-6s %12.0f %8.1f%% %9.3f %12.3f %8.2f" % (
                model, job, median, 100 * (max(rates[job]) - min(rates[job])) / median,
                statistics.median(r["step_ms"]["p50"] for r in records[job]),
                statistics.median(r["breakdown_ms"]["exposed_exchange"] for r in records[job]), median / base))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
