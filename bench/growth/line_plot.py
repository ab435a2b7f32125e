"""Draws lines over logarithmic axes as an SVG file, without matplotlib, which `bazel run` may lack."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Callable, Sequence

WIDTH, HEIGHT = 1152, 460  # as wide as the page of the report
_LEFT, _TOP, _BOTTOM, _LEGEND = 76, 34, 46, 330
# Okabe and Ito's colours, which the colour-blind tell apart too.
COLORS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#806000", "#404040")


@dataclasses.dataclass(frozen=True)
class Line:
    name: str
    x: Sequence[float]
    y: Sequence[float]  # above 0
    low: Sequence[float] = ()  # the band, or empty
    high: Sequence[float] = ()
    dashed: bool = False


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten within the range; over more than two decades the powers alone."""
    steps = (1,) if high / low > 200 else (1, 2, 5)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [step * 10.0 ** power for power in powers for step in steps
            if low <= step * 10.0 ** power * (1 + 1e-9) and step * 10.0 ** power <= high * (1 + 1e-9)]


def _scale(low: float, high: float, first: float, last: float) -> Callable[[float], float]:
    spread = math.log(high / low) or 1.0
    return lambda value: first + (last - first) * math.log(value / low) / spread


def draw(title: str, x_label: str, y_label: str, lines: Sequence[Line], extrapolated_from: float | None = None) -> str:
    """The <svg> of `lines`, of which at least one has a point. Right of `extrapolated_from` the ground is grey."""
    every_x = sorted({value for line in lines for value in line.x})
    every_y = [value for line in lines for values in (line.y, line.low, line.high) for value in values]
    x = _scale(every_x[0], every_x[-1], _LEFT, WIDTH - _LEGEND)
    y = _scale(min(every_y), max(every_y), HEIGHT - _BOTTOM, _TOP)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
             f'font-family="sans-serif" font-size="13"><title>{html.escape(title)}</title>'
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
             f'<text x="{_LEFT}" y="20" font-weight="bold">{html.escape(title)}</text>']
    if extrapolated_from is not None and extrapolated_from < every_x[-1]:
        left = x(max(extrapolated_from, every_x[0]))
        parts.append(f'<rect x="{left:.1f}" y="{_TOP}" height="{HEIGHT - _TOP - _BOTTOM}" '
                     f'width="{WIDTH - _LEGEND - left:.1f}" fill="#f0f0f0"/>'
                     f'<text x="{left + 4:.1f}" y="{_TOP + 14}" fill="#666">extrapolated</text>')
    for value in _ticks(min(every_y), max(every_y)):
        parts.append(f'<path d="M{_LEFT} {y(value):.1f}H{WIDTH - _LEGEND}" stroke="#ddd"/>'
                     f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,g}</text>')
    for value in every_x:
        parts.append(f'<text x="{x(value):.1f}" y="{HEIGHT - _BOTTOM + 18}" text-anchor="middle">{value:,g}</text>')
    parts.append(f'<text x="{(_LEFT + WIDTH - _LEGEND) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">'
                 f'{html.escape(x_label)}</text><text x="16" y="{HEIGHT / 2:.0f}" text-anchor="middle" '
                 f'transform="rotate(-90 16 {HEIGHT / 2:.0f})">{html.escape(y_label)}</text>')
    for place, line in enumerate(lines):
        color = COLORS[place % len(COLORS)]
        points = " ".join(f"{x(one):.1f},{y(other):.1f}" for one, other in zip(line.x, line.y))
        if line.low:
            band = [*zip(line.x, line.high), *reversed(list(zip(line.x, line.low)))]
            corners = " ".join(f"{x(one):.1f},{y(other):.1f}" for one, other in band)
            parts.append(f'<polygon points="{corners}" fill="{color}" opacity="0.08"/>')
        dash = ' stroke-dasharray="5 3"' if line.dashed else ""
        middle = _TOP + 14 + 20 * place
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"{dash}/>'
                     f'<path d="M{WIDTH - _LEGEND + 16} {middle}h24" stroke="{color}" stroke-width="2"{dash}/>'
                     f'<text x="{WIDTH - _LEGEND + 46}" y="{middle + 4}">{html.escape(line.name)}</text>')
    return "".join(parts) + "</svg>\n"


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
