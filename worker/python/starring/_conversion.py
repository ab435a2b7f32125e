"""Turns the operations of a PyTorch module into the layers of a layer file.

Words: a *node* is one operation of torch.fx's graph. Its *value* is the layer whose output the node's result is; a node
that only hands its input on, such as Identity, has the value of its input. A ReLU becomes part of the layer before it
wherever no other operation reads that layer.
"""

from __future__ import annotations

import dataclasses
import operator
import os
import re
from typing import Any, Dict, List, NoReturn, Tuple

import torch
from torch import fx, nn
from torch.nn import functional as F

from . import _tracing
from ._layer_modules import Add, Concat, GlobalAveragePool, LayerFileModel, Scale
from ._text_format import to_float32
from ._tracing import NoCounterpartError
from ._layer_table import ACTIVATIONS
from .layer_file import check, IMAGE, KINDS, Layer, LayerFile, Loss

_TAKES_RELU = ("conv2d", "dense", "batch_norm", "add")
_TAKES_ACTIVATION = ("conv2d", "dense")

# Advice on how to replace an operation that has no counterpart.
_LOSS_APPLIES_IT = "the loss applies it, so return the logits"
_HINTS = {"Softmax": _LOSS_APPLIES_IT, "LogSoftmax": _LOSS_APPLIES_IT, "softmax": _LOSS_APPLIES_IT,
          "log_softmax": _LOSS_APPLIES_IT,
          "Dropout2d": "it drops whole channels: use Dropout", "dropout2d": "it drops whole channels: use dropout",
          "linear": "use the module Linear, whose name its tensors take",
          "conv2d": "use the module Conv2d, whose name its tensors take",
          "batch_norm": "use the module BatchNorm2d, whose name its tensors take"}


@dataclasses.dataclass
class Converted:
    """A module as a layer file."""
    file: LayerFile
    tensors: Dict[str, torch.Tensor]  # by the names of a checkpoint
    example: torch.Tensor
    output: torch.Tensor  # of the module, for `example`


@dataclasses.dataclass
class _Value:
    """What a node's result is."""
    layer: str  # or IMAGE
    is_flat: bool  # for a layer file
    read_once: bool  # no other operation than the node's reader reads the layer


def convert(module: nn.Module, image: Tuple[int, int, int], file_name: str) -> Converted:
    """Raises NoCounterpartError, or LayerFileError for a number that a layer file cannot have."""
    trace = _tracing.trace(module, image)
    converter = _Converter(module, trace)
    for node in trace.graph.nodes:
        converter.add(node)
    if isinstance(module, LayerFileModel):
        name, loss = module.layer_graph.file.name, module.layer_graph.file.loss
    else:
        name, loss = os.path.splitext(os.path.basename(file_name))[0], Loss()
    file = LayerFile(file_name, name, converter.layers, loss)
    if not file.layers:
        raise NoCounterpartError(f"{type(module).__name__} has no operation that a layer could do")
    check(file)
    return Converted(file, converter.tensors, trace.example, trace.output)


def _pair(value: Any) -> Tuple[Any, Any]:
    return tuple(value) * 2 if isinstance(value, (tuple, list)) and len(value) == 1 else (
        tuple(value) if isinstance(value, (tuple, list)) else (value, value))  # type: ignore[return-value]


def _unless(value: float, default: float) -> float:
    """What a file says of a number of 32 bits: 0 for the default."""
    return value if value != to_float32(default) else 0


