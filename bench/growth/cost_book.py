"""Costs of all cells as one file: costs.json, which bench:growth writes and bench:plan reads."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import exchange_model as model
import sync_cells as cells

VERSION = 7
MEMORY, SOCKETS = "memory", "sockets"  # how messages of one host travel; between hosts always by sockets
MEDIA = (MEMORY, SOCKETS)
# The costs of one machine, for a first answer of a user whose hosts are others.
SHIPPED = os.path.join(os.path.dirname(os.path.realpath(__file__)), "costs.json")
SHIPPED_BAND_MIN = 1.0  # twice the costs: so far apart are two machines of one kind (bench/results/README.md)
HOW_TO_MEASURE = "bazel run //bench:growth"


class CostsError(Exception):
    """There are no costs for what was asked; the message says how to get them."""


@dataclasses.dataclass(frozen=True)
class CostBook:
    costs: Mapping[tuple[str, str], model.Costs]  # by sync and medium
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


def write(path: str, book: CostBook) -> None:
    found: dict[str, Any] = {"version": VERSION, **dataclasses.asdict(book), "cells": {}}
    for (sync, medium), costs in found.pop("costs").items():
        found["cells"].setdefault(sync, {})[medium] = costs
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(json.dumps(found, indent=1) + "\n")
    os.replace(path + ".part", path)


def read(path: str) -> CostBook:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if (version := found.pop("version")) != VERSION:
            raise ValueError(f"version {version}, and this program reads version {VERSION}")
        costs = {}
        for sync, media in found.pop("cells").items():
            if sync not in cells.BY_SYNC:
                raise ValueError(f"unknown cell {sync}")
            for medium, one in media.items():
                given = one.pop("seconds")
                seconds = {name: float(given[name]) for name in (*model.FITTED, *model.KERNELS)}
                costs[sync, medium] = model.Costs(seconds, **{name: float(value) for name, value in one.items()})
        return CostBook(costs, **found)
    except OSError as error:
        raise CostsError(f"{path}: {error.strerror}: {HOW_TO_MEASURE} measures costs and writes them") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CostsError(f"{path} has no costs ({type(error).__name__}: {error}): {HOW_TO_MEASURE} writes such a file"
                         ) from error


def widened(book: CostBook) -> CostBook:
    """Shipped costs for other hosts: with wide bands, and without jitter, which belongs to the cores of a box."""
    costs = {key: dataclasses.replace(one, band=max(SHIPPED_BAND_MIN, one.band)) for key, one in book.costs.items()}
    return dataclasses.replace(book, costs=costs, jitter=0.0)
