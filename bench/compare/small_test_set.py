"""A copy of a data set in MNIST's format with a small test set, where the time of evaluations would only blur times."""

from __future__ import annotations

import gzip
import os
import struct

import programs

FASHION_MNIST = "/usr/share/datasets/fashion-mnist"  # the folder of Debian's package dataset-fashion-mnist
TEST_COUNT = 256


def _find(folder: str, name: str) -> str:
    for path in (os.path.join(folder, name), os.path.join(folder, name + ".gz")):
        if os.path.exists(path):
            return path
    raise programs.ProgramError(f"neither {folder}/{name} nor {name}.gz exists: set --data_dir to the folder that has "
                                "the data set")


def _read(path: str, count: int) -> bytes:
    """The first bytes of a file, which may be gzipped."""
    with gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb") as file:
        return file.read(count)


def make(source: str, folder: str) -> int:
    """Fills `folder`: links to the training files of `source`, and files with the first TEST_COUNT test images. Returns
    the number of training images."""
    for name, dimensions in (("images-idx3-ubyte", 3), ("labels-idx1-ubyte", 1)):
        train = _find(source, "train-" + name)
        os.symlink(os.path.abspath(train), os.path.join(folder, os.path.basename(train)))
        test = _find(source, "t10k-" + name)
        magic, *shape = struct.unpack(f">{1 + dimensions}I", _read(test, 4 * (1 + dimensions)))
        count = min(TEST_COUNT, shape[0])
        size = count
        for length in shape[1:]:
            size *= length
        header = struct.pack(f">{1 + dimensions}I", magic, count, *shape[1:])
        with open(os.path.join(folder, "t10k-" + name), "wb") as file:
            file.write(header + _read(test, len(header) + size)[len(header):])
    return struct.unpack(">2I", _read(_find(source, "train-labels-idx1-ubyte"), 8))[1]
