"""An interrupted and resumed run must end with the bits of an uninterrupted one."""

import os
import shutil
import signal
import unittest

from tests.e2e.jobs import JobTest

# No cosine schedule: it would end with --epochs, in which the two halves of a run differ.
SMALL = ["--dataset=synthetic", "--synthetic_train_count=200", "--synthetic_test_count=50", "--global_batch=33",
         "--model=lenet5", "--schedule=constant", "--progress=plain", "--checkpoint_every_epochs=1"]


class ResumeTest(JobTest):

    def whole(self, *extra):
        return self.digest("ring", workers=2, flags=[*SMALL, "--epochs=4", *extra])

    def halves(self, first, second, *extra):
        """The digest after two epochs by `first` and two more by `second`, each (sync, workers, servers)."""
        folder = self.path("checkpoints.%d" % len(self.processes))
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

    def test_saved_by_a_star_without_servers_resumed_by_star(self):
        self.assertEqual(self.halves(("star/mpi", 2, 0), ("star", 2, 1)), self.whole())

    def test_saved_by_ring_resumed_by_a_star_without_servers(self):
        self.assertEqual(self.halves(("ring", 2, 0), ("star/mpi", 2, 0)), self.whole())

    def test_saved_over_tcp_resumed_over_tcp(self):
        self.assertEqual(self.halves(("ring/tcp", 2, 0), ("star/tcp", 2, 0)), self.whole())
        self.assertEqual(self.halves(("star-servers/tcp", 2, 3), ("star-servers/tcp", 2, 1)), self.whole())

    def test_saved_by_ring_resumed_by_star_with_adamw(self):
        adamw = ["--optimizer=adamw", "--learning_rate=0.001"]
        self.assertEqual(self.halves(("ring", 2, 0), ("star", 2, 2), *adamw), self.whole(*adamw))

    def test_a_checkpoint_in_the_middle_of_an_epoch(self):
        # Batch norm has running statistics, which differ between ranks until they are averaged.
        model = self.path("normed.textproto")
        with open(model, "w") as file:
            file.write("""
                layer { name: "conv1" conv2d { out_channels: 4 kernel: 5 stride: 2 } }
                layer { name: "bn1" batch_norm { relu: true } }
                layer { name: "flat" flatten {} }
                layer { name: "fc1" dense { units: 10 } }
            """)
        for sync in ("star", "ring"):
            folder = self.path("steps." + sync)
            flags = [*SMALL[:4], "--progress=plain", "--model=" + model, "--epochs=2", "--checkpoint_every_epochs=100",
                     "--checkpoint_every_steps=4", "--checkpoint_dir=" + folder, "--resume"]
            whole = self.train(sync, 2, 1, flags)
            # The newest two of 4, 8, 12 and 14, the end.
            self.assertEqual(sorted(os.listdir(folder)), [".lock", "step-000000012", "step-000000014"])
            shutil.rmtree(os.path.join(folder, "step-000000014"))
            rest = self.train(sync, 2, 1, flags)
            self.assertEqual(rest["steps"], 2)
            self.assertEqual(rest["parameter_sha256"], whole["parameter_sha256"])
            for field in ("test_loss", "test_accuracy"):
                self.assertEqual(rest["epochs"][-1][field], whole["epochs"][-1][field])

    def test_a_run_begins_with_the_weights_of_another(self):
        folder = self.path("first")
        first = self.train("local", 1, 0, [*SMALL, "--epochs=1", "--checkpoint_dir=" + folder])
        step, = (name for name in os.listdir(folder) if name.startswith("step-"))
        # A rate that is too small to change a float32.
        still = [*SMALL, "--epochs=1", "--max_steps=1", "--learning_rate=1e-38", "--momentum=0"]
        warm = "--warm_start=%s/%s/model.safetensors" % (folder, step)
        for sync, workers, servers in (("local", 1, 0), ("ring", 2, 0), ("star", 2, 2)):
            record = self.train(sync, workers, servers, [*still, warm])
            self.assertEqual(record["parameter_sha256"], first["parameter_sha256"])
            self.assertRegex(record["facts"]["warm_start"], "^[0-9a-f]{16}$")
        self.assertNotEqual(self.train("local", 1, 0, still)["parameter_sha256"], first["parameter_sha256"])
        # A checkpoint comes first.
        resumed = self.train("local", 1, 0, [*SMALL, "--epochs=1", "--checkpoint_dir=" + folder, "--resume", warm])
        self.assertEqual(resumed["steps"], 0)
        self.assertEqual(resumed["parameter_sha256"], first["parameter_sha256"])

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
            self.assertTrue([name for name in os.listdir(folder) if name.startswith("step-")])


if __name__ == "__main__":
    unittest.main()
