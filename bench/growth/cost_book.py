"""Costs of all cells as one file: costs.json, which bench:growth writes and bench:plan reads."""

from __future__ import annotations

import argparse
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
# The costs of one machine, for a first answer of a user whose hosts are others.
SHIPPED = os.path.join(os.path.dirname(os.path.realpath(__file__)), "costs.json")
SHIPPED_BAND_MIN = 1.0  # twice the costs: so far apart are two machines of one kind (bench/results/README.md)
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

    def find(self, sync: str, medium: str) -> model.Costs:
        """CostsError if that was not measured."""
        if cells.BY_SYNC[sync].transport == "tcp" and not cells.BY_SYNC[sync].has_servers:
            medium = SOCKETS  # even on one host
        if (sync, medium) not in self.costs:
            raise CostsError(f"no costs of {sync} by {medium}: {HOW_TO_MEASURE} -- --syncs={sync} measures them")
        return self.costs[sync, medium]

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
        if found["version"] != VERSION:
            raise ValueError(f"version {found['version']}, and this program reads version {VERSION}")
        return from_json(found)
    except OSError as error:
        raise CostsError(f"{path}: {error.strerror}: {HOW_TO_MEASURE} measures costs and writes them") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        runs = os.path.join(os.path.dirname(path), "runs.json")
        raise CostsError(f"{path} has no costs ({type(error).__name__}: {error}): {HOW_TO_MEASURE} writes such a file, "
                         f"and {HOW_TO_MEASURE} -- --runs={runs} from runs that are measured already") from error


def widened(book: CostBook) -> CostBook:
    """Shipped costs for other hosts: with wide bands, and without jitter, which belongs to the cores of a box."""
    costs = {key: dataclasses.replace(one, band=max(SHIPPED_BAND_MIN, one.band)) for key, one in book.costs.items()}
    return dataclasses.replace(book, costs=costs, jitter=0.0)


def syncs(text: str) -> list[str]:
    """Parses a flag: cells, separated by commas."""
    for name in text.split(","):
        if name not in cells.SYNCS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(cells.SYNCS)}")
    return text.split(",")
