"""Brings the ranks of a process group together before they have any connection of ours.

Rank 0 decides, the others follow. Each rank *registers*: it writes what it wants to the store of the process group.
Rank 0 reads all registrations, compares them, listens at an address, and writes its *decision*, which the others wait
for. Whoever reaches the store can read and write it. So the group's token is in it only if the ranks have no secret
from which each could derive it. A store, unlike a collective, shows who is missing; and a rank that cannot take
part registers why, so that all ranks refuse in the same words.

torchrun's store outlives a restart of the ranks, and so does every key in it. StoreMeeting tells old keys from new.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import secrets
import socket
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch.distributed as dist
from torch.distributed import distributed_c10d

from starring import _address, _control
from starring._library import StarringError

Registration = Dict[str, Any]
Decision = Dict[str, Any]

_POLL_S_MAX = 0.05
_GRACE_S = 5.0  # after the deadline, for rank 0's decision to arrive: rank 0 may have begun to wait later
_CALL, _DECISION = "call", "decision"
_UNCOMPARED = ("refusal", "host", "name")  # may differ between ranks
_WAYS_OUT = {"sync": "give all ranks the same sync", "servers": "give all ranks the same servers",
             "parameters": "wrap the same model on all ranks", "same_host": "give all ranks the same same_host",
             "has_secret": "set STARRING_JOB_SECRET on all ranks, to copies of one file, or on none"}
_meetings: Dict[str, int] = collections.defaultdict(int)  # held so far, by group: each has keys of its own


def host_identity() -> str:
    """Equal for two processes if they share one loopback: the same kernel and the same network namespace."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip() + os.readlink("/proc/self/ns/net")


def registration(refusal: Optional[str], **wanted: Any) -> Registration:
    """What this rank writes. `wanted` has to be equal on all ranks. `refusal` says why this rank cannot take part."""
    return {"refusal": refusal, "host": host_identity(), "name": socket.gethostname(), **wanted}


def disagreement(ranks: Sequence[Registration]) -> Optional[str]:
    """Why these ranks cannot be a group, or None."""
    for rank, mine in enumerate(ranks):
        if mine["refusal"]:
            return f"rank {rank}: {mine['refusal']}"
    for rank, mine in enumerate(ranks):
        for field, value in mine.items():
            if field not in _UNCOMPARED and value != ranks[0].get(field):
                return (f"rank {rank} has {field}={value}, rank 0 has {field}={ranks[0].get(field)}: "
                        f"{_WAYS_OUT.get(field, 'give all ranks the same arguments')}")
    return None


def _is_own_address(host: str) -> bool:
    try:
        with _address.listen(host):
            return not _address.is_loopback(host)
    except OSError:
        return False


def listening_host(ranks: Sequence[Registration], servers: Sequence[str]) -> str:
    """The address of this host, rank 0's, by which all others reach it. The loopback if nothing else is needed.

    MASTER_ADDR is used where it is an address of this host; else the address from which this host reaches another one.
    """
    others = [rank["name"] for rank in ranks if rank["host"] != ranks[0]["host"]]
    server_hosts = [_control.split_address(server)[0] for server in servers]
    others += [host for host in server_hosts if not _address.is_loopback(host)]
    if not others:
        return "127.0.0.1"
    try:
        masters = socket.getaddrinfo(os.environ.get("MASTER_ADDR") or None, 0, type=socket.SOCK_STREAM)
    except OSError:
        masters = []
    for candidate in (str(master[4][0]) for master in masters):
        if _is_own_address(candidate):
            return candidate
    for other in others:
        found = _address.own_address_towards(other)
        if found is not None and _is_own_address(found):
            return found
    raise StarringError(f"rank 0 does not know by which of its addresses {', '.join(others)} reach it: give "
                        "attach(..., address=...) on rank 0")


def _pauses(end: float) -> Iterator[None]:
    """Before each look at a store until `end`: the first at once, then ever more rarely."""
    pause = 0.001
    while True:
        yield
        if time.monotonic() > end:
            return
        time.sleep(pause)
        pause = min(2 * pause, _POLL_S_MAX)


