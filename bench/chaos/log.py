"""What was seen, one JSON object a line, appended: a log that a later run goes on with, and its sums."""

import json
import os

# An event's groups in the table, and the kinds that each holds.
GROUPS = ("kill", "stop-short", "stop-long", "cut", "shut-short", "shut-long", "freeze-short", "freeze-long")


class Log:
    """A file of lines {"type": "event" | "job" | "run", ...}."""

    def __init__(self, path):
        self._path = path
        self.entries = []
        if os.path.exists(path):
            with open(path) as file:
                self.entries = [json.loads(line) for line in file if line.endswith("\n")]

    def add(self, entry_type, **fields):
        entry = {"type": entry_type, **fields}
        self.entries.append(entry)
        with open(self._path, "a") as file:
            file.write(json.dumps(entry) + "\n")

    def of(self, entry_type, **fields):
        return [entry for entry in self.entries
                if entry["type"] == entry_type and all(entry.get(key) == value for key, value in fields.items())]


def percentile(values, fraction):
    """The smallest value that so large a part of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * int(fraction * 100) // 100) - 1)]


def _row(name, events):
    times = [event["next_step_s"] for event in events if event["next_step_s"] is not None]
    numbers = ["-"] * 3
    if times:
        numbers = ["%.2f" % value for value in (percentile(times, 0.5), percentile(times, 0.95), max(times))]
    restarts = sum(event["restarted"] for event in events)
    return "| %s | %d | %d | %s |" % (name, len(events), restarts, " | ".join(numbers))


def summary(log):
    """Markdown: a row for each topology and kind of event, and what went wrong."""
    lines = ["| event | count | of which ended in a restart | next step s p50 | p95 | worst |",
             "| --- | --- | --- | --- | --- | --- |"]
    topologies = sorted({event["topology"] for event in log.of("event")}, reverse=True)
    for topology in topologies:
        for kind in GROUPS:
            if events := log.of("event", topology=topology, kind=kind):
                lines.append(_row("%s, %s" % (topology, kind), events))
        lines.append(_row("%s, all" % topology, log.of("event", topology=topology)))
    jobs = log.of("job")
    outcomes = {}
    for job in jobs:
        outcomes[job["outcome"]] = outcomes.get(job["outcome"], 0) + 1
    lines.append("")
    lines.append("%d events in %d jobs: %d wrong digests, %d hangs, %d other failures" % (
        len(log.of("event")), len(jobs), outcomes.get("wrong digest", 0), outcomes.get("hang", 0),
        sum(count for outcome, count in outcomes.items() if outcome not in ("ok", "wrong digest", "hang"))))
    return "\n".join(lines)
