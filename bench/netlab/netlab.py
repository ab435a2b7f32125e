#!/usr/bin/env python3
"""Emulates several hosts on one machine: network namespaces on one switch, with links of a chosen rate. Needs root.

    bazel run //bench:netlab -- --hosts=4 --rate=1gbit -- COMMAND...

COMMAND runs on host0 (for a shell: `-- bash`). There `mpirun --host host0,host1 ...` starts ranks on several hosts, and
`netlab-on host1 COMMAND...` runs a command on another host. The exit status is the command's, or 2 with a message if no
lab can be made here.

As a module (bench/compare):

    with Netlab(hosts=4, rate="1gbit") as lab:
        lab.addresses                        # ["10.77.0.1", ...] of host0, ...; the names host0, ... work as well
        lab.command(2, [worker, ...])        # argv that runs the worker on host2, when started outside of the lab
        lab.mpirun([worker, ...], ranks=4)   # argv that starts one rank on each host

`server_hosts` are more hosts, after the others, which only servers use: star_commands(..., own_hosts=True).

    with lab.block(between(0, 2)):           # from blocks: no packet passes between these hosts
        ...

`Netlab.why_not()` is None, or the reason why there can be no lab, for a note in the report. Processes that still run in
the lab are ended with it. An interrupted or killed owner leaves nothing behind (see keeper.py).

To fill the section `netlab:4,1gbit` of a comparison, model mlp and 4 workers, one on each host:

    star        lab.star_commands([server], [worker, ...], secret) returns the commands of 4 servers, one on the host of
                each worker, and of 4 workers. `secret` comes from lab.make_secret(launch): it is needed because the
                servers listen beyond loopback. Start all, wait for all. The commands have --same_host=socket, because
                the worker would notice that all hosts share a kernel, and exchange arrays through shared memory. Ports
                are fixed, since each host has all ports to itself.
    ring, mpi   lab.mpirun([worker, "--sync=ring", "--same_host=socket", ...])
    ring-tcp    lab.rank_commands([worker, "--sync=ring", "--transport=tcp", ...], secret), without mpirun
    ddp         lab.command(h, [python, "bench/ddp/train.py", ...]) with lab.torch_environment(4) and RANK=h in the
                environment, which `command` passes on

All hosts share this machine's cores. With more hosts than cores the job is oversubscribed, and times of computing mean
little. What a lab measures is the cost of the network.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from blocks import Block, Flow

KEEPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "keeper.py")
TOOLS = ("ip", "tc", "nsenter", "unshare")
# Debian keeps ip and tc in sbin, which is not on every user's PATH.
TOOL_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
STAR_PORT = 7077
RENDEZVOUS_PORT = 7079  # rank 0 listens there; PyTorch's processes use 7078
INTERFACE = "eth0"  # the one of every host
BUILD_SECONDS_MAX = 60


class NetlabError(Exception):
    """The lab could not be made; the message says why."""


class Netlab:
    """A lab of hosts, which exists between __enter__ and __exit__."""

    def __init__(self, hosts: int = 4, rate: str = "1gbit", server_hosts: int = 0) -> None:
        total = hosts + server_hosts
        if hosts < 1 or server_hosts < 0 or total > 200:
            raise NetlabError("%d hosts: between 1 and 200 are possible" % (total if total > 200 else hosts))
        self.hosts = hosts  # all that workers and ranks use
        self.server_hosts = server_hosts
        self.rate = rate
        self.addresses = ["10.77.0.%d" % (host + 1) for host in range(total)]
        self.names = ["host%d" % host for host in range(total)]
        self.folder = ""
        self.burst_s = 0.0  # a link that was idle carries at once what takes so long at its rate; known once it exists
        self._keeper: subprocess.Popen[str] | None = None
        self._processes: list[int] = []
        self._switch = 0  # the process that holds it
        self._secrets = 0
        self._blocked_count = 0  # flows so far

    @property
    def section(self) -> str:
        """The section of a comparison's results that this lab fills."""
        own = "+%d" % self.server_hosts if self.server_hosts else ""
        return "netlab:%d%s,%s" % (self.hosts, own, self.rate)

    @staticmethod
    def why_not() -> str | None:
        if os.geteuid() != 0:
            return "it needs root, to make network namespaces"
        missing = [tool for tool in TOOLS if not shutil.which(tool, path=TOOL_PATH)]
        if missing:
            return "it needs %s: apt-get install iproute2 util-linux" % ", ".join(missing)
        # In a container, root often lacks the right to make namespaces.
        probe = subprocess.run(["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, text=True,
                               check=False)
        return None if probe.returncode == 0 else "no namespaces here: " + probe.stderr.strip()

    def __enter__(self) -> Netlab:
        reason = Netlab.why_not()
        if reason:
            raise NetlabError(reason)
        self.folder = tempfile.mkdtemp(prefix="starring-netlab-")
        self._keeper = subprocess.Popen(
            [sys.executable, KEEPER, "--hosts=%d" % len(self.names), "--rate=" + self.rate, "--folder=" + self.folder],
            env={**os.environ, "PATH": TOOL_PATH}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True)
        try:
            assert self._keeper.stdout is not None
            answer = json.loads(self._keeper.stdout.readline() or '{"error": "its keeper ended"}')
            if "error" in answer:
                raise NetlabError(answer["error"])
        except BaseException:
            self.__exit__()
            raise
        self._processes, self._switch, self.burst_s = answer["processes"], answer["switch"], answer["burst_s"]
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._keeper is not None and self._keeper.stdin is not None and self._keeper.stdout is not None
        self._keeper.stdin.close()  # which tells the keeper to take the lab down
        self._keeper.stdout.close()
        self._keeper.wait()

    def command(self, host: int, argv: list[str]) -> list[str]:
        """argv that runs `argv` on `host`, in the caller's directory and with the caller's environment."""
        return ["nsenter", "--target=%d" % self._processes[host], "--net", "--uts", "--mount", "--wd=" + os.getcwd(),
                *argv]

    def block(self, flows: Sequence[Flow]) -> Block:
        """Drops the packets of `flows`, from now until the end of a `with` statement or of lift()."""
        number, self._blocked_count = self._blocked_count + 1, self._blocked_count + len(flows)
        return Block(flows, number, self.addresses.__getitem__, self._tc)

    def _tc(self, lines: str) -> None:
        done = subprocess.run(["nsenter", "--target=%d" % self._switch, "--net", "tc", "-batch", "-"], input=lines,
                              env={**os.environ, "PATH": TOOL_PATH}, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NetlabError("tc cannot drop packets here: " + done.stderr.strip())

    def processes_on(self, host: int) -> list[int]:
        """The processes that run on `host`."""
        found = []
        place = os.readlink("/proc/%d/ns/net" % self._processes[host])
        for name in os.listdir("/proc"):
            # A process may end while this looks at it.
            with contextlib.suppress(OSError):
                if name.isdigit() and os.readlink("/proc/%s/ns/net" % name) == place:
                    found.append(int(name))
        return [process for process in found if process != self._processes[host]]  # that one holds the host

    def mpi_settings(self) -> dict[str, str]:
        """Open MPI's parameters for this lab, by name."""
        return {
            "plm_rsh_agent": os.path.join(self.folder, "agent"),
            "orte_tmpdir_base": self.folder,
            "oob_tcp_if_include": INTERFACE,
            "btl": "tcp,vader,self",
            "btl_tcp_if_include": INTERFACE,
            "hwloc_base_binding_policy": "none",  # every host has all cores of this machine
            "mpi_yield_when_idle": "1",
            "rmaps_base_oversubscribe": "1",
        }

    def environment(self) -> dict[str, str]:
        """mpi_settings as environment variables, for a command that calls mpirun itself; they let root run mpirun."""
        variables = {"OMPI_MCA_" + name: value for name, value in self.mpi_settings().items()}
        return {**variables, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def mpirun(self, argv: list[str], ranks: int | None = None, flags: Sequence[str] = ()) -> list[str]:
        """argv that starts `ranks` ranks (default: one on each host), rank r on host r modulo the number of hosts."""
        ranks = ranks or self.hosts
        settings = [word for name, value in self.mpi_settings().items() for word in ("--mca", name, value)]
        hosts = ",".join("%s:%d" % (name, (ranks - host + self.hosts - 1) // self.hosts)
                         for host, name in enumerate(self.names[:self.hosts]) if host < ranks)
        return self.command(0, ["mpirun", "--allow-run-as-root", *settings, "--map-by", "node", "--host", hosts, "-np",
                                str(ranks), *flags, *argv])

    def torch_environment(self, workers: int, port: int = 7078) -> dict[str, str]:
        """PyTorch's processes find each other by this and RANK. Rank r runs on host r modulo the number of hosts."""
        return {"MASTER_ADDR": self.addresses[0], "MASTER_PORT": str(port), "WORLD_SIZE": str(workers),
                "GLOO_SOCKET_IFNAME": INTERFACE}

    def make_secret(self, launch: str) -> str:
        """Makes a job's secret with the program deploy/launch; returns its file, which is removed with the lab."""
        self._secrets += 1
        path = os.path.join(self.folder, "secret-%d" % self._secrets)
        subprocess.run([launch, "--make_secret=" + path], stdout=subprocess.DEVNULL, check=True)
        return path

    def star_commands(self, server: list[str], worker: list[str], secret: str, servers: int | None = None,
                      workers: int | None = None, own_hosts: bool = False,
                      transport: str = "grpc") -> tuple[list[list[str]], list[list[str]]]:
        """The servers' commands and the workers' commands: shard s on host s and rank r on host r, modulo the hosts.

        With `own_hosts` shard s is on the host s of those for servers. `server` and `worker` are the beginnings of
        their command lines; `secret` is the file from make_secret. Over tcp all meet at worker 0's host. No host shares
        memory with another one, though all are one machine.
        """
        server, worker = [*server, "--job_secret=" + secret], [*worker, "--job_secret=" + secret]
        first, hosts = (self.hosts, self.server_hosts) if own_hosts else (0, self.hosts)
        if hosts < 1:
            raise NetlabError("the lab has no hosts for servers: give server_hosts")
        servers, workers = servers or hosts, workers or self.hosts
        if transport == "tcp":
            meet = ["--transport=tcp", "--rendezvous=%s:%d" % (self.addresses[0], RENDEZVOUS_PORT),
                    "--world_size=%d" % workers]
            return ([self.command(first + shard % hosts, [*server, *meet, "--shard=%d" % shard,
                                                          "--shard_count=%d" % servers]) for shard in range(servers)],
                    [self.command(rank % self.hosts, [*worker, "--sync=star", "--same_host=socket", *meet,
                                                      "--server_ranks=%d" % servers, "--rank=%d" % rank])
                     for rank in range(workers)])
        places = ["%s:%d" % (self.addresses[first + shard % hosts], STAR_PORT + shard // hosts)
                  for shard in range(servers)]
        starts = [self.command(first + shard % hosts, [*server, "--listen=" + place, "--shard=%d" % shard,
                                                       "--shard_count=%d" % servers])
                  for shard, place in enumerate(places)]
        trains = [self.command(rank % self.hosts, [*worker, "--sync=star", "--servers=" + ",".join(places),
                                                   "--same_host=socket", "--rank=%d" % rank,
                                                   "--world_size=%d" % workers])
                  for rank in range(workers)]
        return starts, trains

    def rank_commands(self, worker: list[str], secret: str, workers: int | None = None) -> list[list[str]]:
        """The commands of ranks that find each other at rank 0, without mpirun: rank r on host r, modulo the hosts."""
        workers = workers or self.hosts
        meet = "--rendezvous=%s:%d" % (self.addresses[0], RENDEZVOUS_PORT)
        return [self.command(rank % self.hosts, [*worker, meet, "--same_host=socket", "--job_secret=" + secret,
                                                 "--rank=%d" % rank, "--world_size=%d" % workers])
                for rank in range(workers)]


def main() -> int:
    parser = argparse.ArgumentParser(description="runs a command in a lab of several hosts; needs root")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit", help="rate of every link, both ways: 100mbit, 1gbit, 10gbit")
    parser.add_argument("command", nargs="+", help="runs on host0; begin it with --")
    flags = parser.parse_args()
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # the folder where `bazel run` was called
    try:
        with Netlab(flags.hosts, flags.rate) as lab:
            os.symlink("agent", os.path.join(lab.folder, "netlab-on"))
            environment = {**os.environ, **lab.environment(), "PATH": lab.folder + ":" + os.environ["PATH"]}
            status = subprocess.run(lab.command(0, flags.command), env=environment, check=False).returncode
    except NetlabError as error:
        print("netlab: " + str(error), file=sys.stderr)
        return 2
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
