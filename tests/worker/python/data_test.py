"""The loader as an iterable in DataLoader's place: order, shards, values and the life of a batch's memory."""

import ctypes
import gc
import gzip
import multiprocessing
import os
import re
import struct
import sys
import tempfile
import threading
import unittest

try:
    import torch
except ImportError:
    print("SKIPPED: this python3 has no torch, so starring.data was not tested", file=sys.stderr)
    sys.exit(0)

import numpy as np
from starring import data

SIZES = {"train_count": 101, "test_count": 23, "height": 12, "width": 10, "channels": 3}
SHUFFLE, AUGMENT = 2, 3  # RandomPurpose


def philox(seed, purpose, epoch, elements):
    """(elements, 4) words of common/arithmetic/philox.h."""
    mask, words = 0xFFFFFFFF, []
    for element in elements:
        c, k = [element & mask, element >> 32, epoch, purpose << 24], [seed & mask, seed >> 32]
        for _ in range(10):
            a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(b >> 32) ^ c[1] ^ k[0], b & mask, (a >> 32) ^ c[3] ^ k[1], a & mask]
            k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
        words.append(c)
    return words


def permutation(count, seed, epoch):
    """The order of worker/data/sampler.h."""
    words = [word for block in philox(seed, SHUFFLE, epoch, range((count + 3) // 4)) for word in block]
    order = list(range(count))
    for i in range(count - 1, 0, -1):
        j = words[i] * (i + 1) >> 32
        order[i], order[j] = order[j], order[i]
    return order


def write_mnist(folder, images, labels):
    """IDX files, one of them gzipped; the test set is the training set's first five."""
    for prefix, count in (("train", len(labels)), ("t10k", 5)):
        with gzip.open(f"{folder}/{prefix}-images-idx3-ubyte.gz", "wb") as file:
            file.write(struct.pack(">IIII", 0x803, count, *images.shape[1:]) + images[:count].tobytes())
        with open(f"{folder}/{prefix}-labels-idx1-ubyte", "wb") as file:
            file.write(struct.pack(">II", 0x801, count) + labels[:count].tobytes())


def write_cifar(folder, images, labels):
    records = np.concatenate([labels[:, None], images.reshape(len(labels), -1)], axis=1)
    for name, part in (("data_batch_1", records[:7]), ("data_batch_2", records[7:]), ("test_batch", records[:5])):
        with open(f"{folder}/{name}.bin", "wb") as file:
            file.write(part.tobytes())


def write_npy(folder, labels):
    """Two columns of numbers, by which a sample can be told; the test set is the training set's first five."""
    numbers = np.arange(2 * len(labels), dtype=np.float32).reshape(-1, 2)
    for part, count in (("train", len(labels)), ("test", 5)):
        np.save(f"{folder}/{part}_images.npy", numbers[:count])
        np.save(f"{folder}/{part}_labels.npy", labels[:count])


class TargetTest(unittest.TestCase):
    """Numbers and bits as targets."""

    def dataset(self, labels, **more):
        with tempfile.TemporaryDirectory() as folder:
            write_npy(folder, labels)
            return data.Dataset("npy", folder, **more)

    def test_labels_are_what_their_type_says(self):
        generator = np.random.default_rng(5)
        for labels, target, values in ((generator.normal(size=43), "numbers", 1),
                                       (generator.normal(size=(43, 3)).astype("f4"), "numbers", 3),
                                       (generator.integers(0, 2, (43, 2)).astype(bool), "bits", 2),
                                       (generator.integers(0, 2, (43, 5), np.uint8), "bits", 5)):
            dataset = self.dataset(labels)
            facts = dataset.facts("test")
            self.assertEqual((facts.target, facts.target_values, facts.outputs, facts.classes),
                             (target, values, values, 0))
            expected = labels.reshape(43, values).astype(np.float32)
            for arrays in data.ARRAYS:
                loader = data.Loader(dataset, 10, seed=3, arrays=arrays)
                for epoch in range(2):
                    found = [np.array(targets) for _, targets in loader]
                    self.assertEqual([(part.dtype, part.shape) for part in found],
                                     [(np.float32, (count, values)) for count in (10, 10, 10, 10, 3)])
                    np.testing.assert_array_equal(np.concatenate(found), expected[permutation(43, 3, epoch)])

    def test_ranks_share_targets(self):
        dataset = self.dataset(np.arange(86.0).reshape(43, 2))
        loaders = [data.Loader(dataset, 3, rank=rank, world_size=3, seed=3) for rank in range(3)]
        for (images, targets), *parts in zip(data.Loader(dataset, 9, seed=3), *loaders):
            self.assertTrue(torch.equal(torch.cat([part for _, part in parts]), targets))
            # The last global batch has 7 samples.
            self.assertEqual(sum(len(part) for part, _ in parts), len(images))
        empty = [list(data.Loader(dataset, 1, rank=rank, world_size=3))[-1][1] for rank in range(3)]
        self.assertEqual(sorted(tuple(part.shape) for part in empty), [(0, 2), (0, 2), (1, 2)])
        self.assertEqual({part.dtype for part in empty}, {torch.float32})

    def test_targets_are_the_loaders_memory(self):
        loader = data.Loader(self.dataset(np.arange(129, dtype="f4").reshape(43, 3)), 10, seed=3)
        places = {targets.data_ptr() for _ in range(20) for _, targets in loader}
        self.assertLessEqual(len(places), 3 + 1 + 2)
        kept = [targets[1:] for images, targets in loader if images.data_ptr() - targets.data_ptr() == 128]
        self.assertEqual(len(kept), 5)
        expected = [view.clone() for view in kept]
        for _ in range(3):
            for _ in loader:
                pass
        del loader
        gc.collect()
        for view, copy in zip(kept, expected):
            self.assertTrue(torch.equal(view, copy))

    def test_the_target_may_be_asked_for(self):
        labels = np.random.default_rng(1).integers(0, 2, 43)
        dataset = self.dataset(labels, target="bits")
        self.assertEqual(dataset.facts().target_values, 1)
        (_, bits), = data.Loader(dataset, 43, shuffle=False)
        self.assertEqual(bits.tolist(), [[label] for label in labels])
        torch.nn.BCEWithLogitsLoss()(torch.zeros(43, 1), bits)
        self.assertEqual(self.dataset(labels, target="class").facts().outputs, 2)
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/all.csv", "w", encoding="utf-8") as file:
                file.write("a,y\n" + "".join(f"{i},{i % 3}\n" for i in range(20)))
            for target, expected in ((None, "class"), ("class", "class"), ("numbers", "numbers")):
                table = data.Dataset("csv", f"{folder}/all.csv", test_fraction=0.2, target=target)
                self.assertEqual(table.facts().target, expected)
            with self.assertRaisesRegex(data.StarringError, "has labels that are 3 classes"):
                data.Dataset("csv", f"{folder}/all.csv", test_fraction=0.2, target="bits")
        with self.assertRaisesRegex(data.StarringError, "has labels that are 2 classes"):
            self.dataset(labels, target="numbers")
        with self.assertRaisesRegex(ValueError, "target is 'rank', it must be one of class, numbers, bits"):
            self.dataset(labels, target="rank")


class DataTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dataset = data.Dataset("synthetic", seed=7, **SIZES)
        # All training images in the order of the files, unnormalised.
        plain = data.Loader(cls.dataset, 101, shuffle=False, mean=(0, 0, 0), deviation=(1, 1, 1))
        (cls.pixels, cls.labels), = [(images * 255, labels) for images, labels in plain]
        cls.pixels = cls.pixels.round()

    def normalized(self, pixels):
        mean, deviation = (torch.tensor(values).view(-1, 1, 1) for values in self.dataset.normalization())
        return (pixels / 255 - mean) / deviation

    def loader(self, batch=16, **more):
        return data.Loader(self.dataset, batch, **{"seed": 5, **more})

    def test_shapes_and_types(self):
        loader = self.loader()
        images, labels = next(iter(loader))
        self.assertEqual((tuple(images.shape), tuple(labels.shape)), ((16, 3, 12, 10), (16,)))
        self.assertEqual((images.dtype, labels.dtype), (torch.float32, torch.int64))
        self.assertTrue(images.is_contiguous(memory_format=torch.channels_last))
        self.assertEqual(images.data_ptr() % 64, 0)
        self.assertEqual(self.dataset.facts("test"), data.Facts(23, 3, 12, 10, 10, "class", 0))
        self.assertEqual(self.dataset.facts().outputs, 10)
        torch.nn.functional.cross_entropy(images.mean((2, 3)).repeat(1, 4), labels)

    def test_order_is_the_workers(self):
        loader = self.loader()
        self.assertEqual(len(loader), 7)
        for epoch in range(3):
            self.assertEqual(loader.epoch, epoch)
            batches = list(loader)
            self.assertEqual([len(labels) for _, labels in batches], [16] * 6 + [5])
            order = permutation(101, 5, epoch)
            self.assertEqual(torch.cat([labels for _, labels in batches]).tolist(), self.labels[order].tolist())
            torch.testing.assert_close(torch.cat([images for images, _ in batches]), self.normalized(
                self.pixels[order]), rtol=1e-5, atol=1e-5)

    def test_ranks_share_every_batch(self):
        for world_size in (2, 3, 5):
            loaders = [self.loader(4, rank=rank, world_size=world_size) for rank in range(world_size)]
            whole = self.loader(4 * world_size)
            self.assertEqual({len(one) for one in loaders}, {len(whole)})
            for (images, labels), *parts in zip(whole, *loaders):
                self.assertTrue(torch.equal(torch.cat([part for part, _ in parts]), images))
                self.assertTrue(torch.equal(torch.cat([part for _, part in parts]), labels))
                counts = [len(part) for _, part in parts]
                self.assertLessEqual(max(counts) - min(counts), 1)
                self.assertEqual([one.global_count for one in loaders], [len(labels)] * world_size)

    def test_a_rank_may_have_nothing(self):
        # 101 = 33 * 3 + 2 samples for three ranks.
        batches = [list(self.loader(1, rank=rank, world_size=3)) for rank in range(3)]
        self.assertEqual(sorted(tuple(images.shape) for *_, (images, _) in batches),
                         [(0, 3, 12, 10), (1, 3, 12, 10), (1, 3, 12, 10)])
        dropped = [list(self.loader(1, rank=rank, world_size=3, drop_last=True)) for rank in range(3)]
        self.assertEqual([[len(labels) for _, labels in one] for one in dropped], [[1] * 33] * 3)

    def test_drop_last_keeps_the_order(self):
        loader, whole = self.loader(drop_last=True), self.loader()
        self.assertEqual(len(loader), 6)
        for _ in range(3):
            for (images, _), (expected, _) in zip(loader, list(whole)[:6]):
                self.assertTrue(torch.equal(images, expected))

    def test_crops_are_the_workers(self):
        loader = self.loader(101, augment="crop_flip", mean=(0, 0, 0), deviation=(1, 1, 1))
        for epoch in range(2):
            (images, _), = loader
            order = permutation(101, 5, epoch)
            for image, sample, (top, left, flip, _) in zip(images, order, philox(5, AUGMENT, epoch, order)):
                padded = torch.nn.functional.pad(self.pixels[sample], (4, 4, 4, 4))
                top, left = top * 9 >> 32, left * 9 >> 32
                expected = padded[:, top:top + 12, left:left + 10]
                expected = expected.flip(2) if flip >> 31 else expected
                self.assertTrue(torch.equal((image * 255).round(), expected))

    def test_threads_and_depth_change_nothing(self):
        expected = [images.clone() for images, _ in self.loader(augment="crop_flip")]
        for threads, prefetch in ((1, 0), (1, 1), (3, 4)):
            loader = self.loader(augment="crop_flip", threads=threads, prefetch=prefetch)
            self.assertTrue(all(torch.equal(images, one) for (images, _), one in zip(loader, expected)))

    def test_tests_come_in_order(self):
        loader = self.loader(10, split="test")
        first, second = ([labels.tolist() for _, labels in loader] for _ in range(2))
        self.assertEqual([len(labels) for labels in first], [10, 10, 3])
        self.assertEqual(first, second)

    # The life of a batch.

    def test_a_batch_lives_as_long_as_its_tensors(self):
        expected = [images.clone() for images, _ in self.loader()]
        loader = self.loader()
        kept = [images[1:].transpose(2, 3) for images, _ in loader]  # views keep memory, too
        for _ in range(3):
            for _ in loader:
                pass
        del loader
        gc.collect()
        for view, images in zip(kept, expected):
            self.assertTrue(torch.equal(view, images[1:].transpose(2, 3)))

    def test_few_blocks_take_turns(self):
        loader = self.loader(8)
        places = {images.data_ptr() for _ in range(20) for images, _ in loader}
        self.assertLessEqual(len(places), 3 + 1 + 2)

    def test_tensors_die_on_other_threads(self):
        loader = self.loader(4)
        for _ in range(10):
            held = [[images] for images, _ in loader]
            threads = [threading.Thread(target=one.clear) for one in held]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def test_backward_may_be_late(self):
        # Gradients need the images of the steps before.
        conv = torch.nn.Conv2d(3, 2, 3)
        (sum(conv(images).square().mean() for images, _ in self.loader())).backward()
        late = conv.weight.grad.clone()
        conv.zero_grad()
        for images, _ in self.loader():
            conv(images).square().mean().backward()
        torch.testing.assert_close(conv.weight.grad, late)

    # Epochs.

    def test_an_iteration_that_is_left_is_followed_by_the_next_epoch(self):
        loader = self.loader()
        for number, _ in enumerate(loader):
            if number == 2:
                break
        order = permutation(101, 5, 1)
        self.assertEqual(next(iter(loader))[1].tolist(), self.labels[order[:16]].tolist())
        loader.set_epoch(7)
        self.assertEqual(next(iter(loader))[1].tolist(), self.labels[permutation(101, 5, 7)[:16]].tolist())
        self.assertEqual(loader.epoch, 8)

    def test_one_iteration_at_a_time(self):
        loader = self.loader()
        first = iter(loader)
        next(first)
        next(iter(loader))
        with self.assertRaisesRegex(RuntimeError, "a later iteration of this loader has begun"):
            next(first)

    def test_epochs_end(self):
        loader = self.loader(epochs=2)
        self.assertEqual(sum(1 for _ in range(2) for _ in loader), 14)
        with self.assertRaisesRegex(ValueError, "epoch 2 is asked for, the loader was made for epochs=2"):
            iter(loader)

    # Others.

    def test_numpy_and_dlpack(self):
        for (images, labels), (expected, numbers) in zip(self.loader(arrays="numpy"), self.loader()):
            self.assertEqual((images.dtype, labels.dtype), (np.float32, np.int64))
            np.testing.assert_array_equal(images, expected.numpy())
            np.testing.assert_array_equal(labels, numbers.numpy())
            for tensor in (torch.from_dlpack(images), torch.from_dlpack(expected)):
                self.assertTrue(torch.equal(tensor, expected))
            np.testing.assert_array_equal(np.from_dlpack(expected), images)
        kept = [torch.from_dlpack(images) for images, _ in self.loader(arrays="numpy")]
        gc.collect()
        for tensor, (images, _) in zip(kept, self.loader()):
            self.assertTrue(torch.equal(tensor, images))

    def test_a_fork_begins_anew(self):
        loader = self.loader()
        expected = [labels.tolist() for _, labels in loader]
        images, _ = next(iter(loader))
        loader.set_epoch(0)
        queue = multiprocessing.get_context("fork").SimpleQueue()

        def child():
            nonlocal images
            images = None  # given back here without effect there
            queue.put([labels.tolist() for _, labels in loader])

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        self.assertEqual(queue.get(), expected)
        process.join(60)
        self.assertEqual(process.exitcode, 0)
        self.assertEqual([labels.tolist() for _, labels in loader], expected)

    def test_idx_and_cifar10(self):
        generator = np.random.default_rng(3)
        for name, shape, write in (("mnist", (28, 28), write_mnist), ("cifar10", (3, 32, 32), write_cifar)):
            images = generator.integers(0, 256, (20, *shape), np.uint8)
            labels = generator.integers(0, 10, 20, np.uint8)
            with tempfile.TemporaryDirectory() as folder:
                write(folder, images, labels)
                channels = shape[0] if len(shape) == 3 else 1
                loader = data.Loader(name, 20, shuffle=False, data_dir=folder, mean=[0] * channels,
                                     deviation=[1] * channels)
                (found, numbers), = loader
                self.assertEqual((found * 255).round().numpy().reshape(images.shape).tolist(), images.tolist())
                self.assertEqual(numbers.tolist(), labels.tolist())
                self.assertEqual(loader.dataset.facts("test").count, 5)
                if name == "mnist":
                    os.truncate(f"{folder}/train-labels-idx1-ubyte", 10)
                    with self.assertRaisesRegex(data.StarringError, "train-labels-idx1-ubyte"):
                        data.Dataset(name, folder)

    def test_refusals(self):
        for more, error in (({"rank": 2, "world_size": 2}, "rank is 2, it must be from 0 to 1"),
                            ({"threads": 0}, "loader threads is 0, expected 1 to 256"),
                            ({"prefetch": 65}, "prefetch_depth is 65"),
                            ({"deviation": (1, 1, 1)}, "mean and deviation belong together")):
            with self.assertRaisesRegex(data.StarringError, error):
                self.loader(**more)
        for more, error in (({"split": "valid"}, "split is 'valid', it must be one of train, test"),
                            ({"augment": "mixup"}, "augment is 'mixup'"), ({"arrays": "jax"}, "arrays is 'jax'"),
                            ({"batch": 0}, "batch is 0"), ({"mean": (0,)}, "mean has 1 values, the images have 3")):
            with self.assertRaisesRegex(ValueError, error):
                self.loader(**more)
        with self.assertRaisesRegex(data.StarringError, "give one of mnist, fashion-mnist, .*, libsvm, synthetic"):
            data.Dataset("imagenet")
        with self.assertRaisesRegex(TypeError, "takes no argument depth"):
            data.Dataset("synthetic", depth=3)

    def test_structs_are_the_headers(self):
        with open("worker/python/starring_data.h", encoding="utf-8") as file:
            header = file.read()
        bytes_of = {"uint32_t": 4, "int32_t": 4, "int64_t": 8, "uint64_t": 8, "double": 8}
        for name, mirror in (("st_dataset_options", data._DatasetOptions), ("st_dataset_facts", data._DatasetFacts),
                             ("st_loader_options", data._LoaderOptions), ("st_batch", data._Batch)):
            body = re.sub(r"//.*", "", header.split(f"typedef struct {name} {{")[1].split("}")[0])
            fields = re.findall(r"([^;]+?)(\w+);", body)
            self.assertEqual([field for _, field in fields], [field for field, _ in mirror._fields_])
            self.assertEqual([bytes_of.get(kind.strip(), 8) for kind, _ in fields],  # pointers have 8
                             [ctypes.sizeof(kind) for _, kind in mirror._fields_])


if __name__ == "__main__":
    unittest.main()
