"""Layer files: models as lists of layers, in the text format of proto/starring/v1/layer_file.proto.

Reads and writes them without protobuf, and refuses what the worker refuses, in the same words: "FILE:LINE:COLUMN:
reason" or "FILE:LINE:COLUMN: layer NAME: reason". Shapes are layer_graph.py's matter. Needs no PyTorch.
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any, Dict, List, Mapping, NoReturn, Tuple

from . import _text_format
from ._layer_table import LAYERS, LIMITS, TWO_OR_MORE
from ._text_format import Position

# The messages of the proto; tests/worker/python/layer_file_test.py compares the two.
SCHEMA: Dict[str, Dict[str, str]] = {
    "ModelDefinition": {"name": "string", "layer": "repeated Layer", "loss": "Loss"},
    "Layer": {"name": "string", "input": "repeated string",
              **{kind: row.message for kind, row in LAYERS.items()}},
    **{row.message: row.fields for row in LAYERS.values()},
    "Loss": {"softmax": "SoftmaxLoss", "mse": "MseLoss", "bce": "BceLoss"},
    "SoftmaxLoss": {"label_smoothing": "float"},
    "MseLoss": {},
    "BceLoss": {},
}
KINDS = list(LAYERS)
LOSSES = list(SCHEMA["Loss"])
IMAGE = "input"  # the name by which a layer reads the image

_LINE_WIDTH = 120
_HEADER = "# proto-file: proto/starring/v1/layer_file.proto\n# proto-message: starring.v1.ModelDefinition\n"


class LayerFileError(ValueError):
    """A layer file is wrong or missing. The message names file, line, column, layer and reason, as far as known."""


@dataclasses.dataclass
class Layer:
    """One layer of a file."""
    name: str
    kind: str  # one of KINDS; empty if the file gives none, which is refused
    settings: Dict[str, Any] = dataclasses.field(default_factory=dict)  # the fields of its kind that are set
    inputs: List[str] = dataclasses.field(default_factory=list)  # as written; empty: the layer above
    # By "layer", "kind" and the names of fields; empty if the layer was not read from a text.
    positions: Mapping[str, Position] = dataclasses.field(default_factory=dict)

    def get(self, field: str) -> Any:
        """A field of the layer's kind; a field that is not set has protobuf's default."""
        return _setting(self.settings, SCHEMA["Layer"][self.kind], field)


@dataclasses.dataclass
class Loss:
    """The loss that training lowers."""
    kind: str = "softmax"  # one of LOSSES; empty if the file gives none, which is refused
    settings: Dict[str, Any] = dataclasses.field(default_factory=dict)  # the fields of its kind that are set
    # By "loss", "kind" and the names of fields; empty if the loss was not read from a text.
    positions: Mapping[str, Position] = dataclasses.field(default_factory=dict)

    def get(self, field: str) -> Any:
        """A field of the loss's kind; a field that is not set has protobuf's default."""
        return _setting(self.settings, SCHEMA["Loss"][self.kind], field)


def _setting(settings: Mapping[str, Any], message: str, field: str) -> Any:
    defaults = {"int32": 0, "bool": False, "float": 0.0, "string": ""}
    return settings.get(field, defaults[SCHEMA[message][field]])


@dataclasses.dataclass
class LayerFile:
    """A layer file that has been checked, as far as that needs no shapes."""
    file_name: str
    name: str
    layers: List[Layer]
    loss: Loss = dataclasses.field(default_factory=Loss)

    def error(self, number: int, field: str, reason: str) -> LayerFileError:
        """At `field` ("kernel", "input", ...) if the text sets it, otherwise at the layer's kind or the layer."""
        layer = self.layers[number]
        where = self._where(layer.positions, (field, "kind", "layer"))
        return LayerFileError(f"{where}: layer {layer.name or number + 1}: {reason}")

    def loss_error(self, field: str, reason: str) -> LayerFileError:
        """At `field` if the text sets it, otherwise at the loss's kind or the loss."""
        return LayerFileError(f"{self._where(self.loss.positions, (field, 'kind', 'loss'))}: loss: {reason}")

    def _where(self, positions: Mapping[str, Position], places: Tuple[str, ...]) -> str:
        place = next((positions[one] for one in places if one in positions), None)
        return f"{self.file_name}:{place.line}:{place.column}" if place else self.file_name

    def text(self, comment: str = "") -> str:
        """The file's text, in which each layer has a line if that fits. Equal definitions have equal texts."""
        lines = [_HEADER + "".join(f"# {line}\n" for line in comment.split("\n") if line)]
        if self.name:
            lines.append(f"name: {_quoted(self.name)}\n")
        for number, layer in enumerate(self.layers):
            above = self.layers[number - 1].name if number > 0 else IMAGE
            inputs = [] if layer.inputs == [above] else layer.inputs
            fields = [f"name: {_quoted(layer.name)}", *(f"input: {_quoted(one)}" for one in inputs),
                      _kind_text(layer, "Layer")]
            line = f"layer {{ {' '.join(fields)} }}"
            lines.append(line + "\n" if len(line) <= _LINE_WIDTH else
                         "layer {\n" + "".join(f"  {field}\n" for field in fields) + "}\n")
        loss = _kind_text(self.loss, "Loss")
        if loss != _kind_text(Loss(), "Loss"):
            lines.append(f"loss {{ {loss} }}\n")
        return "".join(lines)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\{ord(match[0]):03o}", escaped) + '"'


