"""Makes the two pictures of README.md from a folder that bench/compare has written.

    bazel run //bench:compare -- --syncs=star,ring,ddp --workers=1,2 --model=mlp --out=$PWD/report
    python3 bench/pictures.py --report=report --trace=trace-equal-workers-star.json --out=bench/pictures

report.png is the head of the report's page, as chromium shows it (apt-get install chromium python3-pil).
Beside it, report.layout has the hash of the page's template: a test says when the picture shows an older layout.
timeline.svg is one step of worker 0 and server 0 out of the trace: what Perfetto would show, without Perfetto.
"""

import argparse
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
# These decide how a report looks.
LAYOUT = ("bench/compare/report/page.html.j2", "bench/compare/report/style.css")
# The page at the width of a laptop, down to the end of its first plots.
REPORT_WIDTH, REPORT_HEIGHT = 1280, 1260
REPORT_COLORS = 64

WIDTH, LEFT, RIGHT, TOP = 960, 220, 22, 34
MARKS_MAX = 12
ROW, GAP, LEGEND = 22, 10, 44
# By the beginning of an event's name; the first that fits.
COLORS = (("forward", "#8aa6c6"), ("loss", "#6f86a5"), ("backward", "#4f6f96"), ("wait for", "#e3e6ea"),
          ("wait", "#c2185b"), ("data wait", "#cfa000"), ("submit", "#1c2430"), ("send", "#0072b2"),
          ("receive", "#56b4e9"), ("sum", "#7a5cb8"), ("apply", "#a88ee6"))
LEGENDS = (("forward", "forward"), ("backward", "backward"), ("wait", "wait for parameters: exposed exchange"),
           ("send", "send"), ("receive", "receive"), ("sum", "sum and apply"))


class PictureError(Exception):
    """A picture that cannot be made, and what to do."""


@dataclass(frozen=True)
class Span:
    """What a thread did. Times are microseconds."""

    row: tuple[int, int]
    name: str
    begin: float
    end: float
    step: int
    bucket: int


@dataclass(frozen=True)
class Timeline:
    """A merged trace: names of rows by (process, thread), in the order of the file, and all spans."""

    rows: dict[tuple[int, int], str]
    spans: list[Span]


def read_timeline(trace: dict[str, Any]) -> Timeline:
    """Takes a merged trace (bench/compare) apart."""
    processes, threads, spans = {}, {}, []
    for event in trace["traceEvents"]:
        row = (event.get("pid", 0), event.get("tid", 0))
        if event["name"] == "process_name":
            processes[row[0]] = event["args"]["name"]
        elif event["name"] == "thread_name":
            threads[row] = event["args"]["name"]
        elif event["ph"] == "X":
            labels = event.get("args", {})
            spans.append(Span(row, event["name"], event["ts"], event["ts"] + event["dur"], labels.get("step", -1),
                              labels.get("bucket", -1)))
    return Timeline({row: f"{processes[row[0]]}: {name}" for row, name in sorted(threads.items())}, spans)


