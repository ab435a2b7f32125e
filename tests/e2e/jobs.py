"""Starts real jobs of real binaries, for the tests of this folder.

Every wait has a deadline; what a test started is gone when it ends, whatever happened.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

# The programs of a bundle, if starring/tests/gpu_checks.sh named its folder; else those that Bazel built.
BUNDLE_BIN = os.environ.get("STARRING_BIN")
LAUNCH = os.path.join(BUNDLE_BIN, "launch") if BUNDLE_BIN else os.path.abspath("deploy/launch")
WORKER = os.path.join(BUNDLE_BIN, "worker") if BUNDLE_BIN else os.path.abspath("worker/worker")
SERVER = os.path.join(BUNDLE_BIN, "server") if BUNDLE_BIN else os.path.abspath("server/server")

# Sanitized binaries are several times slower, and four of them share two cores.
JOB_SECONDS_MAX = 300

# A job of a few steps: 200 samples in batches of 33 leave a last batch of 2, which some ranks have no sample of.
SMALL_JOB = ["--dataset=synthetic", "--synthetic_train_count=200", "--synthetic_test_count=50", "--global_batch=33",
             "--epochs=2", "--progress=plain", "--share_gpus"]


class Finished:
    """A process that has ended: exit code, and standard output and error as one text."""

    def __init__(self, returncode, output, seconds):
        self.returncode = returncode
        self.output = output
        self.seconds = seconds


class JobTest(unittest.TestCase):
    """A folder of its own for each test, processes that cannot outlive it, and records."""

    maxDiff = None

    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.processes = []
        self.addCleanup(self.end_processes)

    def end_processes(self):
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=30)

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, command, **kwargs):
        """Starts a process in a process group of its own; its output goes to a file that `finish` reads."""
        output = open(self.path("output.%d" % len(self.processes)), "w+b")
        self.addCleanup(output.close)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   start_new_session=True, **kwargs)
        process.output_file = output
        process.started = time.monotonic()
        self.processes.append(process)
        return process

    def output_of(self, process):
        with open(process.output_file.name, "rb") as file:
            return file.read().decode(errors="replace")

    def finish(self, process, deadline_s=JOB_SECONDS_MAX):
        try:
            process.wait(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            self.fail("no end after %d s:\n%s" % (deadline_s, self.output_of(process)))
        return Finished(process.returncode, self.output_of(process), time.monotonic() - process.started)

    def wait_for_output(self, process, text, deadline_s=JOB_SECONDS_MAX):
        """Waits until the process has printed `text`; fails if it ends before."""
        end = time.monotonic() + deadline_s
        while text not in self.output_of(process):
            if process.poll() is not None or time.monotonic() > end:
                self.fail("%r was not printed:\n%s" % (text, self.output_of(process)))
            time.sleep(0.02)  # polls a file: there is nothing to be woken by

    def run_to_end(self, command, deadline_s=JOB_SECONDS_MAX, **kwargs):
        return self.finish(self.start(command, **kwargs), deadline_s)

    def start_server(self, *flags):
        """A server of a star of one shard, and its address."""
        port_file = self.path("port.%d" % len(self.processes))
        process = self.start(
            [SERVER, "--listen=127.0.0.1:0", "--shard=0", "--shard_count=1", "--port_file=" + port_file, *flags])
        end = time.monotonic() + 60
        while not os.path.exists(port_file):  # appears whole, by a rename
            if process.poll() is not None or time.monotonic() > end:
                self.fail("the server does not listen:\n" + self.output_of(process))
            time.sleep(0.02)  # polls a file: there is nothing to be woken by
        with open(port_file) as file:
            return process, "127.0.0.1:" + file.read().strip().rpartition(":")[2]

    def job_command(self, sync, workers=1, servers=1, flags=(), launch_flags=()):
        command = [LAUNCH, "--sync=" + sync, "--workers=%d" % workers, *launch_flags]
        if sync == "star":
            command.append("--servers=%d" % servers)
        # The machine may have one GPU.
        share = [] if "--share_gpus" in flags or "--noshare_gpus" in flags else ["--share_gpus"]
        return command + ["--", *share, *flags]

    def train(self, sync, workers=1, servers=1, flags=(), launch_flags=()):
        """Runs a job to its end, which must be a good one, and returns its run record."""
        record = self.path("record.%d.json" % len(self.processes))
        done = self.run_to_end(
            self.job_command(sync, workers, servers, [*flags, "--record=" + record], launch_flags))
        self.assertEqual(done.returncode, 0, done.output)
        with open(record) as file:
            return json.load(file)

    def digest(self, *args, **kwargs):
        return self.train(*args, **kwargs)["parameter_sha256"]

    def assert_nothing_runs(self):
        """No worker or server of this test's folder is left."""
        left = subprocess.run(["pgrep", "-af", self.folder], capture_output=True, text=True, check=False).stdout
        left = [line for line in left.splitlines() if "pgrep" not in line]
        self.assertEqual(left, [])
