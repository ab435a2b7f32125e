"""Runs bench/chaos for a few events: every job must end with the digest of an undisturbed one."""

import json
import os
import subprocess
import tempfile
import unittest

CHAOS = os.path.abspath("bench/chaos/chaos")
EVENTS = 4  # of each topology: a number, not a time, because the machine may compile at the same time


class ChaosTest(unittest.TestCase):
    def test_a_few_events(self):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            environment = {key: value for key, value in os.environ.items() if key != "BUILD_WORKING_DIRECTORY"}
            done = subprocess.run([CHAOS, "--events=%d" % EVENTS, "--log=" + log], env=environment,
                                  capture_output=True, text=True, check=False, timeout=800)
            print(done.stdout)
            self.assertEqual(done.returncode, 0, done.stdout[-20000:] + done.stderr)
            with open(log) as file:
                entries = [json.loads(line) for line in file]
            jobs = [entry for entry in entries if entry["type"] == "job"]
            events = [entry for entry in entries if entry["type"] == "event"]
            self.assertEqual({job["outcome"] for job in jobs}, {"ok"})
            for topology in ("star", "ring"):
                self.assertGreaterEqual(sum(event["topology"] == topology for event in events), EVENTS, topology)
            refused = subprocess.run([CHAOS, "--log=" + log], env=environment, capture_output=True, text=True,
                                     check=False, timeout=60)
            self.assertEqual(refused.returncode, 2)
            self.assertIn("add --continue", refused.stderr)


if __name__ == "__main__":
    unittest.main()
