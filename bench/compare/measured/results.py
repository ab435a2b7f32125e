"""The schema of results.json, and how to read and write it. Also writes runs.csv, which has one row per run.

The classes list all keys. A reader ignores unknown keys and takes a missing list for an empty one. A number that was
not measured is None (null). Names end in their units. Breakdowns and step times are those of rank 0.
"""

from __future__ import annotations

import csv
import json
import os
from typing import Any, TypedDict, cast

SCHEMA = 1

BREAKDOWN_PARTS = ("data_wait", "h2d", "forward", "backward", "exposed_exchange", "optimizer", "other")
STEP_QUANTILES = ("p50", "p95", "p99", "mean", "max")


class Clock(TypedDict):
    min: float | None
    median: float | None
    max: float | None


class _OptionalMachine(TypedDict, total=False):
    cpu_quota: float | None  # the time that its control groups grant it, in cores; None: no limit


class Machine(_OptionalMachine):
    name: str
    cpu: str
    cores: int  # the number that this process may use
    memory_gib: float
    os: str
    gpu: str | None
    load_before: float  # the 1-minute load average
    load_after: float | None
    clock_mhz: Clock  # over all cores and samples while the jobs ran


class Gpu(TypedDict):
    percent: float | None  # mean while it trained; None if that was too short to tell
    memory_bytes: int  # largest sample


class _OptionalRun(TypedDict, total=False):
    deterministic: bool  # flags and seed decide parameter_sha256; older files lack the key, and cells are so there


class Run(_OptionalRun):
    """One run of one configuration."""
    repeat: int
    samples_per_second: float  # global batch / mean measured step
    seconds_per_epoch: float  # at this rate
    steps_measured: int
    warmup_steps: int  # taken before the measured steps, and in none of this run's numbers
    step_ms: dict[str, float]  # STEP_QUANTILES
    breakdown_ms: dict[str, float]  # BREAKDOWN_PARTS, whose sum is the mean step
    exchange_bytes_per_step: dict[str, float]  # sent, received
    cpu_percent: dict[str, float]  # by "worker 0", "server 0"; 100 is one core; over the life of the process
    gpu: Gpu | None
    load: float  # the load average just before the run
    clock_mhz: float | None
    parameter_sha256: str


class _OptionalConfiguration(TypedDict, total=False):
    group_workers: int  # the budget of its group (jobs.py)


class Configuration(_OptionalConfiguration):
    """One job of the matrix, and its runs."""
    id: str  # "lenet5/star/2w/equal-workers/weak"; outside the section "machine" followed by "@section"
    sync: str  # a cell of sync_cells.py, local, mpi, ddp, ddp-tuned, ddp+star, ddp+ring
    model: str
    dataset: str
    section: str  # "machine", or "netlab:4,1gbit"; "netlab:4+4,1gbit" has 4 more hosts, for servers alone
    workers: int
    servers: int
    accounting: str  # equal-workers: as many workers as the others; equal-cores, own-hosts: see jobs.py
    scaling: str  # strong: the global batch is fixed; weak: the batch per worker is fixed
    global_batch: int
    cores: dict[str, list[str]]  # by "worker", "server": the list of cores of each process, "0,1"
    oversubscribed: bool  # more busy processes than cores
    command: list[str]
    trace: str | None  # a file name in the folder of results.json
    runs: list[Run]
    slowest_worker_ratio: float | None  # slowest worker's mean compute time per step / the median worker's
    settings: dict[str, str]  # the peer's settings, for people: {"bucket_cap_mb": "1", "channels_last": "no"}


class _OptionalTrainingEpoch(TypedDict, total=False):
    test_rmse: float  # with a loss of numbers (mse) alone, where test_accuracy says nothing


class TrainingEpoch(_OptionalTrainingEpoch):
    epoch: int
    train_loss: float
    test_accuracy: float  # in [0, 1]
    seconds: float  # training time from the start to the end of this epoch, without evaluation


class Loss(TypedDict):
    step: int  # counted from 0
    seconds: float  # training time at the end of the step
    loss: float  # mean over the global batch


class _OptionalTraining(TypedDict, total=False):
    test: dict[str, Any]  # TestQuality of the run record: how good the model is at the end
    target_rmse: float  # in place of target_accuracy, where epochs have test_rmse


