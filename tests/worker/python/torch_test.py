"""Tests starring.torch without C++: real processes under DDP, with fake_library.py in place of libstarring.so."""

import importlib.util
import sys
import unittest

if importlib.util.find_spec("torch") is None:
    print("SKIPPED: this python3 has no torch, so nothing of starring.torch was tested", file=sys.stderr)
    sys.exit(0)

import torch_cases


class TorchTest(torch_cases.ModeCases, torch_cases.RefusalCases, torch_cases.BitsCases, torch_cases.FaultCases):
    library = ["--fake"]

    def test_modes(self) -> None:
        self.assert_modes(2)

    def test_refusals(self) -> None:
        self.assert_refusals(2)

    def test_a_group_of_some_ranks(self) -> None:
        self.assertEqual([len(said["subgroup"]) for said in self.run_job(3, "subgroup")], [0, 1, 1])

    def test_a_missing_rank(self) -> None:
        self.assert_missing(2)

    def test_a_killed_rank(self) -> None:
        self.assert_killed(2)

    def test_an_exception_in_backward(self) -> None:
        self.assert_raising(2)

    def test_a_rank_that_goes_on_after_an_exception(self) -> None:
        self.assert_going_on(2)

    def test_an_error_in_the_first_step_of_a_static_graph(self) -> None:
        self.assert_stopped_at_once(2)

    def test_interrupt(self) -> None:
        self.assert_interrupted(2)


if __name__ == "__main__":
    unittest.main()
