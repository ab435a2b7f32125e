"""Tests gpu_checks.sh --exchange with emulated GPUs, in a folder that is laid out as a bundle."""

import os
import subprocess
import tempfile
import unittest

# Those of the bundle that its rows run, by their place there.
FILES = {
    "tests/gpu_checks.sh": "deploy/bundle/gpu_checks.sh",
    "tests/gpu_first_contact.sh": "deploy/bundle/gpu_first_contact.sh",
    "tests/e2e/cuda_jobs.py": "tests/e2e/cuda_jobs.py",
    "tests/e2e/cuda_test.py": "tests/e2e/cuda_test.py",
    "tests/e2e/jobs.py": "tests/e2e/jobs.py",
    "bench/gpu_exchange.py": "bench/gpu_exchange.py",
    "bench/gpu_steps.py": "bench/gpu_steps.py",
    "bin/launch": "deploy/launch",
    "bin/server": "server/server",
    "bin/worker": "tests/cuda_emulation/worker_emulated",
}
ROWS = ("nccl", "first_contact", "faults", "cuda_aware_mpi", "bf16")


class GpuChecksTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="a folder with spaces ")
        self.addCleanup(folder.cleanup)
        self.folder, self.out = folder.name, os.path.join(folder.name, "out")
        for place, file in FILES.items():
            path = os.path.join(folder.name, place)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(os.path.abspath(file), path)
        # In place of bench/gpu_wait_spike, which needs a GPU.
        with open(os.path.join(folder.name, "bench/gpu_wait_spike"), "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n")
            os.fchmod(file.fileno(), 0o755)

    def run_script(self, *arguments, **variables):
        return subprocess.run([os.path.join(self.folder, "tests/gpu_checks.sh"), self.out, *arguments],
                              capture_output=True, text=True, check=False, timeout=280, env={**os.environ, **variables})

    def lines(self, done):
        """What became of each row."""
        found = [line.split() for line in done.stdout.splitlines()]
        return {words[1].rstrip(":"): words[0] for words in found if words[0] in ("PASSED", "FAILED", "SKIPPED")}

    def test_every_row_of_the_exchange_goes_through(self):
        done = self.run_script("--exchange", "--short", LD_LIBRARY_PATH=os.path.abspath("tests/nccl_stub"),
                               NCCL_STUB_VERSION="23000")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.lines(done), {row: "PASSED" for row in ROWS}, done.stdout)
        self.assertIn("its messages went cuda-aware", done.stdout)
        with open(os.path.join(self.out, "first_contact/summary.txt"), encoding="utf-8") as file:
            summary = file.read()
        # The GPU's own clock has seen each cell, and NCCL's is among them.
        for cell in ("star:tcp:--same_host=socket", "ring:tcp:--same_host=gpu_memory", "nccl:tcp"):
            self.assertRegex(summary, r"(?m)^logreg +%s +[\d.]+ +[\d.]+ +[\d.]+ " % cell)

    def test_a_row_that_is_refused_is_skipped_and_one_that_fails_is_told(self):
        os.unlink(os.path.join(self.folder, "bench/gpu_steps.py"))
        done = self.run_script("--exchange", "--short", "--only=nccl,bf16",
                               LD_LIBRARY_PATH=os.path.abspath("tests/nccl_stub"), NCCL_STUB_VERSION="2803")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(self.lines(done), {"nccl": "SKIPPED", "bf16": "FAILED"}, done.stdout)
        self.assertRegex(done.stdout, "SKIPPED  nccl .*NCCL 2.8.3 is found, 2.14.0 or newer is expected")

    def test_the_limits_are_eight_minutes(self):
        with open(FILES["tests/gpu_checks.sh"], encoding="utf-8") as file:
            rows = file.read().partition("exchange_checks() {")[2].partition("\n}")[0]
        limits = [int(line.split()[2]) for line in rows.splitlines() if line.strip().startswith("check")]
        self.assertEqual((len(limits), sum(limits)), (len(ROWS), 480))

    def test_its_rows_are_those_of_the_exchange(self):
        done = self.run_script("--exchange", "--only=device_suite")
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no check device_suite, only: " + " ".join(ROWS), done.stderr)


if __name__ == "__main__":
    unittest.main()
