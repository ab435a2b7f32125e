"""Tests starring.torch with libstarring.so and models on a GPU, where there is one. All ranks share it."""

import importlib.util
import sys
import unittest

if importlib.util.find_spec("torch") is None:
    print("SKIPPED: this python3 has no torch, so nothing of starring.torch was tested", file=sys.stderr)
    sys.exit(0)

import torch
import torch_cases


@unittest.skipUnless(torch.cuda.is_available(), "no GPU")
class TorchGpuTest(torch_cases.ModeCases, torch_cases.BitsCases, torch_cases.FaultCases):
    library = ["--cuda"]

    def test_modes(self) -> None:
        self.assert_modes(2)

    def test_gpu_memory(self) -> None:
        self.assert_gpu_memory(2, "gpu_memory", "")

    def test_one_digest_with_2_processes(self) -> None:
        self.assert_star_has_one_digest(2)

    def test_one_digest_with_3_processes(self) -> None:
        self.assert_star_has_one_digest(3)

    def test_a_killed_rank(self) -> None:
        self.assert_killed(2)

    def test_an_exception_in_backward(self) -> None:
        self.assert_raising(2)


if __name__ == "__main__":
    unittest.main()
