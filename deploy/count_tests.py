#!/usr/bin/python3
"""Counts Bazel's tests: `count_tests.py [--pace=P] NAME[:BUDGET_S]=EVENTS...`, a build event file (JSON) for each run.

Bazel itself counts targets, but one target has many cases of GoogleTest or Python's unittest. Here each case is a test.
Prints every failed and skipped test, for each run a line with its time and its ten slowest tests, and last, over all
runs, exactly

    N passed, N failed, N skipped

No problem may look like success, so one failure is counted for
  - a target that did not build (a test or not),
  - a test that failed although each of its cases passed (a leak found at exit, a crash, a timeout),
  - a test that ran no case at all,
  - a run that Bazel did not finish, or that ended with an error that belongs to no target,
  - a run that took more than 1.5 P times its budget (machine_pace.py): people run a slow suite less often.
A test that is incompatible with a configuration is not counted. In a run of clang-tidy every target whose sources it
approved is a test that passed.

Exit status: 0 if at least one test passed and none failed, else 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import urllib.parse
import xml.etree.ElementTree
from collections.abc import Iterable
from typing import Any


@dataclasses.dataclass
class Count:
    """The tests of a target, a run or all runs."""
    passed: int = 0
    failed: list[str] = dataclasses.field(default_factory=list)  # a text for each failure
    skipped: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0  # from Bazel's start to its end, including the build
    slowest: list[tuple[float, str]] = dataclasses.field(default_factory=list)  # with labels

    def add(self, other: Count) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self) -> str:
        return f"{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"


def count_passed_log(label: str, log: str) -> Count:
    """The cases of a target that passed and has only a log: unittest's number, else the target counts as one case."""
    ran = sum(map(int, re.findall(r"^Ran (\d+) tests? in ", log, re.MULTILINE)))
    skipped = sum(map(int, re.findall(r"^OK \(skipped=(\d+)", log, re.MULTILINE)))
    reasons = re.findall(r"^SKIPPED.*", log, re.MULTILINE)
    if ran:
        return Count(ran - skipped, [], [f"{label}, {skipped} of its cases"] * skipped)
    return Count(0, [], [f"{label} {reasons[0]}"]) if reasons else Count(1)


def count_cases(label: str, path: str) -> Count:
    """The cases in the test.xml at `path`. GoogleTest writes it; for other tests Bazel does."""
    count = Count()
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            # A failure message may have any byte, but XML cannot represent all control characters.
            text = re.sub("[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", "?", file.read())
        root = xml.etree.ElementTree.fromstring(text.encode())
    except (OSError, xml.etree.ElementTree.ParseError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return count
    log = "".join(element.text or "" for element in root.iter("system-out"))
    for case in root.iter("testcase"):
        # A file by Bazel has one nameless case for the whole target.
        name = f"{label} {case.get('classname')}.{case.get('name')}" if case.get("classname") else label
        if case.find("failure") is not None or case.find("error") is not None:
            count.failed.append(name)
        elif case.find("skipped") is not None or case.get("status") == "notrun" or case.get("result") == "skipped":
            count.skipped.append(name)
        else:
            count.add(Count(1) if case.get("classname") else count_passed_log(label, log))
    return count


def count_target(label: str, status: str, xml_paths: list[str]) -> Count:
    count = Count()
    for path in xml_paths:
        count.add(count_cases(label, path))
    if status in ("PASSED", "FLAKY"):
        if not (count.passed or count.failed or count.skipped):
            count.failed.append(f"{label} ran no test")
    elif not count.failed:
        count.failed.append(f"{label} ended with {status}, though no case failed")
    return count


def count_run(events: Iterable[dict[str, Any]]) -> Count:
    """The tests of one run, given its build events."""
    summaries: dict[str, str | None] = {}  # label -> status; None until Bazel's summary of the test
    xml_paths: dict[tuple[Any, ...], str] = {}  # (label, run, shard) -> path of the last attempt's test.xml
    not_built: set[str] = set()
    test_seconds: dict[str, float] = {}  # label -> time of its slowest shard; none if cached
    tidy_count = 0
    exit_code = None
    started_ms = finished_ms = 0
    for event in events:
        identity = event.get("id", {})
        if "started" in event:
            started_ms = int(event["started"].get("startTimeMillis", 0))
        if "targetCompleted" in identity:
            label = identity["targetCompleted"]["label"]
            if "completed" in event:
                if not event["completed"].get("success"):
                    not_built.add(label)
                elif any(group.get("name") == "tidy" for group in event["completed"].get("outputGroup", [])):
                    tidy_count += 1
            elif event.get("aborted", {}).get("reason") != "SKIPPED":
                not_built.add(label)
            for child in event.get("children", []):
                if "testSummary" in child:
                    summaries.setdefault(child["testSummary"]["label"], None)
        elif "testResult" in event:
            result = identity["testResult"]
            cached = (event["testResult"].get("cachedLocally")
                      or event["testResult"].get("executionInfo", {}).get("cachedRemotely"))
            if not cached:
                seconds = int(event["testResult"].get("testAttemptDurationMillis", 0)) / 1000
                test_seconds[result["label"]] = max(seconds, test_seconds.get(result["label"], 0))
            for output in event["testResult"].get("testActionOutput", []):
                if output["name"] == "test.xml":
                    key = (result["label"], result.get("run"), result.get("shard"))
                    xml_paths[key] = urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path)
        elif "testSummary" in event:
            summaries[identity["testSummary"]["label"]] = event["testSummary"]["overallStatus"]
        elif "finished" in event:
            exit_code = event["finished"].get("exitCode", {}).get("code", 0)
            finished_ms = int(event["finished"].get("finishTimeMillis", 0))

    count = Count(passed=tidy_count, seconds=max(0, finished_ms - started_ms) / 1000,
                  slowest=sorted(((seconds, label) for label, seconds in test_seconds.items()), reverse=True)[:10])
    for label in sorted(not_built):
        count.failed.append(f"{label} did not build")
    for label, status in sorted(summaries.items()):
        if label not in not_built:
            paths = [path for (of, _, _), path in xml_paths.items() if of == label]
            count.add(count_target(label, status or "NO_STATUS", paths))
    if exit_code is None:
        count.failed.append("bazel did not finish")
    elif exit_code != 0 and not count.failed:
        count.failed.append(f"bazel ended with status {exit_code}: see its messages")
    return count


def read_events(path: str) -> list[dict[str, Any]]:
    """The events of a build event file. If Bazel was killed while it wrote the file, those before the damage."""
    events = []
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                events.append(json.loads(line))
    except (OSError, ValueError) as error:
        print(f"{path}: {error}", file=sys.stderr)
    return events


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pace", type=float, default=1)
    parser.add_argument("runs", nargs="*")
    options = parser.parse_args(arguments)
    total = Count()
    for argument in options.runs:
        name, path = argument.split("=", 1)
        name, _, budget = name.partition(":")
        count = count_run(read_events(path))
        if budget and count.seconds > 1.5 * options.pace * float(budget):
            count.failed.append(f"the whole run took {count.seconds:.0f} s, its budget is {budget} s, on this machine "
                                f"{options.pace} times that: shrink or tag the slowest tests `long`, or say in "
                                "deploy/test.sh why the budget grows")
        for kind in ("failed", "skipped"):
            for what in getattr(count, kind):
                print(f"{name}: {kind}: {what}")
        print(f"{name}: {count} in {count.seconds:.0f} s")
        for seconds, label in count.slowest:
            print(f"{name}: {seconds:7.1f} s {label}")
        total.add(count)
    print(total)
    return 0 if total.passed and not total.failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
