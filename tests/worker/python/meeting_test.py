"""Tests how ranks meet: what they compare, the address at which they meet, and who is named as missing."""

import collections
import importlib.util
import os
import socket
import sys
import tempfile
import threading
import unittest
from unittest import mock

if importlib.util.find_spec("torch") is None:
    print("SKIPPED: this python3 has no torch, so nothing of starring.torch was tested", file=sys.stderr)
    sys.exit(0)

import torch.distributed as dist

from starring import _address, _control, _meeting
from starring import torch as plug
from starring._library import StarringError


def rank(host="a", name="here", refusal=None, **more):
    return {"refusal": refusal, "host": host, "name": name, "sync": "star", "servers": [], **more}


class CompareTest(unittest.TestCase):
    def test_equal_ranks_agree(self):
        self.assertIsNone(_meeting.disagreement([rank(), rank(host="b", name="there")]))

    def test_both_values_are_named(self):
        self.assertEqual(_meeting.disagreement([rank(), rank(), rank(sync="ring")]),
                         "rank 2 has sync=ring, rank 0 has sync=star: give all ranks the same sync")
        self.assertRegex(_meeting.disagreement([rank(), rank(later=1)]), "rank 1 has later=1, rank 0 has later=None")

    def test_a_refusal_comes_first(self):
        self.assertEqual(_meeting.disagreement([rank(), rank(sync="ring"), rank(refusal="no")]), "rank 2: no")


class AddressTest(unittest.TestCase):
    def setUp(self):
        patch = mock.patch.dict(os.environ)
        patch.start()
        self.addCleanup(patch.stop)
        os.environ.pop("MASTER_ADDR", None)

    def test_one_host_meets_on_its_loopback(self):
        self.assertEqual(_meeting.listening_host([rank(), rank()], []), "127.0.0.1")
        self.assertEqual(_meeting.listening_host([rank(), rank()], ["127.0.0.1:7", "localhost:8"]), "127.0.0.1")

    def test_several_hosts_meet_at_the_masters_address(self):
        os.environ["MASTER_ADDR"] = "10.0.0.1"
        with mock.patch.object(_meeting, "_is_own_address", side_effect=lambda host: host == "10.0.0.1"):
            self.assertEqual(_meeting.listening_host([rank(), rank(host="b")], []), "10.0.0.1")
            self.assertEqual(_meeting.listening_host([rank(), rank()], ["10.0.0.9:7"]), "10.0.0.1")

    def test_addresses_of_ipv6_too(self):
        os.environ["MASTER_ADDR"] = "fd00::1"
        with mock.patch.object(_meeting, "_is_own_address", side_effect=lambda host: host == "fd00::1"):
            self.assertEqual(_meeting.listening_host([rank(), rank(host="b")], []), "fd00::1")
            self.assertEqual(_meeting.listening_host([rank(), rank()], ["[fd00::9]:7"]), "fd00::1")
        self.assertEqual(_meeting.listening_host([rank(), rank()], ["[::1]:7"]), "127.0.0.1")
        os.environ["MASTER_ADDR"] = "192.0.2.1"  # of another host
        with mock.patch.object(_meeting, "_is_own_address", return_value=True):
            with mock.patch.object(_meeting._address, "own_address_towards", return_value="fd00::1"):
                with mock.patch.object(_meeting.socket, "getaddrinfo", return_value=[]):
                    self.assertEqual(_meeting.listening_host([rank(), rank(host="b", name="there")], []), "fd00::1")

    def test_or_where_this_host_reaches_another_from(self):
        os.environ["MASTER_ADDR"] = "10.0.0.1"  # of another host
        with mock.patch.object(_meeting, "_is_own_address", side_effect=lambda host: host == "127.0.0.1"):
            self.assertEqual(_meeting.listening_host([rank(), rank(host="b", name="localhost")], []), "127.0.0.1")

    def test_or_the_way_out_is_said(self):
        with mock.patch.object(_meeting, "_is_own_address", return_value=False):
            with self.assertRaisesRegex(StarringError, "which of its addresses there reach it: give.*address="):
                _meeting.listening_host([rank(), rank(host="b", name="there")], [])

    def test_the_loopback_is_no_address_for_others(self):
        self.assertFalse(_meeting._is_own_address("127.0.0.1"))
        self.assertFalse(_meeting._is_own_address("192.0.2.1"))

    def test_listens_on_a_free_port(self):
        listener, address = _meeting.listen("127.0.0.1", 4)
        with listener, socket.create_connection(listener.getsockname(), timeout=10):
            self.assertEqual(address, f"127.0.0.1:{listener.getsockname()[1]}")
        with self.assertRaisesRegex(StarringError, "cannot listen on 192.0.2.1"):
            _meeting.listen("192.0.2.1", 4)

    def test_hosts_are_told_apart(self):
        self.assertEqual(_meeting.host_identity(), _meeting.host_identity())
        self.assertIn("net:", _meeting.host_identity())


