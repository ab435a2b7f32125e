"""A layer file combined with the shape of an image: the shapes, tensors and inputs of every layer.

What worker/model/network_graph.h does for the worker, with the same refusals in the same words. Needs no PyTorch.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, List, NoReturn, Tuple

from ._layer_table import GraphLayer, LAYERS, LIMITS, Shape
from .layer_file import IMAGE, LayerFile, LayerFileError

READS_IMAGE = -1  # instead of a layer's number
DEFAULT_OUTPUTS = 10  # of a last layer that leaves them to the data, where there are no data


@dataclasses.dataclass
class LayerGraph:
    """All layers of a file in forward order."""
    file: LayerFile
    image: Shape
    layers: List[GraphLayer]

    @property
    def tensor_names(self) -> List[str]:
        """The trainable tensors in the order of the worker's layout."""
        return [name for layer in self.layers for name in layer.tensor_names]

    @property
    def flattened(self) -> Dict[str, Tuple[int, int, int]]:
        """By the name of each weight that reads a flattened image: the image's (channels, height, width)."""
        return {layer.name + ".weight": (layer.before.channels, layer.before.height, layer.before.width)
                for layer in self.layers if layer.flattens}

    @property
    def dropout_layers(self) -> Dict[str, int]:
        """By the name of each dropout: the number of its layer, which decides what the worker drops."""
        return {layer.name: number for number, layer in enumerate(self.layers) if layer.kind == "dropout"}


def build(file: LayerFile, image: Shape, classes: int | None = None) -> LayerGraph:
    """The graph of `file` for images of this shape. With `classes`, the last layer must have so many outputs; for data
    of numbers or bits they are those of a sample. Without, a last layer that leaves its units to the data has
    DEFAULT_OUTPUTS.

    Raises LayerFileError.
    """
    if min(image.height, image.width, image.channels) < 1 or (classes is not None and classes < 1):
        raise LayerFileError(f"the images have {image} values and {classes} classes or targets: every number must be 1 "
                             "or more")
    builder = _Builder(file, image, DEFAULT_OUTPUTS if classes is None else classes)
    for number in range(len(file.layers)):
        builder.add(number)
    _check_last(file, builder.layers[-1], classes)
    graph = LayerGraph(file, image, builder.layers)
    if not graph.tensor_names:
        raise LayerFileError(f"{file.file_name}: no layer has anything to train")
    return graph


def _check_last(file: LayerFile, last: GraphLayer, classes: int | None) -> None:
    number = len(file.layers) - 1
    wanted = last.after.channels if classes is None else classes
    # The loss takes one number for each class or target.
    if last.after.height * last.after.width != 1:
        raise file.error(number, "", f"is the last layer, its output must be {wanted} numbers a sample, it is "
                                     f"{last.after}: end with dense {{}}")
    if last.after.channels != wanted:
        targets = f"{wanted} classes" if file.loss.kind == "softmax" else f"{wanted} targets a sample"
        raise file.error(number, "units" if last.kind == "dense" else "",
                         f"is the last layer and has {last.after.channels} outputs, the data set has {targets}: both "
                         "must be equal" + (", so leave `units` out" if last.kind == "dense" else ""))


class _Builder:
    """Adds layers in file order, so that the shape of every input is known when a layer needs it."""

    def __init__(self, file: LayerFile, image: Shape, outputs: int) -> None:
        self.layers: List[GraphLayer] = []
        self._file, self._image, self._outputs = file, image, outputs
        self._numbers: Dict[str, int] = {IMAGE: READS_IMAGE}

    def add(self, number: int) -> None:
        source = self._file.layers[number]
        # The number of the layer above the first one is READS_IMAGE.
        inputs = [self._numbers[name] for name in source.inputs] or [number - 1]
        shapes = [self._image if one == READS_IMAGE else self.layers[one].after for one in inputs]
        names = [IMAGE if one == READS_IMAGE else self.layers[one].name for one in inputs]
        layer = GraphLayer(source.name, source.kind, inputs, shapes[0], shapes[0])
        place = _Place(self._file, number, self._outputs, shapes, names)
        LAYERS[source.kind].build(place, layer)
        limit = LIMITS["kSampleElementsMax"]
        if layer.after.elements > limit:
            place.fail("", f"its output has {layer.after.elements} elements a sample, at most {limit} are allowed")
        if math.prod(layer.weight_shape) > LIMITS["kElementCountMax"]:
            place.fail("", f"its tensor {layer.name}.weight has {math.prod(layer.weight_shape)} elements, at most "
                           f"{LIMITS['kElementCountMax']} are allowed")
        self._numbers[layer.name] = number
        self.layers.append(layer)


@dataclasses.dataclass
class _Place:
    """One layer of a file, and what it reads."""
    file: LayerFile
    number: int
    outputs: int
    shapes: List[Shape]
    names: List[str]

    @property
    def is_last(self) -> bool:
        """Whether no layer comes below it."""
        return self.number + 1 == len(self.file.layers)

    def get(self, field: str) -> Any:
        """A field of the layer's kind."""
        return self.file.layers[self.number].get(field)

    def fail(self, field: str, reason: str) -> NoReturn:
        """Refuses the layer."""
        raise self.file.error(self.number, field, reason)
