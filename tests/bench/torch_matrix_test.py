"""Tests bench/torch_matrix.py: what it reads from unittest, and, if STARRING_TORCH_PYTHON names a Python, all of it."""

import contextlib
import io
import os
import unittest

from bench import torch_matrix

OUTPUT = """test_bits (torch_bits_test.TorchBitsTest.test_bits) ... a warning of PyTorch
that has two lines
ok
test_functions (__main__.First) ... ok
test_modes (__main__.First.test_modes) ...
  test_modes (__main__.First.test_modes) (rank=1) ... FAIL
test_functions (__main__.Second) ... ERROR
test_a_gpu (__main__.Second) ... skipped 'no GPU'
test_faults (__main__.Second.test_faults) ... Fatal Python error: Segmentation fault
"""


class TorchMatrixTest(unittest.TestCase):
    def test_reads_outcomes(self) -> None:
        self.assertEqual(torch_matrix.parse_outcomes("data_test", OUTPUT), {
            "data: bits": "passed", "data: functions": "FAILED", "data: modes": "FAILED", "data: a gpu": "skipped",
            "data: faults": "FAILED"})

    def test_makes_a_table(self) -> None:
        self.assertEqual(torch_matrix.table({"1.13": {"a": "passed"}, "2.11": {"a": "FAILED", "b": "passed"}}), [
            "| test | 1.13 | 2.11 |", "| --- | --- | --- |", "| a | passed | FAILED |", "| b | not there | passed |"])

    def test_refuses_what_does_not_run(self) -> None:
        for flags, text in ((["--only=nothing_test"], "there is no nothing_test"),
                            (["--python=/nowhere/python3"], "does not run with PyTorch")):
            with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit) as refused:
                torch_matrix.main(flags)
            self.assertEqual(refused.exception.code, 2)
            self.assertIn(text, said.getvalue())

    @unittest.skipUnless("STARRING_TORCH_PYTHON" in os.environ, "STARRING_TORCH_PYTHON names no Python")
    def test_the_python_that_was_named(self) -> None:
        self.assertEqual(torch_matrix.main(["--python=" + os.environ["STARRING_TORCH_PYTHON"]]), 0)


if __name__ == "__main__":
    unittest.main()
