"""The table of layers: a row says everything about a kind of layer. worker/model/layer_table.cc is the worker's.

layer_file.py reads the fields and their ranges, layer_graph.py the shapes; _layer_modules.py has the PyTorch modules.
Needs no PyTorch.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Dict, List, NoReturn, Protocol, Tuple

# common/base/limits.h; tests/worker/python/layer_file_test.py compares the two.
LIMITS = {"kLayerFileBytesMax": 1 << 20, "kLayerCountMax": 4096, "kLayerNameBytesMax": 255, "kLayerWidthMax": 1 << 20,
          "kLayerKernelMax": 1 << 12, "kConcatInputsMax": 64, "kSampleElementsMax": 1 << 31,
          "kElementCountMax": 1 << 36}


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
    depthwise: bool = False
    groups: int = 1  # of a norm
    activation: str = ""  # one of ACTIVATIONS
    slope: float = 0.01  # of leaky_relu
    factor: float = 1.0  # of scale
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


class Place(Protocol):
    """One layer of a file, with the fields that it sets."""

    @property
    def is_last(self) -> bool:
        """Whether no layer comes below it."""

    def get(self, field: str) -> Any:
        """A field of the layer's kind; a field that is not set has protobuf's default."""

    def fail(self, field: str, reason: str) -> NoReturn:
        """Refuses the layer, at `field` if the text sets it."""


class Build(Place, Protocol):
    """A layer that is added to a graph."""

    @property
    def outputs(self) -> int:
        """What the data need of the last layer."""

    @property
    def shapes(self) -> List[Shape]:
        """Of the inputs."""

    @property
    def names(self) -> List[str]:
        """Of the inputs."""


def _check_range(at: Place, field: str, lowest: int, highest: int) -> None:
    value = at.get(field)
    if not lowest <= value <= highest:
        at.fail(field, f"{field} is {value}, it must be from {lowest} to {highest}")


def _check_window(at: Place) -> None:
    _check_range(at, "kernel", 1, LIMITS["kLayerKernelMax"])
    _check_range(at, "stride", 0, LIMITS["kLayerKernelMax"])


def _require_image(at: Build) -> None:
    if at.shapes[0].flat:
        at.fail("", f"needs an image, its input is {at.shapes[0]}")


def _slide_window(at: Build, layer: GraphLayer, channels: int) -> None:
    kernel, stride, padding = layer.kernel, layer.stride, layer.padding
    height, width = layer.before.height + 2 * padding, layer.before.width + 2 * padding
    if kernel > min(height, width):
        padded = f" with padding {padding}" if padding > 0 else ""
        at.fail("kernel", f"kernel {kernel} is larger than its input, {layer.before}{padded}: the output would have a "
                          "size below 1")
    # The division rounds down, as PyTorch's does: a window that does not fit is left out.
    layer.after = Shape((height - kernel) // stride + 1, (width - kernel) // stride + 1, channels)


ACTIVATIONS = ("relu6", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu", "leaky_relu")


def _shown(text: str) -> str:
    """A text of any length and any characters, as a message has it."""
    content = text.encode("utf-8", "surrogateescape")
    limit = 32
    return "".join(chr(one) if 32 <= one <= 126 else "?" for one in content[:limit]) + "..." * (len(content) > limit)


def _check_function(at: Place, field: str) -> None:
    if at.get(field) not in ACTIVATIONS:
        at.fail(field, f"{field} is \"{_shown(at.get(field))}\", it must be {', '.join(ACTIVATIONS[:-1])} or "
                       f"{ACTIVATIONS[-1]}")


def _check_activation_field(at: Place) -> None:
    if not at.get("activation"):
        return
    if at.get("relu"):
        at.fail("activation", "has relu and an activation, it can have one of them")
    _check_function(at, "activation")


def _check_activation(at: Place) -> None:
    _check_function(at, "function")
    slope = at.get("slope")
    if not slope >= 0 or math.isinf(slope):
        at.fail("slope", f"slope is {slope:g}, it must be 0 or more (0 means 0.01)")
    if slope != 0 and at.get("function") != "leaky_relu":
        at.fail("slope", f"slope is {slope:g}, which only leaky_relu has")


def _build_activation(at: Build, layer: GraphLayer) -> None:
    layer.activation, layer.slope = at.get("function"), at.get("slope") or layer.slope


def _check_scale(at: Place) -> None:
    factor = at.get("factor")
    if factor == 0 or not math.isfinite(factor):
        at.fail("factor", f"factor is {factor:g}, it must be a finite number other than 0")


def _build_scale(at: Build, layer: GraphLayer) -> None:
    layer.factor = at.get("factor")


def _check_conv2d(at: Place) -> None:
    _check_range(at, "out_channels", 0 if at.get("depthwise") else 1, LIMITS["kLayerWidthMax"])
    _check_window(at)
    _check_range(at, "padding", 0, LIMITS["kLayerKernelMax"])
    _check_activation_field(at)


def _build_conv2d(at: Build, layer: GraphLayer) -> None:
    _require_image(at)
    layer.kernel, layer.stride = at.get("kernel"), at.get("stride") or 1
    layer.padding, layer.relu, layer.has_bias = at.get("padding"), at.get("relu"), not at.get("no_bias")
    layer.activation, layer.depthwise = at.get("activation"), at.get("depthwise")
    out, channels = at.get("out_channels"), layer.before.channels
    _slide_window(at, layer, channels if layer.depthwise else out)
    if layer.depthwise and out not in (0, channels):
        at.fail("out_channels", f"out_channels is {out}, a depthwise convolution has as many as its input, {channels}: "
                                "leave it out")
    layer.weight_shape = (layer.after.channels, 1 if layer.depthwise else channels, layer.kernel, layer.kernel)


def _check_dense(at: Place) -> None:
    # The last layer may leave its units to the data.
    if at.get("units") != 0 or not at.is_last:
        _check_range(at, "units", 1, LIMITS["kLayerWidthMax"])
    _check_activation_field(at)


def _build_dense(at: Build, layer: GraphLayer) -> None:
    layer.relu, layer.has_bias = at.get("relu"), not at.get("no_bias")
    layer.activation = at.get("activation")
    units = at.get("units") or at.outputs
    layer.after = Shape(1, 1, units, flat=True)
    layer.weight_shape = (units, layer.before.elements)


def _build_relu(at: Build, layer: GraphLayer) -> None:
    del at
    layer.relu = True


def _check_pool(at: Place) -> None:
    _check_window(at)
    # With more padding, some windows would see nothing but padding, and have no maximum.
    _check_range(at, "padding", 0, at.get("kernel") // 2)


def _build_pool(at: Build, layer: GraphLayer) -> None:
    _require_image(at)
    layer.kernel, layer.padding = at.get("kernel"), at.get("padding")
    layer.stride = at.get("stride") or layer.kernel
    _slide_window(at, layer, layer.before.channels)


def _build_global_average_pool(at: Build, layer: GraphLayer) -> None:
    _require_image(at)
    layer.after = Shape(1, 1, layer.before.channels, flat=True)


def _check_epsilon(at: Place) -> None:
    epsilon = at.get("epsilon")
    if not epsilon >= 0 or math.isinf(epsilon):
        at.fail("epsilon", f"epsilon is {epsilon:g}, it must be 0 or more (0 means 1e-5)")


def _check_batch_norm(at: Place) -> None:
    _check_epsilon(at)
    if not 0 <= at.get("momentum") <= 1:
        at.fail("momentum", f"momentum is {at.get('momentum'):g}, it must be from 0 to 1 (0 means 0.1)")


def _build_batch_norm(at: Build, layer: GraphLayer) -> None:
    # PyTorch would see height * width * channels features here, each with a mean of its own.
    if layer.before.flat and layer.before.height * layer.before.width > 1:
        at.fail("", "batch_norm of a flattened image is not supported: put it before flatten")
    layer.relu, layer.has_bias = at.get("relu"), True
    layer.epsilon = at.get("epsilon") or layer.epsilon
    layer.momentum = at.get("momentum") or layer.momentum
    layer.weight_shape = (layer.before.channels,)


def _check_group_norm(at: Place) -> None:
    _check_range(at, "groups", 1, LIMITS["kLayerWidthMax"])
    _check_epsilon(at)


def _build_group_norm(at: Build, layer: GraphLayer) -> None:
    if layer.before.flat and layer.before.height * layer.before.width > 1:
        at.fail("", "group_norm of a flattened image is not supported: put it before flatten")
    layer.groups, channels = at.get("groups"), layer.before.channels
    if channels % layer.groups != 0:
        at.fail("groups", f"groups is {layer.groups}, its input has {channels} channels: all groups must have as many")
    layer.epsilon = at.get("epsilon") or layer.epsilon
    layer.weight_shape, layer.has_bias = (channels,), True


def _build_layer_norm(at: Build, layer: GraphLayer) -> None:
    shape = layer.before
    if shape.flat and shape.height * shape.width > 1:
        at.fail("", "layer_norm of a flattened image is not supported: put it before flatten")
    layer.epsilon, layer.has_bias = at.get("epsilon") or layer.epsilon, True
    layer.weight_shape = (shape.channels,) if shape.flat else (shape.channels, shape.height, shape.width)


def _check_dropout(at: Place) -> None:
    if not 0 <= at.get("rate") < 1:
        at.fail("rate", f"rate is {at.get('rate'):g}, it must be 0 or more and below 1")


def _build_dropout(at: Build, layer: GraphLayer) -> None:
    layer.rate = at.get("rate")


def _build_add(at: Build, layer: GraphLayer) -> None:
    layer.relu = at.get("relu")
    # PyTorch would broadcast one of two different shapes, and a model with a wrong shape would train.
    if at.shapes[0] != at.shapes[1]:
        at.fail("input", f"adds {at.shapes[0]} ({at.names[0]}) and {at.shapes[1]} ({at.names[1]}): both must have one "
                         "shape")


def _build_concat(at: Build, layer: GraphLayer) -> None:
    first = at.shapes[0]
    for shape, name in zip(at.shapes, at.names):
        # In memory the pixels of the inputs would alternate; PyTorch would put one image after the other.
        if shape.flat and shape.height * shape.width > 1:
            at.fail("", "concat of a flattened image is not supported: put it before flatten")
        joins = f"joins {first} ({at.names[0]}) and {shape} ({name})"
        if (shape.height, shape.width) != (first.height, first.width):
            at.fail("input", f"{joins}: all must have one height and width")
        if shape.flat != first.flat:
            at.fail("input", f"{joins}: all must be flat or none, put a flatten layer after "
                             f"{at.names[0] if shape.flat else name}")
    layer.after = dataclasses.replace(first, channels=sum(shape.channels for shape in at.shapes))


def _build_flatten(at: Build, layer: GraphLayer) -> None:
    del at
    layer.after = dataclasses.replace(layer.before, flat=True)


def _check_nothing(at: Place) -> None:
    del at


TWO_OR_MORE = -2


@dataclasses.dataclass(frozen=True)
class LayerType:
    """One row."""
    message: str  # of the proto
    fields: Dict[str, str]  # the types of its fields
    build: Callable[[Build, GraphLayer], None]  # shapes and settings; `after` is `before` until then
    check: Callable[[Place], None] = _check_nothing  # the ranges of its numbers
    input_count: int = 1  # a layer that names none reads the one above; or TWO_OR_MORE


# In the order of the proto.
LAYERS: Dict[str, LayerType] = {
    "conv2d": LayerType("Conv2d", {"out_channels": "int32", "kernel": "int32", "stride": "int32", "padding": "int32",
                                   "relu": "bool", "no_bias": "bool", "activation": "string", "depthwise": "bool"},
                        _build_conv2d, _check_conv2d),
    "dense": LayerType("Dense", {"units": "int32", "relu": "bool", "no_bias": "bool", "activation": "string"},
                       _build_dense, _check_dense),
    "relu": LayerType("Relu", {}, _build_relu),
    "max_pool": LayerType("MaxPool2d", {"kernel": "int32", "stride": "int32", "padding": "int32"}, _build_pool,
                          _check_pool),
    "global_average_pool": LayerType("GlobalAveragePool", {}, _build_global_average_pool),
    "batch_norm": LayerType("BatchNorm", {"relu": "bool", "epsilon": "float", "momentum": "float"}, _build_batch_norm,
                            _check_batch_norm),
    "dropout": LayerType("Dropout", {"rate": "float"}, _build_dropout, _check_dropout),
    "add": LayerType("Add", {"relu": "bool"}, _build_add, input_count=2),
    "flatten": LayerType("Flatten", {}, _build_flatten),
    "activation": LayerType("Activation", {"function": "string", "slope": "float"}, _build_activation,
                            _check_activation),
    "scale": LayerType("Scale", {"factor": "float"}, _build_scale, _check_scale),
    "average_pool": LayerType("AveragePool2d", {"kernel": "int32", "stride": "int32", "padding": "int32"}, _build_pool,
                              _check_pool),
    "concat": LayerType("Concat", {}, _build_concat, input_count=TWO_OR_MORE),
    "group_norm": LayerType("GroupNorm", {"groups": "int32", "epsilon": "float"}, _build_group_norm, _check_group_norm),
    "layer_norm": LayerType("LayerNorm", {"epsilon": "float"}, _build_layer_norm, _check_epsilon),
}
