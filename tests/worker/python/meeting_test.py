"""Tests how ranks meet: what they compare, the address at which they meet, and who is named as missing."""

import collections
import datetime
import importlib.util
import os
import socket
import sys
import tempfile
import threading
import time
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


class Attempt:
    """Ranks as threads, which meet over a store as the processes of one attempt to start a job do."""

    def __init__(self, size, store, deadline_s=0.5, number=None):
        self.size, self.store, self.deadline_s = size, store, deadline_s
        # One torchrun numbers its attempts; otherwise nothing does.
        self.environment = {} if number is None else {"GROUP_WORLD_SIZE": "1",
                                                      "TORCHELASTIC_RESTART_COUNT": str(number)}
        self.found = {}
        self.threads = []

    def begin(self, number, make=lambda found: {"count": len(found)}, **wanted):
        """Begins to meet as rank `number`."""
        with mock.patch.object(dist, "get_rank", return_value=number), \
             mock.patch.object(dist, "get_world_size", return_value=self.size), \
             mock.patch.object(_meeting.distributed_c10d, "get_process_group_ranks",
                               return_value=list(range(self.size))), \
             mock.patch.object(_meeting.distributed_c10d, "_get_default_store", return_value=self.store()), \
             mock.patch.object(_meeting, "_meetings", collections.Counter()):
            meeting = _meeting.Meeting(object(), self.deadline_s)

        def take_part():
            try:
                self.found[number] = meeting.decide(rank(**wanted), make)
            except StarringError as error:
                self.found[number] = str(error)
        # The environment is that of the process, so it must hold when decide() reads it, and no other attempt's may.
        with mock.patch.dict(os.environ, self.environment):
            for name in ("GROUP_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"):
                if name not in self.environment:
                    os.environ.pop(name, None)
            begun = threading.Event()
            real = _meeting.StoreMeeting.decide

            def decide(*arguments):
                begun.set()
                return real(*arguments)
            with mock.patch.object(_meeting.StoreMeeting, "decide", decide):
                self.threads.append(threading.Thread(target=take_part))
                self.threads[-1].start()
                if not begun.wait(10.0):
                    raise AssertionError(f"rank {number} has not begun to meet after 10 s")

    def end(self):
        """What each rank has got: a decision, or a sentence."""
        for thread in self.threads:
            thread.join(10.0)
            if thread.is_alive():
                raise AssertionError(f"a rank has not ended after 10 s, only {sorted(self.found)} have")
        return self.found


class MeetingTest(unittest.TestCase):
    """Ranks as threads over one store."""

    def decide(self, size, ranks, make=lambda found: {"count": len(found)}, refusals=()):
        store = dist.HashStore()
        attempt = Attempt(size, lambda: store)
        for number in ranks:
            attempt.begin(number, make, refusal=dict(refusals).get(number))
        return attempt.end()

    def setUp(self):
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