def step_of(timeline: Timeline) -> int:
    """The step of median length of worker 0: neither the first, which warms up, nor one that was disturbed."""
    steps = sorted((span.end - span.begin, span.step) for span in timeline.spans
                   if span.name == "step" and timeline.rows[span.row].startswith("worker 0"))
    if not steps:
        raise PictureError("the trace has no step of worker 0: give a merged trace that bench/compare wrote")
    return steps[len(steps) // 2][1]


def color_of(name: str) -> str:
    """The colour of an event; grey for one that has none of its own."""
    return next((color for prefix, color in COLORS if name.startswith(prefix)), "#a9b0bb")


def draw_timeline(timeline: Timeline, step: int, processes: Sequence[str] = ("worker 0", "server 0")) -> str:
    """`step` as SVG, from its first forward to the last of its buckets, with one row for each thread of `processes`."""
    chosen = [span for span in timeline.spans if span.step == step and span.name != "step"
              and timeline.rows[span.row].split(":")[0] in processes]
    computed = [span for span in chosen if span.name.startswith(("forward", "loss", "backward"))]
    if not computed:
        raise PictureError(f"the trace has no layers of step {step}: choose another by --step")
    begin = min(span.begin for span in computed)
    # The waits for a step's buckets are in the next forward.
    chosen += [span for span in timeline.spans if span.step == step + 1 and span not in chosen
               and span.name.startswith("forward") and timeline.rows[span.row].startswith(processes[0])]
    end = max(span.end for span in chosen)
    rows = [row for row in timeline.rows if any(span.row == row and span.end > begin for span in chosen)]
    height = TOP + len(rows) * (ROW + GAP) + LEGEND
    scale = (WIDTH - LEFT - RIGHT) / (end - begin)

    def x(time: float) -> float:
        return round(LEFT + (max(time, begin) - begin) * scale, 1)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
           'font-family="DejaVu Sans, Verdana, sans-serif" font-size="12" fill="#1c2430">',
           f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>']
    length_ms = (end - begin) / 1000
    every = next(ms for ms in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, length_ms) if length_ms / ms <= MARKS_MAX)
    for number in range(int(length_ms / every) + 1):
        mark = number * every
        at = x(begin + 1000 * mark)
        out.append(f'<path d="M{at} {TOP - 10}V{height - LEGEND}" stroke="#d3d8e0"/>'
                   f'<text x="{at}" y="{TOP - 16}" text-anchor="middle" fill="#566173">{mark:g} ms</text>')
    for i, row in enumerate(rows):
        top = TOP + i * (ROW + GAP)
        out.append(f'<text x="{LEFT - 8}" y="{top + 15}" text-anchor="end">{escape(timeline.rows[row])}</text>')
        for span in sorted((one for one in chosen if one.row == row and one.end > begin), key=lambda one: one.begin):
            width = max(round(x(span.end) - x(span.begin), 1), 0.6)
            title = span.name + (f", bucket {span.bucket}" if span.bucket >= 0 else "")
            title += f": {(span.end - span.begin) / 1000:.2f} ms"
            out.append(f'<rect x="{x(span.begin)}" y="{top}" width="{width}" height="{ROW}" '
                       f'fill="{color_of(span.name)}"><title>{escape(title)}</title></rect>')
    at = LEFT
    for name, text in LEGENDS:
        out.append(f'<rect x="{at}" y="{height - 26}" width="11" height="11" fill="{color_of(name)}"/>'
                   f'<text x="{at + 16}" y="{height - 16}">{escape(text)}</text>')
        at += 34 + 7 * len(text)
    return "\n".join(out) + "\n</svg>\n"


def read_trace(path: str) -> Any:
    """A merged trace, compressed or not."""
    try:
        if path.endswith(".gz"):
            with gzip.open(path, "rt", encoding="utf-8") as packed:
                return json.load(packed)
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise PictureError(f"{path} is no trace: {error}") from error


def layout_hash() -> str:
    """Of the templates without the colours of syncs, as report.layout has it."""
    digest = hashlib.sha256()
    for path in LAYOUT:
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            text = re.sub(r"--sync-[\w-]+: #[0-9a-f]+;", "", file.read())
        digest.update(" ".join(text.split()).encode())
    return digest.hexdigest()[:16]


def take_report(page: str, out: str) -> None:
    """The head of the page as PNG, in few colours: the file is in the repository."""
    browser = shutil.which("chromium")
    if browser is None:
        raise PictureError("no chromium on PATH: apt-get install chromium")
    from PIL import Image  # only here: the timeline needs nothing but Python

    with tempfile.TemporaryDirectory() as folder:
        shot = os.path.join(folder, "shot.png")
        subprocess.run([browser, "--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu",
                        f"--user-data-dir={folder}", f"--window-size={REPORT_WIDTH},{REPORT_HEIGHT}",
                        f"--screenshot={shot}", "file://" + os.path.abspath(page)],
                       check=True, capture_output=True, timeout=120)
        image = Image.open(shot).convert("RGB").quantize(REPORT_COLORS, dither=Image.Dither.NONE)
        image.save(out, optimize=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 2 with a sentence."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--report", required=True, help="the folder that bench/compare wrote")
    parser.add_argument("--trace", help="name of a merged trace in it; without it no timeline.svg")
    parser.add_argument("--step", type=int, help="step to draw; without it the one of median length")
    parser.add_argument("--out", required=True, help="folder of the pictures")
    flags = parser.parse_args(argv)
    try:
        if flags.trace:
            timeline = read_timeline(read_trace(os.path.join(flags.report, flags.trace)))
            step = step_of(timeline) if flags.step is None else flags.step
            with open(os.path.join(flags.out, "timeline.svg"), "w", encoding="utf-8") as file:
                file.write(draw_timeline(timeline, step))
        take_report(os.path.join(flags.report, "index.html"), os.path.join(flags.out, "report.png"))
        with open(os.path.join(flags.out, "report.layout"), "w", encoding="utf-8") as file:
            file.write(layout_hash() + "\n")
    except (PictureError, OSError, subprocess.SubprocessError) as error:
        print(f"pictures: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
