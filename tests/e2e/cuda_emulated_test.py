"""The worker on emulated GPUs: what can be shown without one. tests/cuda_emulation says what cannot."""

import os
import unittest

from tests.e2e import cuda_jobs
from tests.e2e.jobs import WORKER


class CudaEmulatedTest(cuda_jobs.CudaJobs):

    worker = os.path.abspath("tests/cuda_emulation/worker_emulated")

    def test_workers_share_the_gpus(self):
        done = self.run_to_end(
            self.job_command("ring", 3, flags=["--device=cuda", *cuda_jobs.DATA, "--model=logreg", "--epochs=1"],
                             launch_flags=["--worker_binary=" + self.worker]))
        self.assertEqual(done.returncode, 0, done.output)
        self.assertIn("note: 3 workers share 2 GPUs of this machine", done.output)

    def test_auto_is_silent_where_there_is_no_gpu(self):
        done = self.run_to_end([WORKER, *cuda_jobs.DATA, "--model=logreg", "--epochs=1"])
        self.assertEqual(done.returncode, 0, done.output)
        if "on cuda" not in done.output:
            self.assertNotIn("CUDA", done.output)
            self.assertNotIn("GPU", done.output)


if __name__ == "__main__":
    unittest.main()
