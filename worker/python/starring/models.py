"""Models both ways: a layer file as a PyTorch module, and a PyTorch module as a layer file.

    from starring import models

    model = models.from_layer_file("lenet5", image=(1, 28, 28))
    loss = models.loss_from_layer_file("lenet5")
    models.to_layer_file(model, "lenet5.textproto", image=(1, 28, 28), loss=loss)

Images are (channels, height, width), as PyTorch orders them; a layer file itself says nothing of their shape. Tensors
have the names, shapes and memory order of the worker's checkpoints, so weights go both ways: model.safetensors of a
checkpoint is the `weights` of from_layer_file, and what to_layer_file writes loads as a checkpoint's does.

A checkpoint has its layer file, and how its input is normalised:

    model = models.from_checkpoint("checkpoints")
    outputs = model(images)
"""

from __future__ import annotations

import json
import os
import re
import zlib
from typing import Any, Dict, List, Tuple

import torch
from torch import nn

from . import _conversion, _text_format, layer_file, layer_graph, weights as weight_files
from ._conversion import NoCounterpartError
from ._layer_modules import LayerFileModel
from .layer_file import LayerFileError

__all__ = ["CheckpointError", "LayerFileError", "LayerFileModel", "NoCounterpartError", "TrainedModel",
           "from_checkpoint", "from_layer_file", "loss_from_layer_file", "SumOverSamples", "to_layer_file"]

Image = Tuple[int, int, int]  # channels, height, width
_VERSION = 2  # of a checkpoint's manifest


def _shape_of(image: Image) -> layer_graph.Shape:
    channels, height, width = image
    return layer_graph.Shape(height=height, width=width, channels=channels)


