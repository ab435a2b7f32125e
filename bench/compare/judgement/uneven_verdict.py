"""Says what uneven and failing workers cost each program, and when that decides, from the section's runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TypedDict

import ratios
import results as schema
import sync_cells as cells

EVEN, HALF_SPEED, KILLS = "even", "half-speed", "kills"
NAMES = {"ring": "the ring", "star": "the star", cells.ELASTIC: "the elastic star", "ddp-tuned": "tuned PyTorch DDP"}


class UnevenRate(TypedDict):
    median: float
    spread: float  # (largest - smallest) / median; 0 if the median is
    left: float  # of the program's own undisturbed median


class UnevenRow(TypedDict):
    sync: str
    name: str
    rates: dict[str, UnevenRate]  # by case; without the cases that were not measured
    checkpoint_every_steps: int | None
    tried: list[schema.TriedPeriod]
    reason: str | None


class UnevenAnalysis(TypedDict):
    title: str
    rows: list[UnevenRow]
    runs: int  # of each case, at most
    sentences: list[str]
    verdict: str | None


def disturbance(uneven: schema.Uneven, case: str) -> str:
    if case == HALF_SPEED:
        return f"one of {uneven['workers']} workers at half speed"
    return f"a worker killed every {uneven['kill_every_seconds']:g} s"


def _values(job: schema.UnevenJob, case: str) -> dict[int, float]:
    return {run["repeat"]: run["samples_per_second"] for run in job["runs"] if run["case"] == case}


def _row(job: schema.UnevenJob) -> UnevenRow:
    rates: dict[str, UnevenRate] = {}
    for case in (EVEN, HALF_SPEED, KILLS):
        values = list(_values(job, case).values())
        if values and job["reason"] is None:
            median = statistics.median(values)
            undisturbed = rates[EVEN]["median"] if EVEN in rates else median
            rates[case] = {"median": median, "spread": (max(values) - min(values)) / median if median else 0.0,
                           "left": median / undisturbed if undisturbed else 0.0}
    return {"sync": job["sync"], "name": NAMES.get(job["sync"], job["sync"]), "rates": rates,
            "checkpoint_every_steps": job["checkpoint_every_steps"], "tried": job["tried"], "reason": job["reason"]}


def _fastest(rows: Sequence[UnevenRow], case: str) -> list[UnevenRow]:
    """Those that were measured in this case, the fastest first."""
    return sorted((row for row in rows if case in row["rates"]), key=lambda row: -row["rates"][case]["median"])


def _left(uneven: schema.Uneven, rows: Sequence[UnevenRow], case: str) -> str | None:
    """What is left of each program's samples/s, the most first."""
    measured = [row for row in rows if case in row["rates"] and EVEN in row["rates"]]
    measured.sort(key=lambda row: -row["rates"][case]["left"])
    if not measured:
        return None
    texts = [f"{row['name']} {'keeps ' if row is measured[0] else ''}{100 * row['rates'][case]['left']:.0f} %" +
             (" of its undisturbed samples/s" if row is measured[0] else "") for row in measured]
    return f"With {disturbance(uneven, case)}, {', '.join(texts)}."


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _shares(uneven: schema.Uneven) -> str | None:
    """How near the shares of the elastic star came to the best ones."""
    runs = uneven["shares"]
    if not runs:
        return None
    ratio = statistics.median(run["step_ms_p50"] / run["best_ms"] for run in runs)
    middle = min(runs, key=lambda run: abs(run["step_ms_p50"] / run["best_ms"] - ratio))
    longest = max(runs, key=lambda run: run["watched_seconds"])
    split, best = (" and ".join(map(str, leaves)) for leaves in (middle["leaves"], middle["best_leaves"]))
    deals = f"Within {longest['watched_seconds']:.0f} s shares were dealt anew {_times(longest['deals'])}"
    if (most := max(run["deals"] for run in runs)) > longest["deals"]:
        deals += f", and in a run that was watched for less time {_times(most)}"
    slowed = sum(run["case"] == HALF_SPEED for job in uneven["jobs"] if job["sync"] == cells.ELASTIC
                 for run in job["runs"])
    few = f" This is of {len(runs)} of {slowed} runs." * (
        len(runs) < slowed)
    return (f"The elastic star then gives the workers {split} of its {uneven['micro_batches']} micro-batches; by their "
            f"measured speeds {best} are best. A step takes {ratio:.2f} times as long as the slower worker computes in "
            f"the best split. {deals}.{few}")


