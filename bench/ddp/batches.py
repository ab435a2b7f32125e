"""Global batches cut over ranks, as worker/data/sampler.h cuts them, from RAM or through a DataLoader.

A rank's part of a batch of n samples is [n * rank // world_size, n * (rank + 1) // world_size). The last, smaller batch
of an epoch is kept.
"""

import numpy as np
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
        """Yields (samples in the global batch, this rank's indices) for every step of the epoch."""
        order = np.random.default_rng([self.seed, epoch]).permutation(self.sample_count)
        for begin in range(0, self.sample_count, self.global_batch):
            batch = order[begin:begin + self.global_batch]
            count = len(batch)
            yield count, batch[count * self.rank // self.world_size:count * (self.rank + 1) // self.world_size]


def normalized(images, mean, deviation):
    """uint8 (n, c, h, w) to normalised float32 of the same shape."""
    images = torch.from_numpy(np.array(images)).float().div_(255)
    shape = (1, -1, 1, 1)
    return images.sub_(torch.from_numpy(mean).view(shape)).div_(torch.from_numpy(deviation).view(shape))


def crop_flip(images, generator):
    """Pads a uint8 batch by 4 zeros, crops each image to its size at a random place, flips every other one."""
    count, _, height, width = images.shape
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    top = torch.randint(0, 9, (count, 1), generator=generator)
    left = torch.randint(0, 9, (count, 1), generator=generator)
    columns = torch.arange(width).expand(count, width)
    flip = torch.randint(0, 2, (count, 1), generator=generator).bool()
    columns = torch.where(flip, width - 1 - columns, columns) + left
    rows = torch.arange(height) + top
    # Two advanced indices around a slice: the channel axis comes last.
    picked = padded[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2)


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
        """Yields (samples in the global batch, images, labels)."""
        generator = torch.Generator().manual_seed(self.sampler.seed * 1000003 + epoch * 1009 + self.sampler.rank)
        for count, indices in self.sampler.epoch(epoch):
            indices = torch.from_numpy(indices)
            images = self.images[indices]
            if self.augment:
                images = normalized(crop_flip(images, generator).numpy(), self.mean, self.deviation)
            yield count, images, self.labels[indices]


class _Samples(torch.utils.data.Dataset):
    """One sample at a time, as torchvision's data sets and transforms work."""

    def __init__(self, dataset, augment):
        self.images = torch.from_numpy(np.array(dataset.train_images))
        self.labels = dataset.train_labels
        mean, deviation = dataset.normalization()
        self.mean = torch.from_numpy(mean).view(-1, 1, 1)
        self.deviation = torch.from_numpy(deviation).view(-1, 1, 1)
        self.augment = augment == "crop_flip"

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.augment:
            top, left, flip = torch.randint(0, 9, (1,)).item(), torch.randint(0, 9, (1,)).item(), torch.rand(1) < 0.5
            _, height, width = image.shape
            image = torch.nn.functional.pad(image, (4, 4, 4, 4))[:, top:top + height, left:left + width]
            image = image.flip(2) if flip else image
        return image.float().div(255).sub_(self.mean).div_(self.deviation), self.labels[index]


class _BatchIndices:
    """A batch_sampler: this rank's indices of every step; remembers the sizes of the global batches."""

    def __init__(self, sampler):
        self.sampler = sampler
        self.current_epoch = 0

    def __iter__(self):
        for _, indices in self.sampler.epoch(self.current_epoch):
            yield indices.tolist()

    def __len__(self):
        return self.sampler.steps_per_epoch()


class DataLoaderBatches:
    def __init__(self, dataset, sampler, augment, workers):
        self.sampler = sampler
        self.indices = _BatchIndices(sampler)
        self.loader = DataLoader(_Samples(dataset, augment), batch_sampler=self.indices, num_workers=workers,
                                 persistent_workers=workers > 0)

    def epoch(self, epoch):
        self.indices.current_epoch = epoch
        counts = (count for count, _ in self.sampler.epoch(epoch))
        for count, (images, labels) in zip(counts, self.loader):
            yield count, images, labels
