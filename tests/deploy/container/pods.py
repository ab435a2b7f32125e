"""Runs programs of the bundle as containers run them: each pod in namespaces of its own, on a root that is read-only
and has the bundle alone, as user 1000 without capabilities, with a network card and a name service."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from typing import Optional

ARCHIVE = os.path.abspath("deploy/starring-bundle.tar.gz")
SHM_BYTES = 64 * 1024
WAIT_SECONDS_MAX = 60
DOMAIN = "default.svc.cluster.local"  # of the names of Kubernetes
NETWORK = "10.99.0."

# As a cluster's name service: knows the names of the file $1, a line "NAME ADDRESS" each, and no other ones.
NAME_SERVICE = r"""
import socket
import sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("10.99.0.1", 53))
print("ready", flush=True)
while True:
    question, client = server.recvfrom(512)
    labels, at = [], 12
    while question[at]:
        labels.append(question[at + 1:at + 1 + question[at]].decode())
        at += 1 + question[at]
    end = at + 5
    with open(sys.argv[1]) as file:
        known = dict(line.split() for line in file)
    address = known.get(".".join(labels).lower())
    is_asked = question[end - 4:end - 2] == b"\0\1"
    answer = b""
    if address and is_asked:
        answer = b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + socket.inet_aton(address)
    code = b"\x85\x80" if address else b"\x85\x83"
    counts = b"\0\1" + (b"\0\1" if answer else b"\0\0") + b"\0\0\0\0"
    server.sendto(question[:2] + code + counts + question[12:end] + answer, client)
"""

# The network of the node. $1: this Python, $2: the name service, $3: its file.
NODE = r"""
ip link set lo up
# Without an address of its own the bridge takes one of a card, and another one when that pod ends.
ip link add bridge0 address 02:00:00:00:00:01 type bridge
ip address add 10.99.0.1/24 dev bridge0
ip link set bridge0 up
exec "$1" -u -c "$2" "$3"
"""

# Begins a pod: process 1 of new namespaces. $1: name of the host, $2: address.
BEGIN_POD = r"""
hostname "$1"
count=0
until ip link show eth0 >/dev/null 2>&1; do
  count=$((count + 1))
  [ $count -lt 600 ] || { echo "no network card came" >&2; exit 99; }
  sleep 0.05
done
ip link set lo up
ip address add "$2/24" dev eth0
ip link set eth0 up
# The mounts below stay in this pod.
mount --make-rprivate /
"""

# Makes the root of a container at $root, of the bundle at $bundle and the files of $etc. `at` mounts folders into it.
BEGIN_ROOT = r"""
mkdir -p "$root"
mount -t tmpfs -o size=1m,mode=755 none "$root"
mkdir "$root/dev" "$root/dev/shm" "$root/proc" "$root/sys" "$root/etc" "$root/starring"
for device in null zero full random urandom; do
  : >"$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
mount -t tmpfs -o size=@SHM@,mode=1777 none "$root/dev/shm"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
for file in hosts resolv.conf; do
  : >"$root/etc/$file"
  mount --bind "$etc/$file" "$root/etc/$file"
done
at() {
  mkdir -p "$root$2"
  mount --bind "$1" "$root$2"
  if [ "$3" = ro ]; then mount -o remount,bind,ro "$root$2"; fi
}
at "$bundle" /starring ro
""".replace("@SHM@", str(SHM_BYTES))

END_ROOT = r"""
mount -o remount,bind,ro "$root"
"""


@dataclasses.dataclass
class Mount:
    source: str
    path: str
    read_only: bool = False


@dataclasses.dataclass
class Container:
    command: list[str]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    mounts: list[Mount] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Pod:
    """`names` are those of the name service; the host's own name is the first part of `name`."""
    name: str
    main: Container
    first: list[Container] = dataclasses.field(default_factory=list)  # run to their end, one after the other
    names: list[str] = dataclasses.field(default_factory=list)
    bundle_at: str = "/starring"


class CannotIsolate(Exception):
    """This machine lets its user make no namespaces, or lacks a program for it."""


class RunningPod:
    """The processes of a pod that has been started."""

    def __init__(self, pod: Pod, process: subprocess.Popen[bytes], output: str) -> None:
        self.pod = pod
        self.process = process
        self.output = output

    def text(self) -> str:
        with open(self.output, encoding="utf-8", errors="replace") as file:
            return file.read()

    def pid(self) -> int:
        """Process 1 of the pod, by the number that it has here."""
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
        if not found.stdout.split():
            raise CannotIsolate("%s has no process: %s" % (self.pod.name, self.text()))
        return int(found.stdout.split()[0])

    def facts(self) -> dict[str, str]:
        """/proc/PID/status of process 1."""
        with open("/proc/%d/status" % self.pid(), encoding="ascii") as file:
            return {line.split(":", 1)[0]: line.split(":", 1)[1].strip() for line in file}

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid(), number)

    def wait(self, seconds_max: float = WAIT_SECONDS_MAX) -> int:
        """The exit code; the pod ends with its process 1."""
        try:
            return self.process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError("%s has not ended within %d s:\n%s" %
                                 (self.pod.name, seconds_max, self.text())) from None

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()  # `unshare --kill-child` takes the pod with it
        self.process.wait()