class StoreMeeting:
    """One meeting of all ranks over a store that may outlive them, such as torchrun's, which outlives a restart.

    Keys of an earlier attempt to start the job may be in the store, and nothing in them says so. So rank 0 writes a
    *call*, a random number. The others register under the call that they read, each with a random number of its own.
    The decision names these numbers, and a rank believes a decision only if its own is in it. A rank that has read an
    old call finds no such decision there, and registers again as soon as the new call is written.
    """

    def __init__(self, store: Any, rank: int, world_size: int, prefix: str, deadline_s: float,
                 function: str, argument: str) -> None:
        """`function` is the one that a missing rank has not called, `argument` the name of its deadline."""
        self._store, self._rank, self._world_size, self._deadline_s = store, rank, world_size, deadline_s
        self._function, self._argument = function, argument
        # Processes of one torchrun have equal numbers, which keep a process that outlived its attempt out of the next.
        # Where several torchruns start the ranks, each counts for itself, and the numbers may differ.
        alone = os.environ.get("GROUP_WORLD_SIZE") == "1"
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "") if alone else ""
        self._prefix = f"{prefix}/{attempt}/"
        self._number = secrets.token_hex(8)

    def decide(self, mine: Registration, make: Callable[[List[Registration]], Decision]) -> Decision:
        """Rank 0's decision. As a registration, `mine` and the decision are objects of JSON."""
        if self._rank != 0:
            return self._follow(mine, time.monotonic() + self._deadline_s + _GRACE_S)
        call = self._number
        self._write(_CALL, {"call": call})
        self._register(call, mine)
        end = time.monotonic() + self._deadline_s
        try:
            found = [self._await_registration(call, rank, end) for rank in range(self._world_size)]
            decision = make([one["registration"] for one in found])
        except StarringError as error:
            self._announce(call, {"refusal": str(error), "kind": error.kind})
            raise
        self._announce(call, decision)
        return decision

    def _announce(self, call: str, decision: Decision) -> None:
        """To the ranks that have registered."""
        ranks = [self._read(f"{call}/{rank}") for rank in range(self._world_size)]
        self._write(f"{call}/{_DECISION}", {"of": [rank["number"] for rank in ranks if rank], "decision": decision})

    def _register(self, call: str, mine: Registration) -> bool:
        """Whether no other process has registered as this rank. One has under an old call, or if it outlived its
        attempt. Its registration stays: rank 0 may have read it."""
        name = f"{call}/{self._rank}"
        if self._store.add(f"{self._prefix}{name}/claimed", 1) > 1:
            return False
        self._write(name, {"number": self._number, "registration": mine})
        return True

    def _await_registration(self, call: str, rank: int, end: float) -> Dict[str, Any]:
        for _ in _pauses(end):
            found = self._read(f"{call}/{rank}")
            if found:
                return found
            if self._read(_CALL)["call"] != call:
                raise StarringError(f"another process has called {self._function} as rank 0: look for processes of "
                                    "this job that a restart has left over, end them, and start all ranks again",
                                    "peer")
        raise StarringError(self._missing(call), "peer")

    def _follow(self, mine: Registration, end: float) -> Decision:
        """What a rank other than 0 does."""
        call, calls, is_registered = None, 0, True
        for _ in _pauses(end):
            count = self._times_written(_CALL)
            if count != calls:
                newest, calls = self._read(_CALL)["call"], count
                if newest != call:
                    call = newest
                    is_registered = self._register(call, mine)
            decided = self._read(f"{call}/{_DECISION}") if call is not None else {}
            if decided and self._number in decided["of"]:
                return decided["decision"]
        raise StarringError(self._why_undecided(call, is_registered), "peer")

    def _why_undecided(self, call: Optional[str], is_registered: bool) -> str:
        decided = self._read(f"{call}/{_DECISION}") if call is not None else {}
        if not decided and is_registered:
            return self._missing(call)
        # Either the call is old. Or rank 0 gave up before this rank came, or has taken another process for it.
        why = self._missing(None)
        if decided and "refusal" in decided["decision"]:
            why += f". An earlier rank 0 gave up: {decided['decision']['refusal']}"
        if not is_registered:
            why += (f". If rank 0 did call it, another process has registered as rank {self._rank}: look for processes "
                    "of this job that a restart has left over, and end them")
        return why

    # Store.wait() with a deadline leaves a TCPStore's connection out of step once the deadline has passed, and not all
    # versions can look whether there is a key. So a second key counts how often the first was written.

    def _write(self, name: str, value: Dict[str, Any]) -> None:
        self._store.set(self._prefix + name, json.dumps(value))
        self._store.add(f"{self._prefix}{name}/written", 1)

    def _times_written(self, name: str) -> int:
        return self._store.add(f"{self._prefix}{name}/written", 0)

    def _read(self, name: str) -> Dict[str, Any]:
        """Empty if there is no such key."""
        return json.loads(self._store.get(self._prefix + name)) if self._times_written(name) else {}

    def _missing(self, call: Optional[str]) -> str:
        """Who has not registered under `call`. Without a call rank 0 is missing, and others cannot register."""
        missing = ["0"] if call is None else [str(rank) for rank in range(self._world_size)
                                              if not self._times_written(f"{call}/{rank}")]
        if not missing:
            return (f"rank 0 registered, but has not decided within {self._deadline_s:g} s: is its process stuck, or "
                    f"did it end, and has a later one not called {self._function} yet?")
        who = f"rank {missing[0]} is" if len(missing) == 1 else f"ranks {', '.join(missing)} are"
        return (f"{who} missing: {self._function} was not called there within {self._deadline_s:g} s. Look at the "
                f"output of that process, or give {self._function}(..., {self._argument}=...) more time")


