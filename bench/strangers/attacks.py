"""What a stranger tries. Each attack goes on until `end` (on the monotonic clock) and counts what it did.

All of it stays on loopback, and holds at most `Attack.connections` connections.
"""

import collections
import dataclasses
import os
import random
import signal
import socket
import time
import zlib

from bench.strangers import http2
from bench.strangers.http2 import Connection, fields, frame, message

# ExchangeMessage.Kind
HELLO, INITIAL_PARAMETERS, GRADIENT, FETCH_STATE, SUM, FINISH, ABORT, SHARE = 1, 2, 5, 6, 7, 8, 9, 10

BOMB_BYTES = 256 << 20
PACKED_BOMBS = {}  # by encoding; see prepare
PARALLEL = 32


def prepare():
    """Packs the bombs, which takes seconds: before any attack is timed."""
    for encoding, bits in (("gzip", 31), ("deflate", 15)):
        packer = zlib.compressobj(6, zlib.DEFLATED, bits)
        block = bytes(1 << 20)
        PACKED_BOMBS[encoding] = b"".join(packer.compress(block) for _ in range(BOMB_BYTES >> 20)) + packer.flush()


@dataclasses.dataclass
class Attack:
    address: str
    end: float
    connections: int
    rng: random.Random
    counts: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    stopped: bool = False

    def going(self):
        return not self.stopped and time.monotonic() < self.end

    def connect(self, preface=True):
        """None if the server would not have it."""
        try:
            connection = Connection(self.address, preface)
        except OSError:
            self.counts["refused"] += 1
            time.sleep(0.01)
            return None
        self.counts["connections"] += 1
        return connection

    def done_with(self, connection):
        connection.read(0)
        self.counts["answers"] += connection.answers
        self.counts["bytes"] += connection.sent_bytes
        self.counts["cut by the server"] += not connection.open
        connection.close()

    def each_connection(self, use, preface=True):
        """`use(connection)` again and again, each on a connection of its own."""
        while self.going():
            if connection := self.connect(preface):
                use(connection)
                self.done_with(connection)


def agreement(rng):
    """A JobAgreement, plausible or not; the big ones ask for terabytes."""
    if rng.random() < 0.2:
        return rng.randbytes(rng.randrange(2000))
    return fields((1, rng.choice([1, 2, 2, 2, 1024, -1])), (2, rng.randbytes(16).hex().encode()),
                  (3, rng.choice([7850, 61706, 1 << 36, (1 << 63) - 1])), (4, rng.choice([0, 1 << 20, 1 << 40])),
                  (6, fields((1, rng.choice([0, 1])))))


def join_request(rng):
    return fields((1, rng.choice([b"", b"run", b"\x1b[2J\n\r" * 8000])), (2, rng.choice([0, 1, 2, -1, 1 << 30])),
                  (3, ("fixed64", rng.getrandbits(64))), (4, rng.choice([0, 0, 0, 5])), (5, rng.choice([1, 1, 2])),
                  (6, agreement(rng)), (7, rng.choice([100, 60000, (1 << 62)])), (8, rng.choice([100, 60000])),
                  (9, rng.choice([0, 1, 2])), (10, rng.choice([b"", rng.randbytes(32), rng.randbytes(4096)])))


def joins(attack):
    """Joins, of every rank and kind, without the token."""
    def use(connection):
        for _ in range(200):
            if not connection.open or not attack.going():
                break
            connection.call(attack.rng.choice(["Join"] * 9 + ["GetStatus"]), join_request(attack.rng))
            attack.counts["calls"] += 1
    attack.each_connection(use)


def hello(rng):
    return fields((1, HELLO), (5, rng.choice([0, 1, 7])), (6, rng.randrange(16)),
                  (7, ("fixed64", rng.choice([0, 1, rng.getrandbits(64)]))))


def hellos(attack):
    """Lanes with guessed job ids, and what a worker would send next."""
    def use(connection):
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


def big_messages(attack):
    """Messages that claim 4 GiB, and as much of them as is taken."""
    block = bytes(1 << 20)
    open_ones = []
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


