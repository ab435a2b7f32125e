"""Addresses of sockets as text: host:port, with an IPv6 host in brackets. IPv4 and IPv6 alike."""

from __future__ import annotations

import socket
from typing import Optional, Tuple


def bare(host: str) -> str:
    """The host without the brackets that it has next to a port."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def split(address: str) -> Tuple[str, int]:
    """("::1", 7077) of "[::1]:7077"; ValueError if `address` is no host:port."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or (":" in host) != (bare(host) != host):
        raise ValueError(f"{address!r} is not host:port, with an IPv6 host in brackets")
    return bare(host), int(port)


def join(host: str, port: int) -> str:
    """The opposite of split."""
    return f"[{bare(host)}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine reach `host`. No name but localhost is looked up."""
    return bare(host) in ("localhost", "::1") or host.startswith("127.")


def listen(host: str, backlog: Optional[int] = None) -> socket.socket:
    """Listens on a free port of `host`: of a name with several addresses, on the first that this machine has, an IPv4
    one before others. OSError if it has none."""
    found = socket.getaddrinfo(bare(host), 0, type=socket.SOCK_STREAM)
    error = OSError(f"{host} has no address")
    for family, _, _, _, place in sorted(found, key=lambda one: one[0] != socket.AF_INET):
        try:
            return socket.create_server(place[:2], family=family, backlog=backlog)
        except OSError as why:
            error = why
    raise error


def own_address_towards(host: str) -> Optional[str]:
    """The address from which this machine reaches `host`; None if it does not. Asks the routing table, and sends
    nothing."""
    try:
        found = socket.getaddrinfo(bare(host), 9, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, place in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(place)
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None