class Training(_OptionalTraining):
    """One longer run, for accuracy over time."""
    configuration: str  # the id of a configuration
    sync: str
    model: str
    workers: int
    epochs: list[TrainingEpoch]
    target_accuracy: float
    seconds_to_target: float | None  # None: not reached
    losses: list[Loss]


class Agreement(TypedDict):
    """The losses of the first steps, of Starring and of the peer."""
    model: str
    peer: str  # ddp, ddp-tuned, ddp+star, ddp+ring
    workers: int
    steps: int
    tolerance: float  # relative
    peer_precision: str  # the precision of `theirs`: single, or double if single exceeded the tolerance
    single_difference: float | None  # the worst difference in single precision; None if that agreed
    worst_relative_difference: float
    worst_step: int
    ours: list[float]
    theirs: list[float]
    agrees: bool


class LoaderRate(TypedDict):
    name: str  # starring, dataloader (samples one by one), dataloader-batches
    dataset: str
    augment: str
    threads: int
    samples_per_second: float


class ExchangeTime(TypedDict):
    """One exchange of a parameter vector of this number of bytes, and nothing else."""
    sync: str  # a cell of sync_cells.py, mpi, mpi4py, gloo, horovod; star-own-hosts: with servers on hosts of their own
    workers: int
    servers: int
    bytes: int
    latency_us: float  # median
    bus_gb_per_s: float  # 2 (N - 1) / N * bytes / time
    section: str  # as in configurations


class Missing(TypedDict):
    """A row of the exchange alone that could not be measured."""
    sync: str
    workers: int
    section: str
    reason: str  # for people, with the way to get it


class Buckets(TypedDict):
    """The buckets in which one model's gradients leave, as a short run reported them."""
    sync: str
    model: str
    workers: int
    asked_bytes: int
    sizes: list[int]  # bytes, in the order in which backward finishes them


class UnevenRun(TypedDict):
    """One run of one program in one case of the section of uneven and failing workers."""
    repeat: int
    case: str  # even; half-speed: one of the workers; kills: a worker is killed at regular intervals
    samples_per_second: float  # that counted (counted.py), over wall time
    seconds: float  # of this wall time
    kills: int


class TriedPeriod(TypedDict):
    """A short run with kills."""
    checkpoint_every_steps: int
    samples_per_second: float


class UnevenJob(TypedDict):
    """One program of that section."""
    sync: str  # ring, star, star-elastic, ddp-tuned
    command: list[str]  # with kills
    checkpoint_every_steps: int | None  # the best of `tried`; None for the elastic star, which has snapshots
    tried: list[TriedPeriod]
    runs: list[UnevenRun]
    reason: str | None  # why it was not measured, for people


class Shares(TypedDict):
    """The shares of the elastic star in one run with a worker at half speed. Lists are by worker."""
    repeat: int
    leaves: list[int]  # micro-batches of a step that each worker computed
    seconds_per_leaf: list[float]
    best_leaves: list[int]  # the split with the shortest time of the slower worker, and that time
    best_ms: float
    step_ms_p50: float  # with `leaves`
    deals: int  # generations that ended because other shares were faster
    watched_seconds: float  # with the slow worker


class Uneven(TypedDict):
    """The section of uneven and failing workers."""
    model: str
    dataset: str
    workers: int
    servers: int  # of the stars
    global_batch: int
    micro_batches: int  # of the elastic star
    slowed_by: str | None  # how a worker was brought to half speed, for people
    kill_every_seconds: float
    jobs: list[UnevenJob]
    shares: list[Shares]


class GpuSample(TypedDict):
    """One run of a job on the GPU; of two processes, the mean."""
    p50_ms: float
    waits_ms: float  # mean exposed exchange by the host's clock
    gpu_ms: float | None  # the median by the GPU's clock; None where nothing is exchanged, or by PyTorch
    digests: list[str]


class GpuJob(TypedDict):
    model: str
    job: str  # "one process", "control", a cell of bench/gpu_exchange.py
    samples: list[GpuSample]  # one for each repeat


class GpuFailure(TypedDict):
    model: str
    job: str
    why: str


class GpuCells(TypedDict):
    """The section of two workers on one GPU: the record of bench/gpu_exchange.py."""
    device: str
    batch: int  # of all workers together
    problems: list[str]  # digests that differ
    jobs: list[GpuJob]
    failures: list[GpuFailure]


