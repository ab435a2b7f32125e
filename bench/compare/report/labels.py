"""Names and order of configurations, syncs and sections in plots and tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import sync_cells as cells

from . import units

SYNCS = ("local", *cells.SYNCS, *cells.SYNCS_IN_MEMORY, "mpi", "nccl", "ddp", "ddp-tuned", "ddp+star",
         "ddp+ring")
# What is measured alone, or with uneven workers, only. Its colour is that of the sync whose exchange it is.
ALONE = {"star-own-hosts": "star", cells.ELASTIC: "star", "mpi4py": "mpi", "gloo": "ddp", "horovod": "ddp-tuned"}
PARTS = ("data_wait", "h2d", "forward", "backward", "exposed_exchange", "optimizer", "other")
PART_NAMES = {"data_wait": "data wait", "h2d": "H2D", "forward": "forward", "backward": "backward",
              "exposed_exchange": "exposed exchange", "optimizer": "optimizer", "other": "other"}
# Markers keep lines apart where colours cannot be told apart.
MARKERS = {**{cell.sync: cell.marker for cell in cells.NAMED}, "local": ("v", "▼"), "mpi": ("^", "▲"),
           "nccl": ("1", "⅄"),
           "ddp": ("D", "◆"), "ddp-tuned": ("P", "✚"), "ddp+star": ("8", "⬤"), "ddp+ring": ("+", "+"),
           "star-own-hosts": (">", "▶"), cells.ELASTIC: ("$◎$", "◎"), "mpi4py": ("<", "◀"),
           "gloo": ("D", "◆"), "horovod": ("X", "✖")}
# Shapes that look larger or smaller than others of their size.
MARKER_SCALES = {"ddp+star": 0.8, "ddp+ring": 1.5, "star-mpi": 1.3, cells.ELASTIC: 1.5}
# Syncs whose lines often coincide with another's, or have another's colour.
DASHED = ("mpi", "mpi4py", "nccl", "ddp-tuned", "star-own-hosts", "horovod")
UNKNOWN_MARKER = ("x", "×")
SHORT_MAX = 30


def marker(sync: str) -> tuple[str, str]:
    return MARKERS.get(sync, UNKNOWN_MARKER)


def sync_order(sync: str) -> tuple[int, str]:
    order = [*SYNCS, *ALONE]
    return (order.index(sync), "") if sync in order else (len(order), sync)


def workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"


def configuration(one: Mapping[str, Any]) -> str:
    """ring 2w, star 2w+1s, with the accounting if it is another than that of most."""
    text = f"{one['sync']} {one['workers']}w"
    if one.get("servers"):
        text += f"+{one['servers']}s"
    return text + {"equal-cores": ", equal cores", "own-hosts": ", own hosts"}.get(str(one.get("accounting")), "")


def cell(one: Mapping[str, Any]) -> str:
    """ring, star, star on own hosts: a cell among others with the same number of workers."""
    return one["sync"] + (" on own hosts" if one.get("accounting") == cells.ACCOUNTING_OWN_HOSTS else "")


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
    hosts, _, of_servers = hosts.partition("+")
    return f"{hosts} hosts{f' and {of_servers} for servers' if of_servers else ''} at {rate}"


def scaling(name: str) -> str:
    return {"weak": "fixed batch per worker", "strong": "fixed global batch"}.get(name, name)


def group(model: str, scaling_name: str, section_name: str | None) -> str:
    """mlp, fixed batch per worker, this machine."""
    parts = [model, scaling(scaling_name)]
    return ", ".join(parts if section_name in (None, "", "machine") else [*parts, section(section_name)])
