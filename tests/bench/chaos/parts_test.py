"""Tests the parts of bench/chaos: schedules, the proxy, finding processes, and a log's sums."""

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

from bench.chaos import processes
from bench.chaos.log import Log, percentile, summary
from bench.chaos.proxy import Proxy
from bench.chaos.schedule import (ELASTIC, KINDS, MEMBER_GONE_S, MEMBER_SILENT_S, MEMBER_STUCK_S, VERDICT_GRACE_S,
                                  WORKERS_MAX, Setup, job_seed, make_schedule)
from bench.chaos.timeline import Timeline, covered

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

    def test_an_elastic_star_has_its_own(self):
        self.assertEqual({event.kind for event in make_schedule(5, setup(ELASTIC), 1000)},
                         set(KINDS[ELASTIC]) - {"memory-squeeze"})
        some = dataclasses.replace(setup(ELASTIC), kinds=("kill", "blocked-shard"))
        self.assertEqual({event.kind for event in make_schedule(5, some, 100)}, set(some.kinds))
        squeezed = dataclasses.replace(setup(ELASTIC), squeezed=True)
        events = make_schedule(5, squeezed, 1000)
        self.assertEqual(events[:20], make_schedule(5, squeezed, 20))
        self.assertEqual({event.kind for event in events}, set(KINDS[ELASTIC]))
        for kind in ("kill", "stop-short", "stop-long"):
            victims = {(event.role, event.number) for event in events if event.kind == kind}
            self.assertLessEqual({("server", 0), ("server", 1)}, victims)
            workers = {number for role, number in victims if role == "worker"}
            for running in range(1, WORKERS_MAX + 1):
                self.assertEqual({number % running for number in workers}, set(range(running)))
        for before, event in zip(events, events[1:]):
            self.assertTrue(not event.at_start or before.kind in ("kill", "kill-two"))
            self.assertTrue(not event.at_start or 0 <= event.delay_s <= 1.5)
        for event in events:
            self.assertEqual(event.other is not None, event.kind == "kill-two")
            self.assertEqual(event.role == "proxy", event.kind in ("cut", "shut-long"))
            if event.kind == "stop-short":
                self.assertLess(event.duration_s, MEMBER_SILENT_S)
            elif event.kind == "stop-long":
                self.assertGreater(event.duration_s, MEMBER_SILENT_S + 0.9)
            elif event.kind == "shut-long":
                self.assertGreater(event.duration_s, MEMBER_GONE_S + 0.7)
            elif event.kind == "blocked-shard":
                self.assertGreater(event.duration_s, 5)  # a worker looks for its servers so long before it joins
                self.assertEqual((event.role, event.number), ("server", 1))
            elif event.kind == "stuck-long":
                self.assertGreater(event.duration_s, MEMBER_STUCK_S + 1.9)


