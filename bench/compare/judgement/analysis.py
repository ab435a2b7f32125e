"""Derives medians, ratios, ties, efficiency, bottlenecks and the verdict from the results, by pure functions.

Words. The *spread* of a configuration is (largest - smallest) / median of its runs. Configurations are compared by the
paired ratios of ratios.py, which also says what a *tie* is. A group calls a winner if its fastest configuration has
enough pairs with each other one. The *efficiency* of N workers is their rate divided by N times the rate of one worker,
which is the same code in one process (`local` for ours). For a star with the accounting equal-cores, N includes the
servers.
"""

from __future__ import annotations

import math
import statistics
from typing import TypedDict

import bottleneck
import ratios
import results as schema
import sync_cells as cells
import uneven_verdict
import verdict
from groups import CellSteps, Group, Rates, Row, Step


class Analysis(TypedDict):
    headline: list[verdict.Headline]
    verdict: list[str]  # three sentences, and one more each where something was planned or workers were uneven
    calls_winner: bool
    groups: list[Group]
    uneven: uneven_verdict.UnevenAnalysis | None


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


def _speed(configuration: schema.Configuration) -> float:
    """The geometric mean of its rates: in this order no paired ratio to the first one is above 1."""
    return math.exp(statistics.fmean(math.log(run["samples_per_second"]) for run in configuration["runs"]))


def _paired(one: schema.Configuration, other: schema.Configuration) -> ratios.Ratio | None:
    return ratios.paired(ratios.rates_by_repeat(one), ratios.rates_by_repeat(other))


def cell_steps(configurations: list[schema.Configuration]) -> CellSteps:
    """The cells among configurations that took turns."""
    by_place = {place: one for one in configurations if one["runs"] and (place := cells.place_of(one))}
    rates_of = {place: ratios.rates_by_repeat(one) for place, one in by_place.items()}

    def steps(pairs: list[tuple[cells.Cell, cells.Cell]], repeats: set[int]) -> list[Step]:
        made: list[Step] = []
        for first, second in pairs:
            of_first, of_second = ({repeat: rate for repeat, rate in rates_of[place].items() if repeat in repeats}
                                   for place in (first, second))
            ratio = ratios.paired(of_second, of_first)
            if ratio is not None:
                made.append({"first": by_place[first]["id"], "second": by_place[second]["id"],
                             "changes": cells.changes(first, second), "differences": cells.differences(first, second),
                             "ratio": ratio, "outcome": ratios.outcome(ratio)})
        return made

    way = cells.path(by_place)
    on_way = list(zip(way, way[1:]))
    # All steps of the way are on the same repeats: otherwise their product would not be the total.
    common = set.intersection(*(set(rates_of[place]) for place in way)) if way else set()
    every = {repeat for rates_by_repeat in rates_of.values() for repeat in rates_by_repeat}
    path = steps(on_way, common)
    total = steps([(way[0], way[-1])], common) if len(path) > 1 else []
    others = steps([pair for pair in cells.single_steps(list(by_place)) if pair not in on_way], every)
    return {"path": path, "total": total[0] if total else None, "others": others}


def disagreements(results: schema.Results, model: str | None = None) -> list[schema.Agreement]:
    """The entries of `agreement` that failed, for one model or for all."""
    return [entry for entry in results["agreement"]
            if not entry["agrees"] and (model is None or entry["model"] == model)]


def _baseline(results: schema.Results, configuration: schema.Configuration) -> float | None:
    """The rate of one worker with the same code, in the same section if it was measured there, else on the machine."""
    wanted = "local"
    if configuration["sync"].startswith("ddp"):
        wanted = "ddp" if configuration["sync"] == "ddp" else "ddp-tuned"  # without its hook, if it has one
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
    measured.sort(key=lambda pair: -_speed(pair[0]))
    peers = [configuration for configuration, _ in measured]
    best = peers[0]
    calls_winner = (not disagreements(results, model) and len(measured) > 1 and
                    all(ratios.decided(_paired(configuration, best)) for configuration in peers))
    rows: list[Row] = []
    for configuration, rate in measured:
        ties = [other["id"] for other in peers if other is not configuration and
                ratios.tie(_paired(configuration, other))]
        to_best = _paired(configuration, best)
        rows.append({
            "id": configuration["id"], "sync": configuration["sync"], "accounting": configuration["accounting"],
            "samples_per_second": rate,
            "step_ms_p50": statistics.median(run["step_ms"]["p50"] for run in configuration["runs"]),
            "to_best": to_best, "tie_with": ties, "undecided": not ratios.decided(to_best),
            "best": calls_winner and configuration is best, "bottleneck": bottleneck.find(configuration, peers),
            "efficiency": _efficiency(results, configuration, rate)})
    return {"model": model, "workers": workers, "scaling": scaling, "section": section, "calls_winner": calls_winner,
            "rows": rows, "steps": cell_steps(configurations)}


def analyse(results: schema.Results) -> Analysis:
    members: dict[tuple[str, str, int, str], list[schema.Configuration]] = {}
    for configuration in results["configurations"]:
        if configuration["runs"]:
            members.setdefault(group_key(configuration), []).append(configuration)
    groups = [_group(results, key, configurations) for key, configurations in members.items()]
    uneven = uneven_verdict.analyse(results["uneven"])
    wrong = disagreements(results)
    sentences = verdict.sentences(results, groups, wrong)
    if uneven is not None and uneven["verdict"] is not None and not wrong:
        # Without --syncs nothing else was to be compared.
        sentences = [*(sentences if results["configurations"] else []), uneven["verdict"]]
    return {"headline": [] if wrong else verdict.headline(results, groups), "verdict": sentences,
            "calls_winner": any(group["calls_winner"] for group in groups) and not wrong,
            "groups": groups, "uneven": uneven}
