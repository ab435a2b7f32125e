"""Derives medians, ties, efficiency, bottlenecks and the verdict from the results, by pure functions.

Words. The *spread* of a configuration is (largest - smallest) / median of its runs. Two configurations *tie* if their
medians differ by less than the wider of their two ranges, largest - smallest. The *efficiency* of N workers is their
rate divided by N times the rate of one worker, which is the same code in one process (`local` for star, ring and mpi).
For a star with the accounting equal-cores, N includes the servers.
"""

from __future__ import annotations

import statistics
from typing import TypedDict

import bottleneck
import results as schema
import verdict

REPEATS_MIN = 2  # a single run has no spread, so any difference would look real


class Rates(TypedDict):
    """Samples per second over the runs of a configuration."""
    median: float
    min: float
    max: float
    spread: float


class Row(TypedDict):
    """A configuration among those that it is compared with."""
    id: str
    sync: str
    accounting: str
    samples_per_second: Rates
    step_ms_p50: float
    ratio_to_best: float
    tie_with: list[str]  # ids
    best: bool
    bottleneck: dict[str, str]  # name, why
    efficiency: float | None


class Group(TypedDict):
    """Configurations that are compared with each other, the fastest first."""
    model: str
    workers: int
    scaling: str
    section: str
    calls_winner: bool
    rows: list[Row]


class Analysis(TypedDict):
    verdict: list[str]  # three sentences
    calls_winner: bool
    groups: list[Group]


def group_key(configuration: schema.Configuration) -> tuple[str, str, int, str]:
    return (configuration["section"], configuration["model"],
            configuration.get("group_workers") or _budget(configuration), configuration["scaling"])


def _budget(configuration: schema.Configuration) -> int:
    servers = configuration["servers"] if configuration["accounting"] == "equal-cores" else 0
    return configuration["workers"] + servers


def rates(configuration: schema.Configuration) -> Rates | None:
    """The rates of its runs; None if there are no runs."""
    values = [run["samples_per_second"] for run in configuration["runs"]]
    if not values:
        return None
    median = statistics.median(values)
    return {"median": median, "min": min(values), "max": max(values), "spread": (max(values) - min(values)) / median}


def tie(one: Rates, other: Rates) -> bool:
    return abs(one["median"] - other["median"]) < max(one["max"] - one["min"], other["max"] - other["min"])


def disagreements(results: schema.Results, model: str | None = None) -> list[schema.Agreement]:
    """The entries of `agreement` that failed, for one model or for all."""
    return [entry for entry in results["agreement"]
            if not entry["agrees"] and (model is None or entry["model"] == model)]


def _baseline(results: schema.Results, configuration: schema.Configuration) -> float | None:
    """The rate of one worker with the same code, in the same section if it was measured there, else on the machine."""
    wanted = configuration["sync"] if configuration["sync"].startswith("ddp") else "local"
    per_worker = configuration["global_batch"] / configuration["workers"]
    found = None
    for other in results["configurations"]:
        identity = (other["workers"], other["sync"], other["model"])
        if identity != (1, wanted, configuration["model"]) or not other["runs"]:
            continue
        if other["section"] not in ("machine", configuration["section"]):
            continue
        wanted_batch = per_worker if configuration["scaling"] == "weak" else configuration["global_batch"]
        # Only with the same batch: otherwise the efficiency would compare two things at once.
        if other["global_batch"] == wanted_batch:
            measured = rates(other)
            found = measured["median"] if measured else None
    return found


def _efficiency(results: schema.Results, configuration: schema.Configuration, rate: Rates) -> float | None:
    # All hosts of a lab share this machine's cores, so the ideal cannot be reached there.
    if configuration["section"] != "machine":
        return None
    baseline = _baseline(results, configuration)
    return rate["median"] / (_budget(configuration) * baseline) if baseline else None


def _group(results: schema.Results, key: tuple[str, str, int, str],
           configurations: list[schema.Configuration]) -> Group:
    section, model, workers, scaling = key
    measured = [(configuration, rate) for configuration in configurations if (rate := rates(configuration))]
    measured.sort(key=lambda pair: -pair[1]["median"])
    best_rate = measured[0][1]
    calls_winner = (not disagreements(results, model) and len(measured) > 1 and
                    all(len(configuration["runs"]) >= REPEATS_MIN for configuration in configurations))
    peers = [configuration for configuration, _ in measured]
    rows: list[Row] = []
    for configuration, rate in measured:
        ties = [other["id"] for other, other_rate in measured if other is not configuration and tie(rate, other_rate)]
        rows.append({
            "id": configuration["id"], "sync": configuration["sync"], "accounting": configuration["accounting"],
            "samples_per_second": rate,
            "step_ms_p50": statistics.median(run["step_ms"]["p50"] for run in configuration["runs"]),
            "ratio_to_best": rate["median"] / best_rate["median"], "tie_with": ties,
            "best": calls_winner and rate is best_rate, "bottleneck": bottleneck.find(configuration, peers),
            "efficiency": _efficiency(results, configuration, rate)})
    return {"model": model, "workers": workers, "scaling": scaling, "section": section, "calls_winner": calls_winner,
            "rows": rows}


def analyse(results: schema.Results) -> Analysis:
    members: dict[tuple[str, str, int, str], list[schema.Configuration]] = {}
    for configuration in results["configurations"]:
        if configuration["runs"]:
            members.setdefault(group_key(configuration), []).append(configuration)
    groups = [_group(results, key, configurations) for key, configurations in members.items()]
    return {"verdict": verdict.sentences(results, groups, disagreements(results)),
            "calls_winner": any(group["calls_winner"] for group in groups) and not disagreements(results),
            "groups": groups}
