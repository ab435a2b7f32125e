"""deploy/launch --elastic: what dies is started again, others join and leave, and a stop saves."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import unittest

from tests.e2e.jobs import LAUNCH, JobTest, Process, WORKER, with_flags

JOB = ["--dataset=synthetic", "--synthetic_train_count=2000", "--synthetic_test_count=100", "--global_batch=64",
       "--seed=1", "--micro_batches=8", "--device=cpu", "--model=lenet5"]


class ElasticLaunchTest(JobTest):

    epochs = 50  # a fast machine takes 50 ms for one

    def job(self) -> list[str]:
        return [*JOB, "--epochs=%d" % self.epochs]

    def launch(self, *launch_flags: str, flags: tuple[str, ...] = ()) -> Process:
        secret = self.path("secret")
        if not os.path.exists(secret):
            self.assertEqual(self.run_to_end([LAUNCH, "--make_secret=" + secret]).returncode, 0)
        job = with_flags([*self.job(), "--progress=plain", "--checkpoint_dir=none", "--record=" + self.path("record")],
                         *flags)
        return self.start([LAUNCH, *launch_flags, "--job_secret=" + secret, "--", *job])

    def start_job(self, workers: int, servers: int, *launch_flags: str, flags: tuple[str, ...] = ()) -> Process:
        return self.launch("--elastic", "--workers=%d" % workers, "--servers=%d" % servers, *launch_flags, flags=flags)

    def coordinator_of(self, job: Process) -> str:
        self.wait_for_output(job, "the coordinator listens at")
        found = re.search(r"the coordinator listens at (\S+)", self.output_of(job))
        assert found is not None
        return found[1]

    def pid_of(self, job: Process, words: str) -> int:
        """The newest child of the launcher whose command line has `words`."""
        listed = subprocess.run(["pgrep", "-P", str(job.pid), "-f", "--newest", "--", words], capture_output=True,
                                text=True, check=False).stdout
        self.assertTrue(listed, self.output_of(job))
        return int(listed)

    def await_generations(self, job: Process, count: int, text: str = "") -> None:
        """Waits until the coordinators have said so often that one begins, the last one with `text`."""
        end = time.monotonic() + 60
        while True:
            lines = [line for line in self.output_of(job).splitlines() if re.search(r"generation \d+ from", line)]
            if len(lines) >= count and text in lines[-1]:
                return
            if job.poll() is not None or time.monotonic() > end:
                self.fail(self.output_of(job))
            time.sleep(0.02)  # a file has no event to wait for

    def await_snapshot(self, job: Process) -> None:
        address = self.coordinator_of(job)
        end = time.monotonic() + 60
        while not re.search(r"snapshots of steps \d", self.status(address)):
            self.assertLess(time.monotonic(), end, self.output_of(job))

    def status(self, address: str) -> str:
        done = self.run_to_end([LAUNCH, "--status=" + address, "--job_secret=" + self.path("secret")])
        return done.output if done.returncode == 0 else ""

    def expect_local_digest(self, job: Process) -> None:
        done = self.finish(job)
        self.assertEqual(done.returncode, 0, done.output)
        with open(self.path("record")) as file:
            found = json.load(file)["parameter_sha256"]
        local = self.run_to_end([WORKER, *self.job(), "--progress=none", "--record=" + self.path("local")])
        self.assertEqual(local.returncode, 0, local.output)
        with open(self.path("local")) as file:
            self.assertEqual(found, json.load(file)["parameter_sha256"], done.output)

    def test_a_port_that_is_taken_for_a_moment_ends_no_run(self):
        job = self.start_job(2, 1, "--restart_processes=2")
        host, _, port = self.coordinator_of(job).rpartition(":")
        self.await_snapshot(job)
        os.kill(self.pid_of(job, "--shard=0"), signal.SIGKILL)
        end = time.monotonic() + 10
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            while True:  # the port is free as soon as the server is gone
                try:
                    thief.bind((host, int(port)))
                    thief.listen()
                    break
                except OSError:
                    self.assertLess(time.monotonic(), end)
            self.wait_for_output(job, "another program has 127.0.0.1:%s: waiting for it, 60 s at most" % port)
        self.expect_local_digest(job)

    def test_what_dies_is_started_again(self):
        job = self.start_job(2, 2, "--restart_processes=3")
        for generations, words in enumerate(("--rank=1", "--shard=1", "--shard=0"), start=1):
            self.await_generations(job, generations)
            self.await_snapshot(job)
            os.kill(self.pid_of(job, words), signal.SIGKILL)
            self.wait_for_output(job, "starting it again, %d of 3" % generations)
        self.await_generations(job, 4)
        self.expect_local_digest(job)

    def test_a_server_that_does_not_answer_is_started_again(self):
        job = self.start_job(2, 2, "--restart_processes=3")
        self.await_snapshot(job)
        os.kill(self.pid_of(job, "--shard=1"), signal.SIGSTOP)
        self.wait_for_output(job, "s1 runs and does not answer: ending it")
        self.await_generations(job, 2)
        self.expect_local_digest(job)

    def test_workers_join_and_leave(self):
        job = self.start_job(1, 1)
        address = self.coordinator_of(job)
        self.await_generations(job, 1, "with 1 worker")
        joiner = self.launch("--join=" + address, "--workers=2")
        self.await_generations(job, 2, "with 3 workers")
        status = self.status(address)
        for words in ("rank 2, micro-batches", "shard 0 of 1", "of %d" % (32 * self.epochs)):
            self.assertIn(words, status)
        joiner.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(joiner).returncode, 0, self.output_of(joiner))
        self.await_generations(job, 3, "with 1 worker")
        self.expect_local_digest(job)

    def test_others_go_on_when_all_of_ones_own_have_left(self):
        self.epochs = 90  # longer than servers have to end
        job = self.start_job(1, 2)
        address = self.coordinator_of(job)
        self.await_generations(job, 1)
        joiner = self.launch("--join=" + address, "--workers=1")
        self.await_generations(job, 2, "with 2 workers")
        os.kill(self.pid_of(job, "--rank=0"), signal.SIGTERM)
        self.await_generations(job, 3, "with 1 worker")
        self.assertEqual(self.finish(joiner).returncode, 0, self.output_of(joiner))
        self.expect_local_digest(job)

    def test_a_stop_saves_and_another_job_goes_on(self):
        self.epochs = 120  # longer than the next snapshot takes
        checkpoints = ("--checkpoint_dir=" + self.path("checkpoints"),)
        job = self.start_job(2, 2, flags=checkpoints)
        self.await_snapshot(job)
        job.send_signal(signal.SIGTERM)
        stopped = self.finish(job)
        self.assertEqual(stopped.returncode, 0, stopped.output)
        self.assertIn("asked to end the run", stopped.output)
        self.assertIn("saved in", stopped.output)
        self.expect_local_digest(self.start_job(3, 1, flags=(*checkpoints, "--resume")))

    def test_a_gradient_that_explodes_ends_the_run_once(self):
        state = "--state_dir=" + self.path("state")
        done = self.finish(self.start_job(2, 2, "--restart_processes=3", state, flags=("--learning_rate=1e30",)))
        self.assertEqual(done.returncode, 1, done.output)
        self.assertRegex(done.output, r"step \d+: the gradient of tensor \w+\.\w+ is -?(nan|inf)")
        self.assertIn("launch: s0 failed with exit code 1", done.output)
        self.assertIn("to go on with this run, start it again with " + state, done.output)
        self.assertNotIn("starting it again", done.output)

    def test_a_run_whose_launcher_was_killed_goes_on(self):
        self.epochs = 90  # longer than the first snapshot takes
        state = "--state_dir=" + self.path("state")
        job = self.start_job(2, 2, state)
        self.await_snapshot(job)
        job.kill()
        job.wait()
        again = self.start_job(2, 2, state)
        self.wait_for_output(again, "launch: going on with the run of " + state)
        self.expect_local_digest(again)
        self.assertIn("generation 1 from step", self.output_of(job))
        self.assertNotIn("generation 1 from step", self.output_of(again))

    def test_nobody_answers(self):
        done = self.run_to_end([LAUNCH, "--status=127.0.0.1:9"])
        self.assertEqual(done.returncode, 3, done.output)
        self.assertIn("127.0.0.1:9", done.output)
        self.assertIn("its secret as --job_secret", done.output)
        joiner = self.finish(self.launch("--join=127.0.0.1:9", "--workers=1", flags=("--join_deadline_s=1",)))
        self.assertEqual(joiner.returncode, 3, joiner.output)
        self.assertRegex(joiner.output, r"error: the coordinator 127\.0\.0\.1:9 cannot be reached within 1s: .*: start "
                         r"the elastic run, or give the address that it has printed, as --coordinator \(launch: ")


if __name__ == "__main__":
    unittest.main()
