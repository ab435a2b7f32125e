"""Tests starring.torch with same_host="gpu_memory" in processes without a GPU, over the emulated driver."""

import importlib.util
import os
import sys
import unittest

if importlib.util.find_spec("torch") is None:
    print("SKIPPED: this python3 has no torch, so nothing of starring.torch was tested", file=sys.stderr)
    sys.exit(0)

import ranks
import torch_cases

HERE = os.path.dirname(os.path.abspath(__file__))
JOB = os.path.join(HERE, "torch_gpu_job.py")
DRIVER = os.path.abspath("tests/cuda_emulation/driver/libcuda.so.1")


class TorchGpuMemoryTest(torch_cases.FaultCases):
    def job(self, world_size, *cases, environment=None):
        more = {"LD_LIBRARY_PATH": os.path.dirname(DRIVER),
                "PYTHONPATH": os.pathsep.join([HERE, ranks.HERE, ranks.PACKAGE]), **(environment or {})}
        started = ranks.Ranks(world_size, [JOB, *cases], more)
        self.addCleanup(started.__exit__)
        return started

    def test_a_killed_rank_is_named_and_the_next_job_runs(self):
        self.assert_killed(3)
        for one in self.job(3, "accumulated").wait():
            self.assertEqual(one.status, 0, one.errors)
            self.assertEqual(one.said["accumulated"][0], one.said["accumulated"][1])

    def test_an_exception_in_backward(self):
        self.assert_raising(2)


if __name__ == "__main__":
    unittest.main()