class _Converter:
    """Adds nodes in the order of the graph."""

    def __init__(self, module: nn.Module, trace: _tracing.Trace) -> None:
        self.layers: List[Layer] = []
        self.tensors: Dict[str, torch.Tensor] = {}
        self._module, self._trace = module, trace
        self._values: Dict[fx.Node, _Value] = {}
        self._by_name: Dict[str, Layer] = {}
        self._owners: Dict[int, str] = {}  # by id of a parameter: the layer that has it
        # Names that operations without a module must not take.
        self._modules = dict(module.named_modules())

    def add(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            if self._values:
                self._refuse(node, f"the input {node.name}", "a model takes one tensor, the images")
            self._values[node] = _Value(IMAGE, False, self._is_read_once(node))
        elif node.op == "output":
            self._finish(node)
        elif node.op == "call_module":
            self._add_module(node)
        elif node.op in ("call_function", "call_method") and node.name in self._trace.shapes:
            self._add_operation(node)
        # Any other node makes no tensor, or reads a parameter: an operation that uses it will be refused.

    def _finish(self, node: fx.Node) -> None:
        result = node.args[0]
        if not isinstance(result, fx.Node):
            self._refuse(node, "the result, which is not one tensor,", "return the logits alone")
        value = self._value(node, result)
        if self.layers and value.layer != self.layers[-1].name:
            self._refuse(node, f"the result, which layer {value.layer} makes,",
                         f"the last operation, here that of layer {self.layers[-1].name}, must make the logits")

    # Nodes and what they read.

    def _refuse(self, node: fx.Node, what: str, hint: str) -> NoReturn:
        raise NoCounterpartError(f"{self._trace.place_of(node)}: {what} has no counterpart in a layer file: {hint}")

    def _value(self, node: fx.Node, argument: Any) -> _Value:
        """The value that `node` reads as `argument`."""
        if isinstance(argument, fx.Node) and argument in self._values:
            return self._values[argument]
        if isinstance(argument, fx.Node) and argument.op == "get_attr":
            self._refuse(node, f"an operation on the attribute {argument.target}", "layers have tensors of their own")
        self._refuse(node, f"an operation on {argument!r}", "layers read the outputs of layers")

    def _hand_on(self, node: fx.Node, value: _Value, is_flat: bool | None = None) -> None:
        """`node` has the value of what it reads."""
        self._values[node] = _Value(value.layer, value.is_flat if is_flat is None else is_flat,
                                    value.read_once and self._is_read_once(node))

    def _is_read_once(self, node: fx.Node) -> bool:
        # A user that only asks for a size reads no values.
        return sum(user.op == "output" or user.name in self._trace.shapes for user in node.users) == 1

    def _shape(self, node: Any) -> Tuple[int, ...]:
        return self._trace.shapes.get(node.name, ()) if isinstance(node, fx.Node) else ()

    def _argument(self, node: fx.Node, position: int, name: str, default: Any = None) -> Any:
        return node.args[position] if position < len(node.args) else node.kwargs.get(name, default)

    # Layers.

    def _name_for(self, node: fx.Node, word: str) -> str:
        """A module's path is its layer's name. A function has the path of the module that calls it, and a word."""
        if node.op == "call_module":
            name = str(node.target)
            if name not in self._by_name:
                return name
        else:
            scope = self._trace.scopes.get(node.name, "")
            name = f"{scope}.{word}" if scope else word
        candidates = [name, *(f"{name}{number}" for number in range(2, 2 + len(self._trace.graph.nodes)))]
        return next(one for one in candidates if one not in self._by_name and one not in self._modules)

    def _layer(self, node: fx.Node, kind: str, word: str, inputs: List[_Value], is_flat: bool | None = None,
               **settings: Any) -> Layer:
        if len(node.users) == 0:
            self._refuse(node, f"{kind}, whose result nothing reads,", "leave it out")
        # Fields that have protobuf's default are left out of a text.
        layer = Layer(self._name_for(node, word), kind, {name: value for name, value in settings.items() if value},
                      [one.layer for one in inputs])
        self.layers.append(layer)
        self._by_name[layer.name] = layer
        self._values[node] = _Value(layer.name, inputs[0].is_flat if is_flat is None else is_flat,
                                    self._is_read_once(node))
        return layer

    def _keep_tensors(self, node: fx.Node, module: nn.Module) -> None:
        name = str(node.target)
        if name in self._by_name:
            self._refuse(node, f"{type(module).__name__}, which is called twice,",
                         "each layer has weights of its own")
        # Without those of submodules: a layer "a" may have a layer "a.b" inside.
        for tensor in module.parameters(recurse=False):
            owner = self._owners.setdefault(id(tensor), name)
            if owner != name:
                self._refuse(node, f"{type(module).__name__}, which shares a tensor with {owner},",
                             "each layer has weights of its own")
        for key, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            self.tensors[f"{name}.{key}"] = tensor.detach().to("cpu").clone()

    # Modules.

    def _add_module(self, node: fx.Node) -> None:
        module = self._modules[str(node.target)]
        kinds: List[Tuple[Any, Any]] = [
            (nn.Conv2d, self._conv2d), (nn.Linear, self._linear), (nn.BatchNorm2d, self._batch_norm),
            (nn.BatchNorm1d, self._batch_norm), (nn.ReLU, self._relu_module), (nn.MaxPool2d, self._max_pool_module),
            (nn.Dropout, self._dropout_module), (nn.Flatten, self._flatten_module), (nn.Identity, self._identity),
            (nn.AdaptiveAvgPool2d, self._adaptive_pool_module), (nn.AvgPool2d, self._average_pool_module),
            (GlobalAveragePool, self._global_average_pool), (Add, self._add_values), (Scale, self._scale_module),
            (Concat, self._concat_module), (nn.GroupNorm, self._group_norm),
            (nn.LayerNorm, self._layer_norm),
            (nn.ReLU6, self._activation_module), (nn.Sigmoid, self._activation_module),
            (nn.Tanh, self._activation_module), (nn.GELU, self._activation_module),
            (nn.SiLU, self._activation_module), (nn.LeakyReLU, self._activation_module)]
        # Subclasses may compute something else, so the type must be the very one.
        known = next((add for kind, add in kinds if type(module) is kind), None)
        if known is None:
            self._refuse_kind(node, type(module).__name__)
        known(node, module)

    def _refuse_kind(self, node: fx.Node, name: str) -> NoReturn:
        hint = _HINTS.get(name, f"layers are {', '.join(KINDS)}")
        self._refuse(node, name, hint)

    def _window(self, node: fx.Node, what: str, **values: Any) -> Dict[str, Any]:
        """Numbers that a layer has once, for both axes."""
        settings = {}
        for name, value in values.items():
            height, width = _pair(value)
            if height != width or not isinstance(height, int):
                self._refuse(node, f"{what} with {name}={value}", "a layer has one number for both axes")
            settings[name] = height
        return settings

    def _expect(self, node: fx.Node, what: str, hint: str, **expected: Tuple[Any, Any]) -> None:
        """Refuses an argument that a layer does not have; each is (value, the only value that is possible)."""
        for name, (value, wanted) in expected.items():
            if _pair(value) != _pair(wanted):
                self._refuse(node, f"{what} with {name}={value}", hint)

    def _conv2d(self, node: fx.Node, module: Any) -> None:
        value = self._value(node, node.args[0])
        depthwise = 1 < module.groups == module.in_channels == module.out_channels
        self._expect(node, "Conv2d", "a convolution has dilation 1, one group or one for each channel, and zeros "
                     "around the image", dilation=(module.dilation, 1), padding_mode=(module.padding_mode, "zeros"),
                     groups=(module.groups, module.groups if depthwise else 1))
        padding = module.padding
        if isinstance(padding, str):
            kernel, stride = _pair(module.kernel_size)[0], _pair(module.stride)
            if padding == "same" and (kernel % 2 == 0 or stride != (1, 1)):
                self._refuse(node, f"Conv2d with padding=\"same\" and a kernel of {kernel}", "both sides of an image "
                             "have the same padding: use an odd kernel")
            padding = (kernel - 1) // 2 if padding == "same" else 0
        settings = self._window(node, "Conv2d", kernel=module.kernel_size, stride=module.stride, padding=padding)
        settings["stride"] = settings["stride"] if settings["stride"] != 1 else 0
        self._keep_tensors(node, module)
        self._layer(node, "conv2d", "conv", [value], out_channels=0 if depthwise else module.out_channels,
                    no_bias=module.bias is None, depthwise=depthwise, **settings)

    def _linear(self, node: fx.Node, module: Any) -> None:
        value = self._value(node, node.args[0])
        shape = self._shape(node.args[0])
        if len(shape) != 2:
            self._refuse(node, f"Linear of a tensor with shape {shape}", "flatten it to (samples, features) before")
        self._keep_tensors(node, module)
        self._layer(node, "dense", "fc", [value], True, units=module.out_features, no_bias=module.bias is None)

    def _batch_norm(self, node: fx.Node, module: Any) -> None:
        value = self._value(node, node.args[0])
        name = type(module).__name__
        self._expect(node, name, "batch_norm has weights and running statistics", affine=(module.affine, True),
                     track_running_stats=(module.track_running_stats, True))
        if module.momentum is None:
            self._refuse(node, f"{name} with momentum=None", "give a number, such as 0.1")
        epsilon, momentum = to_float32(module.eps), to_float32(module.momentum)
        if epsilon == 0 or momentum == 0:
            self._refuse(node, f"{name} with eps={module.eps}, momentum={module.momentum}", "0 stands for the default")
        if len(self._shape(node.args[0])) not in (2, 4):
            self._refuse(node, f"{name} of a tensor with shape {self._shape(node.args[0])}",
                         "batch_norm reads images or features")
        self._keep_tensors(node, module)
        self._layer(node, "batch_norm", "bn", [value], epsilon=_unless(epsilon, 1e-5), momentum=_unless(momentum, 0.1))

    def _group_norm(self, node: fx.Node, module: Any) -> None:
        self._norm(node, module, "group_norm", groups=module.num_groups, affine=module.affine)

    def _layer_norm(self, node: fx.Node, module: Any) -> None:
        shape = self._shape(node.args[0])
        if tuple(module.normalized_shape) != shape[1:]:
            self._refuse(node, f"LayerNorm of {tuple(module.normalized_shape)} in a tensor of shape {shape}",
                         "layer_norm reads whole samples")
        self._norm(node, module, "layer_norm", affine=module.elementwise_affine)

    def _norm(self, node: fx.Node, module: Any, kind: str, affine: bool, **settings: Any) -> None:
        value = self._value(node, node.args[0])
        name, epsilon = type(module).__name__, to_float32(module.eps)
        self._expect(node, name, f"{kind} has weights", affine=(affine, True))
        for part in ("weight", "bias"):
            if getattr(module, part) is None:
                self._refuse(node, f"{name} with {part}=None", f"{kind} has a weight and a bias")
        if epsilon == 0:
            self._refuse(node, f"{name} with eps={module.eps}", "0 stands for the default, 1e-5")
        self._keep_tensors(node, module)
        self._layer(node, kind, "norm", [value], epsilon=_unless(epsilon, 1e-5), **settings)

    def _identity(self, node: fx.Node, module: Any) -> None:
        del module
        self._hand_on(node, self._value(node, node.args[0]))

    def _relu_module(self, node: fx.Node, module: Any) -> None:
        self._relu(node, module.inplace)

    def _relu(self, node: fx.Node, in_place: bool) -> None:
        value = self._value(node, node.args[0])
        if in_place and (not value.read_once or not node.users):
            self._refuse(node, "a ReLU that changes what another operation reads,", "use one that is not in place")
        layer = self._by_name.get(value.layer)
        if layer is not None and value.read_once and layer.kind in _TAKES_RELU and not layer.settings.get("activation"):
            layer.settings["relu"] = True
            self._hand_on(node, value)
        else:
            self._layer(node, "relu", "relu", [value])

    def _activation_module(self, node: fx.Node, module: Any) -> None:
        function = {nn.ReLU6: "relu6", nn.LeakyReLU: "leaky_relu"}.get(type(module), type(module).__name__.lower())
        if function == "gelu" and module.approximate == "tanh":
            function = "gelu_tanh"
        self._activation(node, function, getattr(module, "negative_slope", 0.01), getattr(module, "inplace", False))

    def _activation(self, node: fx.Node, function: str, slope: float = 0.01, in_place: bool = False) -> None:
        value = self._value(node, node.args[0])
        if in_place and (not value.read_once or not node.users):
            self._refuse(node, f"{function}, which changes what another operation reads,",
                         "use one that is not in place")
        rounded = to_float32(slope)
        if rounded <= 0:
            self._refuse(node, f"{function} with a slope of {slope}", "it must be above 0 as a number of 32 bits")
        given = _unless(rounded, 0.01)
        layer = self._by_name.get(value.layer)
        takes_it = layer is not None and value.read_once and layer.kind in _TAKES_ACTIVATION and given == 0
        if layer is not None and takes_it and not (
                layer.settings.get("relu") or layer.settings.get("activation")):
            layer.settings["activation"] = function
            self._hand_on(node, value)
        else:
            self._layer(node, "activation", function, [value], function=function, slope=given)

    def _activation_operation(self, node: fx.Node) -> None:
        name = str(getattr(node.target, "__name__", node.target))
        in_place = name.endswith("_") or bool(self._argument(node, 2 if "leaky" in name else 1, "inplace", False))
        function = name.rstrip("_")
        if function == "gelu":
            in_place = False
            function = "gelu_tanh" if self._argument(node, 1, "approximate", "none") == "tanh" else function
        slope = self._argument(node, 1, "negative_slope", 0.01) if function == "leaky_relu" else 0.01
        self._activation(node, function, slope, in_place)

    def _concat_module(self, node: fx.Node, module: Any) -> None:
        del module
        self._concat(node, node.args)

    def _concat_operation(self, node: fx.Node) -> None:
        axis = self._argument(node, 1, "dim", 0)
        if axis != 1 and axis != 1 - len(self._shape(node)):
            self._refuse(node, f"a concatenation along axis {axis}", "concat joins channels, axis 1")
        tensors = self._argument(node, 0, "tensors")
        self._concat(node, tensors if isinstance(tensors, (tuple, list)) else [])

    def _concat(self, node: fx.Node, inputs: Any) -> None:
        values = [self._value(node, one) for one in inputs]
        if len(values) < 2:
            self._refuse(node, f"a concatenation of {len(values)} tensors", "concat joins two or more")
        self._layer(node, "concat", "concat", values)

    def _scale_module(self, node: fx.Node, module: Any) -> None:
        self._scale(node, node.args[0], module.factor)

    def _scale_operation(self, node: fx.Node) -> None:
        factors = [one for one in node.args if isinstance(one, (int, float))]
        values = [one for one in node.args if isinstance(one, fx.Node)]
        if len(factors) != 1 or len(values) != 1:
            self._refuse(node, "a product that is not of one tensor with one number", "scale has a constant factor")
        if str(node.target).endswith("mul_") and not self._value(node, values[0]).read_once:
            self._refuse(node, "a product that changes what another operation reads,", "use one that is not in place")
        self._scale(node, values[0], factors[0])

    def _scale(self, node: fx.Node, argument: Any, factor: float) -> None:
        self._layer(node, "scale", "scale", [self._value(node, argument)], factor=to_float32(factor))

    def _dropout_module(self, node: fx.Node, module: Any) -> None:
        self._dropout(node, module.p)

    def _dropout(self, node: fx.Node, rate: float) -> None:
        value, rounded = self._value(node, node.args[0]), to_float32(rate)
        if rounded == 0:
            self._hand_on(node, value)
        elif rounded >= 1:
            self._refuse(node, f"dropout with p={rate}", "it drops everything: the rate must be below 1")
        else:
            self._layer(node, "dropout", "dropout", [value], rate=rounded)

    def _max_pool_module(self, node: fx.Node, module: Any) -> None:
        self._max_pool(node, {name: getattr(module, name) for name in (
            "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")})

    def _max_pool(self, node: fx.Node, given: Dict[str, Any]) -> None:
        self._expect(node, "max pooling", "a window has dilation 1, and one that does not fit is left out",
                     dilation=(given["dilation"], 1), ceil_mode=(given["ceil_mode"], False),
                     return_indices=(given["return_indices"], False))
        self._pool(node, "max_pool", "max pooling", given)

    def _adaptive_pool_module(self, node: fx.Node, module: Any) -> None:
        self._adaptive_pool(node, module.output_size)

    def _adaptive_pool(self, node: fx.Node, size: Any) -> None:
        self._expect(node, "adaptive average pooling", "global_average_pool has one mean for each channel",
                     output_size=(size, 1))
        self._global_average_pool(node)

    def _average_pool_module(self, node: fx.Node, module: Any) -> None:
        self._average_pool(node, {name: getattr(module, name) for name in (
            "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")})

    def _average_pool(self, node: fx.Node, given: Dict[str, Any]) -> None:
        shape, kernel = self._shape(node.args[0]), _pair(given["kernel_size"])
        self._expect(node, "average pooling", "the mean is over the places of the window",
                     divisor_override=(given["divisor_override"], None))
        # One window that is the whole image: every size of image has such a layer.
        if len(shape) == 4 and kernel == shape[2:] and self._shape(node)[2:] == (1, 1) and not any(
                _pair(given["padding"])):
            self._global_average_pool(node)
            return
        padded = any(_pair(given["padding"]))
        self._expect(node, "average pooling", "a window that does not fit is left out, and padding counts as zeros",
                     ceil_mode=(given["ceil_mode"], False),
                     count_include_pad=(given["count_include_pad"] or not padded, True))
        self._pool(node, "average_pool", "average pooling", given)

    def _pool(self, node: fx.Node, kind: str, what: str, given: Dict[str, Any]) -> None:
        stride = given["stride"] if given["stride"] not in (None, []) else given["kernel_size"]
        settings = self._window(node, what, kernel=given["kernel_size"], stride=stride, padding=given["padding"])
        settings["stride"] = settings["stride"] if settings["stride"] != settings["kernel"] else 0
        self._layer(node, kind, "pool", [self._value(node, node.args[0])], **settings)

    def _global_average_pool(self, node: fx.Node, module: Any = None) -> None:
        del module
        if len(self._shape(node.args[0])) != 4:
            self._refuse(node, f"a mean of a tensor with shape {self._shape(node.args[0])}", "it reads images")
        self._layer(node, "global_average_pool", "pool", [self._value(node, node.args[0])], True)

    def _add_values(self, node: fx.Node, module: Any = None) -> None:
        del module
        arguments = (self._argument(node, 0, "input"), self._argument(node, 1, "other"))
        if any(self._shape(one) != self._shape(node) for one in arguments):
            self._refuse(node, "an addition of tensors of different shapes",
                         "add reads the outputs of two layers of one shape")
        self._layer(node, "add", "add", [self._value(node, one) for one in arguments])

    def _flatten_module(self, node: fx.Node, module: Any) -> None:
        del module
        self._reshape(node, "Flatten")

    def _reshape(self, node: fx.Node, what: str) -> None:
        """flatten, view, reshape, squeeze: what counts is what they make of the shape."""
        source = node.args[0]
        value = self._value(node, source)
        before, after = self._shape(source), self._shape(node)
        if before == after:
            self._hand_on(node, value)
        elif len(before) != 4 or len(after) != 2 or before[0] != after[0]:
            self._refuse(node, f"{what} from shape {before} to {after}",
                         "flatten makes (samples, features) of (samples, channels, height, width)")
        elif value.is_flat:
            self._hand_on(node, value)
        elif node.op != "call_module" and all(self._is_linear(user) for user in node.users):
            self._hand_on(node, value)  # dense flattens by itself
        else:
            self._layer(node, "flatten", "flatten", [value], True)

    def _is_linear(self, node: fx.Node) -> bool:
        return node.op == "call_module" and type(self._modules[str(node.target)]) is nn.Linear

    # Functions and methods.

    def _add_operation(self, node: fx.Node) -> None:
        target: Any = node.target
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        if target is F.max_pool2d:
            name = "max_pool2d"  # fx sees the function that chooses between two
        base = re.sub(r"_$", "", name)
        known = {"relu": self._relu_operation, "add": self._add_operation_of_two, "iadd": self._add_operation_of_two,
                 "max_pool2d": self._max_pool_operation, "mean": self._mean, "dropout": self._dropout_operation,
                 "adaptive_avg_pool2d": self._adaptive_pool_operation, "avg_pool2d": self._average_pool_operation,
                 "contiguous": self._same, "clone": self._same, "mul": self._scale_operation,
                 "cat": self._concat_operation, "concat": self._concat_operation,
                 **{kind: self._activation_operation for kind in ACTIVATIONS if kind != "gelu_tanh"}}.get(base)
        if base in ("flatten", "view", "reshape", "squeeze"):
            self._reshape(node, base)
        elif known is not None:
            known(node)
        else:
            self._refuse_kind(node, name)

    def _relu_operation(self, node: fx.Node) -> None:
        in_place = str(node.target).endswith("relu_") or node.target in (F.relu_, torch.relu_)
        self._relu(node, in_place or bool(self._argument(node, 1, "inplace", False)))

    def _add_operation_of_two(self, node: fx.Node) -> None:
        if self._argument(node, 2, "alpha", 1) != 1:
            self._refuse(node, "an addition with alpha", "add sums the outputs of two layers")
        in_place = node.target is operator.iadd or str(node.target).endswith("add_")
        if in_place and not self._value(node, node.args[0]).read_once:
            self._refuse(node, "an addition that changes what another operation reads,", "use x = x + y")
        self._add_values(node)

    def _max_pool_operation(self, node: fx.Node) -> None:
        names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
        defaults = (None, None, 0, 1, False, False)
        self._max_pool(node, {name: self._argument(node, number, name, default) for number, (name, default) in
                              enumerate(zip(names, defaults), 1)})

    def _adaptive_pool_operation(self, node: fx.Node) -> None:
        self._adaptive_pool(node, self._argument(node, 1, "output_size"))

    def _average_pool_operation(self, node: fx.Node) -> None:
        names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
        defaults = (None, None, 0, False, True, None)
        self._average_pool(node, {name: self._argument(node, number, name, default) for number, (name, default) in
                                  enumerate(zip(names, defaults), 1)})

    def _mean(self, node: fx.Node) -> None:
        axes = self._argument(node, 1, "dim", ())
        if sorted(axis % 4 for axis in (axes if isinstance(axes, (tuple, list)) else [axes])) != [2, 3]:
            self._refuse(node, f"a mean over {axes}", "global_average_pool takes the mean over height and width")
        self._global_average_pool(node)

    def _dropout_operation(self, node: fx.Node) -> None:
        in_evaluation = self._argument(node, 2, "training", True)
        args, kwargs = self._trace.training_arguments[node.name]
        in_training = args[2] if len(args) > 2 else kwargs.get("training", True)
        if in_evaluation:
            self._refuse(node, "dropout that also drops in evaluation", "pass training=self.training")
        self._dropout(node, self._argument(node, 1, "p", 0.5) if in_training else 0)

    def _same(self, node: fx.Node) -> None:
        self._hand_on(node, self._value(node, node.args[0]))
