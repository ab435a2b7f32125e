"""One server of stars: waits for requests of rank 0 (starring/_control.py) and is a server of each group that asks.

python -m starring.servers starts this program; it has no other user. It ends with its standard input.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
import time
from typing import Any, Dict

from starring import _control, _library
from starring._library import StarringError

GROUPS_MAX = 64  # served at a time
_STRANGERS_MAX = 256  # connections without a proof that are heard at a time, each by a thread
_STRANGER_LIFE_MIN_S = 0.25  # before one may be cut for the next: rank 0 proves itself in two round trips
_PAUSE_S = 1.0  # after an accept that failed: what is missing does not come back at once


def settings_of(request: _control.Request, port_range: str = "") -> _library.Settings:
    """What a server needs to join the group of a request, without the token. ValueError, TypeError or KeyError if the
    request is broken."""
    return _library.Settings(
        rank=int(request["world_size"]) + int(request["number"]), world_size=int(request["world_size"]),
        topology="star", rendezvous=str(request["rendezvous"]), group_name=str(request["group_name"]),
        server_count=int(request["server_count"]), join_deadline_s=float(request["join_deadline_s"]),
        exchange_deadline_s=float(request["exchange_deadline_s"]), port_range=port_range)


class Strangers:
    """The connections that have not proved themselves yet. Any thread may call any method."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._since: Dict[socket.socket, float] = {}  # oldest first

    def add(self, connection: socket.socket) -> None:
        """Cuts the oldest for it if there are too many. Waits until that has had its time."""
        with self._changed:
            while len(self._since) >= _STRANGERS_MAX:
                oldest, since = next(iter(self._since.items()))
                left = since + _STRANGER_LIFE_MIN_S - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                del self._since[oldest]
                try:
                    oldest.shutdown(socket.SHUT_RDWR)  # ends its thread, which closes it
                except OSError:
                    pass  # it has ended by itself
            self._since[connection] = time.monotonic()

    def forget(self, connection: socket.socket) -> None:
        """It has proved itself, or ended. Must be called before it is closed."""
        with self._changed:
            self._since.pop(connection, None)
            self._changed.notify()


class Server:
    """Serves groups, each in a thread of its own, whose work is done inside the library without the GIL."""

    def __init__(self, number: int, secret: bytes, port_range: str = "") -> None:
        self._number, self._secret, self._port_range = number, secret, port_range
        self._strangers = Strangers()
        self._lock = threading.Lock()
        self._groups = 0  # guarded by _lock

    def run(self, listener: socket.socket) -> None:
        """Accepts requests until the process ends."""
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:  # such as too many open files
                self._say(f"cannot accept: {error}")
                time.sleep(_PAUSE_S)
                continue
            self._strangers.add(connection)
            threading.Thread(target=self._speak, args=[connection], daemon=True).start()

    def _speak(self, connection: socket.socket) -> None:
        def accept(request: _control.Request) -> None:
            self._strangers.forget(connection)
            self._accept(request)

        with connection:
            try:
                _control.answer(connection, self._secret, accept)
            except OSError:
                pass  # a stranger, or a rank that has ended; the rank itself says why
            finally:
                self._strangers.forget(connection)

    def _accept(self, request: _control.Request) -> None:
        settings = settings_of(request, self._port_range)
        settings.token = _control.group_token(self._secret, settings.group_name)
        settings.say = self._say
        with self._lock:
            if self._groups >= GROUPS_MAX:
                raise StarringError(f"it serves {GROUPS_MAX} models already, as many as it can: start more servers")
            self._groups += 1
        threading.Thread(target=self._serve, args=[settings], daemon=True).start()

    def _serve(self, settings: _library.Settings) -> None:
        try:
            _library.serve(settings)
        except StarringError as error:
            self._say(str(error))
        finally:
            with self._lock:
                self._groups -= 1

    def _say(self, line: str) -> None:
        print(f"starring server {self._number}: {line}", file=sys.stderr, flush=True)


def _end_with_standard_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def main(arguments: Any = None) -> None:
    parser = argparse.ArgumentParser(prog="starring._server", description="Started by python -m starring.servers.")
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--listener", type=int, required=True, help="the descriptor of a listening socket")
    parser.add_argument("--port_range", default="", help="in which it listens as a rank of a group")
    flags = parser.parse_args(arguments)
    try:
        secret = _control.load_secret(os.environ.get(_control.SECRET_VARIABLE))
        _library.load()
    except StarringError as error:
        sys.exit(f"starring server {flags.number}: {error}")
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    Server(flags.number, secret, flags.port_range).run(socket.socket(fileno=flags.listener))


if __name__ == "__main__":
    main()
