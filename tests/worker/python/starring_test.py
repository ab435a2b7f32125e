"""libstarring.so as a program has it that opens it at run time: what it exports and needs, and groups of processes that
add, disagree, fork, are killed and are stopped."""

import contextlib
import ctypes
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import time
import unittest
from collections.abc import Callable, Iterator
from typing import Any, Optional

LIBRARY = os.environ.get("STARRING_LIBRARY") or os.path.join(
    os.environ.get("TEST_SRCDIR", ""), os.environ.get("TEST_WORKSPACE", ""), "worker/python/libstarring.so")
OK, TIMEOUT, INVALID, PEER, INTERNAL = range(5)
STAR, RING = range(2)
FLOAT32 = 0
DEADLINE_S = 60

# Libraries that any process has, and libraries of the wheel: Abseil, whose namespace has its version, and zlib, whose
# interface has not changed for decades. Before glibc 2.34 the functions of libdl and libpthread were not in libc.
NEEDED = r"lib(absl_\w+|c|dl|m|gcc_s|pthread|stdc\+\+|z)\.so[.\d]*|ld-linux-x86-64\.so\.2"

Changes = dict[str, Any]  # of options

processes = multiprocessing.get_context("spawn")


class Options(ctypes.Structure):
    """st_options."""
    _fields_ = [("struct_bytes", ctypes.c_uint32), ("rank", ctypes.c_int32), ("world_size", ctypes.c_int32),
                ("server_count", ctypes.c_int32), ("topology", ctypes.c_int32), ("rendezvous", ctypes.c_char_p),
                ("listener", ctypes.c_int32), ("port_range", ctypes.c_char_p), ("group_name", ctypes.c_char_p),
                ("token", ctypes.c_char_p), ("insecure", ctypes.c_int32), ("join_deadline_s", ctypes.c_double),
                ("exchange_deadline_s", ctypes.c_double), ("stall_report_s", ctypes.c_double),
                ("say", ctypes.c_void_p), ("say_context", ctypes.c_void_p), ("gpu_memory", ctypes.c_int32),
                ("gpu", ctypes.c_int32), ("gpu_bytes", ctypes.c_int64)]


def options(rank: int, world_size: int, address: str, **changes: Any) -> Options:
    made = Options(ctypes.sizeof(Options), rank, world_size, 0, STAR, address.encode(), -1, None, b"test", None, 0,
                   20.0, 20.0, 4.0, None, None, 0, -1, 0)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


