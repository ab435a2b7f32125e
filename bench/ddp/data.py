"""Reads IDX (MNIST, Fashion-MNIST) and CIFAR-10 binary files, plain or gzipped, into arrays.

Images are uint8 in PyTorch's order (count, channels, height, width), labels int64.
"""

from __future__ import annotations

import dataclasses
import glob
import gzip
import os
import struct
from typing import List

import numpy as np
import philox

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

    def normalization(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean and deviation of each channel of the training set, of pixel / 255, from exact integer sums."""
        channels = self.train_images.shape[1]
        planes = self.train_images.transpose(1, 0, 2, 3).reshape(channels, -1)
        # A histogram has 256 terms per channel and needs no temporary array of the data set's size.
        histogram = np.stack([np.bincount(plane, minlength=256) for plane in planes]).astype(np.int64)
        values = np.arange(256, dtype=np.int64)
        count = planes.shape[1]
        mean = (histogram * values).sum(1) / count
        variance = (histogram * values * values).sum(1) / count - mean * mean
        deviation = np.sqrt(np.maximum(variance, 0.0))
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


def _load_idx(folder: str) -> Dataset:
    parts: List[np.ndarray] = []
    for prefix in ("train", "t10k"):
        images = _read_idx(os.path.join(folder, prefix + "-images-idx3-ubyte"), 3)
        labels = _read_idx(os.path.join(folder, prefix + "-labels-idx1-ubyte"), 1)
        if len(images) != len(labels):
            raise DataError(f"{folder}: {len(images)} {prefix} images but {len(labels)} labels")
        parts += [images[:, None], labels.astype(np.int64)]
    return Dataset(parts[0], parts[1], parts[2], parts[3])


def _read_cifar(paths: list[str]) -> tuple[np.ndarray, np.ndarray]:
    records = []
    for path in paths:
        content = _read(path)
        if len(content) == 0 or len(content) % 3073 != 0:
            raise DataError(f"{path}: expected a whole number of records of 3073 bytes, found {len(content)} bytes")
        records.append(np.frombuffer(content, np.uint8).reshape(-1, 3073))
    rows = np.concatenate(records)
    if rows[:, 0].max() > 9:
        raise DataError(f"{paths[0]}: expected labels from 0 to 9, found {rows[:, 0].max()}")
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


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


def load(name: str, data_dir: str, seed: int = 0) -> Dataset:
    if name == "fashion-mnist":
        return _load_idx(data_dir or FASHION_MNIST_DIR)
    if name == "mnist":
        return _load_idx(data_dir)
    if name == "cifar10":
        return _load_cifar10(data_dir)
    if name == "synthetic":
        return _synthetic(seed)
    raise DataError(f"--dataset={name} is not one of mnist, fashion-mnist, cifar10, synthetic")
