"""What became of each restart of a job under torchrun, by the events that its ranks wrote (job.py)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

WENT_ON = "went on"
OUR_SENTENCE = "sentence of starring"
GLOO_REFUSED = "Gloo: connection refused"
GLOO_TIMED_OUT = "Gloo: timed out in silence"
OTHER = "another error"
SILENT = "silent at the end of the measurement"
PLACES = ("constructor", "step", "failure")  # before a restart: the victim died there, or an attempt failed on its own
KINDS = (WENT_ON, OUR_SENTENCE, GLOO_REFUSED, GLOO_TIMED_OUT, OTHER, SILENT)


@dataclasses.dataclass
class Restart:
    """One attempt after the first."""
    attempt: int
    after: str  # one of PLACES
    outcome: str
    sentence: str  # of the rank that failed first
    seconds: float  # from the first rank's start to the outcome


def is_gloos(error: str) -> bool:
    return "gloo" in error.lower()


def kind_of(error: str, seconds: float, gloo_s: float) -> str:
    """The outcome of an attempt whose first error is `error`, `seconds` after its ranks had started."""
    if error.startswith("StarringError"):
        return OUR_SENTENCE
    if not is_gloos(error):
        return OTHER
    # Refused connections are retried for a moment; Gloo's own deadline for a rank that never dials is much longer.
    return GLOO_REFUSED if re.search(r"refused", error) and seconds < gloo_s else GLOO_TIMED_OUT


def _outcome(events: Sequence[dict[str, Any]], world_size: int, gloo_s: float) -> tuple[str, str, float]:
    begin = min(event["time"] for event in events)
    stepped = {event["rank"]: event["time"] for event in reversed(events) if event["event"] == "stepped"}
    if len(stepped) == world_size:
        return WENT_ON, "", max(stepped.values()) - begin
    failed = [event for event in events if event["event"] == "failed"]
    if not failed:
        return SILENT, "", max(event["time"] for event in events) - begin
    first = min(failed, key=lambda event: float(event["time"]))
    seconds = first["time"] - begin
    return kind_of(first["error"], seconds, gloo_s), first["error"], seconds


def restarts(events: Sequence[dict[str, Any]], world_size: int, gloo_s: float) -> list[Restart]:
    """The restarts of one job, in order. An attempt has gone on if each rank came to the end of a step."""
    attempts = sorted({event["attempt"] for event in events})
    found = []
    for attempt in attempts[1:]:
        before = [event for event in events if event["attempt"] < attempt and event["event"] in ("killed", "failed")]
        killed = [event for event in before if event["attempt"] == attempt - 1 and event["event"] == "killed"]
        own = [event for event in events if event["attempt"] == attempt]
        found.append(Restart(attempt, killed[0]["where"] if killed else "failure",
                             *_outcome(own, world_size, gloo_s)))
    return found


def table(rows: dict[tuple[str, str], list[Restart]]) -> list[str]:
    """Lines of Markdown: a row for each rendezvous and job, a column for each outcome of a restart."""
    heads = ["rendezvous", "job", "restarts after a constructor, a step, a failure", *KINDS]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for (rendezvous, job), found in rows.items():
        places = [str(sum(restart.after == place for restart in found)) for place in PLACES]
        counts = [str(sum(restart.outcome == kind for restart in found)) for kind in KINDS]
        lines.append("| " + " | ".join([rendezvous, job, ", ".join(places), *counts]) + " |")
    return lines
