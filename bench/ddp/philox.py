"""Starring's random numbers in NumPy: common/arithmetic/philox.h and the values drawn from it.

With them the peer visits the samples in the same order, augments them alike and starts from the same weights. So two
loss curves differ only by rounding, and by dropout's masks, which are PyTorch's own unless --dropout=starring.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

INIT, SHUFFLE, AUGMENT, DROPOUT, SYNTHETIC, SPLIT = 1, 2, 3, 4, 5, 7  # RandomPurpose
_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def words(seed: int, purpose: int, stream: int, epoch: int, elements: np.ndarray) -> np.ndarray:
    """RandomKey{seed, purpose, stream, epoch}.At(element) for each element: (len(elements), 4) uint32."""
    elements = np.asarray(elements, np.uint64)
    constant = np.zeros_like(elements)
    counter = [elements & _MASK, elements >> _HALF, constant + np.uint64(epoch),
               constant + np.uint64(purpose << 24 | stream)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        product0 = np.uint64(0xD2511F53) * counter[0]
        product1 = np.uint64(0xCD9E8D57) * counter[2]
        counter = [(product1 >> _HALF) ^ counter[1] ^ np.uint64(key[0]), product1 & _MASK,
                   (product0 >> _HALF) ^ counter[3] ^ np.uint64(key[1]), product0 & _MASK]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(counter, axis=1).astype(np.uint32)


def permutation(sample_count: int, seed: int, epoch: int, purpose: int = SHUFFLE) -> np.ndarray:
    """The order in which `epoch` visits the samples: worker/data/sampler.h."""
    draws = words(seed, purpose, 0, epoch, np.arange((sample_count + 3) // 4)).reshape(-1)[:sample_count]
    targets = (draws.astype(np.uint64) * np.arange(1, sample_count + 1, dtype=np.uint64) >> _HALF).tolist()
    order = list(range(sample_count))
    for i in range(sample_count - 1, 0, -1):
        j = targets[i]
        order[i], order[j] = order[j], order[i]
    return np.array(order)


def crops(samples: np.ndarray, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(top, left, flip) of each sample: worker/data/crop_flip.h."""
    drawn = words(seed, AUGMENT, 0, epoch, samples).astype(np.uint64)
    top, left = (drawn[:, :2] * np.uint64(9) >> _HALF).astype(np.int64).T
    return top, left, drawn[:, 2] >= 2**31


def pictures(seed: int, stream: int, count: int, picture_bytes: int) -> np.ndarray:
    """(count, picture_bytes) uint8: the random pictures of worker/data/dataset_readers.h."""
    blocks = -(-picture_bytes // 16)
    drawn = words(seed, SYNTHETIC, stream, 0, np.arange(count * blocks)).astype("<u4")
    return drawn.view(np.uint8).reshape(count, 16 * blocks)[:, :picture_bytes]


def initialize(model: Any, seed: int) -> None:
    """Sets the initial values of a model's parameters: worker/model/network_graph.h."""
    parameters = dict(model.named_parameters())
    fan_in = {}
    for number, name in enumerate(model.layer_graph.tensor_names):
        tensor = parameters[name]
        module = name.rsplit(".", 1)[0]
        if not isinstance(model.get_submodule(module), (torch.nn.Conv2d, torch.nn.Linear)):
            continue  # a norm: PyTorch's initial 1 and 0 are also ours
        if name.endswith(".weight"):
            fan_in[module] = tensor[0].numel()
        count = tensor.numel()
        drawn = words(seed, INIT, number, 0, np.arange((count + 3) // 4)).reshape(-1)[:count]
        unit = (drawn >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
        values = (np.float32(2) * unit - np.float32(1)) * np.float32(1 / math.sqrt(fan_in[module]))
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(values).view(tensor.shape))