def _kind_text(part: Layer | Loss, message: str) -> str:
    words = []
    for field, field_type in SCHEMA[SCHEMA[message][part.kind]].items():
        value = part.get(field)
        if value:
            text: Any = {"bool": "true", "float": _text_format.float_text, "string": _quoted}.get(field_type, str)
            words.append(f"{field}: {text if isinstance(text, str) else text(value)}")
    return f"{part.kind} {{ {' '.join(words)} }}" if words else f"{part.kind} {{}}"


def _shipped_folder() -> str:
    """Where the shipped models are: beside this file in a wheel, with the worker's sources in a source tree."""
    here = os.path.dirname(os.path.abspath(__file__))
    beside = os.path.join(here, "layer_files")
    return beside if os.path.isdir(beside) else os.path.join(here, "..", "..", "model", "models")


def shipped_names() -> List[str]:
    """The models that `load` knows by name."""
    suffix = ".textproto"
    try:
        return sorted(name[:-len(suffix)] for name in os.listdir(_shipped_folder()) if name.endswith(suffix))
    except OSError:
        return []


def load(model: str) -> LayerFile:
    """`model` is the name of a shipped model or the path of a layer file, which has a '/' or a '.'."""
    known = ", ".join(shipped_names()) or "none"
    if "/" in model or "." in model:
        return parse(_read(model, known), model)
    if model not in shipped_names():
        raise LayerFileError(f"there is no model named \"{model}\": use one of {known}, or the path of a layer file "
                             "(with a '/' or a '.')")
    return parse(_read(os.path.join(_shipped_folder(), model + ".textproto"), known), model + ".textproto")


