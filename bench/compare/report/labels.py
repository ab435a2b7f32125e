"""What configurations, syncs and sections are called in plots and tables, and in which order they stand."""

import re

from . import units

SYNCS = ("local", "star", "ring", "mpi", "ddp", "ddp-tuned")
PARTS = ("data_wait", "h2d", "forward", "backward", "exposed_exchange", "optimizer", "other")
PART_NAMES = {"data_wait": "data wait", "h2d": "H2D", "forward": "forward", "backward": "backward",
              "exposed_exchange": "exposed exchange", "optimizer": "optimizer", "other": "other"}
# Beside colour, so that lines stay apart without it.
MARKERS = {"local": ("v", "▼"), "star": ("o", "●"), "ring": ("s", "■"), "mpi": ("^", "▲"), "ddp": ("D", "◆"),
           "gloo": ("D", "◆"), "ddp-tuned": ("P", "✚")}
# Those that often run on top of another.
DASHED = ("mpi", "ddp-tuned")
UNKNOWN_MARKER = ("X", "✖")
SHORT_MAX = 30


def marker(sync):
    return MARKERS.get(sync, UNKNOWN_MARKER)


def sync_order(sync):
    order = [*SYNCS, "gloo"]
    return (order.index(sync), "") if sync in order else (len(order), sync)


def workers(count):
    return f"{count} worker" if count == 1 else f"{count} workers"


def configuration(one):
    """ring 2w, star 2w+1s, and what sets it apart from a configuration of the same counts."""
    text = f"{one['sync']} {one['workers']}w"
    if one.get("servers"):
        text += f"+{one['servers']}s"
    return text + (", equal cores" if one.get("accounting") == "equal-cores" else "")


def short(text):
    """What fits beside a bar."""
    return text if len(text) <= SHORT_MAX else text[:SHORT_MAX - 1] + "…"


def section(name):
    if name in (None, "", "machine"):
        return "this machine"
    kind, _, setting = name.partition(":")
    hosts, _, rate = setting.partition(",")
    if kind != "netlab" or not rate:
        return name
    number = re.fullmatch(r"(\d+)([kmg])bit", rate)
    if number:
        rate = number[1] + units.NBSP + {"k": "k", "m": "M", "g": "G"}[number[2]] + "bit/s"
    return f"{hosts} hosts at {rate}"


def scaling(name):
    return {"weak": "fixed batch per worker", "strong": "fixed global batch"}.get(name, name)


def group(model, scaling_name, section_name):
    """mlp, fixed batch per worker, this machine."""
    parts = [model, scaling(scaling_name)]
    return ", ".join(parts if section_name in (None, "", "machine") else [*parts, section(section_name)])
