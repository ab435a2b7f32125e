"""The schema of results.json, reading and writing it, and runs.csv, which has one row a run.

The classes say which keys there are. A reader ignores keys that it does not know and takes a missing list for an empty
one; a number that was not measured is None (null). Seconds, milliseconds and bytes stand in the names; breakdowns and
step times are those of rank 0.
"""

import csv
import json
import os
from typing import Dict, List, Optional, TypedDict

SCHEMA = 1

BREAKDOWN_PARTS = ("data_wait", "h2d", "forward", "backward", "exposed_exchange", "optimizer", "other")
STEP_QUANTILES = ("p50", "p95", "p99", "mean", "max")


class Clock(TypedDict):
    min: Optional[float]
    median: Optional[float]
    max: Optional[float]


class Machine(TypedDict):
    name: str
    cpu: str
    cores: int  # that this process may use
    memory_gib: float
    os: str
    gpu: Optional[str]
    load_before: float  # the 1-minute load average
    load_after: float
    clock_mhz: Clock  # over all cores and samples while the jobs ran


class Gpu(TypedDict):
    percent: float  # mean of the samples
    memory_bytes: int  # largest


class Run(TypedDict):
    """One run of one configuration."""
    repeat: int
    samples_per_second: float  # global batch / mean measured step
    seconds_per_epoch: float  # at that rate
    steps_measured: int
    warmup_steps: int  # taken before them, in no number of this run
    step_ms: Dict[str, float]  # STEP_QUANTILES
    breakdown_ms: Dict[str, float]  # BREAKDOWN_PARTS: they add up to the mean step
    exchange_bytes_per_step: Dict[str, float]  # sent, received
    cpu_percent: Dict[str, float]  # "worker 0", "server 0": 100 is one core, over the life of the process
    gpu: Optional[Gpu]
    load: float  # the load average just before the run
    clock_mhz: Optional[float]
    parameter_sha256: str


class Configuration(TypedDict):
    id: str  # "lenet5/star/2w/equal-workers/weak", in another section than "machine" with "@section" behind it
    sync: str  # local, star, ring, mpi, ddp, ddp-tuned
    model: str
    dataset: str
    section: str  # "machine", or "netlab:4,1gbit"
    workers: int
    servers: int
    accounting: str  # equal-workers: as many workers as the others; equal-cores: servers have cores of their own
    scaling: str  # strong: the global batch is fixed; weak: the batch of a worker is fixed
    global_batch: int
    cores: Dict[str, List[str]]  # "worker", "server": the list of cores of each process, "0,1"
    oversubscribed: bool  # more busy processes than cores
    command: List[str]
    trace: Optional[str]  # file name beside results.json
    runs: List[Run]
    slowest_worker_ratio: Optional[float]  # slowest worker's mean compute time per step / the median worker's
    settings: Dict[str, str]  # what else was chosen, for people: {"bucket_cap_mb": "1", "channels_last": "no"}


class TrainingEpoch(TypedDict):
    epoch: int
    train_loss: float
    test_accuracy: float  # in [0, 1]
    seconds: float  # of training, evaluation left out, from the start to the end of this epoch


class Loss(TypedDict):
    step: int  # counted from 0
    seconds: float  # of training, at its end
    loss: float  # mean over the global batch


class Training(TypedDict):
    """One longer run, for accuracy against time."""
    configuration: str  # the id of a configuration
    sync: str
    model: str
    workers: int
    epochs: List[TrainingEpoch]
    target_accuracy: float
    seconds_to_target: Optional[float]  # None: not reached
    losses: List[Loss]


class Agreement(TypedDict):
    """The losses of the first steps, by Starring and by the peer."""
    model: str
    peer: str  # ddp, ddp-tuned
    workers: int
    steps: int
    tolerance: float  # relative
    peer_precision: str  # of `theirs` and of the difference: single, or double where single left the tolerance
    single_difference: Optional[float]  # the worst one in single precision; None where that is what agreed
    worst_relative_difference: float
    worst_step: int
    ours: List[float]
    theirs: List[float]
    agrees: bool


