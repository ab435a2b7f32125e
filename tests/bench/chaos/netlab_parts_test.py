"""Tests what bench/chaos computes of cuts between hosts: the schedule, the end that must follow, and the table."""

import dataclasses
import os
import tempfile
import unittest

from blocks import Flow

from bench.chaos.log import Log
from bench.chaos.netlab_log import summary
from bench.chaos.netlab_schedule import (DIRECTIONS, ELASTIC, KINDS, RING, STAR, TOPOLOGIES, Cut, Setup, blamed,
                                         expected_end, faults_of_end, is_idle, is_near, make_cuts, pause_s, reason_of)


def setup(topology):
    servers = {STAR: 4, ELASTIC: 2, RING: 0}[topology]
    return Setup(topology=topology, hosts=4, servers=servers, exchange_deadline_s=30, join_deadline_s=30)


def cut(kind="host", host=2, other=None, duration_s=40.0, direction="both", at_start=False):
    return Cut(kind=kind, direction=direction, host=host, other=other, duration_s=duration_s, delay_s=0.1,
               at_start=at_start, join_at_s=None, join_host=0)


class ScheduleTest(unittest.TestCase):

    def test_follows_from_the_seed(self):
        for topology in TOPOLOGIES:
            cuts = make_cuts(7, setup(topology), 60)
            self.assertEqual(cuts, make_cuts(7, setup(topology), 60))
            self.assertEqual(cuts[:20], make_cuts(7, setup(topology), 20))
            self.assertNotEqual(cuts, make_cuts(8, setup(topology), 60))

    def test_half_are_short_and_a_tenth_are_long(self):
        for topology in TOPOLOGIES:
            lengths = [one.duration_s for one in make_cuts(3, setup(topology), 200)]
            self.assertEqual((sum(length < 5 for length in lengths), sum(length > 60 for length in lengths)), (100, 20))
            self.assertTrue(all(1 <= length <= 90 for length in lengths))

    def test_all_kinds_directions_and_hosts_come(self):
        for topology in TOPOLOGIES:
            cuts = make_cuts(1, setup(topology), 500)
            self.assertEqual({(one.kind, one.direction) for one in cuts},
                             {(kind, direction) for kind in KINDS[topology] for direction in DIRECTIONS})
            self.assertEqual({one.host for one in cuts if one.kind == "host"}, {0, 1, 2, 3})
            self.assertEqual({one.host for one in cuts if one.kind == "shard"}, set(range(setup(topology).servers)))
            pairs = {(one.host, one.other) for one in cuts if one.kind == "firewall"}
            self.assertEqual(pairs, {(a, b) for a in range(4) for b in range(4) if a != b})
            for one in cuts:  # a ring may end before it notices
                self.assertFalse(is_idle(one, setup(topology)) and expected_end(one, setup(topology)))
            self.assertEqual({one.at_start for one in cuts}, {False} if topology == ELASTIC else {False, True})
            self.assertEqual(any(one.join_at_s is not None for one in cuts), topology == ELASTIC)
            for one in cuts:
                self.assertTrue(one.join_at_s is None or one.join_at_s < one.duration_s)

    def test_none_is_near_a_deadline(self):
        for topology in TOPOLOGIES:
            for one in make_cuts(2, setup(topology), 500):
                self.assertFalse(is_near(one, setup(topology)))
        for topology, near in ((STAR, (24.1, 35.9)), (ELASTIC, (4.1, 5.9))):
            for length in near:
                self.assertTrue(is_near(cut(duration_s=length), setup(topology)), length)
        # A process needs time to come to its deadline.
        self.assertTrue(is_near(cut(duration_s=39, at_start=True), setup(STAR)))

    def test_a_ring_is_heard_between_two_cuts(self):
        for topology, durations, pause in ((RING, (5.0, 40.0), 6.0), (RING, (9.0, 9.0), 0.0), (STAR, (5.0, 40.0), 0.0)):
            cuts = [cut(duration_s=duration) for duration in durations]
            self.assertEqual(pause_s(*cuts, setup(topology)), pause, (topology, durations))

    def test_the_packets(self):
        star = setup(STAR)
        self.assertEqual(cut().flows(star), [Flow(target=2), Flow(source=2)])
        self.assertEqual(cut(direction="to").flows(star), [Flow(target=2)])
        self.assertEqual(cut("firewall", other=1, direction="from").flows(star), [Flow(source=2, target=1)])
        self.assertEqual(cut("shard").flows(star),
                         [Flow(target=2, target_port=7077), Flow(source=2, source_port=7077)])


