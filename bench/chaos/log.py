"""Keeps a log of events and jobs, one JSON object per line, that a later run continues; and summarises it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from bench.chaos.schedule import ELASTIC

# The kinds of events, in the order of the table.
GROUPS = ("kill", "stop-short", "stop-long", "cut", "shut-short", "shut-long", "freeze-short", "freeze-long")
ELASTIC_GROUPS = ("kill", "kill-two", "stop-short", "stop-long", "join", "leave", "disk-full", "cut", "shut-long",
                  "stuck-long", "report-error", "blocked-shard", "memory-squeeze")
# Of these there is also a row for each kind of victim.
BY_VICTIM = ("kill", "stop-short", "stop-long")
VICTIMS = {"worker": "a worker", "server": "a server", "shard 0": "shard 0"}

Entry = dict[str, Any]


class Log:
    """A file of lines {"type": "event" | "job" | "run", ...}. A job's line follows those of its events.

    What an interruption left without a job's line was never judged: such events do not count, and their job's number is
    not used again."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._numbers: dict[int, int] = {}  # by seed: the number after the highest of a job
        self.entries: list[Entry] = []
        if os.path.exists(path):
            with open(path) as file:
                found = [json.loads(line) for line in file if line.endswith("\n")]
            ended = {(entry["seed"], entry["job"]) for entry in found if entry["type"] == "job"}
            for entry in found:
                self._count(entry)
                if entry["type"] != "event" or (entry["seed"], entry["job"]) in ended:
                    self.entries.append(entry)

    def _count(self, entry: Entry) -> None:
        if entry["type"] in ("event", "job"):
            self._numbers[entry["seed"]] = max(self.next_job(entry["seed"]), entry["job"] + 1)

    def next_job(self, seed: int) -> int:
        """A number that no job of this seed has had: the number decides a job's schedule."""
        return self._numbers.get(seed, 0)

    def add(self, entry_type: str, **fields: Any) -> None:
        entry = {"type": entry_type, **fields}
        self._count(entry)
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


def _victim(event: Entry) -> str:
    return "shard 0" if event["role"] == "server" and event["number"] == 0 else event["role"]


def _elastic_groups(events: list[Entry]) -> Iterator[tuple[str, list[Entry]]]:
    """The name and the events of each row. What came during a change has a row of its own, and so has what caused it:
    each delays the other."""
    alone = [event for event in events if not event["in_change"]]
    for kind in ELASTIC_GROUPS:
        group = [event for event in alone if event["kind"] == kind]
        yield kind, group
        for victim, text in VICTIMS.items() if kind in BY_VICTIM else ():
            yield "%s of %s" % (kind, text), [event for event in group if _victim(event) == victim]
    yield "during a change, and its cause", [event for event in events if event["in_change"]]
    yield "all", events


def _numbers(values: list[float], digits: int, worst: bool) -> str:
    if not values:
        return " | ".join(["-"] * (3 if worst else 2))
    numbers = [percentile(values, 0.5), percentile(values, 0.95), *([max(values)] if worst else [])]
    return " | ".join("%.*f" % (digits, number) for number in numbers)


def _elastic_table(events: list[Entry]) -> list[str]:
    """A next step counts without the start of the processes that it had to wait for."""
    three = " p50 | p95 | worst |"
    lines = ["| event | count | detection s p50 | p95 | next step s" + three + " steps again" + three,
             "|" + " --- |" * 10]
    for name, group in _elastic_groups(events):
        detections = [event["detection_s"] for event in group if event["detection_s"] is not None]
        steps = [event["next_step_s"] - event["start_s"] for event in group if event["next_step_s"] is not None]
        again = [event["again_steps"] for event in group if event["restarted"]]
        if group:
            lines.append("| %s, %s | %d | %s | %s | %s |" % (
                ELASTIC, name, len(group), _numbers(detections, 2, worst=False), _numbers(steps, 2, worst=True),
                _numbers(again, 0, worst=True)))
    return lines


def _restart_table(log: Log, topologies: list[str]) -> list[str]:
    lines = ["| event | count | of which ended in a restart | next step s p50 | p95 | worst |",
             "| --- | --- | --- | --- | --- | --- |"]
    for topology in topologies:
        for kind in GROUPS:
            if events := log.of("event", topology=topology, kind=kind):
                lines.append(_row("%s, %s" % (topology, kind), events))
        lines.append(_row("%s, all" % topology, log.of("event", topology=topology)))
    return lines


def summary(log: Log) -> str:
    """Markdown: a row for each topology and kind of event, and the number of failures."""
    topologies = sorted({event["topology"] for event in log.of("event")} - {ELASTIC}, reverse=True)
    lines = [*_restart_table(log, topologies), ""] if topologies else []
    if events := log.of("event", topology=ELASTIC):
        lines += [*_elastic_table(events), ""]
    jobs = log.of("job")
    outcomes: dict[str, int] = {}
    for job in jobs:
        outcomes[job["outcome"]] = outcomes.get(job["outcome"], 0) + 1
    lines.append("%d events in %d jobs: %d wrong digests, %d hangs, %d other failures" % (
        len(log.of("event")), len(jobs), outcomes.get("wrong digest", 0), outcomes.get("hang", 0),
        sum(count for outcome, count in outcomes.items() if outcome not in ("ok", "wrong digest", "hang"))))
    return "\n".join(lines)
