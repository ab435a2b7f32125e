"""Tests a lab of several hosts: names, links, star and ring across it, and that no trace of it is left."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import netlab
from netlab import Netlab

SERVER = os.path.abspath("server/server")
WORKER = os.path.abspath("worker/worker")
LAUNCH = os.path.abspath("deploy/launch")
SECONDS_MAX = 60
# The network carries 7 MB in a step of mlp. 200 samples in batches of 33 leave a last batch of 2.
JOB = ["--model=mlp", "--dataset=synthetic", "--synthetic_train_count=200", "--synthetic_test_count=50",
       "--global_batch=33", "--epochs=2", "--progress=plain", "--device=cpu",
       "--checkpoint_dir=none"]

RECEIVE = """
import socket, time
server = socket.create_server(("", 9000))
print("listening", flush=True)
connection = server.accept()[0]
start, count = time.monotonic(), 0
while data := connection.recv(1 << 20):
    count, end = count + len(data), time.monotonic()
print(count * 8 / (end - start))
"""
SEND = "import socket, sys; socket.create_connection((sys.argv[1], 9000)).sendall(bytes(int(sys.argv[2])))"

# Prints the processes of the lab, then keeps running. It waits for the sleeper's line: a process that has not yet
# entered the lab when its owner dies is not known to be one of the lab's.
OWNER = """
import json, signal, sys
from netlab import Netlab
with Netlab(hosts=2) as lab:
    import subprocess
    sleeper = subprocess.Popen(lab.command(1, ["sh", "-c", "echo; exec sleep 1000"]), stdout=subprocess.PIPE)
    sleeper.stdout.readline()
    print(json.dumps([lab.folder, sleeper.pid, lab._keeper.pid, *lab._processes]), flush=True)
    signal.pause()
