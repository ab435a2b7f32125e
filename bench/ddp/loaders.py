#!/usr/bin/env python3
"""Compares the samples per second of starring.data.Loader and of PyTorch's DataLoader, in turns, in one process.

    bazel build //worker/python:libstarring.so && /usr/bin/python3 bench/ddp/loaders.py --workers=2

The jobs are those of dataloader.py, 60000 random images in memory, batch 64, shuffled, MNIST's as they are and
CIFAR-10's with crop and flip; and three of NumPy's arrays, which ours reads from .npy: images of 64 x 64 x 3 pixels,
the same of float32 numbers, and 28 columns of numbers. The loop that takes the batches does nothing else. DataLoader
has --workers processes and is shown both ways, with samples one by one (the usual code) and with whole batches; ours
has --threads threads. `copy` is the limit of memory: NumPy takes the same samples in random order and does nothing to
them. Each value is the median of --repeats runs. Exit status 1: ours is neither --goal times as fast as the usual
code nor, for numbers, as fast as 0.8 of `copy`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import os
import statistics
import sys
import tempfile
from typing import Any, Callable, Dict, Iterator, List

import dataloader
import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "worker", "python"))
from starring import data

EPOCHS = 40  # of ours in one run: an epoch takes some hundredths of a second

Rates = Dict[str, List[float]]


COPY_SHARE = 0.8


@dataclasses.dataclass
class Job:
    name: str
    channels: int
    side: int
    augment: bool = False
    count: int = dataloader.IMAGES
    numbers: bool = False
    is_file: bool = False


JOBS = [Job("mnist", 1, 28), Job("cifar", 3, 32, augment=True), Job("pixels", 3, 64, count=20000, is_file=True),
        Job("numbers", 3, 64, count=5000, numbers=True, is_file=True),
        Job("columns", 28, 1, numbers=True, is_file=True)]


def read(job: Job, images: dataloader.Images) -> data.Dataset:
    if not job.is_file:
        return data.Dataset("synthetic", train_count=job.count, test_count=1, height=job.side, width=job.side,
                            channels=job.channels)
    array = np.ascontiguousarray(images.pixels.numpy().transpose(0, 2, 3, 1))
    with tempfile.TemporaryDirectory() as folder:
        for part, count in (("train", job.count), ("test", 1)):
            np.save(f"{folder}/{part}_images.npy", array[:count])
            np.save(f"{folder}/{part}_labels.npy", images.labels.numpy()[:count])
        return data.Dataset("npy", data_dir=folder)


def ours(flags: argparse.Namespace, job: Job, images: dataloader.Images) -> Callable[[], float]:
    loader = data.Loader(read(job, images), dataloader.BATCH, augment="crop_flip" if job.augment else "none",
                         threads=flags.threads, prefetch=flags.prefetch)

    def batches() -> Iterator[Any]:
        return itertools.chain.from_iterable(iter(loader) for _ in range(EPOCHS))

    return lambda: dataloader.samples_per_second(batches())


def copies(images: dataloader.Images) -> Callable[[], float]:
    """Takes the samples of shuffled batches as they are, in the blocks of memory that a loader would use over and
    over."""
    rows = images.pixels.numpy().reshape(len(images.labels), -1)
    blocks = [np.empty((dataloader.BATCH, rows.shape[1]), rows.dtype) for _ in range(4)]
    generator = np.random.default_rng(1)

    def batches() -> Iterator[Any]:
        for _ in range(EPOCHS):
            order = generator.permutation(len(rows))
            for number in range(len(rows) // dataloader.BATCH):
                block = blocks[number % len(blocks)]
                np.take(rows, order[number * dataloader.BATCH:(number + 1) * dataloader.BATCH], 0, block, "clip")
                yield block, None

    return lambda: dataloader.samples_per_second(batches())


def theirs(flags: argparse.Namespace, images: dataloader.Images) -> Dict[str, Callable[[], float]]:
    dataset = dataloader.Batches(images)
    samples = DataLoader(dataloader.Samples(images), batch_size=dataloader.BATCH, shuffle=True,
                         num_workers=flags.workers)
    batches = DataLoader(dataset, batch_size=None, num_workers=flags.workers,
                         sampler=BatchSampler(RandomSampler(dataset), dataloader.BATCH, drop_last=False))
    return {"samples": functools.partial(dataloader.samples_per_second, samples),
            "batches": functools.partial(dataloader.samples_per_second, batches)}


def measure(flags: argparse.Namespace, job: Job) -> bool:
    """Prints one data set's lines; returns whether the goal is met."""
    images = dataloader.Images(job.channels, job.side, job.augment, job.count, job.numbers)
    ways = {"starring": ours(flags, job, images), **theirs(flags, images)}
    if job.numbers:
        ways["copy"] = copies(images)
    rates: Rates = {way: [] for way in ways}
    for _ in range(flags.repeats):
        for way, run in ways.items():
            rates[way].append(run())
    medians = {way: statistics.median(values) for way, values in rates.items()}
    for way, rate in medians.items():
        spread = 100 * (max(rates[way]) - min(rates[way])) / rate
        times = "" if way == "starring" else f", starring is {medians['starring'] / rate:.2f} times as fast"
        print(f"{job.name:<8}{way:<9} {rate:>10.0f} samples/s ({spread:.0f} %){times}", flush=True)
    by_memory = job.numbers and medians["starring"] >= COPY_SHARE * medians["copy"]
    return by_memory or medians["starring"] >= flags.goal * medians["samples"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workers", type=int, default=2, help="processes of the DataLoader")
    parser.add_argument("--threads", type=int, default=1, help="threads of ours")
    parser.add_argument("--prefetch", type=int, default=3, help="batches that ours fills ahead")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--goal", type=float, default=20)
    parser.add_argument("--jobs", default=",".join(job.name for job in JOBS))
    flags = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    missed = [job.name for job in JOBS if job.name in flags.jobs.split(",") and not measure(flags, job)]
    print(f"goal: {flags.goal:g} times the DataLoader with samples one by one, or {COPY_SHARE:g} of a copy: "
          f"{'MISSED by ' + ', '.join(missed) if missed else 'met'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
