"""A TCP proxy on loopback that acts as a bad network: it can cut, refuse or freeze connections."""

from __future__ import annotations

import random
import socket
import struct
import threading

# How long a connection waits until the server's address is known.
TARGET_SECONDS_MAX = 10.0
CHUNK_BYTES = 1 << 18


def _reset(sock: socket.socket) -> None:
    """Ends a connection as a broken network does: bytes on their way are lost."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.shutdown(socket.SHUT_RDWR)  # wakes the threads that read or write the socket
    except OSError:
        pass


class Proxy:
    """Forwards each connection to `address` to the target that was set last.

    Thread safety: any thread may call any method.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        self._changed = threading.Condition()
        self._target: tuple[str, int] | None = None  # None: not known yet
        self._shut = False
        self._flows = threading.Event()
        self._flows.set()
        self._admits = threading.Event()
        self._admits.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []  # each connected to each other
        threading.Thread(target=self._accept, daemon=True).start()

    def set_target(self, address: str | None) -> None:
        """`address` is host:port, or None while the server does not run."""
        host, _, port = (address or "").rpartition(":")
        with self._changed:
            self._target = (host, int(port)) if address else None
            self._changed.notify_all()

    def cut(self, rng: random.Random | None = None) -> int:
        """Resets all connections, or with `rng` a random one. Returns how many."""
        with self._changed:
            pairs = list(self._pairs)
        if rng is not None and pairs:
            pairs = [rng.choice(pairs)]
        for pair in pairs:
            for sock in pair:
                _reset(sock)
        return len(pairs)

    def shut(self) -> None:
        """Resets all present and future connections."""
        self._shut = True
        self.cut()

    def freeze(self) -> None:
        """Stops forwarding without closing connections, like a machine that lost power."""
        self._flows.clear()

    def block(self) -> None:
        """Forwards nothing of connections that begin from now on, as a firewall does. Those that are open stay."""
        self._admits.clear()

    def open(self) -> None:
        """Undoes `shut`, `freeze` and `block`."""
        self._shut = False
        self._flows.set()
        self._admits.set()

    def close(self) -> None:
        self._listener.close()
        self._flows.set()
        self._admits.set()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._target is not None, TARGET_SECONDS_MAX)
            target = self._target
        self._admits.wait()
        try:
            if self._shut or target is None:
                raise OSError("shut")
            server = socket.create_connection(target, timeout=TARGET_SECONDS_MAX)
        except OSError:
            _reset(client)
            client.close()
            return
        pair = (client, server)
        for sock in pair:
            sock.settimeout(None)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._changed:
            self._pairs.append(pair)
        back = threading.Thread(target=self._forward, args=(server, client), daemon=True)
        back.start()
        self._forward(client, server)
        back.join()
        with self._changed:
            self._pairs.remove(pair)
        for sock in pair:
            sock.close()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while True:
                data = source.recv(CHUNK_BYTES)
                self._flows.wait()
                if not data:
                    break
                sink.sendall(data)
        except OSError:
            pass
        for sock in (source, sink):
            _reset(sock)


def cut_some(proxy: Proxy, seed: float) -> int:
    """Cuts one connection or all of them, chosen by `seed`."""
    rng = random.Random(seed)
    return proxy.cut(rng if rng.random() < 0.5 else None)
