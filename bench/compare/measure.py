"""Runs jobs, takes turns among them, and makes the runs of results.json of their records."""

import json
import os
import re
import signal
import statistics
import subprocess
import tempfile
import threading
import time

import machine
import programs
import results as schema

JOB_SECONDS_MAX = 1800
SAMPLE_SECONDS = 0.05  # of the servers: what they do after the last sample is not seen
LOOKS_BETWEEN_SEARCHES = 10  # for new processes; and of the clock and the GPUs
CALIBRATION_STEPS = 30
STEPS_MIN = 60
OF_ONE_JOB = ("backend", "cuda_graph")  # among the versions of a record of the peer
SLOWEST_TIMES_LONGER = 3  # the slowest job of a group may take so many times the wanted seconds


class _Sampler(threading.Thread):
    """Looks at the servers' CPU time, the clock and the GPUs while a job runs."""

    def __init__(self, processes, gpus, workers):
        super().__init__(daemon=True)
        self.processes, self.gpus, self.workers = processes, gpus, workers
        self.server_seconds, self.clocks, self.gpu_samples = {}, [], []
        self._end = threading.Event()
        self._names = {}

    def run(self):
        looks = 0
        while not self._end.wait(SAMPLE_SECONDS):
            if looks % LOOKS_BETWEEN_SEARCHES == 0 or looks < LOOKS_BETWEEN_SEARCHES:
                self._search()
            looks += 1
            for pid, name in self._names.items():
                seconds = machine.cpu_seconds(pid)
                if seconds is not None:
                    self.server_seconds[name] = seconds

    def _search(self):
        self.clocks += machine.clock_mhz()
        sample = self.gpus.sample(self.workers)
        if sample is not None:
            self.gpu_samples.append(sample)
        for pid in {pid for process in self.processes for pid in machine.descendants(process.pid)}:
            name = _server_name(machine.command_line(pid))
            if name is not None:
                self._names[pid] = name

    def stop(self):
        self._end.set()
        self.join()


def _server_name(words):
    if not words or os.path.basename(words[0]) != "server":
        return None
    return next((f"server {word.partition('=')[2]}" for word in words if word.startswith("--shard=")), None)


def _end(processes):
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
    for process in processes:
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _start(commands, output):
    processes = []
    for command in commands:
        processes.append(subprocess.Popen(command.argv, env={**os.environ, **command.environment}, stdout=output,
                                          stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, start_new_session=True))
    return processes


def _wait(processes):
    """Exit codes; the first bad one ends the wait."""
    end = time.monotonic() + JOB_SECONDS_MAX
    while time.monotonic() < end:
        codes = [process.poll() for process in processes]
        if None not in codes or any(codes):
            return codes
        time.sleep(0.01)
    return [124]


def run_job(job, steps, gpus, more=()):
    """(record, sampler) of one run. ProgramError if it fails."""
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
        with open(record, encoding="utf-8") as file:
            return json.load(file), sampler


