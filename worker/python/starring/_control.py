"""How rank 0 of a group tells a server that the group wants it. Both ends are here.

A *request* is one line of JSON over TCP. The server speaks first: a fresh nonce. The request carries the HMAC of nonce
and request under the *job secret*, a file that servers and ranks share, and the server answers with one line: {} or
{"refusal": sentence}. Nothing of the secret travels: the group's token follows from it and the group's name.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import socket
import stat
import time
from typing import Any, Callable, Dict, Optional, Tuple

from starring import _address
from starring._library import StarringError

SERVERS_VARIABLE = "STARRING_SERVERS"  # host:port,host:port
SECRET_VARIABLE = "STARRING_JOB_SECRET"  # the path of the secret's file
VERSION = 1

Request = Dict[str, Any]

_LINE_BYTES_MAX = 4096
_ANSWER_S = 10.0  # for the other end to send a line


def load_secret(path: Optional[str]) -> bytes:
    """The SHA-256 of the file at `path`. StarringError if others may read it."""
    if not path:
        raise StarringError(f"servers need the job's secret: start the job by python -m starring.servers, or name its "
                            f"file in {SECRET_VARIABLE}")
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read()
    except OSError as error:
        raise StarringError(f"the job's secret cannot be read: {error}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise StarringError(f"the job's secret {path} has mode {stat.S_IMODE(mode):o}, so others may read it: "
                            f"chmod 600 {path}")
    if not content:
        raise StarringError(f"the job's secret {path} is empty")
    return hashlib.sha256(content).digest()


def group_token(secret: bytes, group_name: str) -> bytes:
    """What ranks and servers of one group prove to each other that they know; 32 bytes."""
    return hmac.new(secret, b"group " + group_name.encode(), hashlib.sha256).digest()


def _proof(secret: bytes, nonce: str, text: str) -> str:
    return hmac.new(secret, f"request {nonce} {text}".encode(), hashlib.sha256).hexdigest()


def _read_line(connection: socket.socket) -> str:
    """The next line, without its end. OSError if there is none in time, or too much."""
    line = b""
    end = time.monotonic() + _ANSWER_S
    while not line.endswith(b"\n"):
        connection.settimeout(max(0.001, end - time.monotonic()))
        part = connection.recv(_LINE_BYTES_MAX)
        if not part:
            raise OSError("the other end closed the connection")
        line += part
        if len(line) > _LINE_BYTES_MAX:
            raise OSError(f"the other end sent more than {_LINE_BYTES_MAX} bytes")
    return line[:-1].decode("utf-8", "replace")


def split_address(address: str) -> Tuple[str, int]:
    """("host", port) of "host:port"; StarringError if it is none."""
    try:
        return _address.split(address)
    except ValueError as error:
        raise StarringError(f"server address {error}") from error


def ask(address: str, secret: bytes, request: Request) -> None:
    """Sends a request to the server at `address`. StarringError if it is not there, or refuses."""
    text = json.dumps({"version": VERSION, **request})
    try:
        with socket.create_connection(split_address(address), timeout=_ANSWER_S) as connection:
            nonce = _read_line(connection)
            connection.sendall(f"{_proof(secret, nonce, text)} {text}\n".encode())
            answer = json.loads(_read_line(connection))
    except (OSError, ValueError) as error:
        raise StarringError(f"server {request['number']} at {address} does not answer: {error}: is it running? "
                            "python -m starring.servers starts it", "peer") from error
    if answer.get("refusal"):
        raise StarringError(f"server {request['number']} at {address}: {answer['refusal']}")


def answer(connection: socket.socket, secret: bytes, accept: Callable[[Request], None]) -> None:
    """Serves one connection: `accept` gets a request that was proven, and may raise StarringError to refuse it. OSError
    if the other end does not speak in time."""
    connection.settimeout(_ANSWER_S)
    nonce = secrets.token_hex(16)
    connection.sendall(f"{nonce}\n".encode())
    proof, _, text = _read_line(connection).partition(" ")
    refusal = None
    if not hmac.compare_digest(proof.encode(), _proof(secret, nonce, text).encode()):
        refusal = f"the request was not made with this job's secret: give both ends the same {SECRET_VARIABLE}"
    else:
        try:
            request = json.loads(text)
            if request["version"] != VERSION:
                raise StarringError(f"it speaks version {VERSION}, rank 0 version {request['version']}: install the "
                                    "same starring for both")
            accept(request)
        except StarringError as error:
            refusal = str(error)
        except (ValueError, TypeError, KeyError) as error:
            refusal = f"the request is broken: {error!r}"
    connection.sendall((json.dumps({"refusal": refusal} if refusal else {}) + "\n").encode())
