"""Keeps a log of events and jobs, one JSON object per line, that a later run continues; and summarises it."""

from __future__ import annotations

import json
import os
from typing import Any

# The kinds of events, in the order of the table.
GROUPS = ("kill", "stop-short", "stop-long", "cut", "shut-short", "shut-long", "freeze-short", "freeze-long")


Entry = dict[str, Any]


class Log:
    """A file of lines {"type": "event" | "job" | "run", ...}."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.entries: list[Entry] = []
        if os.path.exists(path):
            with open(path) as file:
                self.entries = [json.loads(line) for line in file if line.endswith("\n")]

    def add(self, entry_type: str, **fields: Any) -> None:
        entry = {"type": entry_type, **fields}
        self.entries.append(entry)
        with open(self._path, "a") as file:
            file.write(json.dumps(entry) + "\n")

    def of(self, entry_type: str, **fields: Any) -> list[Entry]:
        return [entry for entry in self.entries
                if entry["type"] == entry_type and all(entry.get(key) == value for key, value in fields.items())]


def percentile(values: list[float], fraction: float) -> float:
    """The smallest value that is not exceeded by `fraction` of the values."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * int(fraction * 100) // 100) - 1)]


def _row(name: str, events: list[Entry]) -> str:
    times = [event["next_step_s"] for event in events if event["next_step_s"] is not None]
    numbers = ["-"] * 3
    if times:
        numbers = ["%.2f" % value for value in (percentile(times, 0.5), percentile(times, 0.95), max(times))]
    restarts = sum(event["restarted"] for event in events)
    return "| %s | %d | %d | %s |" % (name, len(events), restarts, " | ".join(numbers))


def summary(log: Log) -> str:
    """Markdown: a row for each topology and kind of event, and the number of failures."""
    lines = ["| event | count | of which ended in a restart | next step s p50 | p95 | worst |",
             "| --- | --- | --- | --- | --- | --- |"]
    topologies = sorted({event["topology"] for event in log.of("event")}, reverse=True)
    for topology in topologies:
        for kind in GROUPS:
            if events := log.of("event", topology=topology, kind=kind):
                lines.append(_row("%s, %s" % (topology, kind), events))
        lines.append(_row("%s, all" % topology, log.of("event", topology=topology)))
    jobs = log.of("job")
    outcomes: dict[str, int] = {}
    for job in jobs:
        outcomes[job["outcome"]] = outcomes.get(job["outcome"], 0) + 1
    lines.append("")
    lines.append("%d events in %d jobs: %d wrong digests, %d hangs, %d other failures" % (
        len(log.of("event")), len(jobs), outcomes.get("wrong digest", 0), outcomes.get("hang", 0),
        sum(count for outcome, count in outcomes.items() if outcome not in ("ok", "wrong digest", "hang"))))
    return "\n".join(lines)
