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

VERSION = 6
MEMORY, SOCKETS = "memory", "sockets"  # how messages of one host travel; between hosts always by sockets
MEDIA = (MEMORY, SOCKETS)
# Planned with another cell's costs where it was not measured: the same transport, so the same messages.
LIKE = {"star-servers-tcp": "star-tcp", "star-tcp": "ring-tcp", "ring-tcp": "star-tcp", "star-mpi": "ring"}
BORROWED_BAND_MIN = 0.25  # relative; such costs were never compared with that cell
# Beyond the measured numbers of workers and bytes a band grows by this share of itself for each doubling.
BAND_GROWTH = 0.5
SHIPPED = os.path.join(os.path.dirname(os.path.realpath(__file__)), "costs.json")
HOW_TO_MEASURE = "bazel run //bench:growth"


class CostsError(Exception):
    """There are no costs for what was asked; the message says how to get them."""


def place_key(place: cells.Cell) -> str:
    """ring, star, or star@own: the cell with servers on hosts of their own."""
    return place.sync + ("@own" if place.placement == cells.OWN_HOSTS else "")


def is_extrapolated(costs: model.Costs, workers: int, size: int) -> bool:
    """Whether that is beyond the measurements of the costs."""
    return workers > costs.workers_max or size > costs.bytes_max


def band(costs: model.Costs, workers: int, size: int) -> float:
    """The relative band of a prediction. It is a rule of thumb beyond the measurements."""
    doublings = math.log2(max(1.0, workers / costs.workers_max)) + math.log2(max(1.0, size / costs.bytes_max))
    return costs.band * (1 + BAND_GROWTH * doublings)


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
        media = (SOCKETS,) if over_tcp else (medium, *MEDIA)  # TCP has sockets alone, even on one host
        for other in (sync, LIKE.get(sync, sync)):
            for by in media:
                if (found := self.costs.get((other, by))) is None:
                    continue
                if (other, by) == (sync, media[0]):
                    return found, ""
                return (dataclasses.replace(found, band=max(found.band, BORROWED_BAND_MIN)),
                        f"{sync} by {media[0]} was not measured: planned with the costs of {other} by {by}")
        raise CostsError(f"no costs of {sync}: {HOW_TO_MEASURE} measures them")

    def wasted_by(self, place: cells.Cell) -> float:
        """0 where it was not measured."""
        return self.wasted_buckets.get(place_key(place), 0.0)


def to_json(book: CostBook) -> dict[str, Any]:
    found: dict[str, Any] = {"version": VERSION, **vars(book), "cells": {}}
    del found["costs"]
    for (sync, medium), costs in book.costs.items():
        found["cells"].setdefault(sync, {})[medium] = dataclasses.asdict(costs)
    return found


def from_json(found: Mapping[str, Any]) -> CostBook:
    if found["version"] != VERSION:
        raise ValueError(f"it has version {found['version']}, and this program reads version {VERSION}")
    costs = {}
    for sync, media in found["cells"].items():
        if sync not in cells.BY_SYNC:
            raise ValueError(f"unknown cell {sync}")
        for medium, one in media.items():
            seconds = {name: float(one["seconds"][name]) for name in (*model.FITTED, *model.KERNELS)}
            rest = {field.name: float(one[field.name]) for field in dataclasses.fields(model.Costs)
                    if field.name != "seconds"}
            costs[sync, medium] = model.Costs(seconds, **rest)
    wasted = {key: float(value) for key, value in found["wasted_buckets"].items()}
    return CostBook(costs, wasted, float(found["jitter"]),
                    *(str(found[name]) for name in ("machine", "commit", "date", "command")))


def write_text(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def user_path(path: str) -> str:
    """`bazel run` starts us in another folder than the one where the user called it."""
    return os.path.abspath(os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", "."), path))


def write(path: str, book: CostBook) -> None:
    write_text(path, json.dumps(to_json(book), indent=1) + "\n")


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