def _compared(uneven: schema.Uneven, rows: Sequence[UnevenRow], case: str) -> tuple[str, str | None]:
    """(a text on the fastest in this case, the name of the program for which that decides or None)."""
    order = _fastest(rows, case)
    best, calm = order[0], _fastest(rows, EVEN)[0]
    other = order[1] if best["sync"] == calm["sync"] else calm
    jobs = {job["sync"]: job for job in uneven["jobs"]}
    mine, theirs = _values(jobs[best["sync"]], case), _values(jobs[other["sync"]], case)
    where = f"with {disturbance(uneven, case)} {best['name']} "
    if best["rates"][case]["median"] == 0:
        often = any(rate > 0 for row in order for rate in _values(jobs[row["sync"]], case).values())
        return f"with {disturbance(uneven, case)} no program gets on{' in most of its runs' * often}", None
    common = mine.keys() & theirs.keys()
    stuck, own_stuck = (sum(rate == 0 for rate in rates.values()) for rates in (theirs, mine))
    if stuck or own_stuck:  # there is no ratio to 0; that all of seven pairs have one winner is no chance, either
        decides = best is not calm and len(common) >= ratios.REPEATS_MIN and all(mine[i] > theirs[i] for i in common)
        others = f"does not{f' in {stuck} of {len(theirs)} runs' * (stuck < len(theirs))}"
        text = (f"{where}is the fastest, and does not get on in {own_stuck} of {len(mine)} runs" if own_stuck else
                f"{where}gets on, and {other['name']} {others}")
        return text, best["name"] if decides else None
    ratio = ratios.paired(mine, theirs)
    if ratio is None:
        return f"{where}is the fastest", None
    stays = "stays the fastest, " if best["sync"] == calm["sync"] else "is "
    decides = best["sync"] != calm["sync"] and ratios.outcome(ratio) == "faster"
    return f"{where}{stays}{ratios.text(ratio)} times as fast as {other['name']}", best["name"] if decides else None


def _verdict(uneven: schema.Uneven, rows: Sequence[UnevenRow]) -> str | None:
    calm = _fastest(rows, EVEN)
    cases = [case for case in (HALF_SPEED, KILLS) if len(_fastest(rows, case)) > 1]
    if len(calm) < 2 or not cases:
        return None
    compared = [_compared(uneven, rows, case) for case in cases]
    decided = [(case, name) for case, (_, name) in zip(cases, compared) if name is not None]
    if not decided:
        end = "No program that is slower undisturbed is proven faster then, so that decides nothing here"
    elif len({name for _, name in decided}) == 1:
        end = f"That decides for {decided[0][1]} where {' or '.join(disturbance(uneven, case) for case, _ in decided)} "
        end += "is to be expected"
    else:
        end = ". ".join(f"Where {disturbance(uneven, case)} is to be expected, that decides for {name}"
                        for case, name in decided)
    return (f"Uneven and failing workers, {uneven['model']}: undisturbed {calm[0]['name']} is the fastest at "
            f"{calm[0]['rates'][EVEN]['median']:,.0f} samples/s, {', and '.join(text for text, _ in compared)}. {end}.")


def analyse(uneven: schema.Uneven | None) -> UnevenAnalysis | None:
    if uneven is None:
        return None
    rows = [_row(job) for job in uneven["jobs"]]
    sentences = [_left(uneven, rows, HALF_SPEED), _shares(uneven), _left(uneven, rows, KILLS)]
    return {"title": f"{uneven['model']}, {uneven['dataset']}, {uneven['workers']} workers, global batch "
                     f"{uneven['global_batch']}",
            "rows": rows, "runs": max(len(_values(job, EVEN)) for job in uneven["jobs"]),
            "sentences": [sentence for sentence in sentences if sentence], "verdict": _verdict(uneven, rows)}
