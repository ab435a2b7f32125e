"""Tests the PyTorch peer on small files: readers, sampler, digest order, one process against two, the record."""

import argparse
import gzip
import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

try:
    import torch
except ImportError:  # the peer is optional: without torch Starring runs, but not the comparison
    print("SKIPPED: this python3 has no torch, so nothing of bench/ddp was tested", file=sys.stderr)
    sys.exit(0)

import batches
import data
import learning_rate
import models
import numpy as np
import options
import philox
import quality
import run_record
import train

TRAIN_COUNT, TEST_COUNT = 101, 23
# The peer starts from the source tree, to which its file is a link, and would look for the library there.
os.environ["STARRING_LIBRARY"] = os.path.abspath("worker/python/libstarring.so")


def write_idx(path, array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    with gzip.open(path, "wb") if path.endswith(".gz") else open(path, "wb") as file:
        file.write(header + array.astype(np.uint8).tobytes())


def write_mnist(folder):
    generator = np.random.default_rng(7)
    for prefix, count in (("train", TRAIN_COUNT), ("t10k", TEST_COUNT)):
        write_idx(f"{folder}/{prefix}-images-idx3-ubyte.gz", generator.integers(0, 256, (count, 28, 28)))
        write_idx(f"{folder}/{prefix}-labels-idx1-ubyte", generator.integers(0, 10, count))


def write_model(folder, loss):
    path = f"{folder}/{loss}.textproto"
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"layer {{ name: \"fc\" dense {{}} }}\nloss {{ {loss} {{}} }}")
    return path


def proto_fields(message):
    """The names of the fields of one message in run_record.proto."""
    with open("proto/starring/v1/run_record.proto", encoding="utf-8") as file:
        body = re.search(rf"message {message} {{(.*?)\n}}", file.read(), re.DOTALL).group(1)
    return set(re.findall(r"^\s*(?:repeated )?[\w<>, ]+ (\w+) = \d+;", body, re.MULTILINE))


def load(name, folder):
    return data.load(options.parse([f"--dataset={name}", f"--data_dir={folder}"]))


class DataTest(unittest.TestCase):
    def test_reads_plain_and_gzipped_idx(self):
        with tempfile.TemporaryDirectory() as folder:
            write_mnist(folder)
            dataset = load("mnist", folder)
            self.assertEqual(dataset.train_images.shape, (TRAIN_COUNT, 1, 28, 28))
            mean, deviation = dataset.normalization()
            self.assertAlmostEqual(float(mean[0]), dataset.train_images.mean() / 255, places=5)
            self.assertAlmostEqual(float(deviation[0]), dataset.train_images.std() / 255, places=5)

    def test_refuses_a_truncated_file(self):
        with tempfile.TemporaryDirectory() as folder:
            write_mnist(folder)
            path = f"{folder}/train-labels-idx1-ubyte"
            os.truncate(path, TRAIN_COUNT)
            with self.assertRaisesRegex(data.DataError, "expected 109 bytes.*found 101"):
                load("mnist", folder)

    def test_reads_cifar10_planes(self):
        record = np.arange(3073) % 251
        record[0] = 9
        with tempfile.TemporaryDirectory() as folder:
            for name in ("data_batch_1.bin", "data_batch_2.bin.gz", "test_batch.bin"):
                with (gzip.open if name.endswith(".gz") else open)(f"{folder}/{name}", "wb") as file:
                    file.write(record.astype(np.uint8).tobytes())
            dataset = load("cifar10", folder)
        self.assertEqual(dataset.train_images.shape, (2, 3, 32, 32))
        self.assertEqual(dataset.train_images[1, 2, 0, 5], (1 + 2048 + 5) % 251)
        self.assertEqual(dataset.train_labels.tolist(), [9, 9])

    def test_labels_are_what_their_type_says(self):
        for labels, loss, expected in ((np.arange(6), "softmax", np.arange(6)),
                                       (np.arange(6)[:, None], "softmax", np.arange(6)),
                                       (np.arange(6) % 2, "bce", [[0.0], [1.0]] * 3),
                                       (np.arange(6) / 2, "mse", np.arange(6)[:, None] / 2),
                                       (np.arange(12, dtype="f2").reshape(6, 2), "mse", np.arange(12).reshape(6, 2)),
                                       (np.arange(6) > 2, "bce", np.arange(6)[:, None] > 2),
                                       (np.eye(6, dtype="u1"), "bce", np.eye(6))):
            with tempfile.TemporaryDirectory() as folder:
                dataset = self.load_labels(folder, labels, loss)
            np.testing.assert_array_equal(dataset.train_labels, expected)
            self.assertEqual(dataset.train_labels.dtype, np.int64 if loss == "softmax" else np.float32)
            self.assertEqual(dataset.outputs, 6 if loss == "softmax" else np.array(expected).shape[1])
            np.testing.assert_array_equal(dataset.test_labels, dataset.train_labels[:2])

    def test_labels_that_do_not_fit_the_loss(self):
        for labels, loss, expected in ((np.arange(6), "bce", "labels that are 6 classes, .* needs bits"),
                                       (np.arange(6) % 2, "mse", "labels that are 2 classes, .* needs numbers"),
                                       (np.zeros((6, 3)), "softmax", "are 3 numbers a sample, .* needs classes"),
                                       (np.full((6, 2), 2, "u1"), "bce", "expected one integer a sample"),
                                       (np.zeros((6, 2), "i4"), "bce", "type int32 and shape \\(6, 2\\)")):
            with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(data.DataError, expected):
                self.load_labels(folder, labels, loss)

    def load_labels(self, folder, labels, loss):
        for part, count in (("train", 6), ("test", 2)):
            np.save(f"{folder}/{part}_images.npy", np.zeros((count, 4), "f4"))
            np.save(f"{folder}/{part}_labels.npy", labels[:count])
        return data.load(options.parse(["--dataset=npy", f"--data_dir={folder}",
                                        f"--model={write_model(folder, loss)}"]))


