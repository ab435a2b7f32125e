"""Asks Starring and DDP for buckets of the same size, and reads from their run records which they made.

DDP's first bucket may grow to 1 MiB (_DEFAULT_FIRST_BUCKET_BYTES), whatever bucket_cap_mb says, and no bucket of DDP
splits a tensor. A bucket that holds the whole model leaves when backward has ended, so nothing hides its exchange.
Ours are cut from the parameter vector wherever the size says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jobs
import machine
import measure
import results as schema

ASKED_BYTES = 256 << 10  # below 1 MiB, or DDP's limit for the first bucket could not be seen
# DDP makes its buckets after the first step, and reports them in one of the ten steps after that.
STEPS = 14


def of_vector(vector_bytes: int, bucket_bytes: int) -> list[int]:
    """The sizes of our buckets, as common/job/bucket_map.h cuts them: all are full but bucket 0, which leaves first."""
    count = -(-vector_bytes // bucket_bytes)
    return [vector_bytes - (count - 1) * bucket_bytes, *[bucket_bytes] * (count - 1)] if count else []


def of_peer(versions: dict[str, str]) -> tuple[list[int], int]:
    """The sizes of DDP's buckets and of the whole parameter vector, from the versions of its record."""
    sizes = [int(word) for word in versions.get("buckets", "").split(",") if word]
    return sizes, int(versions.get("parameter_bytes", 0))


def entries(configurations: Sequence[schema.Configuration], ours: dict[str, Any],
            theirs: dict[str, Any]) -> list[schema.Buckets]:
    """The rows of `buckets` from the configurations and run records of ours and of DDP. Empty if DDP did not tell."""
    sizes, vector_bytes = of_peer(theirs["host"]["versions"])
    if not sizes or not vector_bytes:
        return []
    made = (of_vector(vector_bytes, int(ours["config"]["bucket_bytes"])), sizes)
    return [{"sync": configuration["sync"], "model": configuration["model"], "workers": configuration["workers"],
             "asked_bytes": ASKED_BYTES, "sizes": found} for configuration, found in zip(configurations, made)]


def ask(wanted: jobs.Job, peer: jobs.Job, gpus: machine.Gpus) -> list[schema.Buckets]:
    """Runs a job of ours and one of DDP for some steps."""
    ours, _ = measure.run_job(wanted, STEPS, gpus, [f"--bucket_bytes={ASKED_BYTES}"])
    theirs, _ = measure.run_job(peer, STEPS, gpus, [f"--bucket_cap_mb={ASKED_BYTES / (1 << 20)}"])
    return entries([wanted.configuration, peer.configuration], ours, theirs)