def _read(path: str, known: str) -> bytes:
    limit = LIMITS["kLayerFileBytesMax"]
    try:
        with open(path, "rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        cure = f": give the path of a layer file or one of {known}" if isinstance(error, FileNotFoundError) else ""
        raise LayerFileError(f"layer file {path}: {error.strerror}{cure}") from error
    if len(content) > limit:
        raise LayerFileError(f"layer file {path} is longer than {limit} bytes, which no layer file needs")
    return content


def parse(content: bytes, file_name: str) -> LayerFile:
    """The layer file with this content. `file_name` is what messages call it."""
    try:
        message = _text_format.parse(content, "ModelDefinition", SCHEMA, {"Layer": KINDS, "Loss": LOSSES})
    except _text_format.TextFormatError as error:
        raise LayerFileError(f"{file_name}:{error}") from error
    if not message.values.get("layer"):
        raise LayerFileError(f"{file_name}:1:1: there is no layer: write layer {{ name: \"fc1\" dense {{}} "
                             "}")
    file = LayerFile(file_name, message.values.get("name", ""), [_layer_of(one) for one in message.values["layer"]])
    if "loss" in message.values:
        file.loss = _loss_of(message.values["loss"])
    check(file)
    return file


def _kind_of(message: _text_format.Message, kinds: List[str],
             name: str) -> Tuple[str, Dict[str, Any], Dict[str, Position]]:
    """Kind, settings and positions of the layer or the loss that `message` is."""
    kind = next((one for one in kinds if one in message.values), "")
    positions = {name: message.position, **message.positions}
    settings: Dict[str, Any] = {}
    if kind:
        positions["kind"] = positions[kind]
        settings = message.values[kind].values
        positions = {**message.values[kind].positions, **positions}
    return kind, settings, positions


def _loss_of(message: _text_format.Message) -> Loss:
    return Loss(*_kind_of(message, LOSSES, "loss"))


def _layer_of(message: _text_format.Message) -> Layer:
    kind, settings, positions = _kind_of(message, KINDS, "layer")
    return Layer(message.values.get("name", ""), kind, settings, message.values.get("input", []), positions)


def check(file: LayerFile) -> None:
    """Names, kinds, ranges of numbers, inputs and the loss, as CheckLayers of worker/model/layer_file.h."""
    limit = LIMITS["kLayerCountMax"]
    if len(file.layers) > limit:
        raise file.error(limit, "", f"the file has {len(file.layers)} layers, at most {limit} are allowed")
    names = {layer.name for layer in file.layers}
    above: Dict[str, int] = {}
    for number, layer in enumerate(file.layers):
        _Place(file, number).check(above, names)
        above[layer.name] = number
    read = {name for layer in file.layers for name in layer.inputs}
    for number, (layer, below) in enumerate(zip(file.layers, file.layers[1:])):
        if layer.name not in read and below.inputs:
            raise file.error(number, "name", "its output is read by no layer")
    _check_loss(file)


def _check_loss(file: LayerFile) -> None:
    if not file.loss.kind:
        raise file.loss_error("", "has no kind: write loss { softmax {} }, loss { mse {} } or loss { bce {} }")
    if file.loss.kind != "softmax":
        return
    smoothing = file.loss.get("label_smoothing")
    # At 1 the labels would not matter.
    if not 0 <= smoothing < 1:
        raise file.loss_error("label_smoothing", f"label_smoothing is {smoothing:g}, it must be 0 or more and below 1")


class _Place:
    """One layer of a file, for the checks of its fields."""

    def __init__(self, file: LayerFile, number: int) -> None:
        self.file, self.number = file, number
        self.layer = file.layers[number]

    @property
    def is_last(self) -> bool:
        """Whether no layer comes below it."""
        return self.number + 1 == len(self.file.layers)

    def get(self, field: str) -> Any:
        """A field of the layer's kind."""
        return self.layer.get(field)

    def fail(self, field: str, reason: str) -> NoReturn:
        """Refuses the layer."""
        raise self.file.error(self.number, field, reason)

    def check(self, above: Mapping[str, int], names: set[str]) -> None:
        """Everything that the layers above decide."""
        self._check_name(above)
        if not self.layer.kind:
            self.fail("name", f"has no kind: add {', '.join(KINDS[:-1])} or {KINDS[-1]}")
        LAYERS[self.layer.kind].check(self)
        self._check_inputs(above, names)

    def _check_name(self, above: Mapping[str, int]) -> None:
        name, limit = self.layer.name, LIMITS["kLayerNameBytesMax"]
        if not name:
            self.fail("name", "has no name")
        if name == IMAGE:
            self.fail("name", f"the name \"{IMAGE}\" is the image's, choose another")
        if len(name.encode("utf-8")) > limit:
            self.fail("name", f"the name has {len(name.encode('utf-8'))} bytes, at most {limit} are allowed")
        strange = re.search(r"[^A-Za-z0-9_.-]", name)
        if strange:
            self.fail("name", f"the name has the character '{strange[0]}', allowed are letters, digits, '_', '-' and "
                              "'.'")
        if name in above:
            self.fail("name", f"the name is used by two layers, numbers {above[name] + 1} and {self.number + 1}")

    def _check_inputs(self, above: Mapping[str, int], names: set[str]) -> None:
        inputs, count = self.layer.inputs, LAYERS[self.layer.kind].input_count
        # One of several inputs must name them.
        fits = len(inputs) >= 2 if count == TWO_OR_MORE else len(inputs) == count or (count == 1 and not inputs)
        if not fits:
            needed = "2 or more" if count == TWO_OR_MORE else count
            wanted = "this kind of layer takes 1" if count == 1 else f"{self.layer.kind} needs {needed}"
            self.fail("input", f"has {len(inputs)} inputs, {wanted}")
        limit = LIMITS["kConcatInputsMax"]
        if count == TWO_OR_MORE and len(inputs) > limit:
            self.fail("input", f"has {len(inputs)} inputs, {self.layer.kind} takes at most {limit}: join some of them "
                               "before")
        for name in inputs:
            if name == IMAGE or name in above:
                continue
            if name == self.layer.name:
                self.fail("input", "reads its own output, which makes a cycle")
            if name in names:
                self.fail("input", f"reads layer {name}, which comes below it: put layers in forward order, without "
                                   "cycles")
            self.fail("input", f"reads layer {name}, which does not exist")
