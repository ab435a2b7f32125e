"""Global batches cut over ranks, as worker/data/sampler.h cuts them, from RAM or through a DataLoader.

A rank's part of a batch of n samples is [n * rank // world_size, n * (rank + 1) // world_size). The last, smaller batch
of an epoch is kept.
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


def normalized(images, mean, deviation):
    """uint8 (n, c, h, w) to normalised float32 of the same shape."""
    images = torch.from_numpy(np.array(images)).float().div_(255)
    shape = (1, -1, 1, 1)
    return images.sub_(torch.from_numpy(mean).view(shape)).div_(torch.from_numpy(deviation).view(shape))


def crop_flip(images, top, left, flip):
    """Pads a uint8 batch by 4 zeros, crops each image to its size from (top, left), mirrors it where `flip`."""
    count, _, height, width = images.shape
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    columns = torch.arange(width).expand(count, width)
    columns = torch.where(torch.from_numpy(flip)[:, None], width - 1 - columns, columns)
    columns = columns + torch.from_numpy(left)[:, None]
    rows = torch.arange(height) + torch.from_numpy(top)[:, None]
    # Advanced indices around a slice: the channel axis comes last.
    picked = padded[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2).contiguous()


class RamBatches:
    """The normalised data set as one tensor; a batch is one gather. With crop_flip the pixels stay uint8 until then."""

    def __init__(self, dataset, sampler, augment):
        self.sampler = sampler
        self.mean, self.deviation = dataset.normalization()
        self.augment = augment == "crop_flip"
        self.labels = torch.from_numpy(dataset.train_labels)
        if self.augment:
            self.images = torch.from_numpy(np.array(dataset.train_images))
        else:
            self.images = normalized(dataset.train_images, self.mean, self.deviation)

    def epoch(self, epoch):
        """Iterates over (samples in the global batch, images, labels); the order is drawn before it returns."""
        return self._batches(epoch, self.sampler.epoch(epoch))

    def _batches(self, epoch, plans):
        for count, samples in plans:
            indices = torch.from_numpy(samples)
            images = self.images[indices]
            if self.augment:
                crops = philox.crops(samples, self.sampler.seed, epoch)
                images = normalized(crop_flip(images, *crops).numpy(), self.mean, self.deviation)
            yield count, images, self.labels[indices]


class _Samples(torch.utils.data.Dataset):
    """One sample at a time, as torchvision's data sets and transforms work. A key is (epoch, sample)."""

    def __init__(self, dataset, augment, seed):
        self.images = torch.from_numpy(np.array(dataset.train_images))
        self.labels = dataset.train_labels
        mean, deviation = dataset.normalization()
        self.mean = torch.from_numpy(mean).view(-1, 1, 1)
        self.deviation = torch.from_numpy(deviation).view(-1, 1, 1)
        self.augment = augment == "crop_flip"
        self.seed = seed

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, key):
        epoch, sample = key
        image = self.images[sample]
        if self.augment:
            crops = philox.crops(np.array([sample]), self.seed, epoch)
            image = crop_flip(image[None], *crops)[0]
        return image.float().div(255).sub_(self.mean).div_(self.deviation), self.labels[sample]


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
    def __init__(self, dataset, sampler, augment, workers):
        self.sampler = sampler
        self.keys = _BatchKeys()
        self.loader = DataLoader(_Samples(dataset, augment, sampler.seed), batch_sampler=self.keys,
                                 num_workers=workers, persistent_workers=workers > 0)

    def epoch(self, epoch):
        """As RamBatches.epoch."""
        self.keys.epoch = epoch
        self.keys.plans = self.sampler.epoch(epoch)
        counts = [count for count, _ in self.keys.plans]
        return ((count, images, labels) for count, (images, labels) in zip(counts, self.loader))