class MeetingTest(unittest.TestCase):
    """Ranks as threads over one store."""

    def decide(self, size, ranks, make=lambda found: {"count": len(found)}, refusals=()):
        store = dist.HashStore()
        found = {}

        def take_part(number):
            with self.lock:
                with mock.patch.object(dist, "get_rank", return_value=number), \
                     mock.patch.object(dist, "get_world_size", return_value=size), \
                     mock.patch.object(_meeting.distributed_c10d, "get_process_group_ranks",
                                       return_value=list(range(size))), \
                     mock.patch.object(_meeting.distributed_c10d, "_get_default_store", return_value=store), \
                     mock.patch.object(_meeting, "_meetings", collections.Counter()):
                    meeting = _meeting.Meeting(object(), 0.5)
            try:
                found[number] = meeting.decide(rank(refusal=dict(refusals).get(number)), make)
            except StarringError as error:
                found[number] = str(error)

        threads = [threading.Thread(target=take_part, args=[number]) for number in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    def setUp(self):
        self.lock = threading.Lock()
        patch = mock.patch.object(_meeting, "_GRACE_S", 0.5)
        patch.start()
        self.addCleanup(patch.stop)

    def test_all_get_rank_0s_decision(self):
        self.assertEqual(self.decide(3, [0, 1, 2]), {number: {"count": 3} for number in range(3)})

    def test_all_get_one_refusal(self):
        found = self.decide(3, [0, 1, 2], refusals=[(1, "no")])
        self.assertEqual(set(found.values()), {"rank 1: no"})

        def make(_):
            raise StarringError("rank 0 cannot listen")
        self.assertEqual(set(self.decide(3, [0, 1, 2], make).values()), {"rank 0 cannot listen"})

    def test_a_missing_rank_is_named_on_every_rank(self):
        found = self.decide(4, [0, 3])
        self.assertEqual(len(found), 2)
        for said in found.values():
            self.assertRegex(said, "^ranks 1, 2 are missing")
        for said in self.decide(3, [1, 2]).values():
            self.assertRegex(said, "^rank 0 is missing")


class RealStoreTest(unittest.TestCase):
    def test_a_group_of_one_meets_itself(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            for _ in range(2):
                meeting = _meeting.Meeting(dist.group.WORLD, 5.0)
                self.assertEqual(meeting.decide(rank(), lambda found: {"count": len(found)}), {"count": 1})
            with mock.patch.object(_meeting.distributed_c10d, "_get_default_store", return_value=None):
                meeting = _meeting.Meeting(dist.group.WORLD, 5.0)
            self.assertEqual(meeting.decide(rank(), lambda found: {"count": len(found)}), {"count": 1})
        finally:
            dist.destroy_process_group()
        with self.assertRaisesRegex(StarringError, "none of torch.distributed"):
            _meeting.Meeting(object(), 5.0)


class TokenTest(unittest.TestCase):
    """Rank 0 decides; what it decides is what the store gets. `forged` is what rank 1 reads there instead."""

    def connect(self, rank_number, secret_path, forged=None, **more):
        decided = []

        def decide(_, mine, make):
            decided.append(forged or make([mine]))
            return decided[0]
        fake = mock.Mock(rank=rank_number, world_size=2)
        fake.decide = lambda mine, make: decide(fake, mine, make)
        environment = {_control.SECRET_VARIABLE: secret_path} if secret_path else {}
        with mock.patch.dict(os.environ, environment), mock.patch.object(plug._library, "load"), \
             mock.patch.object(plug._meeting, "Meeting", return_value=fake), \
             mock.patch.object(plug._library, "Group", side_effect=lambda settings: settings):
            if not secret_path:
                os.environ.pop(_control.SECRET_VARIABLE, None)
            settings = plug.connect(object(), "ring", [], **more)
        if settings.listener >= 0:
            os.close(settings.listener)
        return decided[0], settings

    def test_the_token_of_ranks_with_a_secret_is_not_in_the_store(self):
        with tempfile.NamedTemporaryFile() as secret:
            secret.write(b"s")
            secret.flush()
            decision, settings = self.connect(0, secret.name)
            expected = _control.group_token(_control.load_secret(secret.name), decision["name"])
            self.assertEqual((decision["token"], settings.token), ("", expected))
            self.assertNotIn(expected.hex(), str(decision))
            # A stranger who writes a decision with a token of its own gets nobody to meet it.
            _, settings = self.connect(1, secret.name, {**decision, "token": "00" * 32})
            self.assertEqual(settings.token, expected)

    def test_without_a_secret_rank_0_makes_a_token(self):
        decision, settings = self.connect(0, None)
        self.assertEqual(bytes.fromhex(decision["token"]), settings.token)
        self.assertEqual(len(settings.token), 32)

    def test_ranks_listen_in_their_range(self):
        with _address.listen("127.0.0.1") as free:
            port = free.getsockname()[1]
        decision, settings = self.connect(0, None, port_range=f"{port}-{port}")
        self.assertEqual(decision["rendezvous"], f"127.0.0.1:{port}")
        self.assertEqual(settings.port_range, f"{port}-{port}")
        self.assertEqual(list(plug._wrong_arguments("ring", [], "7000")),
                         ["port_range='7000' is not first-last, such as 7000-7100, from 1 to 65535"])

    def test_a_secret_on_some_ranks_is_refused(self):
        self.assertRegex(_meeting.disagreement([rank(has_secret=True), rank(has_secret=False)]),
                         "set STARRING_JOB_SECRET on all ranks")


if __name__ == "__main__":
    unittest.main()