class Failure(Exception):
    """A code other than OK, and the sentence."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(code, sentence)
        self.code, self.sentence = code, sentence


class Group:
    """A group, with an exception for every code that is an error."""

    def __init__(self, given: Options) -> None:
        self.library = load()
        self.handle = ctypes.c_void_p()
        check(self.library, self.library.st_open(ctypes.byref(given), ctypes.byref(self.handle)))

    def begin(self, array: Any, step: int = 0, bucket: int = 0) -> int:
        ticket = ctypes.c_int64()
        check(self.library, self.library.st_allreduce(self.handle, step, bucket, 0, array, len(array), FLOAT32, 1.0,
                                                      ctypes.byref(ticket)))
        return ticket.value

    def wait(self, ticket: int) -> None:
        while True:
            code = self.library.st_wait(self.handle, ticket, 100)
            if code != TIMEOUT:
                return check(self.library, code)

    def add(self, array: Any, step: int = 0, bucket: int = 0) -> None:
        self.wait(self.begin(array, step, bucket))

    def abort(self, why: str) -> None:
        check(self.library, self.library.st_abort(self.handle, why.encode()))

    def close(self) -> None:
        check(self.library, self.library.st_close(self.handle))


def load() -> Any:
    library = ctypes.CDLL(LIBRARY)
    library.st_last_error.restype = ctypes.c_char_p
    library.st_allreduce.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_uint64, ctypes.c_void_p,
                                     ctypes.c_int64, ctypes.c_int32, ctypes.c_float, ctypes.c_void_p]
    library.st_wait.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    return library


def check(library: Any, code: int) -> None:
    if code != OK:
        raise Failure(code, library.st_last_error(None).decode())


def floats(values: list[float]) -> Any:
    return (ctypes.c_float * len(values))(*values)


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


# ---- The work of the processes. Each function gets its group, and returns the value for the test.


def adds_integers(group: Group, rank: int) -> list[float]:
    sums: list[float] = []
    # Arrays of other lengths in every step; the last ones are under way together.
    for step, count in enumerate((1, 1000, 300_000)):
        array = floats([float(rank + i % 100) for i in range(count)])
        group.add(array, step)
        sums += [array[0], array[count - 1]]
    arrays = [floats([float(rank + bucket)] * 50_000) for bucket in range(3)]
    tickets = [group.begin(array, 3, bucket) for bucket, array in enumerate(arrays)]
    for ticket, array in zip(tickets, arrays):
        group.wait(ticket)
        sums += [array[0], array[49_999]]
    return sums


def adds_for_ever(group: Group, rank: int) -> None:
    del rank
    array = floats([0.0] * 100_000)
    step = 0
    while True:
        group.add(array, step)
        step += 1


def disagrees(group: Group, rank: int) -> None:
    group.add(floats([1.0] * (100 + rank // 2)), 12, 3)


def aborts(group: Group, rank: int) -> None:
    if rank == 1:
        group.abort("the loss is not a number")
    adds_for_ever(group, rank)


def closes_with_a_ticket(group: Group, rank: int) -> None:
    if rank == 1:
        # The array is long enough to be under way still, unless this process gets no core for a while.
        array = floats([0.0] * 1_000_000)
        group.begin(array)
        group.close()
        return
    array = floats([0.0] * 1_000_000)
    while True:
        group.add(array)


def forks(group: Group, rank: int) -> list[float]:
    array = floats([1.0])
    group.add(array)
    child = os.fork()
    if child == 0:
        codes = []
        for call in (lambda: group.add(array), lambda: group.wait(1), lambda: group.abort("no"), group.close):
            try:
                call()
                codes.append(OK)
            except Failure as failure:
                codes.append(failure.code if "belongs to process" in failure.sentence else INTERNAL)
        # A child may have groups of its own.
        own = Group(options(0, 1, ""))
        own.add(array)
        own.close()
        os._exit(0 if codes == [INVALID] * 4 else 1)
    _, status = os.waitpid(child, 0)
    group.add(array, 1)
    return [float(status), array[0]]


def adds_beside_a_child(group: Group, rank: int) -> None:
    """Like a process with a DataLoader, whose workers outlive it for a while if it is killed."""
    os.setpgid(0, 0)  # for the test, which ends the child
    if os.fork() == 0:
        time.sleep(DEADLINE_S)
        os._exit(0)
    adds_for_ever(group, rank)


def run_process(role: Callable[[Group, int], Any], given: dict[str, Any], results: Any) -> None:
    """One process: a rank that does what `role` says, or a server."""
    rank = given["rank"]
    try:
        made = options(**given)
        if rank >= given["world_size"]:
            library = load()
            check(library, library.st_serve(ctypes.byref(made)))
            results.put((rank, OK, None))
            return
        group = Group(made)
        results.put((rank, None, None))  # it is open
        outcome = role(group, rank)
        if role is not closes_with_a_ticket:
            group.close()
        results.put((rank, OK, outcome))
    except Failure as failure:
        results.put((rank, failure.code, failure.sentence))


class Job:
    """The processes of a group."""

    def __init__(self, role: Callable[[Group, int], Any], world_size: int, **changes: Any) -> None:
        self.world_size, self.results = world_size, processes.Queue()
        self.outcomes: dict[int, tuple[int, Any]] = {}
        self.open_count = 0
        per_rank = changes.pop("per_rank", {})
        address = free_address()
        self.processes = []
        for rank in range(world_size + changes.get("server_count", 0)):
            given = {"rank": rank, "world_size": world_size, "address": address, **changes, **per_rank.get(rank, {})}
            self.processes.append(processes.Process(target=run_process, args=(role, given, self.results), daemon=True))
            self.processes[-1].start()

    def _take(self) -> None:
        rank, code, outcome = self.results.get(timeout=DEADLINE_S)
        if code is None:
            self.open_count += 1
        else:
            self.outcomes[rank] = (code, outcome)

    def await_open(self) -> None:
        while self.open_count < self.world_size:
            self._take()

    def await_outcomes(self, count: Optional[int] = None) -> dict[int, tuple[int, Any]]:
        while len(self.outcomes) < (len(self.processes) if count is None else count):
            self._take()
        return self.outcomes

    def send(self, rank: int, number: int) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join(DEADLINE_S)


@contextlib.contextmanager
def job(role: Callable[[Group, int], Any], world_size: int, **changes: Any) -> Iterator[Job]:
    started = Job(role, world_size, **changes)
    try:
        yield started
    finally:
        started.end()


class FileTest(unittest.TestCase):
    """The library as a file."""

    def test_exports_its_interface_alone(self) -> None:
        listing = subprocess.run(["nm", "--dynamic", "--defined-only", LIBRARY], capture_output=True, text=True,
                                 check=True).stdout
        names = {line.split()[-1] for line in listing.splitlines()}
        self.assertEqual({name for name in names if not name.startswith("st_")}, set())
        interface = {"st_open", "st_serve", "st_allreduce", "st_wait", "st_last_error", "st_abort", "st_close"}
        self.assertLessEqual(interface, names)

    def test_needs_no_library_that_a_process_may_have_in_another_version(self) -> None:
        listing = subprocess.run(["readelf", "--dynamic", "--wide", LIBRARY], capture_output=True, text=True,
                                 check=True).stdout
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", listing)
        self.assertIn("libc.so.6", needed)
        self.assertEqual([name for name in needed if not re.fullmatch(NEEDED, name)], [])


class SumTest(unittest.TestCase):
    """Groups that go well, and those that are refused."""

    def test_integers_are_exact(self) -> None:
        cases: list[tuple[int, Changes]] = [(1, {}), (2, {}), (3, {"topology": RING}), (2, {"server_count": 1}),
                                            (3, {"server_count": 2})]
        for world_size, changes in cases:
            with self.subTest(world_size=world_size, **changes), job(adds_integers, world_size, **changes) as ranks:
                of_ranks = world_size * (world_size - 1) / 2
                last = [0.0, 99.0, 99.0]  # i % 100 of the last element
                expected = [value for i in last for value in (of_ranks, of_ranks + world_size * i)]
                expected += [of_ranks + world_size * bucket for bucket in range(3) for _ in range(2)]
                outcomes = ranks.await_outcomes()
                for rank in range(world_size):
                    self.assertEqual(outcomes[rank], (OK, expected))
                for server in range(world_size, len(outcomes)):
                    self.assertEqual(outcomes[server], (OK, None))

    def test_ranks_that_disagree_all_learn_both_values(self) -> None:
        cases: list[Changes] = [{}, {"topology": RING}, {"server_count": 1}]
        for changes in cases:
            with self.subTest(**changes), job(disagrees, 3, **changes) as ranks:
                outcomes = ranks.await_outcomes()
                for rank in range(3):
                    code, sentence = outcomes[rank]
                    self.assertEqual(code, INVALID, sentence)
                    for part in ("rank 2 adds 101 elements in step 12, bucket 3", "adds 100 elements"):
                        self.assertIn(part, sentence)

    def test_a_group_belongs_to_its_process(self) -> None:
        with job(forks, 2) as ranks:
            self.assertEqual(ranks.await_outcomes(), {0: (OK, [0.0, 4.0]), 1: (OK, [0.0, 4.0])})

    def test_different_groups_tokens_and_topologies_are_refused(self) -> None:
        cases: list[tuple[Changes, str]] = [({"group_name": b"another"}, "another"), ({"token": b"x" * 32}, "token"),
                                            ({"topology": RING}, "rank 1 opens a ring, rank 0 a star")]
        for other, words in cases:
            with self.subTest(words), job(adds_integers, 2, join_deadline_s=5.0, per_rank={1: other}) as ranks:
                code, sentence = ranks.await_outcomes()[1]
                self.assertIn(code, (INVALID, PEER))
                self.assertIn(words, sentence)
                self.assertNotIn("--", sentence)  # a flag, which this user has not

    def test_a_range_of_ports_that_is_used_up_is_named(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            other = {"port_range": b"%d-%d" % (port, port)}
            with job(adds_integers, 2, join_deadline_s=5.0, per_rank={1: other}) as ranks:
                code, sentence = ranks.await_outcomes()[1]
        self.assertEqual(code, INVALID)
        self.assertIn(f"no port from {port} to {port} is free: end what listens there, or widen port_range", sentence)
        self.assertNotIn("--", sentence)

    def test_wrong_options_are_refused_with_their_values(self) -> None:
        cases: list[tuple[Changes, str]] = [
            ({"struct_bytes": 12}, "12 bytes"), ({"rank": 2}, "rank 2"), ({"rank": -1}, "rank -1"),
            ({"topology": 5}, "topology 5"), ({"topology": RING, "server_count": 1}, "a ring has no servers"),
            ({"rank": 1, "listener": 0}, "rank 0 listens"), ({"join_deadline_s": 0.0}, "join_deadline_s"),
            ({"exchange_deadline_s": float("nan")}, "exchange_deadline_s"), ({"rendezvous": b"nowhere"}, "nowhere"),
            ({"rendezvous": None}, "rendezvous"), ({"rendezvous": b"192.0.2.1:80"}, "without a token"),
            ({"group_name": None}, "group_name"), ({"world_size": 0}, "0 ranks"),
            ({"port_range": b"7000"}, 'port_range is "7000": it must be: first-last, such as 7000-7100'),
            ({"world_size": 2**31 - 1, "server_count": 1}, "1 servers: at most")]
        for changes, words in cases:
            given: Changes = {"rank": 0, "world_size": 2, "address": "127.0.0.1:1", **changes}
            if "listener" in changes:
                given["listener"] = os.dup(0)  # which the library closes
            with self.subTest(**changes), self.assertRaises(Failure) as refused:
                Group(options(**given))
            self.assertEqual(refused.exception.code, INVALID)
            self.assertIn(words, refused.exception.sentence)
        library = load()
        self.assertEqual([library.st_close(None), library.st_abort(None, b""), library.st_wait(None, 1, 0)],
                         [OK, INVALID, INVALID])

    def test_wrong_calls_are_refused_and_break_nothing(self) -> None:
        group = Group(options(0, 1, ""))
        array = floats([1.0, 2.0])
        ticket = ctypes.c_int64()
        place = ctypes.addressof(array)
        for step, bucket, data, count, kind, divisor, words in (
                (-1, 0, place, 2, 0, 1.0, "step -1"), (0, -1, place, 2, 0, 1.0, "bucket -1"),
                (0, 0, None, 2, 0, 1.0, "null"), (0, 0, place, -2, 0, 1.0, "-2 elements"),
                (0, 0, place, 2, 9, 1.0, "type 9"), (0, 0, place, 2, 0, 0.0, "divisor 0"),
                (0, 0, place + 2, 1, 0, 1.0, "aligned")):
            code = group.library.st_allreduce(group.handle, step, bucket, 0, data, count, kind, divisor,
                                              ctypes.byref(ticket))
            self.assertEqual(code, INVALID)
            self.assertIn(words, group.library.st_last_error(group.handle).decode())
        group.add(array)
        self.assertEqual(list(array), [1.0, 2.0])
        group.close()


class FaultTest(unittest.TestCase):
    """Ranks and servers that are missing, killed or stopped."""

    def assert_named(self, outcome: tuple[int, Any], name: str) -> None:
        self.assertEqual(outcome[0], PEER, outcome)
        self.assertIn(name, outcome[1])

    def test_a_rank_that_is_missing_at_the_start_is_named(self) -> None:
        with self.assertRaises(Failure) as missing:
            Group(options(0, 2, free_address(), join_deadline_s=1.0))
        self.assert_named((missing.exception.code, missing.exception.sentence), "rank 1")

    def test_a_killed_process_ends_all_waits_at_once(self) -> None:
        cases: list[tuple[Changes, int, str]] = [({}, 1, "rank 1"), ({"topology": RING}, 1, "rank 1"),
                                                 ({"server_count": 1}, 1, "rank 1"),
                                                 ({"server_count": 1}, 3, "server 0")]
        for changes, victim, name in cases:
            with self.subTest(victim=victim, **changes), job(adds_for_ever, 3, **changes) as ranks:
                ranks.await_open()
                time.sleep(0.2)
                started = time.monotonic()
                ranks.send(victim, signal.SIGKILL)
                outcomes = ranks.await_outcomes(len(ranks.processes) - 1)
                self.assertLess(time.monotonic() - started, 15)
                for rank in range(3):
                    if rank != victim:
                        self.assert_named(outcomes[rank], name)

    def test_a_killed_process_is_noticed_although_its_children_go_on(self) -> None:
        cases: list[Changes] = [{}, {"topology": RING}, {"server_count": 1}]
        for changes in cases:
            with self.subTest(**changes), job(adds_beside_a_child, 2, **changes) as ranks:
                ranks.await_open()
                time.sleep(0.2)
                started = time.monotonic()
                ranks.send(1, signal.SIGKILL)
                try:
                    outcomes = ranks.await_outcomes(len(ranks.processes) - 1)
                    self.assertLess(time.monotonic() - started, 8)
                    self.assert_named(outcomes[0], "rank 1")
                finally:
                    for process in ranks.processes[:2]:
                        assert process.pid is not None
                        os.killpg(process.pid, signal.SIGKILL)

    def test_a_stopped_process_ends_all_waits_within_the_deadline(self) -> None:
        cases: list[tuple[Changes, int, str]] = [({}, 1, "rank 1 does not answer"),
                                                 ({"topology": RING}, 1, "rank 1 does not answer"),
                                                 ({"server_count": 1}, 3, "server 0 does not answer")]
        for changes, victim, name in cases:
            with self.subTest(victim=victim, **changes), \
                    job(adds_for_ever, 3, exchange_deadline_s=2.0, **changes) as ranks:
                ranks.await_open()
                time.sleep(0.2)
                started = time.monotonic()
                ranks.send(victim, signal.SIGSTOP)
                outcomes = ranks.await_outcomes(len(ranks.processes) - 1)
                self.assertLess(time.monotonic() - started, 15)
                for rank in range(3):
                    if rank != victim:
                        self.assert_named(outcomes[rank], name)
                ranks.send(victim, signal.SIGCONT)
                self.assertEqual(ranks.await_outcomes()[victim][0], PEER)

    def test_a_reason_to_abort_reaches_all(self) -> None:
        with job(aborts, 3, server_count=1) as ranks:
            outcomes = ranks.await_outcomes()
            for rank in range(4):
                self.assert_named(outcomes[rank], "the loss is not a number")

    def test_closing_with_a_ticket_under_way_ends_the_waits_of_the_others(self) -> None:
        with job(closes_with_a_ticket, 3) as ranks:
            outcomes = ranks.await_outcomes()
            self.assertEqual(outcomes[1][0], OK)
            for rank in (0, 2):
                self.assert_named(outcomes[rank], "rank 1")


if __name__ == "__main__":
    unittest.main()
