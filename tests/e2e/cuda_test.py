"""Tests the worker on real GPUs. Without a GPU, one test says why all are skipped."""

import subprocess
import unittest

from tests.e2e import cuda_jobs
from tests.e2e.jobs import JobTest, WORKER


def why_no_gpu():
    """The worker's message about --device=cuda; None if it trains."""
    done = subprocess.run([WORKER, "--device=cuda", *cuda_jobs.DATA, "--model=logreg", "--epochs=1"],
                          capture_output=True, text=True, check=False, timeout=300)
    return None if done.returncode == 0 else (done.returncode, done.stderr)


REASON = why_no_gpu()


class CudaIsThereTest(JobTest):

    def test_on_a_real_gpu(self):
        if REASON is None:
            return
        # The worker must refuse before training, with the reason.
        returncode, text = REASON
        self.assertEqual(returncode, 2, text)
        self.assertIn('flag --device cannot be "cuda": ', text)
        self.skipTest("NO STEP RAN ON A REAL GPU: " + text)


if REASON is None:

    class CudaTest(cuda_jobs.CudaJobs):

        worker = WORKER
        epochs = 17  # of three steps: the first 50 losses

        def test_own_convolutions_train_as_cudnns(self):
            flags = [*self.everything(), "--record_losses"]
            # In tf32 --conv=auto takes cuDNN where it is found.
            if self.cuda("local", flags=[*flags, "--math=tf32"])["config"]["conv"] != "cudnn":
                self.skipTest("NO cuDNN WAS FOUND: no convolution ran by it")
            by_cudnn = self.cuda("local", flags=[*flags, "--conv=cudnn"])
            own = self.cuda("local", flags=flags)
            self.assertEqual(own["config"]["conv"], "own")
            self.assert_near(by_cudnn, own)
            self.assertEqual(self.cuda("local", flags=[*flags, "--conv=own", "--nocuda_graph"])["parameter_sha256"],
                             own["parameter_sha256"])

        def test_bf16_has_one_digest_in_every_cell(self):
            if self.cuda("local", flags=[*self.everything(), "--math=tf32"])["config"]["conv"] != "cudnn":
                self.skipTest("NO cuDNN WAS FOUND: it computes all convolutions in bf16")
            self.check_bf16()

        def test_math_changes_the_bits_and_little_else(self):
            flags = [*cuda_jobs.MLP, "--epochs=3"]
            exact = self.cuda("local", flags=flags)
            for math in ("tf32", "bf16"):
                coarse = self.cuda("local", flags=[*flags, "--math=" + math])
                self.assertEqual(coarse["config"]["math"], math)
                self.assertNotEqual(coarse["parameter_sha256"], exact["parameter_sha256"])
                self.assertAlmostEqual(coarse["epochs"][-1]["train_loss"], exact["epochs"][-1]["train_loss"], delta=0.1)


if __name__ == "__main__":
    unittest.main()