class BatchesTest(unittest.TestCase):
    def test_every_sample_once_over_ranks(self):
        for world_size in (1, 2, 3):
            samplers = [batches.Sampler(101, 16, rank, world_size, 5) for rank in range(world_size)]
            seen = []
            for steps in zip(*(sampler.epoch(3) for sampler in samplers)):
                self.assertEqual(sum(len(indices) for _, indices in steps), steps[0][0])
                seen += [i for _, indices in steps for i in indices]
            self.assertEqual(sorted(seen), list(range(101)))
            self.assertEqual(seen, [i for _, indices in batches.Sampler(101, 16, 0, 1, 5).epoch(3) for i in indices])

    def test_crop_flip_moves_pixels_only(self):
        images = torch.arange(2 * 3 * 8 * 8, dtype=torch.uint8).view(2, 3, 8, 8)
        cropped = batches.crop_flip(images, torch.tensor([0, 8]), torch.tensor([3, 4]),
                                    torch.tensor([False, True])).numpy()
        padded = np.pad(images.numpy(), ((0, 0), (0, 0), (4, 4), (4, 4)))
        np.testing.assert_array_equal(cropped[0], padded[0, :, 0:8, 3:11])
        np.testing.assert_array_equal(cropped[1], padded[1, :, 8:16, 4:12][:, :, ::-1])

    def test_schedules(self):
        flags = argparse.Namespace(learning_rate=1.0, warmup_steps=2, schedule="cosine")
        rates = [learning_rate.learning_rate_at(flags, 6, step) for step in range(7)]
        np.testing.assert_allclose(rates, [0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447, 0.0], atol=1e-6)


