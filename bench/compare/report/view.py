"""Joins and orders results and analysis for plots and templates, one entry per row.

It makes no judgement: medians, ties, ratios, efficiency and bottlenecks come from the analysis. Entries are plain
dictionaries that may lack keys, so that a page can be made of an incomplete results.json."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable
from typing import Any

import sync_cells as cells

from . import labels

QUIET_LOAD_PER_CORE = 0.5  # a higher load means that another program runs

Entry = dict[str, Any]
Families = list[tuple[tuple[str, str, str], list[Entry]]]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def breakdown(configuration: Entry) -> dict[str, float]:
    """Milliseconds of each part of a step. These are means over the runs: unlike medians, they add up to the step."""
    runs = [run["breakdown_ms"] for run in configuration.get("runs") or [] if run.get("breakdown_ms")]
    return {part: statistics.mean(run.get(part) or 0 for run in runs) for part in labels.PARTS} if runs else {}


def _bytes_per_step(configuration: Entry, direction: str) -> float | None:
    return _median((run.get("exchange_bytes_per_step") or {}).get(direction) for run in configuration["runs"])


def _row(row: Entry, configuration: Entry, name_of: dict[str, str], first: str, best: str | None) -> Entry:
    runs = configuration.get("runs") or []
    return {
        **row, "configuration": configuration, "label": labels.configuration(configuration),
        "is_first": row.get("id") == first,
        "step_ms": {quantile: _median((run.get("step_ms") or {}).get(quantile) for run in runs)
                    for quantile in ("p50", "p95", "p99")},
        "bytes_sent": _bytes_per_step(configuration, "sent"),
        "bytes_received": _bytes_per_step(configuration, "received"),
        "seconds_per_epoch": _median(run.get("seconds_per_epoch") for run in runs),
        "gpu": next((run["gpu"] for run in runs if run.get("gpu")), None),
        "ties_with_best": best in (row.get("tie_with") or []),
        "ties": [name_of.get(one, one) for one in row.get("tie_with") or []],
    }


def groups(results: Entry, analysis: Entry) -> list[Entry]:
    """The analysis's groups, each row joined with its configuration."""
    by_id = {one["id"]: one for one in results.get("configurations") or []}
    name_of = {one: labels.configuration(by_id[one]) for one in by_id}
    made = []
    for group in analysis.get("groups") or []:
        best = next((row["id"] for row in group.get("rows") or [] if row.get("best")), None)
        first = next((row["id"] for row in group.get("rows") or []), "")  # the analysis has the fastest first
        rows = [_row(row, by_id[row["id"]], name_of, first, best) for row in group.get("rows") or []
                if row["id"] in by_id]
        rows.sort(key=lambda row: (labels.sync_order(row["sync"]), row["label"]))
        if rows:
            made.append({**group, "rows": rows,
                         "title": f"{labels.group(group['model'], group['scaling'], group['section'])}, "
                                  f"{labels.workers(group['workers'])}"})
    return sorted(made, key=lambda group: group["section"] != "machine")


def _shown_step(step: Entry, label_of: dict[str, str], sync_of: dict[str, str], is_total: bool) -> Entry:
    first, second = label_of[step["first"]], label_of[step["second"]]
    return {**step, "label": f"{first} → {second}", "from": first, "to": second, "sync": sync_of[step["second"]],
            "is_total": is_total}


def steps(group: Entry) -> dict[str, list[Entry]]:
    """The steps of a group's cells: `path`, whose last entry is the total if there are several, and `others`."""
    found = group.get("steps") or {}
    label_of = {row["id"]: labels.cell(row["configuration"]) for row in group["rows"]}
    sync_of = {row["id"]: row["sync"] for row in group["rows"]}
    total = [found["total"]] if found.get("total") else []
    return {"path": [_shown_step(step, label_of, sync_of, step in total)
                     for step in [*(found.get("path") or []), *total]],
            "others": [_shown_step(step, label_of, sync_of, False) for step in found.get("others") or []]}


def grid(group: Entry) -> Entry:
    """The cells of a group side by side: a row for topology and placement, a column for each transport."""
    placed = [(place, row) for row in group["rows"] if (place := cells.place_of(row["configuration"]))]
    columns = [name for name in ("grpc", "mpi", "tcp") if any(place.transport == name for place, _ in placed)]
    kinds = list(dict.fromkeys((place.topology, place.placement) for place, _ in sorted(
        placed, key=lambda pair: (pair[0].topology, cells.PLACEMENTS.index(pair[0].placement)))))
    at = {(place.topology, place.placement, place.transport): row for place, row in placed}
    return {"columns": columns, "rows": [
        {"name": f"{topology}, owners {placement}", "cells": [at.get((topology, placement, name)) for name in columns]}
        for topology, placement in kinds]}