class RestartTest(unittest.TestCase):
    """The store outlives the ranks, and has the keys of an earlier attempt."""

    def setUp(self):
        patch = mock.patch.object(_meeting, "_GRACE_S", 0.2)
        patch.start()
        self.addCleanup(patch.stop)
        self.server = dist.TCPStore("127.0.0.1", 0, 1, True, datetime.timedelta(seconds=10))

    def store(self):
        """A connection of its own for each rank, as each process has one."""
        return dist.PrefixStore("default_pg", dist.TCPStore("127.0.0.1", self.server.port, 1, False,
                                                            datetime.timedelta(seconds=10)))

    def attempt(self, size=2, deadline_s=5.0, number=None):
        return Attempt(size, self.store, deadline_s, number)

    def met(self, word, order, size=2, pause_s=0.0, **more):
        attempt = self.attempt(size, **more)
        for number in order:
            attempt.begin(number, lambda _: {"word": word}, sync=word)
            time.sleep(pause_s)
        return attempt.end()

    def test_an_old_decision_is_not_believed(self):
        # Other ranks than 0 come first, and find all keys of a whole meeting. Registrations differ between attempts.
        for attempt, order in enumerate([[0, 1, 2], [2, 1, 0], [1, 0, 2], [0, 2, 1]]):
            word = f"attempt {attempt}"
            self.assertEqual(self.met(word, order, 3, pause_s=0.1), {number: {"word": word} for number in range(3)})

    def test_nor_one_of_an_attempt_that_is_numbered(self):
        for number in range(3):
            word = f"attempt {number}"
            self.assertEqual(self.met(word, [1, 0], number=number), {rank: {"word": word} for rank in range(2)})

    def test_an_old_refusal_is_not_believed(self):
        attempt = self.attempt()
        attempt.begin(0)
        attempt.begin(1, refusal="no")
        self.assertEqual(set(attempt.end().values()), {"rank 1: no"})
        self.assertEqual(self.met("again", [1, 0], pause_s=0.1), {0: {"word": "again"}, 1: {"word": "again"}})

    def test_an_attempt_that_ended_before_its_decision(self):
        for order in ([0], [1], [1, 2], [0, 2]):  # then these were there when all were killed
            attempt = self.attempt(3, deadline_s=0.1)
            for number in order:
                attempt.begin(number)
            attempt.end()
            self.assertEqual(self.met("again", [2, 1, 0], 3, pause_s=0.05), {n: {"word": "again"} for n in range(3)})

    def test_a_rank_that_outlived_its_attempt_stays_out_of_the_next(self):
        old = self.attempt(number=0, deadline_s=1.0)
        old.begin(1)
        self.assertEqual(self.met("new", [0, 1], number=1), {0: {"word": "new"}, 1: {"word": "new"}})
        self.assertRegex(old.end()[1], "^rank 0 is missing")

    def test_two_processes_of_one_rank_are_a_sentence(self):
        attempt = self.attempt(3)
        attempt.begin(0)
        attempt.begin(1)
        time.sleep(0.2)
        other = self.attempt(3, deadline_s=0.1)
        other.begin(1)
        self.assertRegex(other.end()[1], "another process has registered as rank 1: look for processes of this job")
        attempt.begin(2)
        self.assertEqual(attempt.end(), {number: {"count": 3} for number in range(3)})

    def test_two_processes_of_rank_0_are_a_sentence(self):
        old, new = self.attempt(), self.attempt()
        old.begin(0)
        time.sleep(0.2)
        new.begin(0)
        self.assertRegex(old.end()[0], "^another process has called starring.torch.attach as rank 0: .*end them")
        new.begin(1)
        self.assertEqual(new.end(), {0: {"count": 2}, 1: {"count": 2}})

    def test_who_is_missing_after_a_restart(self):
        self.met("old", [0, 1])
        attempt = self.attempt(deadline_s=0.3)
        attempt.begin(1)
        self.assertRegex(attempt.end()[1], "^rank 0 is missing: starring.torch.attach was not called .* within 0.3 s")
        attempt = self.attempt(deadline_s=0.3)
        attempt.begin(0)
        self.assertRegex(attempt.end()[0], "^rank 1 is missing")
        attempt = self.attempt(deadline_s=0.3)
        attempt.begin(1)
        self.assertRegex(attempt.end()[1], "^rank 0 is missing.* An earlier rank 0 gave up: rank 1 is missing")


