"""Tests bench/gpu_exchange.py: its table, and jobs on emulated GPUs; more in tests/deploy/gpu_first_contact_test.py."""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

from bench import gpu_exchange
from bench.gpu_exchange import CONTROL, ONE, Cell, Sample

SCRIPT = os.path.abspath("bench/gpu_exchange.py")
LAUNCH = os.path.abspath("deploy/launch")
WORKER = os.path.abspath("tests/cuda_emulation/worker_emulated")
TINY = ["--models=logreg:3", "--batch=16", "--train_count=32", "--overlap_s=0", "--job_seconds=60"]


def samples(*p50s, digest="a" * 64, gpu_ms=None):
    return [Sample(p50_ms=p50, waits_ms=p50 / 2, digests=(digest,), gpu_ms=gpu_ms) for p50 in p50s]


class TableTest(unittest.TestCase):

    def test_a_cell_is_an_argument(self):
        self.assertEqual(Cell.parse("ring:mpi"), Cell("ring:mpi", ("--sync=ring", "--transport=mpi"), ()))
        cell = Cell.parse("star:tcp:servers=2:--lanes=3:--math=tf32")
        self.assertEqual(cell.launch_flags, ("--sync=star", "--transport=tcp", "--servers=2"))
        self.assertEqual(cell.worker_flags, ("--lanes=3", "--math=tf32"))
        for name in ("ring", ":mpi", "ring:mpi:fast"):
            with self.assertRaisesRegex(gpu_exchange.BenchError, name):
                Cell.parse(name)

    def test_ddp_gets_the_same_training(self):
        flags = gpu_exchange.parse_flags([gpu_exchange.DDP, "--torch_python=py", "--worker=w", "--launch=l"])
        bench = gpu_exchange.Bench(flags)
        command = bench.ddp(bench.training("resnet20", 512, 60, "r.json"))
        self.assertEqual(command[:5], ["py", os.path.abspath("bench/ddp/train.py"), "--world_size=2", "--share_gpus",
                                       "--data=ram"])
        for flag in ("--model=resnet20", "--global_batch=512", "--max_steps=60", "--record=r.json"):
            self.assertIn(flag, command)
        with open("bench/ddp/worker_flags.json", encoding="utf-8") as file:
            known = json.load(file)
        self.assertEqual([flag for flag in command[5:] if flag.partition("=")[0][2:] not in known], [])

    def test_models_have_steps(self):
        self.assertEqual(gpu_exchange.parse_models("mlp:600,a.textproto:1"), [("mlp", 600), ("a.textproto", 1)])
        for text in ("mlp", "mlp:", ":3", "mlp:0", "mlp:3,"):
            with self.assertRaises(Exception):
                gpu_exchange.parse_models(text)

    def test_a_cost_is_the_median_of_pairs(self):
        found = {("mlp", CONTROL): samples(0.4, 0.6, 9.0), ("mlp", "ring:mpi"): samples(1.4, 1.7, 10.5, gpu_ms=0.25)}
        for cost, expected in zip(gpu_exchange.costs_us(found, "mlp", "ring:mpi"), (1000, 1100, 1500)):
            self.assertAlmostEqual(cost, expected)
        lines = gpu_exchange.table(found, {("mlp", "star:tcp"): "why"}, ["mlp"], [ONE, CONTROL, "ring:mpi", "star:tcp"])
        lines = lines[1:]  # a head has two lines
        self.assertRegex(lines[1], r"^mlp +one process +not run$")
        self.assertRegex(lines[2], r"^mlp +control +0\.600 +0\.300 +aaaaaaaaaaaa$")
        self.assertRegex(lines[3], r"^mlp +ring:mpi +1\.700 +0\.850 +0\.250 +1100 +1000 +1500 +3  aaaaaaaaaaaa$")
        self.assertRegex(lines[4], r"^mlp +star:tcp +FAILED: why$")

    def test_the_cell_with_the_fewest_pairs_is_said(self):
        found = {("mlp", CONTROL): samples(1, 1, 1), ("mlp", "ring:mpi"): samples(2, 2),
                 ("mlp", "star:tcp"): samples(2)}
        jobs = [ONE, CONTROL, "ring:mpi", "star:tcp"]
        self.assertEqual(gpu_exchange.fewest_pairs(found, ["mlp"], jobs[:3]),
                         "each cell has 2 pairs with the control, or more")
        self.assertRegex(gpu_exchange.fewest_pairs(found, ["mlp"], jobs), "has 1 pair with")
        self.assertRegex(gpu_exchange.fewest_pairs(found, ["mlp", "resnet20"], jobs), "has 0 pairs with")

    def test_digests_that_differ_are_named(self):
        jobs = [ONE, CONTROL, "ring:mpi", "star:tcp"]
        found = {("mlp", ONE): samples(1, digest="1" * 64), ("mlp", CONTROL): samples(1, digest="2" * 64),
                 ("mlp", "ring:mpi"): samples(1, 1), ("mlp", "star:tcp"): samples(1, 1)}
        self.assertEqual(gpu_exchange.different_digests(found, ["mlp"], jobs), [])
        found["mlp", "star:tcp"] += samples(1, digest="b" * 64)  # of one repeat
        self.assertEqual(gpu_exchange.different_digests(found, ["mlp"], jobs), [
            "mlp: DIGESTS DIFFER: aaaaaaaaaaaa of ring:mpi, star:tcp; bbbbbbbbbbbb of star:tcp"])
        # The two processes of a control.
        found = {("mlp", CONTROL): [Sample(p50_ms=1, waits_ms=0, digests=("a" * 64, "b" * 64))]}
        self.assertEqual(gpu_exchange.different_digests(found, ["mlp"], jobs),
                         ["mlp: DIGESTS DIFFER: aaaaaaaaaaaa of control; bbbbbbbbbbbb of control"])


