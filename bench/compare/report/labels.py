"""Names and order of configurations, syncs and sections in plots and tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from . import units

SYNCS = ("local", "star", "ring", "mpi", "ddp", "ddp-tuned")
PARTS = ("data_wait", "h2d", "forward", "backward", "exposed_exchange", "optimizer", "other")
PART_NAMES = {"data_wait": "data wait", "h2d": "H2D", "forward": "forward", "backward": "backward",
              "exposed_exchange": "exposed exchange", "optimizer": "optimizer", "other": "other"}
# Markers keep lines apart where colours cannot be told apart.
MARKERS = {"local": ("v", "▼"), "star": ("o", "●"), "ring": ("s", "■"), "mpi": ("^", "▲"), "ddp": ("D", "◆"),
           "gloo": ("D", "◆"), "ddp-tuned": ("P", "✚")}
# Syncs whose lines often coincide with another's.
DASHED = ("mpi", "ddp-tuned")
UNKNOWN_MARKER = ("X", "✖")
SHORT_MAX = 30


def marker(sync: str) -> tuple[str, str]:
    return MARKERS.get(sync, UNKNOWN_MARKER)


def sync_order(sync: str) -> tuple[int, str]:
    order = [*SYNCS, "gloo"]
    return (order.index(sync), "") if sync in order else (len(order), sync)


def workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"


def configuration(one: Mapping[str, Any]) -> str:
    """ring 2w, star 2w+1s, with the accounting if it is equal-cores."""
    text = f"{one['sync']} {one['workers']}w"
    if one.get("servers"):
        text += f"+{one['servers']}s"
    return text + (", equal cores" if one.get("accounting") == "equal-cores" else "")


def short(text: str) -> str:
    """The text, cut to what fits next to a bar."""
    return text if len(text) <= SHORT_MAX else text[:SHORT_MAX - 1] + "…"


def section(name: str | None) -> str:
    if not name or name == "machine":
        return "this machine"
    kind, _, setting = name.partition(":")
    hosts, _, rate = setting.partition(",")
    if kind != "netlab" or not rate:
        return name
    number = re.fullmatch(r"(\d+)([kmg])bit", rate)
    if number:
        rate = number[1] + units.NBSP + {"k": "k", "m": "M", "g": "G"}[number[2]] + "bit/s"
    return f"{hosts} hosts at {rate}"


def scaling(name: str) -> str:
    return {"weak": "fixed batch per worker", "strong": "fixed global batch"}.get(name, name)


def group(model: str, scaling_name: str, section_name: str | None) -> str:
    """mlp, fixed batch per worker, this machine."""
    parts = [model, scaling(scaling_name)]
    return ", ".join(parts if section_name in (None, "", "machine") else [*parts, section(section_name)])
