"""Writes the verdict in three sentences: what to run, why, and when that changes."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

import bottleneck
import results as schema
from report import labels

if TYPE_CHECKING:  # analysis imports this module
    from analysis import Group, Row

NAMES = {"star": "the star", "ring": "the ring", "mpi": "MPI_Allreduce (mpi)", "local": "one process",
         "ddp": "PyTorch DDP as it comes", "ddp-tuned": "tuned PyTorch DDP"}
BOTTLENECKS = {"data": "data", "compute": "compute", "exchange": "the exchange", "straggler": "the slowest worker",
               "server CPU": "the servers' CPU time"}


def _rate(row: Row) -> str:
    return f"{row['samples_per_second']['median']:,.0f} samples/s"


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


def _known_row(group: Group, sync: str) -> Row:
    row = _row(group, sync)
    assert row is not None, f"{sync} was chosen among the rows of the groups"
    return row


def _choice(groups: list[Group]) -> str:
    """The sync that is best, or ties with the best, for the most models. Among equals, the fastest on average.

    mpi is only a control, and its bits depend on the MPI library. It is chosen only if no other sync is as good.
    """
    syncs = {row["sync"] for group in groups for row in group["rows"]}

    def merit(sync: str) -> tuple[int, bool, float]:
        wins = 0
        logs: list[float] = []
        for group in groups:
            row = _row(group, sync)
            if row is not None:
                wins += row is group["rows"][0] or group["rows"][0]["id"] in row["tie_with"]
                logs.append(math.log(row["ratio_to_best"]))
        return wins, sync != "mpi", statistics.mean(logs) if logs else -math.inf

    return max(sorted(syncs), key=merit)


def _against(group: Group, chosen: str) -> str:
    """Compares `chosen` with the others of a group: "1.16 times as fast as the star, 4.33 times as fast as ..."."""
    mine = _known_row(group, chosen)
    texts = []
    for other in group["rows"]:
        if other["sync"] == chosen or other is not _row(group, other["sync"]):
            continue
        if other["id"] in mine["tie_with"]:
            texts.append(f"a tie with {NAMES[other['sync']]} at {_rate(other)}")
        else:
            ratio = mine["samples_per_second"]["median"] / other["samples_per_second"]["median"]
            texts.append(f"{ratio:.2f} times as fast as {NAMES[other['sync']]}")
    return ", ".join(texts)


def _first(groups: list[Group], chosen: str) -> str:
    models = [f"{group['model']} at {_rate(_known_row(group, chosen))} ({_against(group, chosen)})"
              for group in groups if _row(group, chosen)]
    workers = groups[0]["workers"]
    trains = f"with {workers} worker{'s' if workers > 1 else ''} it trains " + "; ".join(models) + "."
    if all(group["calls_winner"] for group in groups):
        return f"Run {NAMES[chosen]} here: {trains}"
    return f"No winner is called, because some jobs ran only once. The fastest was {NAMES[chosen]}: {trains}"


def _configuration(results: schema.Results, row: Row) -> schema.Configuration:
    return next(configuration for configuration in results["configurations"] if configuration["id"] == row["id"])


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
        others.append(f"{NAMES[row['sync']]}: {share['exchange']:.2f} of {share['step']:.2f} ms{used}")
    held = _known_row(group, chosen)["bottleneck"]
    return (f"The reason, on {group['model']}: with {NAMES[chosen]}, a worker waits for the exchange during "
            f"{mine['exchange']:.2f} of the {mine['step']:.2f} ms of a step" +
            (" (" + "; ".join(others) + ")" if others else "") + f", and the bottleneck is "
            f"{BOTTLENECKS[held['name']]}.")


def _same_bits(results: schema.Results) -> bool | None:
    """Whether star and ring ended with the same parameters in all jobs that both ran. None if there is no such job."""
    digests: dict[tuple[str, int, int, str], dict[str, set[tuple[int, str]]]] = {}
    for configuration in results["configurations"]:
        if configuration["sync"] in ("star", "ring") and configuration["runs"]:
            key = (configuration["model"], configuration["workers"], configuration["global_batch"],
                   configuration["section"])
            digests.setdefault(key, {})[configuration["sync"]] = {
                (run["steps_measured"], run["parameter_sha256"]) for run in configuration["runs"]}
    both = [found for found in digests.values() if len(found) == 2]
    return all(found["star"] == found["ring"] for found in both) if both else None


def _third(results: schema.Results, groups: list[Group], chosen: str) -> str:
    parts = []
    labs = sorted({group["section"] for group in groups if group["section"] != "machine"})
    for section in labs:
        for group in _main_groups(groups, section):
            ranked = ", ".join(f"{NAMES[row['sync']]} {_rate(row)}" for row in group["rows"])
            ties = [NAMES[row["sync"]] for row in group["rows"][1:] if group["rows"][0]["id"] in row["tie_with"]]
            tied = f" (a tie with {', '.join(ties)})" if ties else ""
            parts.append(f"on {labels.section(section)}, {NAMES[group['rows'][0]['sync']]} trains {group['model']} "
                         f"fastest{tied}: {ranked}")
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
    if not parts:
        parts.append("other models, more workers or a slower network can change this: measure those as well")
    text = "; ".join(parts) + "."
    return text[0].upper() + text[1:]


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
    return [_first(main, chosen), _second(results, main, chosen), _third(results, groups, chosen)]
