#!/usr/bin/python3
"""Prints how many times as long this machine takes to compile as the one on which the budgets of test.sh were set.

The number is between 1 and 4, with two digits: a faster machine does not shrink a budget, and on a machine as slow as
the limit, or a busy one, a part may fail although the tests have not grown. The compiler is g++, as in the build.
"""

from __future__ import annotations

import subprocess
import sys
import time

# Templates of the standard library, as in the build's sources. It includes nothing of ours, so that it never changes.
SOURCE = """
#include <algorithm>
#include <functional>
#include <map>
#include <regex>
#include <string>
bool Matches(const std::string& text) { return std::regex_match(text, std::regex("a*b+[c-e]{2}")); }
std::map<std::string, std::function<int(int)>> table;
"""
# Inferred: an AMD EPYC (Zen 3) takes 7.4 s, and built and tested 2.3 times as long as the budgets' machine (Zen 5).
REFERENCE_SECONDS = 3.2
PACE_MIN, PACE_MAX = 1.0, 4.0
SECONDS_MAX = 120


def compile_seconds(command: list[str]) -> float:
    began = time.monotonic()
    subprocess.run(command, input=SOURCE, text=True, check=True, timeout=SECONDS_MAX)
    return time.monotonic() - began


def pace(seconds: float) -> float:
    return min(max(seconds / REFERENCE_SECONDS, PACE_MIN), PACE_MAX)


def main() -> int:
    command = ["g++", "-O2", "-x", "c++", "-c", "-", "-o", "/dev/null"]
    # The faster of two: the first one also reads the compiler from disk.
    print(f"{pace(min(compile_seconds(command) for _ in range(2))):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
