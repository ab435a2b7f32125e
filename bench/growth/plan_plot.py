"""Draws a plan as an SVG file, without matplotlib, which `bazel run` may lack."""

from __future__ import annotations

import html
import math

import planning

WIDTH, HEIGHT = 1152, 460  # as wide as the page of the report
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, WIDTH - 330, 34, HEIGHT - 46  # of the lines; the legend is right of them
# Okabe and Ito's colours, which the colour-blind tell apart too.
COLORS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#806000", "#404040")
RATIO_MAX = 3.0  # slower ones are drawn there, or nothing could be told of the fast ones
_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # between ticks, of which there are at most ten
_BANDS = 2  # cells that have one


def picture_of(plan: planning.Plan) -> str:
    """Step time over the fastest cell's, with the bands of the two cells that are fastest with most workers."""
    best = {one.point.workers: one.point.step_s for one in planning.winners(plan)}
    drawn = [(line, [point for point in line.points if point]) for line in plan.lines if any(line.points)]
    drawn.sort(key=lambda one: (-one[1][-1].workers, one[1][-1].step_s))
    ratios = [seconds / best[point.workers] for place, (_, points) in enumerate(drawn) for point in points
              for seconds in (point.step_s, point.low_s, point.high_s)[:3 if place < _BANDS else 1]]
    bottom, top = min(ratios), min(RATIO_MAX, max(*ratios, 1.05))
    first, doublings = min(best), math.log(max(best) / min(best)) or 1.0

    def x(workers: int) -> float:
        return _LEFT + 10 + (_RIGHT - _LEFT - 20) * math.log(workers / first) / doublings

    def y(ratio: float) -> float:
        return _BOTTOM + (_TOP - _BOTTOM) * (min(ratio, top) - bottom) / (top - bottom)

    def at(point: planning.Point, seconds: float) -> str:
        return f"{x(point.workers):.1f},{y(seconds / best[point.workers]):.1f}"

    title = html.escape(f"{plan.workload.name}: step time over the fastest cell's, two with bands")
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
             f'font-family="sans-serif" font-size="13"><title>{title}</title>'
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
             f'<text x="{_LEFT}" y="20" font-weight="bold">{title}</text>']
    step = next((one for one in _STEPS if top - bottom <= 10 * one), _STEPS[-1])
    for value in (step * place for place in range(math.ceil(bottom / step), math.floor(top / step) + 1)):
        parts.append(f'<path d="M{_LEFT} {y(value):.1f}H{_RIGHT}" stroke="#ddd"/>'
                     f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>')
    for count in sorted(best):
        parts.append(f'<text x="{x(count):.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{count:,g}</text>')
    parts.append(f'<text x="{(_LEFT + _RIGHT) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">workers</text>')
    for place, (line, points) in enumerate(drawn):
        color = COLORS[place % len(COLORS)]
        if place < _BANDS:
            corners = " ".join([*(at(point, point.high_s) for point in points),
                                *(at(point, point.low_s) for point in reversed(points))])
            parts.append(f'<polygon points="{corners}" fill="{color}" stroke="{color}" opacity="0.15"/>')
        dash = ' stroke-dasharray="5 3"' if line.place.has_servers else ""
        middle = _TOP + 14 + 20 * place
        steps = [at(point, point.step_s) for point in points]
        parts.append(f'<polyline points="{" ".join(steps)}" fill="none" stroke="{color}" stroke-width="2"{dash}/>')
        parts += ['<circle cx="{}" cy="{}" r="3.5" fill="{}"/>'.format(*one.split(","), color) for one in steps]
        parts.append(f'<path d="M{_RIGHT + 16} {middle}h24" stroke="{color}" stroke-width="2"{dash}/>'
                     f'<text x="{_RIGHT + 46}" y="{middle + 4}">{html.escape(line.name)}</text>')
    return "".join(parts) + "</svg>\n"
