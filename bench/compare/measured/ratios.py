"""Compares two configurations by the runs that they made in turns: paired ratios with their confidence intervals.

Words. Two runs are a *pair* if they belong to the same repeat of one group: they ran one shortly after the other, so
what disturbed the machine for longer than a repeat disturbed both, and cancels in their *ratio*. The *ratio* of two
configurations is the geometric mean of their pairs' ratios. Its 95 % interval is Student's t interval of the logarithms
of the pairs' ratios. Two configurations *tie* if the interval contains 1. With fewer than REPEATS_MIN pairs nothing is
decided: t intervals from so few are wide, and too few to show that one run was an outlier. If the medians of the two
say the opposite of their ratio, the interval is widened to 1: a report calls nothing faster that its table shows
slower.

Each interval is one comparison's. No correction is made for the number of comparisons on a page.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TypedDict

import results as schema

REPEATS_MIN = 7
INTERVAL_PAIRS_MIN = 4  # t intervals from fewer say nothing: two pairs have one of 0 to 900
CONFIDENCE = 0.95
NARROW = 0.02  # an interval that two decimals cannot show
_BISECTIONS = 100  # each halves an angle below pi / 2, so 60 reach the precision of a double


class Ratio(TypedDict):
    """How many times as fast the first of two configurations is as the second."""
    value: float
    low: float | None  # of the 95 % interval; None with fewer than INTERVAL_PAIRS_MIN pairs
    high: float | None
    pairs: int


def two_sided_probability(angle: float, freedom: int) -> float:
    """P(|T| < sqrt(freedom) * tan(angle)) of Student's t with `freedom` degrees of freedom (Abramowitz and Stegun,
    26.7.3 and 26.7.4: finite sums, exact for whole degrees of freedom)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(1 + odd, freedom, 2):
        total += term
        term *= cosine * cosine * power / (power + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The t that |T| stays below with probability `confidence`. REQUIRES: freedom >= 1, 0 < confidence < 1."""
    low, high = 0.0, math.pi / 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if two_sided_probability(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def of_pairs(logs: Sequence[float]) -> Ratio:
    """The ratio from the logarithms of its pairs' ratios. REQUIRES: at least one pair."""
    count = len(logs)
    mean = math.fsum(logs) / count
    if count < INTERVAL_PAIRS_MIN:
        return {"value": math.exp(mean), "low": None, "high": None, "pairs": count}
    deviation = math.sqrt(math.fsum((log - mean) ** 2 for log in logs) / (count - 1))
    half = t_quantile(count - 1) * deviation / math.sqrt(count)
    return {"value": math.exp(mean), "low": math.exp(mean - half), "high": math.exp(mean + half), "pairs": count}


def rates_by_repeat(configuration: schema.Configuration) -> dict[int, float]:
    return {run["repeat"]: run["samples_per_second"] for run in configuration["runs"]}


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> Ratio | None:
    """The ratio of `one` to `other`, which are rates by repeat. None if they have no repeat in common."""
    common = sorted(one.keys() & other.keys())
    if not common:
        return None
    found = of_pairs([math.log(one[repeat] / other[repeat]) for repeat in common])
    ahead = statistics.median(one[repeat] for repeat in common) - statistics.median(other[repeat] for repeat in common)
    if found["low"] is not None and found["high"] is not None and ahead * (found["value"] - 1) < 0:
        found["low"], found["high"] = min(found["low"], 1.0), max(found["high"], 1.0)
    return found


def inverse(ratio: Ratio) -> Ratio:
    """The ratio of the second configuration to the first."""
    low, high = ratio["low"], ratio["high"]
    return {"value": 1 / ratio["value"], "low": 1 / high if high else None, "high": 1 / low if low else None,
            "pairs": ratio["pairs"]}


def decided(ratio: Ratio | None) -> bool:
    """Whether there are enough pairs for a verdict."""
    return ratio is not None and ratio["pairs"] >= REPEATS_MIN


def contains_one(ratio: Ratio) -> bool:
    """Whether the difference may be none; without an interval it always may."""
    return ratio["low"] is None or ratio["high"] is None or ratio["low"] <= 1 <= ratio["high"]


def tie(ratio: Ratio | None) -> bool:
    return ratio is not None and decided(ratio) and contains_one(ratio)


def outcome(ratio: Ratio | None) -> str:
    """faster, slower or tie, of the first configuration; undecided without enough pairs."""
    if ratio is None or not decided(ratio):
        return "undecided"
    if contains_one(ratio):
        return "tie"
    return "faster" if ratio["value"] > 1 else "slower"


def decimals(ratio: Ratio) -> int:
    """So many that the ends of its interval differ: 2, or 3 for a narrow one."""
    low, high = ratio["low"], ratio["high"]
    return 3 if low is not None and high is not None and high - low < NARROW else 2


def interval_text(ratio: Ratio) -> str:
    """[1.12, 1.20]; empty if there is none."""
    if ratio["low"] is None or ratio["high"] is None:
        return ""
    digits = decimals(ratio)
    return f"[{ratio['low']:.{digits}f}, {ratio['high']:.{digits}f}]"


def value_text(ratio: Ratio) -> str:
    return f"{ratio['value']:.{decimals(ratio)}f}"


def text(ratio: Ratio) -> str:
    """1.16 [1.12, 1.20]"""
    return f"{value_text(ratio)} {interval_text(ratio)}".rstrip()
