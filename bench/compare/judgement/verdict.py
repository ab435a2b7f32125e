"""Writes the verdict: what to run, why, and where what wins; and, if something was planned, what is expected where."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable
from typing import TypedDict

import bottleneck
import ratios
import regimes
import results as schema
import sync_cells as cells
from groups import Group, Row
from report import labels

NAMES = {**{cell.sync: cell.name for cell in cells.NAMED}, "mpi": "MPI_Allreduce (mpi)", "local": "one process",
         "nccl": "ncclAllReduce (nccl)",
         "ddp": "PyTorch DDP as it comes", "ddp-tuned": "tuned PyTorch DDP",
         "ddp+star": "tuned PyTorch DDP by our star", "ddp+ring": "tuned PyTorch DDP by our ring"}
BOTTLENECKS = {"data": "data", "compute": "compute", "exchange": "the exchange", "straggler": "the slowest worker",
               "server CPU": "the servers' CPU time"}
WORDS_MAX = 30  # of the first sentence


class Standing(TypedDict):
    """One sync beside the chosen one."""
    sync: str
    name: str
    rate: float  # samples/s
    share: float  # of the fastest's rate
    is_chosen: bool
    ties: bool  # with the chosen one
    ratio: ratios.Ratio | None  # of the chosen one to it


class Headline(TypedDict):
    model: str
    workers: int
    chosen: str
    rows: list[Standing]


def _rate(row: Row) -> str:
    return f"{row['samples_per_second']['median']:,.0f} samples/s"


def _configuration(results: schema.Results, row: Row) -> schema.Configuration:
    return next(configuration for configuration in results["configurations"] if configuration["id"] == row["id"])


def _name(results: schema.Results, row: Row) -> str:
    """With its processes, if another number of workers than the group's made the rate."""
    if row["accounting"] != cells.ACCOUNTING_EQUAL_CORES:
        return NAMES[row["sync"]]
    configuration = _configuration(results, row)
    servers = configuration["servers"]
    return (f"{NAMES[row['sync']]} ({labels.workers(configuration['workers'])}, {servers} "
            f"server{'s' if servers > 1 else ''})")


def _name_of_all(results: schema.Results, rows: list[Row]) -> str:
    """Rows of one sync, each of another model: the star (on some models 1 worker, 1 server)."""
    names = sorted({_name(results, row) for row in rows})
    if len(names) == 1:
        return names[0]
    plain = NAMES[rows[0]["sync"]]
    sizes = " or ".join(name.removeprefix(plain)[2:-1] for name in names if name != plain)
    return f"{plain} ({'on some models ' if plain in names else ''}{sizes})"


def _label_of_all(results: schema.Results, rows: list[Row]) -> str:
    """The same in few words, as rows of tables begin: star 2w+2s, or star (1w+1s, 2w+2s)."""
    sync = rows[0]["sync"]
    sizes = sorted({labels.configuration({**_configuration(results, row), "accounting": ""}).removeprefix(sync + " ")
                    for row in rows})
    return f"{sync} {sizes[0]}" if len(sizes) == 1 else f"{sync} ({', '.join(sizes)})"


def _main_groups(groups: list[Group], section: str) -> list[Group]:
    """One group per model: the one with the most workers, and with weak scaling if both exist."""
    found: dict[str, tuple[tuple[int, bool], Group]] = {}
    for group in groups:
        if group["section"] == section and len(group["rows"]) > 1:
            rank = (group["workers"], group["scaling"] == "weak")
            if group["model"] not in found or rank > found[group["model"]][0]:
                found[group["model"]] = (rank, group)
    return [group for _, group in found.values()]


def _row(group: Group, sync: str) -> Row | None:
    """The fastest row of `sync`; None if the group has none."""
    return next((row for row in group["rows"] if row["sync"] == sync), None)


