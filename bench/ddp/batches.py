"""Divides global batches among ranks as worker/data/sampler.h does, from RAM, a GPU's memory or a DataLoader.

A rank's part of a batch of n samples is [n * rank // world_size, n * (rank + 1) // world_size). The last, smaller batch
of an epoch is kept.

Each class has an `epoch`, which draws the order of samples and returns an iterator over (samples in the global batch,
tensors) from the epoch's step `first` on, and a `load`, which makes images and labels on the device from these tensors.
`load_part` is the part of a step to which the time of `load` counts.
"""

from __future__ import annotations

from typing import Any, Iterator, List, Tuple

import numpy as np
import philox
import torch
from data import Dataset
from torch.utils.data import DataLoader

Batch = Tuple[int, Tuple[torch.Tensor, ...]]


class Sampler:
    """Decides which samples a rank sees in which step."""

    def __init__(self, sample_count: int, global_batch: int, rank: int, world_size: int, seed: int) -> None:
        self.sample_count = sample_count
        self.global_batch = global_batch
        self.rank = rank
        self.world_size = world_size
        self.seed = seed

    def steps_per_epoch(self) -> int:
        return -(-self.sample_count // self.global_batch)

    def epoch(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        """(samples in the global batch, this rank's indices) for every step of the epoch."""
        order = philox.permutation(self.sample_count, self.seed, epoch)
        plans = []
        for begin in range(0, self.sample_count, self.global_batch):
            batch = order[begin:begin + self.global_batch]
            count = len(batch)
            plans.append((count, batch[count * self.rank // self.world_size:
                                       count * (self.rank + 1) // self.world_size]))
        return plans


class Normalization:
    """Turns uint8 pixels or float32 numbers (..., c, h, w) into normalised float32."""

    def __init__(self, dataset: Dataset, device: torch.device | str = "cpu") -> None:
        self.mean, self.deviation = (torch.from_numpy(values).view(-1, 1, 1).to(device)
                                     for values in dataset.normalization())

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        if values.dtype == torch.uint8:
            return values.float().div_(255).sub_(self.mean).div_(self.deviation)
        return values.sub(self.mean).div_(self.deviation)


def crop_flip(images: torch.Tensor, top: torch.Tensor, left: torch.Tensor, flip: torch.Tensor) -> torch.Tensor:
    """Pads each image by 4 zeros, crops it to its size at (top, left), and mirrors it if `flip`. All tensors are on one
    device."""
    count, _, height, width = images.shape
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    across = torch.arange(width, device=images.device).expand(count, width)
    columns = torch.where(flip[:, None], width - 1 - across, across) + left[:, None]
    rows = torch.arange(height, device=images.device) + top[:, None]
    numbers = torch.arange(count, device=images.device)
    # Advanced indices around a slice: the channel axis comes last.
    picked = padded[numbers[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2).contiguous()


def drawn_crops(samples: np.ndarray, seed: int, epoch: int) -> list[torch.Tensor]:
    """philox.crops as tensors."""
    return [torch.from_numpy(np.array(values)) for values in philox.crops(samples, seed, epoch)]


class RamBatches:
    """The normalised data set as one tensor, from which batches are gathered. With crop_flip it is uint8 until then."""

    def __init__(self, dataset: Dataset, sampler: Sampler, augment: str) -> None:
        self.sampler = sampler
        self.normalized = Normalization(dataset)
        self.augment = augment == "crop_flip"
        self.labels = torch.from_numpy(dataset.train_labels)
        self.images = torch.from_numpy(np.array(dataset.train_images))
        if not self.augment:
            self.images = self.normalized(self.images)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        return self._batches(epoch, self.sampler.epoch(epoch)[first:])

    load_part = "data_wait"

    def load(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return images, labels

    def _batches(self, epoch: int, plans: list[tuple[int, np.ndarray]]) -> Iterator[Batch]:
        for count, samples in plans:
            indices = torch.from_numpy(samples)
            images = self.images[indices]
            if self.augment:
                images = self.normalized(crop_flip(images, *drawn_crops(samples, self.sampler.seed, epoch)))
            yield count, (images, self.labels[indices])


class GpuBatches:
    """The data set in a GPU's memory. A batch's tensor has a column for each sample: its number and, with crop_flip,
    its crop. `load` does the rest on the GPU, so that a graph can capture it."""

    def __init__(self, dataset: Dataset, sampler: Sampler, augment: str, device: torch.device) -> None:
        self.sampler = sampler
        self.device = device
        self.normalized = Normalization(dataset, device)
        self.augment = augment == "crop_flip"
        self.labels = torch.from_numpy(dataset.train_labels).to(device)
        self.images = torch.from_numpy(np.array(dataset.train_images)).to(device)
        if not self.augment:
            self.images = self.normalized(self.images)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        plans = self.sampler.epoch(epoch)[first:]
        samples = np.concatenate([samples for _, samples in plans])
        rows = [torch.from_numpy(samples)]
        if self.augment:
            rows += drawn_crops(samples, self.sampler.seed, epoch)
        columns = torch.stack([row.long() for row in rows]).to(self.device)
        parts = columns.split([len(samples) for _, samples in plans], dim=1)
        return ((count, (part,)) for (count, _), part in zip(plans, parts))

    load_part = "data_wait"

    def load(self, plan: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        images = self.images.index_select(0, plan[0])
        if self.augment:
            images = self.normalized(crop_flip(images, plan[1], plan[2], plan[3] != 0))
        return images, self.labels.index_select(0, plan[0])


class _Samples(torch.utils.data.Dataset):
    """Yields one sample at a time, like torchvision's data sets. A key is (epoch, sample)."""

    def __init__(self, dataset: Dataset, augment: str, seed: int) -> None:
        self.images = torch.from_numpy(np.array(dataset.train_images))
        self.labels = dataset.train_labels
        self.normalized = Normalization(dataset)
        self.augment = augment == "crop_flip"
        self.seed = seed

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, key: tuple[int, int]) -> tuple[torch.Tensor, Any]:
        epoch, sample = key
        image = self.images[sample]
        if self.augment:
            image = crop_flip(image[None], *drawn_crops(np.array([sample]), self.seed, epoch))[0]
        label = self.labels[sample]
        return self.normalized(image), int(label) if label.ndim == 0 else label


class _BatchKeys:
    """DataLoader's batch_sampler: yields the keys of this rank's samples for each step."""

    def __init__(self) -> None:
        self.epoch = 0
        self.plans: List[Tuple[int, np.ndarray]] = []

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for _, samples in self.plans:
            yield [(self.epoch, sample) for sample in samples.tolist()]

    def __len__(self) -> int:
        return len(self.plans)


class DataLoaderBatches:
    """Batches of a DataLoader. For a GPU they are in pinned memory, so that their copies do not block the host."""

    def __init__(self, dataset: Dataset, sampler: Sampler, augment: str, workers: int, device: torch.device) -> None:
        self.sampler = sampler
        self.device = device
        self.keys = _BatchKeys()
        self.loader = DataLoader(_Samples(dataset, augment, sampler.seed), batch_sampler=self.keys,
                                 num_workers=workers, persistent_workers=workers > 0,
                                 pin_memory=device.type == "cuda")

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        self.keys.epoch = epoch
        self.keys.plans = self.sampler.epoch(epoch)[first:]
        counts = [count for count, _ in self.keys.plans]
        return zip(counts, self.loader)

    load_part = "h2d"

    def load(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
