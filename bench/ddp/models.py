"""The models of layer files in PyTorch, with the names, shapes and memory order of the worker's checkpoints.

A model is what the worker's --model takes: the name of a shipped model, or the path of a layer file. Names are checked
without PyTorch.
"""

from __future__ import annotations

import os
import sys
from typing import Any

# Where the package starring is in the source tree: this script runs under any python3 with torch.
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "worker", "python"))
from starring import layer_file


def known(name: str) -> str:
    """`name`, if it is one of a model. ValueError says what is wrong, with line and column for a layer file."""
    layer_file.load(name)
    return name


def loss_kind(name: str) -> str:
    """softmax, mse or bce: the loss in the model's layer file."""
    return layer_file.load(name).loss.kind


def create(name: str, channels: int, height: int, width: int, classes: int) -> Any:
    """A starring.models.LayerFileModel for images of this shape. `classes`: as models.from_layer_file has it."""
    from starring import models  # here, because the command line is checked without PyTorch
    return models.from_layer_file(name, (channels, height, width), classes)


def loss(name: str, reduction: str) -> Any:
    """The loss that the model's layer file asks for. With the reduction "sum" a sample counts once, however many
    outputs it has."""
    from starring import models
    return models.loss_from_layer_file(name, reduction)
