"""With --micro_batches the number of workers changes no bit: not of the parameters, nor of any loss."""

import os
import unittest
from typing import Any

from tests.e2e.jobs import JobTest, OTHER_BITS, SMALL_JOB, STOPPING_WORKER, WORKER, with_flags

REFERENCE_JOB = os.path.abspath("tests/reference_job/reference_job")

# 33 samples in 8 leaves are leaves of 4 and 5; the last batch of an epoch has 2, so that most of its leaves are empty.
PLAIN = [*SMALL_JOB, "--record_losses", "--device=cpu"]
FLAGS = [*PLAIN, "--micro_batches=8"]
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
            # The same formula, without shares, nodes or messages: eight gradients, added as a tree.
            formula = self.run_to_end([REFERENCE_JOB, "8", *PLAIN, "--sum_order=tree", "--model=" + model, *more])
            self.assertEqual(formula.output.strip(), local["parameters"], model)
            for sync, workers, servers in (("star", 1, 1), ("star", 2, 2), ("star", 3, 3), ("star", 5, 1),
                                           ("star/tcp", 3, 0)):
                star = outcome(self.train(sync, workers=workers, servers=servers, flags=flags))
                self.assertEqual(star, local, (model, sync, workers, servers))

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
                                    ("star/tcp", 5, []), ("star-servers/tcp", 3, []), ("star", 8, []),
                                    ("star/tcp", 3, ["--same_host=shared_memory"]), ("auto/tcp", 3, [])):
            record = self.train(sync, workers=workers, servers=2, flags=[*flags, *more])
            self.assertEqual(outcome(record), local, (sync, workers, more))

    def test_an_evaluation_adds_its_blocks_in_their_order(self):
        # 6 blocks of 256 samples, of which each worker has two. If the workers added their own first, one evaluation in
        # four would differ in its last bit, hence 40 of them.
        flags = with_flags(FLAGS, "--model=logreg", "--synthetic_train_count=33", "--synthetic_test_count=1500",
                           "--epochs=40")
        local = outcome(self.train("local", flags=flags))
        self.assertEqual(len(local["epochs"]), 40)
        self.assertEqual(outcome(self.train("star", workers=3, flags=flags)), local)

    def test_a_clipped_gradient_has_one_norm(self):
        flags = [*FLAGS, "--model=mlp", "--clip_norm=0.5"]
        local = outcome(self.train("local", flags=flags))
        self.assertNotEqual(local, outcome(self.train("local", flags=with_flags(flags, "--clip_norm=0"))))
        for sync, workers, same_host in (("star/tcp", 1, "socket"), ("star/mpi", 2, "socket"),
                                         ("star/tcp", 3, "shared_memory"), ("star/tcp", 4, "socket"),
                                         ("star/tcp", 8, "shared_memory")):
            star = outcome(self.train(sync, workers=workers, flags=[*flags, "--same_host=" + same_host]))
            self.assertEqual(star, local, (sync, workers, same_host))

    def test_two_leaves_are_a_ring_of_two(self):
        flags = [*SMALL_JOB, "--model=lenet5", "--device=cpu"]
        ring = self.digest("ring", workers=2, flags=flags)
        self.assertEqual(self.digest("local", flags=[*flags, "--micro_batches=2"]), ring)
        self.assertEqual(self.digest("star", workers=2, flags=[*flags, "--micro_batches=2"]), ring)
        clipped = [*flags, "--clip_norm=0.5"]
        self.assertEqual(self.digest("local", flags=[*clipped, "--micro_batches=2"]),
                         self.digest("ring", workers=2, flags=clipped))

    def test_other_workers_go_on_from_a_checkpoint(self):
        for model, more in MODELS.items():
            folder = self.path("checkpoints." + model)
            flags = [*FLAGS, "--model=" + model, *more]
            whole = self.train("local", flags=flags)
            saving = ["--checkpoint_dir=" + folder]
            shorter = [flag for flag in flags if not flag.startswith("--max_steps")] + ["--max_steps=3"]
            self.train("star", workers=3, servers=2, flags=[*shorter, *saving])
            resumed = self.train("star", workers=2, flags=[*flags, *saving, "--resume"])
            self.assertEqual(resumed["steps"], whole["steps"] - 3)
            self.assertEqual(resumed["parameter_sha256"], whole["parameter_sha256"], model)
            self.assertEqual(resumed["losses"][-1]["loss"], whole["losses"][-1]["loss"])
            self.assertEqual(outcome(resumed)["epochs"][-1]["test_loss"], outcome(whole)["epochs"][-1]["test_loss"])
            refused = self.run_to_end(self.job_command("local", flags=[*flags, *saving, "--resume",
                                                                       "--micro_batches=4"]))
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("--micro_batches", refused.output)

    def test_who_would_compute_other_bits_is_refused(self):
        _, address = self.start_server()
        flags = [*FLAGS, "--model=lenet5", "--servers=" + address, "--world_size=2"]
        first = self.start([WORKER, *flags, "--rank=0"])
        self.wait_for_output(first, "lenet5")
        for flag, found in (("--isa=baseline", "--isa"), ("--synthetic_train_count=199", "data.train"),
                            ("--micro_batches=4", "--micro_batches"), ("--threads=2", "--threads")):
            other = self.run_to_end([WORKER, *with_flags(flags, flag), "--rank=1"])
            self.assertEqual(other.returncode, 2, other.output)
            self.assertIn(found, other.output)
        for variables, refusal in OTHER_BITS:
            other = self.run_to_end([STOPPING_WORKER, *flags, "--rank=1"], env={**os.environ, **variables})
            self.assertEqual(other.returncode, 2, other.output)
            self.assertRegex(other.output, refusal)
        second = self.run_to_end([WORKER, *flags, "--rank=1"])
        self.assertEqual(second.returncode, 0, second.output)
        self.assertEqual(self.finish(first).returncode, 0)

    def test_no_micro_batches_is_another_sum(self):
        flags = [*SMALL_JOB, "--model=lenet5", "--device=cpu"]
        other = self.digest("local", flags=[*flags, "--micro_batches=8"])
        self.assertNotEqual(self.digest("local", flags=flags), other)


if __name__ == "__main__":
    unittest.main()