class EndTest(unittest.TestCase):

    def test_when_a_job_ends(self):
        for topology in TOPOLOGIES:
            self.assertIsNone(expected_end(cut(duration_s=23), setup(topology)))
            self.assertEqual(expected_end(cut(duration_s=37), setup(topology)) is None, topology == ELASTIC)
        ring = setup(RING)
        # Ranks dial each other until 0.9 of the join deadline of 30 s.
        self.assertIsNone(expected_end(cut("firewall", host=1, other=2, duration_s=16, at_start=True), ring))
        self.assertIsNotNone(expected_end(cut("firewall", host=1, other=2, duration_s=40, at_start=True), ring))
        self.assertIsNone(expected_end(cut("firewall", host=1, other=0, duration_s=16, at_start=True), ring))

    def test_who_is_blamed(self):
        for reason, names in (
                ("server 10.77.0.3:7077 (shard 2) cannot be reached for 30 s, bucket 0 of step 1 of rank 1 is not",
                 {"server 2"}),
                ("ranks 0, 3 have not contributed bucket 0 of step 58 within 30 s", {"rank 0", "rank 3"}),
                ("ranks 0, 3 have not contributed bucket 0 of step 58 within 30 s: rank 3 does not answer: when last "
                 "heard, 30.1 s ago, it was in forward of step 58", {"rank 3"}),
                ("ranks 0, 3 have not contributed bucket 0 of step 58 within 30 s, rank 3 has no connection to shard 0 "
                 "any more", {"rank 3"}),
                ("step 94, bucket 0 did not come within 30s (oldest in flight: step 94, bucket 0): ranks 1, 2 do not "
                 "answer", {"rank 1", "rank 2"}),
                ("step 94, bucket 0 did not come within 30s (oldest in flight: step 94, bucket 0): all ranks answer, "
                 "and wait too", set()),
                ("rank 2 cannot connect with rank 1 at 10.77.0.2:42319: connection timed out", {"rank 1"}),
                ("rank 2 did not find rank 0 at --rendezvous=10.77.0.1:7079 within 30s", {"rank 0"})):
            self.assertEqual(blamed(reason), names, reason)

    def test_who_passes_it_on(self):
        reason = "rank 2 (10.77.0.3:4) cannot be reached any more, connection timed out (ETIMEDOUT)"
        for before in ("worker 1: error: ", "worker 1: error: rank 0 gave up: ", "server 1: error: ",
                       "worker 3: error: server 10.77.0.2:7077: rank 1 gave up: ",
                       "server 1: error: rank 2 gave up: server 10.77.0.1:7077: rank 0 gave up: ",
                       "worker 3: error: rank 0 (10.77.0.1:7079) says: rank 2 (10.77.0.3:46195) says: "):
            self.assertEqual(reason_of(before + reason), reason)
        self.assertEqual(reason_of("worker 0: stuck for 4.0 s"), "")
        unreachable = "server 10.77.0.3:7077 (shard 2) cannot be reached for 30 s"
        self.assertEqual(reason_of("worker 1: error: " + unreachable), unreachable)

    def faults(self, line, name="rank 1", code=3, ended_s=31.0, topology=RING, **fields):
        return faults_of_end(name, code, ended_s, line, cut(**fields), setup(topology))

    def test_an_end_as_computed(self):
        lost = "worker 1: error: rank %d (10.77.0.3:4) cannot be reached any more, connection timed out (ETIMEDOUT)"
        self.assertEqual(self.faults(lost % 2), [])
        self.assertEqual(self.faults("worker 2: error: rank 0 gave up: " + (lost % 1)[17:], name="rank 2"), [])
        star = ("worker 1: error: server 10.77.0.3:7077 (shard 2) cannot be reached for 30 s, bucket 0 of step 1 of "
                "rank 1 is not answered: failed to connect")
        self.assertEqual(self.faults(star, topology=STAR), [])
        for fault, line, fields in (("names rank 0", lost % 0, {}),
                                    ("names rank 2", lost % 2, {"name": "rank 2"}),
                                    ("names rank 3", lost % 3, {"kind": "firewall", "other": 1}),
                                    ("another reason", star, {}),
                                    ("another reason: none", "", {}),
                                    ("exit code 1", lost % 2, {"code": 1}),
                                    ("not between", lost % 2, {"ended_s": 10.0}),
                                    ("not between", lost % 2, {"ended_s": 60.0}),
                                    ("has not ended", lost % 2, {"code": None})):
            found = self.faults(line, **fields)
            self.assertEqual(len(found), 1, found)
            self.assertIn(fault, found[0])
        # In one direction each side may be the one that hears nothing.
        self.assertEqual(self.faults(lost % 0, direction="to"), [])
        # A server that nobody tells may take longer.
        gone = "server 0: error: rank 2 is gone: it has had no connection to shard 0 for 30 s"
        self.assertEqual(self.faults(gone, name="server 0", topology=STAR, ended_s=80.0), [])
        # A server to which no worker came, because another one was out of reach, has nothing to name.
        start = {"topology": STAR, "at_start": True}
        self.assertEqual(self.faults("server 3: error: no worker has joined within 30s", name="server 3", **start), [])
        found = self.faults("worker 3: error: no worker has joined within 30s", name="rank 3", **start)
        self.assertEqual(len(found), 1)


class LogTest(unittest.TestCase):

    def test_the_table(self):
        with tempfile.TemporaryDirectory() as folder:
            log = Log(os.path.join(folder, "log"))
            for duration_s, ends_s, faults in ((2.0, [], []), (4.0, [], []), (70.0, [30.5, 36.0], []),
                                               (40.0, [31.0, 33.0], ["rank 1 names rank 0"])):
                fields = dataclasses.asdict(cut(duration_s=duration_s, at_start=duration_s == 2.0))
                log.add("event", topology=STAR, seed=1, job=0, expects_end=bool(ends_s), ends_s=ends_s, faults=faults,
                        next_step_s=None if ends_s else duration_s + 1, **fields)
            log.add("job", topology=STAR, seed=1, job=0, outcome="error")
            text = summary(log)
        self.assertIn("| star, host, both ways | 4 | 2 | 3.00 | 5.00 | 5.00 | 2 | 30.5 | 36.0 | 3 |", text)
        self.assertIn("| star, of these before the start | 1 | 1 | 3.00 | 3.00 | 3.00 | 0 | - | - | 1 |", text)
        self.assertIn("4 cuts, 2 of them shorter than 5 s and 1 longer than 60 s, in 1 jobs: 0 wrong digests, 1 ends "
                      "or goings-on that were not as computed, 0 other failures", text)


if __name__ == "__main__":
    unittest.main()
