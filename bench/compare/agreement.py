"""Do Starring and the peer train the same? The losses of the first steps say so, before anything is timed.

Both start from the weights of one safetensors file, which Starring writes; the peer drops (dropout) what Starring
drops. Each loss is the mean over the global batch.

In single precision two right programs can part: where a sum lies within rounding of zero, one's ReLU passes the
gradient and the other's does not, and training makes the difference grow, the faster the larger the learning rate. So
the rate is RATE at most; and where single precision leaves the tolerance all the same, the peer trains once more in
double precision, and Starring has to agree with that.
"""

import os
import tempfile

import measure
import programs

STEPS = 20
RATE = 0.01  # seen: at 0.05 a flipped ReLU grows to 8e-4 in 20 steps of mlp, at 0.02 and below to 5e-6 at most
TOLERANCE = 1e-4  # relative, fp32 on the CPU


def compare(model, peer, workers, ours, theirs, tolerance=TOLERANCE):
    """An entry of `agreement` of results.json, of two lists of losses."""
    differences = [abs(a - b) / max(abs(a), 1e-12) for a, b in zip(ours, theirs)]
    # A NaN compares false with everything: it must not pass for small.
    agrees = len(ours) == len(theirs) > 0 and all(difference <= tolerance for difference in differences)
    finite = [difference if difference == difference else float("inf") for difference in differences]
    worst = max(finite, default=float("inf"))
    return {"model": model, "peer": peer, "workers": workers, "steps": min(len(ours), len(theirs)),
            "tolerance": tolerance, "peer_precision": "single", "single_difference": None,
            "worst_relative_difference": min(worst, 1e300),
            "worst_step": finite.index(worst) if finite else 0, "ours": ours, "theirs": theirs, "agrees": agrees}


def settle(single, compare_with_double):
    """The entry that decides: that of single precision if it agrees, else that of the peer's double precision."""
    if single["agrees"]:
        return single
    return compare_with_double() | {"peer_precision": "double",
                                    "single_difference": single["worst_relative_difference"]}


def write_first_weights(folder, model, shared_flags):
    """A checkpoint with the weights that every run of `model` begins with; returns its safetensors file.

    The worker saves no weights that it has not trained: one step, at a rate at which no weight changes.
    """
    data = [flag for flag in shared_flags if flag.partition("=")[0] in ("--dataset", "--data_dir", "--seed")]
    programs.run([programs.binary("worker/worker"), "--sync=local", "--device=cpu", "--progress=none", *data,
                  f"--model={model}", "--learning_rate=1e-30", "--max_steps=1", "--checkpoint_dir=" + folder])
    for name, _, files in os.walk(folder):
        if "model.safetensors" in files:
            return os.path.join(name, "model.safetensors")
    raise programs.ProgramError(f"the worker left no model.safetensors in {folder}")


def rate(shared_flags):
    """RATE, or what the flags say if it is less."""
    given = [float(value) for name, _, value in (flag.partition("=") for flag in shared_flags)
             if name == "--learning_rate"]
    return min([RATE, *given[-1:]])


def _losses(job, gpus, more=()):
    flags = ["--record_losses", f"--learning_rate={rate(job.shared_flags)}", *more]
    record, _ = measure.run_job(job, STEPS, gpus, flags)
    return [step["loss"] for step in record["losses"]]


def check(our_job, peer_jobs, gpus, tolerance=TOLERANCE):
    """Entries of `agreement`, of jobs of one model and equally many workers."""
    model, workers = our_job.configuration["model"], our_job.configuration["workers"]
    with tempfile.TemporaryDirectory() as folder:
        weights = write_first_weights(folder, model, our_job.shared_flags)
        ours = _losses(our_job, gpus)
        found = []
        for job in peer_jobs:
            def against(precision, job=job):
                flags = ["--initial_weights=" + weights, "--dropout=starring", "--precision=" + precision]
                return compare(model, job.configuration["sync"], workers, ours, _losses(job, gpus, flags), tolerance)

            found.append(settle(against("single"), lambda: against("double")))
        return found