"""


ENVIRONMENT = {**os.environ, "PYTHONPATH": os.path.dirname(netlab.__file__)}


def run_netlab(*argv):
    return subprocess.run([sys.executable, netlab.__file__, *argv], capture_output=True, text=True, timeout=SECONDS_MAX,
                          check=False)


def interfaces():
    return sorted(os.listdir("/sys/class/net"))


def is_alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class NetlabTest(unittest.TestCase):

    def setUp(self):
        reason = Netlab.why_not()
        if reason:
            self.skipTest("NOTHING RAN ACROSS HOSTS: no lab here: " + reason)
        before = interfaces()
        self.addCleanup(lambda: self.assertEqual(interfaces(), before))
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))

    def run_to_end(self, command):
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def record(self, sync):
        return os.path.join(self.folder, sync + ".json")

    def read_record(self, sync):
        with open(self.record(sync)) as file:
            return json.load(file)

    def test_hosts_have_names_and_reach_each_other(self):
        with Netlab(hosts=3) as lab:
            for host, name in enumerate(lab.names):
                self.assertEqual(self.run_to_end(lab.command(host, ["hostname"])).strip(), name)
            found = self.run_to_end(lab.command(2, ["getent", "hosts", "host1"])).split()
            self.assertEqual(found, [lab.addresses[1], "host1"])
            self.assertEqual(self.run_to_end(lab.command(1, ["pwd"])).strip(), os.getcwd())
            # Two labs at the same time have the same addresses and nothing in common.
            with Netlab(hosts=1) as other:
                self.assertEqual(self.run_to_end(other.command(0, ["hostname", "-I"])).strip(), lab.addresses[0])

    def test_no_host_has_the_machines_congestion_control(self):
        with Netlab(hosts=2) as lab:
            for host in range(2):
                name = self.run_to_end(lab.command(host, ["cat", "/proc/sys/net/ipv4/tcp_congestion_control"])).strip()
                self.assertIn(name, ("cubic", "reno"))

    def send(self, lab, count):
        """The bits per second of one message of `count` bytes from host1 to host0."""
        receiver = subprocess.Popen(lab.command(0, [sys.executable, "-c", RECEIVE]), stdout=subprocess.PIPE, text=True)
        self.assertEqual(receiver.stdout.readline(), "listening\n")
        self.run_to_end(lab.command(1, [sys.executable, "-c", SEND, lab.addresses[0], str(count)]))
        return float(receiver.communicate(timeout=SECONDS_MAX)[0])

    def test_links_have_the_rate(self):
        with Netlab(hosts=2, rate="200mbit") as lab:
            bits_per_second = self.send(lab, 20000000)
            self.assertLess(bits_per_second, 205e6)
            self.assertGreater(bits_per_second, 120e6)  # a busy machine is slower
            # Not even after a pause does a link pass much at once.
            self.assertLess(self.send(lab, 131072), 240e6)
            show = ["env", "PATH=" + netlab.TOOL_PATH, "tc", "-json", "qdisc", "show", "dev", "eth0"]
            shape = json.loads(self.run_to_end(lab.command(0, show)))
            self.assertAlmostEqual(lab.burst_s, shape[0]["options"]["burst"] * 8 / 200e6, delta=0.01 * lab.burst_s)

    def test_star_and_ring_across_hosts_agree(self):
        with Netlab(hosts=2) as lab:
            output = self.run_to_end(lab.mpirun([WORKER, "--sync=ring", "--same_host=socket",
                                                 "--record=" + self.record("ring"), *JOB]))
            self.assertIn("ring with 2 workers", output)
            servers, workers = lab.star_commands([SERVER], [WORKER, "--record=" + self.record("star"), *JOB],
                                                 lab.make_secret(LAUNCH))
            processes = [subprocess.Popen(command) for command in servers + workers]
            self.assertEqual([process.wait(timeout=SECONDS_MAX) for process in processes], [0] * 4)
        star, ring = self.read_record("star"), self.read_record("ring")
        self.assertEqual(star["parameter_sha256"], ring["parameter_sha256"])
        self.assertEqual(star["config"]["same_host"], "socket")
        self.assertEqual(star["config"]["security"], "token")
        self.assertEqual(ring["config"]["world_size"], 2)
        # With 2 hosts a step sends and receives 7.4 MB at 1 Gbit/s. A much shorter time would mean that the link was
        # not used.
        for record in (star, ring):
            self.assertGreater(record["step_ms"]["p50"], 25, record)

    def test_a_server_on_a_host_of_its_own(self):
        with Netlab(hosts=2, server_hosts=1) as lab:
            self.assertEqual(lab.section, "netlab:2+1,1gbit")
            servers, workers = lab.star_commands([SERVER], [WORKER, "--record=" + self.record("own"), *JOB],
                                                 lab.make_secret(LAUNCH), own_hosts=True)
            self.assertEqual((len(servers), len(workers)), (1, 2))
            self.assertEqual(self.run_to_end(lab.command(2, ["hostname"])).strip(), "host2")
            processes = [subprocess.Popen(command) for command in servers + workers]
            self.assertEqual([process.wait(timeout=SECONDS_MAX) for process in processes], [0] * 3)
            ranks = self.run_to_end(lab.mpirun(["hostname"])).split()
            self.assertEqual(sorted(ranks), ["host0", "host1"], "a rank ran on a server's host")
        # The server's link carries the 7.4 MB of both workers each way: 119 ms at 1 Gbit/s. On a worker's host it would
        # carry those of one.
        self.assertGreater(self.read_record("own")["step_ms"]["p50"], 100)

    def test_nothing_is_left_of_an_owner_who_was_killed(self):
        for signal_number in (signal.SIGINT, signal.SIGKILL):
            owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                     text=True, env=ENVIRONMENT)
            folder, *processes = json.loads(owner.stdout.readline())
            self.assertTrue(all(is_alive(pid) for pid in processes))
            self.assertTrue(os.path.isdir(folder))
            owner.send_signal(signal_number)
            owner.wait(timeout=SECONDS_MAX)
            owner.stdout.close()
            end = time.monotonic() + 20
            while any(is_alive(pid) for pid in processes) or os.path.exists(folder):
                self.assertLess(time.monotonic(), end, "signal %d left %s" % (signal_number, processes))
                time.sleep(0.02)  # the end of a process that is no child causes no event

    def test_what_cannot_be_is_refused(self):
        for flags, why in ((["--rate=fast"], "is not a number"), (["--hosts=0"], "between 1 and 200")):
            done = run_netlab(*flags, "--", "true")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(why, done.stderr)

    def test_the_status_is_the_commands(self):
        done = run_netlab("--hosts=2", "--", "sh", "-c", "netlab-on host1 hostname; exit 7")
        self.assertEqual((done.returncode, done.stdout), (7, "host1\n"), done.stderr)


class WithoutRootTest(unittest.TestCase):

    def test_says_so(self):
        script = ("import netlab, os, sys; os.geteuid() or os.setuid(65534)\n"
                  "sys.argv = ['netlab', '--', 'true']; sys.exit(netlab.main())")
        done = subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True,
                              timeout=SECONDS_MAX, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("it needs root", done.stderr)


if __name__ == "__main__":
    unittest.main()
