"""Reads plans: what bench:plan --out has written of one model on one cluster becomes predictions for the verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypedDict

import sync_cells as cells


class Prediction(TypedDict):
    """One cell with one number of workers."""
    sync: str  # of sync_cells.py
    accounting: str  # equal-workers, or own-hosts: servers on hosts of their own
    model: str
    section: str  # the cluster, in words
    workers: int
    step_ms: float
    step_ms_low: float  # the band of the plan
    step_ms_high: float
    extrapolated: bool  # more workers or bytes than any measurement that the plan was computed from


class PredictionError(Exception):
    """The file is no plan; the message says why."""


def plan_name(cell: cells.Cell) -> str:
    """The cell's name in a plan: star/grpc, co-located/mpi, ring/tcp."""
    kind = "star" if cell.has_servers else "co-located" if cell.topology == "star" else cell.topology
    return f"{kind}/{cell.transport}"


_SYNC_OF = {plan_name(cell): cell.sync for cell in cells.CELLS}


def cluster_text(cluster: Mapping[str, Any]) -> str:
    """One host with 2 cores; hosts with 2 cores and 0.957 Gbit/s."""
    cores = f"{cluster['cores']} core{'s' * (cluster['cores'] > 1)}"
    if cluster["hosts"] == 1:
        return f"one host with {cores}"
    return f"hosts with {cores} and {8e-9 * cluster['bytes_per_second']:.3g} Gbit/s of payload"


def of_plan(plan: Mapping[str, Any]) -> list[Prediction]:
    """The predictions of a plan. Rows of cells that are not compared here are left out."""
    section, found = cluster_text(plan["cluster"]), []
    for row in plan["rows"]:
        sync = _SYNC_OF.get(row["cell"].split(" ")[0])
        if sync is not None:
            found.append(Prediction(
                sync=sync, accounting=cells.ACCOUNTING_OWN_HOSTS if row["own_hosts"] else "equal-workers",
                model=plan["workload"]["name"], section=section, workers=int(row["workers"]),
                step_ms=float(row["step_ms"]), step_ms_low=float(row["step_ms_low"]),
                step_ms_high=float(row["step_ms_high"]), extrapolated=bool(row["extrapolated"])))
    return found


def read(path: str) -> list[Prediction]:
    try:
        with open(path, encoding="utf-8") as file:
            return of_plan(json.load(file))
    except OSError as error:
        raise PredictionError(f"{path}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise PredictionError(f"{path} is no plan ({type(error).__name__}: {error}): make one by "
                              "bazel run //bench:plan -- --out=FILE") from error
