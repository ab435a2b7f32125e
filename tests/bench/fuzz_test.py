"""Tests bench/fuzz.py with shell scripts as targets: its counts, its findings, and how it continues a log."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from bench import fuzz

# libFuzzer's output for a piece of 1000 inputs, of which 9 were the corpus.
OUTPUT = """INFO: Loaded 1 modules   (1065 inline 8-bit counters): 1065 [0x55, 0x56),
#9\tINITED cov: 200 ft: 300 corp: 6/1Kb exec/s: 0 rss: 38Mb
#500\tNEW    cov: 266 ft: 400 corp: 20/2Kb lim: 33 exec/s: 0 rss: 40Mb L: 8/33 MS: 1 ChangeBit-
stat::number_of_executed_units: 1009
stat::average_exec_per_sec:     1000
stat::slowest_unit_time_sec:    0
stat::peak_rss_mb:              41
"""


class FuzzTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        os.makedirs(os.path.join(self.root, "tests/fuzz/corpus/idx"))
        os.environ["BUILD_WORKSPACE_DIRECTORY"] = self.root
        self.addCleanup(os.environ.pop, "BUILD_WORKSPACE_DIRECTORY")
        # On a busy machine targets that leave the cores to others get next to nothing.
        self.leave_cores_to_others = fuzz.leave_cores_to_others
        fuzz.leave_cores_to_others = lambda pid: None
        self.addCleanup(setattr, fuzz, "leave_cores_to_others", self.leave_cores_to_others)

    def target(self, script, name="idx"):
        os.makedirs(os.path.join(self.root, "tests/fuzz/corpus", name), exist_ok=True)
        path = os.path.join(self.root, name + "_fuzz")
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/bash\ncat >&2 <<'END'\n%sEND\n%s\n" % (OUTPUT, script))
        os.chmod(path, 0o755)

    def fuzz(self, *arguments):
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            status = fuzz.main(["--binaries=" + self.root, *arguments])
        return status, output.getvalue()

    def test_adds_up_and_goes_on(self):
        self.target("exit 0")
        status, output = self.fuzz("--inputs=2500")
        self.assertEqual(status, 0, output)
        self.assertIn("| idx | 3,000 |", output)
        self.assertIn("| 266 of 1065 (24 %) | 41 MiB | below 1 s | 0 |", output)
        self.assertIn("| all | 3,000 |", output)
        self.assertIn("| idx | 5,000 |", self.fuzz("--inputs=5000", "--continue")[1])
        self.assertIn("| idx | 1,000 |", self.fuzz("--inputs=1000")[1])  # starts over
        self.assertIn("| idx | 6,000 |", self.fuzz("--summary")[1])
        with open(os.path.join(self.root, "data/fuzz/log.jsonl"), encoding="utf-8") as file:
            self.assertEqual([json.loads(line)["inputs"] for line in file], 6 * [1000])

    def test_the_corpus_is_not_counted(self):
        self.assertEqual(fuzz.parse_output(OUTPUT)["inputs"], 1000)
        within = "".join(line for line in OUTPUT.splitlines(keepends=True) if not line.startswith("#"))
        self.assertEqual(fuzz.parse_output(within)["inputs"], 0)

    def test_a_finding_ends_the_target(self):
        self.target("echo 'Test unit written to /nowhere/idx-crash-1' >&2; exit 77")
        status, output = self.fuzz("--inputs=5000")
        self.assertEqual(status, 1)
        self.assertIn("FINDING: /nowhere/idx-crash-1", output)
        self.assertIn("| idx | 1,000 |", output)
        self.assertIn("below 1 s | 1 |", output)

    def test_an_input_that_waited_for_a_core_is_no_finding(self):
        # The input sleeps beyond its time limit, also when it runs alone, but computes nothing.
        waits = os.path.join(self.root, "data/fuzz/findings/idx-timeout-1")
        self.target("[[ $# -gt 1 && ! -e {0}.seen ]] || exit 0; touch {0} {0}.seen\n"
                    "echo 'Test unit written to {0}' >&2; exit 70".format(waits))
        status, output = self.fuzz("--inputs=2000")
        self.assertEqual(status, 0, output)
        self.assertFalse(os.path.exists(waits))

    def test_a_process_that_waited_for_a_core_as_it_began_is_no_finding(self):
        self.target("[[ ! -e {0}/seen ]] || exit 0; touch {0}/seen; kill -ALRM $$".format(self.root))
        status, output = self.fuzz("--inputs=2000")
        self.assertEqual(status, 0, output)

    def test_an_input_that_computes_too_long_is_one(self):
        path = os.path.join(self.root, "data/fuzz/findings/idx-timeout-1")
        self.target("if [[ $# -eq 1 ]]; then for ((i = 0; i < 500000; ++i)); do :; done; exit 0; fi\n"
                    "touch {0}; echo 'Test unit written to {0}' >&2; exit 70".format(path))
        before = fuzz.INPUT_SECONDS_MAX
        self.addCleanup(setattr, fuzz, "INPUT_SECONDS_MAX", before)
        fuzz.INPUT_SECONDS_MAX = 0.1  # of a core, however many other tests share it
        status, output = self.fuzz("--inputs=2000")
        self.assertEqual(status, 1)
        self.assertIn("idx-timeout-1", output)

    def test_runs_targets_at_the_same_time(self):
        for mine, other in (("idx", "cifar"), ("cifar", "idx")):
            self.target("cd {0}; touch {1}; until [[ -e {2} ]]; do ((SECONDS < 20)) || exit 1; sleep 0.01; done".format(
                self.root, mine, other), mine)
        status, output = self.fuzz("--jobs=2", "--inputs=10000")
        self.assertEqual(status, 0, output)
        with open(os.path.join(self.root, "data/fuzz/log.jsonl"), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        self.assertEqual(sorted(line["target"] for line in lines), 10 * ["cifar"] + 10 * ["idx"])
        self.assertIn("| all | 20,000 |", output)

    def test_leaves_the_cores_to_others(self):
        fuzz.leave_cores_to_others = self.leave_cores_to_others
        # The fields of proc(5): 19 is the niceness, 41 the scheduling class, of which 5 is SCHED_IDLE.
        self.target("until read -ra stat < /proc/$$/stat; ((stat[18] >= 15 && stat[40] == 5)); do\n"
                    "  ((SECONDS < 100)) || exit 1; sleep 0.01\ndone")
        status, output = self.fuzz("--inputs=1000")
        self.assertEqual(status, 0, output)

    def test_an_interruption_ends_all(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            begun = [os.path.join(self.root, "%s.%d" % (name, number)) for name in ("idx", "cifar")]
            for path, name in zip(begun, ("idx", "cifar")):
                self.target("echo $$ > {0}.new; mv {0}.new {0}; sleep 100; exit 0".format(path), name)
            with subprocess.Popen([sys.executable, fuzz.__file__, "--binaries=" + self.root, "--jobs=2"],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as search:
                self.addCleanup(search.kill)
                end = time.monotonic() + 100
                while not all(map(os.path.exists, begun)) and time.monotonic() < end:
                    time.sleep(0.01)
                search.send_signal(number)
                _, output = search.communicate(timeout=100)
            self.assertEqual((search.returncode, output), (1, "fuzz: interrupted, --continue goes on\n"))
            for path in begun:
                with open(path, encoding="utf-8") as file, self.assertRaises(ProcessLookupError):
                    os.kill(int(file.read()), 0)
        self.assertFalse(os.path.exists(os.path.join(self.root, "data/fuzz/log.jsonl")))

    def test_refuses_what_is_no_target(self):
        status, output = self.fuzz("--target=idy")
        self.assertEqual(status, 2)
        self.assertIn("there is no target idy, only idx", output)


if __name__ == "__main__":
    unittest.main()
