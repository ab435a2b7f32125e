"""HTTP/2, gRPC and protobuf written by hand, to send what a client library refuses to send."""

from __future__ import annotations

import select
import socket
import struct
from typing import Any

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
SERVICE = "/starring.v1.ParameterServer/"

# The largest read from a connection, so that much output of the server does not keep the stranger from attacking.
READ_BYTES = 1 << 16


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(name: str, value: str) -> bytes:
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def headers(method: str, encoding: str | None = None) -> bytes:
    """The headers of a gRPC call in HPACK, without compression and without state."""
    # The first two bytes are :method POST and :scheme http, by their numbers in HPACK's static table.
    block = b"\x83\x86" + _literal(":path", SERVICE + method) + _literal(":authority", "stranger")
    block += _literal("content-type", "application/grpc") + _literal("te", "trailers")
    if encoding is not None:
        block += _literal("grpc-encoding", encoding)
    return block


def message(payload: bytes, compressed: bool = False, length: int | None = None) -> bytes:
    """A gRPC message with its prefix, which may claim another length."""
    return struct.pack(">BI", int(compressed), len(payload) if length is None else length) + payload


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def fields(*numbers_and_values: tuple[int, int | bytes | tuple[str, int]]) -> bytes:
    """A protobuf message. An int becomes a varint, bytes a string or submessage, ("fixed64", n) a fixed64."""
    out = b""
    for number, value in numbers_and_values:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        elif isinstance(value, bytes):
            out += varint(number << 3 | 2) + varint(len(value)) + value
        else:
            out += varint(number << 3 | 1) + struct.pack("<Q", value[1])
    return out


class Connection:
    """A connection that respects HTTP/2's flow control, so that the server accepts as many bytes as from a real client.

    `answers` counts the gRPC messages that came back. A server that refuses sends none.
    """

    def __init__(self, address: str, preface: bool = True) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=10)
        self.socket.settimeout(5)
        self.open = True
        self.answers = 0
        self.sent_bytes = 0
        self._next_stream = 1
        self._window = 65535
        self._first_window = 65535
        self._windows: dict[int, int] = {}
        self._ended: set[int] = set()
        self._frame_bytes = 16384
        self._buffer = b""
        if preface:
            # Windows of 2 GiB for the answers, so that the server never waits for us.
            self.send(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, (1 << 31) - 1))
                      + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", (1 << 31) - 65536)))

    def close(self) -> None:
        self.open = False
        self.socket.close()

    def send(self, data: bytes) -> bool:
        """Sends raw bytes. False if the server has closed the connection."""
        if not self.open:
            return False
        try:
            self.socket.sendall(data)
            self.sent_bytes += len(data)
            return True
        except OSError:
            self.close()
            return False

    def new_stream(self, method: str, encoding: str | None = None, flags: int = END_HEADERS) -> int:
        """Sends the headers of a new stream and returns its number."""
        stream = self._next_stream
        self._next_stream += 2
        self._windows[stream] = self._first_window
        self.send(frame(HEADERS, flags, stream, headers(method, encoding)))
        return stream

    def send_data(self, stream: int, data: bytes, end: bool = False, patience_s: float = 0.2) -> int:
        """Sends what the windows allow of `data`, waiting `patience_s` for them to open. Returns the bytes sent."""
        at = 0
        while self.open and at < len(data) and stream not in self._ended:
            room = min(self._window, self._windows.get(stream, 0), self._frame_bytes, len(data) - at)
            if room <= 0:
                if not self.read(patience_s):
                    break
                continue
            last = end and at + room == len(data)
            if not self.send(frame(DATA, END_STREAM if last else 0, stream, data[at:at + room])):
                break
            self._window -= room
            self._windows[stream] -= room
            at += room
        self.read(0)
        return at

    def call(self, method: str, payload: bytes, **kwargs: Any) -> int:
        """Sends one unary call without waiting for its answer."""
        stream = self.new_stream(method, kwargs.get("encoding"))
        return self.send_data(stream, message(payload, kwargs.get("compressed", False), kwargs.get("length")), end=True)

    def read(self, wait_s: float) -> bool:
        """Handles the bytes that come within `wait_s`. False if none came, or the connection is closed."""
        if not self.open:
            return False
        try:
            if not select.select([self.socket], [], [], wait_s)[0]:
                return False
            data = self.socket.recv(READ_BYTES)
        except (OSError, ValueError):
            data = b""
        if not data:
            self.close()
            return False
        self._buffer += data
        while len(self._buffer) >= 9:
            length = int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < 9 + length:
                break
            kind, flags, stream = struct.unpack(">BBI", self._buffer[3:9])
            self._take(kind, flags, stream & 0x7FFFFFFF, self._buffer[9:9 + length])
            self._buffer = self._buffer[9 + length:]
        return True

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == WINDOW_UPDATE:
            more = int.from_bytes(payload, "big")
            if stream == 0:
                self._window += more
            elif stream in self._windows:
                self._windows[stream] += more
        elif kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload) - 5, 6):
                number, value = struct.unpack(">HI", payload[at:at + 6])
                # 4 is SETTINGS_INITIAL_WINDOW_SIZE, which also moves the windows of open streams. 5 is
                # SETTINGS_MAX_FRAME_SIZE.
                if number == 4:
                    for open_stream in self._windows:
                        self._windows[open_stream] += value - self._first_window
                    self._first_window = value
                elif number == 5:
                    self._frame_bytes = min(value, 1 << 20)
            self.send(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.send(frame(PING, ACK, 0, payload))
        elif kind == DATA:
            self.answers += 1
        if kind == RST_STREAM or (kind in (HEADERS, DATA) and flags & END_STREAM):
            self._ended.add(stream)
            self._windows.pop(stream, None)