def _rows(groups: list[Group], sync: str) -> list[Row]:
    """The fastest row of `sync` of each group that has one."""
    return [row for group in groups if (row := _row(group, sync))]


def _known_row(group: Group, sync: str) -> Row:
    row = _row(group, sync)
    assert row is not None, f"{sync} was chosen among the rows of the groups"
    return row


def _choice(groups: list[Group]) -> str:
    """The sync that is best, or ties with the best, for the most models. Among equals, the fastest on average.

    mpi and nccl are only controls, and their bits depend on a library. One is chosen only if no other sync is as good.
    """
    syncs = {row["sync"] for group in groups for row in group["rows"]}

    def merit(sync: str) -> tuple[int, bool, float]:
        wins = 0
        logs: list[float] = []
        for group in groups:
            row = _row(group, sync)
            if row is not None:
                wins += row is group["rows"][0] or group["rows"][0]["id"] in row["tie_with"]
                logs.append(math.log(row["to_best"]["value"]) if row["to_best"] else -math.inf)
        return wins, sync not in ("mpi", "nccl"), statistics.mean(logs) if logs else -math.inf

    return max(sorted(syncs), key=merit)


def _standing(results: schema.Results, group: Group, mine: Row, other: Row) -> Standing:
    ratio = ratios.paired(*(ratios.rates_by_repeat(_configuration(results, row)) for row in (mine, other)))
    return {"sync": other["sync"], "name": _name(results, other), "rate": other["samples_per_second"]["median"],
            "share": other["samples_per_second"]["median"] / max(row["samples_per_second"]["median"]
                                                                 for row in group["rows"]),
            "is_chosen": other is mine, "ties": other["id"] in mine["tie_with"], "ratio": ratio}


def headline(results: schema.Results, groups: list[Group]) -> list[Headline]:
    """A table for each model: how fast each sync is, and how many times as fast the chosen one is as each other."""
    main = _main_groups(groups, "machine") or [group for group in groups if len(group["rows"]) > 1]
    if not main:
        return []
    chosen = _choice(main)
    tables: list[Headline] = []
    for group in main:
        mine = _row(group, chosen) or group["rows"][0]
        firsts = [row for row in group["rows"] if row is _row(group, row["sync"])]
        tables.append({"model": group["model"], "workers": group["workers"], "chosen": _name(results, mine),
                       "rows": [_standing(results, group, mine, row) for row in firsts]})
    return tables


def _wins(groups: list[Group], chosen: str) -> int:
    """For how many models the chosen sync is the fastest, or ties with that."""
    rows = [(group["rows"][0], row) for group in groups if (row := _row(group, chosen))]
    return sum(row is best or best["id"] in row["tie_with"] for best, row in rows)


def _best(groups: list[Group], chosen: str) -> str:
    """How the chosen sync compares, where a winner is called."""
    if len(groups) > 1:
        return f"it is the fastest, or ties with that, for {_wins(groups, chosen)} of {len(groups)} models"
    ties = len(_known_row(groups[0], chosen)["tie_with"])
    return (f"nothing trains {groups[0]['model']} faster" +
            (f", and {ties} other{'s tie' if ties > 1 else ' ties'} with it" if ties else ""))


def _shown(group: Group) -> Row:
    """The row that is the fastest in the tables, which have medians."""
    return max(group["rows"], key=lambda row: row["samples_per_second"]["median"])


def _for_how_many(groups: list[Group], chosen: str) -> str:
    """For how many models the chosen sync was the fastest. Too few repeats may favour one job by their pairs, and
    another by the median: that counts as a tie."""
    alone = tied = 0
    for group in groups:
        row, best, shown = _row(group, chosen), group["rows"][0], _shown(group)
        if row is None:
            continue
        if row is best and row is shown and not row["tie_with"]:
            alone += 1
        elif row is best or best["id"] in row["tie_with"] or (row is shown and row["undecided"]):
            tied += 1
    return f"was the fastest{', or tied,' if tied else ''} for {alone + tied} of {len(groups)} models"


