"""Drops chosen packets between the hosts of a lab, at the ports of its switch, as a firewall or a broken cable does.

Each rule is a program of classic BPF in a filter of `tc` (clsact, direct-action), which the kernel runs for each packet
that enters or leaves the switch by one port. It needs neither iptables nor nft. The sender learns nothing of it.
"""

from __future__ import annotations

import dataclasses
import socket
import struct
from collections.abc import Callable, Sequence

_ETHERNET_TYPE, _IP_HEADER, _IP_SOURCE, _IP_TARGET = 12, 14, 26, 30  # offsets in a packet
_IPV4 = 0x800
_DROP, _PASS = 2, 0xffffffff  # TC_ACT_SHOT, TC_ACT_UNSPEC
# The instructions of linux/bpf_common.h that are used here.
_LOAD_HALF, _LOAD_WORD, _LOAD_HEADER_LENGTH, _LOAD_HALF_AFTER_HEADER = 0x28, 0x20, 0xb1, 0x48
_JUMP_IF_EQUAL, _RETURN = 0x15, 0x06


@dataclasses.dataclass(frozen=True)
class Flow:
    """Packets on their way from host `source` to host `target`; None is any host, and one of both is given.

    `source_port` and `target_port` are TCP's or UDP's; None is any. A flow with one host and no port has all packets,
    ARP included, as on a cable; any other one has IP packets alone.
    """
    source: int | None = None
    target: int | None = None
    source_port: int | None = None
    target_port: int | None = None

    @property
    def port(self) -> tuple[str, str]:
        """The port of the switch where all of these packets pass, and whether they enter or leave there."""
        if self.source is not None:
            return "port%d" % self.source, "ingress"
        if self.target is None:
            raise ValueError("a flow has a source or a target")
        return "port%d" % self.target, "egress"

    def program(self, address: Callable[[int], str]) -> str:
        """The filter's program, as `tc` reads it. It sees the packets of `port` alone."""
        tests: list[tuple[list[tuple[int, int]], int]] = []  # loads, and the value that a packet of this flow then has
        if self.source is not None and self.target is not None:
            tests.append(([(_LOAD_WORD, _IP_SOURCE)], _number(address(self.source))))
            tests.append(([(_LOAD_WORD, _IP_TARGET)], _number(address(self.target))))
        for offset, port in ((0, self.source_port), (2, self.target_port)):
            if port is not None:
                loads = [(_LOAD_HEADER_LENGTH, _IP_HEADER), (_LOAD_HALF_AFTER_HEADER, _IP_HEADER + offset)]
                tests.append((loads, port))
        if tests:
            tests.insert(0, ([(_LOAD_HALF, _ETHERNET_TYPE)], _IPV4))
        code: list[tuple[int, int, int, int]] = []
        left = sum(len(loads) + 1 for loads, _ in tests)  # instructions up to the one that drops
        for loads, value in tests:
            code += [(load, 0, 0, offset) for load, offset in loads]
            left -= len(loads) + 1
            code.append((_JUMP_IF_EQUAL, 0, left + 1, value))  # else to the last instruction
        code += [(_RETURN, 0, 0, _DROP), (_RETURN, 0, 0, _PASS)]
        return ",".join([str(len(code)), *("%d %d %d %d" % instruction for instruction in code)])


def _number(address: str) -> int:
    return int(struct.unpack("!I", socket.inet_aton(address))[0])


def between(first: int, second: int) -> list[Flow]:
    """Everything between two hosts, in both directions."""
    return [Flow(source=first, target=second), Flow(source=second, target=first)]


class Block:
    """Flows that are dropped, until `lift` or the end of the `with` statement."""

    def __init__(self, flows: Sequence[Flow], first_number: int, address: Callable[[int], str],
                 tc: Callable[[str], None]) -> None:
        """`tc` runs lines of `tc -batch` at the switch. Filters have the numbers from `first_number` on."""
        self._tc = tc
        filters = ["filter %%s dev %s %s pref %d" % (*flow.port, first_number + i) for i, flow in enumerate(flows)]
        self._removal = "".join(one % "del" + "\n" for one in filters)
        places = sorted({flow.port[0] for flow in flows})
        tc("".join("qdisc replace dev %s clsact\n" % place for place in places) +
           "".join('%s protocol all bpf direct-action bytecode "%s"\n' % (one % "add", flow.program(address))
                   for one, flow in zip(filters, flows)))

    def lift(self) -> None:
        """Lets the packets pass again. A second call does nothing."""
        removal, self._removal = self._removal, ""
        if removal:
            self._tc(removal)

    def __enter__(self) -> Block:
        return self

    def __exit__(self, *_: object) -> None:
        self.lift()
