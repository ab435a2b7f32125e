"""The matrix of digests must see a wrong one, and a job that fails."""

import argparse
import unittest
from unittest import mock

from bench import digests


class DigestsTest(unittest.TestCase):

    def rows(self, found: dict[str, str], order: str) -> tuple[list[str], bool]:
        def cell_digest(cell: object, workers: int, flags: list[str]) -> str:
            name = getattr(cell, "sync")
            if name not in found:
                raise RuntimeError("worker 1: error")
            return found[name]
        options = argparse.Namespace(steps=2, syncs=["ring", "star"])
        with mock.patch.object(digests, "cell_digest", cell_digest), \
                mock.patch.object(digests, "reference_digest", return_value="f00d" * 16):
            return digests.row("mlp", 3, order, options)

    def test_equal_digests(self) -> None:
        self.assertEqual(self.rows({"ring": "f00d" * 16, "star": "f00d" * 16}, "chain"),
                         (["mlp", "3", "chain", "f00df00df00d", "equal", "equal"], True))

    def test_another_digest_is_shown(self) -> None:
        self.assertEqual(self.rows({"ring": "f00d" * 16, "star": "bad0" * 16}, "chain"),
                         (["mlp", "3", "chain", "f00df00df00d", "equal", "**bad0bad0bad0**"], False))

    def test_a_job_that_fails_is_not_equal(self) -> None:
        self.assertEqual(self.rows({"star": "f00d" * 16}, "chain")[1], False)

    def test_a_ring_has_no_tree(self) -> None:
        self.assertEqual(self.rows({"star": "f00d" * 16}, "tree"),
                         (["mlp", "3", "tree", "f00df00df00d", "", "equal"], True))


if __name__ == "__main__":
    unittest.main()
