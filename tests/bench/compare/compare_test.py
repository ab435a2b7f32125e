"""Tests the whole comparison with real processes and few steps. Without torch it says that DDP was skipped."""

import csv
import json
import os
import subprocess
import sys
import tempfile
import unittest

import analysis
import machine
import main
import programs
import results as schema

BINARIES = os.getcwd()  # the runfiles, which have deploy/launch


class CompareTest(unittest.TestCase):
    def compare(self, folder, *flags):
        # Small data, because reading and evaluating 70000 images would take most of this test's time.
        done = subprocess.run([sys.executable, main.__file__, "--quick", "--dataset=synthetic", "--model=logreg",
                               "--out=report", *flags], capture_output=True, text=True, timeout=280, check=False,
                              env={**os.environ, "BUILD_WORKING_DIRECTORY": folder})
        print(done.stdout)
        return done, os.path.join(folder, "report")

    def test_ours(self):
        with tempfile.TemporaryDirectory() as folder:
            done, report = self.compare(folder, "--syncs=star,ring,mpi", "--workers=1,2")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            results = schema.read(os.path.join(report, "results.json"))
            with open(os.path.join(report, "runs.csv"), encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            # Without a python3 that has matplotlib and jinja2 there is a note instead of the page.
            self.assertNotEqual(os.path.exists(os.path.join(report, "index.html")),
                                any("but no page" in note for note in results["notes"]), done.stdout)
        ran = {configuration["id"].partition("/")[2]: configuration for configuration in results["configurations"]}
        self.assertEqual(set(ran), {"local/1w/equal-workers/weak", "star/2w/equal-workers/weak",
                                    "ring/2w/equal-workers/weak", "mpi/2w/equal-workers/weak",
                                    "star/1w/equal-cores/weak"})
        self.assertEqual(len(rows), 2 * len(ran))
        for configuration in ran.values():
            self.assertEqual([run["repeat"] for run in configuration["runs"]], [0, 1])
            for run in configuration["runs"]:
                self.assertEqual((run["steps_measured"], run["warmup_steps"]), (14, 10))
                self.assertAlmostEqual(sum(run["breakdown_ms"].values()), run["step_ms"]["mean"], places=3)
                self.assertGreater(run["cpu_percent"]["worker 0"], 0)
        # Two runs of the same job have the same bits, and so have star and ring.
        digests = {run["parameter_sha256"] for sync in ("star", "ring")
                   for run in ran[sync + "/2w/equal-workers/weak"]["runs"]}
        self.assertEqual(len(digests), 1)
        self.assertIsNotNone(ran["ring/2w/equal-workers/weak"]["slowest_worker_ratio"])
        missing = {row["sync"] for row in results["missing_exchanges"]}
        self.assertLessEqual(missing, {"mpi4py"})
        self.assertEqual({(row["sync"], row["bytes"]) for row in results["exchanges"]},
                         {(sync, size) for sync in {"star", "ring", "mpi", "mpi4py"} - missing
                          for size in (4096, 1 << 20)})
        self.assertEqual(len(analysis.analyse(results)["verdict"]), 3)

    def test_uneven_and_failing_workers(self):
        with tempfile.TemporaryDirectory() as folder:
            # The others start again as these do, and take a minute more.
            done, report = self.compare(folder, "--syncs=", "--uneven=logreg", "--uneven_syncs=ring,star-elastic")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            results = schema.read(os.path.join(report, "results.json"))
        found = {job["sync"]: job for job in results["uneven"]["jobs"]}
        self.assertEqual(set(found), {"ring", "star-elastic"})
        for sync, job in found.items():
            self.assertEqual([run["case"] for run in job["runs"]], ["even", "half-speed", "kills"], done.stdout)
            self.assertEqual(job["runs"][2]["kills"], 1)
            for run in job["runs"][:2]:  # in the third one a busy machine may only come back to where the run was
                self.assertGreater(run["samples_per_second"], 0, (sync, run))
        self.assertTrue(results["uneven"]["slowed_by"])

    def test_the_peer_agrees(self):
        if not programs.Torch.find_all():
            print("SKIPPED: no python3 with torch, so nothing was compared with PyTorch", file=sys.stderr)
            self.skipTest("no python3 with torch")
        with tempfile.TemporaryDirectory() as folder:
            done, report = self.compare(folder, "--syncs=ddp", "--workers=1", "--dataset=fashion-mnist",
                                        "--repeats=1", "--trace=false")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            results = schema.read(os.path.join(report, "results.json"))
        self.assertEqual([(entry["peer"], entry["agrees"]) for entry in results["agreement"]],
                         [("ddp", True), ("ddp-tuned", True)])
        self.assertEqual(results["agreement"][0]["steps"], 20)
        self.assertLess(results["agreement"][0]["worst_relative_difference"], 1e-5)
        self.assertIn("torch", results["versions"])

    def test_a_gpu_that_is_not_there_is_refused(self):
        if machine.Gpus().count():
            self.skipTest("THERE IS A GPU: not refused")
        with tempfile.TemporaryDirectory() as folder:
            done, report = self.compare(folder, "--syncs=ring", "--device=cuda")
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertFalse(os.path.exists(report))
            self.assertIn("give --device=cpu", done.stderr)

    def test_wrong_flags_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            done, report = self.compare(folder, "--syncs=moon")
            self.assertEqual(done.returncode, 2)
            self.assertFalse(os.path.exists(report))
            self.assertIn("moon", done.stderr)


class WithoutTorchTest(unittest.TestCase):
    def test_says_how_to_get_it(self):
        with tempfile.TemporaryDirectory() as folder:
            script = ("import sys, programs, main; programs.Torch.find_all = staticmethod(list); "
                      "sys.exit(main.main())")
            done = subprocess.run([sys.executable, "-c", script, "--quick", "--syncs=ddp", "--workers=1",
                                   "--trace=false", "--out=" + folder], capture_output=True, text=True, timeout=100,
                                  check=False, env={**os.environ, "PYTHONPATH": os.path.dirname(main.__file__),
                                                    "STARRING_BINARIES": BINARIES})
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            with open(os.path.join(folder, "results.json"), encoding="utf-8") as file:
                results = json.load(file)
        self.assertEqual(results["configurations"], [])
        self.assertTrue(any("apt-get install python3-torch" in note for note in results["notes"]), results["notes"])


if __name__ == "__main__":
    unittest.main()
