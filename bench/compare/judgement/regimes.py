"""Says in which regimes star and ring win, measured or planned, for the verdict.

Words. A *contest* is the fastest star against the fastest ring in one group: one cluster, one model, one number of
workers. A *regime* is a range of numbers of workers, on one cluster with one model, in which all contests end alike.
Measured contests come from paired runs (ratios.py). Planned ones come from the predictions of bench:plan: a topology
wins if its step is shorter by more than PLAN_ERROR and by more than the bands, else the two are equal within the plan's
error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import ratios
import results as schema
import sync_cells as cells
from groups import Group
from predictions import Prediction
from report import labels

MEASURED, PLANNED = "Measured here", "Planned by bench:plan and not measured"
TIE = "tie"
UNDECIDED = "undecided"
PLAN_ERROR = 0.10  # a plan's error; smaller differences count as ties


@dataclasses.dataclass(frozen=True)
class Contest:
    section: str
    model: str
    workers: int
    outcome: str  # star, ring, TIE or UNDECIDED
    winner: str  # a cell's name in sentences; of a tie both
    ratio: str  # text of the winner's ratio to the loser; empty without a winner
    extrapolated: bool = False


def measured(results: schema.Results, groups: Iterable[Group]) -> list[Contest]:
    """The contests of the groups that have a star and a ring."""
    by_id = {one["id"]: one for one in results["configurations"]}
    groups = list(groups)
    weak = {(group["section"], group["model"], group["workers"]) for group in groups if group["scaling"] == "weak"}
    contests = []
    for group in groups:
        if group["scaling"] != "weak" and (group["section"], group["model"], group["workers"]) in weak:
            continue  # a regime has one contest for each number of workers
        best: dict[str, tuple[schema.Configuration, cells.Cell]] = {}
        for row in group["rows"]:  # the fastest first
            place = cells.place_of(by_id[row["id"]])
            if place is not None:
                best.setdefault(place.topology, (by_id[row["id"]], place))
        if len(best) < 2:
            continue
        (star, star_place), (ring, ring_place) = best["star"], best["ring"]
        ratio = ratios.paired(ratios.rates_by_repeat(star), ratios.rates_by_repeat(ring))
        outcome = ratios.outcome(ratio)
        names = {"star": cells.name_of(star_place), "ring": cells.name_of(ring_place)}
        won = {"faster": "star", "slower": "ring"}.get(outcome)
        shown = ""
        if won and ratio is not None:
            shown = ratios.text(ratio if won == "star" else ratios.inverse(ratio))
        contests.append(Contest(group["section"], group["model"], group["workers"], won or outcome,
                                names[won] if won else f"{names['star']} and {names['ring']}", shown))
    return contests


def planned(predictions: Sequence[Prediction]) -> list[Contest]:
    """The contests of predictions: bench:plan's only way into the report."""
    groups: dict[tuple[str, str, int], dict[str, tuple[Prediction, cells.Cell]]] = {}
    for one in sorted(predictions, key=lambda one: one["step_ms"]):
        place = cells.place_of(one)
        if place is not None:
            group = groups.setdefault((one["section"], one["model"], one["workers"]), {})
            group.setdefault(place.topology, (one, place))
    contests = []
    for (section, model, workers), best in sorted(groups.items()):
        if len(best) < 2:
            continue
        fast, slow = sorted(best.values(), key=lambda pair: pair[0]["step_ms"])
        wins = (slow[0]["step_ms"] > (1 + PLAN_ERROR) * fast[0]["step_ms"] and
                fast[0]["step_ms_high"] < slow[0]["step_ms_low"])
        both = f"{cells.name_of(best['star'][1])} and {cells.name_of(best['ring'][1])}"
        contests.append(Contest(
            section, model, workers, fast[1].topology if wins else TIE, cells.name_of(fast[1]) if wins else both,
            f"{slow[0]['step_ms'] / fast[0]['step_ms']:.2f}" if wins else "",
            fast[0]["extrapolated"] or slow[0]["extrapolated"]))
    return contests


def _counts(contests: Sequence[Contest]) -> str:
    """4 workers; 2 to 8 workers; 16 to 1,024 workers (extrapolated)."""
    first, last = contests[0].workers, contests[-1].workers
    text = labels.workers(first) if first == last else f"{first:,} to {last:,} workers"
    if all(one.extrapolated for one in contests):
        return text + " (extrapolated)"
    beyond = [one.workers for one in contests if one.extrapolated]
    return text + (f" (extrapolated from {min(beyond):,} on)" if beyond else "")


def _ranges(contests: Iterable[Contest]) -> list[list[Contest]]:
    """Neighbouring numbers of workers with the same end, for each cluster and model."""
    found: list[list[Contest]] = []
    for one in sorted(contests, key=lambda one: (one.section != "machine", one.section, one.model, one.workers)):
        last = found[-1][-1] if found else None
        alike = last is not None and (last.section, last.model, last.outcome, last.winner) == (
            one.section, one.model, one.outcome, one.winner)
        if alike:
            found[-1].append(one)
        else:
            found.append([one])
    return found


def _where(contests: Sequence[Contest]) -> str:
    return f"{contests[0].model} with {_counts(contests)} on {labels.section(contests[0].section)}"


def _end(one: Contest, equal: str) -> str:
    if one.outcome == TIE:
        return f"{one.winner} {equal} for"
    if one.outcome == UNDECIDED:
        return f"fewer than {ratios.REPEATS_MIN} repeats decide nothing between {one.winner} for"
    return f"{one.winner} beats every {'ring' if one.outcome == 'star' else 'star'} for"


def _margins(contests: Sequence[Contest]) -> str:
    """The ratio; of several contests the first and the last."""
    known = [one.ratio for one in contests if one.ratio]
    if not known:
        return ""
    return f" ({known[0]} times as fast)" if len(known) == 1 else f" ({known[0]} to {known[-1]} times as fast)"


def sentences(contests: Sequence[Contest], predictions: Sequence[Contest]) -> list[str]:
    """A text of what was measured, and one of what is planned, each named as such, without the last full stop. Without
    contests there is no text of that kind."""
    found = []
    for kind, which, equal in ((MEASURED, contests, "tie"),
                               (PLANNED, predictions, "are equal within the plan's error")):
        ends: dict[str, list[str]] = {}
        for regime in _ranges(which):
            ends.setdefault(_end(regime[0], equal), []).append(_where(regime) + _margins(regime))
        if ends:
            parts = [f"{end} {', and for '.join(places)}" for end, places in ends.items()]
            found.append(f"{kind}: " + ". ".join([parts[0], *(part[0].upper() + part[1:] for part in parts[1:])]))
    return found
