"""A run without --checkpoint_dir: where it saves, what it says about that, and how little keeps it from ending well."""

import os
import signal
import subprocess
import tempfile
import unittest

LAUNCH = os.path.realpath("deploy/launch")
WORKER = os.path.realpath("worker/worker")
DATA = ["--dataset=synthetic", "--synthetic_train_count=300", "--synthetic_test_count=50", "--synthetic_size=8"]
JOB = [*DATA, "--model=logreg", "--global_batch=50", "--epochs=2"]
FOLDER = r"starring-checkpoints/synthetic-logreg-\d{8}-\d{6}"
SAVED = rf"\nsaved in ({FOLDER}): --evaluate and --predict take that folder"
STOPPED = rf"\nsaved in ({FOLDER}): --checkpoint_dir=\1 --resume goes on from there, --evaluate and --predict take "


class DefaultDirTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def run_program(self, *words):
        return subprocess.run(words, cwd=self.folder.name, capture_output=True, text=True, timeout=60, check=False)

    def checkpoints(self):
        return sorted(os.path.join(place, name) for place, names, _ in os.walk(self.folder.name) for name in names
                      if name.startswith("step-"))

    def test_ranks_save_once_and_go_on(self):
        done = self.run_program(LAUNCH, "--workers=2", "--sync=star", "--", *JOB)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, SAVED)
        place, = self.checkpoints()
        self.assertRegex(place, FOLDER + "/step-000000012$")
        done = self.run_program(WORKER, *DATA, "--evaluate=" + os.path.dirname(place))
        self.assertIn("of 50 samples", done.stdout, done.stderr)
        done = self.run_program(WORKER, *JOB[:-1], "--epochs=3", "--resume",
                                "--checkpoint_dir=" + os.path.dirname(place))
        self.assertRegex(done.stdout, "done after 18 steps(.|\n)*\nsaved in .*-[0-9]{6}\n$", done.stderr)

    def test_an_elastic_run_saves_once(self):
        job = [*DATA, "--model=logreg", "--global_batch=48", "--epochs=2"]
        done = self.run_program(LAUNCH, "--elastic", "--workers=2", "--servers=2", "--", *job)
        self.assertEqual(done.returncode, 0, done.stderr)
        # Either worker may be rank 0.
        said = done.stdout.replace("w1 | ", "")
        self.assertRegex(said, rf"\nsaved in {FOLDER} on \S+: --evaluate and --predict take ")
        place, = self.checkpoints()
        self.assertRegex(place, FOLDER + "/step-000000014$")
        done = self.run_program(WORKER, *DATA, "--evaluate=" + os.path.dirname(place))
        self.assertIn("of 50 samples", done.stdout, done.stderr)

    def test_a_stop_saves_and_a_restart_needs_a_folder(self):
        # The folder is there from the start on, so that what keeps a run from saving is said there.
        with subprocess.Popen([WORKER, *JOB[:-1], "--epochs=100000"], cwd=self.folder.name, stdout=subprocess.PIPE,
                              text=True) as worker:
            line = ""
            while not line.startswith("epoch 2/"):
                line = worker.stdout.readline()
                self.assertNotEqual(line, "")
            worker.send_signal(signal.SIGTERM)
            self.assertRegex(worker.communicate(timeout=60)[0], STOPPED)
        self.assertEqual((worker.returncode, len(self.checkpoints())), (0, 1))
        refused = self.run_program(WORKER, *JOB, "--resume")
        self.assertEqual((refused.returncode, "needs --checkpoint_dir" in refused.stderr), (2, True), refused.stderr)

    def test_nothing_is_left_where_nothing_is_saved(self):
        for words in ([*JOB, "--checkpoint_dir=none"], [*JOB, "--learning_rate=1e38"],
                      [*JOB, "--rendezvous=127.0.0.1:9", "--rank=1", "--world_size=2", "--join_deadline_s=1"]):
            self.run_program(WORKER, *words)
            self.assertEqual([names for _, _, names in os.walk(self.folder.name) if names], [], words)
        os.rmdir(os.path.join(self.folder.name, "starring-checkpoints"))
        with open(os.path.join(self.folder.name, "starring-checkpoints"), "w", encoding="utf-8"):
            done = self.run_program(WORKER, *JOB)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("warning: nothing will be saved: cannot create starring-checkpoints/", done.stdout)


if __name__ == "__main__":
    unittest.main()
