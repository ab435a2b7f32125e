"""Runs bench/chaos for a few events: every job must end with the digest of an undisturbed one."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import unittest
from typing import Any

CHAOS = os.path.abspath("bench/chaos/chaos")
EVENTS = 3  # of each topology: a number, not a time, because the machine may compile at the same time


class ChaosTest(unittest.TestCase):

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log = os.path.join(folder.name, "log")

    def chaos(self, *flags: str) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if key != "BUILD_WORKING_DIRECTORY"}
        done = subprocess.run([CHAOS, "--log=" + self.log, *flags], env=environment, capture_output=True, text=True,
                              check=False, timeout=800)
        print(done.stdout)
        return done

    def expect_events(self, *flags: str) -> list[dict[str, Any]]:
        """The events of jobs that all have ended well."""
        done = self.chaos("--events=%d" % EVENTS, *flags)
        self.assertEqual(done.returncode, 0, done.stdout[-20000:] + done.stderr)
        with open(self.log) as file:
            entries = [json.loads(line) for line in file]
        self.assertEqual({entry["outcome"] for entry in entries if entry["type"] == "job"}, {"ok"})
        return [entry for entry in entries if entry["type"] == "event"]

    def test_a_few_events(self) -> None:
        events = self.expect_events("--steps=4000")
        for topology in ("star", "ring"):
            self.assertGreaterEqual(sum(event["topology"] == topology for event in events), EVENTS, topology)
        refused = self.chaos()
        self.assertEqual(refused.returncode, 2)
        self.assertIn("add --continue", refused.stderr)

    def test_a_few_events_of_an_elastic_star(self) -> None:
        events = self.expect_events("--topologies=star-elastic", "--steps=1500")
        self.assertGreaterEqual(len(events), EVENTS)
        for event in events:
            if event["kind"].startswith("kill") and event["next_step_s"] is not None:
                self.assertTrue(event["restarted"], event)  # another generation began

    def test_one_workers_trouble_stays_its_own(self) -> None:
        kinds = ("report-error", "blocked-shard", "memory-squeeze")
        events = self.expect_events("--topologies=star-elastic", "--kinds=" + ",".join(kinds), "--job=2", "--steps=300")
        self.assertLessEqual(set(kinds[:2]), {event["kind"] for event in events})
        for event in events:
            if event["kind"] == "report-error" and event["next_step_s"] is not None:
                self.assertTrue(event["restarted"], event)  # the others go on without it


if __name__ == "__main__":
    unittest.main()
