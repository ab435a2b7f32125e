"""Reads protobuf's text format (https://protobuf.dev/reference/protobuf/textformat-spec) without protobuf.

Only what messages of our layer files need: fields that are scalars, messages or lists of them. Lines and columns count
from 1, as the worker's own messages count them: a tab ends at the next multiple of eight.
"""

from __future__ import annotations

import dataclasses
import math
import re
import struct
from typing import Any, Dict, List, Mapping, NamedTuple, NoReturn

# By message: the type of each field by name. A type is a message, or int32, bool, float or string, after "repeated " if
# the field is a list. Names in `oneofs` of fields of which a message may have one.
Schema = Mapping[str, Mapping[str, str]]
_SCALARS = ("int32", "bool", "float", "string")
_TAB = 8
_INT32_MIN, _INT32_MAX = -2**31, 2**31 - 1

_TOKEN = re.compile(r"""
    (?P<space>  [ \t\r\n\v\f]+ | \#[^\n]* )
  | (?P<name>   [A-Za-z_][A-Za-z0-9_]* )
  | (?P<number> 0[xX][0-9a-fA-F]+ | (?: [0-9]+ (?:\.[0-9]*)? | \.[0-9]+ ) (?: [eE][+-]?[0-9]+ )? [fF]? )
  | (?P<string> "(?:[^"\\\n]|\\[^\n])*" | '(?:[^'\\\n]|\\[^\n])*' )
  | (?P<symbol> . )
""", re.VERBOSE | re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPED = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v", b"\\": b"\\",
            b"'": b"'", b'"': b'"', b"?": b"?"}


class Position(NamedTuple):
    """A place in a text."""
    line: int
    column: int


class TextFormatError(ValueError):
    """The text is not such a message. `position` is where, `reason` what is wrong."""

    def __init__(self, position: Position, reason: str) -> None:
        super().__init__(f"{position.line}:{position.column}: {reason}")
        self.position = position
        self.reason = reason


@dataclasses.dataclass
class Message:
    """What the text sets: values by field, and where the first value of each field begins (at the field's name)."""
    position: Position
    values: Dict[str, Any] = dataclasses.field(default_factory=dict)
    positions: Dict[str, Position] = dataclasses.field(default_factory=dict)


class _Token(NamedTuple):
    kind: str  # name, number, string, symbol or end
    text: str
    position: Position

    def __str__(self) -> str:
        # Text that is not UTF-8 cannot be printed.
        text = self.text.encode("utf-8", "replace").decode("utf-8")
        return "the end of the file" if self.kind == "end" else f"\"{text}\""


def _fail(token: _Token, reason: str) -> NoReturn:
    raise TextFormatError(token.position, reason)


def _after(position: Position, text: str) -> Position:
    """Where a text ends that begins at `position`."""
    line = position.line + text.count("\n")
    column = position.column - 1 if line == position.line else 0
    for character in text[text.rfind("\n") + 1:]:
        column += _TAB - column % _TAB if character == "\t" else 1
    return Position(line, column + 1)


def _tokens(text: str) -> List[_Token]:
    tokens: List[_Token] = []
    position = Position(1, 1)
    for match in _TOKEN.finditer(text):
        kind, found = str(match.lastgroup), match[0]
        if kind != "space":
            token = _Token(kind, found, position)
            if kind == "symbol" and found in "\"'":
                _fail(token, "a string that does not end in its line")
            if kind == "symbol" and not found.isprintable():
                _fail(token, f"the byte {ord(found) & 0xFF:#04x}, which no text has")
            if kind == "number" and re.match(r"[A-Za-z0-9_.]", text[match.end():match.end() + 1]):
                _fail(token, f"a number that goes on as \"{text[match.start():match.end() + 8].split()[0]}\"")
            tokens.append(token)
        position = _after(position, found)
    tokens.append(_Token("end", "", position))
    return tokens


def _unescaped(token: _Token) -> bytes:
    def replace(match: Any) -> bytes:
        octal, hexadecimal, short, long, other = match.groups()
        if octal or hexadecimal:
            return bytes([int(octal or hexadecimal, 8 if octal else 16) & 0xFF])
        if short or long:
            return chr(int(short or long, 16)).encode("utf-8", "surrogatepass")
        if other not in _ESCAPED:
            _fail(token, f"a string with the unknown escape \\{other.decode('utf-8', 'replace')}")
        return _ESCAPED[other]

    return _ESCAPE.sub(replace, token.text[1:-1].encode("utf-8", "surrogateescape"))


