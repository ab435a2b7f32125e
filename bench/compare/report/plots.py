"""Draws the plots: each function draws one panel and returns its <svg>. They run inside svg.style().

figures.py chooses the panels and writes their captions; svg.py has the common parts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from ratios import text as ratio_text
from ratios import value_text

from . import labels, svg, units, view
from .view import Entry

_ROW_HEIGHT = 24
_BAR_MARGIN = 48  # the axis below the bars and its label
_LINES_HEIGHT = 240
_RATIO_MARGIN = 0.12  # of the shown range, on both sides of it
_POINTS_MAX = 150
_TICK_STEPS = (1, 2, 5, 10)
_MARKER_SIZE = 6.5
_POINTS_OF_A_LINE = 3  # fewer are drawn as bars
_RATIO_MOST = 8.0  # the axis of ratios ends here, and at its inverse
_REFERENCE = (0, (1, 1.6))  # dots, for an ideal or a target


def _bars(count: int) -> tuple[Figure, Axes]:
    figure, axes = svg.panel(count * _ROW_HEIGHT + _BAR_MARGIN)
    axes.set_ylim(count - 0.5, -0.5)
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=_TICK_STEPS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    return figure, axes


def _lines(log_x: bool = False) -> tuple[Figure, Axes]:
    figure, axes = svg.panel(_LINES_HEIGHT)
    axes.grid()
    if not log_x:
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=_TICK_STEPS))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=_TICK_STEPS))
    return figure, axes


def _sync_lines(axes: Axes, lines: list[tuple[str, Sequence[float], Sequence[float]]]
                ) -> list[tuple[float, float, str]]:
    """Draws each (sync, x, y). Earlier lines are wider and some are dashed, so that equal lines can all be seen.
    Returns their ends, for _name_ends."""
    ends: list[tuple[float, float, str]] = []
    for place, (sync, x, y) in enumerate(lines):
        behind = len(lines) - 1 - place
        axes.plot(x, y, color=svg.color(svg.sync_color_name(sync)), marker=labels.marker(sync)[0],
                  linestyle=(0, (3, 2)) if sync in labels.DASHED else "-", linewidth=1.5 + 0.4 * behind,
                  markersize=_MARKER_SIZE * labels.MARKER_SCALES.get(sync, 1.0))
        if len(x):
            ends.append((x[-1], y[-1], sync))
    return ends


def _name_ends(axes: Axes, ends: list[tuple[float, float, str]]) -> None:
    """Writes each line's name right of its end, in its colour; names that would overlap are moved apart. Called when
    the axes have their limits and scales."""
    if not ends:
        return
    height = axes.figure.get_size_inches()[1] * 72
    step = (svg.FONT_SIZE + 1) / height
    places = []
    for x, y, sync in ends:
        at = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))[1]
        places.append([at, x, y, sync])
    places.sort()
    for lower, upper in zip(places, places[1:]):
        upper[0] = max(upper[0], lower[0] + step)
    for at, x, _, sync in places:
        axes.annotate(sync, (1, at), xycoords="axes fraction", xytext=(5, 0), textcoords="offset points", va="center",
                      color=svg.color(svg.sync_color_name(sync)), size=svg.FONT_SIZE - 2, annotation_clip=False)


def _few_bars(key: str, rows: list[tuple[str, str, float]], label: str, log: bool = False) -> str:
    """A bar for each (text, sync, value), where lines would have two points."""
    figure, axes = _bars(len(rows))
    axes.set_yticks(range(len(rows)), [labels.short(text) for text, _, _ in rows])
    values = [value for _, _, value in rows]
    for place, (_, sync, value) in enumerate(rows):
        axes.barh(place, value, 0.62, color=svg.color(svg.sync_color_name(sync)))
        axes.annotate(units.significant(value), (value, place), xytext=(4, 0), textcoords="offset points", va="center",
                      size=svg.FONT_SIZE - 1)
    if log:
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 3, max(values) * 6)
    else:
        axes.set_xlim(0, max(values) * 1.3)
    axes.set_xlabel(label)
    return svg.inline(figure, key, f"Bars of {label}: " + "; ".join(
        f"{text} {units.significant(value)}" for text, _, value in rows))


def throughput(key: str, rows: list[Entry]) -> str:
    """samples/s: a bar for the median, and a whisker from the slowest to the fastest run."""
    figure, axes = _bars(len(rows))
    axes.set_yticks(range(len(rows)), [labels.short(row["label"]) for row in rows])
    largest = max(row["samples_per_second"]["max"] for row in rows)
    for place, row in enumerate(rows):
        rate = row["samples_per_second"]
        axes.barh(place, rate["median"], 0.62, color=svg.color(svg.sync_color_name(row["sync"])))
        axes.plot([rate["min"], rate["max"]], [place, place], color=svg.color("ink"), linewidth=1.4, marker="|",
                  markersize=7)
        axes.text(max(rate["max"], rate["median"]) + 0.03 * largest, place, units.count(rate["median"]), va="center",
                  size=svg.FONT_SIZE - 1)
    axes.set_xlim(0, largest * 1.32)
    axes.xaxis.set_major_formatter(FuncFormatter(
        lambda value, _: f"{value / 1000:g}k" if largest >= 4000 else f"{value:g}"))
    axes.set_xlabel("samples/s")
    return svg.inline(figure, key, "Bars of samples per second: " + "; ".join(
        f"{row['label']} {units.count(row['samples_per_second']['median'])}" for row in rows))


def breakdown(key: str, rows: list[Entry]) -> str:
    """The parts of a step, in milliseconds."""
    figure, axes = _bars(len(rows))
    axes.set_yticks(range(len(rows)), [labels.short(row["label"]) for row in rows])
    totals = []
    for place, row in enumerate(rows):
        parts = view.breakdown(row["configuration"])
        left = 0.0
        for part in labels.PARTS:
            value = parts.get(part) or 0
            if value > 0:
                axes.barh(place, value, 0.66, left=left, color=svg.color("part-" + part))
            left += value
        totals.append(left)
    for place, total in enumerate(totals):
        axes.text(total + 0.02 * max(totals), place, units.significant(total), va="center", size=svg.FONT_SIZE - 1)
    axes.set_xlim(0, (max(totals) or 1) * 1.2)
    axes.set_xlabel("ms per step")
    return svg.inline(figure, key, "Stacked bars of a step's parts in milliseconds: " + "; ".join(
        f"{row['label']} {units.significant(total)}" for row, total in zip(rows, totals)))


def scaling(key: str, members: list[Entry]) -> str | None:
    """Speed-up over one worker, from the analysis's efficiency; the dotted line is the ideal."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for group in members:
        for row in group["rows"]:
            workers = row["configuration"]["workers"]
            if row.get("efficiency") is not None and row["configuration"].get("accounting") != "equal-cores":
                lines.setdefault(row["sync"], []).append((workers, row["efficiency"] * workers))
    lines = {sync: points for sync, points in lines.items() if max(points)[0] > 1}
    if not lines:
        return None
    counts = sorted({1, *(group["workers"] for group in members)})
    largest = max(counts)
    if len(counts) < _POINTS_OF_A_LINE:
        return _few_bars(key, [(sync, sync, max(lines[sync])[1]) for sync in sorted(lines, key=labels.sync_order)],
                         f"speed-up of {labels.workers(largest)} over 1; the ideal is {largest}")
    figure, axes = _lines()
    axes.plot([1, largest], [1, largest], color=svg.color("muted"), linewidth=1.3, linestyle=_REFERENCE)
    axes.text(largest, largest, "ideal  ", ha="right", va="bottom", color=svg.color("muted"), size=svg.FONT_SIZE - 1)
    ends = _sync_lines(axes, [(sync, [count for count, _ in points], [speedup for _, speedup in points])
                              for sync in sorted(lines, key=labels.sync_order)
                              for points in [sorted({1: 1.0, **dict(lines[sync])}.items())]])
    axes.set_xticks(counts)
    axes.set_xlim(1 - 0.06 * largest, largest * 1.06)
    axes.set_ylim(0, None)
    _name_ends(axes, ends)
    axes.set_xlabel("workers")
    axes.set_ylabel("speed-up over 1 worker")
    return svg.inline(figure, key, "Lines of speed-up over workers, the ideal dotted: " + "; ".join(
        f"{sync} {max(points)[1]:.2f} with {labels.workers(max(points)[0])}" for sync, points in lines.items()))


