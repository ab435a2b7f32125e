"""Compares the losses of the first steps of Starring and the peer, before anything is timed: do they train the same?

Both start from the weights of one safetensors file, which Starring writes, and the peer's dropout drops the same values
as Starring's. Each loss is the mean over the global batch.

In single precision two correct programs can diverge. If a sum is within rounding of zero, the ReLU of one program
passes the gradient and that of the other does not. Training then makes the difference grow, the faster the larger the
learning rate is. So the rate is RATE at most. If single precision exceeds the tolerance all the same, the peer trains
once more in double precision, and Starring has to agree with that.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence

import jobs
import machine
import measure
import programs
import results as schema

STEPS = 20
RATE = 0.01  # seen: at 0.05 a flipped ReLU grows to 8e-4 in 20 steps of mlp, at 0.02 and below to 5e-6 at most
TOLERANCE = 1e-4  # relative, fp32 on the CPU
# Flags without which a training would read other data, or give a model another shape.
DATA_FLAGS = ("--dataset", "--data_dir", "--seed", "--cifar100_labels", "--csv_label", "--test_fraction",
              "--split_seed", "--normalize")


def compare(model: str, peer: str, workers: int, ours: list[float], theirs: list[float],
            tolerance: float = TOLERANCE) -> schema.Agreement:
    """An entry of `agreement` of results.json, made from two lists of losses."""
    differences = [abs(a - b) / max(abs(a), 1e-12) for a, b in zip(ours, theirs)]
    # Every comparison with NaN is false. Hence `all(... <= ...)`, which a NaN fails, rather than `any(... > ...)`.
    agrees = len(ours) == len(theirs) > 0 and all(difference <= tolerance for difference in differences)
    finite = [difference if difference == difference else float("inf") for difference in differences]
    worst = max(finite, default=float("inf"))
    return {"model": model, "peer": peer, "workers": workers, "steps": min(len(ours), len(theirs)),
            "tolerance": tolerance, "peer_precision": "single", "single_difference": None,
            "worst_relative_difference": min(worst, 1e300),
            "worst_step": finite.index(worst) if finite else 0, "ours": ours, "theirs": theirs, "agrees": agrees}


def settle(single: schema.Agreement, compare_with_double: Callable[[], schema.Agreement]) -> schema.Agreement:
    """The deciding entry: the one in single precision if it agrees, else the one in the peer's double precision."""
    if single["agrees"]:
        return single
    double = compare_with_double()
    double["peer_precision"] = "double"
    double["single_difference"] = single["worst_relative_difference"]
    return double


def write_first_weights(folder: str, model: str, shared_flags: list[str]) -> str:
    """Writes a checkpoint with the initial weights of `model`; returns the path of its safetensors file.

    The worker saves only after training, so it trains one step with a rate so small that no weight changes.
    """
    data = [flag for flag in shared_flags if flag.partition("=")[0] in DATA_FLAGS]
    programs.run([programs.binary("worker/worker"), "--sync=local", "--device=cpu", "--progress=none", *data,
                  f"--model={model}", "--learning_rate=1e-30", "--max_steps=1", "--checkpoint_dir=" + folder])
    for name, _, files in os.walk(folder):
        if "model.safetensors" in files:
            return os.path.join(name, "model.safetensors")
    raise programs.ProgramError(f"the worker left no model.safetensors in {folder}")


def rate(shared_flags: list[str]) -> float:
    """RATE, or the flags' --learning_rate if it is smaller."""
    given = [float(value) for name, _, value in (flag.partition("=") for flag in shared_flags)
             if name == "--learning_rate"]
    return min([RATE, *given[-1:]])


def _losses(job: jobs.Job, gpus: machine.Gpus, more: Sequence[str] = ()) -> list[float]:
    flags = ["--record_losses", f"--learning_rate={rate(job.shared_flags)}", *more]
    record, _ = measure.run_job(job, STEPS, gpus, flags)
    return [step["loss"] for step in record["losses"]]


def check(our_job: jobs.Job, peer_jobs: list[jobs.Job], gpus: machine.Gpus,
          tolerance: float = TOLERANCE) -> list[schema.Agreement]:
    """Entries of `agreement`, for jobs with the same model and number of workers."""
    model, workers = our_job.configuration["model"], our_job.configuration["workers"]
    with tempfile.TemporaryDirectory() as folder:
        weights = write_first_weights(folder, model, our_job.shared_flags)
        ours = _losses(our_job, gpus)
        found = []
        for job in peer_jobs:
            def against(precision: str, job: jobs.Job = job) -> schema.Agreement:
                flags = ["--initial_weights=" + weights, "--dropout=starring", "--precision=" + precision]
                return compare(model, job.configuration["sync"], workers, ours, _losses(job, gpus, flags), tolerance)

            single = against("single")
            # Our exchange sums no float64. What it sums wrongly must not be excused by a run without it either.
            hooked = job.configuration["sync"] in jobs.HOOKS
            found.append(single if hooked else settle(single, lambda: against("double")))
        return found
