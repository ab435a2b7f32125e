"""Stars, ring and local must give the same bits, for any number of shards and any size of a bucket."""

import os
import shutil
import unittest

from tests.e2e.jobs import JobTest, SMALL_JOB

# 1.9 million parameters in buckets of one reduction block: some thirty for a ring of two workers, twice as many for
# servers.
MLP = [*SMALL_JOB, "--model=mlp", "--bucket_bytes=1"]


class SameBitsTest(JobTest):

    def test_two_workers(self):
        ring = self.digest("ring", workers=2, flags=MLP)
        self.assertEqual(self.digest("star/mpi", workers=2, flags=MLP), ring)
        for servers in (1, 2, 3):
            self.assertEqual(self.digest("star", workers=2, servers=servers, flags=MLP), ring)

    def test_three_workers(self):
        ring = self.digest("ring", workers=3, flags=MLP)
        for sync in ("star/mpi", "star/tcp", "ring/tcp"):
            self.assertEqual(self.digest(sync, workers=3, flags=MLP), ring, sync)
        for servers in (1, 2, 3):
            self.assertEqual(self.digest("star", workers=3, servers=servers, flags=MLP), ring)
        for servers, same_host in ((1, "shared_memory"), (3, "shared_memory"), (3, "socket")):
            record = self.train("star-servers/tcp", workers=3, servers=servers,
                                flags=[*MLP, "--same_host=" + same_host])
            self.assertEqual(record["config"]["same_host"], same_host)
            self.assertEqual(record["parameter_sha256"], ring)
        # By themselves, too.
        for sync, same_host in (("ring/tcp", "shared_memory"), ("ring", "auto"), ("star/tcp", "auto")):
            record = self.train(sync, workers=3, flags=[*MLP, "--same_host=" + same_host])
            self.assertTrue(record["exchange"]["shared_memory"], sync)
            self.assertEqual(record["config"]["same_host"], "shared_memory")
            self.assertEqual(record["parameter_sha256"], ring)

    def test_four_workers(self):
        ring = self.digest("ring", workers=4, flags=MLP)
        self.assertEqual(self.digest("star/mpi", workers=4, flags=MLP), ring)
        for servers in (1, 2, 3):
            self.assertEqual(self.digest("star", workers=4, servers=servers, flags=MLP), ring)

    # With eight workers the tree is no chain, and no process may come to the eight: the servers' side has a test of
    # its own (tests/server:shard_rank_test).
    def test_a_tree_over_tcp(self):
        flags = [*SMALL_JOB, "--model=lenet5", "--sum_order=tree"]
        self.assertEqual(self.digest("star-servers/tcp", workers=5, servers=2, flags=flags),
                         self.digest("star", workers=5, servers=2, flags=flags))

    def test_arrays_through_a_socket(self):
        flags = [*SMALL_JOB, "--model=mlp", "--epochs=1"]
        flags.remove("--epochs=2")
        shared = self.train("star", workers=2, servers=2, flags=flags)
        socket = self.train("star", workers=2, servers=2, flags=[*flags, "--same_host=socket"])
        self.assertTrue(shared["exchange"]["shared_memory"])
        self.assertFalse(socket["exchange"]["shared_memory"])
        self.assertEqual(shared["parameter_sha256"], socket["parameter_sha256"])

    def test_encrypted_connections(self):
        flags = [*SMALL_JOB, "--model=lenet5"]
        ring = self.digest("ring/tcp", workers=2, flags=flags)
        for sync in ("ring/tcp", "star-servers/tcp"):
            record = self.train(sync, workers=2, servers=2, flags=[*flags, "--same_host=socket"],
                                launch_flags=["--tls"])
            self.assertEqual(record["config"]["security"], "tls")
            self.assertEqual(record["parameter_sha256"], ring, sync)

    def test_ranks_of_one_host_share_memory(self):
        for workers in (2, 3):
            for order in ("chain", "tree"):
                flags = [*MLP, "--sum_order=" + order]
                messages = self.digest("star/tcp", workers=workers, flags=flags)
                for transport in ("mpi", "tcp"):
                    record = self.train("star/" + transport, workers=workers,
                                        flags=[*flags, "--same_host=shared_memory"])
                    self.assertTrue(record["exchange"]["shared_memory"])
                    self.assertEqual(record["config"]["same_host"], "shared_memory")
                    self.assertEqual(record["parameter_sha256"], messages, (workers, order, transport))

    def test_ranks_that_choose(self):
        ring = self.digest("ring", workers=2, flags=MLP)
        for sync in ("auto", "auto/tcp"):
            record = self.train(sync, workers=2, flags=MLP)
            self.assertEqual(record["parameter_sha256"], ring)
            self.assertIn(record["config"]["sync"], ("ring", "star"))
            self.assertRegex(record["config"]["sync_reason"], "ring .* ms, star .* ms, star in shared memory .* ms")

    def test_a_clipped_gradient(self):
        free = self.digest("ring", workers=2, flags=MLP)
        for workers in (2, 3):
            flags = [*MLP, "--clip_norm=0.5"]
            ring = self.digest("ring", workers=workers, flags=flags)
            self.assertNotEqual(ring, free)
            for sync, same_host in (("star/mpi", "socket"), ("star/tcp", "shared_memory"), ("ring/tcp", "socket"),
                                    ("ring/tcp", "shared_memory"), ("auto/tcp", "auto")):
                record = self.train(sync, workers=workers, flags=[*flags, "--same_host=" + same_host])
                self.assertEqual(record["parameter_sha256"], ring, (workers, sync, same_host))
                self.assertEqual(record["config"]["clip_norm"], 0.5)
        # A norm that no gradient has; two contributions have the same sum in the order of any library.
        self.assertEqual(self.digest("ring", workers=2, flags=[*MLP, "--clip_norm=1e9"]), free)
        self.assertEqual(self.digest("mpi", workers=2, flags=[*MLP, "--clip_norm=0.5"]),
                         self.digest("ring", workers=2, flags=[*MLP, "--clip_norm=0.5"]))

    def test_a_clipped_gradient_goes_on_from_a_checkpoint(self):
        flags = [*SMALL_JOB, "--model=lenet5", "--clip_norm=0.5", "--optimizer=adamw"]
        whole = self.digest("ring", workers=2, flags=flags)
        saving = [*flags, "--checkpoint_dir=" + self.path("checkpoints")]
        self.train("star/tcp", workers=2, flags=[*saving, "--max_steps=5"])
        self.assertEqual(self.digest("ring", workers=2, flags=[*saving, "--resume"]), whole)

    def test_servers_refuse_to_clip(self):
        for sync in ("star", "star-servers/tcp"):
            flags = [*SMALL_JOB, "--model=lenet5", "--clip_norm=0.5"]
            refused = self.run_to_end(self.job_command(sync, workers=1, servers=1, flags=flags))
            self.assertEqual(refused.returncode, 2, refused.output)
            self.assertIn("a server updates a bucket at once", refused.output)

    def test_a_second_run_gives_the_same(self):
        flags = [*SMALL_JOB, "--model=lenet5"]
        self.assertEqual(self.digest("ring", workers=2, flags=flags), self.digest("ring", workers=2, flags=flags))
        self.assertEqual(self.digest("star", workers=2, servers=2, flags=flags),
                         self.digest("star", workers=2, servers=2, flags=flags))

    def test_local_is_a_ring_of_one_is_a_star_of_one(self):
        flags = [*SMALL_JOB, "--model=lenet5"]
        local = self.digest("local", flags=flags)
        self.assertEqual(self.digest("ring", workers=1, flags=flags), local)
        for sync in ("star/mpi", "star/tcp", "ring/tcp"):
            self.assertEqual(self.digest(sync, workers=1, flags=flags), local, sync)
        for sync in ("star", "star-servers/tcp"):
            self.assertEqual(self.digest(sync, workers=1, servers=1, flags=flags), local, sync)

    def test_the_size_of_a_bucket_and_the_lanes_change_nothing(self):
        flags = [*SMALL_JOB, "--model=mlp", "--epochs=1"]
        flags.remove("--epochs=2")
        one = self.digest("ring", workers=3, flags=[*flags, "--bucket_bytes=100000000"])
        for sync in ("ring", "star/mpi"):
            self.assertEqual(self.digest(sync, workers=3, flags=[*flags, "--bucket_bytes=1"]), one)
        for more in (["--bucket_bytes=800000", "--lanes=1"], ["--bucket_bytes=1", "--lanes=3"]):
            self.assertEqual(self.digest("star", workers=3, servers=2, flags=[*flags, *more]), one)

    def test_buckets_that_are_chosen_by_measurement(self):
        # 34 steps, of which the sizes are tried in 30: all three cut mlp differently.
        flags = [*SMALL_JOB, "--model=mlp", "--epochs=10", "--max_steps=34", "--device=cpu"]
        flags.remove("--epochs=2")
        digest = self.digest("ring", workers=2, flags=[*flags, "--bucket_bytes=1"])
        for sync, same_host in (("ring", "socket"), ("star/tcp", "socket"), ("star/tcp", "shared_memory")):
            folder = self.path(sync.replace("/", "_") + "_" + same_host)
            auto = [*flags, "--bucket_bytes=auto", "--same_host=" + same_host, "--checkpoint_dir=" + folder]
            record = self.train(sync, workers=2, flags=[*auto, "--checkpoint_every_steps=32"])
            self.assertEqual(record["parameter_sha256"], digest, sync)
            tried = {size["bucket_bytes"]: size["step_ms"] for size in record["tried_buckets"]}
            self.assertEqual(set(tried), {256 << 10, 1 << 20, 4 << 20})
            self.assertEqual(tried[record["config"]["bucket_bytes"]], min(tried.values()))
            # Nothing is tried again.
            shutil.rmtree(os.path.join(folder, "step-000000034"))
            resumed = self.train(sync, workers=2, flags=[*auto, "--resume"])
            self.assertEqual(resumed["parameter_sha256"], digest, sync)
            self.assertEqual(resumed["steps"], 2)
            self.assertEqual(resumed["tried_buckets"], [])
            self.assertEqual(resumed["config"]["bucket_bytes"], record["config"]["bucket_bytes"])

    def test_another_seed_gives_other_bits(self):
        flags = [*SMALL_JOB, "--model=lenet5"]
        self.assertNotEqual(self.digest("local", flags=flags), self.digest("local", flags=[*flags, "--seed=2"]))

    def test_mpi_trains_too(self):
        flags = [*SMALL_JOB, "--model=lenet5"]
        record = self.train("mpi", workers=2, flags=flags)
        self.assertEqual(record["config"]["sync"], "mpi")
        # Two contributions have the same sum in both orders.
        self.assertEqual(record["parameter_sha256"], self.digest("ring", workers=2, flags=flags))

    def test_adamw_batch_norm_and_augmentation(self):
        flags = ["--model=resnet20", "--dataset=synthetic", "--synthetic_size=32", "--synthetic_channels=3",
                 "--synthetic_train_count=40", "--synthetic_test_count=12", "--global_batch=16", "--epochs=1",
                 "--optimizer=adamw", "--learning_rate=0.001", "--weight_decay=0.01", "--augment=crop_flip",
                 "--schedule=cosine", "--warmup_steps=1"]
        ring = self.digest("ring", workers=2, flags=flags)
        self.assertEqual(self.digest("star", workers=2, servers=2, flags=flags), ring)
        self.assertEqual(self.digest("star/mpi", workers=2, flags=flags), ring)


if __name__ == "__main__":
    unittest.main()
