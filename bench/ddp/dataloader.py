#!/usr/bin/env python3
"""Measures samples per second of PyTorch's DataLoader, to compare with bench/loader_bench.cc.

    /usr/bin/python3 bench/ddp/dataloader.py --workers=2

Two jobs over 60000 random images in memory, batch 64, shuffled:
  mnist   28 x 28 x 1: to float, normalised
  cifar   32 x 32 x 3: zero-padded by 4, cropped at random, flipped with probability 1/2, to float, normalised
in two ways:
  samples  the usual code: a data set of single samples with torchvision's transforms (RandomCrop,
           RandomHorizontalFlip, ToTensor, Normalize) and the default collate function. Here the same torch operations
           run without PIL images, which makes them faster
  batches  the fastest use of a DataLoader: it asks the data set for whole batches, which vectorised operations make
Each process of the DataLoader uses one thread, which is PyTorch's default.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any, Iterable

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

IMAGES = 60000
BATCH = 64
PADDING = 4
WARMUP_BATCHES = 50


class Images:
    """Random images, of pixels or numbers, and labels."""

    def __init__(self, channels: int, side: int, augment: bool, count: int = IMAGES, numbers: bool = False) -> None:
        generator = np.random.default_rng(0)
        shape = (count, channels, side, side)
        self.pixels = torch.from_numpy(generator.random(shape, np.float32) if numbers else
                                       generator.integers(0, 256, shape, np.uint8))
        self.labels = torch.from_numpy(generator.integers(0, 10, count))
        self.mean = torch.full((channels, 1, 1), 0.5)
        self.deviation = torch.full((channels, 1, 1), 0.25)
        self.side = side
        self.augment = augment

    def normalized(self, pixels: torch.Tensor) -> torch.Tensor:
        if pixels.dtype == torch.uint8:
            return pixels.float().div_(255).sub_(self.mean).div_(self.deviation)
        return pixels.sub(self.mean).div_(self.deviation)


class Samples(Dataset):
    """Single samples."""

    def __init__(self, images: Images) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        images = self.images
        pixels = images.pixels[index]
        if images.augment:
            pixels = torch.nn.functional.pad(pixels, (PADDING,) * 4)
            top, left = torch.randint(0, 2 * PADDING + 1, (2,)).tolist()
            pixels = pixels[:, top:top + images.side, left:left + images.side]
            if torch.rand(1) < 0.5:
                pixels = pixels.flip(-1)
        return images.normalized(pixels), images.labels[index]


class Batches(Dataset):
    """Whole batches."""

    def __init__(self, images: Images) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images.labels)

    def __getitem__(self, index: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        images = self.images
        pixels = images.pixels[index]
        if images.augment:
            count = len(index)
            padded = torch.nn.functional.pad(pixels, (PADDING,) * 4)
            rows = torch.arange(images.side) + torch.randint(0, 2 * PADDING + 1, (count, 1))
            columns = torch.arange(images.side).expand(count, -1)
            columns = torch.where(torch.rand(count, 1) < 0.5, images.side - 1 - columns, columns)
            columns = columns + torch.randint(0, 2 * PADDING + 1, (count, 1))
            pixels = padded[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
            pixels = pixels.permute(0, 3, 1, 2)
        return images.normalized(pixels), images.labels[index]


def samples_per_second(loader: Iterable[Any]) -> float:
    count = 0
    began = 0.0
    for batch, (images, _) in enumerate(loader):
        if batch == WARMUP_BATCHES:
            began = time.perf_counter()
        elif batch > WARMUP_BATCHES:
            count += len(images)
    return count / (time.perf_counter() - began)


def show(flags: argparse.Namespace, name: str, way: str, rate: float) -> None:
    if flags.format == "json":
        print(json.dumps({"name": "dataloader" if way == "samples" else "dataloader-batches",
                          "dataset": "cifar10" if name == "cifar" else name,
                          "augment": "crop_flip" if name == "cifar" else "none", "threads": max(1, flags.workers),
                          "workers": flags.workers, "samples_per_second": rate}), flush=True)
    else:
        print("torch %s, %d workers, %s, %s: %.0f samples/s" % (torch.__version__, flags.workers, name, way, rate),
              flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--format", choices=["text", "json"], default="text")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name, images in (("mnist", Images(1, 28, False)), ("cifar", Images(3, 32, True))):
        samples = DataLoader(Samples(images), batch_size=BATCH, shuffle=True, num_workers=flags.workers)
        dataset = Batches(images)
        batches = DataLoader(dataset, batch_size=None, num_workers=flags.workers,
                             sampler=BatchSampler(RandomSampler(dataset), BATCH, drop_last=False))
        for way, loader in (("samples", samples), ("batches", batches)):
            show(flags, name, way, samples_per_second(loader))


if __name__ == "__main__":
    main()
