"""Costs of all cells as one file: costs.json, which bench:growth writes and bench:plan reads."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import exchange_model as model
import sync_cells as cells
from correction import Correction

VERSION = 5
MEMORY, SOCKETS = "memory", "sockets"  # how messages of one host travel; between hosts always by sockets
MEDIA = (MEMORY, SOCKETS)
# Planned with another cell's costs where it was not measured: the same transport, so the same messages.
LIKE = {"star-servers-tcp": "star-tcp", "star-tcp": "ring-tcp", "ring-tcp": "star-tcp", "star-mpi": "ring"}
BORROWED_BAND_MIN = 0.25  # relative; such costs were never compared with that cell
# Beyond the measured numbers of workers and bytes a band grows by this share of itself for each doubling.
BAND_GROWTH = 0.5
_HERE = os.path.dirname(os.path.realpath(__file__))
SHIPPED = os.path.join(_HERE, "costs.json")
HOW_TO_MEASURE = "bazel run //bench:growth"


class CostsError(Exception):
    """There are no costs for what was asked; the message says how to get them."""


def place_key(place: cells.Cell) -> str:
    """ring, star, or star@own: the cell with servers on hosts of their own."""
    return place.sync + ("@own" if place.placement == cells.OWN_HOSTS else "")


def is_extrapolated(costs: model.Costs, workers: int, size: int) -> bool:
    """Whether that is beyond the measurements of the costs."""
    return workers > costs.workers_max or size > costs.bytes_max


def band(costs: model.Costs, workers: int, size: int, *, corrected: bool) -> float:
    """The relative band of a prediction. It is a rule of thumb beyond the measurements."""
    doublings = math.log2(max(1.0, workers / costs.workers_max)) + math.log2(max(1.0, size / costs.bytes_max))
    return (costs.band if corrected else costs.bare_band) * (1 + BAND_GROWTH * doublings)


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
        over_tcp = cells.BY_SYNC[sync].transport == "tcp"
        if over_tcp:
            medium = SOCKETS  # even on one host
        for other in dict.fromkeys((sync, LIKE.get(sync, sync))):
            for by in dict.fromkeys((medium, *MEDIA)):
                found = self.costs.get((other, by))
                if found is None or (over_tcp and by != medium):
                    continue
                if (other, by) == (sync, medium):
                    return found, ""
                borrowed_band = max(found.bare_band, BORROWED_BAND_MIN)
                return (dataclasses.replace(found, corrections=(), band=borrowed_band, bare_band=borrowed_band),
                        f"{sync} by {medium} was not measured: planned with the costs of {other} by {by}")
        raise CostsError(f"no costs of {sync}: {HOW_TO_MEASURE} measures them")

    def wasted_by(self, place: cells.Cell) -> float:
        """0 where it was not measured."""
        return self.wasted_buckets.get(place_key(place), 0.0)


def to_json(book: CostBook) -> dict[str, Any]:
    found: dict[str, Any] = {
        "version": VERSION, "machine": book.machine, "commit": book.commit, "date": book.date, "command": book.command,
        "jitter": book.jitter, "wasted_buckets": dict(book.wasted_buckets), "cells": {}}
    for (sync, medium), costs in book.costs.items():
        found["cells"].setdefault(sync, {})[medium] = dataclasses.asdict(costs)
    return found


def from_json(found: Mapping[str, Any]) -> CostBook:
    if found["version"] != VERSION:
        raise ValueError(f"version {found['version']}, this program reads {VERSION}")
    costs = {}
    for sync, media in found["cells"].items():
        if sync not in cells.BY_SYNC:
            raise ValueError(f"unknown cell {sync}")
        for medium, one in media.items():
            seconds = {name: float(one["seconds"][name]) for name in (*model.FITTED, *model.KERNELS)}
            corrections = tuple(Correction(int(each["workers"]), int(each["servers"]), int(each["bytes"]),
                                           float(each["factor"])) for each in one["corrections"])
            rest = {field.name: float(one[field.name]) for field in dataclasses.fields(model.Costs)
                    if field.name not in ("seconds", "corrections")}
            costs[sync, medium] = model.Costs(seconds, corrections=corrections, **rest)
    return CostBook(costs, {key: float(value) for key, value in found["wasted_buckets"].items()},
                    float(found["jitter"]), str(found["machine"]), str(found["commit"]), str(found["date"]),
                    str(found["command"]))


def write(path: str, book: CostBook) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(to_json(book), file, indent=1)
        file.write("\n")


def read(path: str) -> CostBook:
    try:
        with open(path, encoding="utf-8") as file:
            return from_json(json.load(file))
    except OSError as error:
        raise CostsError(f"{path}: {error.strerror}: {HOW_TO_MEASURE} measures costs and writes them") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CostsError(f"{path} has no costs ({type(error).__name__}: {error}): {HOW_TO_MEASURE} "
                         "writes such a file") from error


def read_first(paths: tuple[str, ...]) -> CostBook:
    """The first file of `paths` that exists."""
    for path in paths:
        if os.path.exists(path):
            return read(path)
    raise CostsError(f"no costs of the exchange are known: none of {', '.join(paths)} exists. {HOW_TO_MEASURE} "
                     "measures them on this machine")
