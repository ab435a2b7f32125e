"""Reads IDX files (MNIST and its relatives), CIFAR's binary files, NumPy's arrays and tables, plain or gzipped.

Images are uint8 pixels or float32 numbers in PyTorch's order (count, channels, height, width). Labels are classes as
int64 (count), or numbers or bits as float32 (count, values). The loss of the model's layer file decides which of them
are wanted, as in the worker.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import glob
import gzip
import io
import os
import struct
from typing import List, Sequence

import models
import numpy as np
import philox

NPY_NAMES = {"train_images": "x_train", "train_labels": "y_train", "test_images": "x_test", "test_labels": "y_test"}
TARGETS = {"softmax": "class", "mse": "numbers", "bce": "bits"}  # by loss: what its labels are
CLASSES_MIN = {"npy": 1, "csv": 1, "libsvm": 1,
               "emnist-balanced": 47, "emnist-bymerge": 47, "emnist-byclass": 62, "emnist-letters": 27,
               "cifar100": 100}
FASHION_MNIST_DIR = "/usr/share/datasets/fashion-mnist"  # the folder of Debian's package dataset-fashion-mnist


class DataError(Exception):
    """A file is missing or damaged. The message names it, and says what was expected and what was found."""


@dataclasses.dataclass
class Dataset:
    """Images and labels of a training set and a test set."""
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: int = 10
    normalize: str = "channels"  # as the worker's flag
    target: str = "class"  # or "numbers" or "bits"

    @property
    def outputs(self) -> int:
        """Of a model: one for each class, number or bit."""
        return self.classes if self.target == "class" else self.train_labels.shape[1]

    def normalization(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean and deviation of each channel of the training set: of pixel / 255, from exact integer sums, or of
        numbers."""
        channels = self.train_images.shape[1]
        if self.normalize == "none":
            return np.zeros(channels, np.float32), np.ones(channels, np.float32)
        planes = self.train_images.transpose(1, 0, 2, 3).reshape(channels, -1)
        if self.train_images.dtype != np.uint8:
            spread = planes.std(1, dtype=np.float64).astype(np.float32)
            spread[spread < np.finfo(np.float32).tiny] = 1  # as worker/data/normalization.h
            return planes.mean(1, dtype=np.float64).astype(np.float32), spread
        # A histogram has 256 terms per channel and needs no temporary array of the data set's size.
        histogram = np.stack([np.bincount(plane, minlength=256) for plane in planes]).astype(np.int64)
        values = np.arange(256, dtype=np.int64)
        count = planes.shape[1]
        mean = (histogram * values).sum(1) / count
        variance = (histogram * values * values).sum(1) / count - mean * mean
        # A channel whose pixels are all equal becomes zero: worker/data/normalization.h.
        deviation = np.where(variance < 0.5 / count, 255.0, np.sqrt(np.maximum(variance, 0.0)))
        return (mean / 255).astype(np.float32), (deviation / 255).astype(np.float32)


def _read(path: str) -> bytes:
    """The bytes of `path`, or the unpacked bytes of `path`.gz."""
    for candidate in (path, path + ".gz"):
        if os.path.exists(candidate):
            try:
                with open(candidate, "rb") as file:
                    return file.read() if candidate == path else gzip.decompress(file.read())
            except (EOFError, OSError) as error:
                raise DataError(f"{candidate}: cannot be read: {error}") from error
    raise DataError(f"neither {path} nor {path}.gz exists: set --data_dir to the folder that has the data set")


