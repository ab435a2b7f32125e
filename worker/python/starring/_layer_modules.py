"""The module of a layer file: its layers as PyTorch's own modules, under the names of the file."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import nn
from torch.nn import functional as F

from ._layer_table import GraphLayer
from .layer_file import LayerFileError
from .layer_graph import LayerGraph, READS_IMAGE


class GlobalAveragePool(nn.Module):
    """The mean of each channel over the image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=(2, 3))


class Add(nn.Module):
    """The sum of two tensors of one shape."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class Concat(nn.Module):
    """Tensors one after the other along the channels."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat(inputs, 1)


class Scale(nn.Module):
    """A tensor times a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


# By kind of activation: the function, and the module of a layer.
FUNCTIONS: Dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu6": F.relu6, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "leaky_relu": F.leaky_relu}
_FUNCTION_MODULES: Dict[str, Callable[[GraphLayer], nn.Module]] = {
    "relu6": lambda layer: nn.ReLU6(), "sigmoid": lambda layer: nn.Sigmoid(), "tanh": lambda layer: nn.Tanh(),
    "gelu": lambda layer: nn.GELU(), "gelu_tanh": lambda layer: nn.GELU(approximate="tanh"),
    "silu": lambda layer: nn.SiLU(), "leaky_relu": lambda layer: nn.LeakyReLU(layer.slope)}


def _conv2d(layer: GraphLayer) -> nn.Module:
    shape = layer.weight_shape
    groups = shape[0] if layer.depthwise else 1
    return nn.Conv2d(shape[1] * groups, shape[0], layer.kernel, stride=layer.stride, padding=layer.padding,
                     groups=groups, bias=layer.has_bias)


def _batch_norm(layer: GraphLayer) -> nn.Module:
    kind: Any = nn.BatchNorm1d if layer.before.flat else nn.BatchNorm2d
    module: nn.Module = kind(layer.weight_shape[0], eps=layer.epsilon, momentum=layer.momentum)
    return module


# By kind: the module of a layer.
MODULES: Dict[str, Callable[[GraphLayer], nn.Module]] = {
    "conv2d": _conv2d,
    "dense": lambda layer: nn.Linear(layer.weight_shape[1], layer.weight_shape[0], bias=layer.has_bias),
    "relu": lambda layer: nn.ReLU(),
    "max_pool": lambda layer: nn.MaxPool2d(layer.kernel, layer.stride, layer.padding),
    "global_average_pool": lambda layer: GlobalAveragePool(),
    "batch_norm": _batch_norm,
    "dropout": lambda layer: nn.Dropout(layer.rate),
    "add": lambda layer: Add(),
    "flatten": lambda layer: nn.Flatten(),
    "activation": lambda layer: _FUNCTION_MODULES[layer.activation](layer),
    "scale": lambda layer: Scale(layer.factor),
    "concat": lambda layer: Concat(),
    "layer_norm": lambda layer: nn.LayerNorm(layer.weight_shape, eps=layer.epsilon),
    "group_norm": lambda layer: nn.GroupNorm(layer.groups, layer.weight_shape[0], eps=layer.epsilon),
    "average_pool": lambda layer: nn.AvgPool2d(layer.kernel, layer.stride, layer.padding),
}


class LayerFileModel(nn.Module):
    """A layer file as a module. Input (samples, channels, height, width), output (samples, outputs): the logits of
    classes or bits, or numbers, as the file's loss has it.

    A layer NAME is the submodule NAME, so that state_dict() has the tensors of the worker's checkpoints. The weights
    begin as PyTorch's modules do: distributed as the worker's, but other numbers. `layer_graph` has shapes and inputs
    of the layers. parameters() come by submodules; layer_graph.tensor_names has the worker's order.
    """

    def __init__(self, graph: LayerGraph) -> None:
        super().__init__()
        self.layer_graph = graph
        self._attach(graph)
        # The outputs that no later layer reads, by layer: a large batch should not keep all of them to the end.
        last_reader = {one: number for number, layer in enumerate(graph.layers) for one in layer.inputs}
        self._read_last: List[List[int]] = [[one for one in set(layer.inputs) if last_reader[one] == number]
                                            for number, layer in enumerate(graph.layers)]
        self._paths: List[Tuple[str, ...]] = [tuple(layer.name.split(".")) for layer in graph.layers]

    def _attach(self, graph: LayerGraph) -> None:
        modules = {layer.name: MODULES[layer.kind](layer) for layer in graph.layers}
        attached: Dict[str, nn.Module] = {"": self}
        for layer in graph.layers:
            parent, path = "", ""
            for part in layer.name.split("."):
                path = f"{parent}.{part}" if parent else part
                if path not in attached:
                    # A layer may have others below it: "a" and "a.b".
                    module = modules.get(path, nn.Module())
                    try:
                        attached[parent].add_module(part, module)
                    except KeyError as error:
                        raise LayerFileError(f"{graph.file.file_name}: layer {layer.name}: PyTorch's modules cannot "
                                             f"have a part named \"{part}\" ({error}): rename the layer") from error
                    attached[path] = module
                parent = path

    def _layer(self, number: int) -> nn.Module:
        # By name each time, because a user may have put another module there.
        module: nn.Module = self
        for part in self._paths[number]:
            module = getattr(module, part)
        return module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: Dict[int, torch.Tensor] = {READS_IMAGE: x}
        for number, layer in enumerate(self.layer_graph.layers):
            inputs = [outputs[one] for one in layer.inputs]
            if layer.kind == "dense" and not layer.before.flat:
                inputs = [torch.flatten(inputs[0], 1)]
            x = self._layer(number)(*inputs)
            if layer.relu and layer.kind != "relu":
                x = F.relu(x)
            if layer.activation and layer.kind != "activation":
                x = FUNCTIONS[layer.activation](x)
            for one in self._read_last[number]:
                del outputs[one]
            outputs[number] = x
        return x if self.layer_graph.layers[-1].after.flat else torch.flatten(x, 1)
