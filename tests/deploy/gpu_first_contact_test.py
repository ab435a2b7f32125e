"""Tests deploy/bundle/gpu_first_contact.sh with emulated GPUs, in a folder that is laid out as a bundle."""

import os
import signal
import subprocess
import tempfile
import time
import unittest

from bench import gpu_exchange

SCRIPT = os.path.abspath("deploy/bundle/gpu_first_contact.sh")
TINY = ["--models=logreg:3", "--batch=16", "--train_count=32", "--overlap_s=0", "--repeats=1"]

# In place of bench/gpu_wait_spike, which needs a GPU.
SPIKE = """#!/bin/sh
[ "$SPIKE_ENDS_WITH" != 2 ] || { echo "no GPU: the test wants none" >&2; exit 2; }
if [ "${CUDA_MPS_PIPE_DIRECTORY:-}" = /nonexistent ]; then
  echo "VERDICT  MPS: all rows are without MPS"
else
  echo "VERDICT  MPS: all rows are with MPS"
fi
exit "$SPIKE_ENDS_WITH"
"""


class GpuFirstContactTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="a folder with spaces ")
        self.addCleanup(folder.cleanup)
        self.out = os.path.join(folder.name, "out")
        self.script = self.place(folder.name, "tests/gpu_first_contact.sh", SCRIPT)
        for place, file in (("bench/gpu_exchange.py", "bench/gpu_exchange.py"), ("bin/launch", "deploy/launch"),
                            ("bin/worker", "tests/cuda_emulation/worker_emulated")):
            self.place(folder.name, place, os.path.abspath(file))
        with open(os.path.join(folder.name, "bench/gpu_wait_spike"), "w", encoding="utf-8") as file:
            file.write(SPIKE)
            os.fchmod(file.fileno(), 0o755)

    def place(self, folder, name, target):
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)
        return path

    def run_script(self, *arguments, spike=0):
        return subprocess.run([self.script, *arguments], capture_output=True, text=True, check=False, timeout=200,
                              env={**os.environ, "SPIKE_ENDS_WITH": str(spike)})

    def read(self, name):
        with open(os.path.join(self.out, name), encoding="utf-8") as file:
            return file.read()

    def test_every_cell_runs_and_has_one_digest(self):
        done = self.run_script(self.out, *TINY)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout, self.read("summary.txt"))
        self.assertIn("ALL PARTS RAN", done.stdout)
        lines = [line.split() for line in done.stdout.splitlines() if line.startswith("logreg ")]
        digests = {line[1]: line[-1] for line in lines}
        self.assertEqual(len({digests[cell] for cell in gpu_exchange.CELLS}), 1, done.stdout)
        # It asks again without MPS, because the stand-in says that MPS runs.
        self.assertIn("with MPS", self.read("gpu_wait_spike.txt"))
        self.assertIn("without MPS", self.read("gpu_wait_spike_without_mps.txt"))

    def test_a_part_that_fails_is_in_the_summary(self):
        done = self.run_script(self.out, "--seconds=1", *TINY, "ring:tcp", "--worker=/nonexistent/worker", spike=1)
        self.assertEqual(done.returncode, 1, done.stderr)
        failed = done.stdout.partition("A PART FAILED:\n")[2]
        self.assertIn("exit status 1\n", failed)  # the spike's
        self.assertIn("NOTHING WAS MEASURED: logreg does not train: ", failed)
        self.assertNotIn("ALL PARTS RAN", done.stdout)

    def test_when_it_is_stopped_there_is_a_summary(self):
        command = ["timeout", "300", self.script, self.out, *TINY, "--repeats=1000", "ring:tcp"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "SPIKE_ENDS_WITH": "0"},
                              start_new_session=True) as late:
            self.addCleanup(lambda: late.poll() is None and os.killpg(late.pid, signal.SIGKILL))
            end = time.monotonic() + 60
            while " ring:tcp " not in self.log():
                self.assertLess(time.monotonic(), end)
                time.sleep(0.05)
            late.terminate()
            output = late.communicate(timeout=60)[0]
        self.assertEqual(late.returncode, 1)
        self.assertRegex(output, r"(?m)^logreg +ring:tcp +\d+\.\d+ ")
        self.assertIn("STOPPED by SIGTERM", output)
        self.assertEqual(output, self.read("summary.txt"))

    def log(self):
        path = os.path.join(self.out, "gpu_exchange_log.txt")
        return self.read(path) if os.path.exists(path) else ""

    def test_without_a_gpu_nothing_is_measured(self):
        done = self.run_script(self.out, spike=2)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("NO GPU CAN BE USED HERE, NOTHING WAS MEASURED:\nno GPU: the test wants none", done.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.out, "summary.txt")))

    def test_arguments_are_refused(self):
        for arguments in ([], ["--seconds=9"], [self.out, "--seconds=ten"], [self.out, "--spike_seconds="]):
            done = self.run_script(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn("usage: gpu_first_contact.sh FOLDER", done.stderr)


if __name__ == "__main__":
    unittest.main()