def samples_per_step(record):
    """Mean over an epoch, the last batch of which is smaller."""
    config = record["config"]
    steps_per_epoch = -(-config["train_count"] // config["global_batch"])
    if record["steps"] < steps_per_epoch:
        return config["global_batch"]
    return config["train_count"] / steps_per_epoch


def _cpu_percent(record, sampler):
    percents = {f"worker {rank}": use["cpu_percent"] for rank, use in enumerate(record.get("workers", []))}
    seconds = sum(epoch["seconds"] for epoch in record["epochs"])  # a server has nothing to do but then
    if seconds > 0:
        percents.update({name: 100 * used / seconds for name, used in sorted(sampler.server_seconds.items())})
    return percents


def gpu_use(samples):
    """Gpu of results.py, of (percent, bytes): from the first to the last sample that saw work, as programs that start
    slowly are not to be told from slow ones otherwise. None without samples."""
    busy = [index for index, (percent, _) in enumerate(samples) if percent > 0]
    if not samples:
        return None
    percents = [percent for percent, _ in samples[busy[0]:busy[-1] + 1]] if busy else [0.0]
    return {"percent": statistics.mean(percents), "memory_bytes": max(memory for _, memory in samples)}


def make_run(repeat, record, sampler, load):
    step_ms, steps = record["step_ms"], max(1, record["steps"])
    rate = 1e3 * samples_per_step(record) / step_ms["mean"]
    gpu = gpu_use(sampler.gpu_samples) if record["config"].get("device") == "cuda" else None
    return {
        "repeat": repeat, "samples_per_second": rate, "seconds_per_epoch": record["config"]["train_count"] / rate,
        "steps_measured": step_ms["steps_measured"], "warmup_steps": record["steps"] - step_ms["steps_measured"],
        "step_ms": {name: step_ms[name] for name in schema.STEP_QUANTILES},
        "breakdown_ms": {name: record["breakdown_ms"][name] for name in schema.BREAKDOWN_PARTS},
        "exchange_bytes_per_step": {"sent": record["exchange"]["bytes_sent"] / steps,
                                    "received": record["exchange"]["bytes_received"] / steps},
        "cpu_percent": _cpu_percent(record, sampler), "gpu": gpu, "load": load,
        "clock_mhz": statistics.median(sampler.clocks) if sampler.clocks else None,
        "parameter_sha256": record["parameter_sha256"],
    }


def slowest_worker_ratio(record):
    computed = [use["compute_ms"] for use in record.get("workers", [])]
    # The lower median: of two workers the slower is compared with the faster.
    middle = statistics.median_low(computed) if computed else 0
    return max(computed) / middle if len(computed) > 1 and middle > 0 else None


class Laboratory:
    """Takes turns among the jobs of a group, so that whatever else the machine does hits all of them alike."""

    def __init__(self, options, gpus, say):
        self.options, self.gpus, self.say = options, gpus, say
        self.versions, self.clocks, self.failures = {}, [], []

    def measure(self, jobs):
        """Fills in the runs of the configurations of `jobs`, which are one group; returns the jobs that ran.

        A job that fails is noted and tried once more; one that fails again is left out, and the others go on.
        """
        steps, jobs = self._steps(jobs)
        ratios = {id(job): [] for job in jobs}
        for repeat in range(self.options.repeats):
            for job in list(jobs):
                load = machine.load()
                try:
                    record, sampler = self._run(job, steps)
                except programs.ProgramError as error:
                    self._note_failure("the second time, so it is left out", error)
                    jobs.remove(job)
                    job.configuration["runs"].clear()
                    continue
                run = make_run(repeat, record, sampler, load)
                job.configuration["runs"].append(run)
                ratios[id(job)].append(slowest_worker_ratio(record))
                self.clocks += sampler.clocks
                self.say(f"{job.configuration['id']}  run {repeat + 1}/{self.options.repeats}  "
                         f"{run['samples_per_second']:.0f} samples/s")
        for job in jobs:
            known = [ratio for ratio in ratios[id(job)] if ratio is not None]
            job.configuration["slowest_worker_ratio"] = statistics.median(known) if known else None
        return jobs

    def _run(self, job, steps):
        try:
            return run_job(job, steps, self.gpus)
        except programs.ProgramError as error:
            self._note_failure("it was run again", error)
            return run_job(job, steps, self.gpus)

    def _note_failure(self, what, error):
        self.say(str(error))
        self.failures.append(f"{str(error).splitlines()[0].rstrip(':')}: {what}")

    def _note_peer(self, job, versions):
        """What the peer only knew when it ran: how its processes talk, and that there was no CUDA graph."""
        if "backend" in versions:
            job.configuration["settings"]["backend"] = versions["backend"]
        if "cuda_graph" in versions:
            job.configuration["settings"]["cuda_graph"] = versions["cuda_graph"]
            self.failures.append(f"{job.configuration['id']}: PyTorch's step is no CUDA graph: "
                                 f"{versions['cuda_graph'].partition(': ')[2]}")

    def _steps(self, jobs):
        """(steps of each run of the group, the jobs that work): from a short run of every job, which no number is of.

        Every job of a group takes equally many steps: the fastest takes about the wanted seconds, the slowest not much
        more than SLOWEST_TIMES_LONGER times as long.
        """
        step_seconds, working = [], []
        for job in jobs:
            try:
                record, _ = self._run(job, self.options.steps or CALIBRATION_STEPS)
            except programs.ProgramError as error:
                self._note_failure("the second time, so it is left out", error)
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
