"""The module of a layer file: its layers as PyTorch's own modules, under the names of the file."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import torch
from torch import nn
from torch.nn import functional as F

from .layer_file import LayerFileError
from .layer_graph import GraphLayer, LayerGraph, READS_IMAGE


class GlobalAveragePool(nn.Module):
    """The mean of each channel over the image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=(2, 3))


class Add(nn.Module):
    """The sum of two tensors of one shape."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


def _module_of(layer: GraphLayer) -> nn.Module:
    shape = layer.weight_shape
    if layer.kind == "conv2d":
        return nn.Conv2d(shape[1], shape[0], layer.kernel, stride=layer.stride, padding=layer.padding,
                         bias=layer.has_bias)
    if layer.kind == "dense":
        return nn.Linear(shape[1], shape[0], bias=layer.has_bias)
    if layer.kind == "max_pool":
        return nn.MaxPool2d(layer.kernel, layer.stride, layer.padding)
    if layer.kind == "batch_norm":
        kind: Any = nn.BatchNorm1d if layer.before.flat else nn.BatchNorm2d
        return kind(shape[0], eps=layer.epsilon, momentum=layer.momentum)
    if layer.kind == "dropout":
        return nn.Dropout(layer.rate)
    others: Dict[str, Any] = {"relu": nn.ReLU, "global_average_pool": GlobalAveragePool, "add": Add,
                              "flatten": nn.Flatten}
    return others[layer.kind]()


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
        modules = {layer.name: _module_of(layer) for layer in graph.layers}
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
            for one in self._read_last[number]:
                del outputs[one]
            outputs[number] = x
        return x if self.layer_graph.layers[-1].after.flat else torch.flatten(x, 1)
