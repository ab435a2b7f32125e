"""Tests gpu_checks.sh --exchange with emulated GPUs, in a folder that is laid out as a bundle."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
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
ROWS = ("nccl", "faults", "cuda_aware_mpi", "bf16", "first_contact")


def processes():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def of_session(leader):
    found = []
    for process in processes():
        try:
            session = os.getsid(process)
        except ProcessLookupError:
            continue
        if session == leader:
            found.append(process)
    return found


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
        self.assertIn("each cell has 1 pair with the control", done.stdout)
        with open(os.path.join(self.out, "first_contact/summary.txt"), encoding="utf-8") as file:
            self.assertIn("ALL PARTS RAN", file.read())
        with open(os.path.join(self.out, "first_contact/gpu_exchange.json"), encoding="utf-8") as file:
            jobs = {job["job"]: job["samples"] for job in json.load(file)["jobs"]}
        # The GPU's own clock has seen each cell, and NCCL's is among them.
        for cell in ("star:tcp:--same_host=socket", "ring:tcp:--same_host=gpu_memory", "nccl:tcp"):
            self.assertGreater(jobs[cell][0]["gpu_ms"], 0, cell)
        self.assertIsNone(jobs["control"][0]["gpu_ms"])

    def test_a_row_that_is_refused_is_skipped_and_one_that_fails_is_told(self):
        os.unlink(os.path.join(self.folder, "bench/gpu_steps.py"))
        done = self.run_script("--exchange", "--short", "--only=nccl,bf16",
                               LD_LIBRARY_PATH=os.path.abspath("tests/nccl_stub"), NCCL_STUB_VERSION="2803")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(self.lines(done), {"nccl": "SKIPPED", "bf16": "FAILED"}, done.stdout)
        self.assertRegex(done.stdout, "SKIPPED  nccl .*NCCL 2.8.3 is found, 2.14.0 or newer is expected")

    def test_without_python_its_rows_are_skipped(self):
        tools = os.path.join(self.folder, "tools")
        os.mkdir(tools)
        for tool in ("sh", "cat", "date", "dirname", "env", "grep", "head", "mkdir", "sed", "tee", "timeout", "tr"):
            os.symlink(shutil.which(tool), os.path.join(tools, tool))
        done = self.run_script("--exchange", "--short", "--only=faults,bf16,first_contact", PATH=tools)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.lines(done), {row: "SKIPPED" for row in ("faults", "bf16", "first_contact")}, done.stdout)
        self.assertIn("first_contact is without the cell nccl:tcp, which needs --only=nccl,first_contact", done.stdout)

    def test_a_row_that_is_out_of_time_leaves_no_job(self):
        env = {**os.environ, "STARRING_BIN": os.path.join(self.folder, "bin"), "PYTHONPATH": self.folder}
        row = "tests.e2e.cuda_test.CudaTest.test_a_rank_that_is_stopped_is_named"
        with subprocess.Popen([sys.executable, "-m", "unittest", row], env=env, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as late:
            launch, = self.await_processes(lambda found: len(found) == 1, self.launches)
            self.await_processes(lambda found: len(found) == 3, lambda: of_session(launch))  # it and two ranks
            late.send_signal(signal.SIGTERM)
            self.assertEqual(late.wait(timeout=40), 128 + signal.SIGTERM)
        self.await_processes(lambda found: not found, lambda: of_session(launch))

    def launches(self):
        """The processes of the bundle's launch."""
        found = []
        for process in processes():
            try:
                with open(f"/proc/{process}/cmdline", encoding="utf-8", errors="replace") as file:
                    program = file.read().partition("\0")[0]
            except OSError:
                continue  # it has ended
            if program == os.path.join(self.folder, "bin/launch"):
                found.append(process)
        return found

    def await_processes(self, enough, find):
        end = time.monotonic() + 40
        while not enough(found := find()):
            self.assertLess(time.monotonic(), end, found)
            time.sleep(0.05)
        return found

    def test_the_limits_are_eight_minutes(self):
        with open(FILES["tests/gpu_checks.sh"], encoding="utf-8") as file:
            text = file.read()
        body = text.partition("\nexchange_checks() {")[2].partition("\n}")[0]
        rows = [words for words in map(str.split, body.splitlines()) if words and words[0].startswith("check_")]
        self.assertEqual([words[1] for words in rows], list(ROWS[:-1]))  # first_contact has the rest
        grace, = re.findall(r"(?m)^grace_s=(\d+)", text)
        first_run, = re.findall(r"(?m)^    first_run_s=(\d+)", text)
        calls = re.findall(r"timeout -s KILL (\d+)", text)
        self.assertEqual((len(calls), text.count('"$torch_python" -c')), (2, 2))
        self.assertEqual(text.count('timeout -k "$grace_s"'), 2)
        others = int(first_run) + sum(map(int, calls)) + sum(int(words[2]) for words in rows)
        rest = 480 - others - (len(rows) + 2) * int(grace)
        self.assertIn("left_s=$((480 - grace_s - ($(date +%s) - started)))", text)
        self.assertGreaterEqual(rest, 215)

    def test_its_rows_are_those_of_the_exchange(self):
        done = self.run_script("--exchange", "--only=device_suite")
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no check device_suite, only: " + " ".join(ROWS), done.stderr)


if __name__ == "__main__":
    unittest.main()
