"""Merges the files of --trace into one that Perfetto (https://ui.perfetto.dev) and chrome://tracing open.

    python3 bench/compare/timeline.py out/trace.*.json --out=out/merged.json      # .json.gz: compressed

Workers come first, then servers. Files from one machine share a clock (common/metrics/trace.h) and are not shifted.
Files from other machines are shifted by the difference of the wall clocks, which is as exact as these clocks agree.
Arrows lead from a bucket's `send` to its `receive`, in both directions. Time 0 is the beginning of the first event.
"""

from __future__ import annotations

import argparse
import glob
import gzip
import json
import os
import re
import sys
from typing import Any

ROLES = ("worker", "server")

Event = dict[str, Any]  # of the trace event format
Trace = dict[str, Any]  # traceEvents, otherData


class TraceError(Exception):
    """The file cannot be merged; the message says why."""


def read(path: str) -> Trace:
    """Reads the trace of one process."""
    try:
        with open(path, encoding="utf-8") as file:
            trace = json.load(file)
        facts = trace["otherData"]
        if facts["role"] not in ROLES or not isinstance(trace["traceEvents"], list):
            raise KeyError("role")
        for name in ("number", "boot_id", "wall_minus_monotonic_us"):
            facts[name]
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{path} is no trace of a worker or server ({error}): give the files that --trace wrote") \
            from error
    return trace


def files_of(path: str) -> list[str]:
    """The files of a job whose processes all have --trace=path."""
    stem, extension = os.path.splitext(path)
    files = glob.glob(f"{glob.escape(stem)}.*{glob.escape(extension)}")
    process = re.compile(re.escape(stem) + r"\.(worker|server)-\d+" + re.escape(extension))
    return sorted(name for name in files if process.fullmatch(name))


def _arrows(processes: list[tuple[dict[str, Any], list[Event]]]) -> list[Event]:
    """Arrows from each send to the other side's receive of the same step and bucket."""
    key: tuple[Any, ...]
    sends: dict[tuple[Any, ...], Event] = {}
    receives: dict[tuple[Any, ...], Event] = {}
    for facts, events in processes:
        for event in events:
            if event.get("ph") != "X" or event["name"] not in ("send", "receive"):
                continue
            labels = event["args"]
            if facts["role"] == "worker":
                key = ("worker", facts["number"], labels.get("shard"), labels.get("step"), labels.get("bucket"))
            else:
                key = ("server", labels.get("rank"), facts["number"], labels.get("step"), labels.get("bucket"))
            (sends if event["name"] == "send" else receives).setdefault(key, event)
    arrows = []
    for key, send in sends.items():
        other = ROLES[1 - ROLES.index(key[0])]
        receive = receives.get((other, *key[1:]))
        if receive is None:
            continue
        arrow = {"cat": "bucket", "name": "gradient" if other == "server" else "parameters",
                 "id": f"{key[0][0]}{key[1]}.{key[2]}.{key[3]}.{key[4]}"}
        arrows.append({"ph": "s", **arrow, "pid": send["pid"], "tid": send["tid"], "ts": send["ts"]})
        # Clocks of two machines may put a receive before its send, and Perfetto draws no arrow back in time.
        arrows.append({"ph": "f", "bp": "e", **arrow, "pid": receive["pid"], "tid": receive["tid"],
                       "ts": max(receive["ts"], send["ts"])})
    return arrows


def merge(paths: list[str]) -> Trace:
    """Merges the traces in these files."""
    if not paths:
        raise TraceError("no trace files: start the processes with --trace=FILE (deploy/launch has it too)")
    traces = sorted((read(path) for path in paths),
                    key=lambda trace: (ROLES.index(trace["otherData"]["role"]), trace["otherData"]["number"]))
    reference = traces[0]["otherData"]
    processes: list[tuple[dict[str, Any], list[Event]]] = []
    for trace in traces:
        facts, events = trace["otherData"], trace["traceEvents"]
        shift = 0
        if facts["boot_id"] != reference["boot_id"]:
            shift = facts["wall_minus_monotonic_us"] - reference["wall_minus_monotonic_us"]
        for event in events:
            event["pid"] = len(processes) + 1
            if event.get("cat") == "flight":
                event["id"] = f"{len(processes) + 1}.{event['id']}"
            if "ts" in event:
                event["ts"] += shift
            if event["name"] == "process_sort_index":
                event["args"]["sort_index"] = len(processes) + 1
        processes.append((facts, events))
    hosts = {facts["host"] for facts, _ in processes}
    if len(hosts) > 1:
        for facts, events in processes:
            for event in events:
                if event["name"] == "process_name":
                    event["args"]["name"] += f" on {facts['host']}"
    events = [event for _, process in processes for event in process] + _arrows(processes)
    start = min((event["ts"] for event in events if "ts" in event), default=0)
    for event in events:
        if "ts" in event:
            event["ts"] = round(event["ts"] - start, 3)
    # Metadata comes first, then events by time. If two begin together, the longer one encloses the other.
    events.sort(key=lambda event: (event["ph"] != "M", event.get("ts", 0), -event.get("dur", 0)))
    return {"displayTimeUnit": "ms", "traceEvents": events,
            "otherData": {"processes": len(processes), "hosts": sorted(hosts),
                          "dropped_events": sum(facts.get("dropped_events", 0) for facts, _ in processes)}}


def merge_files(paths: list[str], out: str) -> Trace:
    """Writes the merged trace to `out`, all of it or nothing, and returns it."""
    merged = merge(paths)
    temporary = f"{out}.{os.getpid()}.tmp"
    text = json.dumps(merged, separators=(",", ":")).encode()
    with open(temporary, "wb") as file:
        file.write(gzip.compress(text) if out.endswith(".gz") else text)
    os.replace(temporary, out)
    return merged


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("files", nargs="+", help="the files that --trace wrote, one per process")
    parser.add_argument("--out", required=True, help="the merged trace; with .gz at the end, compressed")
    flags = parser.parse_args(argv)
    try:
        merged = merge_files(flags.files, flags.out)
    except (TraceError, OSError) as error:
        print(f"timeline: error: {error}", file=sys.stderr)
        return 2
    facts = merged["otherData"]
    print(f"{flags.out}: {len(merged['traceEvents'])} events of {facts['processes']} processes"
          + (f", the oldest {facts['dropped_events']} were dropped" if facts["dropped_events"] else "")
          + "; open it at https://ui.perfetto.dev")
    return 0


if __name__ == "__main__":
    sys.exit(main())
