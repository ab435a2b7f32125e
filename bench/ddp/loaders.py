#!/usr/bin/env python3
"""Compares the samples per second of starring.data.Loader and of PyTorch's DataLoader, in turns, in one process.

    bazel build //worker/python:libstarring.so && /usr/bin/python3 bench/ddp/loaders.py --workers=2

The jobs are those of dataloader.py: 60000 random images in memory, batch 64, shuffled, MNIST's as they are and
CIFAR-10's with crop and flip. The loop that takes the batches does nothing else. DataLoader has --workers processes and
is shown both ways, with samples one by one (the usual code) and with whole batches; ours has --threads threads. Each
value is the median of --repeats runs. Exit status 1: ours is not --goal times as fast as the usual code.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import statistics
import sys
from typing import Any, Callable, Dict, Iterator, List

import dataloader
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "worker", "python"))
from starring import data

EPOCHS = 40  # of ours in one run: an epoch takes some hundredths of a second

Rates = Dict[str, List[float]]


def ours(flags: argparse.Namespace, channels: int, side: int, augment: bool) -> Callable[[], float]:
    dataset = data.Dataset("synthetic", train_count=dataloader.IMAGES, test_count=1, height=side, width=side,
                           channels=channels)
    loader = data.Loader(dataset, dataloader.BATCH, augment="crop_flip" if augment else "none", threads=flags.threads,
                         prefetch=flags.prefetch)

    def batches() -> Iterator[Any]:
        return itertools.chain.from_iterable(iter(loader) for _ in range(EPOCHS))

    return lambda: dataloader.samples_per_second(batches())


def theirs(flags: argparse.Namespace, channels: int, side: int, augment: bool) -> Dict[str, Callable[[], float]]:
    images = dataloader.Images(channels, side, augment)
    dataset = dataloader.Batches(images)
    samples = DataLoader(dataloader.Samples(images), batch_size=dataloader.BATCH, shuffle=True,
                         num_workers=flags.workers)
    batches = DataLoader(dataset, batch_size=None, num_workers=flags.workers,
                         sampler=BatchSampler(RandomSampler(dataset), dataloader.BATCH, drop_last=False))
    return {"samples": functools.partial(dataloader.samples_per_second, samples),
            "batches": functools.partial(dataloader.samples_per_second, batches)}


def measure(flags: argparse.Namespace, name: str, channels: int, side: int, augment: bool) -> bool:
    """Prints one data set's lines; returns whether the goal is met."""
    jobs = {"starring": ours(flags, channels, side, augment), **theirs(flags, channels, side, augment)}
    rates: Rates = {job: [] for job in jobs}
    for _ in range(flags.repeats):
        for job, run in jobs.items():
            rates[job].append(run())
    medians = {job: statistics.median(values) for job, values in rates.items()}
    for job, rate in medians.items():
        spread = 100 * (max(rates[job]) - min(rates[job])) / rate
        times = "" if job == "starring" else f", starring is {medians['starring'] / rate:.1f} times as fast"
        print(f"{name:<6}{job:<9} {rate:>10.0f} samples/s ({spread:.0f} %){times}", flush=True)
    return medians["starring"] >= flags.goal * medians["samples"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workers", type=int, default=2, help="processes of the DataLoader")
    parser.add_argument("--threads", type=int, default=1, help="threads of ours")
    parser.add_argument("--prefetch", type=int, default=3, help="batches that ours fills ahead")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--goal", type=float, default=20)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    met = [measure(flags, "mnist", 1, 28, False), measure(flags, "cifar", 3, 32, True)]
    print(f"goal: {flags.goal:g} times the DataLoader with samples one by one: {'met' if all(met) else 'MISSED'}")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