class FreshStoreTest(unittest.TestCase):
    """fresh_store(), for a process group over a store that outlives it."""

    def setUp(self):
        self.server = dist.TCPStore("127.0.0.1", 0, 1, True, datetime.timedelta(seconds=10))

    def stores(self, size=2, ranks=(0, 1), deadline_s=5.0):
        found = {}

        def take_part(number):
            try:
                found[number] = plug.fresh_store(deadline_s)
            except StarringError as error:
                found[number] = str(error)

        def rendezvous(url, rank, world_size, timeout):
            self.assertEqual((url, world_size, timeout.total_seconds()), ("env://", size, max(1, deadline_s)))
            yield dist.TCPStore("127.0.0.1", self.server.port, 1, False, timeout), rank, world_size
        # A rank's environment is that of its process, and so of its thread here.
        local = threading.local()
        real = os.environ.get

        def get(name, default=None):
            return {"RANK": str(local.number), "WORLD_SIZE": str(size), "GROUP_WORLD_SIZE": "2"}.get(
                name, real(name, default)) if hasattr(local, "number") else real(name, default)

        def run(number):
            local.number = number
            take_part(number)
        with mock.patch.object(dist, "rendezvous", rendezvous), \
             mock.patch.object(os.environ, "get", get), mock.patch.object(_meeting, "_GRACE_S", 0.2):
            threads = [threading.Thread(target=run, args=[number]) for number in ranks]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10.0)
                self.assertFalse(thread.is_alive(), "a rank has not ended after 10 s")
        return found

    def test_ranks_share_it_and_it_has_no_old_keys(self):
        for attempt in range(3):
            stores = self.stores()
            self.assertEqual(stores[1].add("seen", 0), 0)
            stores[0].add("seen", 1)
            stores[0].set("address", f"attempt {attempt}")
            self.assertEqual(stores[1].get("address"), b"attempt %d" % attempt)
            self.assertEqual(stores[1].add("seen", 0), 1)
            # new_group() waits for keys of ranks that come later; the deadline was for the meeting alone.
            self.assertEqual(stores[0].timeout, datetime.timedelta(minutes=30))

    def test_a_missing_rank_is_a_sentence(self):
        self.assertRegex(self.stores(ranks=[0], deadline_s=0.3)[0],
                         "^rank 1 is missing: starring.torch.fresh_store was not called there within 0.3 s.*or give "
                         "starring.torch.fresh_store\\(..., deadline_s=...\\)")

    def test_a_store_that_is_not_there_is_a_sentence(self):
        with mock.patch.object(dist, "rendezvous", side_effect=RuntimeError("refused")), \
             mock.patch.dict(os.environ, RANK="0", WORLD_SIZE="2", MASTER_ADDR="there", MASTER_PORT="7"):
            with self.assertRaisesRegex(StarringError, "rank 0 of 2 .* never reached the store at there:7: refused"):
                plug.fresh_store(0.5)
        with mock.patch.dict(os.environ, RANK="", WORLD_SIZE="2"):
            with self.assertRaisesRegex(StarringError, "RANK and WORLD_SIZE, which are '' and '2': start the"):
                plug.fresh_store(0.5)


class HintTest(unittest.TestCase):
    """A rank that torchrun has started again, and whose process group does not come."""

    RESTARTED = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2", "RANK": "1"}

    def hints(self, environment, fresh_stores=0, initialized=False):
        with mock.patch.dict(os.environ, environment), mock.patch.object(plug, "_GROUP_S", 0.01), \
             mock.patch.object(plug, "_fresh_stores", fresh_stores), mock.patch.object(plug, "_LOG") as log, \
             mock.patch.object(dist, "is_initialized", return_value=initialized):
            timer = plug._watch_restart()
            if timer is not None:
                timer.join(10.0)
                self.assertFalse(timer.is_alive())
        return [call.args[0] % call.args[1:] for call in log.warning.call_args_list]

    def test_it_says_what_to_do(self):
        said = self.hints(self.RESTARTED)
        self.assertEqual(len(said), 1)
        self.assertRegex(said[0], "^rank 1, attempt 2 of torchrun: no process group 0.01 s after .*fresh_store")

    def test_else_nothing(self):
        self.assertEqual(self.hints(self.RESTARTED, initialized=True), [])
        self.assertEqual(self.hints(self.RESTARTED, fresh_stores=1), [])
        self.assertEqual(self.hints({**self.RESTARTED, "TORCHELASTIC_RESTART_COUNT": "0"}), [])
        self.assertEqual(self.hints({**self.RESTARTED, "TORCHELASTIC_USE_AGENT_STORE": "False"}), [])


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
