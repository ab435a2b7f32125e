"""Tests the parts of bench/chaos: schedules, the proxy, finding processes, and a log's sums."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from bench.chaos import processes
from bench.chaos.log import Log, percentile, summary
from bench.chaos.proxy import Proxy
from bench.chaos.schedule import KINDS, VERDICT_GRACE_S, Setup, job_seed, make_schedule

DEADLINE_S = 20


def setup(topology):
    return Setup(topology=topology, workers=3, servers=2, exchange_deadline_s=2, join_deadline_s=4)


class ScheduleTest(unittest.TestCase):
    def test_follows_from_the_seed(self):
        self.assertEqual(make_schedule(7, setup("star"), 50), make_schedule(7, setup("star"), 50))
        self.assertNotEqual(make_schedule(7, setup("star"), 50), make_schedule(8, setup("star"), 50))
        # A shorter schedule is the beginning of a longer one, so that a job may stop at any event.
        self.assertEqual(make_schedule(7, setup("ring"), 50)[:20], make_schedule(7, setup("ring"), 20))
        self.assertEqual(len({job_seed(seed, job) for seed in range(30) for job in range(30)}), 900)

    def test_every_kind_and_victim_comes(self):
        for topology, roles in (("star", {"worker", "server", "launch", "proxy"}),
                                ("star-mpi", {"worker", "mpirun", "launch"}),
                                ("star-servers-tcp", {"worker", "server", "launch"}),
                                ("star-tcp", {"worker", "launch"}), ("ring-tcp", {"worker", "launch"}),
                                ("ring", {"worker", "mpirun", "launch"})):
            events = make_schedule(1, setup(topology), 1000)
            self.assertEqual({event.kind for event in events}, set(KINDS[topology]))
            self.assertEqual({event.role for event in events}, roles)
            self.assertEqual({event.number for event in events if event.role == "worker"}, {0, 1, 2})
            self.assertTrue(any(event.at_start for event in events))
            for before, event in zip(events, events[1:]):
                self.assertTrue(not event.at_start or before.kind == "kill")

    def test_durations_are_on_both_sides_of_the_deadline(self):
        for event in make_schedule(3, setup("star"), 1000):
            deadline = 4 if event.at_start else 2
            if event.kind.endswith("-short"):
                self.assertLess(event.duration_s, deadline)
                self.assertGreater(event.duration_s, 0)
            elif event.kind.endswith("-long"):
                self.assertGreater(event.duration_s, deadline + VERDICT_GRACE_S)
            else:
                self.assertEqual(event.duration_s, 0)


class Echo:
    """Echoes all bytes."""

    def __init__(self, test):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        test.addCleanup(self.listener.close)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    @staticmethod
    def serve(client):
        with client:
            try:
                while data := client.recv(1000):
                    client.sendall(data)
            except OSError:
                pass


class ProxyTest(unittest.TestCase):
    def setUp(self):
        self.proxy = Proxy()
        self.addCleanup(self.proxy.close)

    def connect(self):
        host, _, port = self.proxy.address.rpartition(":")
        client = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
        self.addCleanup(client.close)
        return client

    def talks(self, client=None):
        try:
            client = client or self.connect()
            client.sendall(b"hello")
            return client.recv(1000) == b"hello"
        except ConnectionError:
            return False

    def test_waits_for_its_target_and_forwards(self):
        client = self.connect()
        self.proxy.set_target(Echo(self).address)
        self.assertTrue(self.talks(client))

    def test_cut_shut_and_open(self):
        self.proxy.set_target(Echo(self).address)
        client, other = self.connect(), self.connect()
        self.assertTrue(self.talks(client) and self.talks(other))
        self.assertEqual(self.proxy.cut(), 2)
        self.assertFalse(self.talks(client) or self.talks(other))
        self.assertTrue(self.talks())
        self.proxy.shut()
        self.assertFalse(self.talks())
        self.proxy.open()
        self.assertTrue(self.talks())

    def test_freeze_holds_what_it_gets(self):
        self.proxy.set_target(Echo(self).address)
        client = self.connect()
        self.assertTrue(self.talks(client))
        self.proxy.freeze()
        client.sendall(b"hello")
        client.settimeout(0.2)
        with self.assertRaises(TimeoutError):
            client.recv(1000)
        client.settimeout(DEADLINE_S)
        self.proxy.open()
        self.assertEqual(client.recv(1000), b"hello")


class ProcessesTest(unittest.TestCase):
    def test_finds_children_of_children_and_signals_no_stranger(self):
        mark = "test.%d" % os.getpid()
        program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
        parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE,
                                  env=dict(os.environ, **{processes.MARK: mark}))
        self.addCleanup(parent.communicate)
        end = time.monotonic() + DEADLINE_S
        while len(found := processes.find(mark)) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(len(found), 2)
        self.assertIn(parent.pid, [process.pid for process in found])
        other = processes.Process(pid=parent.pid, started="1", role="worker", number=0)
        self.assertFalse(processes.send(other, signal.SIGKILL))
        processes.kill_all(mark)
        parent.wait(timeout=DEADLINE_S)
        self.assertEqual(parent.returncode, -signal.SIGKILL)
        self.assertFalse(processes.send(found[0], signal.SIGCONT))


class LogTest(unittest.TestCase):
    def test_percentiles(self):
        values = list(range(1, 101))
        self.assertEqual([percentile(values, fraction) for fraction in (0.5, 0.95)], [50, 95])
        self.assertEqual(percentile([3.0], 0.95), 3.0)

    def test_adds_up_over_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "log")
            for job, outcome in enumerate(("ok", "hang", "wrong digest")):
                log = Log(path)
                log.add("event", topology="star", kind="kill", restarted=True, next_step_s=1.0 + job)
                log.add("event", topology="ring", kind="stop-long", restarted=False, next_step_s=None)
                log.add("job", topology="star", outcome=outcome)
            text = summary(Log(path))
        self.assertIn("| star, kill | 3 | 3 | 2.00 | 3.00 | 3.00 |", text)
        self.assertIn("| ring, all | 3 | 0 | - | - | - |", text)
        self.assertIn("6 events in 3 jobs: 1 wrong digests, 1 hangs, 0 other failures", text)


if __name__ == "__main__":
    unittest.main()