def from_layer_file(path: str, image: Image = (1, 28, 28), classes: int | None = None,
                    weights: str | None = None) -> LayerFileModel:
    """The module of a layer file: a path, or the name of a shipped model such as "lenet5".

    `classes`: how many outputs the last layer must have, for data of numbers or bits as many as a sample has; None: as
    many as the file says, and 10 if it leaves them to the data, as the shipped models do. `weights`: a safetensors file
    with all tensors, such as a checkpoint's model.safetensors; None: PyTorch's initial values.

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


class SumOverSamples(nn.Module):
    """The sum over the samples of MSELoss or BCEWithLogitsLoss, each the mean over the sample's outputs. PyTorch's own
    reduction "sum" adds up the outputs, too. Divided by the number of samples it is the reduction "mean".
    """

    def __init__(self, loss: nn.MSELoss | nn.BCEWithLogitsLoss) -> None:
        """`loss` has the reduction "sum"."""
        super().__init__()
        self.loss = loss

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        # Half precision would round targets, and a model in double precision takes no others.
        dtype = torch.promote_types(outputs.dtype, targets.dtype)
        total: torch.Tensor = self.loss(outputs.to(dtype), targets.to(dtype))
        return total / outputs.shape[1]


def loss_from_layer_file(path: str, reduction: str = "mean"
                         ) -> nn.CrossEntropyLoss | nn.MSELoss | nn.BCEWithLogitsLoss | SumOverSamples:
    """The loss of a layer file; `path` as from_layer_file's. CrossEntropyLoss takes logits and the numbers of classes;
    MSELoss and BCEWithLogitsLoss take outputs and targets of one shape, (samples, outputs), in float32. With the
    reduction "mean" it is what the worker reports for training and test, with "sum" the same times the samples.

    Raises LayerFileError.
    """
    loss = layer_file.load(path).loss
    if loss.kind == "softmax":
        return nn.CrossEntropyLoss(label_smoothing=loss.get("label_smoothing"), reduction=reduction)
    of_values = (nn.MSELoss if loss.kind == "mse" else nn.BCEWithLogitsLoss)(reduction=reduction)
    return SumOverSamples(of_values) if reduction == "sum" else of_values


class CheckpointError(ValueError):
    """A folder has no checkpoint, or one without a model. The message names it, and says what to do."""


class TrainedModel(nn.Module):
    """The model of a checkpoint. Input (samples, channels, height, width), or (samples, columns) for a table, as the
    data have it, pixels from 0 to 255 or numbers, of any type: it is normalised first, as the worker does. Raises
    ValueError for another shape. Output (samples, outputs), by the loss of the layer file:

    softmax  the logits of the classes
    mse      the numbers
    bce      the probabilities that the bits are 1, of which `model` has the logits

    `model` is the module of the layer file, and `loss` the name of its loss. `class_names` has the labels of the data
    by class, and is empty where those are the classes' numbers. A bit that was two classes has the names of both.
    """

    def __init__(self, model: LayerFileModel, facts: Dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.image: Image = (facts["channels"], facts["height"], facts["width"])
        self.class_names: List[str] = list(facts["class_names"])
        self.loss = model.layer_graph.file.loss.kind
        unit = 1.0 if facts["takes_numbers"] else 255.0
        # In double, and rounded once each: worker/data/normalization.h.
        mean, deviation = (torch.tensor(facts[name], dtype=torch.float32).double() for name in ("mean", "deviation"))
        self.register_buffer("offset", (unit * mean).float().view(-1, 1, 1), persistent=False)
        self.register_buffer("scale", (1 / (unit * deviation)).float().view(-1, 1, 1), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.dim() == 2 and self.image[1:] == (1, 1):
            images = images[:, :, None, None]
        if not torch.jit.is_tracing() and tuple(images.shape[1:]) != self.image:
            raise ValueError(f"the samples have the shape {tuple(images.shape[1:])}, the model takes {self.image}: "
                             "channels, height, width")
        outputs: torch.Tensor = self.model((images.float() - self.offset) * self.scale)
        return outputs.sigmoid() if self.loss == "bce" else outputs


def _checkpoints(folder: str) -> List[str]:
    """The folder itself, or those in it, the newest first."""
    if os.path.exists(os.path.join(folder, "manifest.json")):
        return [folder]
    names = os.listdir(folder) if os.path.isdir(folder) else []
    steps = {int(name[len("step-"):]): name for name in names if re.fullmatch("step-[0-9]+", name)
             and os.path.exists(os.path.join(folder, name, "manifest.json"))}
    if not steps:
        raise CheckpointError(f"{folder} holds no checkpoint: give a run's --checkpoint_dir, or one of the folders in "
                              "it")
    return [os.path.join(folder, steps[step]) for step in sorted(steps, reverse=True)]


def from_checkpoint(folder: str) -> TrainedModel:
    """The model of a checkpoint, with its weights, in eval mode. `folder` is a run's --checkpoint_dir, of which the
    newest whole checkpoint is taken, or one of the folders in it.

    Raises CheckpointError, and what from_layer_file raises.
    """
    damage: CheckpointError | None = None
    for place in _checkpoints(folder):
        try:
            return _read_checkpoint(place)
        except _DamagedError as error:
            damage = damage or error
    assert damage is not None
    raise damage


class _DamagedError(CheckpointError):
    """An older checkpoint may be whole."""


def _whole(place: str, name: str, files: Any) -> str:
    """The path of a file whose size and checksum are those of the manifest."""
    path = os.path.join(place, name)
    entry = next(entry for entry in files if entry["name"] == name)
    with open(path, "rb") as file:
        content = file.read()
    if len(content) != int(entry["size_bytes"]) or zlib.crc32(content) != entry["crc32"]:
        raise _DamagedError(f"{path} is damaged: it has {len(content)} bytes and the CRC-32 {zlib.crc32(content):08x}, "
                            f"expected {entry['size_bytes']} and {entry['crc32']:08x}")
    return path


def _read_checkpoint(place: str) -> TrainedModel:
    path = os.path.join(place, "manifest.json")
    try:
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
        if manifest["version"] > _VERSION:
            raise CheckpointError(f"{path} has version {manifest['version']}, this package reads up to {_VERSION}: "
                                  "install the one that belongs to the worker")
        facts = manifest.get("model")
        if facts is None:
            raise CheckpointError(f"{place} was written by a version that kept no model: resume from it, for one step "
                                  "or more, with this one")
        file_of_layers = layer_file.parse(facts["layer_file"].encode(), f"{place}: layer file")
        shape = layer_graph.Shape(height=facts["height"], width=facts["width"], channels=facts["channels"])
        model = TrainedModel(LayerFileModel(layer_graph.build(file_of_layers, shape, facts["outputs"])), facts)
        if not len(facts["mean"]) == len(facts["deviation"]) == facts["channels"]:
            raise _DamagedError(f"{path} has {len(facts['mean'])} means and {len(facts['deviation'])} deviations of "
                                f"{facts['channels']} channels")
        weights = _whole(place, "model.safetensors", manifest["files"])
    except (LayerFileError, CheckpointError):
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        raise _DamagedError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    try:
        model.model.load_state_dict(weight_files.load(weights))
    except RuntimeError as error:
        raise weight_files.WeightsError(f"{weights} does not fit its layer file: {error}") from error
    return model.eval()


def to_layer_file(module: nn.Module, path: str, image: Image = (1, 28, 28), weights: str | None = None,
                  loss: nn.Module | None = None) -> str:
    """Traces `module` by torch.fx and writes its layers to the layer file `path` and its tensors to the safetensors
    file `weights`, by default beside it: NET.textproto and NET.safetensors. Returns the path of the weights.

    The module takes one batch of images and returns what the loss takes, such as logits. Before anything is written,
    the layer file is read again and must compute what the module computes. Modes and weights of `module` stay as they
    are.

    `loss`: the CrossEntropyLoss, MSELoss or BCEWithLogitsLoss that the worker shall train with; None: the loss of the
    layer file that `module` was made from, and a plain CrossEntropyLoss for any other module.

    Raises NoCounterpartError, with the place in your code, for an operation that no layer can do, and for a loss that
    no layer file can have. Raises LayerFileError for layers and numbers that the worker would refuse.
    """
    converted = _conversion.convert(module, image, path)
    if loss is not None:
        converted.file.loss = _loss_of(loss)
        layer_file.check(converted.file)
    graph = layer_graph.build(converted.file, _shape_of(image))
    _check_same(module, LayerFileModel(graph), converted)
    where = weights if weights is not None else os.path.splitext(path)[0] + ".safetensors"
    weight_files.save(where, converted.tensors)
    weight_files.write_whole(path, converted.file.text().encode())
    return where


_LOSS_MODULES = {nn.CrossEntropyLoss: "softmax", nn.MSELoss: "mse", nn.BCEWithLogitsLoss: "bce"}
# Settings for which a layer file has no field, with their only values.
_LOSS_SETTINGS = {"weight": None, "pos_weight": None, "ignore_index": -100, "reduction": "mean"}


def _loss_of(module: nn.Module) -> layer_file.Loss:
    name = type(module).__name__
    kind = next((kind for one, kind in _LOSS_MODULES.items() if isinstance(module, one)), None)
    if kind is None:
        raise NoCounterpartError(f"the loss {name} has no counterpart in a layer file: use CrossEntropyLoss, MSELoss "
                                 "or BCEWithLogitsLoss")
    for setting, only in _LOSS_SETTINGS.items():
        value = getattr(module, setting, only)
        if value is not only and value != only:
            raise NoCounterpartError(f"{name} with {setting}={value} has no counterpart in a layer file: it can have "
                                     f"{setting}={only}")
    # Rounded before it is checked: the file has numbers of 32 bits.
    smoothing = {"label_smoothing": _text_format.to_float32(getattr(module, "label_smoothing", 0.0))}
    return layer_file.Loss(kind, smoothing if kind == "softmax" else {})


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
