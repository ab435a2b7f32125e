"""Costs of all cells as one file: costs.json, which bench:growth writes and bench:plan reads."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import exchange_model as model
import sync_cells as cells

VERSION = 6
MEMORY, SOCKETS = "memory", "sockets"  # how messages of one host travel; between hosts always by sockets
MEDIA = (MEMORY, SOCKETS)
# Planned with another cell's costs where it was not measured: the same transport, so the same messages.
LIKE = {"star-servers-tcp": "star-tcp", "star-tcp": "ring-tcp", "ring-tcp": "star-tcp", "star-mpi": "ring"}
BORROWED_BAND_MIN = 0.25  # relative; such costs were never compared with that cell
SHIPPED = os.path.join(os.path.dirname(os.path.realpath(__file__)), "costs.json")
HOW_TO_MEASURE = "bazel run //bench:growth"


class CostsError(Exception):
    """There are no costs for what was asked; the message says how to get them."""


def place_key(place: cells.Cell) -> str:
    """ring, star, or star@own: the cell with servers on hosts of their own."""
    return place.sync + ("@own" if place.placement == cells.OWN_HOSTS else "")


@dataclasses.dataclass(frozen=True)
class CostBook:
    costs: Mapping[tuple[str, str], model.Costs]  # by sync and medium
    wasted_buckets: Mapping[str, float]  # by place_key: how many buckets' time on a link a step wastes
    jitter: float  # relative scatter of computing
    machine: str
    commit: str
    date: str
    command: str

    def find(self, sync: str, medium: str) -> tuple[model.Costs, str]:
        """The costs, and a note if they are another's. CostsError if nothing similar was measured."""
        over_tcp = cells.BY_SYNC[sync].transport == "tcp" and not cells.BY_SYNC[sync].has_servers
        if over_tcp:
            medium = SOCKETS  # even on one host
        for other in dict.fromkeys((sync, LIKE.get(sync, sync))):
            for by in dict.fromkeys((medium, *MEDIA)):
                found = self.costs.get((other, by))
                if found is None or (over_tcp and by != medium):
                    continue
                if (other, by) == (sync, medium):
                    return found, ""
                return (dataclasses.replace(found, band=max(found.band, BORROWED_BAND_MIN)),
                        f"{sync} by {medium} was not measured: planned with the costs and the error of {other} by {by}")
        raise CostsError(f"no costs of {sync}: {HOW_TO_MEASURE} measures them")

    def wasted_by(self, place: cells.Cell) -> float:
        """0 where it was not measured."""
        return self.wasted_buckets.get(place_key(place), 0.0)


def to_json(book: CostBook) -> dict[str, Any]:
    cells_of: dict[str, dict[str, Any]] = {}
    for (sync, medium), costs in book.costs.items():
        cells_of.setdefault(sync, {})[medium] = dataclasses.asdict(costs)
    facts = {field.name: getattr(book, field.name) for field in dataclasses.fields(book) if field.name != "costs"}
    return {"version": VERSION, **facts, "cells": cells_of}


def from_json(found: Mapping[str, Any]) -> CostBook:
    costs = {}
    for sync, media in found["cells"].items():
        if sync not in cells.BY_SYNC:
            raise ValueError(f"unknown cell {sync}")
        for medium, one in media.items():
            rest = {name: float(value) for name, value in one.items() if name != "seconds"}
            seconds = {name: float(one["seconds"][name]) for name in (*model.FITTED, *model.KERNELS)}
            costs[sync, medium] = model.Costs(seconds, **rest)
    return CostBook(costs, **{name: value for name, value in found.items() if name not in ("version", "cells")})


def user_path(path: str) -> str:
    """`bazel run` starts us in another folder than the one where the user called it."""
    return os.path.abspath(os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", "."), path))


def write(path: str, book: CostBook) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(to_json(book), indent=1) + "\n")


def read(path: str) -> CostBook:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if found["version"] == VERSION:
            return from_json(found)
    except OSError as error:
        raise CostsError(f"{path}: {error.strerror}: {HOW_TO_MEASURE} measures costs and writes them") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CostsError(f"{path} has no costs ({type(error).__name__}: {error}): {HOW_TO_MEASURE} "
                         "writes such a file") from error
    runs = os.path.join(os.path.dirname(path), "runs.json")
    raise CostsError(f"{path} has costs of version {found['version']}, this program reads version {VERSION}: "
                     f"{HOW_TO_MEASURE} measures again, and {HOW_TO_MEASURE} -- --runs={runs} fits the old runs again")


def read_first(paths: tuple[str, ...]) -> CostBook:
    """The first file of `paths` that exists."""
    for path in paths:
        if os.path.exists(path):
            return read(path)
    raise CostsError(f"no costs of the exchange are known: none of {', '.join(paths)} exists. {HOW_TO_MEASURE} "
                     "measures them on this machine")
