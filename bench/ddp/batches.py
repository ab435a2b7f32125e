"""Global batches cut over ranks, as worker/data/sampler.h cuts them, from RAM, from a GPU's memory or by a DataLoader.

A rank's part of a batch of n samples is [n * rank // world_size, n * (rank + 1) // world_size). The last, smaller batch
of an epoch is kept.

`epoch` of each kind iterates over (samples in the global batch, tensors), and draws the order before it returns; `load`
makes images and labels on the device of these tensors, which is `load_part` of a step.
"""

import numpy as np
import philox
import torch
from torch.utils.data import DataLoader


class Sampler:
    def __init__(self, sample_count, global_batch, rank, world_size, seed):
        self.sample_count = sample_count
        self.global_batch = global_batch
        self.rank = rank
        self.world_size = world_size
        self.seed = seed

    def steps_per_epoch(self):
        return -(-self.sample_count // self.global_batch)

    def epoch(self, epoch):
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
    """uint8 pixels (..., c, h, w) to normalised float32."""

    def __init__(self, dataset, device="cpu"):
        self.mean, self.deviation = (torch.from_numpy(values).view(-1, 1, 1).to(device)
                                     for values in dataset.normalization())

    def __call__(self, pixels):
        return pixels.float().div_(255).sub_(self.mean).div_(self.deviation)


def crop_flip(images, top, left, flip):
    """Pads a uint8 batch by 4 zeros, crops each image to its size from (top, left), mirrors it where `flip`. All are
    tensors of one device."""
    count, _, height, width = images.shape
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    across = torch.arange(width, device=images.device).expand(count, width)
    columns = torch.where(flip[:, None], width - 1 - across, across) + left[:, None]
    rows = torch.arange(height, device=images.device) + top[:, None]
    numbers = torch.arange(count, device=images.device)
    # Advanced indices around a slice: the channel axis comes last.
    picked = padded[numbers[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2).contiguous()


def drawn_crops(samples, seed, epoch):
    return [torch.from_numpy(np.array(values)) for values in philox.crops(samples, seed, epoch)]


class RamBatches:
    """The normalised data set as one tensor; a batch is one gather. With crop_flip the pixels stay uint8 until then."""

    def __init__(self, dataset, sampler, augment):
        self.sampler = sampler
        self.normalized = Normalization(dataset)
        self.augment = augment == "crop_flip"
        self.labels = torch.from_numpy(dataset.train_labels)
        self.images = torch.from_numpy(np.array(dataset.train_images))
        if not self.augment:
            self.images = self.normalized(self.images)

    def epoch(self, epoch):
        return self._batches(epoch, self.sampler.epoch(epoch))

    load_part = "data_wait"

    def load(self, images, labels):
        return images, labels

    def _batches(self, epoch, plans):
        for count, samples in plans:
            indices = torch.from_numpy(samples)
            images = self.images[indices]
            if self.augment:
                images = self.normalized(crop_flip(images, *drawn_crops(samples, self.sampler.seed, epoch)))
            yield count, (images, self.labels[indices])


class GpuBatches:
    """The data set in a GPU's memory. The tensor of a batch is its plan, a column for each sample: its number and, with
    crop_flip, its crop. `load` does all else on the GPU, so that a graph can capture it."""

    def __init__(self, dataset, sampler, augment, device):
        self.sampler = sampler
        self.device = device
        self.normalized = Normalization(dataset, device)
        self.augment = augment == "crop_flip"
        self.labels = torch.from_numpy(dataset.train_labels).to(device)
        self.images = torch.from_numpy(np.array(dataset.train_images)).to(device)
        if not self.augment:
            self.images = self.normalized(self.images)

    def epoch(self, epoch):
        plans = self.sampler.epoch(epoch)
        samples = np.concatenate([samples for _, samples in plans])
        rows = [torch.from_numpy(samples)]
        if self.augment:
            rows += drawn_crops(samples, self.sampler.seed, epoch)
        columns = torch.stack([row.long() for row in rows]).to(self.device)
        parts = columns.split([len(samples) for _, samples in plans], dim=1)
        return ((count, (part,)) for (count, _), part in zip(plans, parts))

    load_part = "data_wait"

    def load(self, plan):
        images = self.images.index_select(0, plan[0])
        if self.augment:
            images = self.normalized(crop_flip(images, plan[1], plan[2], plan[3] != 0))
        return images, self.labels.index_select(0, plan[0])


class _Samples(torch.utils.data.Dataset):
    """One sample at a time, as torchvision's data sets and transforms work. A key is (epoch, sample)."""

    def __init__(self, dataset, augment, seed):
        self.images = torch.from_numpy(np.array(dataset.train_images))
        self.labels = dataset.train_labels
        self.normalized = Normalization(dataset)
        self.augment = augment == "crop_flip"
        self.seed = seed

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, key):
        epoch, sample = key
        image = self.images[sample]
        if self.augment:
            image = crop_flip(image[None], *drawn_crops(np.array([sample]), self.seed, epoch))[0]
        return self.normalized(image), self.labels[sample]


class _BatchKeys:
    """DataLoader's batch_sampler: the keys of this rank's samples, step by step."""

    def __init__(self):
        self.epoch = 0
        self.plans = []

    def __iter__(self):
        for _, samples in self.plans:
            yield [(self.epoch, sample) for sample in samples.tolist()]

    def __len__(self):
        return len(self.plans)


class DataLoaderBatches:
    """For a GPU the batches lie in pinned memory, and their copies are waited for by the GPU alone."""

    def __init__(self, dataset, sampler, augment, workers, device):
        self.sampler = sampler
        self.device = device
        self.keys = _BatchKeys()
        self.loader = DataLoader(_Samples(dataset, augment, sampler.seed), batch_sampler=self.keys,
                                 num_workers=workers, persistent_workers=workers > 0,
                                 pin_memory=device.type == "cuda")

    def epoch(self, epoch):
        self.keys.epoch = epoch
        self.keys.plans = self.sampler.epoch(epoch)
        counts = [count for count, _ in self.keys.plans]
        return zip(counts, self.loader)

    load_part = "h2d"

    def load(self, images, labels):
        return images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