def bombs(attack):
    """Compressed messages, small on the wire and 256 MiB once inflated."""
    def use(connection):
        for _ in range(4):
            encoding = attack.rng.choice(list(PACKED_BOMBS))
            stream = connection.new_stream(attack.rng.choice(["Join", "Exchange"]), encoding)
            connection.send_data(stream, message(PACKED_BOMBS[encoding], compressed=True), end=True)
            attack.counts["bombs"] += 1
            if not connection.open or not attack.going():
                break
    attack.each_connection(use)


def connections(attack):
    """As many connections as there may be, held open; every second one says that it speaks HTTP/2."""
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


def half_open(attack):
    """Streams that are opened and then say nothing, headers and messages that do not end."""
    held = []
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
            connection.send(frame(http2.HEADERS, 0, 1001, http2.headers("Join")))  # to be continued
        elif attack.rng.random() < 0.5:
            connection.send(frame(http2.DATA, 0, 1, bytes(16384))[:1000])
        held.append(connection)
    for connection in held:
        attack.done_with(connection)


def trickle(attack):
    """One byte a second, on many connections."""
    text = (http2.PREFACE + frame(http2.SETTINGS, 0, 0)
            + frame(http2.HEADERS, http2.END_HEADERS, 1, http2.headers("Exchange"))
            + frame(http2.DATA, 0, 1, message(hello(attack.rng))))
    skipped = [0, len(http2.PREFACE), len(text) - 20]  # half of them have got further
    held = []
    while attack.going():
        while len(held) < 8 * PARALLEL and attack.going():
            connection = attack.connect(preface=False)
            if connection is None:
                break
            at = attack.rng.choice(skipped)
            connection.send(text[:at])
            held.append([connection, at])
        for entry in held:
            connection, at = entry
            connection.send(text[at:at + 1])
            connection.read(0)
            entry[1] += 1
        for entry in [entry for entry in held if not entry[0].open or entry[1] >= len(text)]:
            attack.done_with(entry[0])
            held.remove(entry)
        next_second = time.monotonic() + 1
        while attack.going() and time.monotonic() < next_second:
            time.sleep(0.02)
    for connection, _ in held:
        attack.done_with(connection)


def random_bytes(attack):
    """Noise, from the first byte or in the frames of a connection that began well."""
    def noise(connection):
        for _ in range(8):
            connection.send(os.urandom(attack.rng.randrange(1, 1 << 14)))

    def frames(connection):
        connection.send(http2.PREFACE + frame(http2.SETTINGS, 0, 0))
        for _ in range(32):
            payload = attack.rng.randbytes(attack.rng.randrange(200))
            kind, flags, stream = (attack.rng.randrange(most) for most in (12, 256, 64))
            connection.send(frame(kind, flags, stream, payload))

    attack.each_connection(lambda connection: attack.rng.choice([noise, frames])(connection), preface=False)


def floods(attack):
    """Frames that cost the sender nothing: resets, pings, settings, headers without end."""
    def resets(connection):
        for _ in range(500):
            stream = connection.new_stream("Exchange")
            connection.send(frame(http2.RST_STREAM, 0, stream, bytes([0, 0, 0, 8])))

    def pings(connection):
        connection.send(b"".join(frame(http2.PING, 0, 0, os.urandom(8)) for _ in range(2000)))

    def settings(connection):
        connection.send(frame(http2.SETTINGS, 0, 0, bytes([0, 3, 0, 0, 0, 100])) * 2000)

    def endless_headers(connection):
        connection.send(frame(http2.HEADERS, 0, 1, http2.headers("Join")))
        junk = b"\0\x04junk\x7f\x00" + b"x" * 127
        for _ in range(200):
            connection.send(frame(http2.CONTINUATION, 0, 1, junk * 100))

    def use(connection):
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


def run(name, address, end, connection_count, seed):
    """Runs one attack to its end, or until SIGUSR1, and returns its counts."""
    attack = Attack(address=address, end=end, connections=connection_count, rng=random.Random(seed))

    def stop(*_):
        attack.stopped = True
    signal.signal(signal.SIGUSR1, stop)
    ATTACKS[name](attack)
    return dict(attack.counts)
