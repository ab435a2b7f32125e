"""Runs bench/chaos between hosts for five cuts: jobs must go on, or end, as computed before."""

import json
import os
import subprocess
import tempfile
import unittest

from netlab import Netlab

CHAOS = os.path.abspath("bench/chaos/chaos")
# The cuts of this seed that last up to 5 s: star and ring go on after the first one and end by the second, a ring by a
# cut between two ranks that the third one reaches. During that of the elastic star a worker joins. Links of 100 Mbit/s
# set the pace, however fast the machine is.
FLAGS = ["--hosts=netlab:3,100mbit", "--seed=9750", "--length_max_s=5", "--exchange_deadline_s=3",
         "--join_deadline_s=4", "--steps=110"]
EXPECT_END = {"star": [False, True], "ring-tcp": [False, True], "star-elastic": [False]}


class NetlabChaosTest(unittest.TestCase):

    def setUp(self):
        reason = Netlab.why_not()
        if reason:
            self.skipTest("NOTHING WAS CUT: no lab here: " + reason)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_a_few_cuts(self):
        environment = {key: value for key, value in os.environ.items() if key != "BUILD_WORKING_DIRECTORY"}
        running = {}
        for topology, ends in EXPECT_END.items():  # all at once, each on hosts of its own
            running[topology] = subprocess.Popen(
                [CHAOS, "--log=" + os.path.join(self.folder, topology), "--topologies=" + topology,
                 "--events=%d" % len(ends), *FLAGS], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True)
            self.addCleanup(running[topology].wait)
            self.addCleanup(running[topology].terminate)
        for topology, ends in EXPECT_END.items():
            with self.subTest(topology=topology):
                output, _ = running[topology].communicate(timeout=250)
                print(output)
                self.assertEqual(running[topology].returncode, 0, output[-20000:])
                with open(os.path.join(self.folder, topology)) as file:
                    cuts = [entry for entry in map(json.loads, file) if entry["type"] == "event"]
                self.assertEqual([cut["expects_end"] for cut in cuts], ends)
                for cut in cuts:
                    self.assertEqual(cut["faults"], [])
                    self.assertEqual(cut["next_step_s"] is None, cut["expects_end"])
                    self.assertEqual(cut["join_at_s"] is None, topology != "star-elastic")

    def test_what_cannot_be_is_refused(self):
        for flag, why in (("--hosts=netlab:2,1gbit", "at least three hosts"),
                          ("--topologies=star-mpi", "between hosts there are star")):
            done = subprocess.run([CHAOS, *FLAGS, flag], capture_output=True, text=True, check=False, timeout=60)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(why, done.stderr)


if __name__ == "__main__":
    unittest.main()
