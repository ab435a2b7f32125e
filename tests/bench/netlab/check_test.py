"""Tests worker --check between hosts that do not reach each other: it must name the problem and never hang.

Hosts are network namespaces. A host's answers are blocked, its interface is down, or Open MPI is given a network that
leads nowhere.
"""

import os
import re
import subprocess
import tempfile
import unittest

from netlab import Netlab

LAUNCH = os.path.abspath("deploy/launch")
SERVER = os.path.abspath("server/server")
WORKER = os.path.abspath("worker/worker")
SECONDS_MAX = 120


class CheckTest(unittest.TestCase):

    def setUp(self):
        reason = Netlab.why_not()
        if reason:
            self.skipTest("NOTHING WAS CHECKED ACROSS HOSTS: no lab here: " + reason)
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))

    def shell(self, lab, host, script):
        subprocess.run(lab.command(host, ["sh", "-ec", script]), check=True, timeout=SECONDS_MAX)

    def run_ring(self, lab, settings=None):
        """Runs a check by mpirun with one rank on each host. `settings` replace the lab's settings for Open MPI."""
        command = lab.mpirun([WORKER, "--sync=ring", "--check", "--device=cpu"])
        for name, value in (settings or {}).items():
            command[command.index(name) + 1] = value
        return self.finish(command)

    def run_srun_ring(self, lab, settings):
        """Runs a check that looks like srun to the workers: it passes on no findings, so MPI must gather them."""
        as_srun = ("export SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=%d SLURM_LOCALID=0 "
                   "SLURM_PROCID=$OMPI_COMM_WORLD_RANK SLURM_NTASKS=$OMPI_COMM_WORLD_SIZE; "
                   'unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE; exec "$@"' % lab.hosts)
        command = lab.mpirun(["sh", "-c", as_srun, "sh", WORKER, "--sync=ring", "--check", "--device=cpu"])
        for name, value in settings.items():
            command[command.index(name) + 1] = value
        return self.finish(command)

    def run_star(self, lab, workers):
        """Starts servers on all hosts, which keep running; then runs checks by workers, rank r on host workers[r]."""
        secret = lab.make_secret(LAUNCH)
        servers, _ = lab.star_commands([SERVER], [WORKER], secret)
        for command in servers:
            server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self.addCleanup(server.wait)
            self.addCleanup(server.kill)
            self.addCleanup(server.stdout.close)
            self.assertIn("listening on", server.stdout.readline())
        places = ",".join("%s:7077" % address for address in lab.addresses)
        flags = ["--check", "--device=cpu", "--job_secret=" + secret, "--servers=" + places,
                 "--world_size=%d" % len(workers)]
        return self.finish_workers([lab.command(host, [WORKER, *flags, "--rank=%d" % rank])
                                    for rank, host in enumerate(workers)])

    def finish_workers(self, commands):
        checks = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                  for command in commands]
        outputs = [check.communicate(timeout=SECONDS_MAX)[0] for check in checks]
        return [check.returncode for check in checks], outputs

    def finish(self, command):
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        return done.returncode, done.stdout

    def sentence(self, output):
        """The table's last sentence in one line, without mpirun's own remarks."""
        found = re.search(r"(?m)^((?:not )?ready: .*(?:\n  .*)*)", output)
        self.assertIsNotNone(found, output)
        return re.sub(r"\s+", " ", found[1])

    def test_hosts_that_reach_each_other_are_ready(self):
        with Netlab(hosts=3, rate="1gbit") as lab:
            code, output = self.run_ring(lab)
            self.assertEqual(code, 0, output)
            self.assertEqual(self.sentence(output), "ready: 3 workers reach each other", output)
            links = re.findall(r"(?m)^w\d +w\d +tcp +10\.77\.0\.\d:\d+ +eth0 +reachable +\S+ ms ", output)
            self.assertEqual(len(links), 6, output)
            rates = re.findall(r"(?m)^w\d +w\d +mpi +host\d +- +reachable +\S+ ms +(.*) Mbit/s", output)
            self.assertEqual(len(rates), 3, output)
            for rate in rates:
                self.assertLess(int(rate), 1500, output)  # the link has 1000, and a burst comes on top
            codes, outputs = self.run_star(lab, [0, 1, 2])
            self.assertEqual(codes, [0, 0, 0], outputs)
            self.assertEqual(self.sentence(outputs[0]), "ready: 3 workers reach all 3 servers", outputs[0])
            self.assertEqual(outputs[1:], ["", ""], "rank 0 alone prints")

    def test_a_host_whose_packets_are_lost(self):
        with Netlab(hosts=3) as lab:
            # Packets from host2 to host0 are dropped, as by a firewall: host0's dials are never answered.
            self.shell(lab, 2, "ip route add blackhole %s/32" % lab.addresses[0])
            codes, outputs = self.run_star(lab, [0, 1])
            self.assertEqual(codes, [3, 3], outputs)
            self.assertIn("not ready: w0 cannot reach s2 at 10.77.0.3:7077: connection timed out (ETIMEDOUT): let",
                          self.sentence(outputs[0]), outputs[0])
            self.assertRegex(outputs[0], r"w1 +s2 +grpc +10\.77\.0\.3:7077 +eth0 +reachable")

    def test_a_worker_without_a_network_is_named_by_the_others(self):
        with Netlab(hosts=2) as lab:
            self.shell(lab, 1, "ip link set eth0 down")
            codes, outputs = self.run_star_of_first(lab)
            self.assertEqual(codes, [3, 3], outputs)
            self.assertIn("not ready: w1 has not reported", self.sentence(outputs[0]), outputs[0])
            self.assertIn("not ready: w1 cannot reach s0 at 10.77.0.1:7077: network is unreachable (ENETUNREACH):",
                          self.sentence(outputs[1]), outputs[1])

    def run_star_of_first(self, lab):
        """Runs a check with one server on host 0, and worker r on host r."""
        secret = lab.make_secret(LAUNCH)
        server = subprocess.Popen(lab.command(0, [SERVER, "--listen=%s:7077" % lab.addresses[0],
                                                  "--job_secret=" + secret]),
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        self.addCleanup(server.stdout.close)
        self.assertIn("listening on", server.stdout.readline())
        flags = ["--check", "--device=cpu", "--job_secret=" + secret, "--join_deadline_s=5",
                 "--servers=%s:7077" % lab.addresses[0], "--world_size=2"]
        return self.finish_workers([lab.command(rank, [WORKER, *flags, "--rank=%d" % rank]) for rank in (0, 1)])

    def make_islands(self, lab):
        """Gives each host a further interface that leads nowhere, in its own subnet."""
        for host in range(lab.hosts):
            self.shell(lab, host, "ip link add island type veth peer name shore; "
                                  "ip address add 10.9%d.0.1/24 dev island; "
                                  "ip link set shore up; ip link set island up" % host)

    def test_srun_on_an_island(self):
        with Netlab(hosts=2) as lab:
            self.make_islands(lab)
            # Open MPI ends the job in its first collective. Each host must have printed its addresses before.
            code, output = self.run_srun_ring(lab, {"btl_tcp_if_include": "island"})
            self.assertNotEqual(code, 0, output)
            for host in range(2):
                self.assertRegex(output, r"(?m)^rank %d of 2 is on host%d, interfaces .*island 10\.9%d\.0\.1/24.*, "
                                         r"btl_tcp_if_include=island; if no table follows, set "
                                         r"OMPI_MCA_btl_tcp_if_include to a network that all hosts share$"
                                         % (host, host, host))
            self.assertNotIn("ready", output)
            code, output = self.run_srun_ring(lab, {})
            self.assertEqual(code, 0, output)
            self.assertEqual(self.sentence(output), "ready: 2 workers reach each other", output)
            self.assertEqual(len(re.findall(r"(?m)^rank \d of 2 is on host", output)), 2, output)

    def test_a_ring_on_an_island(self):
        with Netlab(hosts=2) as lab:
            self.make_islands(lab)
            code, output = self.run_ring(lab, {"btl_tcp_if_include": "island"})
            self.assertEqual(code, 3, output)
            self.assertRegex(self.sentence(output), r"not ready: w0 cannot reach w1 at 10\.91\.0\.1:\d+: network is "
                                                    r"unreachable \(ENETUNREACH\): bring up the interface, or set "
                                                    r"OMPI_MCA_btl_tcp_if_include to a network that all hosts share")
            # Open MPI also uses the interface that leads nowhere, and ends the job after the table and the advice.
            code, output = self.run_ring(lab, {"btl_tcp_if_include": "eth0,island"})
            self.assertNotEqual(code, 0, output)
            self.assertRegex(output, r"w0 +w1 +tcp +10\.77\.0\.2:\d+ +eth0 +reachable", output)
            self.assertRegex(output, r"w0 +w1 +tcp +10\.91\.0\.1:\d+ +\S+ +network is unreachable", output)
            self.assertRegex(output, r"not ready, if nothing follows: .*\n?.*_btl_tcp_if_include=10\.77\.0\.0/24")


if __name__ == "__main__":
    unittest.main()
