"""Starring's worker and PyTorch must train alike: initial weights, sample order, crops, normalisation, forward,
backward, optimizer, schedule and evaluation agree, so their losses after some steps differ only by rounding.

Rounding errors grow with every step, so the steps are few. The tolerance is far above the rounding (seen: up to 2e-5)
and far below the effect of any mistake.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

try:
    import torch  # noqa: F401
except ImportError:
    print("SKIPPED: this python3 has no torch, so nothing was compared with PyTorch", file=sys.stderr)
    sys.exit(0)

import numpy as np
import train

WORKER = os.path.realpath("worker/worker")
TOLERANCE = 5e-4
STEPS = 12
# Every kind of layer, at places that no shipped model has it; PyTorch's submodules have another order than the layers.
OWN_LAYERS = """
layer { name: "b.conv" conv2d { out_channels: 8 kernel: 3 stride: 2 padding: 1 no_bias: true } }
layer { name: "a.norm" batch_norm { relu: true epsilon: 0.001 momentum: 0.2 } }
layer { name: "b.pool" max_pool { kernel: 3 stride: 2 padding: 1 } }
layer { name: "a.conv" conv2d { out_channels: 8 kernel: 3 padding: 1 } }
layer { name: "b.each" conv2d { kernel: 3 padding: 1 depthwise: true no_bias: true } }
layer { name: "a.silu" activation { function: "silu" } }
layer { name: "a.mean" average_pool { kernel: 3 stride: 1 padding: 1 } }
layer { name: "a.both" input: "a.mean" input: "a.conv" concat {} }
layer { name: "b.narrow" conv2d { out_channels: 8 kernel: 1 activation: "relu6" } }
layer { name: "b.group" group_norm { groups: 4 } }
layer { name: "b.scale" scale { factor: 0.75 } }
layer { name: "a.layer" layer_norm {} }
layer { name: "b.drop" dropout { rate: 0.1 } }
layer { name: "a.add" input: "b.drop" input: "b.pool" add { relu: true } }
layer { name: "mean" global_average_pool {} }
layer { name: "side" dense { units: 12 } }
layer { name: "flat" input: "a.add" flatten {} }
layer { name: "drop" dropout { rate: 0.7 } }
layer { name: "fc" dense { units: 12 relu: true no_bias: true } }
layer { name: "join" input: "fc" input: "side" add {} }
layer { name: "norm" batch_norm {} }
layer { name: "relu" relu {} }
layer { name: "last" dense { units: 10 } }
"""


def smooth_images(generator, count, channels, height, width):
    """Classes that can be learned: one picture for each label, with noise."""
    labels = generator.integers(0, 10, count)
    pictures = generator.integers(0, 200, (10, channels, height, width))
    return pictures[labels] + generator.integers(0, 56, (count, channels, height, width)), labels


def write_idx(folder, prefix, images, labels):
    count = len(images)
    with open(f"{folder}/{prefix}-images-idx3-ubyte", "wb") as file:
        file.write(bytes([0, 0, 8, 3]) + np.array([count, 28, 28], ">u4").tobytes() + images.astype("u1").tobytes())
    with open(f"{folder}/{prefix}-labels-idx1-ubyte", "wb") as file:
        file.write(bytes([0, 0, 8, 1]) + np.array([count], ">u4").tobytes() + labels.astype("u1").tobytes())


def write_mnist(folder, generator):
    for prefix, count in (("train", 150), ("t10k", 40)):
        write_idx(folder, prefix, *smooth_images(generator, count, 1, 28, 28))


def write_letters(folder, generator):
    """EMNIST's files: its images lie on their side, and class 0 is empty."""
    for prefix, count in (("train", 150), ("test", 40)):
        images, labels = smooth_images(generator, count, 1, 28, 28)
        write_idx(folder, f"emnist-letters-{prefix}", images.transpose(0, 1, 3, 2), 1 + labels * 2)


def write_cifar100(folder, generator):
    for name, count in (("train", 150), ("test", 40)):
        images, labels = smooth_images(generator, count, 3, 32, 32)
        records = np.concatenate([labels[:, None] + 1, labels[:, None] * 11, images.reshape(count, -1)], axis=1)
        with open(f"{folder}/{name}.bin", "wb") as file:
            file.write(records.astype("u1").tobytes())


