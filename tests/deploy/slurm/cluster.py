"""Runs a real Slurm on this machine: munged, slurmctld, and one slurmd on each host of a lab of network namespaces."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from typing import Callable

from netlab import Netlab

DAEMONS = ("munged", "slurmctld", "slurmd")
PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
START_SECONDS_MAX = 30

# The controller runs on host0. One munged serves all hosts, since they share the file system. Each node claims more
# cores than the machine has, so that several jobs run at the same time.
CONFIG = """
ClusterName=starring
SlurmctldHost=host0
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}/tmp.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
MailProg=/bin/true
NodeName=host[1-{nodes}] CPUs=16 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES
"""


class Cluster:
    """A lab with a Slurm, in an existing empty folder. __exit__ ends all of it."""

    def __init__(self, folder: str, nodes: int = 3) -> None:
        self.folder = folder
        self.nodes = nodes
        self._lab = Netlab(hosts=nodes + 1, rate="10gbit")
        self._daemons: list[subprocess.Popen[bytes]] = []

    @staticmethod
    def why_not() -> str | None:
        missing = [daemon for daemon in DAEMONS if not shutil.which(daemon, path=PATH)]
        if missing:
            return "%s not installed: apt-get install slurm-wlm munge" % ", ".join(missing)
        return Netlab.why_not()

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def __enter__(self) -> Cluster:
        nodes = ["host%d" % (node + 1) for node in range(self.nodes)]
        for name in ["state"] + [kind + node for kind in ("spool.", "tmp.") for node in nodes]:
            os.mkdir(self.path(name))
        with open(self.path("slurm.conf"), "w") as file:
            file.write(CONFIG.format(folder=self.folder, nodes=self.nodes))
        with open(os.open(self.path("munge.key"), os.O_WRONLY | os.O_CREAT, 0o400), "wb") as file:
            file.write(os.urandom(1024))
        self._lab.__enter__()
        try:
            # --force: munged refuses a folder that other users may read, as a test's folder is.
            munge = ["%s=%s" % (flag, self.path("munge." + name)) for flag, name in
                     (("--key-file", "key"), ("--socket", "socket"), ("--pid-file", "pid"), ("--log-file", "log"),
                      ("--seed-file", "seed"))]
            self.start(0, ["munged", "--foreground", "--force", *munge])
            self.wait_for("munged", lambda: os.path.exists(self.path("munge.socket")))
            self.start(0, ["slurmctld", "-D", "-c"])
            for node, name in enumerate(nodes, 1):
                self.start(node, ["slurmd", "-D", "-N", name])
            self.wait_for_nodes()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        # The processes of slurmd are in the lab as well, and end with it.
        self._lab.__exit__()
        for daemon in self._daemons:
            daemon.wait()

    def wait_for_nodes(self) -> None:
        self.wait_for("slurmd", lambda: self.run("sinfo", "--noheader", "--format=%t %D").stdout ==
                      "idle %d\n" % self.nodes)

    def kill(self, node: int, word: str) -> None:
        """Kills the process on host`node` that has this argument."""
        for process in self._lab.processes_on(node):
            with contextlib.suppress(OSError), open("/proc/%d/cmdline" % process) as file:
                if word in file.read().split("\0"):
                    os.kill(process, signal.SIGKILL)

    def lose(self, node: int) -> None:
        """The node host`node` loses its power: the other nodes do not even hear that its connections end."""
        self._switch_link(node, "down")
        while processes := self._lab.processes_on(node):
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def restore(self, node: int) -> None:
        """Starts a lost node again, and waits until no job is left on any node."""
        self._switch_link(node, "up")
        self.start(node, ["slurmd", "-D", "-N", "host%d" % node])
        self.wait_for_nodes()

    def _switch_link(self, node: int, state: str) -> None:
        switch = self._lab.command(node, ["ip", "link", "set", "eth0", state])
        subprocess.run(switch, env=self.environment(), check=True)

    def start(self, host: int, argv: list[str]) -> None:
        log = open(self.path("daemon.%d.log" % len(self._daemons)), "wb")
        with log:
            self._daemons.append(subprocess.Popen(self._lab.command(host, argv), env=self.environment(), stdout=log,
                                                  stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL))

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": PATH, "SLURM_CONF": self.path("slurm.conf")}

    def wait_for(self, what: str, is_there: Callable[[], bool]) -> None:
        end = time.monotonic() + START_SECONDS_MAX
        while not is_there():
            if time.monotonic() > end:
                raise TimeoutError("%s does not come up:\n%s" % (what, self.logs()))
            time.sleep(0.1)  # there is no event to wait for

    def logs(self) -> str:
        texts = []
        for name in sorted(os.listdir(self.folder)):
            if name.endswith(".log"):
                with open(self.path(name), errors="replace") as file:
                    texts.append("== %s\n%s" % (name, file.read()[-2000:]))
        return "\n".join(texts)

    def run(self, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a Slurm command as a user on the cluster's first host, in the cluster's folder."""
        there = ["env", "--chdir=" + self.folder, *argv]
        return subprocess.run(self._lab.command(0, there), env={**self.environment(), **variables}, text=True,
                              capture_output=True, timeout=60, check=False)
