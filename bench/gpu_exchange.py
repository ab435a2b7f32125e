#!/usr/bin/env python3
"""Times what two workers on one GPU wait for each other, in every cell, beside a control that exchanges nothing.

    bazel build //deploy:launch && bench/gpu_exchange.py [CELL ...]

A cell is SYNC:TRANSPORT, then `:servers=N` and flags of the worker: star:tcp:servers=1, ring:mpi:--bucket_bytes=1. The
cell `ddp` is PyTorch's DistributedDataParallel (bench/ddp), under --torch_python; a bundle lacks that program, so the
cell needs a source tree. For each of --models the jobs are:

  one process    a batch of --batch on the GPU alone
  control        two processes that know nothing of each other, each with half of the batch, at the same time
  CELL           two workers with half of the batch each

The GPU runs the steps of two processes in turns, so a worker also waits for the other one's turn, in the control too.
What the exchange costs is E, the cell's p50 less the control's. Control and cells run in turns (--repeats), and E is
the median of the differences within a repeat. `waits` is the mean time that a step waits for the exchange, with the
other one's turn, by the host's clock; `GPU` the p50 of the same by the GPU's own (gpu_exposed_exchange_ms of the run
record). Both are rank 0's. The control takes --overlap_s seconds or more, so that its processes compute side by side
in most of their steps.

E also has what a cell costs for being measured. Its steps are stamped (worker/step/gpu_stamps.h) by kernels of one
thread, one after another with the step's own: two a segment, so four a step of the default models, and two with
--gpu_waits=graph. The control and `ddp` have none.

All cells of a model but ddp must end with one digest, in every repeat. Exit status: 0; 1 a digest differs, or a job
failed or had no time left; 2 nothing could be measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional, Tuple

HERE = os.path.dirname(os.path.abspath(__file__))
# In a bundle, in a source tree.
WORKERS = ("../bin/worker", "../bazel-bin/worker/worker")
LAUNCHES = ("../bin/launch", "../bazel-bin/deploy/launch")
CELLS = ("star:grpc", "star:tcp:servers=1", "star:mpi:--same_host=socket", "star:tcp:--same_host=socket",
         "ring:mpi:--same_host=socket", "ring:tcp:--same_host=socket", "ring:mpi", "star:mpi", "star:tcp",
         "ring:mpi:--same_host=gpu_memory", "star:mpi:--same_host=gpu_memory", "star:tcp:--same_host=gpu_memory",
         "star:tcp:--same_host=gpu_memory:--gpu_waits=graph", "ring:tcp:--same_host=gpu_memory:--gpu_waits=graph")
ONE, CONTROL = "one process", "control"
DDP = "ddp"
CONTROL_STEPS_MAX = 30000
GRACE_S = 5.0  # between SIGTERM, at which launch ends its children, and SIGKILL

Samples = Dict[Tuple[str, str], List["Sample"]]  # by model and job


class BenchError(Exception):
    """The message says what failed."""


class StoppedError(Exception):
    """SIGTERM: what has been measured is shown."""


def stop(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # timeout sends it twice, and a second error would leave jobs
    raise StoppedError(f"signal {number}")


@dataclasses.dataclass(frozen=True)
class Cell:
    """A way to exchange gradients, as launch and the worker are told it."""

    name: str
    launch_flags: tuple[str, ...]
    worker_flags: tuple[str, ...]

    @staticmethod
    def parse(name: str) -> "Cell":
        if name == DDP:
            return Cell(name, (), ())
        sync, _, rest = name.partition(":")
        transport, *more = rest.split(":")
        launch = [f"--sync={sync}", f"--transport={transport}"]
        flags = []
        for part in more:
            if part.startswith("--"):
                flags.append(part)
            elif part.startswith("servers="):
                launch.append("--" + part)
            else:
                raise BenchError(f"cell {name!r}: {part!r} is neither servers=N nor a flag of the worker")
        if not sync or not transport:
            raise BenchError(f"cell {name!r}: it begins with SYNC:TRANSPORT, for example ring:mpi")
        return Cell(name, tuple(launch), tuple(flags))


@dataclasses.dataclass(frozen=True)
class Sample:
    """What the run record of one job says; of two processes, the mean."""

    p50_ms: float
    waits_ms: float
    digests: tuple[str, ...]  # of two processes that agree, one
    gpu_ms: Optional[float] = None  # by the GPU's clock; None where nothing is exchanged, or by PyTorch


def sample_of(records: list[dict[str, Any]]) -> Sample:
    exposed = [record["gpu_exposed_exchange_ms"]["p50"] for record in records if "gpu_exposed_exchange_ms" in record]
    return Sample(gpu_ms=statistics.mean(exposed) if exposed else None,
                  p50_ms=statistics.mean(record["step_ms"]["p50"] for record in records),
                  waits_ms=statistics.mean(record["breakdown_ms"]["exposed_exchange"] for record in records),
                  digests=tuple(sorted({record["parameter_sha256"] for record in records})))


def existing(given: str, places: tuple[str, ...]) -> str:
    if given:
        return os.path.abspath(given)
    for place in places:
        path = os.path.normpath(os.path.join(HERE, place))
        if os.path.exists(path):
            return path
    raise BenchError("none of these exists: " + ", ".join(places))


def why(output: str) -> str:
    """The line of a job's output that says most about its failure."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[-1] if lines else "no output")