class Meeting:
    """One meeting of all ranks of a process group. Every rank of the group makes one, in the same order."""

    def __init__(self, group: Any, deadline_s: float) -> None:
        try:
            self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
            members = distributed_c10d.get_process_group_ranks(group)
            self._store = distributed_c10d._get_default_store()
        except (RuntimeError, ValueError, KeyError) as error:
            raise StarringError("the process group is none of torch.distributed (init_process_group, new_group), or "
                                f"this rank is not in it: {error}") from error
        self._group, self._deadline_s = group, deadline_s
        name = hashlib.blake2b(json.dumps(members).encode(), digest_size=8).hexdigest()
        _meetings[name] += 1
        self._prefix = f"starring/{name}/{_meetings[name]}"

    def decide(self, mine: Registration, make: Callable[[List[Registration]], Decision]) -> Decision:
        """Rank 0's decision, on every rank: what `make` returns there, if all ranks agree. StarringError on every rank
        if they do not, if one refuses, if `make` raises one, or if a rank is missing at the deadline."""
        try:
            decision = self._by_store(mine, make) if self._store is not None else self._by_collectives(mine, make)
        except StarringError:
            raise
        except (RuntimeError, OSError) as error:  # what torch raises if the process with the store has ended
            raise StarringError(f"rank {self.rank} lost the process group while it met the others: {error}",
                                "peer") from error
        if "refusal" in decision:
            raise StarringError(decision["refusal"], decision["kind"])
        return decision

    def _made(self, ranks: List[Registration], make: Callable[[List[Registration]], Decision]) -> Decision:
        refusal = disagreement(ranks)
        if refusal:
            return {"refusal": refusal, "kind": "invalid"}
        try:
            return make(ranks)
        except StarringError as error:
            return {"refusal": str(error), "kind": error.kind}

    def _by_store(self, mine: Registration, make: Callable[[List[Registration]], Decision]) -> Decision:
        meeting = StoreMeeting(self._store, self.rank, self.world_size, self._prefix, self._deadline_s,
                               "starring.torch.attach", "join_deadline_s")
        return meeting.decide(mine, lambda ranks: self._made(ranks, make))

    def _by_collectives(self, mine: Registration, make: Callable[[List[Registration]], Decision]) -> Decision:
        """For a backend without a store (mpi). A missing rank is noticed by that backend, if at all."""
        ranks: List[Any] = [None] * self.world_size
        dist.all_gather_object(ranks, mine, group=self._group)
        decision: List[Any] = [self._made(ranks, make) if self.rank == 0 else None]
        dist.broadcast_object_list(decision, src=distributed_c10d.get_global_rank(self._group, 0), group=self._group)
        return decision[0]


def listen(host: str, backlog: int, port_range: str = "") -> Tuple[socket.socket, str]:
    """A listening socket on a free port of `host`, one of `port_range`, and its address."""
    try:
        listener = _address.listen(host, backlog, port_range)
    except OSError as error:
        raise StarringError(f"rank 0 cannot listen on {host}: {error}: give attach(..., address=...) on rank 0 an "
                            "address of its host") from error
    return listener, _address.join(host, listener.getsockname()[1])
