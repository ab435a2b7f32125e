"""The costs of micro-batches and of an elastic star: what is compared with what, and what is refused."""

import contextlib
import io
import json
import os
import re
import subprocess
import tempfile
import unittest
from unittest import mock

from bench import micro_batches
from bench.micro_batches import Run


def flag(flags, name):
    return next(word.partition("=")[2] for word in flags if word.startswith("--%s=" % name))


class MicroBatchesTest(unittest.TestCase):
    def table(self, run, *arguments):
        """The rows of the table, without its head."""
        output = io.StringIO()
        with mock.patch.object(micro_batches, "run", run), contextlib.redirect_stdout(output):
            micro_batches.main(list(arguments))
        return [[cell.strip() for cell in line.split("|")[1:-1]] for line in output.getvalue().splitlines()[2:]]

    def test_ratios_of_the_smallest_times_in_turns(self):
        asked = []

        def run(_binaries, _launch_flags, flags):
            leaves = int(flag(flags, "micro_batches"))
            asked.append(leaves)
            return Run(10 * leaves / (1 + (len(asked) > 3)), 0.0, 0.0)  # the second round is twice as fast
        rows = self.table(run, "--models=mlp", "--workers=1", "--batches=64", "--micro_batches=4,1,2", "--repeats=2")
        self.assertEqual(asked, [1, 2, 4, 4, 2, 1])
        self.assertEqual(rows, [["mlp", "1", "64", "5.00 ms", "2.000", "4.000"]])

    def test_each_worker_has_a_leaf(self):
        rows = self.table(lambda *_: Run(1.0, 0.0, 0.0), "--models=mlp,lenet5", "--repeats=1")
        self.assertEqual([row[:5] for row in rows[:4]],
                         [["mlp", "1", "64", "1.00 ms", "1.000"], ["mlp", "1", "512", "1.00 ms", "1.000"],
                          ["mlp", "2", "64", "-", "1.00 ms"], ["mlp", "2", "512", "-", "1.00 ms"]])
        self.assertEqual(len(rows), 8)

    def test_an_elastic_star_in_pairs(self):
        asked = []

        def run(_binaries, launch_flags, flags):
            elastic, images = "--elastic" in launch_flags, int(flag(flags, "synthetic_train_count"))
            asked.append((elastic, images // 64))
            noise = 2 if len(asked) > 8 else 1  # the third pair
            # Starting takes 7 s of processor time, an elastic star's 70 s; a step of it 1 % more.
            cpu_s = images // 64 * (1.01 if elastic else 1.0) + (70 if elastic else 7)
            return Run(noise * (10.1 if elastic else 10.0), noise * (3.6 if elastic else 3.0), cpu_s)
        with mock.patch.object(micro_batches, "part_of_time", side_effect=[0.0125, 0.001]):
            rows = self.table(run, "--elastic", "--models=lenet5", "--batches=64", "--repeats=3")
        self.assertEqual(rows, [["lenet5", "64", "10.00 ms", "1.010", "1.010 (1.010 to 1.010)",
                                 "1.200 (1.200 to 1.200)", "1.010 (1.010 to 1.010)", "1.25 %", "0.10 %"]])
        self.assertEqual([one for one in asked if one[1] == 2400],
                         [(way, 2400) for way in (False, True, True, False, False, True, True)])  # the last is traced

    def test_spans(self):
        def write(name, *spans):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                json.dump({"traceEvents": [{"ph": "M", "name": "snapshot"}, *(
                    {"ph": "X", "tid": track, "name": what, "ts": begin, "dur": end - begin}
                    for track, what, begin, end in spans)]}, file)
        with tempfile.TemporaryDirectory() as folder:
            # Another track has older events, and another server less.
            write("t.server-0.json", (2, "receive", 0, 9), (1, "sum", 900, 950), (1, "snapshot", 950, 960),
                  (1, "snapshot", 980, 1000), (2, "receive", 990, 1000))
            write("t.server-1.json", (1, "sum", 0, 50), (1, "snapshot", 90, 100))
            self.assertAlmostEqual(micro_batches.part_of_time(folder, "t.server-*.json", "snapshot"), 0.3)
            # A span with another name, or no file, is no cost of 0.
            for pattern, name in (("t.server-*.json", "snap"), ("t.worker-*.json", "snapshot")):
                with self.assertRaisesRegex(SystemExit, re.escape("no timeline %s has a span %s" % (pattern, name))):
                    micro_batches.part_of_time(folder, pattern, name)

    def job(self, done):
        """A run of an elastic star whose launcher ends so. Returns it and standard error."""
        def launch(command, **more):
            self.assertGreater(more["timeout"], 0)
            if isinstance(done, Exception):
                raise done
            with open(flag(command, "record"), "w", encoding="utf-8") as file:
                json.dump({"step_ms": {"p50": 1.5}, "epochs": [{"seconds": 2.0}]}, file)
            return done
        errors = io.StringIO()
        with mock.patch.object(subprocess, "run", launch), contextlib.redirect_stderr(errors):
            return micro_batches.run("bin", ["--elastic"], ["--model=mlp"]), errors.getvalue()

    def test_a_run(self):
        one = "s0 | server 0: generation 1 from step 0 with 2 workers (the run begins)\n"
        found, errors = self.job(subprocess.CompletedProcess([], 0, one))
        self.assertEqual((found.p50_ms, found.epoch_s, errors), (1.5, 2.0, ""))
        two = one + "s0 | server 0: generation 2 from step 40 with 2 workers (other shares are faster)\n"
        self.assertIn("had 2 generations", self.job(subprocess.CompletedProcess([], 0, two))[1])
        with self.assertRaisesRegex(SystemExit, "--model=mlp: no such flag"):
            self.job(subprocess.CompletedProcess([], 1, "no such flag"))
        with self.assertRaisesRegex(SystemExit, "has not ended after"):
            self.job(subprocess.TimeoutExpired("launch", 1))

    def test_defaults_and_refusals(self):
        self.assertEqual(micro_batches.parse([]).repeats, 7)
        self.assertEqual(micro_batches.parse(["--elastic"]).repeats, 15)
        self.assertEqual(micro_batches.parse([]).models, ["mlp", "lenet5", "mnist_cnn", "resnet20"])
        for flags in (["--repeats=0"], ["--models=moon"], ["--models="], ["--workers=0"], ["--batches=x"],
                      ["--micro_batches=4", "--workers=8"], ["--elastic", "--workers=2"],
                      ["--elastic", "--micro_batches=8"], ["--repeat=3"]):
            with self.subTest(flags), contextlib.redirect_stderr(io.StringIO()), \
                    self.assertRaises(SystemExit) as refused:
                micro_batches.parse(flags)
            self.assertEqual(refused.exception.code, 2)


if __name__ == "__main__":
    unittest.main()
