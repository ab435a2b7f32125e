"""A real Slurm on this machine: munged, slurmctld and one slurmd on each host of a lab of network namespaces."""

import os
import shutil
import subprocess
import time

from netlab import Netlab

DAEMONS = ("munged", "slurmctld", "slurmd")
PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
START_SECONDS_MAX = 30

# The controller lives on host0. One munged serves all: hosts share the file system. Each node says that it has more
# cores than the machine, since jobs are to run side by side.
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
    """A lab and a Slurm in it, in a folder that exists and is empty. All of it is gone after __exit__."""

    def __init__(self, folder, nodes=3):
        self.folder = folder
        self.nodes = nodes
        self._lab = Netlab(hosts=nodes + 1, rate="10gbit")
        self._daemons = []

    @staticmethod
    def why_not():
        missing = [daemon for daemon in DAEMONS if not shutil.which(daemon, path=PATH)]
        if missing:
            return "%s not installed: apt-get install slurm-wlm munge" % ", ".join(missing)
        return Netlab.why_not()

    def path(self, name):
        return os.path.join(self.folder, name)

    def __enter__(self):
        nodes = ["host%d" % (node + 1) for node in range(self.nodes)]
        for name in ["state"] + [kind + node for kind in ("spool.", "tmp.") for node in nodes]:
            os.mkdir(self.path(name))
        with open(self.path("slurm.conf"), "w") as file:
            file.write(CONFIG.format(folder=self.folder, nodes=self.nodes))
        with open(os.open(self.path("munge.key"), os.O_WRONLY | os.O_CREAT, 0o400), "wb") as file:
            file.write(os.urandom(1024))
        self._lab.__enter__()
        try:
            # --force: the folder is a test's, which others may read.
            munge = ["%s=%s" % (flag, self.path("munge." + name)) for flag, name in
                     (("--key-file", "key"), ("--socket", "socket"), ("--pid-file", "pid"), ("--log-file", "log"),
                      ("--seed-file", "seed"))]
            self.start(0, ["munged", "--foreground", "--force", *munge])
            self.wait_for("munged", lambda: os.path.exists(self.path("munge.socket")))
            self.start(0, ["slurmctld", "-D", "-c"])
            for node, name in enumerate(nodes, 1):
                self.start(node, ["slurmd", "-D", "-N", name])
            self.wait_for("slurmd", lambda: self.run("sinfo", "--noheader", "--format=%t %D").stdout ==
                          "idle %d\n" % self.nodes)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception):
        # What a slurmd has started lives in the lab too, and ends with it.
        self._lab.__exit__()
        for daemon in self._daemons:
            daemon.wait()

    def start(self, host, argv):
        log = open(self.path("daemon.%d.log" % len(self._daemons)), "wb")
        with log:
            self._daemons.append(subprocess.Popen(self._lab.command(host, argv), env=self.environment(), stdout=log,
                                                  stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL))

    def environment(self):
        return {**os.environ, "PATH": PATH, "SLURM_CONF": self.path("slurm.conf")}

    def wait_for(self, what, is_there):
        end = time.monotonic() + START_SECONDS_MAX
        while not is_there():
            if time.monotonic() > end:
                raise TimeoutError("%s does not come up:\n%s" % (what, self.logs()))
            time.sleep(0.1)  # polls: there is nothing to be woken by

    def logs(self):
        texts = []
        for name in sorted(os.listdir(self.folder)):
            if name.endswith(".log"):
                with open(self.path(name), errors="replace") as file:
                    texts.append("== %s\n%s" % (name, file.read()[-2000:]))
        return "\n".join(texts)

    def run(self, *argv, **variables):
        """A Slurm command, as a user calls it on the cluster's first host, in the cluster's folder."""
        there = ["env", "--chdir=" + self.folder, *argv]
        return subprocess.run(self._lab.command(0, there), env={**self.environment(), **variables}, text=True,
                              capture_output=True, timeout=60, check=False)