class LoaderRate(TypedDict):
    name: str  # starring, dataloader (samples one by one), dataloader-batches
    dataset: str
    augment: str
    threads: int
    samples_per_second: float


class ExchangeTime(TypedDict):
    """One exchange of a parameter vector of so many bytes, and nothing else."""
    sync: str  # star, ring, mpi, gloo
    workers: int
    servers: int
    bytes: int
    latency_us: float  # median
    bus_gb_per_s: float  # 2 (N - 1) / N * bytes / time
    section: str  # as of configurations


class Results(TypedDict):
    schema: int
    command: List[str]
    started_at: str  # ISO 8601
    seconds: float
    machine: Machine
    versions: Dict[str, str]  # starring, torch, torch_backend, mpi, grpc, onednn, ...
    notes: List[str]  # for people: what casts doubt on a number, or is missing
    peer_notes: List[str]  # for people: how the peer came to its settings
    configurations: List[Configuration]
    training: List[Training]
    agreement: List[Agreement]
    loaders: List[LoaderRate]
    exchanges: List[ExchangeTime]
    trace: Optional[str]


class ResultsError(Exception):
    """A file is no results.json that this program reads; the message says why."""


def empty(command, started_at, machine):
    return Results(schema=SCHEMA, command=list(command), started_at=started_at, seconds=0.0, machine=machine,
                   versions={}, notes=[], peer_notes=[], configurations=[], training=[], agreement=[], loaders=[],
                   exchanges=[], trace=None)


def write(path, results):
    """Whole or not at all."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1, allow_nan=False)
        file.write("\n")
    os.replace(temporary, path)


def read(path):
    with open(path, encoding="utf-8") as file:
        try:
            results = json.load(file)
        except ValueError as error:
            raise ResultsError("%s is not JSON: %s" % (path, error)) from error
    if not isinstance(results, dict) or results.get("schema") != SCHEMA:
        found = results.get("schema") if isinstance(results, dict) else "no object"
        raise ResultsError("%s: expected schema %d, found %s" % (path, SCHEMA, found))
    for name in ("notes", "peer_notes", "configurations", "training", "agreement", "loaders", "exchanges", "command"):
        results.setdefault(name, [])
    for name in ("versions", "machine"):
        results.setdefault(name, {})
    results.setdefault("trace", None)
    return results


_CONFIGURATION_COLUMNS = ("id", "sync", "model", "dataset", "section", "workers", "servers", "accounting", "scaling",
                          "global_batch", "oversubscribed")
_RUN_COLUMNS = ("repeat", "samples_per_second", "seconds_per_epoch", "steps_measured", "warmup_steps", "load",
                "clock_mhz", "parameter_sha256")


def _row(configuration, run):
    row = {name: configuration.get(name) for name in _CONFIGURATION_COLUMNS}
    row.update({name: run.get(name) for name in _RUN_COLUMNS})
    row.update({"step_%s_ms" % name: run["step_ms"].get(name) for name in STEP_QUANTILES})
    row.update({"%s_ms" % name: run["breakdown_ms"].get(name) for name in BREAKDOWN_PARTS})
    for direction in ("sent", "received"):
        row["bytes_%s_per_step" % direction] = run["exchange_bytes_per_step"].get(direction)
    for role in ("worker", "server"):
        percents = [value for name, value in run["cpu_percent"].items() if name.startswith(role)]
        row["cpu_percent_%ss" % role] = sum(percents) if percents else None
    gpu = run.get("gpu") or {}
    row.update({"gpu_percent": gpu.get("percent"), "gpu_memory_bytes": gpu.get("memory_bytes")})
    for role in ("worker", "server"):
        row["cores_%ss" % role] = ";".join(configuration["cores"].get(role, []))
    return row


def write_runs_csv(path, results):
    rows = [_row(configuration, run) for configuration in results["configurations"] for run in configuration["runs"]]
    with open(path, "w", encoding="utf-8", newline="") as file:
        # Without runs there is no row to take the columns from.
        columns = list(rows[0]) if rows else [*_CONFIGURATION_COLUMNS, *_RUN_COLUMNS]
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
