"""Runs jobs in turns and makes the runs of results.json from their records."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, TypeVar

import machine
import programs
import results as schema
from jobs import Command, Job

JOB_SECONDS_MAX = 1800
SAMPLE_SECONDS = 0.05  # a server's CPU time after its last sample is lost
LOOKS_BETWEEN_SEARCHES = 10  # samples of CPU time between two looks at new processes, the clock and the GPUs
CALIBRATION_STEPS = 30
SAID_MAX = 240  # characters of a failed program's last line, for the report's notes
STEPS_MIN = 60
# Versions in a record of the peer that differ from job to job.
OF_ONE_JOB = ("backend", "cuda_graph", "buckets", "parameter_bytes")
GPU_SECONDS_MIN = 1.5  # of training: three samples of what the driver counts over a sixth of a second to a second
SLOWEST_TIMES_LONGER = 3  # the slowest job of a group may take this many times the wanted seconds

One = TypeVar("One")
Record = dict[str, Any]  # a run record: proto/starring/v1/run_record.proto as JSON
RECORD_VERSION = 3  # kRunRecordVersion of worker/report/run_record.h


class _Sampler(threading.Thread):
    """Samples the servers' CPU time, the clock and the GPUs while a job runs."""

    def __init__(self, processes: list[subprocess.Popen[bytes]], gpus: machine.Gpus, workers: int) -> None:
        super().__init__(daemon=True)
        self.processes, self.gpus, self.workers = processes, gpus, workers
        self.server_seconds: dict[str, float] = {}
        self.clocks: list[float] = []
        self.gpu_samples: list[tuple[float, float, int]] = []  # when, and Gpus.sample
        self._end = threading.Event()
        self._names: dict[int, str] = {}

    def run(self) -> None:
        looks = 0
        while not self._end.wait(SAMPLE_SECONDS):
            # Processes start in the first looks, so each of those searches.
            if looks % LOOKS_BETWEEN_SEARCHES == 0 or looks < LOOKS_BETWEEN_SEARCHES:
                self._search()
            looks += 1
            for pid, name in self._names.items():
                seconds = machine.cpu_seconds(pid)
                if seconds is not None:
                    self.server_seconds[name] = seconds

    def _search(self) -> None:
        self.clocks += machine.clock_mhz()
        sample = self.gpus.sample(self.workers)
        if sample is not None:
            self.gpu_samples.append((time.monotonic(), *sample))
        for pid in {pid for process in self.processes for pid in machine.descendants(process.pid)}:
            name = _server_name(machine.command_line(pid))
            if name is not None:
                self._names[pid] = name

    def stop(self) -> None:
        self._end.set()
        self.join()


def _server_name(words: list[str]) -> str | None:
    if not words or os.path.basename(words[0]) != "server":
        return None
    return next((f"server {word.partition('=')[2]}" for word in words if word.startswith("--shard=")), None)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
    for process in processes:
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _start(commands: list[Command], output: BinaryIO) -> list[subprocess.Popen[bytes]]:
    processes = []
    for command in commands:
        processes.append(subprocess.Popen(command.argv, env={**os.environ, **command.environment}, stdout=output,
                                          stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, start_new_session=True))
    return processes


def _wait(processes: list[subprocess.Popen[bytes]]) -> list[int | None]:
    """Waits until all processes have ended or one has failed. Returns their exit codes; None: still running."""
    end = time.monotonic() + JOB_SECONDS_MAX
    while time.monotonic() < end:
        codes = [process.poll() for process in processes]
        if None not in codes or any(codes):
            return codes
        time.sleep(0.01)
    return [124]


def run_job(job: Job, steps: int, gpus: machine.Gpus, more: Sequence[str] = ()) -> tuple[Record, _Sampler]:
    """Runs the job once. ProgramError if it fails."""
    with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "output"), "w+b") as output:
        record = os.path.join(folder, "record.json")
        commands = job.commands(record, steps, more)
        processes = _start(commands, output)
        sampler = _Sampler(processes, gpus, job.configuration["workers"])
        sampler.start()
        try:
            codes = _wait(processes)
        finally:
            sampler.stop()
            _end(processes)
        if any(codes) or not os.path.exists(record):
            output.seek(0)
            text = output.read().decode(errors="replace")[-4000:]
            raise programs.ProgramError(f"{job.configuration['id']} ended with {codes}:\n"
                                        f"{' '.join(commands[-1].text())}\n{text}")
        return read_record(record), sampler