class Node:
    """A machine with a network for pods. All of it is gone when the process ends."""

    def __init__(self, bundle: str) -> None:
        self.bundle = bundle
        self.folder = tempfile.mkdtemp(prefix="node ")
        self.zone: dict[str, str] = {}
        self.pods: list[RunningPod] = []
        self._links = 0
        self._write_zone()
        self._holder = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--mount", "--net", "sh", "-ec", NODE, "sh", sys.executable,
             NAME_SERVICE, os.path.join(self.folder, "zone")],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self._holder.stdout is not None and self._holder.stderr is not None
        if self._holder.stdout.readline() != b"ready\n":
            raise CannotIsolate("no namespaces with a network of their own here: " +
                                self._holder.stderr.read().decode().strip())

    def close(self) -> None:
        for running in self.pods:
            running.end()
        self._holder.kill()
        self._holder.communicate()

    def make_folder(self, name: str) -> str:
        path = os.path.join(self.folder, name)
        os.makedirs(path, exist_ok=True)
        return path

    def start(self, pod: Pod, control_group: Optional[str] = None) -> RunningPod:
        self._links += 1
        number, address = self._links, NETWORK + str(self._links + 1)
        folder = self.make_folder("pod-%d" % number)
        host = pod.name.split(".", maxsplit=1)[0]
        with open(os.path.join(folder, "hosts"), "w", encoding="ascii") as file:
            file.write("127.0.0.1 localhost\n%s %s\n" % (address, " ".join([*pod.names, host])))
        with open(os.path.join(folder, "resolv.conf"), "w", encoding="ascii") as file:
            file.write("search %s svc.cluster.local cluster.local\nnameserver 10.99.0.1\noptions ndots:5\n" % DOMAIN)
        lines = [BEGIN_POD]
        for place, container in enumerate([*pod.first, pod.main]):
            lines += self._container_lines(pod, container, folder, place, is_last=place == len(pod.first))
        inside = ["unshare", "--net", "--ipc", "--uts", "--pid", "--mount", "--fork", "--kill-child", "sh", "-ec",
                  "\n".join(lines), "sh", host, address]
        enter = ["nsenter", "--target=%d" % self._holder.pid, "--user", "--net", "--mount", "--preserve-credentials"]
        command = [*enter, "setpriv", "--no-new-privs", *inside]
        if control_group is not None:
            command = ["sh", "-ec", 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"', "sh", control_group, *command]
        output = os.path.join(folder, "output")
        with open(output, "wb") as file_of_output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file_of_output,
                                       stderr=subprocess.STDOUT, cwd="/")
        running = RunningPod(pod, process, output)
        self.pods.append(running)
        self._plug(enter, running, "port%d" % number)
        for name in pod.names:
            self.zone[name] = address
        self._write_zone()
        return running

    def _container_lines(self, pod: Pod, container: Container, folder: str, place: int, is_last: bool) -> list[str]:
        variables = {"root": os.path.join(folder, "root-%d" % place), "bundle": self.bundle, "etc": folder}
        lines = ["%s=%s" % (name, shlex.quote(value)) for name, value in variables.items()]
        lines.append(BEGIN_ROOT.replace('at "$bundle" /starring', 'at "$bundle" ' + pod.bundle_at))
        for mount in container.mounts:
            lines.append(shlex.join(["at", mount.source, mount.path, "ro" if mount.read_only else "rw"]))
        lines.append(END_ROOT)
        environment = ["%s=%s" % item for item in container.environment.items()]
        # A process that becomes user 1000 of its own namespace has no capabilities.
        words = ["env", "-i", *environment, "/usr/bin/unshare", "--user", "--map-user=1000", "--map-group=1000"]
        start = shlex.join(words) + ' --root="$root" --wd=/ -- ' + shlex.join(container.command)
        lines.append("exec " + start if is_last else start)
        return lines

    def _plug(self, enter: list[str], running: RunningPod, port: str) -> None:
        """Gives the pod its card as soon as its namespaces are there."""
        own_network = os.readlink("/proc/%d/ns/net" % self._holder.pid)
        end = time.monotonic() + WAIT_SECONDS_MAX
        while running.process.poll() is None and time.monotonic() < end:
            try:
                pid = running.pid()
                if os.readlink("/proc/%d/ns/net" % pid) not in (own_network, os.readlink("/proc/self/ns/net")):
                    break
            except (CannotIsolate, OSError):
                pass
            time.sleep(0.01)  # until `unshare` has made them
        else:
            raise CannotIsolate("%s has not begun: %s" % (running.pod.name, running.text()))
        for words in (["link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid)],
                      ["link", "set", port, "master", "bridge0", "up"]):
            done = subprocess.run([*enter, "ip", *words], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise CannotIsolate("ip %s: %s" % (" ".join(words), done.stderr.strip()))

    def _write_zone(self) -> None:
        path = os.path.join(self.folder, "zone")
        with open(path + ".next", "w", encoding="ascii") as file:
            file.writelines("%s %s\n" % item for item in self.zone.items())
        os.replace(path + ".next", path)


class PodTest(unittest.TestCase):
    """Tests that start pods. Without namespaces they are skipped."""
    above: str
    bundle: str
    node: Node

    @classmethod
    def setUpClass(cls) -> None:
        cls.above = tempfile.mkdtemp()
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(cls.above)
        cls.bundle = os.path.join(cls.above, "starring")

    @classmethod
    def tearDownClass(cls) -> None:
        for folder, _, _ in os.walk(cls.above):
            os.chmod(folder, 0o755)
        shutil.rmtree(cls.above)

    def begin_node(self) -> None:
        try:
            self.node = Node(self.bundle)
        except (CannotIsolate, FileNotFoundError) as error:
            self.skipTest(str(error))
        self.addCleanup(shutil.rmtree, self.node.folder, ignore_errors=True)
        self.addCleanup(self.node.close)
