#!/usr/bin/env python3
"""Runs many workers with few servers and measures the digest, a server's memory per worker, and the time of a step.

    bazel run //bench:load -- --workers=64,128,256 --servers=1,4 --ring=64

Every worker is a process on this machine that trains logreg on synthetic data. Arrays go through sockets, as between
machines. The digest is compared with that of tests/reference_job, one process that adds all gradients in the order of
common/arithmetic/reduction_order.h. Prints a table. Exit status 0: every digest is right, 1: a job failed or has
another digest, 2: the command line was refused.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

LAUNCH = os.path.abspath("deploy/launch")
SERVER = os.path.abspath("server/server")
REFERENCE_JOB = os.path.abspath("tests/reference_job/reference_job")
JOB_SECONDS_MAX = 900
IDLE_SERVER_SECONDS_MAX = 60
# Hundreds of processes share a few cores, so every step takes long.
PATIENT = ["--progress=none", "--checkpoint_dir=none", "--join_deadline_s=600", "--exchange_deadline_s=300"]


def job_flags(steps: int) -> list[str]:
    return ["--model=logreg", "--dataset=synthetic", "--synthetic_train_count=4096", "--synthetic_test_count=256",
            "--global_batch=512", "--epochs=1000", "--max_steps=%d" % steps, "--seed=1"]


def reference_digest(workers: int, steps: int) -> str:
    return subprocess.run([REFERENCE_JOB, str(workers), *job_flags(steps)], check=True, stdout=subprocess.PIPE,
                          text=True, timeout=JOB_SECONDS_MAX).stdout.strip()


def status_kib(pid: int, field: str) -> int:
    """A field of /proc/PID/status in KiB; 0 if the process is gone."""
    try:
        with open("/proc/%d/status" % pid, encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(field + ":"):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0


def children(pid: int, name: str) -> list[int]:
    found = []
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid), encoding="ascii") as file:
            for child in file.read().split():
                with open("/proc/%s/comm" % child, encoding="ascii", errors="replace") as comm:
                    if comm.read().strip() == name:
                        found.append(int(child))
    except OSError:
        pass
    return found


def descriptors(pid: int) -> int:
    try:
        return len(os.listdir("/proc/%d/fd" % pid))
    except OSError:
        return 0


def idle_server_kib() -> int:
    """What a server that waits has in memory."""
    with tempfile.TemporaryDirectory() as folder:
        port_file = os.path.join(folder, "port")
        process = subprocess.Popen([SERVER, "--listen=127.0.0.1:0", "--shard=0", "--shard_count=1",
                                    "--port_file=" + port_file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            end = time.monotonic() + IDLE_SERVER_SECONDS_MAX
            while not os.path.exists(port_file):  # the server makes it when it listens
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError("the server does not listen")
                time.sleep(0.02)  # a file has no event to wait for
            return status_kib(process.pid, "VmRSS")
        finally:
            process.kill()
            process.wait()


class Job:
    """One job, and samples of its servers' memory."""

    def __init__(self, sync: str, workers: int, servers: int, steps: int) -> None:
        self.command = [LAUNCH, "--sync=" + sync, "--workers=%d" % workers]
        if sync == "star":
            self.command.append("--servers=%d" % servers)
        self.command += ["--", *job_flags(steps), *PATIENT, "--same_host=socket"]
        self.samples: list[tuple[float, int, int]] = []  # seconds, a server's largest memory in KiB, most descriptors
        self.peak_kib = 0
        self.record: dict[str, Any] = {}
        self.output = ""
        self.seconds = 0.0

    def run(self) -> bool:
        """Runs the job. True if it succeeded."""
        with tempfile.TemporaryDirectory() as folder:
            record, output = os.path.join(folder, "record.json"), os.path.join(folder, "output")
            begin = time.monotonic()
            with open(output, "wb") as file:
                process = subprocess.Popen([*self.command, "--record=" + record], stdin=subprocess.DEVNULL,
                                           stdout=file, stderr=subprocess.STDOUT)
            try:
                while process.poll() is None and time.monotonic() - begin < JOB_SECONDS_MAX:
                    self.sample(process.pid, time.monotonic() - begin)
                    time.sleep(0.25)
            finally:
                process.terminate()  # the launcher ends its children
                process.wait()
            self.seconds = time.monotonic() - begin
            with open(output, encoding="utf-8", errors="replace") as file:
                self.output = file.read()
            if process.returncode != 0 or not os.path.exists(record):
                return False
            with open(record, encoding="utf-8") as file:
                self.record = json.load(file)
            return True

    def sample(self, launcher: int, seconds: float) -> None:
        servers = children(launcher, "server")
        if not servers:
            return
        self.samples.append((seconds, max(status_kib(pid, "VmRSS") for pid in servers),
                             max(descriptors(pid) for pid in servers)))
        self.peak_kib = max(self.peak_kib, *(status_kib(pid, "VmHWM") for pid in servers))

    def growth_kib(self) -> int:
        """How much a server's memory grows from the middle of the training to its end."""
        most = max(count for _, _, count in self.samples)
        training = [kib for _, kib, count in self.samples if count >= most - 2 and kib > 0]
        return training[-1] - training[len(training) // 2]


def measure(options: argparse.Namespace) -> bool:
    rows = ["| job | digest | step p50 | per worker | server's memory, peak | per worker | growth, 2nd half | "
            "descriptors |", "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    good = True
    idle_kib = idle_server_kib()
    jobs = [("star", workers, servers, options.steps) for servers in options.servers for workers in options.workers]
    jobs += [("ring", workers, 0, 8) for workers in options.ring]
    for sync, workers, servers, steps in jobs:
        name = "star, %d workers, %d server%s" % (workers, servers, "" if servers == 1 else "s")
        if sync == "ring":
            name = "ring, %d workers" % workers
        job = Job(sync, workers, servers, steps)
        print("load: %s, %d steps ..." % (name, steps), flush=True)
        if not job.run():
            good = False
            print("load: %s failed:\n%s" % (name, job.output[-4000:]), flush=True)
            rows.append("| %s | **failed** | | | | | | |" % name)
            continue
        right = job.record["parameter_sha256"] == reference_digest(workers, steps)
        good = good and right
        digest = job.record["parameter_sha256"][:12] if right else "**WRONG**"
        if sync == "ring":
            rows.append("| %s | %s | | | | | | |" % (name, digest))
            continue
        p50 = job.record["step_ms"]["p50"]
        rows.append("| %s | %s | %.0f ms | %.2f ms | %.1f MiB | %.0f KiB | %+d KiB | %d |" % (
            name, digest, p50, p50 / workers, job.peak_kib / 1024, (job.peak_kib - idle_kib) / workers,
            job.growth_kib(), max(count for _, _, count in job.samples)))
        print("load: %s: %s after %.0f s" % (name, digest, job.seconds), flush=True)
    print("A waiting server has %.1f MiB. %d steps (the ring: 8)." % (idle_kib / 1024, options.steps))
    print("\n".join(rows))
    return good


def numbers(text: str) -> list[int]:
    values = [int(word) for word in text.split(",") if word]
    if any(value < 1 for value in values):
        raise ValueError(text)
    return values


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="load", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workers", type=numbers, default=[64, 128, 256], help="in a star (default: 64,128,256)")
    parser.add_argument("--servers", type=numbers, default=[1, 4], help="in a star (default: 1,4)")
    parser.add_argument("--ring", type=numbers, default=[64], help="workers of the rings, may be empty (default: 64)")
    parser.add_argument("--steps", type=int, default=40, help="steps of the stars (default: %(default)s)")
    options = parser.parse_args(arguments)
    return 0 if measure(options) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
