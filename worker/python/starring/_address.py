"""Addresses of sockets as text: host:port, with an IPv6 host in brackets. IPv4 and IPv6 alike."""

from __future__ import annotations

import errno
import socket
from typing import Optional, Sequence, Tuple

PORT_MAX = 65535  # TCP


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


def ports_of(port_range: str) -> Sequence[int]:
    """The ports of "7000-7100"; of an empty text port 0, which takes any free one. ValueError for another text."""
    if not port_range:
        return [0]
    first, _, last = port_range.partition("-")
    if not first.isdecimal() or not last.isdecimal() or not 1 <= int(first) <= int(last) <= PORT_MAX:
        raise ValueError(f"port_range={port_range!r} is not first-last, such as 7000-7100, from 1 to {PORT_MAX}")
    return range(int(first), int(last) + 1)


def listen(host: str, backlog: Optional[int] = None, port_range: str = "") -> socket.socket:
    """Listens on a free port of `host`, the first one of `port_range`: of a name with several addresses, on the first
    that this machine has, an IPv4 one before others. OSError if it has none, or if all ports are taken."""
    ports = ports_of(port_range)
    found = socket.getaddrinfo(bare(host), 0, type=socket.SOCK_STREAM)
    error = OSError(f"{host} has no address")
    for family, _, _, _, place in sorted(found, key=lambda one: one[0] != socket.AF_INET):
        for port in ports:
            try:
                return socket.create_server((place[0], port), family=family, backlog=backlog)
            except OSError as why:
                error = why
                if why.errno != errno.EADDRINUSE:
                    break
        else:
            if port_range:
                raise OSError(f"no port from {ports[0]} to {ports[-1]} is free: end what listens there, or widen "
                              "port_range")
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