class PhiloxTest(unittest.TestCase):
    """Expects the numbers that the tests of worker/data and worker/model expect from the C++ side."""

    def test_published_vector(self):
        self.assertEqual([f"{word:08x}" for word in philox.words(0, 0, 0, 0, [0])[0]],
                         ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"])

    def test_permutation_is_the_samplers(self):
        self.assertEqual(philox.permutation(10, 0, 0).tolist(), [3, 4, 8, 7, 0, 6, 9, 5, 1, 2])
        self.assertEqual(philox.permutation(10, 0x123456789ABCDEF0, 7).tolist(), [1, 7, 3, 4, 2, 8, 0, 5, 6, 9])

    def test_first_weights_are_within_their_bound(self):
        model = models.create("lenet5", 1, 28, 28, 10)
        philox.initialize(model, 1)
        for name, fan_in in (("conv1", 25), ("conv2", 150), ("fc1", 400)):
            for tensor in model.get_submodule(name).parameters():
                self.assertLessEqual(tensor.abs().max().item(), 1 / np.sqrt(fan_in))
                self.assertGreater(tensor.abs().max().item(), 0.6 / np.sqrt(fan_in))


class QualityTest(unittest.TestCase):
    def test_area_is_the_definitions(self):
        generator = np.random.default_rng(4)
        for distinct in (3, 1000):
            scores = generator.integers(0, distinct, 60).astype("f4")
            bits = generator.integers(0, 2, 60) == 1
            pairs = [(a > b) + (a == b) / 2 for a in scores[bits] for b in scores[~bits]]
            self.assertAlmostEqual(quality.area_under_curve(scores, bits), np.mean(pairs))
        self.assertIsNone(quality.area_under_curve(scores, np.ones(60, bool)))

    def test_the_test_set_of_two_ranks_is_that_of_one(self):
        generator = np.random.default_rng(4)
        classes = generator.integers(0, 8, 21)
        for loss, labels, width in (("softmax", classes, 8), ("softmax", classes % 2, 2),
                                    ("bce", generator.integers(0, 2, (21, 3)).astype("f4"), 3),
                                    ("mse", generator.normal(size=(21, 3)).astype("f4"), 3)):
            outputs = generator.integers(-2, 3, (21, width)).astype("f4")
            result = {"loss": loss, "mean_loss": 0.25, "accuracy": 0.5}
            one = quality.measure(outputs, labels, result, 0, Ranks([]))
            gathered = []  # what the first rank adds up, by call
            quality.measure(outputs[:10], labels, result, 0, Ranks(gathered))
            self.assertEqual(quality.measure(outputs[10:], labels, result, 1, Ranks(list(gathered))), one)
            self.assertEqual(set(one), proto_fields("TestQuality"))
            if loss == "softmax":
                # The first of equal outputs counts as the larger.
                order = np.argsort(-outputs, axis=1, kind="stable")
                self.assertEqual(one["top5_accuracy"], np.mean((order[:, :5] == labels[:, None]).any(1)))
                confusion = np.array(one["confusion"]).reshape(width, width)
                self.assertEqual(confusion[1, 0], np.sum((labels == 1) & (order[:, 0] == 0)))
            self.assertEqual(one["auc"] > 0, width == 2 or loss == "bce")
            if loss == "mse":
                self.assertEqual((one["rmse"], one["r2"]), (0.5, 1 - 0.25 / labels.astype("f8").var(0).mean()))


class Ranks:
    """A Device of two ranks in turns: rank 0 leaves its values to rank 1, which adds its own. Of one rank without."""

    def __init__(self, values):
        self.values, self.given = values, iter(list(values))
        self.world_size = 2

    def sum_over_ranks(self, mine):
        theirs = next(self.given, None)
        self.values.append(mine)
        return mine if theirs is None else [a + b for a, b in zip(mine, theirs)]


class RecordTest(unittest.TestCase):
    def test_parameter_vector_is_in_our_order(self):
        model = models.create("lenet5", 1, 28, 28, 10)
        vector = run_record.parameter_vector(model)
        self.assertEqual(len(vector) % 16, 0)
        # conv1.weight: 6 * 1 * 5 * 5 = 150 elements, padded to 160; its bias of 6 to 16; then conv2.weight O,KH,KW,I.
        self.assertEqual(vector[150:160].tolist(), [0.0] * 10)
        conv2 = model.conv2.weight.detach().numpy()
        self.assertEqual(vector[176 + ((3 * 5 + 1) * 5 + 2) * 6 + 4], conv2[3, 4, 1, 2])
        # fc1.weight reads (16, 5, 5) flattened; ours is out, height, width, channel.
        begin = 176 + 2400 + 16
        fc1 = model.fc1.weight.detach().numpy().reshape(120, 16, 5, 5)
        self.assertEqual(vector[begin + ((7 * 5 + 1) * 5 + 2) * 16 + 4], fc1[7, 4, 1, 2])

    def test_parameter_counts(self):
        expected = {"logreg": 7850, "mlp": 1863690, "lenet5": 61706, "mnist_cnn": 1199882}
        for name, count in expected.items():
            self.assertEqual(sum(p.numel() for p in models.create(name, 1, 28, 28, 10).parameters()), count)
        resnet = models.create("resnet20", 3, 32, 32, 10)
        self.assertEqual(sum(p.numel() for p in resnet.parameters()), 272474)
        self.assertIn("layer2.0.downsample.0.weight", resnet.state_dict())

    def test_quantiles(self):
        step_ms = run_record.step_milliseconds([i / 1000 for i in range(1, 101)])
        self.assertEqual([round(step_ms[key]) for key in ("p50", "p95", "p99", "max")], [50, 95, 99, 100])


class TrainTest(unittest.TestCase):
    def run_peer(self, folder, **flags):
        record = f"{folder}/record.json"
        arguments = {"dataset": "mnist", "data_dir": folder, "model": "lenet5", "epochs": 2, "global_batch": 16,
                     "record": record, **flags}
        subprocess.run([sys.executable, train.__file__] + [f"--{key}={value}" for key, value in arguments.items()],
                       check=True, timeout=120)
        with open(record, encoding="utf-8") as file:
            return json.load(file)

    def test_two_processes_learn_what_one_does(self):
        with tempfile.TemporaryDirectory() as folder:
            write_mnist(folder)
            one = self.run_peer(folder)
            two = self.run_peer(folder, world_size=2)
            loaded = self.run_peer(folder, data="dataloader")
        self.assertEqual(one["steps"], 14)
        self.assertEqual((one["config"]["sync"], two["config"]["sync"]), ("local", "ddp"))
        # 101 is no multiple of 16, and two ranks cannot share 5 samples equally, so a mean over ranks instead of
        # samples would show here.
        for epoch in (0, 1):
            self.assertAlmostEqual(one["epochs"][epoch]["train_loss"], two["epochs"][epoch]["train_loss"], places=4)
            self.assertAlmostEqual(one["epochs"][epoch]["test_loss"], two["epochs"][epoch]["test_loss"], places=4)
        self.assertEqual(one["parameter_sha256"], loaded["parameter_sha256"])
        self.assertEqual(one["breakdown_ms"]["exposed_exchange"], 0)
        self.assertGreater(two["breakdown_ms"]["exposed_exchange"], 0)
        for record in (one, two):
            self.assertAlmostEqual(sum(record["breakdown_ms"].values()), record["step_ms"]["mean"], places=6)
        self.assert_schema(one)
        self.assert_schema(two)
        self.assertNotIn("buckets", one["host"]["versions"])
        # All of lenet5 fits in DDP's first bucket, of up to 1 MiB, so one bucket holds all but the gaps of the vector.
        told = two["host"]["versions"]
        self.assertLessEqual(int(told["buckets"]), int(told["parameter_bytes"]))
        self.assertGreater(int(told["buckets"]), 0.99 * int(told["parameter_bytes"]))

    def test_numbers_and_bits_of_two_processes(self):
        generator = np.random.default_rng(3)
        with tempfile.TemporaryDirectory() as folder:
            for loss, labels in (("mse", generator.normal(size=(TRAIN_COUNT, 3))),
                                 ("bce", generator.integers(0, 2, (TRAIN_COUNT, 3)).astype(bool))):
                for part, count in (("train", TRAIN_COUNT), ("test", TEST_COUNT)):
                    np.save(f"{folder}/{part}_images.npy", np.sin(np.arange(4 * count)).astype("f4").reshape(-1, 4))
                    np.save(f"{folder}/{part}_labels.npy", labels[:count])
                flags = {"dataset": "npy", "model": write_model(folder, loss)}
                one, two, loaded = (self.run_peer(folder, **flags, **more) for more in (
                    {}, {"world_size": 2}, {"data": "dataloader", "loader_workers": 0}))
                for epoch in (0, 1):
                    for name in ("train_loss", "test_loss", "test_accuracy"):
                        self.assertAlmostEqual(one["epochs"][epoch][name], two["epochs"][epoch][name], places=5)
                self.assertEqual(one["parameter_sha256"], loaded["parameter_sha256"])
                self.assertEqual(one["test"]["loss"], loss)
                for name in ("mean_loss", "accuracy", "auc", "rmse", "r2"):
                    self.assertAlmostEqual(one["test"][name], two["test"][name], places=5)

    def test_a_run_goes_on_from_its_state(self):
        with tempfile.TemporaryDirectory() as folder:
            write_mnist(folder)
            whole = self.run_peer(folder)
            restarts = {"state_file": f"{folder}/state", "state_every_steps": 3, "position_file": f"{folder}/position"}
            # The state is of step 9, in the middle of the second epoch; step 10 is computed again.
            self.run_peer(folder, max_steps=10, **restarts)
            with open(f"{folder}/position", encoding="utf-8") as file:
                self.assertEqual(int(file.read()), 10)
            rest = self.run_peer(folder, **restarts)
            with open(f"{folder}/position", encoding="utf-8") as file:
                self.assertEqual(int(file.read()), 14)
            self.assertEqual([name for name in os.listdir(folder) if "tmp" in name], [])
        self.assertEqual((whole["steps"], rest["steps"]), (14, 5))
        self.assertEqual(whole["parameter_sha256"], rest["parameter_sha256"])
        self.assertEqual([epoch["epoch"] for epoch in rest["epochs"]], [1])

    def test_ddps_first_bucket_is_larger_than_asked(self):
        if not hasattr(torch.nn.parallel.DistributedDataParallel, "_get_ddp_logging_data"):
            self.skipTest("this PyTorch tells nothing of its buckets")
        with tempfile.TemporaryDirectory() as folder:
            write_mnist(folder)
            record = self.run_peer(folder, world_size=2, model="mlp", bucket_cap_mb=0.25, max_steps=14)
        sizes = [int(word) for word in record["host"]["versions"]["buckets"].split(",")]
        # The last layer has 41 KB. A first bucket of up to 1 MiB also takes the 4 MiB of the layer before it.
        self.assertGreater(sizes[0], 4 << 20)
        self.assertEqual(record["config"]["bucket_bytes"], 1 << 18)

    def test_our_star_trains_the_same(self):
        # With two processes a sum has one order, and PyTorch divides by 2, as we do, without rounding.
        with tempfile.TemporaryDirectory() as folder:
            write_mnist(folder)
            flags = {"world_size": 2, "model": "mlp", "max_steps": 12, "bucket_cap_mb": 1}
            ours = [self.run_peer(folder, hook=hook, **flags) for hook in ("star", "ring")]
            theirs = self.run_peer(folder, **flags)
        self.assertEqual([record["config"]["sync"] for record in ours], ["ddp+star", "ddp+ring"])
        self.assertEqual({record["parameter_sha256"] for record in ours}, {theirs["parameter_sha256"]})

    def test_nothing_holds_the_process_group_at_the_end(self):
        # Otherwise its threads sometimes outlive the interpreter, which ends the process by SIGABRT.
        script = ("import gc, train; from torch.nn.parallel import DistributedDataParallel as Ddp; train.main();"
                  "found = [one for one in gc.get_objects() if isinstance(one, Ddp)]; assert not found, found")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with tempfile.TemporaryDirectory() as folder:
            write_mnist(folder)
            flags = ["--dataset=mnist", f"--data_dir={folder}", "--epochs=1", "--global_batch=16", "--hook=star"]
            group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                     "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.path.dirname(train.__file__)}
            ranks = [subprocess.Popen([sys.executable, "-c", script, *flags],
                                      env={**os.environ, **group, "RANK": str(rank)}) for rank in range(2)]
            for rank in ranks:
                self.addCleanup(rank.kill)
            self.assertEqual([rank.wait(timeout=120) for rank in ranks], [0, 0])

    def assert_schema(self, record):
        with open("bench/ddp/worker_flags.json", encoding="utf-8") as file:
            flags = set(json.load(file))
        names = {"chunk_bytes", "deterministic", "server_count", "security", "train_count", "test_count"}
        self.assertEqual(set(record["config"]), flags | names)
        for key, message in (("host", "RunHost"), ("step_ms", "StepMilliseconds"),
                             ("breakdown_ms", "StepBreakdown"), ("exchange", "ExchangeTotals"),
                             ("test", "TestQuality")):
            self.assertEqual(set(record[key]), proto_fields(message), key)
        # No clock of a GPU stamps what PyTorch does.
        self.assertEqual(set(record), (proto_fields("RunRecord") | {"config"}) - {"gpu_exposed_exchange_ms"})
        self.assertEqual(set(record["epochs"][0]), proto_fields("EpochResult"))

    def test_wrong_input_exits_with_2(self):
        for flags in (["--model=nothing"], ["--dataset=mnist", "--data_dir=/nowhere"], ["--no_such_flag"]):
            done = subprocess.run([sys.executable, train.__file__] + flags, timeout=120, capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, done.stderr)


if __name__ == "__main__":
    unittest.main()
