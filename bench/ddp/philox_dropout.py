"""Dropout that drops the same values as Starring: the mask of Dropout in kernels/device.h.

It computes masks slowly, in NumPy, so it serves to compare losses and never to time steps.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Tuple

import numpy as np
import philox
import torch


class PhiloxDropout(torch.nn.Module):
    """`layer` is the number of the layer in the layer file, `sample` the (channels, height, width) that it reads. Call
    `prepare` before each forward."""

    def __init__(self, rate: float, layer: int, seed: int, sample: Tuple[int, int, int]) -> None:
        super().__init__()
        self.rate, self.layer, self.seed, self.sample = rate, layer, seed, sample
        self.step = self.first_sample = 0
        # The mask for each shape of x. A captured graph reads this memory, so prepare() fills it in place.
        self.kept: Dict[torch.Size, torch.Tensor] = {}

    def prepare(self, step: int, first_sample: int) -> None:
        self.step, self.first_sample = step, first_sample
        for shape, kept in self.kept.items():
            kept.copy_(self._mask(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        if x.shape not in self.kept:
            self.kept[x.shape] = self._mask(x.shape).to(x.device)
        scale = float(np.float32(1) / (np.float32(1) - np.float32(self.rate)))
        return torch.where(self.kept[x.shape], x * scale, torch.zeros((), dtype=x.dtype, device=x.device))

    def _mask(self, whole_shape: torch.Size) -> torch.Tensor:
        # Element e (in NHWC order) of the sample at position p of the global batch has word p * elements + e.
        count, (channels, height, width) = whole_shape[0], self.sample
        elements = channels * height * width
        first, end = self.first_sample * elements, (self.first_sample + count) * elements
        groups = np.arange(first // 4, (end + 3) // 4)
        words = philox.words(self.seed, philox.DROPOUT, self.layer, self.step, groups).reshape(-1)
        words = words[first % 4:first % 4 + count * elements]
        keep = torch.from_numpy((words >> np.uint32(8)) >= math.ceil(self.rate * 2**24))
        return keep.view(count, height, width, channels).permute(0, 3, 1, 2).reshape(whole_shape)


def install(model: Any, seed: int) -> list[PhiloxDropout]:
    """Replaces the dropouts of `model`. Returns the new ones, for which the caller calls prepare()."""
    installed = []
    for name, number in model.layer_graph.dropout_layers.items():
        before = model.layer_graph.layers[number].before
        dropout = PhiloxDropout(model.get_submodule(name).p, number, seed,
                                (before.channels, before.height, before.width))
        parent, _, part = name.rpartition(".")
        setattr(model.get_submodule(parent), part, dropout)
        installed.append(dropout)
    return installed
