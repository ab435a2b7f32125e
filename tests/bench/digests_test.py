"""The matrix of digests must see a wrong one, and a job that fails."""

import argparse
import contextlib
import io
import subprocess
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

    def status(self, *flags: str, digest: str = "f00d", formula: str | Exception = "f00d") -> int:
        """The exit status if all jobs have this digest."""
        record = {"parameter_sha256": digest, "epochs": [], "losses": []}
        done = {"side_effect": formula} if isinstance(formula, Exception) else {
            "return_value": subprocess.CompletedProcess([], 0, formula + "\n")}
        with mock.patch.object(digests, "run_record", return_value=record), \
                mock.patch.object(subprocess, "run", **done), contextlib.redirect_stdout(io.StringIO()):
            return digests.main(list(flags))

    def test_exit_status(self) -> None:
        self.assertEqual(self.status("--syncs=ring,star", "--workers=2"), 0)
        self.assertEqual(self.status("--syncs=ring,star", "--workers=2", digest="bad0"), 1)
        # Rings have no tree, so that there is no job, and none is right.
        self.assertEqual(self.status("--syncs=ring", "--orders=tree"), 1)
        # Without the formula's digest nothing is right, and the other rows follow.
        failed = subprocess.CalledProcessError(1, "reference_job")
        for digest in ("f00d", ""):
            self.assertEqual(self.status("--syncs=star", digest=digest, formula=failed), 1)

    def test_refusals(self) -> None:
        for flags in (["--steps=0"], ["--micro_batches=-1"], ["--micro_batches=8", "--orders=tree"],
                      ["--micro_batches=4", "--workers=5"], ["--workers=0"], ["--syncs="], ["--step=3"]):
            with self.subTest(flags), contextlib.redirect_stderr(io.StringIO()), \
                    self.assertRaises(SystemExit) as refused:
                digests.main(flags)
            self.assertEqual(refused.exception.code, 2)


if __name__ == "__main__":
    unittest.main()
