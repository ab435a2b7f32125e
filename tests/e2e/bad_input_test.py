"""Wrong flags, files and peers must be refused before training, with both values and the way out."""

import gzip
import json
import os
import struct
import time
import unittest

from tests.e2e.jobs import JobTest, LAUNCH, SERVER, SMALL_JOB, WORKER

REFUSED = 2
PEER_MISSING = 3


class BadInputTest(JobTest):

    def assert_refused(self, flags, *words, code=REFUSED):
        done = self.run_to_end([WORKER, *flags], deadline_s=60)
        self.assertEqual(done.returncode, code, done.output)
        for word in words:
            self.assertIn(word, done.output)

    def test_unknown_flag(self):
        self.assert_refused(["--epoch=3"], "unknown flag --epoch", "did you mean --epochs?")
        done = self.run_to_end([SERVER, "--listem=127.0.0.1:0"], deadline_s=60)
        self.assertEqual(done.returncode, REFUSED, done.output)
        self.assertIn("--listem", done.output)
        done = self.run_to_end([LAUNCH, "--sink=star"], deadline_s=60)
        self.assertEqual(done.returncode, REFUSED, done.output)
        self.assertIn("--sink", done.output)

    def test_values_and_contradictions(self):
        self.assert_refused(["--epochs=0"], "--epochs", '"0"', "from 1 to")
        self.assert_refused(["--sync=star"], "--servers")
        self.assert_refused(["--sync=ring", "--servers=127.0.0.1:1"], "--servers", "ring")
        self.assert_refused(["--transport=mpi", "--servers=127.0.0.1:1"], "--servers", "drop one of the two")
        self.assert_refused(["--sync=star", "--rendezvous=127.0.0.1:1"], "--world_size", "over tcp")
        tcp = ["--sync=ring", "--rank=0", "--world_size=2", *SMALL_JOB]
        self.assert_refused([*tcp, "--transport=tcp"], "--transport", "--rendezvous=host:port")
        # Before the data is read: this address is nobody's.
        self.assert_refused([*tcp, "--rendezvous=192.0.2.1:7077"], "192.0.2.1", "--job_secret=FILE", "--insecure")
        self.assert_refused([*tcp, "--rendezvous=127.0.0.1:0"], "127.0.0.1:0", "has no port")
        self.assert_refused([*tcp, "--rendezvous=192.0.2.1:7077", "--insecure"], "cannot listen on 192.0.2.1:7077")
        self.assert_refused(["--optimizer=adam"], '"adam"', "sgd, adamw")
        self.assert_refused(["--resume"], "--checkpoint_dir")
        self.assert_refused(["--rank=2", "--world_size=2", "--servers=127.0.0.1:1"], "rank", '"2"')
        self.assert_refused(["--device=cpu", "--math=tf32"], "--math", "tf32")
        self.assert_refused(["--dataset=imagenet"], "imagenet", "fashion-mnist")
        long = [flag for flag in SMALL_JOB if not flag.startswith("--epochs=")] + ["--epochs=1000000"]
        self.assert_refused(["--elastic", "--coordinator=127.0.0.1:1", *long, "--record_losses"],
                            "--record_losses", "2000000 steps at most", "drop the flag")

    def test_a_file_of_flags_says_what_is_trained(self):
        record = self.path("record.json")
        path = self.path("job.flags")
        with open(path, "w") as file:
            file.write("# A small job.\n\n" + "\n".join(SMALL_JOB) + "\n--max_steps=3\n--seed=7\n")
        done = self.run_to_end([WORKER, "--flagfile=" + path, "--record=" + record, "--max_steps=5"])
        self.assertEqual(done.returncode, 0, done.output)
        with open(record) as file:
            config = json.load(file)["config"]
        self.assertEqual((config["dataset"], config["seed"], config["max_steps"]), ("synthetic", "7", 5))
        self.assert_refused(["--flagfile=" + self.path("nowhere")], self.path("nowhere"))
        with open(path, "a") as file:
            file.write("--epoch=3\n")
        line = 2 + len(SMALL_JOB) + 3  # after a comment, an empty line, the job's flags and two more
        self.assert_refused(["--flagfile=" + path], "%s:%d: unknown flag --epoch" % (path, line))

    def test_a_file_of_flags_of_the_launcher_and_its_workers(self):
        path = self.path("job.flags")
        with open(path, "w") as file:
            file.write("--sync=star\n--workers=2\n--\n" + "\n".join(SMALL_JOB) + "\n--max_steps=2\n")
        record = self.path("record.json")
        done = self.run_to_end([LAUNCH, "--flagfile=" + path, "--", "--record=" + record])
        self.assertEqual(done.returncode, 0, done.output)
        with open(record) as file:
            config = json.load(file)["config"]
        self.assertEqual((config["dataset"], config["world_size"]), ("synthetic", 2))
        self.assertEqual(config["bucket_bytes"], 262144)  # as agreed: all of lenet5, rounded up

    def test_layer_file(self):
        self.assert_refused(["--model=lenet"], "lenet5")
        path = self.path("broken.textproto")
        with open(path, "w") as file:
            file.write('name: "broken"\nlayer {\n  name: "fc"\n  dense { unts: 10 }\n}\n')
        self.assert_refused(["--model=" + path], path + ":4", "unts")

    def idx(self, name, magic, dims, data):
        with gzip.open(self.path(name), "wb") as file:
            file.write(struct.pack(">I", magic) + b"".join(struct.pack(">I", d) for d in dims) + data)

    def mnist(self, images=6, labels=6, magic=0x803, pixels=None, last_label=0):
        for part in ("train", "t10k"):
            self.idx(part + "-images-idx3-ubyte.gz", magic, (images, 28, 28),
                     bytes(images * 784 if pixels is None else pixels))
            self.idx(part + "-labels-idx1-ubyte.gz", 0x801, (labels,), bytes(labels - 1) + bytes([last_label]))
        return ["--dataset=mnist", "--data_dir=" + self.folder, "--epochs=1"]

    def test_files_that_are_right_train(self):
        done = self.run_to_end([WORKER, *self.mnist()])
        self.assertEqual(done.returncode, 0, done.output)

    def test_more_classes_than_digits_train(self):
        flags = self.mnist(last_label=25)
        for model in ("logreg", "mlp", "lenet5", "mnist_cnn", "resnet20"):
            done = self.run_to_end([WORKER, *flags, "--model=" + model, "--record=" + self.path("record.json")])
            self.assertEqual(done.returncode, 0, done.output)
            with open(self.path("record.json")) as file:
                self.assertIn("in 26 classes", json.load(file)["facts"]["data.train"])

    def test_truncated_file(self):
        # Six images of 784 bytes are promised, and five are there.
        self.assert_refused(self.mnist(pixels=5 * 784), "train-images-idx3-ubyte", "4704", "3920")

    def test_wrong_magic(self):
        self.assert_refused(self.mnist(magic=0x804), "train-images-idx3-ubyte")

    def test_counts_that_disagree(self):
        self.assert_refused(self.mnist(labels=5), "6", "5")

    def test_missing_files(self):
        self.assert_refused(["--dataset=mnist", "--data_dir=" + self.path("nowhere")], self.path("nowhere"))