class TimelineTest(unittest.TestCase):
    """The steps of a job that makes one every 0.1 s from 0 s on: step 0, 1, 2 ..."""

    def setUp(self):
        self.timeline = Timeline()
        self.generation(0.0, 1, 0)

    def steps(self, begin, end, first):
        for i in range(round((end - begin) / 0.1)):
            self.timeline.on_step(begin + 0.1 * i, first + i)

    def line(self, at, line):
        self.timeline.on_line(at, line)

    def generation(self, at, number, step, workers=3):
        self.line(at, "s0 | server 0: generation %d from step %d with %d workers (cause)" % (number, step, workers))

    def test_a_killed_worker(self):
        self.steps(0.0, 10.0, 0)
        self.timeline.on_step(10.05, 100)  # made before the kill at 10.0, and seen later
        self.line(11.0, "s0 | server 0: generation 1 is cut short at step 101: worker (process 7 on h) is gone")
        self.generation(11.2, 2, 95, workers=2)
        self.assertIsNone(self.timeline.measure("kill", 10.0, 10.0).next_step_s)
        self.steps(11.3, 13.0, 95)
        found = self.timeline.measure("kill", 10.0, 10.0)
        self.assertAlmostEqual(found.detection_s, 1.0)
        self.assertAlmostEqual(found.next_step_s, 11.9 - 10.0)  # step 101 is the first that is higher than 100
        self.assertEqual((found.again_steps, found.start_s, found.changed), (6, 0.0, True))  # 95 to 100
        self.assertEqual((self.timeline.step, self.timeline.generation.workers), (111, 2))
        self.assertTrue(self.timeline.has_step_after(12.0))
        self.assertFalse(self.timeline.has_step_after(13.0))

    def test_the_coordinator_says_nothing_of_its_own_death(self):
        self.steps(0.0, 10.0, 0)
        self.line(10.1, "launch: s0 was ended by signal 9 (Killed): starting it again, 1 of 1000")
        self.line(10.1, "launch: s1 was ended by signal 9 (Killed): starting it again, 2 of 1000")
        self.line(10.5, "s1 | listening on 127.0.0.1:2")
        self.line(10.7, "s0 | listening on 127.0.0.1:1")
        self.generation(11.0, 3, 90)
        self.steps(11.0, 13.0, 90)
        found = self.timeline.measure("kill-two", 10.0, 10.0)
        self.assertIsNone(found.detection_s)
        self.assertAlmostEqual(found.next_step_s, 2.0)
        self.assertAlmostEqual(found.start_s, 0.6)
        self.assertEqual(found.again_steps, 9)

    def test_a_stop_counts_from_its_end_unless_the_others_went_on(self):
        self.steps(0.0, 10.0, 0)
        self.steps(13.0, 20.0, 100)
        found = self.timeline.measure("stop-short", 10.0, 12.9)
        self.assertAlmostEqual(found.next_step_s, 3.0)
        self.assertEqual((found.changed, found.again_steps, found.detection_s), (False, 0, None))
        self.line(25.0, "s0 | server 0: generation 1 is cut short at step 170: worker (process 7 on h) is silent")
        self.generation(25.1, 2, 168)
        self.steps(25.2, 27.0, 168)
        self.assertAlmostEqual(self.timeline.measure("stop-long", 20.0, 26.9).next_step_s, 5.4)

    def test_a_connection_that_is_shut_counts_as_a_stop(self):
        self.steps(0.0, 11.2, 0)
        self.line(11.2, "s0 | server 0: generation 1 is cut short at step 112: worker (process 7 on h) is gone")
        self.generation(11.3, 2, 110, workers=2)
        self.steps(11.4, 13.0, 110)
        found = self.timeline.measure("shut-long", 10.0, 12.0)
        self.assertAlmostEqual(found.next_step_s, 11.6 - 10.0)  # step 112 is the first that is higher than 111
        self.assertEqual((found.changed, found.again_steps), (True, 2))
        self.assertAlmostEqual(self.timeline.measure("cut", 5.05, 5.05).next_step_s, 0.05)

    def test_a_planned_change_repeats_nothing(self):
        self.steps(0.0, 10.0, 0)
        self.line(10.0, "s0 | server 0: generation 1 ends at its next snapshot: worker (process 7 on h) leaves")
        self.steps(10.0, 10.2, 100)
        self.generation(10.3, 2, 102)
        self.steps(10.4, 11.0, 102)
        found = self.timeline.measure("leave", 9.95, 9.95)
        self.assertEqual((found.detection_s, found.again_steps, found.changed), (None, 0, True))
        self.assertAlmostEqual(found.next_step_s, 10.4 - 9.95)

    def test_two_changes_before_the_next_step(self):
        self.steps(0.0, 10.0, 0)
        for at, number in ((10.5, 1), (11.5, 2)):
            self.line(at, "s0 | server 0: generation %d is cut short at step %d: cause" % (number, 103 - 3 * number))
            self.generation(at + 0.2, number + 1, 90)
        self.steps(11.8, 14.0, 90)
        found = self.timeline.measure("kill-two", 10.0, 10.0)
        self.assertEqual(found.again_steps, 10 + 7)
        self.assertAlmostEqual(found.detection_s, 0.5)

    def test_what_intervals_cover(self):
        self.assertEqual(covered([]), 0)
        self.assertEqual(covered([(5, 6), (1, 3), (2, 4), (2, 3)]), 4)


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

    def test_block_lets_only_older_connections_through(self):
        self.proxy.set_target(Echo(self).address)
        older = self.connect()
        self.assertTrue(self.talks(older))
        self.proxy.block()
        newer = self.connect()
        newer.sendall(b"hello")
        newer.settimeout(0.2)
        with self.assertRaises(TimeoutError):
            newer.recv(1000)
        self.assertTrue(self.talks(older))
        self.proxy.open()
        newer.settimeout(DEADLINE_S)
        self.assertEqual(newer.recv(1000), b"hello")

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


