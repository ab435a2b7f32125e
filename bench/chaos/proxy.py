"""A TCP proxy on loopback whose connections can be cut, refused or frozen: the network between workers and a server."""

import random
import socket
import struct
import threading

# For a server to say where it listens, before a connection that came earlier is given up.
TARGET_SECONDS_MAX = 10.0
CHUNK_BYTES = 1 << 18


def _reset(sock):
    """Ends a connection as a broken network does: what is on its way is lost."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.shutdown(socket.SHUT_RDWR)  # wakes the threads that read and write it
    except OSError:
        pass


class Proxy:
    """Forwards what connects to `address` to the target that was set last.

    Thread safety: any thread may call any method.
    """

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        self._changed = threading.Condition()
        self._target = None  # host and port; None: not known yet
        self._shut = False
        self._flows = threading.Event()
        self._flows.set()
        self._pairs = []  # of sockets that are connected to each other
        threading.Thread(target=self._accept, daemon=True).start()

    def set_target(self, address):
        """`address` is host:port, or None while the server is not there."""
        host, _, port = (address or "").rpartition(":")
        with self._changed:
            self._target = (host, int(port)) if address else None
            self._changed.notify_all()

    def cut(self, rng=None):
        """Resets every connection, or with `rng` one; returns how many."""
        with self._changed:
            pairs = list(self._pairs)
        if rng is not None and pairs:
            pairs = [rng.choice(pairs)]
        for pair in pairs:
            for sock in pair:
                _reset(sock)
        return len(pairs)

    def shut(self):
        """Resets what is connected, and whatever connects from now on."""
        self._shut = True
        self.cut()

    def freeze(self):
        """Passes nothing on and closes nothing, as a machine without power does."""
        self._flows.clear()

    def open(self):
        """Undoes `shut` and `freeze`."""
        self._shut = False
        self._flows.set()

    def close(self):
        self._listener.close()
        self._flows.set()
        self.cut()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client):
        with self._changed:
            self._changed.wait_for(lambda: self._target is not None, TARGET_SECONDS_MAX)
            target = self._target
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

    def _forward(self, source, sink):
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


def cut_some(proxy, seed):
    """Cuts one connection or all of them, as `seed` says."""
    rng = random.Random(seed)
    return proxy.cut(rng if rng.random() < 0.5 else None)
