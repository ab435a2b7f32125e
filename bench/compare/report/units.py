"""Formats numbers for people. None, a number that was not measured, is a dash."""

from __future__ import annotations

import math

NONE = "–"
NBSP = "\u00a0"  # a number and its unit stay on one line
_BYTE_UNITS = ("B", "KB", "MB", "GB", "TB")


def count(value: float | None) -> str:
    """74,205; small values keep three digits: 0.52."""
    if value is None:
        return NONE
    if value and abs(value) < 100:
        return significant(value)
    return f"{value:,.0f}"


def significant(value: float | None, digits: int = 3) -> str:
    """The significant digits, never an exponent: 5230, 12.4, 0.0521."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text and abs(value) >= 100 else text


def cores(number: int | None, quota: float | None) -> str:
    """2 cores, quota 0.5; without a quota: 2 cores."""
    text = f"{NONE if number is None else number}{NBSP}core{'' if number == 1 else 's'}"
    return text if quota is None else f"{text}, quota{NBSP}{quota:.3g}"


def milliseconds(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def seconds(value: float | None) -> str:
    if value is None:
        return NONE
    if value >= 3600:
        return f"{value // 3600:.0f}{NBSP}h {value % 3600 / 60:.0f}{NBSP}min"
    if value >= 120:
        return f"{value // 60:.0f}{NBSP}min {value % 60:.0f}{NBSP}s"
    return f"{significant(value)}{NBSP}s"


def percent(fraction: float | None, decimals: int = 0) -> str:
    return NONE if fraction is None else f"{100 * fraction:.{decimals}f}{NBSP}%"


def ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def gpu(use_percent: float | None, memory_bytes: int) -> str:
    return (f"{use_percent:.0f}{NBSP}%" if use_percent is not None else "too short to tell") + f", {data(memory_bytes)}"


def traffic(value: float | None) -> str:
    """Bytes of messages, in powers of 1000: 247 KB, 7.45 MB."""
    return data(value, base=1000)


def data(value: float | None, base: int = 1024) -> str:
    """Bytes of memory, in powers of 1024: 4 KB, 1.5 MB."""
    if value is None:
        return NONE
    power = 0
    while value >= base and power + 1 < len(_BYTE_UNITS):
        value /= base
        power += 1
    number = f"{value:.0f}" if value == round(value) else f"{value:.3g}"
    return number + NBSP + _BYTE_UNITS[power]