class ScriptTest(unittest.TestCase):

    def run_script(self, *flags):
        return subprocess.run([sys.executable, SCRIPT, "--worker=" + WORKER, "--launch=" + LAUNCH, *TINY, *flags],
                              capture_output=True, text=True, check=False, timeout=200)

    def test_a_wrong_digest_and_a_failing_cell_are_noticed(self):
        with tempfile.TemporaryDirectory() as folder:
            record = os.path.join(folder, "record.json")
            done = self.run_script("--repeats=2", "--record=" + record, "star:tcp", "star:tcp:--seed=7",
                                   "ring:tcp:--nonsense=1")
            self.assertEqual(done.returncode, 1, done.stderr)
            with open(record, encoding="utf-8") as file:
                found = json.load(file)
        # As bench/compare/measured/results.py describes it.
        self.assertEqual(set(found), {"device", "batch", "problems", "jobs", "failures"})
        self.assertEqual([one["job"] for one in found["failures"]], ["ring:tcp:--nonsense=1"])
        self.assertIn("DIGESTS DIFFER", found["problems"][0])
        jobs = {job["job"]: job["samples"] for job in found["jobs"]}
        self.assertEqual(set(jobs["star:tcp"][0]), {"p50_ms", "waits_ms", "gpu_ms", "digests"})
        self.assertIn("emulated GPU", done.stdout)
        right, wrong = jobs["star:tcp"][0]["digests"][0], jobs["star:tcp:--seed=7"][0]["digests"][0]
        self.assertIn(f"logreg: DIGESTS DIFFER: {right[:12]} of star:tcp; {wrong[:12]} of star:tcp:--seed=7\n",
                      done.stdout)
        self.assertEqual(done.stderr.count("FAILED"), 1, "a cell that has failed is not run again")
        self.assertRegex(done.stdout, r"ring:tcp:--nonsense=1 +FAILED: exit status \d+: .*nonsense")
        self.assertEqual({name: len(found) for name, found in jobs.items()},
                         {ONE: 1, CONTROL: 2, "star:tcp": 2, "star:tcp:--seed=7": 2})

    def test_no_job_begins_after_the_time(self):
        done = self.run_script("--seconds=0.001", "star:tcp")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stdout, r"one process +\d+\.\d+ ")
        self.assertRegex(done.stdout, r"control +not run\n.* star:tcp +not run\n")

    def test_a_job_that_does_not_end_is_ended(self):
        begin = time.monotonic()
        with self.assertRaisesRegex(gpu_exchange.BenchError, "no end after 0 s"):
            gpu_exchange.run([["true"], ["sleep", "100"]], 0.1)
        self.assertLess(time.monotonic() - begin, 50)

    def test_a_model_that_does_not_train_leaves_the_others_theirs(self):
        done = self.run_script("--repeats=1", "--models=nonsense:3,logreg:3", "star:tcp")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stdout, r"nonsense +one process +FAILED: exit status 2: .*nonsense")
        self.assertRegex(done.stdout, r"nonsense +star:tcp +not run\n")
        self.assertRegex(done.stdout, r"logreg +star:tcp +\d+\.\d+ ")

    def test_where_no_model_trains_nothing_was_measured(self):
        done = self.run_script("--repeats=1", "--train_count=0", "star:tcp")
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertRegex(done.stderr, "NOTHING WAS MEASURED: logreg does not train: exit status 2: .*train_count")


if __name__ == "__main__":
    unittest.main()
