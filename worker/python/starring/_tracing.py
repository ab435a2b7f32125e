"""A module as a graph of operations, by torch.fx, with the place in the user's code and the shape of each."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any, Dict, List, Tuple

import torch
from torch import fx, nn

from ._layer_modules import Add, Concat, GlobalAveragePool, Scale

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_HERE = os.path.abspath(__file__)
_EXAMPLE_SAMPLES = 2  # one sample would hide a wrong use of the batch's axis


class NoCounterpartError(ValueError):
    """An operation that no layer of a layer file can do. The message names the operation and its place."""


@dataclasses.dataclass
class Trace:
    """The operations of a module in evaluation."""
    graph: fx.Graph
    scopes: Dict[str, str]  # by node: the path of the module whose forward has the operation
    places: Dict[str, str]  # by node: "NET.py:12", empty where the user's code is not involved
    shapes: Dict[str, Tuple[int, ...]]  # by node, of tensors only
    example: torch.Tensor
    output: Any  # what the module makes of `example`
    training_arguments: Dict[str, Tuple[Any, ...]]  # by node: its arguments in training

    def place_of(self, node: fx.Node) -> str:
        """For messages: the line of the user's code and the module, as far as there are any."""
        path = str(node.target) if node.op == "call_module" else self.scopes.get(node.name, "")
        parts = (self.places.get(node.name, ""), f"module {path}" if path else "")
        return ", ".join(part for part in parts if part) or "the model"


class _Tracer(fx.Tracer):
    """Notes where each operation is."""

    def __init__(self) -> None:
        super().__init__()
        self.scopes: Dict[str, str] = {}
        self.places: Dict[str, str] = {}
        self._path: List[str] = [""]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_layer = isinstance(m, (Add, Concat, GlobalAveragePool, Scale))
        return is_layer or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        self._path.append(self.path_of_module(m))
        try:
            return super().call_module(m, forward, args, kwargs)
        finally:
            self._path.pop()

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        # While a leaf is called, the innermost path is the leaf's own.
        self.scopes[node.name] = self._path[-2] if node.op == "call_module" and len(self._path) > 1 else self._path[-1]
        self.places[node.name] = _user_place()
        return node


def _user_place() -> str:
    frame = sys._getframe(1)
    while frame is not None:
        file = os.path.abspath(frame.f_code.co_filename)
        if file == _HERE and frame.f_code.co_name == "_traced":
            return ""
        if file != _HERE and not file.startswith(_TORCH) and os.path.exists(file):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _traced(module: nn.Module) -> Tuple[fx.Graph, _Tracer]:
    tracer = _Tracer()
    try:
        return tracer.trace(module), tracer
    except NoCounterpartError:
        raise
    except Exception as error:  # fx.TraceError, or whatever the user's forward raises when it meets a stand-in
        raise NoCounterpartError(f"{type(module).__name__} cannot be traced: {_last_place(error)}{error}: forward must "
                                 "not depend on values or shapes, and takes one tensor") from error


def _last_place(error: Exception) -> str:
    """The innermost line of the user's code that the error came through."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        file = os.path.abspath(trace.tb_frame.f_code.co_filename)
        if file != _HERE and not file.startswith(_TORCH) and os.path.exists(file):
            place = f"{file}:{trace.tb_lineno}: "
        trace = trace.tb_next
    return place


class _ShapeReader(fx.Interpreter):
    """Runs the operations and keeps the shapes of their results."""

    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        super().__init__(fx.GraphModule(module, graph))
        self.shapes: Dict[str, Tuple[int, ...]] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            self.shapes[n.name] = tuple(result.shape)
        return result


def _same_way(module: nn.Module, one: fx.Graph, other: fx.Graph) -> Dict[str, Tuple[Any, ...]]:
    """By node of `one`: the arguments of the same node in `other`, which has the same operations."""
    nodes, others = list(one.nodes), list(other.nodes)
    if [(node.op, node.target) for node in nodes] != [(node.op, node.target) for node in others]:
        raise NoCounterpartError(f"{type(module).__name__}: forward has other operations in training than in "
                                 "evaluation, and a layer file has one list of layers")
    return {node.name: (twin.args, twin.kwargs) for node, twin in zip(nodes, others)}


def trace(module: nn.Module, image: Tuple[int, int, int]) -> Trace:
    """The operations of `module` for images (channels, height, width). Its modes and weights stay as they are."""
    modes = {one: one.training for one in module.modules()}
    parameter = next(iter(module.parameters()), torch.zeros(()))
    example = torch.randn((_EXAMPLE_SAMPLES, *image), generator=torch.Generator().manual_seed(1))
    try:
        module.train()
        in_training, _ = _traced(module)
        module.eval()
        graph, tracer = _traced(module)
        training_arguments = _same_way(module, graph, in_training)
        reader = _ShapeReader(module, graph)
        with torch.no_grad():
            try:
                images = example.to(parameter.device, parameter.dtype)
                reader.run(images.clone())
                # By the module itself: its graph does not show every change in place.
                output = module(images)
            except RuntimeError as error:
                raise NoCounterpartError(f"{type(module).__name__} does not take images of shape {tuple(image)} "
                                         f"(channels, height, width): {error}") from error
    finally:
        for one, mode in modes.items():
            one.training = mode
    return Trace(graph, tracer.scopes, tracer.places, reader.shapes, example, output, training_arguments)
