"""Turns a matplotlib figure into an SVG element inside an HTML page that takes its colours from the page's style.

A figure is drawn with placeholder colours, such as color("sync-star"). inline() replaces them by var(--sync-star), so
that style.css decides the colour: for light, dark and paper. Text stays text, in the page's font.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from contextlib import AbstractContextManager

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .labels import ALONE, PARTS, SYNCS

COLOR_NAMES = (("ink", "muted", "rule") + tuple("sync-" + sync.replace("+", "-") for sync in SYNCS) + ("sync-unknown",)
               + tuple("part-" + part for part in PARTS))
# Each name has its own colour. None is black, because matplotlib leaves black out of its output.
_COLORS = {name: f"#01{index + 1:02x}fe" for index, name in enumerate(COLOR_NAMES)}
_NAMES = {value: name for name, value in _COLORS.items()}

# A panel is as wide as a phone, so that no text is scaled down there. A larger page shows three in a row. A family of
# fewer panels is drawn once more for it, as wide as the page or half of it; style.css shows one of the two.
WIDTH = 350
PAGE_WIDTH = 1152  # of style.css: the body's largest width without its padding
GAP = 26  # between columns
WIDTHS = {1: PAGE_WIDTH, 2: (PAGE_WIDTH - GAP) // 2}  # by the number of columns
FONT_SIZE = 12

_XLINK = "{http://www.w3.org/1999/xlink}href"


def color(name: str) -> str:
    return _COLORS[name]


def sync_color_name(sync: str) -> str:
    """Gloo, measured alone, has the colour of DDP, whose exchange it is."""
    name = "sync-" + ALONE.get(sync, sync).replace("+", "-")
    return name if name in _COLORS else "sync-unknown"


def style(width: float = WIDTH) -> AbstractContextManager[None]:
    """A context in which figures must be created and drawn, `width` CSS pixels wide."""
    ink, muted, rule = color("ink"), color("muted"), color("rule")
    return matplotlib.rc_context({
        "svg.fonttype": "none", "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": FONT_SIZE,
        "text.color": ink, "axes.labelcolor": ink, "axes.labelsize": FONT_SIZE, "axes.edgecolor": rule,
        "axes.facecolor": "none", "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
        "axes.titlesize": FONT_SIZE, "figure.facecolor": "none", "savefig.facecolor": "none", "grid.color": rule,
        "grid.linewidth": 0.8, "xtick.color": muted, "ytick.color": muted, "xtick.labelcolor": ink,
        "ytick.labelcolor": ink, "xtick.labelsize": FONT_SIZE - 1, "ytick.labelsize": FONT_SIZE - 1,
        "lines.linewidth": 2, "lines.markersize": 5.5, "figure.constrained_layout.use": True,
        "figure.figsize": (width / 72, width / 72),
        "figure.constrained_layout.h_pad": 0.03, "figure.constrained_layout.w_pad": 0.03,
    })


def panel(height: float) -> tuple[Figure, Axes]:
    """A figure of one plot, as wide as its style and `height` high, in CSS pixels."""
    figure = Figure(figsize=(matplotlib.rcParams["figure.figsize"][0], height / 72), dpi=72)
    return figure, figure.add_subplot()


def _restyle(text: str) -> str:
    text = re.sub(r"#01[0-9a-f]{2}fe", lambda match: f"var(--{_NAMES[match[0]]})", text)
    # 'font: 11px "DejaVu Sans"' would override the page's font.
    return re.sub(r"font:\s*(?:[a-z]+ )*([\d.]+)px[^;]*", r"font-size: \1px", text)


def inline(figure: Figure, key: str, description: str) -> str:
    """The <svg> element. `key` makes its ids unique within the page. A screen reader reads `description`."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": key}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(buffer.getvalue())
    used = set(re.findall(r"url\(#([^)]+)\)", buffer.getvalue()))
    used.update(link[1:] for element in root.iter() if (link := element.get(_XLINK)))

    for parent in list(root.iter()):
        for child in list(parent):
            # A <style> would affect the whole page, which has the same rules itself.
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.split("}")[-1]
        target = element.attrib.pop(_XLINK, None)
        if target:
            element.set("href", f"#{key}-{target[1:]}")
        identifier = element.attrib.pop("id", None)
        if identifier is not None and identifier in used:
            element.set("id", f"{key}-{identifier}")
        for name, value in list(element.attrib.items()):
            element.set(name, re.sub(r"url\(#", f"url(#{key}-", _restyle(value)))
    root.attrib = {"viewBox": root.get("viewBox", ""), "role": "img", "aria-label": description}
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)