def _read_idx(path: str, dimensions: int) -> np.ndarray:
    content = _read(path)
    if len(content) < 4 + 4 * dimensions or content[:4] != bytes([0, 0, 8, dimensions]):
        raise DataError(f"{path}: expected an IDX file of bytes with {dimensions} dimensions, "
                        f"found the first bytes {content[:4].hex()}")
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    expected = 4 + 4 * dimensions + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        raise DataError(f"{path}: expected {expected} bytes for shape {shape}, found {len(content)}")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def _load_idx(folder: str, prefixes: Sequence[str] = ("train", "t10k"), transposed: bool = False) -> Dataset:
    parts: List[np.ndarray] = []
    for prefix in prefixes:
        images = _read_idx(os.path.join(folder, prefix + "-images-idx3-ubyte"), 3)
        labels = _read_idx(os.path.join(folder, prefix + "-labels-idx1-ubyte"), 1)
        if len(images) != len(labels):
            raise DataError(f"{folder}: {len(images)} {prefix} images but {len(labels)} labels")
        if transposed:
            images = np.ascontiguousarray(images.transpose(0, 2, 1))
        parts += [images[:, None], labels.astype(np.int64)]
    return Dataset(parts[0], parts[1], parts[2], parts[3])


def _read_cifar(paths: list[str], label_bytes: int = 1, label: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Of the label_bytes labels of a record, number `label`."""
    records, size = [], label_bytes + 3072
    for path in paths:
        content = _read(path)
        if len(content) == 0 or len(content) % size != 0:
            raise DataError(f"{path}: expected a whole number of records of {size} bytes, found {len(content)} bytes")
        records.append(np.frombuffer(content, np.uint8).reshape(-1, size))
    rows = np.concatenate(records)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label].astype(np.int64)


def _load_cifar10(folder: str) -> Dataset:
    found = glob.glob(os.path.join(folder, "data_batch_*.bin")) + glob.glob(
        os.path.join(folder, "data_batch_*.bin.gz"))
    batches = sorted({path[:-3] if path.endswith(".gz") else path for path in found})
    if not batches:
        raise DataError(f"no data_batch_*.bin[.gz] in {folder!r}: set --data_dir to the folder of CIFAR-10's binary "
                        "version")
    return Dataset(*_read_cifar(batches), *_read_cifar([os.path.join(folder, "test_batch.bin")]))


def _synthetic(seed: int) -> Dataset:
    """What the worker makes without further flags: worker/data/dataset_readers.h."""
    classes, side = 10, 28
    patterns = philox.pictures(seed, 0, classes, side * side).astype(np.uint16)
    parts: List[np.ndarray] = []
    for stream, count in ((1, 60000), (2, 10000)):
        labels = np.arange(count) % classes
        noise = philox.pictures(seed, stream, count, side * side).astype(np.uint16)
        images = ((patterns[labels] + 3 * noise) // 4).astype(np.uint8)
        parts += [images.reshape(count, 1, side, side), labels]
    return Dataset(parts[0], parts[1], parts[2], parts[3], classes)


def _load_cifar100(folder: str, labels: str) -> Dataset:
    parts = [_read_cifar([os.path.join(folder, name + ".bin")], 2, 0 if labels == "coarse" else 1)
             for name in ("train", "test")]
    return Dataset(*parts[0], *parts[1])


def _npy(path: str) -> np.ndarray:
    return np.load(io.BytesIO(_read(path)), allow_pickle=False)


def _arrays(folder: str) -> dict[str, np.ndarray]:
    """The arrays of a folder or an archive, under our names."""
    if not folder.endswith(".npz"):
        paths = {name: os.path.join(folder, name + ".npy") for name in NPY_NAMES}
        return {name: _npy(path) for name, path in paths.items()
                if os.path.exists(path) or os.path.exists(path + ".gz")}
    archive = np.load(folder, allow_pickle=False)
    return {ours: archive[ours if ours in archive else keras] for ours, keras in NPY_NAMES.items()
            if ours in archive or keras in archive}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_csv(path: str, label: str) -> tuple[np.ndarray, list[str]]:
    """The columns but that of the labels, and the labels as text."""
    rows = [row for row in csv.reader(io.StringIO(_read(path).decode("utf-8-sig"))) if row]
    names = [str(number + 1) for number in range(len(rows[0]))]
    if not all(map(_is_number, rows[0])):
        names = [name.strip() for name in rows.pop(0)]
    if label == "":
        column = next(i for i, name in enumerate(names) if name in ("label", "target", "class", "y"))
    else:
        column = names.index(label) if label in names else int(label) - 1
    numbers = np.array([row[:column] + row[column + 1:] for row in rows], dtype=np.float32)
    return numbers, [row[column].strip() for row in rows]


def _read_libsvm(path: str) -> tuple[list[dict[int, float]], list[str]]:
    samples: List[dict[int, float]] = []
    labels: List[str] = []
    for line in _read(path).decode().splitlines():
        fields = line.partition("#")[0].split()
        if fields:
            labels.append(fields[0])
            samples.append({int(index): float(value) for index, value in (field.split(":") for field in fields[1:])})
    return samples, labels


def _classes(labels: list[str]) -> np.ndarray:
    """The class of each label, as worker/data/dataset_readers.h has it; `labels` are those of both sets."""
    if not all(map(_is_number, labels)):
        numbers = {name: number for number, name in enumerate(sorted(set(labels), key=lambda text: text.encode()))}
        return np.array([numbers[label] for label in labels], np.int64)
    values = np.array([float(label) for label in labels])
    if np.all((values >= 0) & (values <= 65535) & (values == np.floor(values))):
        return values.astype(np.int64)
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _table_files(data_dir: str, name: str) -> list[str]:
    """The files of a folder, or the one that data_dir is, without .gz."""
    if os.path.isfile(data_dir):
        return [data_dir[:-3] if data_dir.endswith(".gz") else data_dir]
    paths = [os.path.join(data_dir, f"{part}.{name}") for part in ("train", "test")]
    return [path for path in paths if os.path.exists(path) or os.path.exists(path + ".gz")]


def _load_table(flags: argparse.Namespace, wanted: str) -> Dataset:
    name, data_dir = flags.dataset, flags.data_dir
    paths = _table_files(data_dir, name)
    if not paths:
        raise DataError(f"{data_dir}: expected train.{name} and test.{name}")
    if name == "csv":
        read = [_read_csv(path, flags.csv_label) for path in paths]
        tables, labels = [table for table, _ in read], [of_table for _, of_table in read]
    else:
        sparse = [_read_libsvm(path) for path in paths]
        labels = [of_table for _, of_table in sparse]
        width = max(max(sample, default=0) for samples, _ in sparse for sample in samples)
        tables = [np.zeros((len(samples), width), np.float32) for samples, _ in sparse]
        for table, (samples, _) in zip(tables, sparse):
            for row, sample in enumerate(samples):
                table[row, [index - 1 for index in sample]] = list(sample.values())
    all_labels = [label for of_table in labels for label in of_table]
    known = np.array(all_labels, np.float32) if wanted == "numbers" else _classes(all_labels)
    arrays = {"train_images": tables[0], "train_labels": known[:len(tables[0])]}
    if len(tables) > 1:
        arrays |= {"test_images": tables[1], "test_labels": known[len(tables[0]):]}
    return _from_arrays(arrays, data_dir, flags.test_fraction, flags.split_seed)


def _labels(array: np.ndarray, folder: str) -> tuple[np.ndarray, str]:
    """The labels as a Dataset has them, and what they are: by the type of the array."""
    kind, width = array.dtype.kind, array.shape[1] if array.ndim > 1 else 1
    if kind in "iu" and width == 1:
        return array.reshape(-1).astype(np.int64), "class"
    if kind == "f" or kind == "b":
        return array.reshape(-1, width).astype(np.float32), "numbers" if kind == "f" else "bits"
    if array.dtype != np.uint8 or array.max() > 1:
        raise DataError(f"{folder}: labels of type {array.dtype} and shape {array.shape}: expected one integer a "
                        "sample, or numbers as float32, or bits as bool or uint8")
    return array.astype(np.float32), "bits"


def _load_npy(folder: str, test_fraction: float, split_seed: int) -> Dataset:
    return _from_arrays(_arrays(folder), folder, test_fraction, split_seed)


def _from_arrays(arrays: dict[str, np.ndarray], folder: str, test_fraction: float, split_seed: int) -> Dataset:
    wanted = [name for name in NPY_NAMES if test_fraction == 0 or name.startswith("train_")]
    if sorted(arrays) != sorted(wanted):
        raise DataError(f"{folder}: expected {', '.join(wanted)}, found {', '.join(arrays) or 'nothing'}")
    for name in wanted:
        kind = arrays[name].dtype.kind
        if name.endswith("_images") and kind == "f":
            arrays[name] = arrays[name].astype(np.float32)
        elif name.endswith("_images") and arrays[name].dtype != np.uint8:
            raise DataError(f"{folder}: expected images of type uint8, float16, float32 or float64")
    if test_fraction > 0:
        count = len(arrays["train_images"])
        order = philox.permutation(count, split_seed, 0, philox.SPLIT)
        test_count = int(count * test_fraction)
        for kind in ("images", "labels"):
            whole = arrays[f"train_{kind}"]
            arrays[f"test_{kind}"] = whole[np.sort(order[:test_count])]
            arrays[f"train_{kind}"] = whole[np.sort(order[test_count:])]
    for part in ("train", "test"):
        # Ours are (samples, columns), (samples, height, width) or (samples, height, width, channels).
        images = arrays[f"{part}_images"]
        images = images[:, None, None] if images.ndim == 2 else images if images.ndim == 4 else images[..., None]
        arrays[f"{part}_images"] = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    train_labels, target = _labels(arrays["train_labels"], folder)
    test_labels, test_target = _labels(arrays["test_labels"], folder)
    if (target, train_labels.shape[1:]) != (test_target, test_labels.shape[1:]):
        raise DataError(f"{folder}: training labels are {target} {train_labels.shape}, test labels {test_target} "
                        f"{test_labels.shape}: expected one type and number")
    return Dataset(arrays["train_images"], train_labels, arrays["test_images"], test_labels, target=target)


def _load(flags: argparse.Namespace, wanted: str) -> Dataset:
    name, data_dir = flags.dataset, flags.data_dir
    if name == "fashion-mnist":
        return _load_idx(data_dir or FASHION_MNIST_DIR)
    if name in ("mnist", "kmnist"):
        return _load_idx(data_dir)
    if name.startswith("emnist-"):
        return _load_idx(data_dir, (name + "-train", name + "-test"), transposed=True)
    if name == "cifar10":
        return _load_cifar10(data_dir)
    if name == "cifar100":
        return _load_cifar100(data_dir, flags.cifar100_labels)
    if name == "npy":
        return _load_npy(data_dir, flags.test_fraction, flags.split_seed)
    if name in ("csv", "libsvm"):
        return _load_table(flags, wanted)
    if name == "synthetic":
        return _synthetic(flags.seed)
    raise DataError(f"--dataset={name} is unknown")


def load(flags: argparse.Namespace) -> Dataset:
    """As the worker's flags of these names have it: worker/data/dataset.h."""
    wanted = TARGETS[models.loss_kind(flags.model)]
    data = _load(flags, wanted)
    data.normalize = flags.normalize
    if data.target == "class":
        _count_classes(flags, data)
    if wanted == "bits" and data.target == "class" and data.classes == 2:
        data.train_labels = data.train_labels[:, None].astype(np.float32)
        data.test_labels = data.test_labels[:, None].astype(np.float32)
        data.target = "bits"
    if data.target != wanted:
        found = f"{data.classes} classes" if data.target == "class" else f"{data.outputs} {data.target} a sample"
        raise DataError(f"--dataset={flags.dataset} has labels that are {found}, the loss of --model={flags.model} "
                        f"needs {'classes' if wanted == 'class' else wanted}: change its layer file's loss")
    return data


def _count_classes(flags: argparse.Namespace, data: Dataset) -> None:
    least = CLASSES_MIN.get(flags.dataset, 10)
    if flags.dataset == "cifar100" and flags.cifar100_labels == "coarse":
        least = 20
    data.classes = max(least, 1 + int(max(data.train_labels.max(), data.test_labels.max())))
