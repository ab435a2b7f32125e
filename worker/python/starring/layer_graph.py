"""A layer file combined with the shape of an image: the shapes, tensors and inputs of every layer.

What worker/model/network_graph.h does for the worker, with the same refusals in the same words. Needs no PyTorch.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Dict, List, NoReturn, Tuple

from .layer_file import IMAGE, Layer, LayerFile, LayerFileError, LIMITS

READS_IMAGE = -1  # instead of a layer's number
DEFAULT_OUTPUTS = 10  # of a last layer that leaves them to the data, where there are no data


@dataclasses.dataclass(frozen=True)
class Shape:
    """One sample. Flattening changes only `flat`; layers that need an image refuse a flat sample."""
    height: int
    width: int
    channels: int
    flat: bool = False

    @property
    def elements(self) -> int:
        return self.height * self.width * self.channels

    def __str__(self) -> str:
        return f"{self.elements} (flat)" if self.flat else f"{self.height} x {self.width} x {self.channels}"


@dataclasses.dataclass
class GraphLayer:
    """One layer with its shapes, and its settings with the defaults filled in."""
    name: str
    kind: str
    inputs: List[int]  # numbers of layers above, or READS_IMAGE
    before: Shape  # of the first input
    after: Shape
    kernel: int = 1
    stride: int = 1
    padding: int = 0
    relu: bool = False
    has_bias: bool = False
    epsilon: float = 1e-5
    momentum: float = 0.1
    rate: float = 0.0
    weight_shape: Tuple[int, ...] = ()  # PyTorch's; empty if the layer has no tensors

    @property
    def tensor_names(self) -> List[str]:
        return [self.name + suffix for suffix in (".weight", ".bias")[:bool(self.weight_shape) + self.has_bias]]

    @property
    def flattens(self) -> bool:
        """Whether it is a dense layer that reads an image of several channels: our memory order of its weight is (out,
        height, width, channels), PyTorch's (out, channels, height, width)."""
        return self.kind == "dense" and self.before.channels > 1 and self.before.height * self.before.width > 1


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
        before = self._shape_of(inputs[0])
        layer = GraphLayer(source.name, source.kind, inputs, before, before)
        getattr(self, "_add_" + source.kind)(number, source, layer)
        limit = LIMITS["kSampleElementsMax"]
        if layer.after.elements > limit:
            raise self._file.error(number, "", f"its output has {layer.after.elements} elements a sample, at most "
                                               f"{limit} are allowed")
        if math.prod(layer.weight_shape) > LIMITS["kElementCountMax"]:
            raise self._file.error(number, "", f"its tensor {layer.name}.weight has {math.prod(layer.weight_shape)} "
                                               f"elements, at most {LIMITS['kElementCountMax']} are allowed")
        self._numbers[layer.name] = number
        self.layers.append(layer)

    def _shape_of(self, number: int) -> Shape:
        return self._image if number == READS_IMAGE else self.layers[number].after

    def _name_of(self, number: int) -> str:
        return IMAGE if number == READS_IMAGE else self.layers[number].name

    def _fail(self, number: int, field: str, reason: str) -> NoReturn:
        raise self._file.error(number, field, reason)

    def _require_image(self, number: int, layer: GraphLayer) -> None:
        if layer.before.flat:
            self._fail(number, "", f"needs an image, its input is {layer.before}")

    def _slide_window(self, number: int, layer: GraphLayer, channels: int) -> None:
        kernel, stride, padding = layer.kernel, layer.stride, layer.padding
        height, width = layer.before.height + 2 * padding, layer.before.width + 2 * padding
        if kernel > min(height, width):
            padded = f" with padding {padding}" if padding > 0 else ""
            self._fail(number, "kernel", f"kernel {kernel} is larger than its input, {layer.before}{padded}: the "
                                         "output would have a size below 1")
        # The division rounds down, as PyTorch's does: a window that does not fit is left out.
        layer.after = Shape((height - kernel) // stride + 1, (width - kernel) // stride + 1, channels)

    def _add_conv2d(self, number: int, source: Layer, layer: GraphLayer) -> None:
        self._require_image(number, layer)
        layer.kernel, layer.stride = source.get("kernel"), source.get("stride") or 1
        layer.padding, layer.relu = source.get("padding"), source.get("relu")
        layer.has_bias = not source.get("no_bias")
        self._slide_window(number, layer, source.get("out_channels"))
        layer.weight_shape = (source.get("out_channels"), layer.before.channels, layer.kernel, layer.kernel)

    def _add_dense(self, number: int, source: Layer, layer: GraphLayer) -> None:
        del number
        layer.relu, layer.has_bias = source.get("relu"), not source.get("no_bias")
        units = source.get("units") or self._outputs
        layer.after = Shape(1, 1, units, flat=True)
        layer.weight_shape = (units, layer.before.elements)

    def _add_relu(self, number: int, source: Layer, layer: GraphLayer) -> None:
        del number, source
        layer.relu = True

    def _add_max_pool(self, number: int, source: Layer, layer: GraphLayer) -> None:
        self._require_image(number, layer)
        layer.kernel, layer.padding = source.get("kernel"), source.get("padding")
        layer.stride = source.get("stride") or layer.kernel
        self._slide_window(number, layer, layer.before.channels)

    def _add_global_average_pool(self, number: int, source: Layer, layer: GraphLayer) -> None:
        del source
        self._require_image(number, layer)
        layer.after = Shape(1, 1, layer.before.channels, flat=True)

    def _add_batch_norm(self, number: int, source: Layer, layer: GraphLayer) -> None:
        # PyTorch would see height * width * channels features here, each with a mean of its own.
        if layer.before.flat and layer.before.height * layer.before.width > 1:
            self._fail(number, "", "batch_norm of a flattened image is not supported: put it before flatten")
        layer.relu, layer.has_bias = source.get("relu"), True
        layer.epsilon = source.get("epsilon") or layer.epsilon
        layer.momentum = source.get("momentum") or layer.momentum
        layer.weight_shape = (layer.before.channels,)

    def _add_dropout(self, number: int, source: Layer, layer: GraphLayer) -> None:
        del number
        layer.rate = source.get("rate")

    def _add_add(self, number: int, source: Layer, layer: GraphLayer) -> None:
        layer.relu = source.get("relu")
        other = self._shape_of(layer.inputs[1])
        # PyTorch would broadcast one of two different shapes, and a model with a wrong shape would train.
        if layer.before != other:
            self._fail(number, "input", f"adds {layer.before} ({self._name_of(layer.inputs[0])}) and {other} "
                                        f"({self._name_of(layer.inputs[1])}): both must have one shape")

    def _add_flatten(self, number: int, source: Layer, layer: GraphLayer) -> None:
        del number, source
        layer.after = dataclasses.replace(layer.before, flat=True)
