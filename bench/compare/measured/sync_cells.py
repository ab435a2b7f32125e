"""The cells of the comparison: topology, placement and transport. Everything that lists cells takes them from here.

They are rows of the worker's own table, common/job/cells.h, which cells.json is written from.

Words. The *placement* says where the owners of the parameters are: in the ranks, in servers on the workers' hosts, or
in servers on hosts of their own. The same cell is measured in both of the latter if a lab has hosts for servers.
A *place* is a cell with its placement: what a row of the report shows.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

RANKS = "in the ranks"
SERVERS = "in servers"
OWN_HOSTS = "in servers on hosts of their own"

PLACEMENTS = (RANKS, SERVERS, OWN_HOSTS)  # each is one step from the next

# The accounting (jobs.py) of a job whose servers have hosts of their own.
ACCOUNTING_OWN_HOSTS = "own-hosts"
ACCOUNTING_EQUAL_CORES = "equal-cores"
# In these the workers are as many as in every other row, so that two rows differ in their cells alone.
_COMPARABLE = ("equal-workers", ACCOUNTING_OWN_HOSTS)


@dataclasses.dataclass(frozen=True)
class Cell:
    sync: str  # its name in --syncs and in results.json
    topology: str
    placement: str
    transport: str
    name: str  # in sentences
    marker: tuple[str, str]  # matplotlib's, and the character in a legend

    @property
    def flags(self) -> list[str]:
        """The flags of worker and launcher, without --servers."""
        return ["--sync=" + self.topology, "--transport=" + self.transport]

    @property
    def has_servers(self) -> bool:
        return self.placement != RANKS


# The name in sentences and the marker of each row that is compared.
_LOOKS = {
    "ring": ("the ring", ("s", "■")),
    "ring-shm": ("the ring in shared memory (ring-shm)", ("D", "◆")),
    "ring-tcp": ("the ring over TCP", ("p", "⬟")),
    "star-mpi": ("the star without servers (star-mpi)", ("*", "★")),
    "star-mpi-shm": ("the star without servers in shared memory (star-mpi-shm)", ("d", "⬥")),
    "star-tcp": ("the star without servers over TCP (star-tcp)", ("h", "⬢")),
    "star-servers-tcp": ("the star with servers over TCP", ("H", "⬣")),
    "star": ("the star", ("o", "●")),
}


def _compared(memory: str) -> tuple[Cell, ...]:
    """The rows whose arrays travel so within a host."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "cells.json"), encoding="utf-8") as file:
        rows = json.load(file)
    return tuple(Cell(row["name"], row["topology"], row["placement"], row["transport"], *_LOOKS[row["name"]])
                 for row in rows if row["memory"] == memory and row["name"] in _LOOKS)


# From the ring of today to the star of today: neighbours differ in one thing, where all are measured.
CELLS = _compared("messages")
BY_SYNC = {cell.sync: cell for cell in CELLS}
SYNCS = tuple(cell.sync for cell in CELLS)
# Rows of their own and no cells: memory carries gradients and parameters within one host, and messages carry the rest.
IN_MEMORY = _compared("shared memory")
NAMED = (*CELLS, *IN_MEMORY)
SYNCS_IN_MEMORY = tuple(cell.sync for cell in IN_MEMORY)
# The star whose workers may come and go. It is measured with uneven and failing workers alone, and is no cell: a job
# that nothing disturbs has no use for it.
ELASTIC = "star-elastic"
# The flags of the worker that the launcher does not have. Servers share memory by themselves where they can; so would
# ranks, and a cell by messages would be the one in memory.
WORKER_FLAGS = {cell.sync: ["--same_host=" + ("shared_memory" if cell in IN_MEMORY else "socket")]
                for cell in NAMED if not cell.has_servers}
# Our worker also starts these: one process, those rows, and as controls the allreduce of MPI, and on GPUs of NCCL.
CONTROLS = ("local", *SYNCS_IN_MEMORY, "mpi", "nccl")
BY_MPIRUN = (*(cell.sync for cell in NAMED if cell.transport == "mpi"), "mpi", "nccl")
BY_RENDEZVOUS = tuple(cell.sync for cell in NAMED if cell.transport == "tcp" and not cell.has_servers)
# Those that bench/ring_bench measures, in memory of the host.
WITHOUT_SERVERS = (*(cell.sync for cell in NAMED if not cell.has_servers), "mpi")


def flags_of(sync: str) -> list[str]:
    """The flags of worker and launcher for a sync of ours: a cell, or a control."""
    return next((cell.flags for cell in NAMED if cell.sync == sync), ["--sync=" + sync])


def has_servers(sync: str) -> bool:
    return sync == ELASTIC or any(cell.has_servers for cell in NAMED if cell.sync == sync)


def bucket_bytes_between_hosts(servers: int) -> int:
    """The worker's default of --bucket_bytes for a star with servers on other hosts."""
    return min(servers << 17, 1 << 20)


def place_of(configuration: Mapping[str, Any]) -> Cell | None:
    """The cell of a configuration, with its placement. None for what is no cell, or has other numbers of workers."""
    cell = BY_SYNC.get(configuration["sync"])
    if cell is None or configuration["accounting"] not in _COMPARABLE:
        return None
    own = configuration["accounting"] == ACCOUNTING_OWN_HOSTS
    return dataclasses.replace(cell, placement=OWN_HOSTS) if own else cell


def name_of(place: Cell) -> str:
    return place.name + (" on hosts of its own" if place.placement == OWN_HOSTS else "")


def changes(one: Cell, other: Cell) -> list[str]:
    """What differs, as people name it: "transport: mpi to tcp"."""
    return [f"{name}: {before} to {after}" for name in ("topology", "placement", "transport")
            for before, after in [(getattr(one, name), getattr(other, name))] if before != after]


def differences(one: Cell, other: Cell) -> int:
    """How many single steps lie between two places. From the ranks to servers on hosts of their own are two: servers
    on the workers' hosts are between them."""
    return ((one.topology != other.topology) + (one.transport != other.transport) +
            abs(PLACEMENTS.index(one.placement) - PLACEMENTS.index(other.placement)))


def _order(place: Cell) -> tuple[bool, int]:
    """Servers on hosts of their own come last: they are one more step from the same cell on the workers' hosts."""
    return place.placement == OWN_HOSTS, SYNCS.index(place.sync)


def path(places: Iterable[Cell]) -> list[Cell]:
    """The way from the first ring to the last star among `places`, by steps with as few differences as possible.

    It is the shortest way if a step costs the square of its differences, so that it has no step of two differences
    where two steps of one exist. Empty if there is no ring or no star.
    """
    ordered = sorted(set(places), key=_order)
    rings = [place for place in ordered if place.topology == "ring"]
    stars = [place for place in ordered if place.topology == "star"]
    if not rings or not stars:
        return []
    start, end = rings[0], stars[-1]
    best: dict[Cell, tuple[int, list[Cell]]] = {start: (0, [start])}
    for place in ordered[ordered.index(start) + 1:]:
        # The order is that of CELLS, and no shortest way turns back in it.
        best[place] = min(((cost + differences(before, place) ** 2, [*way, place])
                           for before, (cost, way) in best.items()), key=lambda candidate: candidate[0])
    return best[end][1]


def single_steps(places: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    """All pairs of `places` that differ in one thing, in order."""
    ordered = sorted(set(places), key=_order)
    return [(one, other) for index, one in enumerate(ordered) for other in ordered[index + 1:]
            if differences(one, other) == 1]