def _seen(groups: list[Group], chosen: str, called: Callable[[list[Row]], str]) -> str:
    """What too few repeats show."""
    rows = _rows(groups, chosen)
    if len(groups) > 1:
        return f"{called(rows)} {_for_how_many(groups, chosen)}"
    if _shown(groups[0]) is rows[0]:
        return f"the fastest was {called(rows)}"
    return f"a tie of {called(rows)} and {called([_shown(groups[0])])}"


def _first(results: schema.Results, groups: list[Group], chosen: str) -> str:
    """At most WORDS_MAX, so it names few rivals: headline has them."""
    name = _name_of_all(results, _rows(groups, chosen))
    if all(group["calls_winner"] for group in groups):
        there = "with " if name == NAMES[chosen] else "in place of "
        there = f"{there}{labels.workers(groups[0]['workers'])}, "
        if len({_name(results, row) for row in _rows(groups, chosen)}) > 1:
            there = ""
        return f"Run {name} here: {there}{_best(groups, chosen)}."
    fewest = min((row["to_best"]["pairs"] if row["to_best"] else 0) for group in groups for row in group["rows"])
    ran = {0: "never ran", 1: "ran only once"}.get(fewest, f"ran only {fewest} times")
    for called in (_name_of_all, _label_of_all):
        sentence = (f"No winner is called: that takes {ratios.REPEATS_MIN} repeats, and some jobs {ran} in turns; "
                    f"{_seen(groups, chosen, functools.partial(called, results))}.")
        if len(sentence.split()) <= WORDS_MAX:
            break
    return sentence


def _second(results: schema.Results, groups: list[Group], chosen: str) -> str:
    """The reason, shown on the model whose exchange is exposed most."""
    def exposed(group: Group, sync: str) -> dict[str, float]:
        return bottleneck.shares(_configuration(results, _known_row(group, sync)))

    def telling(group: Group) -> float:
        return max(exposed(group, row["sync"])["exchange"] / exposed(group, row["sync"])["step"]
                   for row in group["rows"])

    group = max((group for group in groups if _row(group, chosen)), key=telling)
    mine = exposed(group, chosen)
    others = []
    for row in group["rows"]:
        if row["sync"] == chosen or row is not _row(group, row["sync"]):
            continue
        share = exposed(group, row["sync"])
        servers = bottleneck.server_percents(_configuration(results, row))
        used = f", and its servers use {sum(servers):.0f} % of a core" if servers else ""
        others.append(f"{_name(results, row)}: {share['exchange']:.2f} of {share['step']:.2f} ms{used}")
    held = _known_row(group, chosen)["bottleneck"]
    name = _name(results, _known_row(group, chosen))
    return (f"The reason, on {group['model']}: with {name}, a worker waits for the exchange during "
            f"{mine['exchange']:.2f} of the {mine['step']:.2f} ms of a step" +
            (" (" + "; ".join(others) + ")" if others else "") + f", and the bottleneck is "
            f"{BOTTLENECKS[held['name']]}.")


def _same_bits(results: schema.Results) -> bool | None:
    """Whether stars and ring ended with the same parameters in every job that two of them ran. None without such a job.

    Only jobs count in which flags and seed decide the bits.
    """
    digests: dict[tuple[str, int, int, str], dict[str, set[tuple[int, str]]]] = {}
    for configuration in results["configurations"]:
        runs = [run for run in configuration["runs"] if run.get("deterministic", True)]
        if configuration["sync"] in cells.BY_SYNC and runs:
            key = (configuration["model"], configuration["workers"], configuration["global_batch"],
                   configuration["section"])
            digests.setdefault(key, {})[configuration["sync"]] = {
                (run["steps_measured"], run["parameter_sha256"]) for run in runs}
    several = [list(found.values()) for found in digests.values() if len(found) > 1]
    return all(each == found[0] for found in several for each in found) if several else None


