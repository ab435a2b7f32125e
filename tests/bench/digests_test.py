"""The matrix of digests must see a wrong one, and a job that fails."""

import argparse
import unittest
from unittest import mock

from bench import digests


class DigestsTest(unittest.TestCase):

    def rows(self, found: dict[str, str], order: str, micro_batches: int = 0) -> tuple[list[str], bool]:
        def run_record(command: list[str], flags: list[str]) -> dict[str, object]:
            name = command[1].removeprefix("--sync=")
            if name not in found:
                raise RuntimeError("worker 1: error")
            digest, _, loss = found[name].partition(" ")
            return {"parameter_sha256": digest, "epochs": [], "losses": [{"step": 0, "loss": loss}]}
        options = argparse.Namespace(steps=2, syncs=["ring", "star"], servers=[2], micro_batches=micro_batches)
        with mock.patch.object(digests, "run_record", run_record), \
                mock.patch.object(digests, "reference_digest", return_value="f00d" * 16):
            fields = digests.Row(options, "mlp", 3, order).fields()
            return fields, set(fields[4:]) <= {"", "equal"}

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

    def test_micro_batches_have_the_losses_of_one_process(self) -> None:
        good = {"local": "f00d" * 16 + " 1.5", "star": "f00d" * 16 + " 1.5"}
        self.assertEqual(self.rows(good, "tree", 8),
                         (["mlp", "3", "8 leaves", "f00df00df00d", "equal", "", "equal"], True))
        other = {**good, "star": "f00d" * 16 + " 1.6"}
        self.assertEqual(self.rows(other, "tree", 8)[0][-1], "**other losses**")


if __name__ == "__main__":
    unittest.main()
