"""Runs bench/chaos for a minute: every job must end with the digest of an undisturbed one."""

import json
import os
import subprocess
import tempfile
import unittest

CHAOS = os.path.abspath("bench/chaos/chaos")
SECONDS = 45  # time for events, without the undisturbed jobs and the end of the last job


class ChaosTest(unittest.TestCase):
    def test_a_minute(self):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            environment = {key: value for key, value in os.environ.items() if key != "BUILD_WORKING_DIRECTORY"}
            done = subprocess.run([CHAOS, "--seconds=%d" % SECONDS, "--log=" + log, "--events=1000"],
                                  env=environment, capture_output=True, text=True, check=False, timeout=800)
            print(done.stdout)
            self.assertEqual(done.returncode, 0, done.stdout[-20000:] + done.stderr)
            with open(log) as file:
                entries = [json.loads(line) for line in file]
            jobs = [entry for entry in entries if entry["type"] == "job"]
            events = [entry for entry in entries if entry["type"] == "event"]
            self.assertGreaterEqual({job["topology"] for job in jobs}, {"star"})
            self.assertEqual({job["outcome"] for job in jobs}, {"ok"})
            # On a machine that compiles at the same time there are only a few events.
            self.assertGreaterEqual(len(events), 3)
            refused = subprocess.run([CHAOS, "--log=" + log], env=environment, capture_output=True, text=True,
                                     check=False, timeout=60)
            self.assertEqual(refused.returncode, 2)
            self.assertIn("add --continue", refused.stderr)


if __name__ == "__main__":
    unittest.main()
