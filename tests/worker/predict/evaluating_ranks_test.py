"""worker --evaluate on several ranks says what one process says, whatever connects them."""

import os
import subprocess
import tempfile
import unittest

LAUNCH = os.path.realpath("deploy/launch")
WORKER = os.path.realpath("worker/worker")
DATA = ["--dataset=synthetic", "--synthetic_train_count=300", "--synthetic_test_count=1500", "--synthetic_size=8"]
JOBS = (["--workers=1", "--sync=ring"], ["--workers=2", "--sync=ring"], ["--workers=3", "--sync=auto"],
        ["--workers=4", "--sync=star", "--transport=tcp"], ["--workers=3", "--sync=star", "--transport=mpi"],
        ["--workers=2", "--sync=mpi"], ["--workers=3", "--sync=star", "--servers=2"],
        ["--workers=2", "--sync=star", "--transport=tcp", "--servers=1"])


class EvaluatingRanksTest(unittest.TestCase):

    def run_program(self, *words):
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)

    def test_every_way_to_meet(self):
        with tempfile.TemporaryDirectory() as folder:
            run = f"{folder}/run"
            done = self.run_program(WORKER, *DATA, "--model=logreg", "--epochs=1", f"--checkpoint_dir={run}")
            self.assertEqual(done.returncode, 0, done.stderr)
            alone = self.run_program(WORKER, *DATA, f"--evaluate={run}")
            self.assertEqual(alone.returncode, 0, alone.stderr)
            self.assertIn("of 1500 samples", alone.stdout)
            for job in JOBS:
                with self.subTest(job=job):
                    done = self.run_program(LAUNCH, *job, "--", *DATA, f"--evaluate={run}")
                    self.assertEqual(done.returncode, 0, done.stderr)
                    said = [line for line in done.stdout.splitlines(keepends=True) if not line.startswith("s")]
                    self.assertEqual("".join(said), alone.stdout, done.stderr)

            for words, why in ((["--elastic"], "for a fixed number of workers: leave out --elastic"),
                               (["--sync=ring", "--transport=tcp", "--workers=2"], "--epochs is for a training")):
                done = self.run_program(LAUNCH, *words, "--", *DATA, f"--evaluate={run}",
                                        *(["--epochs=2"] if "epochs" in why else []))
                self.assertEqual((done.returncode, why in done.stderr), (2, True), done.stderr)
            done = self.run_program(LAUNCH, "--workers=2", "--", *DATA, f"--predict={run}", f"--out={folder}/out.csv")
            self.assertEqual((done.returncode, "--predict is for one process" in done.stderr), (2, True), done.stderr)


if __name__ == "__main__":
    unittest.main()
