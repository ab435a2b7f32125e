"""Models both ways: a layer file as a PyTorch module, and a PyTorch module as a layer file.

    from starring import models

    model = models.from_layer_file("lenet5", image=(1, 28, 28))
    models.to_layer_file(model, "lenet5.textproto", image=(1, 28, 28))

Images are (channels, height, width), as PyTorch orders them; a layer file itself says nothing of their shape. Tensors
have the names, shapes and memory order of the worker's checkpoints, so weights go both ways: model.safetensors of a
checkpoint is the `weights` of from_layer_file, and what to_layer_file writes loads as a checkpoint's does.
"""

from __future__ import annotations

import os
from typing import Tuple

import torch
from torch import nn

from . import _conversion, layer_file, layer_graph, weights as weight_files
from ._conversion import NoCounterpartError
from ._layer_modules import LayerFileModel
from .layer_file import LayerFileError

__all__ = ["LayerFileError", "LayerFileModel", "NoCounterpartError", "from_layer_file", "to_layer_file"]

Image = Tuple[int, int, int]  # channels, height, width


def _shape_of(image: Image) -> layer_graph.Shape:
    channels, height, width = image
    return layer_graph.Shape(height=height, width=width, channels=channels)


def from_layer_file(path: str, image: Image = (1, 28, 28), classes: int | None = None,
                    weights: str | None = None) -> LayerFileModel:
    """The module of a layer file: a path, or the name of a shipped model such as "lenet5".

    `classes`: how many outputs the last layer must have; None: as many as the file says, and 10 if it leaves them to
    the data, as the shipped models do. `weights`: a safetensors file with all tensors, such as a checkpoint's
    model.safetensors; None: PyTorch's initial values.

    Raises LayerFileError, with line and column, for a file that the worker would refuse as well, and
    starring.weights.WeightsError for weights of another model.
    """
    model = LayerFileModel(layer_graph.build(layer_file.load(path), _shape_of(image), classes))
    if weights is not None:
        try:
            model.load_state_dict(weight_files.load(weights))
        except RuntimeError as error:
            raise weight_files.WeightsError(f"{weights} does not fit {path}: {error}") from error
    return model


def to_layer_file(module: nn.Module, path: str, image: Image = (1, 28, 28), weights: str | None = None) -> str:
    """Traces `module` by torch.fx and writes its layers to the layer file `path` and its tensors to the safetensors
    file `weights`, by default beside it: NET.textproto and NET.safetensors. Returns the path of the weights.

    The module takes one batch of images and returns logits. Before anything is written, the layer file is read again
    and must compute what the module computes. Modes and weights of `module` stay as they are.

    Raises NoCounterpartError, with the place in your code, for an operation that no layer can do, and LayerFileError
    for layers that the worker would refuse.
    """
    converted = _conversion.convert(module, image, path)
    graph = layer_graph.build(converted.file, _shape_of(image))
    _check_same(module, LayerFileModel(graph), converted)
    where = weights if weights is not None else os.path.splitext(path)[0] + ".safetensors"
    weight_files.save(where, converted.tensors)
    weight_files.write_whole(path, converted.file.text().encode())
    return where


def _check_same(module: nn.Module, again: LayerFileModel, converted: _conversion.Converted) -> None:
    again.load_state_dict(converted.tensors)
    again.eval()
    with torch.no_grad():
        ours = again(converted.example.to("cpu", torch.float32)).double()
    theirs = converted.output.to("cpu").double()
    error = (ours - theirs).abs().max().item() if ours.shape == theirs.shape else float("inf")
    if not error <= 1e-4 * (1 + theirs.abs().max().item()):
        raise NoCounterpartError(f"{type(module).__name__}: the layers compute something else: outputs of shape "
                                 f"{tuple(ours.shape)} differ by up to {error}, the module's have shape "
                                 f"{tuple(theirs.shape)}: please report the module, it was translated wrongly")