def write_cifar10(folder, generator):
    for name, count in (("data_batch_1", 150), ("test_batch", 40)):
        images, labels = smooth_images(generator, count, 3, 32, 32)
        records = np.concatenate([labels[:, None], images.reshape(count, -1)], axis=1)
        with open(f"{folder}/{name}.bin", "wb") as file:
            file.write(records.astype("u1").tobytes())


class SameTrainingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        generator = np.random.default_rng(11)
        write_mnist(cls.folder.name, generator)
        write_cifar10(cls.folder.name, generator)
        write_letters(cls.folder.name, generator)
        write_cifar100(cls.folder.name, generator)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_one(self, command, flags):
        record = f"{self.folder.name}/record.json"
        if not any(flag.startswith("--data_dir=") for flag in flags):
            flags = flags + [f"--data_dir={self.folder.name}"]
        subprocess.run(command + [f"--record={record}"] + flags, check=True,
                       timeout=200, stdout=subprocess.DEVNULL)
        with open(record, encoding="utf-8") as file:
            return json.load(file)

    def compare(self, *flags, theirs_alone=(), tolerance=TOLERANCE, epochs=3):
        # 150 samples make 5 batches of 32, of which the last has 22. The third epoch is not finished.
        flags = ["--dataset=mnist", "--epochs=3", f"--max_steps={STEPS}", "--global_batch=32", "--seed=5"] + list(flags)
        if any(flag.startswith("--dataset=") for flag in flags[1:]):
            del flags[0]
        records = (self.run_one([WORKER, "--sync=local", "--progress=none"], flags),
                   self.run_one([sys.executable, train.__file__], flags + list(theirs_alone)))
        ours, theirs = (record["epochs"] for record in records)
        self.assertEqual(len(ours), len(theirs))
        self.assertEqual(len(ours), epochs)
        for epoch, (our, their) in enumerate(zip(ours, theirs)):
            for name in ("train_loss", "test_loss"):
                difference = abs(our[name] - their[name]) / max(1.0, their[name])
                self.assertLess(difference, tolerance, f"{name} of epoch {epoch}: {our[name]}, PyTorch {their[name]}")
        if epochs > 1:
            self.assertLess(theirs[-1]["train_loss"], theirs[0]["train_loss"])  # else the comparison means little
        return [record["test"] for record in records]

    def compare_quality(self, loss, *flags, outputs="", layers=""):
        """Compares a small network with this loss, and what both sides say of the test set. Returns the latter."""
        path = f"{self.folder.name}/{loss}.textproto"
        with open(path, "w", encoding="utf-8") as file:
            file.write("layer { name: \"fc1\" dense { units: 32 relu: true } }\n"
                       f"layer {{ name: \"fc2\" dense {{ {outputs} }} }}\nloss {{ {loss} {{ {layers} }} }}")
        ours, theirs = self.compare(f"--model={path}", f"--learning_rate={0.02 if loss == 'mse' else 0.2}", *flags)
        self.assertEqual(set(ours), set(theirs))
        self.assertEqual((ours["loss"], theirs["loss"]), (loss, loss))
        for name in ("mean_loss", "accuracy", "top5_accuracy", "auc", "rmse", "r2"):
            self.assertAlmostEqual(ours[name], theirs[name], delta=1e-4, msg=name)
        self.assertEqual(ours["confusion"], theirs["confusion"])
        return theirs

    def write_targets(self, folder, make_labels):
        """NumPy's arrays, with labels made from three hidden numbers of each sample."""
        generator = np.random.default_rng(13)
        weights = generator.normal(size=(6, 3))
        for part, count in (("train", 150), ("test", 40)):
            numbers = generator.normal(size=(count, 6))
            np.save(f"{folder}/{part}_images.npy", numbers.astype("f4"))
            np.save(f"{folder}/{part}_labels.npy", make_labels(numbers @ weights))
        return ["--dataset=npy", f"--data_dir={folder}"]

    def test_numbers_as_labels(self):
        with tempfile.TemporaryDirectory() as folder:
            for make_labels, outputs in ((lambda hidden: hidden * 2 + 3, "units: 3"),
                                         (lambda hidden: hidden[:, 0].astype("f4"), "")):
                test = self.compare_quality("mse", *self.write_targets(folder, make_labels), outputs=outputs)
                self.assertGreater(test["r2"], 0.05)
                self.assertEqual(test["accuracy"], 0)

    def test_bits_as_labels(self):
        with tempfile.TemporaryDirectory() as folder:
            for make_labels in (lambda hidden: hidden > 0, lambda hidden: (hidden > 0).astype("u1")):
                test = self.compare_quality("bce", *self.write_targets(folder, make_labels))
                self.assertTrue(0.6 < test["auc"] < 1, test)
                self.assertTrue(0 < test["accuracy"] < 1, test)  # all three bits are right

    def test_two_classes_as_one_bit(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = self.write_targets(folder, lambda hidden: (hidden[:, 0] > 0).astype("i8"))
            bit = self.compare_quality("bce", *flags)
            classes = self.compare_quality("softmax", *flags, layers="label_smoothing: 0.1")
            self.assertEqual(sum(classes["confusion"]), 40)
            self.assertEqual(classes["top5_accuracy"], 1)
            for part in ("train", "test"):
                with open(f"{folder}/{part}.libsvm", "w", encoding="utf-8") as file:
                    for row, label in zip(np.load(f"{folder}/{part}_images.npy"),
                                          np.load(f"{folder}/{part}_labels.npy")):
                        print("+1" if label else "-1", *(f"{i + 1}:{value}" for i, value in enumerate(row)), file=file)
            same = self.compare_quality("bce", "--dataset=libsvm", f"--data_dir={folder}")
            self.assertAlmostEqual(same["mean_loss"], bit["mean_loss"], places=5)
            self.compare_quality("mse", "--dataset=libsvm", f"--data_dir={folder}", "--normalize=none")

    def test_logreg_with_weight_decay(self):
        self.compare("--model=logreg", "--learning_rate=0.01", "--weight_decay=0.01")

    def test_mlp_with_nesterov_and_cosine(self):
        self.compare("--model=mlp", "--learning_rate=0.02", "--nesterov=true", "--schedule=cosine", "--warmup_steps=3")

    def test_mlp_with_a_clipped_gradient(self):
        clipped = ["--model=mlp", "--learning_rate=0.02", "--clip_norm=0.5"]
        self.compare(*clipped, theirs_alone=["--precision=double"], tolerance=2e-6)
        # Were nothing clipped, the losses would differ by far more than rounding.
        with self.assertRaises(AssertionError):
            self.compare(*clipped, theirs_alone=["--clip_norm=0"])

    def test_lenet5_with_momentum(self):
        self.compare("--model=lenet5", "--learning_rate=0.02")

    def test_a_layer_file_of_ones_own(self):
        path = f"{self.folder.name}/own.textproto"
        with open(path, "w", encoding="utf-8") as file:
            file.write(OWN_LAYERS)
        self.compare(f"--model={path}", "--learning_rate=0.02", theirs_alone=["--dropout=starring"], tolerance=5e-3)

    def test_mlp_against_double_precision(self):
        self.compare("--model=mlp", "--learning_rate=0.02", theirs_alone=["--precision=double"], tolerance=2e-6)

    def test_synthetic_data(self):
        # 12 of an epoch's 1875 steps. The test loss is over all 10,000 images.
        self.compare("--model=mlp", "--dataset=synthetic", "--learning_rate=0.02", epochs=1)

    def test_lenet5_with_adamw_and_steps(self):
        self.compare("--model=lenet5", "--optimizer=adamw", "--learning_rate=0.001", "--weight_decay=0.05",
                     "--schedule=step", "--decay_steps=4", "--decay_gamma=0.5")

    def test_letters_of_emnist(self):
        self.compare("--model=lenet5", "--dataset=emnist-letters", "--learning_rate=0.02")

    def test_classes_of_cifar100(self):
        for labels in ("fine", "coarse"):
            self.compare("--model=mlp", "--dataset=cifar100", f"--cifar100_labels={labels}", "--learning_rate=0.01",
                         "--augment=crop_flip")

    def test_arrays_of_numpy(self):
        generator = np.random.default_rng(7)
        for shape in ((20,), (24, 18), (12, 20, 2)):
            arrays = {}
            for part, count in (("train", 150), ("test", 40)):
                labels = generator.integers(0, 37, count)
                pictures = np.random.default_rng(1).integers(0, 200, (37, *shape))
                images = (pictures[labels] + generator.integers(0, 56, (count, *shape))).astype(np.uint8)
                images[..., 0] = 7  # a constant column
                arrays |= {part + "_images": images, part + "_labels": labels}
            with tempfile.TemporaryDirectory() as folder:
                for name, array in arrays.items():
                    np.save(f"{folder}/{name}.npy", array)
                np.savez_compressed(f"{folder}/all.npz", **arrays)
                flags = ["--model=mlp", "--dataset=npy", "--learning_rate=0.02"]
                for place in (folder, f"{folder}/all.npz"):
                    self.compare(*flags, f"--data_dir={place}")
                os.remove(f"{folder}/test_images.npy")
                os.remove(f"{folder}/test_labels.npy")
                self.compare(*flags, f"--data_dir={folder}", "--test_fraction=0.2", "--split_seed=3")

    def test_numbers_of_numpy(self):
        generator = np.random.default_rng(8)
        scales = 10.0 ** np.arange(-3, 3)  # of the last axis: far from the mean and deviation of pixels
        for dtype, shape, model in (("f4", (6,), "mlp"), ("f8", (16, 16, 6), "lenet5"), ("f2", (6,), "logreg")):
            arrays = {}
            for part, count in (("train", 150), ("test", 40)):
                labels = generator.integers(0, 5, count)
                centres = np.random.default_rng(1).normal(size=(5, *shape))
                numbers = (centres[labels] + generator.normal(size=(count, *shape)) / 2 + 3) * scales
                arrays |= {part + "_images": numbers.astype(dtype), part + "_labels": labels}
            with tempfile.TemporaryDirectory() as folder:
                np.savez(f"{folder}/all.npz", **arrays)
                flags = [f"--model={model}", "--dataset=npy", f"--data_dir={folder}/all.npz"]
                self.compare(*flags, "--learning_rate=0.02", tolerance=5e-4)
                if dtype == "f8":
                    self.compare(*flags, "--learning_rate=0.02", "--augment=crop_flip", tolerance=5e-4)
                if dtype == "f2":
                    self.compare(*flags, "--learning_rate=1e-6", "--normalize=none")

    def test_tables(self):
        generator = np.random.default_rng(9)
        centres = generator.normal(size=(3, 7))
        with tempfile.TemporaryDirectory() as folder:
            for part, count in (("train", 150), ("test", 40)):
                labels = generator.integers(0, 3, count)
                numbers = centres[labels] * 5 + generator.normal(size=(count, 7))
                with open(f"{folder}/{part}.csv", "w", encoding="utf-8") as file:
                    print("a,b,c,kind,d,e,f,g", file=file)
                    for label, row in zip(labels, numbers):
                        kind = ("rose", "\"lily, white\"", "aster")[label]
                        print(*row[:3], kind, *row[3:], sep=",", file=file)
                with open(f"{folder}/{part}.libsvm", "w", encoding="utf-8") as file:
                    for label, row in zip(labels, numbers):
                        # Some are missing; the last column is in the training set alone.
                        chosen = [i for i in range(7 if part == "train" else 6) if row[i] > -3]
                        print(label - 1, *(f"{i + 1}:{row[i]}" for i in chosen), file=file)
            for flags in (["--dataset=csv", f"--data_dir={folder}", "--csv_label=kind"],
                          ["--dataset=csv", f"--data_dir={folder}/train.csv", "--csv_label=4", "--test_fraction=0.2"],
                          ["--dataset=libsvm", f"--data_dir={folder}"]):
                self.compare("--model=mlp", "--learning_rate=0.02", *flags, tolerance=5e-4)

    def test_resnet20_with_crops(self):
        self.compare("--model=resnet20", "--dataset=cifar10", "--augment=crop_flip", "--learning_rate=0.01",
                     "--weight_decay=0.0001", tolerance=5e-3)  # batch norm magnifies rounding

    def test_smoothed_labels(self):
        path = f"{self.folder.name}/smooth.textproto"
        with open(path, "w", encoding="utf-8") as file:
            file.write("layer { name: \"fc1\" dense { units: 32 relu: true } } layer { name: \"fc2\" dense {} }\n"
                       "loss { softmax { label_smoothing: 0.1 } }")
        self.compare(f"--model={path}", "--learning_rate=0.02")


if __name__ == "__main__":
    unittest.main()
