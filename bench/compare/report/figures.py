"""Chooses the page's plots: families of panels, with captions that say how to read them and what they show."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ratios import REPEATS_MIN
from ratios import text as ratio_text

from . import labels, plots, svg, units, view
from .view import Entry


def _sync_legend(names: list[str]) -> list[Entry]:
    explained = {"gloo": "gloo (exchange of DDP)", "mpi4py": "mpi4py (sums only)", "horovod": "horovod (sums only)",
                 "star-own-hosts": "star, servers on hosts of their own"}
    return [{"name": explained.get(name, name), "color": svg.sync_color_name(name), "mark": labels.marker(name)[1]}
            for name in names]


def _family(identifier: str, title: str, caption: str, legend: list[Entry], panels: list[Entry],
            arrangement: str = "rows") -> Entry:
    """`arrangement`: "pairs" keeps two panels side by side, such as loss and accuracy of one model."""
    return {"id": identifier, "title": title, "caption": caption, "legend": legend, "panels": panels,
            "arrangement": arrangement}


def columns_of(panels: int) -> list[int]:
    """How many panels share each panel's row on a page of full width: three, but fewer in the last rows, so that every
    row is full."""
    if panels < 3:
        return [panels] * panels
    halves = {0: 0, 1: 4, 2: 2}[panels % 3]
    return [3] * (panels - halves) + [2] * halves


def _panels(identifier: str, titled: list[tuple[str, Any]], draw: Callable[[str, Any], str | None],
            columns: int | None = None) -> list[Entry]:
    """Draws each (title, data), for a phone, and for a page of full width if its column there is wider. A plot without
    data is left out. `columns` is for all of them, in place of columns_of."""
    drawn = [(title, f"{identifier}{index}", what, draw(f"{identifier}{index}", what))
             for index, (title, what) in enumerate(titled)]
    drawn = [panel for panel in drawn if panel[3]]
    panels: list[Entry] = []
    for (title, key, what, narrow), own_columns in zip(drawn, columns_of(len(drawn))):
        panels.append({"title": title, "svg": narrow, "wide": None, "columns": columns or own_columns})
        width = svg.WIDTHS.get(panels[-1]["columns"])
        if width:
            with svg.style(width):
                panels[-1]["wide"] = draw(f"{key}-wide", what)
    return panels


def _row_panels(families: view.Families) -> list[tuple[str, list[Entry]]]:
    """One panel per model, with the rows of all numbers of workers."""
    return [(labels.group(*key), [row for group in members for row in group["rows"]]) for key, members in families]


def _rows(groups: list[Entry]) -> list[Entry]:
    return [row for group in groups for row in group["rows"]]


def _throughput(groups: list[Entry], families: view.Families, legend: list[Entry], calls_winner: bool) -> Entry:
    caption = ("Longer is better. The bar is the median over the repeats, and the whisker spans the slowest to the "
               "fastest run. Whiskers may overlap where one is always the faster of a repeat: what differs is decided "
               "by the ratios within each repeat. 2w+1s is 2 workers and 1 server.")
    best = [(row["samples_per_second"]["median"], group["title"], row) for group in groups for row in group["rows"]
            if row.get("best")]
    if best and calls_winner:
        rate, title, row = max(best, key=lambda entry: entry[0])
        caption += f" The longest bar is {row['label']} with {units.count(rate)} samples/s ({title})."
    return _family("throughput", "Samples per second", caption, legend,
                   _panels("throughput", _row_panels(families), plots.throughput))


def _steps(groups: list[Entry]) -> Entry:
    caption = ("How many times as fast the second cell is as the first in the same repeat: right of 1 it is faster. "
               "The bar is the 95 % interval from the pairs of runs; where it contains 1, the two tie. A row changes "
               "one thing, unless a cell between the two was not measured. The diamond is the whole way from ring to "
               "star, and the product of the rows above it.")
    titled = [(group["title"], steps) for group in groups if (steps := view.steps(group)["path"])]
    rows = [step for _, steps in titled for step in steps]
    apart = [step for step in rows if step["outcome"] in ("faster", "slower") and step["differences"] == 1]
    if apart:
        largest = max(apart, key=lambda step: abs(math.log(step["ratio"]["value"])))
        caption += (f" The largest single difference: {largest['label']}, {ratio_text(largest['ratio'])} times as "
                    "fast.")
    elif all(step["outcome"] == "undecided" for step in rows):
        caption += f" With fewer than {REPEATS_MIN} repeats nothing is decided."
    return _family("steps", "From ring to star, one difference at a time", caption, [],
                   _panels("steps", titled, plots.ratios))


def _breakdown(groups: list[Entry], families: view.Families) -> Entry:
    caption = ("Shorter is better. Blue is computing, which every sync must do. Each part is rank 0's mean over all "
               "measured steps. Red is exposed exchange: time in which the worker had nothing else to do.")
    exposed = []
    for row in _rows(groups):
        parts = view.breakdown(row["configuration"])
        total = sum(parts.values())
        if total and parts.get("exposed_exchange"):
            exposed.append((parts["exposed_exchange"] / total, parts["exposed_exchange"], total, row))
    if exposed:
        share, value, total, row = max(exposed, key=lambda entry: entry[0])
        caption += (f" The largest share of it is that of {row['label']} on {row['configuration']['model']} "
                    f"({labels.section(row['configuration']['section'])}): {units.significant(value)} of "
                    f"{units.significant(total)} ms, {units.percent(share)}.")
    legend = [{"name": labels.PART_NAMES[part], "color": "part-" + part, "mark": ""} for part in labels.PARTS]
    return _family("breakdown", "Where a step goes", caption, legend,
                   _panels("breakdown", _row_panels(families), plots.breakdown))


def _scaling(groups: list[Entry], families: view.Families) -> Entry:
    legend: list[Entry] = []
    caption = ("The dotted line is the ideal: twice the workers, twice the samples/s. The closer a line is to it, the "
               "better. Where only two numbers of workers were measured, a bar is the speed-up.")
    rows = [(row["efficiency"], row, group) for group in groups for row in group["rows"]
            if row.get("efficiency") is not None and row["configuration"]["workers"] > 1]
    if rows:
        (worst, bad, bad_group), (best, good, good_group) = (choose(rows, key=lambda entry: entry[0])
                                                             for choose in (min, max))
        legend = _sync_legend(sorted({row["sync"] for _, row, _ in rows}, key=labels.sync_order))
        caption += f" Highest: {good['label']} with {units.percent(best)} of the ideal ({good_group['title']})."
        if worst < best:
            caption += f" Lowest: {bad['label']} with {units.percent(worst)} ({bad_group['title']})."
        if best > 1.1:
            caption += (" More than 100 % means that the runs of one worker were slowed down, or that more cores have "
                        "more cache.")
    panels = _panels("scaling", [(labels.group(*key), members) for key, members in families], plots.scaling)
    return _family("scaling", "Scaling against ideal", caption, legend, panels)


def _training(results: Entry, calls_winner: bool) -> Entry:
    runs = [one for one in view.training(results) if one.get("epochs")]
    caption = ("All train the same number of epochs, so a line that ends farther left took less time for the same "
               "work. The farther left a line crosses the target, the better.")
    scores = sorted({one["score"] for one in runs}, key=str.lower)
    if "RMSE" in scores:
        caption += " RMSE is the root of the mean squared error on the test set: lower is better."
    reached = [one for one in runs if one.get("seconds_to_target") is not None]
    if reached and calls_winner:
        first = min(reached, key=lambda one: one["seconds_to_target"])
        target = (units.significant(first["target_rmse"]) if first["score"] == "RMSE" else
                  units.percent(first["target_accuracy"], 1))
        caption += (f" The first to reach {target} is {first['sync']} on "
                    f"{first['model']}, after {units.seconds(first['seconds_to_target'])}.")
    titled = []
    for model, count in sorted({(one["model"], one["workers"]) for one in runs}):
        titled.append((f"{model}, {labels.workers(count)}",
                       [one for one in runs if (one["model"], one["workers"]) == (model, count)]))
    panels = []
    for place, (title, members) in enumerate(titled):
        panels += _panels(f"loss{place}-", [(f"Loss: {title}", members)], plots.loss, 2)
        score = members[0]["score"]
        panels += _panels(f"accuracy{place}-", [(f"{score[0].upper()}{score[1:]}: {title}", members)],
                          plots.rmse if score == "RMSE" else plots.accuracy, 2)
    names = sorted({one["sync"] for one in runs}, key=labels.sync_order)
    title = f"Loss and {' or '.join(scores or ['accuracy'])} against time"
    return _family("training", title, caption, _sync_legend(names), panels, "pairs")


def _exchange(results: Entry) -> Entry:
    tables = view.exchange_rows(results)
    caption = ("This is the exchange alone, which no computing hides. Latency: lower is better; the left end is the "
               "cost of the smallest message. Bandwidth: higher is better; the right end is what the path can carry.")
    panels = []
    for place, table in enumerate(table for table in tables if table["times"]):
        small, large = (choose(one["bytes"] for one in table["times"]) for choose in (min, max))
        quick = min((one for one in table["times"] if one["bytes"] == small), key=lambda one: one["latency_us"])
        wide = max((one for one in table["times"] if one["bytes"] == large), key=lambda one: one["bus_gb_per_s"])
        caption += (f" {table['title'].capitalize()}: {quick['sync']} is fastest at {units.data(small)} "
                    f"({units.significant(quick['latency_us'])} µs), {wide['sync']} has the highest bandwidth at "
                    f"{units.data(large)} ({units.significant(wide['bus_gb_per_s'])} GB/s).")
        panels += _panels(f"latency{place}-", [(f"Latency: {table['title']}", table["times"])], plots.exchange_latency,
                          2)
        panels += _panels(f"bandwidth{place}-", [(f"Bandwidth: {table['title']}", table["times"])],
                          plots.exchange_bandwidth, 2)
    names = sorted({one["sync"] for table in tables for one in table["times"]}, key=labels.sync_order)
    return _family("exchange", "The exchange alone", caption, _sync_legend(names), panels, "pairs")


def _cpu(groups: list[Entry], families: view.Families, legend: list[Entry]) -> Entry:
    caption = ("Filled: workers; hatched: servers; one segment per process. 100 % is one busy core; spinning while "
               "waiting counts as busy.")
    servers = [(value, name, row) for row in _rows(groups) for name, _, value in view.processes(row["configuration"])
               if name.startswith("server") and value is not None]
    if servers:
        value, name, row = max(servers, key=lambda entry: entry[0])
        caption += f" The busiest server, {name} of {row['label']}, uses {value:.0f} % of a core."
    panels = _panels("cpu", [(title, rows) for title, rows in _row_panels(families)
                             if any(view.processes(row["configuration"]) for row in rows)], plots.cpu)
    return _family("cpu", "CPU use", caption, legend, panels)


def _gpu(families: view.Families, legend: list[Entry]) -> Entry:
    titled = [(title, [row for row in rows if row["gpu"]]) for title, rows in _row_panels(families)]
    return _family("gpu", "GPU use and memory", "Mean use while the job trained, as the driver counts it (for which "
                   "a run must take some seconds, see --seconds), and the most memory held. Low use means that the "
                   "GPU waits for data, launches or the exchange.", legend,
                   _panels("gpu", [(title, rows) for title, rows in titled if rows], plots.gpu))


def draw(results: Entry, groups: list[Entry], calls_winner: bool) -> list[Entry]:
    """Draws all families that have a panel, in the page's order. Captions name the best only with `calls_winner`."""
    families = view.by_model(groups)
    names = sorted({row["sync"] for row in _rows(groups)}, key=labels.sync_order)
    legend = _sync_legend(names)
    with svg.style():
        made = [_throughput(groups, families, legend, calls_winner), _steps(groups), _breakdown(groups, families),
                _scaling(groups, families), _training(results, calls_winner), _exchange(results),
                _cpu(groups, families, legend), _gpu(families, legend)]
    return [family for family in made if family["panels"]]
