"""Brings the ranks of a process group together before they have any connection of ours.

Rank 0 decides, the others follow. Each rank *registers*: it writes what it wants to the store of the process group.
Rank 0 reads all registrations, compares them, listens at an address, and writes its *decision*, which the others wait
for. Whoever reaches the store can read and write it. So the group's token is in it only if the ranks have no secret
from which each could derive it. A store, unlike a collective, shows who is missing; and a rank that cannot take
part registers why, so that all ranks refuse in the same words.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import socket
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch.distributed as dist
from torch.distributed import distributed_c10d

from starring import _address, _control
from starring._library import StarringError

Registration = Dict[str, Any]
Decision = Dict[str, Any]

_POLL_S_MAX = 0.05
_GRACE_S = 5.0  # after the deadline, for rank 0's decision to arrive: rank 0 may have begun to wait later
_DECISION = "decision"
_UNCOMPARED = ("refusal", "host", "name")  # may differ between ranks
_WAYS_OUT = {"sync": "give all ranks the same sync", "servers": "give all ranks the same servers",
             "parameters": "wrap the same model on all ranks",
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
        self._prefix = f"starring/{name}/{_meetings[name]}/"

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
        self._write(str(self.rank), mine)
        if self.rank != 0:
            return self._read(_DECISION, time.monotonic() + self._deadline_s + _GRACE_S)
        end = time.monotonic() + self._deadline_s
        try:
            ranks = [self._read(str(rank), end) for rank in range(self.world_size)]
        except StarringError as error:
            self._write(_DECISION, {"refusal": str(error), "kind": error.kind})
            raise
        decision = self._made(ranks, make)
        self._write(_DECISION, decision)
        return decision

    # Store.wait() with a deadline leaves a TCPStore's connection out of step once the deadline has passed, and not all
    # versions can look whether there is a key. So a second key counts how often the first was written.

    def _write(self, name: str, value: Dict[str, Any]) -> None:
        self._store.set(self._prefix + name, json.dumps(value))
        self._store.add(f"{self._prefix}{name}/written", 1)

    def _is_written(self, name: str) -> bool:
        return self._store.add(f"{self._prefix}{name}/written", 0) > 0

    def _read(self, name: str, end: float) -> Dict[str, Any]:
        pause = 0.001
        while not self._is_written(name):
            if time.monotonic() > end:
                raise StarringError(self._missing(), "peer")
            time.sleep(pause)
            pause = min(2 * pause, _POLL_S_MAX)
        return json.loads(self._store.get(self._prefix + name))

    def _missing(self) -> str:
        missing = [str(rank) for rank in range(self.world_size) if not self._is_written(str(rank))]
        if not missing:
            return f"rank 0 registered, but has not decided within {self._deadline_s:g} s: is its process stuck?"
        who = f"rank {missing[0]} is" if len(missing) == 1 else f"ranks {', '.join(missing)} are"
        return (f"{who} missing: starring.torch.attach was not called there within {self._deadline_s:g} s. Look at the "
                "output of that process, or give attach(..., join_deadline_s=...) more time")

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
