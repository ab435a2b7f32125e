"""Draws ratios over numbers of workers as an SVG file, without matplotlib, which `bazel run` may lack."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Callable, Sequence

WIDTH, HEIGHT = 1152, 460  # as wide as the page of the report
_LEFT, _TOP, _BOTTOM, _LEGEND = 76, 34, 46, 330
# Okabe and Ito's colours, which the colour-blind tell apart too.
COLORS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#806000", "#404040")
RATIO_MAX = 3.0  # slower ones are drawn there, or nothing could be told of the fast ones
_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # between ticks, of which there are at most ten


@dataclasses.dataclass(frozen=True)
class Line:
    name: str
    x: Sequence[float]
    y: Sequence[float]
    band: Sequence[tuple[float, float]] = ()  # low and high at each x, or empty
    dashed: bool = False


def _scale(low: float, high: float, first: float, last: float) -> Callable[[float], float]:
    spread = (high - low) or 1.0
    return lambda value: first + (last - first) * (min(value, high) - low) / spread


def draw(title: str, x_label: str, lines: Sequence[Line]) -> str:
    """The <svg> of `lines`, of which at least one has a point."""
    every_x = sorted({value for line in lines for value in line.x})
    every_y = [value for line in lines for values in (line.y, *line.band) for value in values]
    bottom, top = min(every_y), min(RATIO_MAX, max(*every_y, 1.05))
    by_log = _scale(math.log(every_x[0]), math.log(every_x[-1]), _LEFT + 10, WIDTH - _LEGEND - 10)
    y = _scale(bottom, top, HEIGHT - _BOTTOM, _TOP)

    def at(count: float, ratio: float) -> str:
        return f"{by_log(math.log(count)):.1f},{y(ratio):.1f}"

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
             f'font-family="sans-serif" font-size="13"><title>{html.escape(title)}</title>'
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
             f'<text x="{_LEFT}" y="20" font-weight="bold">{html.escape(title)}</text>']
    step = next((one for one in _STEPS if top - bottom <= 10 * one), _STEPS[-1])
    for value in (step * place for place in range(math.ceil(bottom / step), math.floor(top / step) + 1)):
        parts.append(f'<path d="M{_LEFT} {y(value):.1f}H{WIDTH - _LEGEND}" stroke="#ddd"/>'
                     f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>')
    for count in every_x:
        parts.append(f'<text x="{by_log(math.log(count)):.1f}" y="{HEIGHT - _BOTTOM + 18}" text-anchor="middle">'
                     f'{count:,g}</text>')
    parts.append(f'<text x="{(_LEFT + WIDTH - _LEGEND) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">'
                 f'{html.escape(x_label)}</text>')
    for place, line in enumerate(lines):
        color = COLORS[place % len(COLORS)]
        if line.band:
            corners = " ".join(map(at, [*line.x, *reversed(line.x)], [*(high for _, high in line.band),
                                                                      *(low for low, _ in reversed(line.band))]))
            parts.append(f'<polygon points="{corners}" fill="{color}" stroke="{color}" opacity="0.15"/>')
        dash = ' stroke-dasharray="5 3"' if line.dashed else ""
        middle = _TOP + 14 + 20 * place
        points = [at(*point) for point in zip(line.x, line.y)]
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}" stroke-width="2"{dash}/>')
        parts += ['<circle cx="{}" cy="{}" r="3.5" fill="{}"/>'.format(*point.split(","), color) for point in points]
        parts.append(f'<path d="M{WIDTH - _LEGEND + 16} {middle}h24" stroke="{color}" stroke-width="2"{dash}/>'
                     f'<text x="{WIDTH - _LEGEND + 46}" y="{middle + 4}">{html.escape(line.name)}</text>')
    return "".join(parts) + "</svg>\n"
