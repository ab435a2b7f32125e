"""With --micro_batches the number of workers changes no bit: not of the parameters, nor of any loss."""

import os
import shutil
import unittest
from typing import Any

from tests.e2e.jobs import JobTest, SMALL_JOB

# 33 samples in 8 leaves are leaves of 4 and 5; the last batch of an epoch has 2, so that most of its leaves are empty.
FLAGS = [*SMALL_JOB, "--micro_batches=8", "--record_losses", "--device=cpu"]
MODELS = {
    "lenet5": [],
    # Dropout.
    "mnist_cnn": [],
    # Batch norm, augmentation.
    "resnet20": ["--synthetic_size=32", "--synthetic_channels=3", "--augment=crop_flip", "--max_steps=5"],
}


def outcome(record: dict[str, Any]) -> dict[str, Any]:
    """What must be the same: the parameters, every step's loss, every epoch's losses and accuracy."""
    epochs = [{name: epoch[name] for name in ("train_loss", "test_loss", "test_accuracy")}
              for epoch in record["epochs"]]
    losses = [(one["step"], one["loss"]) for one in record["losses"]]
    return {"parameters": record["parameter_sha256"], "losses": losses, "epochs": epochs}


class MicroBatchesTest(JobTest):

    def test_any_number_of_workers_and_servers(self):
        for model, more in MODELS.items():
            flags = [*FLAGS, "--model=" + model, *more]
            local = outcome(self.train("local", flags=flags))
            self.assertGreater(len(local["losses"]), 4)
            self.assertGreater(len(local["epochs"]), 0)
            for workers, servers in ((1, 1), (2, 2), (3, 1), (5, 1)):
                star = outcome(self.train("star", workers=workers, servers=servers, flags=flags))
                self.assertEqual(star, local, (model, workers, servers))

    def test_other_settings_change_nothing(self):
        flags = [*FLAGS, "--model=lenet5"]
        local = outcome(self.train("local", flags=flags))
        for more in (["--same_host=socket"], ["--bucket_bytes=1", "--lanes=3"],
                     ["--prefetch_depth=2", "--loader_threads=2"], ["--same_host=socket", "--bucket_bytes=1"]):
            star = self.train("star", workers=3, servers=2, flags=[*flags, *more])
            self.assertEqual(outcome(star), local, more)

    def test_every_way_of_the_messages(self):
        flags = [*FLAGS, "--model=lenet5"]
        local = outcome(self.train("local", flags=flags))
        for sync, workers, more in (("star/tcp", 2, []), ("star/tcp", 3, []), ("star/mpi", 3, ["--bucket_bytes=1"]),
                                    ("star/tcp", 5, []), ("star-servers/tcp", 3, []),
                                    ("star/tcp", 3, ["--same_host=shared_memory"]), ("auto/tcp", 3, [])):
            record = self.train(sync, workers=workers, servers=2, flags=[*flags, *more])
            self.assertEqual(outcome(record), local, (sync, workers, more))

    def test_two_leaves_are_a_ring_of_two(self):
        flags = [*SMALL_JOB, "--model=lenet5", "--device=cpu"]
        ring = self.digest("ring", workers=2, flags=flags)
        self.assertEqual(self.digest("local", flags=[*flags, "--micro_batches=2"]), ring)
        self.assertEqual(self.digest("star", workers=2, flags=[*flags, "--micro_batches=2"]), ring)

    def test_other_workers_go_on_from_a_checkpoint(self):
        for model, more in (("lenet5", []), ("resnet20", MODELS["resnet20"])):
            folder = self.path("checkpoints." + model)
            flags = [*FLAGS, "--model=" + model, *more]
            whole = self.train("local", flags=flags)
            saving = ["--checkpoint_dir=" + folder, "--checkpoint_every_steps=3"]
            self.train("star", workers=3, servers=2, flags=[*flags, *saving])
            for step in os.listdir(folder):
                if step.startswith("step-") and step != "step-000000003":
                    shutil.rmtree(os.path.join(folder, step))
            resumed = self.train("star", workers=2, flags=[*flags, *saving, "--resume"])
            self.assertEqual(resumed["steps"], whole["steps"] - 3)
            self.assertEqual(resumed["parameter_sha256"], whole["parameter_sha256"], model)
            self.assertEqual(resumed["losses"][-1]["loss"], whole["losses"][-1]["loss"])
            self.assertEqual(outcome(resumed)["epochs"][-1]["test_loss"], outcome(whole)["epochs"][-1]["test_loss"])
            refused = self.run_to_end(self.job_command("local", flags=[*flags, *saving, "--resume",
                                                                       "--micro_batches=4"]))
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("--micro_batches", refused.output)

    def test_no_micro_batches_is_another_sum(self):
        flags = [*SMALL_JOB, "--model=lenet5", "--device=cpu"]
        self.assertNotEqual(self.digest("local", flags=flags), self.digest("local", flags=[*flags, "--micro_batches=8"]))


if __name__ == "__main__":
    unittest.main()
