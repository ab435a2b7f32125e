"""A stand-in for libstarring.so in Python: the functions of starring.h, over a hub in the process of rank 0.

It makes star's sums with star's bits, compares what ranks hand in, notices ranks that end, abort or are late, and knows
servers, which do nothing. So the Python side is tested without C++. It is slow, and it is not safe against strangers.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import queue
import socket
import struct
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

import starring
from starring import _library

_LOOK_S = 0.05
_HUB_END_S = 5.0
_SERVER_TICKET = 0  # of a server; ends when all ranks have closed the group
Message = Tuple[Any, ...]


def _send(connection: socket.socket, message: Message) -> None:
    data = pickle.dumps(message)
    connection.sendall(struct.pack("<q", len(data)) + data)


def _receive(connection: socket.socket) -> Optional[Message]:
    """None at the end."""
    def read(count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = connection.recv(min(1 << 20, count - len(data)))
            if not part:
                raise OSError("ended")
            data += part
        return bytes(data)
    try:
        return pickle.loads(read(struct.unpack("<q", read(8))[0]))
    except OSError:
        return None


def tree_sum(parts: List[Any]) -> Any:
    """The order of starring.h: the left half has the largest power of two below the number of parts."""
    if len(parts) == 1:
        return parts[0]
    left = 1
    while 2 * left < len(parts):
        left *= 2
    return tree_sum(parts[:left]) + tree_sum(parts[left:])


def _widened(data: bytes, element_type: int) -> Any:
    if element_type == _library.FLOAT32:
        return np.frombuffer(data, np.float32)
    if element_type == _library.FLOAT16:
        return np.frombuffer(data, np.float16).astype(np.float32)
    return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)


def _rounded(values: Any, element_type: int) -> bytes:
    if element_type == _library.FLOAT32:
        return values.tobytes()
    if element_type == _library.FLOAT16:
        return values.astype(np.float16).tobytes()
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()


class _Hub(threading.Thread):
    """At rank 0: has a connection of every process, adds, and answers."""

    def __init__(self, listener: socket.socket, options: Any) -> None:
        super().__init__(daemon=True)
        self.listener = listener
        self.ranks, self.processes = options.world_size, options.world_size + options.server_count
        self.join_s, self.exchange_s = options.join_deadline_s, options.exchange_deadline_s
        self.identity = (options.group_name, bytes(options.token[:32]) if options.token else None)
        self.news: "queue.Queue[Tuple[int, Optional[Message]]]" = queue.Queue()
        self.connections: Dict[int, socket.socket] = {}

    def run(self) -> None:
        error = self._gather()
        self._tell(("joined", error))
        if error is None:
            for rank, connection in self.connections.items():
                threading.Thread(target=self._read, args=[rank, connection], daemon=True).start()
            self._serve()

    def _gather(self) -> Optional[Tuple[int, str]]:
        end = time.monotonic() + self.join_s
        while len(self.connections) < self.processes:
            self.listener.settimeout(max(0.01, end - time.monotonic()))
            try:
                connection, _ = self.listener.accept()
            except OSError:
                missing = sorted(set(range(self.processes)) - set(self.connections))
                return _library.PEER, f"{self._describe(missing[0])} has not joined within {self.join_s:g} s"
            hello = _receive(connection)
            assert hello is not None
            if hello[1:] != self.identity:
                _send(connection, ("joined", (_library.PEER, "not admitted: another group or token")))
                continue
            self.connections[hello[0]] = connection
        return None

    def _describe(self, rank: int) -> str:
        return f"rank {rank}" if rank < self.ranks else f"server {rank - self.ranks}"

    def _read(self, rank: int, connection: socket.socket) -> None:
        message: Optional[Message] = ()
        while message is not None:
            message = _receive(connection)
            self.news.put((rank, message))

    def _serve(self) -> None:
        calls: List[Dict[int, Message]] = []  # from the first that is not complete
        counts = [0] * self.ranks  # calls of each rank, since then
        gone: Dict[int, str] = {}
        done, since = 0, time.monotonic()
        while True:
            try:
                rank, message = self.news.get(timeout=_LOOK_S)
            except queue.Empty:
                rank, message = -1, ("nothing",)
            if message is None or message[0] == "abort":
                gone[rank] = message[1] if message else "it is gone"
                if message or rank >= self.ranks:
                    return self._break(_library.PEER, f"{self._describe(rank)} gave up: {gone[rank]}")
                if len(gone) == self.ranks:
                    return self._tell(("done", _SERVER_TICKET, b""))
            elif message[0] == "sum":
                if counts[rank] == len(calls):
                    calls.append({})
                calls[counts[rank]][rank] = message
                counts[rank] += 1
                since = time.monotonic() if len(calls) == 1 else since
            missing = [rank for rank in range(self.ranks) if calls and rank not in calls[0]]
            for rank in missing:
                if rank in gone:
                    return self._break(_library.PEER, f"rank {rank} gave up: {gone[rank]}")
                if time.monotonic() - since > self.exchange_s:
                    return self._break(_library.PEER, f"{calls[0][min(calls[0])][1]} did not come within "
                                                      f"{self.exchange_s:g} s: rank {rank} does not answer")
            while calls and len(calls[0]) == self.ranks:
                since = time.monotonic()
                call = calls.pop(0)
                counts = [count - 1 for count in counts]
                done += 1
                for rank in range(self.ranks):
                    if call[rank][1:3] != call[0][1:3]:
                        return self._break(_library.INVALID, f"rank {rank} begins {call[rank][1]}, rank 0 {call[0][1]}")
                _, _, (_, element_type, divisor), _ = call[0]
                total = tree_sum([_widened(call[rank][3], element_type) for rank in range(self.ranks)])
                self._tell(("done", done, _rounded(total / np.float32(divisor), element_type)))

    def _break(self, code: int, sentence: str) -> None:
        self._tell(("broken", code, sentence))

    def _tell(self, message: Message) -> None:
        # Rank 0 comes last: its process may end with the message, and the hub with the process.
        for rank in sorted(self.connections, reverse=True):
            try:
                _send(self.connections[rank], message)
            except OSError:
                pass


class _Group:
    """A process's end: a thread that sends, and one that receives."""

    def __init__(self, options: Any) -> None:
        self.hub: Optional[_Hub] = None
        if options.listener >= 0:
            self.hub = _Hub(socket.socket(fileno=options.listener), options)
            self.hub.start()
        self.changed = threading.Condition()
        self.tickets: Dict[int, Any] = {}  # the place of the elements
        self.ended: Dict[int, bytes] = {}
        self.begun = 0
        self.error: Optional[Tuple[int, str]] = None
        host, _, port = options.rendezvous.decode().rpartition(":")
        self.connection = socket.create_connection((host, int(port)))
        _send(self.connection, (options.rank, options.group_name,
                                bytes(options.token[:32]) if options.token else None))
        joined = _receive(self.connection)
        self.error = joined[1] if joined else (_library.PEER, "rank 0 is gone")
        self.outbox: "queue.SimpleQueue[Optional[Message]]" = queue.SimpleQueue()
        if self.error is None:
            if options.rank >= options.world_size:
                self.tickets[_SERVER_TICKET] = None
            threading.Thread(target=self._receive_all, daemon=True).start()
            self.sender = threading.Thread(target=self._send_all, daemon=True)
            self.sender.start()

    def _send_all(self) -> None:
        for message in iter(self.outbox.get, None):
            try:
                _send(self.connection, message)
            except OSError:
                return

    def _receive_all(self) -> None:
        message: Optional[Message] = ()
        while message is not None:
            message = _receive(self.connection)
            with self.changed:
                if message and message[0] == "done":
                    self.ended[message[1]] = message[2]
                elif self.error is None:
                    self.error = ((message[1], message[2]) if message
                                  else (_library.PEER, "rank 0 gave up: it is gone"))
                self.changed.notify_all()