def read_record(path: str) -> Record:
    """ProgramError if a program of another version wrote it."""
    with open(path, encoding="utf-8") as file:
        record: Record = json.load(file)
    version = record.get("version", 0)
    if version != RECORD_VERSION:
        raise programs.ProgramError(f"{path} is a run record of version {version}, this program reads version "
                                    f"{RECORD_VERSION}: build worker and comparison from the same sources")
    return record


def samples_per_step(record: Record) -> float:
    """The mean over an epoch, whose last batch may be smaller."""
    config = record["config"]
    steps_per_epoch = -(-config["train_count"] // config["global_batch"])
    if record["steps"] < steps_per_epoch:
        return config["global_batch"]
    return config["train_count"] / steps_per_epoch


def _training_seconds(record: Record) -> float:
    return sum(epoch["seconds"] for epoch in record["epochs"])


def _cpu_percent(record: Record, sampler: _Sampler) -> dict[str, float]:
    percents = {f"worker {rank}": use["cpu_percent"] for rank, use in enumerate(record.get("workers", []))}
    seconds = _training_seconds(record)  # a server works only during these
    if seconds > 0:
        percents.update({name: 100 * used / seconds for name, used in sorted(sampler.server_seconds.items())})
    return percents


def gpu_use(samples: list[tuple[float, float, int]], seconds: float) -> schema.Gpu | None:
    """The Gpu of results.py from samples of (time, percent, bytes) of a job that trained for so long; None without
    samples.

    Only a test set may follow training, so the mean goes back from the last sample with work for as long. The start of
    a program uses the GPU a little and may take longer than its steps.
    """
    if not samples:
        return None
    percent: float | None = None
    if seconds >= GPU_SECONDS_MIN:
        last = max((when for when, percent, _ in samples if percent > 0), default=samples[-1][0])
        percent = statistics.mean(percent for when, percent, _ in samples if last - seconds <= when <= last)
    return {"percent": percent, "memory_bytes": max(memory for _, _, memory in samples)}


def make_run(repeat: int, record: Record, sampler: _Sampler, load: float) -> schema.Run:
    step_ms, steps = record["step_ms"], max(1, record["steps"])
    rate = 1e3 * samples_per_step(record) / step_ms["mean"]
    on_gpu = record["config"].get("device") == "cuda"
    gpu = gpu_use(sampler.gpu_samples, _training_seconds(record)) if on_gpu else None
    return {
        "repeat": repeat, "samples_per_second": rate, "seconds_per_epoch": record["config"]["train_count"] / rate,
        "steps_measured": step_ms["steps_measured"], "warmup_steps": record["steps"] - step_ms["steps_measured"],
        "step_ms": {name: step_ms[name] for name in schema.STEP_QUANTILES},
        "breakdown_ms": {name: record["breakdown_ms"][name] for name in schema.BREAKDOWN_PARTS},
        "exchange_bytes_per_step": {"sent": record["exchange"]["bytes_sent"] / steps,
                                    "received": record["exchange"]["bytes_received"] / steps},
        "cpu_percent": _cpu_percent(record, sampler), "gpu": gpu, "load": load,
        "clock_mhz": statistics.median(sampler.clocks) if sampler.clocks else None,
        "parameter_sha256": record["parameter_sha256"], "deterministic": record["config"]["deterministic"],
    }


def slowest_worker_ratio(record: Record) -> float | None:
    computed = [use["compute_ms"] for use in record.get("workers", [])]
    # The lower median, so that with two workers the slower one is compared with the faster one.
    middle = statistics.median_low(computed) if computed else 0
    return max(computed) / middle if len(computed) > 1 and middle > 0 else None


def turns(jobs: Sequence[One], repeat: int) -> list[One]:
    """The order of one repeat: every second one is reversed.

    In an order that is always the same, whatever grows from run to run would favour the same job in every repeat, and
    no interval of paired ratios would show that.
    """
    return list(jobs) if repeat % 2 == 0 else list(reversed(jobs))


class Laboratory:
    """Runs the jobs of a group in turns, so that any other load on the machine affects all of them alike."""

    def __init__(self, options: argparse.Namespace, gpus: machine.Gpus, say: Callable[[str], None]) -> None:
        self.options, self.gpus, self.say = options, gpus, say
        self.versions: dict[str, str] = {}
        self.clocks: list[float] = []
        self.failures: list[str] = []
        self._runs_left = 0

    def expect(self, groups: Sequence[Sequence[Job]]) -> int:
        """Counts the runs of groups that will be measured: each job runs once for its number of steps before. Returns
        how many runs are left."""
        self._runs_left += sum(len(group) * (1 + self.options.repeats) for group in groups)
        return self._runs_left

    def measure(self, jobs: list[Job]) -> list[Job]:
        """Fills in the runs of the configurations of `jobs`, which are one group. Returns the jobs that ran.

        A job that fails is noted and tried once more. A job that fails twice is left out, and the others go on.
        """
        steps, jobs = self._steps(jobs)
        ratios: dict[int, list[float | None]] = {id(job): [] for job in jobs}
        for repeat in range(self.options.repeats):
            for job in turns(jobs, repeat):
                load = machine.load()
                try:
                    record, sampler = self._run(job, steps)
                except programs.ProgramError as error:
                    self._note_failure("it failed twice and is left out", error)
                    jobs.remove(job)
                    self._runs_left -= self.options.repeats - repeat - 1
                    job.configuration["runs"].clear()
                    continue
                run = make_run(repeat, record, sampler, load)
                job.configuration["runs"].append(run)
                ratios[id(job)].append(slowest_worker_ratio(record))
                self.clocks += sampler.clocks
                self.say(f"{job.configuration['id']}  run {repeat + 1}/{self.options.repeats}  "
                         f"{run['samples_per_second']:.0f} samples/s  runs left: {self._runs_left}")
        for job in jobs:
            known = [ratio for ratio in ratios[id(job)] if ratio is not None]
            job.configuration["slowest_worker_ratio"] = statistics.median(known) if known else None
        return jobs

    def _run(self, job: Job, steps: int) -> tuple[Record, _Sampler]:
        self._runs_left -= 1
        try:
            return run_job(job, steps, self.gpus)
        except programs.ProgramError as error:
            self._note_failure("it was run again", error)
            return run_job(job, steps, self.gpus)

    def _note_failure(self, what: str, error: programs.ProgramError) -> None:
        self.say(str(error))
        first, *output = [line for line in str(error).splitlines() if line.strip()]
        said = f" ({output[-1].strip()[:SAID_MAX]})" if output else ""  # a refusal is a program's last line
        self.failures.append(f"{first.rstrip(':')}: {what}{said}")

    def _note_peer(self, job: Job, versions: dict[str, str]) -> None:
        """Notes facts that the peer knows only when it runs: its backend, and why it has no CUDA graph."""
        if "backend" in versions:
            job.configuration["settings"]["backend"] = versions["backend"]
        if "cuda_graph" in versions:
            job.configuration["settings"]["cuda_graph"] = versions["cuda_graph"]
            self.failures.append(f"{job.configuration['id']}: PyTorch's step is not a CUDA graph: "
                                 f"{versions['cuda_graph'].partition(': ')[2]}")

    def _steps(self, jobs: list[Job]) -> tuple[int, list[Job]]:
        """The number of steps for each run of the group, and the jobs that work.

        Calibrated with one short run per job; these runs are not reported. Every job of a group takes the same number
        of steps: the fastest job takes about the wanted seconds, the slowest at most about SLOWEST_TIMES_LONGER times
        as long.
        """
        step_seconds, working = [], []
        for job in jobs:
            try:
                record, _ = self._run(job, self.options.steps or CALIBRATION_STEPS)
            except programs.ProgramError as error:
                self._note_failure("it failed twice and is left out", error)
                self._runs_left -= self.options.repeats
                continue
            step_seconds.append(record["step_ms"]["mean"] / 1e3)
            working.append(job)
            self._note_peer(job, record["host"]["versions"])
            self.versions.update({name: version for name, version in record["host"]["versions"].items()
                                  if name not in OF_ONE_JOB})
            onednn = re.search(r"oneDNN ([\d.]+)", record["host"]["device"])
            if onednn:
                self.versions["onednn"] = onednn[1]
        if self.options.steps or not working:
            return self.options.steps, working
        steps = min(self.options.seconds / min(step_seconds),
                    SLOWEST_TIMES_LONGER * self.options.seconds / max(step_seconds))
        return max(STEPS_MIN, int(steps)), working