class Broken(Exception):
    """What an observer of a process may raise."""


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

    def test_holds_the_first_thread_alone(self):
        program = """
import mmap, sys, threading, zlib
with open(sys.argv[1], "r+b") as file:
    counts = mmap.mmap(file.fileno(), 2)
data = bytes(4 << 20)
def count(place):
    while True:
        zlib.crc32(data)  # without the interpreter's lock: a thread that is stopped must not have it
        counts[place] = (counts[place] + 1) % 256
threading.Thread(target=count, args=(1,), daemon=True).start()
count(0)
"""
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(2))
            file.flush()

            def seen():
                """The values that each thread's count takes within a tenth of a second."""
                end, values = time.monotonic() + 0.1, (set(), set())
                while time.monotonic() < end:
                    file.seek(0)
                    for one, value in zip(values, file.read(2)):
                        one.add(value)
                    time.sleep(0.001)
                return [len(one) > 1 for one in values]

            mark = "hold.%d" % os.getpid()
            child = subprocess.Popen([sys.executable, "-c", program, file.name],
                                     env=dict(os.environ, **{processes.MARK: mark}))
            try:
                end = time.monotonic() + DEADLINE_S
                while seen() != [True, True]:
                    self.assertLess(time.monotonic(), end)
                victim = processes.find(mark)[0]
                held = []
                holder = threading.Thread(target=lambda: held.append(processes.hold_first_thread(victim, 3.0)))
                holder.start()
                while holder.is_alive() and seen() != [False, True]:
                    pass
                was_held = holder.is_alive()
                holder.join()
                if held == [False] and os.geteuid() != 0:
                    self.skipTest("this user may not trace a process (ptrace)")
                self.assertEqual((held, was_held), ([True], True))
                end = time.monotonic() + DEADLINE_S
                while seen() != [True, True]:
                    self.assertLess(time.monotonic(), end)
                sleep = time.sleep

                def broken_sleep(seconds):
                    if seconds == 3.0:
                        raise Broken
                    sleep(seconds)
                for patch in (  # an error while the thread runs, and one while it is stopped
                        mock.patch.object(processes, "_stat", side_effect=[("R", victim.started, 0), Broken]),
                        mock.patch.object(processes.time, "sleep", broken_sleep)):
                    with patch, self.assertRaises(Broken):
                        processes.hold_first_thread(victim, 3.0)
                    with open("/proc/%d/status" % victim.pid, encoding="utf-8") as status:
                        self.assertIn("TracerPid:\t0\n", status.readlines())
                    end = time.monotonic() + DEADLINE_S
                    while seen() != [True, True]:
                        self.assertLess(time.monotonic(), end)
            finally:
                child.kill()
                child.wait()
            self.assertFalse(processes.hold_first_thread(victim, 0.0))


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
                log.add("event", topology="star", seed=1, job=job, kind="kill", restarted=True, next_step_s=1.0 + job)
                log.add("event", topology="ring", seed=1, job=job, kind="stop-long", restarted=False, next_step_s=None)
                log.add("job", topology="star", seed=1, job=job, outcome=outcome)
            text = summary(Log(path))
        self.assertIn("| star, kill | 3 | 3 | 2.00 | 3.00 | 3.00 |", text)
        self.assertIn("| ring, all | 3 | 0 | - | - | - |", text)
        self.assertIn("6 events in 3 jobs: 1 wrong digests, 1 hangs, 0 other failures", text)
        self.assertNotIn("steps again", text)

    def test_events_of_an_interrupted_job_do_not_count(self):
        def add(log, kind, job, **fields):
            log.add(kind, topology="star", seed=7, job=job, kind="kill", restarted=True, next_step_s=1.0, **fields)
        with tempfile.TemporaryDirectory() as folder:
            log = Log(os.path.join(folder, "log"))
            self.assertEqual(log.next_job(7), 0)
            add(log, "event", 0)
            add(log, "job", 0, outcome="ok")
            add(log, "event", 3)  # of jobs 1 and 2 there were enough; in this one the digest was never seen
            for _ in range(2):  # a further interruption does not change that
                log = Log(os.path.join(folder, "log"))
                self.assertEqual([entry["job"] for entry in log.of("event")], [0])
                self.assertIn("1 events in 1 jobs: 0 wrong digests", summary(log))
                # Another number would repeat a schedule, and a job of number 3 would lend its line to the old events.
                self.assertEqual((log.next_job(7), log.next_job(8)), (4, 0))
            add(log, "job", 4, outcome="ok")
            self.assertEqual(log.next_job(7), 5)

    def test_an_elastic_star_has_a_table_of_its_own(self):
        def add(log, **fields):
            log.add("event", **{"topology": ELASTIC, "seed": 1, "job": 0, "kind": "kill", "role": "worker", "number": 0,
                                "in_change": False, "restarted": True, "detection_s": None, "next_step_s": None,
                                "start_s": 0.0, "again_steps": 0, **fields})
        with tempfile.TemporaryDirectory() as folder:
            log = Log(os.path.join(folder, "log"))
            add(log, detection_s=0.5, next_step_s=1.0, again_steps=7)
            add(log, role="server", number=0, next_step_s=3.0, start_s=1.25, again_steps=9)
            add(log, in_change=True, next_step_s=5.0)
            add(log, kind="disk-full", role="server", restarted=False, next_step_s=0.25)
            text = summary(log)
        three = "| %.2f | %.2f | %.2f | %s | %s | %s |"
        self.assertIn("star-elastic, kill | 2 | 0.50 | 0.50 " + three % (1, 1.75, 1.75, 7, 9, 9), text)
        self.assertIn("star-elastic, kill of shard 0 | 1 | - | - " + three % (1.75, 1.75, 1.75, 9, 9, 9), text)
        self.assertIn("star-elastic, during a change, and its cause | 1 | - | - " + three % (5, 5, 5, 0, 0, 0), text)
        self.assertIn("star-elastic, disk-full | 1 | - | - " + three % (0.25, 0.25, 0.25, "-", "-", "-"), text)
        self.assertIn("star-elastic, all | 4 |", text)
        self.assertNotIn("ended in a restart", text)


if __name__ == "__main__":
    unittest.main()
