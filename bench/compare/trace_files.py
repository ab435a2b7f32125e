"""A short run of a job with a timeline: what every process did in each step, in one file beside results.json."""

import dataclasses
import os
import tempfile

import measure
import trace


def run(job, steps, gpus, out):
    """The name of the merged file in `out`; None for a job that deploy/launch does not start."""
    if job.lab is not None or job.configuration["sync"] not in ("local", "star", "ring", "mpi"):
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        measure.run_job(dataclasses.replace(job, launch_flags=["--trace=" + path]), steps, gpus)
        name = "trace-" + "".join(c if c.isalnum() else "-" for c in job.configuration["id"]) + ".json"
        trace.merge_files(trace.files_of(path), os.path.join(out, name))
        return name
