#!/usr/bin/env python3
"""A lab of several hosts on one machine: network namespaces on one switch, with links of a chosen rate. Needs root.

    bazel run //bench:netlab -- --hosts=4 --rate=1gbit -- COMMAND...

COMMAND runs on host0 (a shell: `-- bash`). There `mpirun --host host0,host1 ...` spreads over hosts, and
`netlab-on host1 COMMAND...` runs one on another host. The exit status is the command's; 2: no lab can be made here, and
why is said.

As a module (bench/compare):

    with Netlab(hosts=4, rate="1gbit") as lab:
        lab.addresses                        # ["10.77.0.1", ...] of host0, ...; the names host0, ... work as well
        lab.command(2, [worker, ...])        # argv that runs there, started from outside of the lab
        lab.mpirun([worker, ...], ranks=4)   # argv that starts one rank on each host

`Netlab.why_not()` is None, or why there can be no lab: to be noted in a report instead of the section. What was started
in the lab is ended with it. An interrupted or killed owner leaves nothing behind (see keeper.py).

To fill the section `netlab:4,1gbit` of a comparison, model mlp and 4 workers, one on each host:

    star        lab.star_commands([server], [worker, ...], secret): 4 servers, one beside each worker, as two lists of
                commands. `secret` is the job's, from lab.make_secret(launch): servers listen beyond loopback.
                Start all, wait for all. Its --same_host=socket matters: one kernel has all hosts, which the worker
                would find out, and hand arrays over in memory. Ports are fixed: a host has all ports to itself.
    ring, mpi   lab.mpirun([worker, "--sync=ring", ...])
    ddp         lab.command(h, [python, "bench/ddp/train.py", ...]) with lab.torch_environment(4) and RANK=h in the
                environment, which `command` passes on

All hosts share this machine's cores: the job is oversubscribed where there are more hosts than cores, and times of
computation mean little there. What is measured is what the network costs.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

KEEPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "keeper.py")
TOOLS = ("ip", "tc", "nsenter", "unshare")
# Where Debian keeps ip and tc, which not everybody's PATH knows.
TOOL_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
STAR_PORT = 7077
INTERFACE = "eth0"  # of every host
BUILD_SECONDS_MAX = 60


class NetlabError(Exception):
    """The lab could not be made; says why."""


class Netlab:
    """Made by __enter__, gone after __exit__."""

    def __init__(self, hosts=4, rate="1gbit"):
        if not 1 <= hosts <= 200:
            raise NetlabError("%d hosts: between 1 and 200 are possible" % hosts)
        self.hosts = hosts
        self.rate = rate
        self.addresses = ["10.77.0.%d" % (host + 1) for host in range(hosts)]
        self.names = ["host%d" % host for host in range(hosts)]
        self.folder = None
        self._keeper = None
        self._processes = None
        self._secrets = 0

    @staticmethod
    def why_not():
        if os.geteuid() != 0:
            return "it needs root, to make network namespaces"
        missing = [tool for tool in TOOLS if not shutil.which(tool, path=TOOL_PATH)]
        if missing:
            return "it needs %s: apt-get install iproute2 util-linux" % ", ".join(missing)
        # Containers often have root without the right to do this.
        probe = subprocess.run(["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, text=True,
                               check=False)
        return None if probe.returncode == 0 else "no namespaces here: " + probe.stderr.strip()

    def __enter__(self):
        reason = Netlab.why_not()
        if reason:
            raise NetlabError(reason)
        self.folder = tempfile.mkdtemp(prefix="starring-netlab-")
        self._keeper = subprocess.Popen(
            [sys.executable, KEEPER, "--hosts=%d" % self.hosts, "--rate=" + self.rate, "--folder=" + self.folder],
            env={**os.environ, "PATH": TOOL_PATH}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True)
        try:
            answer = json.loads(self._keeper.stdout.readline() or '{"error": "its keeper ended"}')
            if "error" in answer:
                raise NetlabError(answer["error"])
        except BaseException:
            self.__exit__()
            raise
        self._processes = answer["processes"]
        return self

    def __exit__(self, *exception):
        self._keeper.stdin.close()
        self._keeper.stdout.close()
        self._keeper.wait()

    def command(self, host, argv):
        """argv that runs `argv` on that host, in the directory of the caller and with its environment."""
        return ["nsenter", "--target=%d" % self._processes[host], "--net", "--uts", "--mount", "--wd=" + os.getcwd(),
                *argv]

    def mpi_settings(self):
        """What Open MPI has to be told of the lab: names and values of its parameters."""
        return {
            "plm_rsh_agent": os.path.join(self.folder, "agent"),
            "orte_tmpdir_base": self.folder,
            "oob_tcp_if_include": INTERFACE,
            "btl": "tcp,vader,self",
            "btl_tcp_if_include": INTERFACE,
            "hwloc_base_binding_policy": "none",  # every host is all cores of this machine
            "mpi_yield_when_idle": "1",
            "rmaps_base_oversubscribe": "1",
        }

    def environment(self):
        """The same as variables, for a command that calls mpirun by itself; and mpirun's leave to be run by root."""
        variables = {"OMPI_MCA_" + name: value for name, value in self.mpi_settings().items()}
        return {**variables, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def mpirun(self, argv, ranks=None, flags=()):
        """argv that starts `ranks` ranks (default: one on each host), rank r on host r modulo the number of hosts."""
        ranks = ranks or self.hosts
        settings = [word for name, value in self.mpi_settings().items() for word in ("--mca", name, value)]
        hosts = ",".join("%s:%d" % (name, (ranks - host + self.hosts - 1) // self.hosts)
                         for host, name in enumerate(self.names) if host < ranks)
        return self.command(0, ["mpirun", "--allow-run-as-root", *settings, "--map-by", "node", "--host", hosts, "-np",
                                str(ranks), *flags, *argv])

    def torch_environment(self, workers, port=7078):
        """What PyTorch's processes need to find each other, but RANK: rank r runs on host r modulo the hosts."""
        return {"MASTER_ADDR": self.addresses[0], "MASTER_PORT": str(port), "WORLD_SIZE": str(workers),
                "GLOO_SOCKET_IFNAME": INTERFACE}

    def make_secret(self, launch):
        """The file of a job's secret, made by the program deploy/launch; it is gone with the lab."""
        self._secrets += 1
        path = os.path.join(self.folder, "secret-%d" % self._secrets)
        subprocess.run([launch, "--make_secret=" + path], stdout=subprocess.DEVNULL, check=True)
        return path

    def star_commands(self, server, worker, secret, servers=None, workers=None):
        """(commands of the servers, commands of the workers): shard s on host s, rank r on host r, modulo the hosts.

        `server` and `worker` are the beginnings of their command lines, `secret` the file that both get.
        """
        server, worker = [*server, "--job_secret=" + secret], [*worker, "--job_secret=" + secret]
        servers, workers = servers or self.hosts, workers or self.hosts
        places = ["%s:%d" % (self.addresses[shard % self.hosts], STAR_PORT + shard // self.hosts)
                  for shard in range(servers)]
        starts = [self.command(shard % self.hosts, [*server, "--listen=" + place, "--shard=%d" % shard,
                                                    "--shard_count=%d" % servers])
                  for shard, place in enumerate(places)]
        trains = [self.command(rank % self.hosts, [*worker, "--sync=star", "--servers=" + ",".join(places),
                                                   "--same_host=socket", "--rank=%d" % rank,
                                                   "--world_size=%d" % workers])
                  for rank in range(workers)]
        return starts, trains


def main():
    parser = argparse.ArgumentParser(description="runs a command in a lab of several hosts; needs root")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit", help="of every link, both ways: 100mbit, 1gbit, 10gbit")
    parser.add_argument("command", nargs="+", help="runs on host0; begin it with --")
    flags = parser.parse_args()
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # where bazel run was called
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
