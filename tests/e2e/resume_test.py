"""A run that was cut and resumed ends with the bits of the run that was not."""

import os
import signal
import unittest

from tests.e2e.jobs import JobTest

SMALL = ["--dataset=synthetic", "--synthetic_train_count=200", "--synthetic_test_count=50", "--global_batch=33",
         "--model=lenet5", "--progress=plain", "--checkpoint_every_epochs=1"]


class ResumeTest(JobTest):

    def whole(self, *extra):
        return self.digest("ring", workers=2, flags=[*SMALL, "--epochs=4", *extra])

    def halves(self, first, second, *extra):
        """Digest of two epochs by `first`, then two more by `second`, each (sync, workers, servers)."""
        folder = self.path("checkpoints")
        flags = [*SMALL, "--checkpoint_dir=" + folder, *extra]
        for (sync, workers, servers), epochs in ((first, 2), (second, 4)):
            record = self.train(sync, workers, servers, flags=[*flags, "--epochs=%d" % epochs, "--resume"])
        self.assertEqual(record["steps"], 14)
        return record["parameter_sha256"]

    def test_ring(self):
        self.assertEqual(self.halves(("ring", 2, 0), ("ring", 2, 0)), self.whole())

    def test_star(self):
        self.assertEqual(self.halves(("star", 2, 2), ("star", 2, 3)), self.whole())

    def test_saved_by_star_resumed_by_ring(self):
        self.assertEqual(self.halves(("star", 2, 3), ("ring", 2, 0)), self.whole())

    def test_saved_by_ring_resumed_by_star_with_adamw(self):
        adamw = ["--optimizer=adamw", "--learning_rate=0.001"]
        self.assertEqual(self.halves(("ring", 2, 0), ("star", 2, 2), *adamw), self.whole(*adamw))

    def test_a_signal_checkpoints_in_the_middle_of_an_epoch(self):
        for number, sync in ((signal.SIGINT, "star"), (signal.SIGTERM, "ring"), (signal.SIGTERM, "local")):
            workers = 1 if sync == "local" else 2
            folder = self.path("stopped." + sync)
            flags = ["--dataset=synthetic", "--synthetic_test_count=50", "--model=lenet5", "--progress=plain",
                     "--epochs=1000", "--checkpoint_dir=" + folder]
            job = self.start(self.job_command(sync, workers, 1, flags))
            self.wait_for_output(job, "epoch 1/1000")
            os.kill(job.pid, number)
            done = self.finish(job)
            self.assertEqual(done.returncode, 0, done.output)
            self.assertIn("stopped after", done.output)
            self.assertTrue(os.listdir(folder))


if __name__ == "__main__":
    unittest.main()
