"""Tests jobs whose gradients NCCL adds, on emulated GPUs and with a stub in its place."""

import os
import signal
import time
import unittest

from tests.e2e import cuda_jobs, jobs

WORKER = os.path.abspath("tests/cuda_emulation/worker_emulated")
LAUNCH_FLAGS = ["--worker_binary=" + WORKER]
STUB = os.path.abspath("tests/nccl_stub")
# The emulated machine has two GPUs.
THREE = {"NCCL_STUB_VERSION": "23000", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}


class NcclJobsTest(jobs.JobTest):
    def setUp(self):
        super().setUp()
        self.flags = [*cuda_jobs.deep(self.path("deep.textproto")), "--epochs=1", "--device=cuda"]
        self.set(LD_LIBRARY_PATH=STUB)

    def set(self, **variables):
        """Sets variables until the end of the test."""
        for name, value in variables.items():
            before = os.environ.get(name)
            os.environ[name] = value
            self.addCleanup(os.environ.pop, name, None)
            if before is not None:
                self.addCleanup(os.environ.__setitem__, name, before)

    def run_on_gpus(self, sync, workers, *flags):
        return self.train(sync, workers, flags=jobs.with_flags(self.flags, *flags), launch_flags=LAUNCH_FLAGS)

    def assert_refused(self, text, *command):
        done = self.run_to_end(command)
        self.assertEqual(done.returncode, 2, done.output)
        self.assertRegex(done.output, text)
        self.assertNotIn("epoch", done.output)

    def job(self, sync, workers, *flags):
        return self.job_command(sync, workers, flags=jobs.with_flags(self.flags, *flags), launch_flags=LAUNCH_FLAGS)

    def test_two_ranks_end_with_the_digest_of_all_others(self):
        digest = self.run_on_gpus("mpi", 2)["parameter_sha256"]
        self.assertEqual(self.run_on_gpus("ring", 2)["parameter_sha256"], digest)
        for sync, more in (("nccl/mpi", []), ("nccl/tcp", ["--nocuda_graph"])):
            record = self.run_on_gpus(sync, 2, *more)
            self.assertEqual(record["parameter_sha256"], digest, sync)
            self.assertEqual((record["config"]["sync"], record["config"]["deterministic"]), ("nccl", False))
            self.assertEqual(record["exchange"]["gpu_transfer"], "nccl")
            self.assertGreater(record["gpu_exposed_exchange_ms"]["p50"], 0)
            self.assertEqual(record["host"]["versions"]["nccl"], "2.27.5")

    def test_two_ranks_in_bf16(self):
        ring, nccl = (self.run_on_gpus(sync, 2, "--math=bf16") for sync in ("ring", "nccl/tcp"))
        self.assertEqual(nccl["config"]["math"], "bf16")
        self.assertEqual(nccl["parameter_sha256"], ring["parameter_sha256"])

    def test_streams_that_work_by_themselves_change_nothing(self):
        digest = self.run_on_gpus("nccl/tcp", 2)["parameter_sha256"]
        for streams in ("late", "async:3"):
            self.set(EMULATED_GPU_STREAMS=streams)
            self.assertEqual(self.run_on_gpus("nccl/tcp", 2)["parameter_sha256"], digest, streams)

    def test_three_ranks_learn_as_with_mpi(self):
        self.set(**THREE)
        flags = ["--record_losses", "--learning_rate=0.01"]
        mpi = self.run_on_gpus("mpi", 3, *flags)
        for sync in ("nccl/mpi", "nccl/tcp"):
            nccl = self.run_on_gpus(sync, 3, *flags)
            self.assertEqual(len(nccl["losses"]), len(mpi["losses"]))
            for one, other in zip(nccl["losses"], mpi["losses"]):
                self.assertAlmostEqual(one["loss"], other["loss"], delta=1e-5 * other["loss"], msg=one)
        self.assertEqual(self.run_on_gpus("nccl/tcp", 3, *flags)["parameter_sha256"], nccl["parameter_sha256"])

    def test_a_rank_that_dies_is_named_before_the_deadline(self):
        running = self.start(self.job("nccl/tcp", 2, "--epochs=1000"))
        self.wait_for_output(running, "epoch 1/1000")
        begin = time.monotonic()
        os.kill(jobs.children_of(running.pid, "--rank=1")[0], signal.SIGKILL)
        done = self.finish(running, deadline_s=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.output, "worker 0: error: .*rank 1")
        self.assertLess(time.monotonic() - begin, 20)

    def test_a_rank_that_stops_is_named_at_the_deadline(self):
        running = self.start(self.job("nccl/tcp", 2, "--epochs=1000", "--exchange_deadline_s=3"))
        self.wait_for_output(running, "epoch 1/1000")
        os.kill(jobs.children_of(running.pid, "--rank=1")[0], signal.SIGSTOP)
        done = self.finish(running, deadline_s=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.output, "worker 0: error: step .* did not come within 3s .*rank 1 does not answer")

    def test_evaluates_without_nccl(self):
        folder = self.path("saved")
        self.run_on_gpus("nccl/tcp", 2, "--checkpoint_dir=" + folder)
        self.set(NCCL_STUB_VERSION="2803")  # would be refused
        done = self.run_to_end([jobs.LAUNCH, "--sync=nccl", "--transport=tcp", "--workers=1", *LAUNCH_FLAGS, "--",
                                *cuda_jobs.DATA[:3], "--device=cuda", "--evaluate=" + folder])
        self.assertEqual(done.returncode, 0, done.output)
        self.assertIn("of 20 samples", done.output)

    def test_what_it_needs_is_refused_with_the_way_out(self):
        one_gpu = "ranks 0 and 2 compute on one GPU, and NCCL 2.27.5 refuses that: give each rank a GPU, or set " \
                  "NCCL_MULTI_RANK_GPU_ENABLE=1 for all of them with NCCL 2.30.0 or newer"
        self.assert_refused("--sync=nccl: " + one_gpu, *self.job("nccl/tcp", 3))
        self.assert_refused("NCCL 2.8.3 is found, 2.14.0 or newer is expected: install NCCL", "env",
                            "NCCL_STUB_VERSION=2803", *self.job("nccl/tcp", 2))

    def test_a_check_opens_nccl(self):
        check = [jobs.LAUNCH, "--check", "--sync=nccl", "--transport=tcp", "--workers=2", *LAUNCH_FLAGS]
        done = self.run_to_end(check)
        self.assertEqual(done.returncode, 0, done.output)
        self.assertRegex(done.output, "NCCL 2.27.5")
        done = self.run_to_end(["env", "NCCL_STUB_VERSION=2803", *check])
        self.assertEqual(done.returncode, 2, done.output)
        self.assertIn("not ready: --sync=nccl: w0, w1: NCCL 2.8.3 is found, 2.14.0 or newer is expected: install NCCL "
                      "on every host", " ".join(done.output.split()))

    def test_flags_that_do_not_fit_are_refused_by_name(self):
        alone = [WORKER, "--sync=nccl", *cuda_jobs.DATA, "--model=logreg"]
        for more, text in ((["--device=cpu"], "NCCL adds in the memory of GPUs: drop --device=cpu, or give --sync=mpi"),
                           (["--servers=127.0.0.1:7000"], "--sync=nccl has no servers"),
                           (["--elastic", "--coordinator=127.0.0.1:7000"], "--sync=nccl has a fixed set of ranks"),
                           (["--micro_batches=4"], "--sync=nccl leaves the order to NCCL: give --sync=star"),
                           (["--bucket_bytes=auto"], "a captured step keeps to its buckets: give a number"),
                           (["--clip_norm=1"], "the sums stay on the GPUs.*: give --sync=ring, or a star"),
                           (["--same_host=gpu_memory"], "--sync=nccl does not go through it: drop it"),
                           (["--transport=grpc"], "choose mpi or tcp")):
            self.assert_refused(text, *alone, *more)
        self.assert_refused('flag --sync cannot be "nccl": ', "env", "CUDA_VISIBLE_DEVICES=", jobs.WORKER,
                            "--sync=nccl", *cuda_jobs.DATA, "--model=logreg")


if __name__ == "__main__":
    unittest.main()
