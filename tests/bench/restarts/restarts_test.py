"""Tests bench/restarts: how restarts are judged, and that a job which says nothing more is ended with all its ranks."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import unittest
from typing import Any
from unittest import mock

from bench.restarts import main, outcomes

REFUSED = "RuntimeError: Gloo connectFullMesh failed with [gloo/pair.cc:152] timed out: SO_ERROR: Connection refused"

# Stands for torchrun: starts a rank that no SIGTERM ends, and writes what job.py would.
TORCHRUN = """
import json, os, signal, subprocess, sys, time
folder = [word.partition("=")[2] for word in sys.argv if word.startswith("--folder=")][0]
rank = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
                         "signal.signal(signal.SIGUSR1, signal.SIG_IGN); time.sleep(60)", "restarts/job.py"],
                        start_new_session=True)
with open(os.path.join(folder, "events.jsonl"), "w") as file:
    file.write(json.dumps({"attempt": 0, "rank": 0, "event": "started", "time": 0, "pid": rank.pid}) + "\\n")
time.sleep(60)
"""


def event(attempt: int, rank: int, name: str, seconds: float, **more: Any) -> dict[str, Any]:
    return {"attempt": attempt, "rank": rank, "event": name, "time": 100 * attempt + seconds, "pid": 1, **more}


def attempt(number: int, *more: dict[str, Any]) -> list[dict[str, Any]]:
    return [event(number, 0, "started", 0), event(number, 1, "started", 1), *more]


KILLED = attempt(0, event(0, 1, "killed", 2, where="constructor"), event(0, 0, "failed", 3, error="RuntimeError: gone"))


class OutcomesTest(unittest.TestCase):
    def judged(self, *events: dict[str, Any]) -> list[tuple[str, str, float]]:
        found = outcomes.restarts([*KILLED, *events], 2, 6.0)
        return [(one.after, one.outcome, one.seconds) for one in found]

    def test_every_rank_has_to_step(self) -> None:
        steps = [event(1, rank, "stepped", 5 + rank, step=step) for step in (3, 4) for rank in (0, 1)]
        self.assertEqual(self.judged(*attempt(1, *steps)), [("constructor", outcomes.WENT_ON, 6)])
        self.assertEqual(self.judged(*attempt(1, steps[0])), [("constructor", outcomes.SILENT, 5)])

    def test_whose_error_it_is(self) -> None:
        self.assertEqual(outcomes.kind_of("StarringError: rank 1 is missing", 60, 6), outcomes.OUR_SENTENCE)
        self.assertEqual(outcomes.kind_of(REFUSED, 0.1, 6), outcomes.GLOO_REFUSED)
        self.assertEqual(outcomes.kind_of(REFUSED, 30.0, 6), outcomes.GLOO_TIMED_OUT)
        self.assertEqual(outcomes.kind_of("RuntimeError: Gloo connectFullMesh failed", 30, 6), outcomes.GLOO_TIMED_OUT)
        self.assertEqual(outcomes.kind_of("ValueError: no", 1, 6), outcomes.OTHER)

    def test_an_attempt_after_a_failure(self) -> None:
        failed = attempt(1, event(1, 1, "failed", 2, error=REFUSED), event(1, 0, "failed", 9, error="ValueError: no"))
        stepped = attempt(2, event(2, 0, "stepped", 3, step=0), event(2, 1, "stepped", 4, step=0))
        self.assertEqual(self.judged(*failed, *stepped), [("constructor", outcomes.GLOO_REFUSED, 2),
                                                          ("failure", outcomes.WENT_ON, 4)])
        found = {("c10d", "ddp"): outcomes.restarts([*KILLED, *failed, *stepped], 2, 6.0)}
        self.assertEqual(outcomes.table(found)[2], "| c10d | ddp | 1, 0, 1 | 1 | 0 | 1 | 0 | 0 | 0 |")

    def test_no_restart(self) -> None:
        self.assertEqual(outcomes.restarts(KILLED, 2, 6.0), [])
        self.assertEqual(outcomes.restarts([], 2, 6.0), [])


class RunTest(unittest.TestCase):
    def test_a_silent_job_is_ended_with_its_ranks(self) -> None:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(main, "SILENT_S", 0.5):
            main.run_job([sys.executable, "-c", TORCHRUN, "--folder=" + folder], folder, "none")
            events = main.read_events(folder)
            self.assertEqual(len(events), 1)
            end = time.monotonic() + 10
            while os.path.exists(f"/proc/{events[0]['pid']}") and main.living(events) and time.monotonic() < end:
                time.sleep(0.01)
            self.assertEqual(main.living(events), [])
        self.assertLess(time.monotonic() - began, 20)

    def test_what_is_started(self) -> None:
        argv = main.command("python", "there", "static", "star+fresh", 1)
        self.assertEqual(argv[:3], ["python", "-m", "torch.distributed.run"])
        self.assertLessEqual({"--node_rank=0", "--sync=star", "--constructor=attach", "--victim=1", "--fresh_store"},
                             set(argv))
        argv = main.command("python", "there", "c10d", "ddp", 3)
        self.assertLessEqual({"--rdzv_backend=c10d", "--sync=ddp", "--constructor=ddp", "--victim=0"}, set(argv))
        self.assertNotIn("--fresh_store", argv)

    def test_wrong_flags_are_refused(self) -> None:
        for flags in (["--jobs=mesh"], ["--restarts=1"], ["--rendezvous=etcd"]):
            with tempfile.NamedTemporaryFile() as library, \
                 mock.patch.dict(os.environ, STARRING_LIBRARY=library.name), self.assertRaises(SystemExit) as ended:
                main.main(["--python=python", *flags])
            self.assertEqual(ended.exception.code, 2)


if __name__ == "__main__":
    unittest.main()
