"""The process that keeps one lab of bench/netlab: builds it, reports it, and takes it down when its input ends.

    keeper.py --hosts=4 --rate=1gbit --folder=DIR

Prints one line of JSON: {"error": why}, or {"processes": [...], "switch": P, "burst_s": S}, the ids of one process for
each host, of one for the switch, and Lab.burst_s. A process that enters the namespaces of such a one runs there.

Words. A *host* is a network namespace with its own host name (UTS namespace) and its own /etc/hosts (mount namespace).
The *switch* is one more network namespace, with a bridge. Each host has one link to the switch, shaped in both
directions.

No namespace has a name, and none of the interfaces is ever in the machine's own network namespace. A namespace lives as
long as a process in it. Here that process is a `cat` that reads from a pipe of the keeper and ends with the keeper. The
keeper's standard input is a pipe of the lab's owner, so the keeper ends with the owner. Therefore nothing is left,
however a process ends, SIGKILL included.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

SUBNET = "10.77.0"
NAMESPACES = ("net", "uts", "mnt")
# The kernel hands over long packets, and a link passes one at once, whatever its rate. So they have no more than a link
# carries in a quarter of a millisecond, within these limits, and a link's burst holds one with its headers.
PACKET_BYTES_MIN = 8 << 10
PACKET_BYTES_MAX = 64 << 10  # the kernel's own
HEADERS_BYTES_MAX = 4 << 10  # of all segments of a packet, which count on the link
# The queue at a port of the switch, which drops what exceeds it. A typical 1 Gbit/s switch has about as much.
QUEUE_BYTES = 2 << 20
# The hosts have Linux's default, whatever the machine has, or else what every kernel has. BBR paces each connection by
# what it has carried before; a step's connections start and stop, and leave links idle.
CONGESTION_CONTROLS = ("cubic", "reno")
END_SECONDS_MAX = 5


class LabError(Exception):
    """The lab cannot be built; the message says why."""


def address(host: int) -> str:
    return "%s.%d" % (SUBNET, host + 1)


def bits_per_second(rate: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg])bit", rate)
    if not match or float(match[1]) <= 0:
        raise LabError("the rate %r is not a number and kbit, mbit or gbit: 1gbit" % rate)
    return int(float(match[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[match[2]])


def run(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError("%s: %s" % (" ".join(command), (done.stderr or done.stdout).strip()))


class Lab:
    """The namespaces of one lab, and the processes that hold them."""

    def __init__(self, hosts: int, rate: str, folder: str) -> None:
        self.hosts = hosts
        self.rate = rate
        self.folder = folder
        self.burst_s = 0.0  # a link that was idle carries at once what takes so long at its rate
        self.switch = 0  # the process that holds it
        self.holders: list[subprocess.Popen[bytes]] = []
        # The holders read this pipe. Only the keeper has the other end, so they end when the keeper does.
        self.until_end, self.alive = os.pipe()

    def hold(self, script: str) -> int:
        """Starts a process in namespaces of its own, which runs `script` and then stays. Returns its id."""
        holder = subprocess.Popen(["unshare", "--net", "--uts", "--mount", "sh", "-ec", script + "\necho; exec cat"],
                                  stdin=self.until_end, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.holders.append(holder)
        assert holder.stdout is not None and holder.stderr is not None
        if holder.stdout.readline() != b"\n":
            raise LabError("cannot make a namespace: " + holder.stderr.read().decode().strip())
        return holder.pid

    def build(self) -> list[int]:
        bits = bits_per_second(self.rate)
        names = os.path.join(self.folder, "hosts")
        with open(names, "w") as file:
            file.write("127.0.0.1 localhost\n")
            file.writelines("%s host%d\n" % (address(host), host) for host in range(self.hosts))
        switch = self.switch = self.hold("ip link add switch type bridge && ip link set switch up")
        quarter_ms_bytes = bits // 8 // 4000
        packet_bytes = min(max(PACKET_BYTES_MIN, quarter_ms_bytes), PACKET_BYTES_MAX)
        burst_bytes = max(packet_bytes + HEADERS_BYTES_MAX, quarter_ms_bytes)
        self.burst_s = burst_bytes * 8 / bits
        shape = ["root", "tbf", "rate", "%dbit" % bits, "burst", str(burst_bytes), "limit", str(QUEUE_BYTES)]
        packets = ["gso_max_size", str(packet_bytes)]
        pids = []
        for host in range(self.hosts):
            pids.append(self.hold("hostname host%d; mount --bind '%s' /etc/hosts; ip link set lo up\n"
                                  "for name in %s; do\n"
                                  "  if echo $name > /proc/sys/net/ipv4/tcp_congestion_control; then break; fi\n"
                                  "done 2>/dev/null" % (host, names, " ".join(CONGESTION_CONTROLS))))
            port = "port%d" % host
            at_switch = ["nsenter", "--target=%d" % switch, "--net"]
            at_host = ["nsenter", "--target=%d" % pids[-1], "--net"]
            run(*at_switch, "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pids[-1]))
            run(*at_switch, "ip", "link", "set", port, "master", "switch", "addrgenmode", "none", *packets, "up")
            run(*at_switch, "tc", "qdisc", "add", "dev", port, *shape)
            run(*at_host, "ip", "address", "add", address(host) + "/24", "dev", "eth0")
            run(*at_host, "ip", "link", "set", "eth0", "addrgenmode", "none", *packets, "up")
            run(*at_host, "tc", "qdisc", "add", "dev", "eth0", *shape)
        self.write_agent(pids)
        return pids

    def write_agent(self, pids: list[int]) -> None:
        """Writes the script that mpirun calls in place of ssh: [-options] HOST WORDS..., where WORDS are shell text."""
        cases = "".join("  host%d) pid=%d ;;\n" % (host, pid) for host, pid in enumerate(pids))
        agent = os.path.join(self.folder, "agent")
        with open(agent, "w") as file:
            file.write('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\n'
                       'case $1 in\n%s  *) echo "netlab: no host $1" >&2; exit 2 ;;\nesac\nshift\n'
                       'exec nsenter --target="$pid" --net --uts --mount --wd="$PWD" sh -c "$*"\n' % cases)
        os.chmod(agent, 0o755)

    def inhabitants(self) -> list[int]:
        """The processes in the lab, without its holders."""
        own = {holder.pid for holder in self.holders}
        places: set[str | None] = set()
        for pid in own:
            places |= {_namespace(pid, "net")}
        found = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in own]
        return [pid for pid in found if _namespace(pid, "net") in places - {None, _namespace("self", "net")}]

    def take_down(self) -> None:
        """Ends all processes in the lab, first by SIGTERM, then by SIGKILL; then removes the lab."""
        end = time.monotonic() + END_SECONDS_MAX
        signal_number = signal.SIGTERM
        while inhabitants := self.inhabitants():
            for pid in inhabitants:
                try:
                    os.kill(pid, signal_number)
                except ProcessLookupError:
                    pass
            if time.monotonic() > end:
                break
            time.sleep(0.1)  # polls /proc, since the end of a process that is no child causes no event
            signal_number = signal.SIGKILL
        os.close(self.alive)
        for holder in self.holders:
            holder.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _namespace(pid: int | str, kind: str) -> str | None:
    try:
        return os.readlink("/proc/%s/ns/%s" % (pid, kind))
    except OSError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--rate", required=True)
    parser.add_argument("--folder", required=True)
    flags = parser.parse_args()
    # The owner ends the lab by closing our standard input. Signals to its process group (Ctrl-C) are not for us.
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)
    lab = Lab(flags.hosts, flags.rate, flags.folder)
    try:
        try:
            answer: dict[str, Any] = {"processes": lab.build(), "switch": lab.switch, "burst_s": lab.burst_s}
        except (LabError, OSError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)
        if "processes" in answer:
            sys.stdin.read()
    finally:
        lab.take_down()


if __name__ == "__main__":
    main()
