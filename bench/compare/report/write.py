"""Writes the report of a comparison: index.html, a single self-contained file, and summary.md, one page.

Needs matplotlib and Jinja2. `results` is as in results.py, and `analysis` is the result of analysis.analyse.
"""

from __future__ import annotations

import datetime
import os
import re
import shlex
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
import markupsafe

from ratios import REPEATS_MIN, interval_text, value_text

from . import figures, labels, svg, units, view
from .view import Entry

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_SUMMARY_ROWS_MAX = 29  # so that the summary stays one page
_SUMMARY_UNEVEN_LINES = 5  # of the table of uneven workers, besides its rows
_SUMMARY_NOTES_MAX = 4
_SUMMARY_STEPS_MAX = 6


def _scientific(value: float | None) -> str:
    return units.NONE if value is None else f"{value:.1e}"


def _moment(value: str | None) -> str:
    """2026-11-21 09:14 UTC. A text that is no ISO time is returned unchanged."""
    try:
        return datetime.datetime.fromisoformat(value or "").strftime("%Y-%m-%d %H:%M %Z").strip()
    except (TypeError, ValueError):
        return value or ""


def _markdown(value: object) -> str:
    """The text on one line of Markdown, also inside a table, with all markup escaped."""
    text = " ".join(str(units.NONE if value is None or isinstance(value, jinja2.Undefined) else value).split())
    # An underscore is markup except inside a word.
    return re.sub(r"[\\`*\[\]<>|]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", lambda match: "\\" + match[0], text)


def _file_link(name: str) -> str:
    """A link to a file in the page's folder, and never elsewhere, whatever the name is."""
    return "./" + urllib.parse.quote(os.path.basename(name))


def _environment(autoescape: bool) -> jinja2.Environment:
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(_FOLDER), autoescape=autoescape, trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.ChainableUndefined,
                                     keep_trailing_newline=True)
    environment.filters.update(
        count=_or_dash(units.count), significant=_or_dash(units.significant), ms=_or_dash(units.milliseconds),
        seconds=_or_dash(units.seconds), percent=_or_dash(units.percent), ratio=_or_dash(units.ratio),
        cores=lambda machine: units.cores(machine.get("cores"), machine.get("cpu_quota")), data=_or_dash(units.data),
        traffic=_or_dash(units.traffic), scientific=_or_dash(_scientific),
        shell=lambda command: shlex.join(command or []), gpu=lambda use: units.gpu(use["percent"], use["memory_bytes"]),
        interval=interval_text, times=value_text, md=_markdown, moment=_moment, file_link=_file_link,
        section=labels.section, processes=view.processes,
        sync_color=svg.sync_color_name, mark=lambda sync: labels.marker(sync)[1])
    return environment


def _or_dash(format_number: Callable[..., str]) -> Callable[..., str]:
    """Formats a number, or a dash for a key that the results lack."""
    def filter_number(value: Any, *arguments: Any) -> str:
        return format_number(None if isinstance(value, jinja2.Undefined) else value, *arguments)
    return filter_number


def _summary_rows(groups: list[Entry], uneven: Entry | None) -> tuple[list[tuple[str, Entry]], int]:
    """The first rows that fit on the page, and the number of those that do not. `uneven` takes a part of the page."""
    rows: list[tuple[str, Entry]] = []
    for group in groups:
        short = f"{group['model']} {group['workers']}w"
        if group["scaling"] == "strong":
            short += " strong"
        if group["section"] != "machine":
            short += ", " + labels.section(group["section"])
        rows += [(short, row) for row in group["rows"]]
    fit = _SUMMARY_ROWS_MAX - (_SUMMARY_UNEVEN_LINES + len(uneven["rows"]) if uneven else 0)
    return rows[:fit], max(0, len(rows) - fit)


def _context(results: Entry, analysis: Entry) -> dict[str, Any]:
    groups = view.groups(results, analysis)
    disagreements = view.disagreements(results)
    uneven = analysis.get("uneven") if results.get("uneven") else None
    rows, left_out = _summary_rows(groups, uneven)
    traces = [results.get("trace")] + [one.get("trace") for one in results.get("configurations") or []]
    return {
        "results": results, "analysis": analysis, "machine": results.get("machine") or {}, "groups": groups,
        "versions": list((results.get("versions") or {}).items()), "notes": view.notes(results),
        "disagreements": disagreements, "calls_winner": bool(analysis.get("calls_winner")) and not disagreements,
        "has_peer": any(sync.startswith("ddp") for sync in view.syncs(results)), "training": view.training(results),
        "quality": view.quality(results), "confusions": view.confusions(results),
        "exchanges": view.exchange_rows(results), "traces": sorted({trace for trace in traces if trace}),
        "agreement": view.agreement(results),
        "double_precision": any(one.get("peer_precision") == "double" for one in results.get("agreement") or []),
        "stepped": [{**group, "grid": view.grid(group), "shown_steps": view.steps(group)} for group in groups
                    if view.steps(group)["path"] or view.steps(group)["others"]],
        "buckets": view.bucket_rows(results), "gpu_cells": view.gpu_cells(results), "repeats_min": REPEATS_MIN,
        "uneven": uneven,
        "rows": rows, "rows_left_out": left_out, "notes_max": _SUMMARY_NOTES_MAX,
        "steps_max": _SUMMARY_STEPS_MAX,
    }


def _page(context: dict[str, Any], groups: list[Entry]) -> str:
    with open(os.path.join(_FOLDER, "style.css"), encoding="utf-8") as file:
        css = markupsafe.Markup(file.read())
    drawn = figures.draw(context["results"], groups, context["calls_winner"])
    for figure in drawn:
        for panel in figure["panels"]:
            for name in ("svg", "wide"):
                panel[name] = panel[name] and markupsafe.Markup(panel[name])  # ElementTree has escaped its texts
    return _environment(True).get_template("page.html.j2").render(context, css=css, figures=drawn).lstrip()


def _replace(path: str, text: str) -> None:
    """Replaces the file's content, all of it or nothing: if the disk is full, the old content stays."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def write_report(results: Mapping[str, Any], analysis: Mapping[str, Any], out_folder: str) -> str:
    """Writes index.html and summary.md to `out_folder`, creating it if necessary. Returns the path of the page.

    The page links to results.json, runs.csv and the results' traces in the same folder.
    """
    context = _context(dict(results), dict(analysis))
    page = _page(context, context["groups"])
    summary = _environment(False).get_template("summary.md.j2").render(context)
    os.makedirs(out_folder, exist_ok=True)
    _replace(os.path.join(out_folder, "summary.md"), summary)
    _replace(os.path.join(out_folder, "index.html"), page)
    return os.path.join(out_folder, "index.html")
