"""The table of the cuts between emulated hosts: how many of each kind, when a job went on, and how it ended."""

from __future__ import annotations

from bench.chaos.log import Entry, Log, percentile
from bench.chaos.netlab_schedule import KINDS, TOPOLOGIES

_HEAD = ("| cut | count | went on | next step after its begin, s p50 | p95 | worst | "
         "ended | first process after s p50 | last after s, worst | as computed |")


def _three(values: list[float]) -> str:
    if not values:
        return "- | - | -"
    return " | ".join("%.2f" % value for value in (percentile(values, 0.5), percentile(values, 0.95), max(values)))


def _row(name: str, cuts: list[Entry]) -> str:
    steps = [cut["next_step_s"] for cut in cuts if cut["next_step_s"] is not None and not cut["expects_end"]]
    ends = [cut["ends_s"] for cut in cuts if cut["expects_end"] and cut["ends_s"]]
    times = ("%.1f | %.1f" % (percentile([min(one) for one in ends], 0.5), max(max(one) for one in ends))
             if ends else "- | -")
    return "| %s | %d | %d | %s | %d | %s | %d |" % (
        name, len(cuts), sum(not cut["expects_end"] for cut in cuts), _three(steps), len(ends), times,
        sum(not cut["faults"] for cut in cuts))


def summary(log: Log) -> str:
    """Markdown: a row for each topology and kind of cut, and the number of failures."""
    lines = []
    for topology in TOPOLOGIES:
        cuts = log.of("event", topology=topology)
        for kind in KINDS[topology] if cuts else ():
            for direction, text in (("both", "both ways"), ("to", "to it"), ("from", "from it")):
                if some := [cut for cut in cuts if (cut["kind"], cut["direction"]) == (kind, direction)]:
                    lines.append(_row("%s, %s, %s" % (topology, kind, text), some))
        for text, key in (("before the start", "at_start"), ("a worker joins meanwhile", "join_at_s")):
            if some := [cut for cut in cuts if cut[key]]:
                lines.append(_row("%s, of these %s" % (topology, text), some))
        if cuts:
            lines.append(_row("%s, all" % topology, cuts))
    every = log.of("event")
    lengths = [cut["duration_s"] for cut in every]
    outcomes = [job["outcome"] for job in log.of("job")]
    lines = [_HEAD, "|" + " --- |" * 10, *lines, "",
             "%d cuts, %d of them shorter than 5 s and %d longer than 60 s, in %d jobs: %d wrong digests, %d ends or "
             "goings-on that were not as computed, %d other failures" % (
                 len(every), sum(one < 5 for one in lengths), sum(one > 60 for one in lengths), len(outcomes),
                 outcomes.count("wrong digest"), sum(bool(cut["faults"]) for cut in every),
                 sum(one not in ("ok", "wrong digest", "error") for one in outcomes))]
    return "\n".join(lines)