def to_float32(value: float) -> float:
    """The nearest value that a field of type float can hold."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


class _Parser:
    """Reads one text from front to back."""

    def __init__(self, text: str, schema: Schema, oneofs: Mapping[str, List[str]]) -> None:
        self._tokens = _tokens(text)
        self._next = 0
        self._schema = schema
        self._oneofs = oneofs

    def message(self, type_name: str, begin: Position, end: str) -> Message:
        """The fields up to the token `end`, which is taken; an empty `end` is the end of the text."""
        message = Message(begin)
        while True:
            token = self._take()
            if token.text == end and token.kind in ("end", "symbol"):
                return message
            if token.kind != "name":
                _fail(token, f"expected a field of {type_name}{' or ' + chr(34) + end + chr(34) if end else ''}, "
                             f"found {token}")
            self._field(type_name, token, message)
            if not self._take_if(","):
                self._take_if(";")

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _take_if(self, symbol: str) -> bool:
        if self._peek().kind != "symbol" or self._peek().text != symbol:
            return False
        self._next += 1
        return True

    def _field(self, type_name: str, name: _Token, message: Message) -> None:
        fields = self._schema[type_name]
        if name.text not in fields:
            known = ", ".join(fields) or "none"
            _fail(name, f"{type_name} has no field \"{name.text}\", its fields are: {known}")
        field_type = fields[name.text]
        is_list = field_type.startswith("repeated ")
        field_type = field_type[len("repeated "):] if is_list else field_type
        if not is_list and name.text in message.values:
            _fail(name, f"{type_name} has a second \"{name.text}\": leave out one of the two")
        for other in self._oneofs.get(type_name, []):
            if other in message.values and name.text in self._oneofs[type_name]:
                _fail(name, f"{type_name} has a \"{name.text}\" besides its \"{other}\": it can be one of them")
        if not self._take_if(":") and field_type in _SCALARS:
            _fail(self._peek(), f"expected \":\" after {name.text}, found {self._peek()}")
        if is_list and self._take_if("["):
            values = self._list(field_type)
        else:
            values = [self._value(field_type, name)]
        message.positions.setdefault(name.text, name.position)
        if is_list:
            message.values.setdefault(name.text, []).extend(values)
        else:
            message.values[name.text] = values[0]

    def _list(self, field_type: str) -> List[Any]:
        values: List[Any] = []
        if self._take_if("]"):
            return values
        while True:
            values.append(self._value(field_type, self._peek()))
            if self._take_if("]"):
                return values
            if not self._take_if(","):
                _fail(self._peek(), f"expected \",\" or \"]\", found {self._peek()}")

    def _value(self, field_type: str, begin: _Token) -> Any:
        if field_type in _SCALARS:
            return getattr(self, "_" + field_type)()
        for opening, closing in (("{", "}"), ("<", ">")):
            if self._take_if(opening):
                return self.message(field_type, begin.position, closing)
        _fail(self._peek(), f"expected \"{{\", found {self._peek()}")

    def _int32(self) -> int:
        is_negative = self._take_if("-")
        token = self._take()
        if token.kind != "number" or not re.fullmatch(r"0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*", token.text):
            _fail(token, f"expected a whole number, found {token}")
        is_octal = re.fullmatch(r"0[0-7]+", token.text)
        value = int(token.text, 8) if is_octal else int(token.text, 0)
        value = -value if is_negative else value
        if not _INT32_MIN <= value <= _INT32_MAX:
            _fail(token, f"{value} is out of range: a number of 32 bits is expected")
        return value

    def _float(self) -> float:
        sign = -1.0 if self._take_if("-") else 1.0
        token = self._take()
        word = token.text.lower()
        if token.kind == "name" and word in ("inf", "infinity", "nan"):
            return sign * float(word)
        if token.kind != "number" or re.match(r"0[0-9xX]", token.text):
            _fail(token, f"expected a number, found {token}")
        return to_float32(sign * float(word.rstrip("f")))

    def _bool(self) -> bool:
        token = self._take()
        if token.text in ("true", "True", "t", "1"):
            return True
        if token.text in ("false", "False", "f", "0"):
            return False
        _fail(token, f"expected true or false, found {token}")

    def _string(self) -> str:
        token = self._take()
        if token.kind != "string":
            _fail(token, f"expected a string in quotes, found {token}")
        content = _unescaped(token)
        # Strings one after the other are one string.
        while self._peek().kind == "string":
            content += _unescaped(self._take())
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            _fail(token, "a string that is not UTF-8")


def parse(content: bytes, type_name: str, schema: Schema, oneofs: Mapping[str, List[str]]) -> Message:
    """The message `type_name` that `content` is the text of. `oneofs`: by message, fields of which it may have one.

    Raises TextFormatError.
    """
    # Bytes that are not UTF-8 are kept, as surrogates: inside a string or outside, they are refused where they are.
    text = content.decode("utf-8", "surrogateescape")
    return _Parser(text, schema, oneofs).message(type_name, Position(1, 1), "")


def float_text(value: float) -> str:
    """The shortest text that a field of type float reads as to_float32(value)."""
    wanted = to_float32(value)
    return next((text for digits in range(1, 10) if to_float32(float(text := f"{wanted:.{digits}g}")) == wanted),
                repr(wanted))
