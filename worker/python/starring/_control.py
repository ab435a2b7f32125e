"""How rank 0 of a group tells a server that the group wants it. Both ends are here.

Each line of the conversation ends with a newline. Ns and Nc are fresh nonces, the key follows from the *job secret*, a
file that servers and ranks share, and a *request* is JSON.

    server   starring VERSION Ns
    rank 0   hello VERSION Nc
    server   HMAC(key, "server" Ns Nc)
    rank 0   HMAC(key, "rank 0" Ns Nc request) request
    server   {} or {"refusal": sentence}

So the server proves first that it has the secret, and rank 0 says nothing of its group to another program. Neither the
secret nor a key travels: a key is the HMAC of a label under the digest of the file, one for each use (as in
common/security/job_secret.h), and the group's token follows from one and the group's name.
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
VERSION = 2  # servers of version 1 begin with the nonce alone

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


def _key(secret: bytes, label: bytes) -> bytes:
    return hmac.new(secret, label, hashlib.sha256).digest()


def group_token(secret: bytes, group_name: str) -> bytes:
    """What ranks and servers of one group prove to each other that they know; 32 bytes."""
    return _key(_key(secret, b"starring python groups"), group_name.encode())


def _code(secret: bytes, side: str, nonces: Tuple[str, str], text: str = "") -> str:
    """What `side` proves with: the server's nonce and rank 0's have a fixed length."""
    words = f"{side} {nonces[0]} {nonces[1]} {text}"
    return hmac.new(_key(secret, b"starring python servers"), words.encode(), hashlib.sha256).hexdigest()


def _nonce() -> str:
    return secrets.token_hex(16)


def _is_nonce(text: str) -> bool:
    return len(text) == 32 and all(c in "0123456789abcdef" for c in text)


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
    name = f"server {request['number']} at {address}"
    text = json.dumps(request)
    try:
        with socket.create_connection(split_address(address), timeout=_ANSWER_S) as connection:
            words = _read_line(connection).split(" ")
            version = words[1] if len(words) == 3 and words[0] == "starring" else "1" if _is_nonce(words[0]) else None
            if version is None or (version == str(VERSION) and not _is_nonce(words[2])):
                raise StarringError(f"{name} is no server of starring: correct its address")
            if version != str(VERSION):
                raise StarringError(f"{name} speaks version {version[:8]}, rank 0 version {VERSION}: install the same "
                                    "starring for both")
            nonces = words[2], _nonce()
            connection.sendall(f"hello {VERSION} {nonces[1]}\n".encode())
            proof = _read_line(connection)
            if not hmac.compare_digest(proof.encode(), _code(secret, "server", nonces).encode()):
                raise StarringError(f"{name} does not prove that it has this job's secret: give both ends the same "
                                    f"{SECRET_VARIABLE}")
            connection.sendall(f"{_code(secret, 'rank 0', nonces, text)} {text}\n".encode())
            answer = json.loads(_read_line(connection))
    except socket.timeout as error:
        raise StarringError(f"{name} does not answer within {_ANSWER_S:g} s: a firewall may drop the packets, or it is "
                            "stuck: let TCP pass to that port", "peer") from error
    except (OSError, ValueError) as error:
        raise StarringError(f"{name} does not answer: {error}: is it running? "
                            "python -m starring.servers starts it", "peer") from error
    if answer.get("refusal"):
        raise StarringError(f"{name}: {answer['refusal']}")


def answer(connection: socket.socket, secret: bytes, accept: Callable[[Request], None]) -> None:
    """Serves one connection: `accept` gets a request that was proven, and may raise StarringError to refuse it. OSError
    if the other end does not speak in time."""
    connection.settimeout(_ANSWER_S)
    own_nonce = _nonce()
    connection.sendall(f"starring {VERSION} {own_nonce}\n".encode())
    refusal = None
    try:
        words = _read_line(connection).split(" ", 2)
        # Rank 0 of version 1 takes the first line for a nonce, and sends its request at once.
        version = words[1] if words[0] == "hello" and len(words) == 3 else "1"
        if version != str(VERSION):
            raise StarringError(f"it speaks version {VERSION}, rank 0 version {version[:8]}: install the same starring "
                                "for both")
        nonces = own_nonce, words[2]
        if not _is_nonce(nonces[1]):
            raise ValueError("a nonce of another form")
        connection.sendall(f"{_code(secret, 'server', nonces)}\n".encode())
        proof, _, text = _read_line(connection).partition(" ")
        if not hmac.compare_digest(proof.encode(), _code(secret, "rank 0", nonces, text).encode()):
            raise StarringError("the request was not made with this job's secret: give both ends the same "
                                f"{SECRET_VARIABLE}")
        accept(json.loads(text))
    except StarringError as error:
        refusal = str(error)
    except (ValueError, TypeError, KeyError) as error:
        refusal = f"the request is broken: {error!r}"
    connection.sendall((json.dumps({"refusal": refusal} if refusal else {}) + "\n").encode())