class FakeLibrary:
    """What _library.load() returns."""

    def __init__(self) -> None:
        self._groups: Dict[int, _Group] = {}
        self._last = threading.local()

    def _fail(self, code: int, sentence: str) -> int:
        self._last.sentence = sentence
        return code

    def st_open(self, options_reference: Any, group_reference: Any) -> int:
        group = _Group(options_reference._obj)
        if group.error is not None:
            return self._fail(*group.error)
        number = len(self._groups) + 1
        self._groups[number] = group
        group_reference._obj.value = number
        return _library.OK

    def st_serve(self, options_reference: Any) -> int:
        handle = ctypes.c_void_p()
        code = self.st_open(options_reference, ctypes.byref(handle))
        if code == _library.OK:
            code = _library.TIMEOUT
            while code == _library.TIMEOUT:
                code = self.st_wait(handle, _SERVER_TICKET, 1000)
            self.st_close(handle)
        return code

    def st_allreduce(self, handle: Any, step: int, bucket: int, layout: int, data: int, count: int, element_type: int,
                     divisor: float, ticket_reference: Any) -> int:
        group = self._groups[handle.value]
        with group.changed:
            if group.error is not None:
                return self._fail(*group.error)
            if len(group.tickets) >= _library.TICKETS_MAX:
                return self._fail(_library.INVALID, "too many sums are begun")
            group.begun += 1
            size = count * (4 if element_type == _library.FLOAT32 else 2)
            group.tickets[group.begun] = (data, size)
            ticket_reference._obj.value = group.begun
            what = f"step {step}, bucket {bucket} of {count} elements with layout {layout:016x}"
            group.outbox.put(("sum", what, (count, element_type, divisor), ctypes.string_at(data, size)))
        return _library.OK

    def st_wait(self, handle: Any, ticket: int, milliseconds: int) -> int:
        group = self._groups[handle.value]
        with group.changed:
            group.changed.wait_for(lambda: ticket in group.ended or group.error, milliseconds / 1e3)
            if ticket in group.ended:
                place = group.tickets.pop(ticket)
                data = group.ended.pop(ticket)
                if place is not None:
                    ctypes.memmove(place[0], data, place[1])
                return _library.OK
            if group.error is not None:
                group.tickets.pop(ticket)
                return self._fail(*group.error)
            return _library.TIMEOUT

    def st_last_error(self, _: Any) -> bytes:
        return self._last.sentence.encode()

    def st_abort(self, handle: Any, why: bytes) -> int:
        group = self._groups[handle.value]
        group.outbox.put(("abort", why.decode()))
        with group.changed:
            group.changed.wait_for(lambda: group.error, 5)
        return _library.OK

    def st_close(self, handle: Any) -> int:
        group = self._groups.pop(handle.value)
        group.outbox.put(None)
        group.sender.join(5)
        # Only this half: data that was not read would otherwise turn the end into a reset.
        try:
            group.connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        # The hub ends with this process, and has yet to tell servers that the group is over.
        if group.hub is not None:
            group.hub.join(_HUB_END_S)
        return _library.OK


def install() -> FakeLibrary:
    """Makes this process, and those that it forks, use the stand-in."""
    library = FakeLibrary()
    load: Callable[[], Any] = lambda: library
    _library.load = load  # type: ignore[assignment]
    return library


def environment(folder: str) -> Dict[str, str]:
    """Environment variables with which every python3 uses the stand-in; writes a file to `folder`."""
    with open(os.path.join(folder, "sitecustomize.py"), "w", encoding="utf-8") as file:
        file.write("import fake_library\nfake_library.install()\n")
    here = os.path.dirname(os.path.abspath(__file__))
    package = os.path.dirname(os.path.dirname(os.path.abspath(starring.__file__)))
    return {"PYTHONPATH": os.pathsep.join([folder, here, package])}