class BadPeerTest(JobTest):

    def worker(self, rank, address, *flags):
        return self.start([WORKER, "--servers=" + address, "--rank=%d" % rank, "--world_size=2", *SMALL_JOB, *flags])

    def test_a_worker_that_never_comes_is_named(self):
        _, address = self.start_server()
        done = self.finish(self.worker(0, address, "--join_deadline_s=2"), deadline_s=60)
        self.assertEqual(done.returncode, PEER_MISSING, done.output)
        self.assertIn("rank 1", done.output)

    def test_a_server_that_never_comes_is_named(self):
        done = self.finish(self.worker(0, "127.0.0.1:1", "--join_deadline_s=2"), deadline_s=60)
        self.assertEqual(done.returncode, PEER_MISSING, done.output)
        self.assertIn("127.0.0.1:1", done.output)

    def test_a_taken_port_is_refused(self):
        _, address = self.start_server()
        done = self.run_to_end([SERVER, "--listen=" + address, "--shard=0", "--shard_count=1"], deadline_s=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(address.rpartition(":")[2], done.output)

    def test_star_workers_with_different_flags(self):
        jobs = []
        for flag, first, second in (("seed", "1", "2"), ("model", "lenet5", "mlp"), ("learning_rate", "0.05", "0.01"),
                                    ("global_batch", "33", "34"), ("synthetic_train_count", "200", "190")):
            _, address = self.start_server()
            flags = [f for f in SMALL_JOB if not f.startswith("--" + flag)]
            workers = [self.start([WORKER, "--servers=" + address, "--rank=%d" % rank, "--world_size=2",
                                   "--join_deadline_s=5", *flags, "--%s=%s" % (flag, value)])
                       for rank, value in ((0, first), (1, second))]
            jobs.append((first, second, workers))
            end = time.monotonic() + 60
            while all(worker.poll() is None for worker in workers) and time.monotonic() < end:
                time.sleep(0.02)  # for either of them
        # The worker of each job that is not refused waits for another one: all of them at the same time.
        for first, second, workers in jobs:
            done = [self.finish(worker, deadline_s=60) for worker in workers]
            refused = [d for d in done if d.returncode == REFUSED]
            self.assertTrue(refused, done[0].output + done[1].output)
            for word in (first, second):
                self.assertIn(word, refused[0].output)

    def test_a_worker_of_another_run(self):
        _, address = self.start_server("--run_id=tuesday")
        done = self.finish(self.worker(0, address, "--run_id=monday"), deadline_s=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn('this server serves run "tuesday", rank 0 belongs to run "monday"', done.output)

    def test_mpi_sets_the_environment_before_there_are_threads(self):
        # The threads of metrics may read the environment. MPI ends at once here, because no mpirun has started it.
        alone = {**os.environ, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
        done = self.run_to_end([WORKER, "--sync=ring", "--metrics_port=0", *SMALL_JOB], deadline_s=60, env=alone)
        self.assertEqual(done.returncode, REFUSED, done.output)
        self.assertIn("MPI sees 1 rank, mpirun started 2", done.output)
        self.assertNotIn("metrics at", done.output)

    def test_ring_workers_with_different_flags(self):
        for flag, difference in (("--seed=2", "rank 1 has --seed=2, rank 0 has --seed=1"),
                                 ("--sync=star", "rank 1 has --sync=star, rank 0 has --sync=auto"),
                                 ("--synthetic_test_count=40", "rank 1 has data.test=40 images")):
            others = [f for f in SMALL_JOB if not f.startswith(flag.partition("=")[0])]
            command = ["mpirun", "--oversubscribe", "-np", "1", WORKER, *SMALL_JOB,
                       ":", "-np", "1", WORKER, *others, flag]
            done = self.run_to_end(command, deadline_s=90)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(difference, done.output)

    def tcp_worker(self, address, rank, *flags, join_deadline_s=5):
        return self.start([WORKER, "--sync=star", "--rendezvous=" + address, "--rank=%d" % rank, "--world_size=2",
                           "--join_deadline_s=%d" % join_deadline_s, *SMALL_JOB, *flags])

    def test_ranks_over_tcp_with_different_flags(self):
        address = self.free_address()
        workers = [self.tcp_worker(address, 0, join_deadline_s=30),
                   self.tcp_worker(address, 1, "--seed=2", join_deadline_s=30)]
        for worker in workers:
            done = self.finish(worker, deadline_s=60)
            self.assertEqual(done.returncode, REFUSED, done.output)
            self.assertIn("rank 1 has --seed=2, rank 0 has --seed=1", done.output)

    def test_a_rank_over_tcp_with_another_secret_or_run(self):
        secrets = [self.path("secret.%d" % number) for number in range(2)]
        for secret in secrets:
            self.assertEqual(self.run_to_end([LAUNCH, "--make_secret=" + secret], deadline_s=60).returncode, 0)
        jobs = []
        for first, second, said, code in (
                (["--job_secret=" + secrets[0]], ["--job_secret=" + secrets[1]], "another job secret", REFUSED),
                (["--job_secret=" + secrets[0]], [], "job_secret", REFUSED),
                ([], ["--job_secret=" + secrets[0]], "job_secret", REFUSED),
                (["--job_secret=" + secrets[0], "--tls"], ["--job_secret=" + secrets[0]],
                 "rank 1 was started without --tls, rank 0 with it", REFUSED),
                (["--run_id=tuesday"], ["--run_id=monday"],
                 'rank 1 belongs to run "monday", rank 0 to run "tuesday"', 1)):
            address = self.free_address()
            workers = [self.tcp_worker(address, 0, *first), self.tcp_worker(address, 1, *second)]
            jobs.append((address, *workers, said, code))
        # All of them at the same time. A rank with a secret waits for a rank 0 that has it, too.
        for _, _, worker, said, code in jobs:
            refused = self.finish(worker, deadline_s=60)
            self.assertEqual(refused.returncode, code, refused.output)  # as in a star
            self.assertIn(said, refused.output)
        # The other ones hear of it, and wait for a rank 1 that belongs to the job.
        for address, worker, _, _, _ in jobs:
            done = self.finish(worker, deadline_s=60)
            self.assertEqual(done.returncode, PEER_MISSING, done.output)
            self.assertIn("rank 1 of 2 has not joined at " + address, done.output)

    def test_a_rank_over_tcp_that_never_comes_is_named(self):
        waiting = []
        for rank, said in ((0, "rank 1 of 2 has not joined at %s"),
                           (1, "rank 1 did not find rank 0 at --rendezvous=%s")):
            address = self.free_address()
            waiting.append((said % address, self.tcp_worker(address, rank)))
        for said, worker in waiting:
            done = self.finish(worker, deadline_s=60)
            self.assertEqual(done.returncode, PEER_MISSING, done.output)
            self.assertIn(said, done.output)


if __name__ == "__main__":
    unittest.main()