def run(commands: list[list[str]], seconds_max: float, environment: Optional[dict[str, str]] = None) -> None:
    """Runs commands at the same time until all have ended. None outlives this call."""
    files = [tempfile.TemporaryFile("w+") for _ in commands]
    processes = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                  env={**os.environ, **(environment or {})}, start_new_session=True)
                 for command, file in zip(commands, files)]
    end = time.monotonic() + seconds_max
    late = False
    try:
        for process in processes:
            try:
                process.wait(timeout=max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                late = True
    finally:
        for process in processes:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if process.poll() is None:
                    os.killpg(process.pid, number)
                    try:
                        process.wait(timeout=GRACE_S)
                    except subprocess.TimeoutExpired:
                        continue
    for process, file in zip(processes, files):
        file.seek(0)
        output = file.read()
        file.close()
        if process.returncode != 0:
            ended = f"no end after {seconds_max:.0f} s" if late else f"exit status {process.returncode}"
            raise BenchError(f"{ended}: {why(output)}")


class Bench:
    """Runs jobs and keeps their samples."""

    def __init__(self, flags: argparse.Namespace) -> None:
        self.flags = flags
        self.worker = existing(flags.worker, WORKERS)
        self.launch = existing(flags.launch, LAUNCHES)
        self.cells = [Cell.parse(name) for name in flags.cells]
        self.samples: Samples = {}
        self.failures: dict[tuple[str, str], str] = {}
        self.control_steps: dict[str, int] = {}
        self.took_s: dict[tuple[str, str], float] = {}
        self.device = ""

    def training(self, model: str, batch: int, steps: int, record: str) -> list[str]:
        size = ["--synthetic_size=32", "--synthetic_channels=3"] if model == "resnet20" else []
        return ["--device=cuda", "--dataset=synthetic", f"--model={model}", f"--global_batch={batch}",
                f"--synthetic_train_count={self.flags.train_count}", "--synthetic_test_count=10", *size,
                "--epochs=1000000", f"--max_steps={steps}", "--progress=none", "--checkpoint_dir=none",
                f"--record={record}"]

    def ddp(self, training: list[str]) -> list[str]:
        ours = ("--progress=", "--checkpoint_dir=")
        program = existing("", ("ddp/train.py",))  # of a source tree
        return [self.flags.torch_python, program, "--world_size=2", "--share_gpus", "--data=ram",
                *(flag for flag in training if not flag.startswith(ours))]

    def run_job(self, model: str, steps: int, job: str, folder: str) -> list[dict[str, Any]]:
        """The run records of the job's processes; a cell has one."""
        batch = self.flags.batch
        records = [os.path.join(folder, "record.%d" % i) for i in range(2 if job == CONTROL else 1)]
        environment = {}
        if job in (ONE, CONTROL):
            share, count = (batch, steps) if job == ONE else (batch // 2, self.control_steps[model])
            commands = [[self.worker, "--sync=local", *self.training(model, share, count, record)]
                        for record in records]
        elif job == DDP:
            commands = [self.ddp(self.training(model, batch, steps, records[0]))]
        else:
            cell = Cell.parse(job)
            if "--sync=nccl" in cell.launch_flags:
                environment = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}  # two ranks may share a GPU since NCCL 2.30
            commands = [[self.launch, *cell.launch_flags, "--workers=2", "--worker_binary=" + self.worker, "--",
                         "--share_gpus", *self.training(model, batch, steps, records[0]), *cell.worker_flags]]
        run(commands, self.flags.job_seconds, environment)
        read = []
        for record in records:
            with open(record, encoding="utf-8") as file:
                read.append(json.load(file))
        return read

    def measure(self, model: str, steps: int, job: str) -> None:
        """A failure is kept, and this job is not run again."""
        if (model, job) in self.failures:
            return
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                records = self.run_job(model, steps, job, folder)
            except (BenchError, OSError, KeyError, ValueError) as error:
                self.failures[model, job] = str(error) or type(error).__name__
                print(f"{model} {job}: FAILED: {error}", file=sys.stderr, flush=True)
                return
        self.took_s[model, job] = time.monotonic() - begin
        self.device = self.device or records[0]["host"]["device"]
        sample = sample_of(records)
        self.samples.setdefault((model, job), []).append(sample)
        print(f"{model:<10} {job:<36} p50 {sample.p50_ms:.3f} ms, waits {sample.waits_ms:.3f} ms", file=sys.stderr,
              flush=True)
        if job == ONE and model not in self.control_steps:
            self.control_steps[model] = min(CONTROL_STEPS_MAX,
                                            max(steps, int(1000 * self.flags.overlap_s / sample.p50_ms)))

    def measure_all(self) -> None:
        """Whole repeats first, so that a run which ends early has every cell. A model that does not train has none."""
        begin = time.monotonic()
        for repeat in range(self.flags.repeats):
            for model, steps in self.flags.models:
                for job in ([ONE] if repeat == 0 else []) + [CONTROL, *(cell.name for cell in self.cells)]:
                    if 0 < self.flags.seconds < time.monotonic() - begin + self.took_s.get((model, job), 0):
                        return
                    if job == ONE or model in self.control_steps:
                        self.measure(model, steps, job)
        if not self.samples:
            raise BenchError("; ".join(f"{model} does not train: {reason}"
                                       for (model, _), reason in self.failures.items()))


def costs_us(samples: Samples, model: str, job: str) -> list[float]:
    """E of each repeat: the job's p50 less that of the control, in microseconds."""
    return [1000 * (mine.p50_ms - control.p50_ms)
            for mine, control in zip(samples.get((model, job), []), samples.get((model, CONTROL), []))]


def table(samples: Samples, failures: dict[tuple[str, str], str], models: list[str], jobs: list[str]) -> list[str]:
    """The lines of the table."""
    lines = [f"{'':<10} {'':<36} {'p50':>9} {'mean':>9} {'p50':>8} {'median':>9}",
             f"{'model':<10} {'job':<36} {'step ms':>9} {'waits ms':>9} {'GPU ms':>8} {'E us':>9} "
             f"{'least':>8} {'most':>8} {'pairs':>5}  digest"]
    for model in models:
        for job in jobs:
            begin = f"{model:<10} {job:<36} "
            found = samples.get((model, job), [])
            if found:
                line = begin + f"{statistics.median(sample.p50_ms for sample in found):>9.3f} "
                line += f"{statistics.median(sample.waits_ms for sample in found):>9.3f} "
                by_gpu = [sample.gpu_ms for sample in found if sample.gpu_ms is not None]
                line += f"{statistics.median(by_gpu):>8.3f} " if by_gpu else f"{'':>8} "
                costs = costs_us(samples, model, job) if job not in (ONE, CONTROL) else []
                line += (f"{statistics.median(costs):>9.0f} {min(costs):>8.0f} {max(costs):>8.0f} {len(costs):>5}  "
                         if costs else f"{'':>9} {'':>8} {'':>8} {'':>5}  ")
                lines.append(line + " ".join(sorted({digest[:12] for sample in found for digest in sample.digests})))
            if (model, job) in failures:
                lines.append(begin + "FAILED: " + failures[model, job])
            elif not found:
                lines.append(begin + "not run")
    return lines


def fewest_pairs(samples: Samples, models: list[str], jobs: list[str]) -> str:
    """A sentence about the cell that was measured least often."""
    count = min(len(costs_us(samples, model, job)) for model in models for job in jobs if job not in (ONE, CONTROL))
    return f"each cell has {count} pair{'' if count == 1 else 's'} with the control, or more"


def different_digests(samples: Samples, models: list[str], jobs: list[str]) -> list[str]:
    """A sentence for each model's digests that must be equal and are not."""
    problems = []
    for model in models:
        for group in ([ONE], [CONTROL], [job for job in jobs if job not in (ONE, CONTROL, DDP)]):
            seen: dict[str, list[str]] = {}
            for job in group:
                for digest in sorted({one for sample in samples.get((model, job), []) for one in sample.digests}):
                    seen.setdefault(digest, []).append(job)
            if len(seen) > 1:
                problems.append(f"{model}: DIGESTS DIFFER: " + "; ".join(
                    f"{digest[:12]} of {', '.join(names)}" for digest, names in seen.items()))
    return problems


def parse_models(text: str) -> list[tuple[str, int]]:
    models = []
    for part in text.split(","):
        model, _, steps = part.partition(":")
        if not model or not steps.isdigit() or int(steps) < 1:
            raise argparse.ArgumentTypeError(f"{part!r} is not MODEL:STEPS")
        models.append((model, int(steps)))
    return models


def parse_flags(arguments: Optional[list[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0], allow_abbrev=False)
    parser.add_argument("cells", nargs="*", metavar="CELL", help="default: " + " ".join(CELLS))
    parser.add_argument("--models", type=parse_models, default="mlp:600,mnist_cnn:200,resnet20:60",
                        help="MODEL:STEPS,...: steps of a cell's run")
    parser.add_argument("--batch", type=int, default=512, help="samples of a step of all workers together")
    parser.add_argument("--train_count", type=int, default=30720, help="samples of the data set")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--overlap_s", type=float, default=2.5, help="least time of the control's steps")
    parser.add_argument("--seconds", type=float, default=0, help="end in about this time, with fewer repeats; 0: never")
    parser.add_argument("--job_seconds", type=float, default=60, help="a job that takes longer has failed")
    parser.add_argument("--worker", default="", help="the worker's binary")
    parser.add_argument("--launch", default="", help="launch's binary")
    parser.add_argument("--torch_python", default="python3", help="a Python with torch, for the cell ddp")
    parser.add_argument("--record", default="", help="file for the results, JSON")
    flags = parser.parse_args(arguments)
    flags.cells = flags.cells or list(CELLS)
    return flags


def main() -> int:
    flags = parse_flags()
    os.environ.update({"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
    models = [model for model, _ in flags.models]
    jobs = [ONE, CONTROL, *flags.cells]
    stopped = []
    try:
        bench = Bench(flags)
        signal.signal(signal.SIGTERM, stop)
        bench.measure_all()
    except BenchError as error:
        print(f"gpu_exchange: NOTHING WAS MEASURED: {error}", file=sys.stderr)
        return 2
    except StoppedError as error:
        stopped = [f"STOPPED by {error}"]
    problems = stopped + different_digests(bench.samples, models, jobs)
    print(bench.device)
    lines = [*table(bench.samples, bench.failures, models, jobs), fewest_pairs(bench.samples, models, jobs), *problems]
    print("\n".join(lines))
    if flags.record:
        with open(flags.record, "w", encoding="utf-8") as file:
            json.dump({"device": bench.device,
                       "batch": flags.batch, "problems": problems,
                       "jobs": [{"model": model, "job": job, "samples": [dataclasses.asdict(one) for one in found]}
                                for (model, job), found in bench.samples.items()],
                       "failures": [{"model": model, "job": job, "why": reason}
                                    for (model, job), reason in bench.failures.items()]}, file, indent=1)
    missing = any((model, job) not in bench.samples for model in models for job in jobs)
    return 1 if problems or bench.failures or missing else 0


if __name__ == "__main__":
    sys.exit(main())