def by_model(view_groups: list[Entry]) -> Families:
    """Families of groups that differ only in the number of workers: [((model, scaling, section), [group, ...])]."""
    families: dict[tuple[str, str, str], list[Entry]] = {}
    for group in view_groups:
        families.setdefault((group["model"], group["scaling"], group["section"]), []).append(group)
    for members in families.values():
        members.sort(key=lambda group: group["workers"])
    return list(families.items())


def syncs(results: Entry) -> list[str]:
    found = {one["sync"] for name in ("configurations", "training") for one in results.get(name) or []}
    return sorted(found, key=labels.sync_order)


def disagreements(results: Entry) -> list[Entry]:
    return [one for one in results.get("agreement") or [] if not one.get("agrees")]


def agreement(results: Entry) -> list[Entry]:
    """The worst entry of each model."""
    worst: dict[str, Entry] = {}
    for one in results.get("agreement") or []:
        def rank(entry: Entry) -> tuple[bool, float]:
            return not entry["agrees"], entry["worst_relative_difference"]

        if one["model"] not in worst or rank(one) > rank(worst[one["model"]]):
            worst[one["model"]] = one
    return list(worst.values())


def notes(results: Entry) -> list[str]:
    """The results' notes, and further ones: how to get a missing peer, missing checks, a busy machine."""
    found = list(results.get("notes") or [])
    has_peer = any(sync.startswith("ddp") for sync in syncs(results))
    # The section of uneven workers says itself that its peer is missing.
    is_uneven_alone = bool(results.get("uneven")) and not results.get("configurations")
    if not has_peer and not is_uneven_alone and not any("torch" in note.lower() for note in found):
        found.append("PyTorch DDP is not in this comparison. It runs where a python3 has torch: on Debian, "
                     "apt-get install python3-torch libopenblas0-pthread, then --syncs=star,ring,mpi,ddp.")
    if results.get("agreement") == [] and has_peer:
        found.append("Whether both sides train alike was not checked in this run: no losses were compared.")
    machine = results.get("machine") or {}
    if (machine.get("load_before") or 0) > QUIET_LOAD_PER_CORE * (machine.get("cores") or 1):
        found.append(f"The machine was not quiet: load average {machine['load_before']:.1f} on {machine['cores']} "
                     "cores before the first run. Measure again when nothing else runs.")
    return found


def training(results: Entry) -> list[Entry]:
    """Rows of the table of times to a target: an accuracy, or for models of numbers an RMSE."""
    rows = []
    for one in results.get("training") or []:
        epochs = one.get("epochs") or []
        rows.append({**one, "last": epochs[-1] if epochs else None,
                     "score": "RMSE" if any("test_rmse" in epoch for epoch in epochs) else "accuracy",
                     "best_accuracy": max((epoch["test_accuracy"] for epoch in epochs), default=None),
                     "best_rmse": min(filter(math.isfinite, (epoch.get("test_rmse", math.nan) for epoch in epochs)),
                                      default=None)})
    return sorted(rows, key=lambda row: (row["model"], row["workers"], labels.sync_order(row["sync"])))


def _finite(value: float | str) -> float | None:
    """The worker's record has NaN and infinity as text."""
    return float(value) if math.isfinite(float(value)) else None


def quality(results: Entry) -> list[Entry]:
    """Rows of the table of test results at the end of each training, by the loss of its model."""
    rows = []
    for one in training(results):
        test = one.get("test")
        if not test:
            continue
        are_numbers, has_classes = test["loss"] == "mse", test["loss"] == "softmax"
        rows.append({**one, "loss": test["loss"], "mean_loss": _finite(test["mean_loss"]),
                     "accuracy": None if are_numbers else test["accuracy"],
                     "top5": test["top5_accuracy"] if has_classes else None,
                     "auc": test["auc"] or None,  # 0: not measured
                     "rmse": _finite(test["rmse"]) if are_numbers else None,
                     "r2": _finite(test["r2"]) if are_numbers else None})
    return rows