def _regimes(results: schema.Results, groups: list[Group]) -> list[str]:
    """Where star and ring win: what was measured, then what was planned, if either is there."""
    return regimes.sentences(regimes.measured(results, groups), regimes.planned(results["predictions"]))


def _faster_than_cells(results: schema.Results, groups: list[Group]) -> list[str]:
    """The labs in which a control is the fastest, which the regimes of star and ring do not tell."""
    parts = []
    for section in sorted({group["section"] for group in groups if group["section"] != "machine"}):
        for group in _main_groups(groups, section):
            best = group["rows"][0]
            ours = next((row for row in group["rows"] if row["sync"] in cells.BY_SYNC), None)
            if ours is None or ours is best or ours["undecided"] or best["id"] in ours["tie_with"]:
                continue
            ratio = ratios.paired(*(ratios.rates_by_repeat(_configuration(results, row)) for row in (best, ours)))
            if ratio is not None:
                parts.append(f"on {labels.section(section)}, {NAMES[best['sync']]} trains {group['model']} fastest, "
                             f"{ratios.text(ratio)} times as fast as {NAMES[ours['sync']]}")
    return parts


def _third(results: schema.Results, groups: list[Group], measured: list[str]) -> str:
    parts = [*measured, *_faster_than_cells(results, groups)]
    same = _same_bits(results)
    if same:
        parts.append("star and ring end with the same parameters, bit for bit, so speed alone decides")
    elif same is False:
        parts.append("star and ring did not end with the same parameters, which is a defect")
    crowded = sorted({configuration["sync"] for configuration in results["configurations"]
                      if configuration["oversubscribed"] and configuration["section"] == "machine"})
    if crowded:
        parts.append(f"{', '.join(NAMES[sync] for sync in crowded)} ran with more processes than cores or GPUs: "
                     "measure again where there are enough of them")
    if not measured:
        parts.append("other models, more workers or a slower network can change this: measure those as well")
    return ". ".join(part[0].upper() + part[1:] for part in parts) + "."


def _no_winner(results: schema.Results, groups: list[Group], disagreements: list[schema.Agreement]) -> list[str]:
    worst = max(disagreements, key=lambda entry: entry["worst_relative_difference"])
    first = (f"No winner is called: on {worst['model']} the losses of Starring and {NAMES[worst['peer']]} differ by "
             f"{worst['worst_relative_difference']:.1e} (relative, at step {worst['worst_step']} of the first "
             f"{worst['steps']}), but only {worst['tolerance']:.0e} is allowed, so the two do not train alike.")
    ours = [row for group in _main_groups(groups, "machine") for row in group["rows"]
            if not row["sync"].startswith("ddp")]
    second = ("Starring's own jobs, which share one code, can still be compared: " +
              ", ".join(f"{row['id']} {_rate(row)}" for row in ours) + "." if ours else "Nothing else was measured.")
    return [first, second, "Find out which of the two is wrong (bench/ddp, or the model's layer file) before you "
                           "compare their speed."]


def sentences(results: schema.Results, groups: list[Group], disagreements: list[schema.Agreement]) -> list[str]:
    if disagreements:
        return _no_winner(results, groups, disagreements)
    main = _main_groups(groups, "machine") or [group for group in groups if len(group["rows"]) > 1]
    if not main:
        return ["No winner is called: there is nothing to compare, because fewer than two configurations ran.",
                "The tables show those that ran.",
                "Give --syncs at least two names, and choose those whose programs this machine has."]
    chosen = _choice(main)
    where = _regimes(results, groups)
    planned = [f"{sentence}." for sentence in where if sentence.startswith(regimes.PLANNED)]
    measured = [sentence for sentence in where if sentence.startswith(regimes.MEASURED)]
    return [_first(results, main, chosen), _second(results, main, chosen), _third(results, groups, measured), *planned]
