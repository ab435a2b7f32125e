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
from typing import Any

from starring import _control, _library
from starring._library import StarringError

GROUPS_MAX = 64  # served at a time
_CONNECTIONS_MAX = 16  # speaking at a time; the next ones wait to be accepted
_PAUSE_S = 1.0  # after an accept that failed: what is missing does not come back at once


def settings_of(request: _control.Request) -> _library.Settings:
    """What a server needs to join the group of a request, without the token. ValueError, TypeError or KeyError if the
    request is broken."""
    return _library.Settings(
        rank=int(request["world_size"]) + int(request["number"]), world_size=int(request["world_size"]),
        topology="star", rendezvous=str(request["rendezvous"]), group_name=str(request["group_name"]),
        server_count=int(request["server_count"]), join_deadline_s=float(request["join_deadline_s"]),
        exchange_deadline_s=float(request["exchange_deadline_s"]))


class Server:
    """Serves groups, each in a thread of its own, whose work is done inside the library without the GIL."""

    def __init__(self, number: int, secret: bytes) -> None:
        self._number, self._secret = number, secret
        self._speaking = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        self._lock = threading.Lock()
        self._groups = 0  # guarded by _lock

    def run(self, listener: socket.socket) -> None:
        """Accepts requests until the process ends."""
        while True:
            self._speaking.acquire()
            try:
                connection, _ = listener.accept()
            except OSError as error:  # such as too many open files
                self._say(f"cannot accept: {error}")
                self._speaking.release()
                time.sleep(_PAUSE_S)
                continue
            threading.Thread(target=self._speak, args=[connection], daemon=True).start()

    def _speak(self, connection: socket.socket) -> None:
        try:
            with connection:
                _control.answer(connection, self._secret, self._accept)
        except OSError:
            pass  # a stranger, or a rank that has ended; the rank itself says why
        finally:
            self._speaking.release()

    def _accept(self, request: _control.Request) -> None:
        settings = settings_of(request)
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
    flags = parser.parse_args(arguments)
    try:
        secret = _control.load_secret(os.environ.get(_control.SECRET_VARIABLE))
        _library.load()
    except StarringError as error:
        sys.exit(f"starring server {flags.number}: {error}")
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    Server(flags.number, secret).run(socket.socket(fileno=flags.listener))


if __name__ == "__main__":
    main()