def confusions(results: Entry) -> list[Entry]:
    """The confusion matrices at the end of the trainings. Those with the same numbers are shown once."""
    found: dict[tuple[str, int, tuple[int, ...]], list[str]] = {}
    for one in quality(results):
        counts = tuple(one["test"]["confusion"])
        if counts:
            found.setdefault((one["model"], one["workers"], counts), []).append(one["sync"])
    tables = []
    for (model, workers, counts), names in found.items():
        classes = math.isqrt(len(counts))
        tables.append({"title": f"{model}, {labels.workers(workers)}: {', '.join(names)}", "classes": classes,
                       "rows": [counts[start:start + classes] for start in range(0, classes * classes, classes)]})
    return tables


def exchange_rows(results: Entry) -> list[Entry]:
    """One table per section and number of workers, with a row per sync and a column per size. A row of what could not
    be measured has the reason instead of times."""
    def key_of(one: Entry) -> tuple[str, int]:
        return one.get("section") or "machine", one["workers"]

    tables = []
    times, missing = results.get("exchanges") or [], results.get("missing_exchanges") or []
    for key in sorted({key_of(one) for one in [*times, *missing]}, key=lambda key: (key[0] != "machine", key)):
        here = [one for one in times if key_of(one) == key]
        reasons = {one["sync"]: one["reason"] for one in missing if key_of(one) == key}
        sizes = sorted({one["bytes"] for one in here})
        known = {(one["bytes"], one["sync"]): one for one in here}
        tables.append({
            "title": f"{labels.workers(key[1])}, {labels.section(key[0])}", "sizes": sizes, "times": here,
            "rows": [{"sync": sync, "cells": [known.get((size, sync)) for size in sizes], "reason": reasons.get(sync)}
                     for sync in sorted({one["sync"] for one in here} | set(reasons), key=labels.sync_order)]})
    return tables


def bucket_rows(results: Entry) -> list[Entry]:
    """The buckets that ours and DDP made when they were asked for the same."""
    rows = []
    for one in results.get("buckets") or []:
        runs = [(size, len(list(same))) for size, same in itertools.groupby(one["sizes"])]
        rows.append({**one, "count": len(one["sizes"]), "first": one["sizes"][0] if one["sizes"] else None,
                     "runs": runs})
    return rows


def gpu_cells(results: Entry) -> list[Entry]:
    """A table for each model of two workers on one GPU. A job's cost is its p50 less the control's of the same repeat.
    """
    found = results.get("gpu_cells") or {}
    tables: dict[str, Entry] = {}
    by_job = {(one["model"], one["job"]): one["samples"] for one in found.get("jobs") or []}
    failures = {(one["model"], one["job"]): one["why"] for one in found.get("failures") or []}
    for model, job in [*by_job, *(key for key in failures if key not in by_job)]:
        samples = by_job.get((model, job), [])
        exchanges = job not in ("one process", "control")
        controls = by_job.get((model, "control"), []) if exchanges else []
        costs = [one["p50_ms"] - control["p50_ms"] for one, control in zip(samples, controls)]
        table = tables.setdefault(model, {"title": f"{model}, batch {found['batch']}", "rows": []})
        table["rows"].append({
            "job": job, "p50_ms": _median([one["p50_ms"] for one in samples]), "cost_ms": _median(costs),
            "least_ms": min(costs, default=None), "most_ms": max(costs, default=None), "pairs": len(costs),
            "waits_ms": _median([one["waits_ms"] for one in samples]) if exchanges else None,
            "gpu_ms": _median([one["gpu_ms"] for one in samples if one.get("gpu_ms") is not None]),
            "digests": sorted({digest[:12] for one in samples for digest in one["digests"]}),
            "why": failures.get((model, job), "")})
    return list(tables.values())


def processes(configuration: Entry) -> list[tuple[str, str | None, float | None]]:
    """[(name, cores, median CPU percent)], workers first."""
    use: dict[str, list[float | None]] = {}
    for run in configuration.get("runs") or []:
        for name, value in (run.get("cpu_percent") or {}).items():
            use.setdefault(name, []).append(value)
    cores = configuration.get("cores") or {}
    rows = []
    for role in ("worker", "server"):
        mine = [name for name in use if name.startswith(role)]
        pinned = cores.get(role) or []
        for index in range(max(len(mine), len(pinned))):
            name = f"{role} {index}"
            rows.append((name, pinned[index] if index < len(pinned) else None, _median(use.get(name, []))))
    return rows
