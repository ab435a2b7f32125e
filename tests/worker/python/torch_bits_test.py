"""Tests starring.torch with libstarring.so: every way to use DDP, and bits that no setting changes."""

import importlib.util
import sys
import unittest

if importlib.util.find_spec("torch") is None:
    print("SKIPPED: this python3 has no torch, so nothing of starring.torch was tested", file=sys.stderr)
    sys.exit(0)

import torch_cases


class TorchBitsTest(torch_cases.ModeCases, torch_cases.RefusalCases, torch_cases.BitsCases):
    def test_modes(self) -> None:
        self.assert_modes(2)

    def test_refusals(self) -> None:
        self.assert_refusals(2)

    def test_gpu_memory_without_a_gpu(self) -> None:
        self.assert_gpu_memory(2, "host_memory", "the arrays of rank 0 are not all on one GPU")

    def test_a_group_of_some_ranks(self) -> None:
        self.assertEqual([len(said["subgroup"]) for said in self.run_job(3, "subgroup")], [0, 1, 1])

    def test_one_digest_with_2_processes(self) -> None:
        self.assert_star_has_one_digest(2)

    def test_one_digest_with_3_processes(self) -> None:
        self.assert_star_has_one_digest(3)

    def test_one_digest_with_4_processes(self) -> None:
        self.assert_star_has_one_digest(4)


if __name__ == "__main__":
    unittest.main()