class Results(TypedDict):
    schema: int
    command: list[str]
    started_at: str  # ISO 8601
    seconds: float
    machine: Machine
    versions: dict[str, str]  # starring, torch, torch_backend, mpi, grpc, onednn, ...
    notes: list[str]  # for people: doubts about numbers, and parts that are missing
    peer_notes: list[str]  # for people: how the peer's settings were found
    configurations: list[Configuration]
    training: list[Training]
    agreement: list[Agreement]
    loaders: list[LoaderRate]
    exchanges: list[ExchangeTime]
    missing_exchanges: list[Missing]
    buckets: list[Buckets]
    predictions: list[Any]  # of bench:plan, as predictions.py describes them
    uneven: Uneven | None  # None without --uneven
    gpu_cells: GpuCells | None  # None on a CPU, and in results of before
    trace: str | None


class ResultsError(Exception):
    """The file is no results.json that this program can read; the message says why."""


def empty(command: list[str], started_at: str, machine: Machine) -> Results:
    return Results(schema=SCHEMA, command=list(command), started_at=started_at, seconds=0.0, machine=machine,
                   versions={}, notes=[], peer_notes=[], configurations=[], training=[], agreement=[], loaders=[],
                   exchanges=[], missing_exchanges=[], buckets=[], predictions=[], uneven=None,
                   gpu_cells=None, trace=None)


def write(path: str, results: Results) -> None:
    """Writes all of the file or nothing."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1, allow_nan=False)
        file.write("\n")
    os.replace(temporary, path)


def read(path: str) -> Results:
    with open(path, encoding="utf-8") as file:
        try:
            results = json.load(file)
        except ValueError as error:
            raise ResultsError("%s is not JSON: %s" % (path, error)) from error
    if not isinstance(results, dict) or results.get("schema") != SCHEMA:
        found = results.get("schema") if isinstance(results, dict) else "no object"
        raise ResultsError("%s: expected schema %d, found %s" % (path, SCHEMA, found))
    for name in ("notes", "peer_notes", "configurations", "training", "agreement", "loaders", "exchanges",
                 "missing_exchanges", "buckets", "predictions", "command"):
        results.setdefault(name, [])
    for name in ("versions", "machine"):
        results.setdefault(name, {})
    for name in ("trace", "uneven"):
        results.setdefault(name, None)
    return cast(Results, results)


_CONFIGURATION_COLUMNS = ("id", "sync", "model", "dataset", "section", "workers", "servers", "accounting", "scaling",
                          "global_batch", "oversubscribed")
_RUN_COLUMNS = ("repeat", "samples_per_second", "seconds_per_epoch", "steps_measured", "warmup_steps", "load",
                "clock_mhz", "parameter_sha256")


def _row(configuration: Configuration, run: Run) -> dict[str, Any]:
    row = {name: configuration.get(name) for name in _CONFIGURATION_COLUMNS}
    row.update({name: run.get(name) for name in _RUN_COLUMNS})
    row.update({"step_%s_ms" % name: run["step_ms"].get(name) for name in STEP_QUANTILES})
    row.update({"%s_ms" % name: run["breakdown_ms"].get(name) for name in BREAKDOWN_PARTS})
    for direction in ("sent", "received"):
        row["bytes_%s_per_step" % direction] = run["exchange_bytes_per_step"].get(direction)
    for role in ("worker", "server"):
        percents = [value for name, value in run["cpu_percent"].items() if name.startswith(role)]
        row["cpu_percent_%ss" % role] = sum(percents) if percents else None
    gpu = run.get("gpu")
    row["gpu_percent"] = gpu["percent"] if gpu else None
    row["gpu_memory_bytes"] = gpu["memory_bytes"] if gpu else None
    for role in ("worker", "server"):
        row["cores_%ss" % role] = ";".join(configuration["cores"].get(role, []))
    return row


def write_runs_csv(path: str, results: Results) -> None:
    rows = [_row(configuration, run) for configuration in results["configurations"] for run in configuration["runs"]]
    with open(path, "w", encoding="utf-8", newline="") as file:
        # Without runs there is no row that names the columns.
        columns = list(rows[0]) if rows else [*_CONFIGURATION_COLUMNS, *_RUN_COLUMNS]
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
