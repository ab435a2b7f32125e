"""Tests bench/gpu_steps.py on a machine without a GPU: the table, the targets, and both sides on the CPU."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from bench import gpu_steps

SCRIPT = os.path.abspath("bench/gpu_steps.py")
WORKER = os.path.abspath("worker/worker")
JOBS = ["graph", "no graph", "eager", "captured"]


def python_with_torch():
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0:
            return python
    return None


def row(batch, graph, eager, captured):
    times = {"graph": [graph], "no graph": [2 * graph], "eager": [eager], "captured": [captured]}
    return ("fp32", "lenet5", batch, times)


class TableTest(unittest.TestCase):

    def test_targets_are_the_ones_of_the_batch(self):
        self.assertTrue(gpu_steps.all_met([row(64, 0.09, 0.4, 0.1), row(512, 1.0, 4.0, 1.0)]))
        self.assertFalse(gpu_steps.all_met([row(64, 0.091, 0.4, 0.1)]))  # 0.91 of captured
        self.assertFalse(gpu_steps.all_met([row(64, 0.11, 0.4, 0.2)]))  # more than a quarter of eager
        self.assertFalse(gpu_steps.all_met([row(512, 1.1, 4.0, 1.0)]))
        self.assertFalse(gpu_steps.all_met([row(512, 1.1, 1.0, 4.0)]))  # the better of PyTorch's jobs may be eager
        self.assertTrue(gpu_steps.all_met([row(128, 9.0, 4.0, 1.0)]))  # no target

    def test_a_row_shows_medians_spread_ratios_and_verdict(self):
        times = {"graph": [0.1, 0.3, 0.2], "no graph": [0.4] * 3, "eager": [0.5] * 3, "captured": [0.25] * 3}
        head, line = gpu_steps.table(JOBS, [("tf32", "lenet5", 64, times)])
        self.assertIn("no graph ms", head)
        for text in ("tf32 lenet5", "0.2000  100.0%", "0.4000    0.0%", "0.400", "0.800", "MISSED (<= 0.25 of eager)",
                     "met (<= 0.9 of captured)"):
            self.assertIn(text, line)


class ScriptTest(unittest.TestCase):

    def run_script(self, *flags):
        return subprocess.run([sys.executable, SCRIPT, "--worker=" + WORKER, *flags], capture_output=True, text=True,
                              check=False, timeout=250)

    def test_both_sides_on_the_cpu(self):
        python = python_with_torch()
        if python is None:
            self.skipTest("NO python3 WITH torch: nothing was run against PyTorch")
        with tempfile.TemporaryDirectory() as folder:
            record = os.path.join(folder, "record.json")
            done = self.run_script("--device=cpu", "--models=lenet5,resnet20", "--batches=4", "--steps=10",
                                   "--seconds=0.1", "--warmup_s=0.1", "--repeats=2",
                                   "--torch_python=" + python, "--record=" + record)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("THIS WAS A CPU", done.stdout)
            self.assertIn("torch", done.stdout)
            with open(record, encoding="utf-8") as file:
                rows = json.load(file)["rows"]
        self.assertEqual([r["model"] for r in rows], ["lenet5", "resnet20"])
        for r in rows:
            self.assertEqual([len(r["step_ms"][job]) for job in ("graph", "eager")], [2, 2])
            self.assertGreater(min(r["step_ms"]["graph"] + r["step_ms"]["eager"]), 0)

    def test_a_machine_without_a_gpu_is_told_so(self):
        done = self.run_script("--models=lenet5", "--batches=64", "--steps=20", "--repeats=1",
                               "--torch_python=/nonexistent/python3")
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("NOTHING WAS MEASURED", done.stderr)


if __name__ == "__main__":
    unittest.main()