def ratios(key: str, steps: list[Entry]) -> str:
    """A dot for each ratio and a bar for its interval; the dotted line is 1. The axis is logarithmic, since 2 and 1/2
    are equally far from 1, and clipped: an arrow stands for what is beyond its end."""
    figure, axes = _bars(len(steps))
    axes.set_yticks(range(len(steps)), [labels.short(step["label"]) for step in steps])
    ends = [1.0]

    def clipped(value: float) -> float:
        return min(max(value, 1 / _RATIO_MOST), _RATIO_MOST)

    for place, step in enumerate(steps):
        ratio = step["ratio"]
        low, high = (ratio["value"] if ratio[end] is None else ratio[end] for end in ("low", "high"))
        color = svg.color("ink" if step["is_total"] else svg.sync_color_name(step["sync"]))
        for end, arrow in ((low, "<"), (high, ">")):
            if clipped(end) != end:
                axes.plot([clipped(end)], [place], color=color, marker=arrow, markersize=7)
        low, value, high = clipped(low), clipped(ratio["value"]), clipped(high)
        ends += [low, high]
        axes.plot([low, high], [place, place], color=color, linewidth=5, alpha=0.45, solid_capstyle="butt")
        if value == ratio["value"]:
            axes.plot([value], [place], color=color, marker="D" if step["is_total"] else "o", markersize=7)
        axes.annotate(value_text(ratio), (high, place), xytext=(8, 0), textcoords="offset points",
                      va="center", size=svg.FONT_SIZE - 1)
    axes.axvline(1, color=svg.color("muted"), linewidth=1.3, linestyle=_REFERENCE)
    axes.set_xscale("log")
    room = min(max((max(ends) / min(ends)) ** _RATIO_MARGIN, 1.02), 1.4)
    axes.set_xlim(min(ends) / room, max(ends) * room ** 3)  # the text is right of the bar
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5) if max(ends) > 1.5 * min(ends) else (1,)))
    if max(ends) <= 1.5 * min(ends):
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=_TICK_STEPS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axes.set_xlabel("times as fast as the first of the two")
    return svg.inline(figure, key, "Ratios of neighbouring cells with their 95 % intervals: " + "; ".join(
        f"{step['label']} {ratio_text(step['ratio'])}" for step in steps))


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, ...]]:
    """Averages neighbours so that at most _POINTS_MAX points remain."""
    size = -(-len(points) // _POINTS_MAX) if points else 1
    chunks = [points[start:start + size] for start in range(0, len(points), size)]
    return [tuple(sum(values) / len(values) for values in zip(*chunk)) for chunk in chunks]


def loss(key: str, trainings: list[Entry]) -> str:
    """Batch losses are thin lines; the epochs' mean losses have marks."""
    figure, axes = _lines()
    for one in trainings:
        points = _thinned([(entry["seconds"], entry["loss"]) for entry in one.get("losses") or []])
        if points:
            axes.plot(*zip(*points), color=svg.color(svg.sync_color_name(one["sync"])), linewidth=1, alpha=0.45)
    ends = _sync_lines(axes, [(one["sync"], [epoch["seconds"] for epoch in one["epochs"]],
                               [epoch["train_loss"] for epoch in one["epochs"]]) for one in trainings])
    axes.set_xlim(0, None)
    axes.set_ylim(0, None)
    _name_ends(axes, ends)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("training loss")
    return svg.inline(figure, key, "Lines of training loss over seconds; after the last epoch: " + "; ".join(
        f"{one['sync']} {one['epochs'][-1]['train_loss']:.3f} at {units.seconds(one['epochs'][-1]['seconds'])}"
        for one in trainings if one["epochs"]))


def accuracy(key: str, trainings: list[Entry]) -> str:
    return _test_score(key, trainings, "accuracy", 100, " %", "{:.2f} %")


def rmse(key: str, trainings: list[Entry]) -> str:
    return _test_score(key, trainings, "rmse", 1, "", "{:.4g}")


def _test_score(key: str, trainings: list[Entry], name: str, scale: float, unit: str, shown: str) -> str:
    """Lines of test_NAME of the epochs, in `scale`, and dots at target_NAME."""
    what = "test RMSE" if name == "rmse" else "test accuracy"
    side = -1 if name == "accuracy" else 1  # the target's name is on the side of worse scores
    figure, axes = _lines()
    ends = _sync_lines(axes, [(one["sync"], [epoch["seconds"] for epoch in one["epochs"]],
                               [scale * epoch["test_" + name] for epoch in one["epochs"]]) for one in trainings])
    for target in sorted({one["target_" + name] for one in trainings if one.get("target_" + name)}):
        axes.axhline(scale * target, color=svg.color("muted"), linewidth=1.3, linestyle=_REFERENCE)
        axes.annotate(f"target {scale * target:g}{unit}", (1, scale * target), xycoords=("axes fraction", "data"),
                      ha="right", va="top" if side < 0 else "bottom", xytext=(0, 2 * side), textcoords="offset points",
                      color=svg.color("muted"), size=svg.FONT_SIZE - 1)
    axes.set_xlim(0, None)
    _name_ends(axes, ends)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel(what + (", %" if unit else ""))
    return svg.inline(figure, key, f"Lines of {what} over seconds; after the last epoch: " + "; ".join(
        f"{one['sync']} {shown.format(scale * one['epochs'][-1]['test_' + name])} at "
        f"{units.seconds(one['epochs'][-1]['seconds'])}" for one in trainings if one["epochs"]))


def _exchange(key: str, times: list[Entry], field: str, label: str) -> str:
    lines: dict[str, list[tuple[int, float]]] = {}
    for one in sorted(times, key=lambda one: one["bytes"]):
        if (one[field] or 0) > 0:
            lines.setdefault(one["sync"], []).append((one["bytes"], one[field]))
    sizes = sorted({one["bytes"] for one in times})
    if lines and len(sizes) < _POINTS_OF_A_LINE:
        return _few_bars(key, [(f"{sync}, {units.data(size)}", sync, value)
                               for sync in sorted(lines, key=labels.sync_order) for size, value in lines[sync]],
                         label, log=True)
    figure, axes = _lines(log_x=True)
    ends = _sync_lines(axes, [(sync, [x for x, _ in lines[sync]], [y for _, y in lines[sync]])
                              for sync in sorted(lines, key=labels.sync_order)])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    shown = [size for size in (1 << power for power in range(0, 64, 4)) if sizes[0] <= size <= sizes[-1]]
    axes.xaxis.set_major_locator(FixedLocator(shown if len(shown) > 1 else sizes[:1] + sizes[-1:]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: units.data(value)))
    decades = math.log10(max(y for line in lines.values() for _, y in line)
                         / min(y for line in lines.values() for _, y in line)) if lines else 0
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2.5 else (1,)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.set_xlabel("size of the parameter vector")
    axes.set_ylabel(label)
    _name_ends(axes, ends)
    return svg.inline(figure, key, f"Lines of {label} over the exchanged size, both axes logarithmic; at "
                      f"{units.data(sizes[-1])}: " + "; ".join(
                          f"{one['sync']} {units.significant(one[field])}" for one in times
                          if one["bytes"] == sizes[-1]))


def exchange_latency(key: str, times: list[Entry]) -> str:
    return _exchange(key, times, "latency_us", "latency, µs")


def exchange_bandwidth(key: str, times: list[Entry]) -> str:
    return _exchange(key, times, "bus_gb_per_s", "bus bandwidth, GB/s")


def cpu(key: str, rows: list[Entry]) -> str:
    """One segment per process; servers are hatched."""
    figure, axes = _bars(len(rows))
    axes.set_yticks(range(len(rows)), [labels.short(row["label"]) for row in rows])
    totals = []
    for place, row in enumerate(rows):
        left = 0.0
        for name, _, value in view.processes(row["configuration"]):
            if value:
                color = svg.color(svg.sync_color_name(row["sync"]))
                is_server = name.startswith("server")
                axes.barh(place, value, 0.62, left=left, facecolor="none" if is_server else color, edgecolor=color,
                          hatch="////" if is_server else None, linewidth=1.2)
                axes.plot([left + value] * 2, [place - 0.31, place + 0.31], color=svg.color("ink"), linewidth=1)
                left += value
        totals.append(left)
    for place, total in enumerate(totals):
        axes.text(total + 0.02 * max(totals), place, f"{total:.0f} %", va="center", size=svg.FONT_SIZE - 1)
    axes.set_xlim(0, (max(totals) or 1) * 1.24)
    axes.set_xlabel("CPU use, % of one core")
    return svg.inline(figure, key, "Bars of CPU use in percent of one core, all processes: " + "; ".join(
        f"{row['label']} {total:.0f}" for row, total in zip(rows, totals)))


def gpu(key: str, rows: list[Entry]) -> str:
    figure, axes = _bars(len(rows))
    axes.set_yticks(range(len(rows)), [labels.short(row["label"]) for row in rows])
    texts = [units.gpu(row["gpu"]["percent"], row["gpu"]["memory_bytes"]) for row in rows]
    for place, (row, text) in enumerate(zip(rows, texts)):
        percent = row["gpu"]["percent"] or 0.0
        axes.barh(place, percent, 0.62, color=svg.color(svg.sync_color_name(row["sync"])))
        axes.text(percent + 1.5, place, text, va="center", size=svg.FONT_SIZE - 1)
    axes.set_xlim(0, 150)
    axes.set_xticks(range(0, 101, 25))
    axes.set_xlabel("GPU use, %")
    return svg.inline(figure, key, "Bars of GPU use: " + "; ".join(
        f"{row['label']} {text}" for row, text in zip(rows, texts)))
