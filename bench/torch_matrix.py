#!/usr/bin/env python3
"""Runs the tests of the Python package `starring` under other Pythons: other releases of PyTorch, or one with a GPU.

    bazel run //bench:torch_matrix -- --python=/opt/torch/bin/python3 [--python=...] [--only=MODULE,...]

Prints a table: a row for each test, a column for each Python. A test of GPU tensors is skipped where there is no GPU.
The tests are those of tests/worker/python, with the libstarring.so of this build; STARRING_LIBRARY names another one.

Exit status 0: nothing failed, 1: a test failed, 2: the command line was refused.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODULES = ("torch_bits_test", "torch_gpu_test", "torch_faults_test", "data_test", "models_test")
MODULE_SECONDS_MAX = 900
# "test_modes (torch_bits_test.TorchBitsTest.test_modes) ... ok"; before Python 3.11 without the second test_modes. What
# a test prints may come before the outcome, on other lines.
_TEST = re.compile(r"^(test_\w+) \([\w.]+\)", re.MULTILINE)
_OUTCOME = re.compile(r"(?:\.\.\. |^)(ok|FAIL|ERROR|skipped .*)$", re.MULTILINE)


def parse_outcomes(module: str, text: str) -> dict[str, str]:
    """The outcome of each of the module's tests in what `unittest -v` wrote: passed, FAILED, skipped."""
    found: dict[str, str] = {}
    tests = list(_TEST.finditer(text))
    for number, test in enumerate(tests):
        end = tests[number + 1].start() if number + 1 < len(tests) else len(text)
        outcome = _OUTCOME.search(text, test.end(), end)
        # Without an outcome the process died in the test.
        word = "skipped" if outcome and outcome[1].startswith("skipped") else outcome[1] if outcome else "ERROR"
        row = f"{module.removesuffix('_test')}: {test[1].removeprefix('test_').replace('_', ' ')}"
        # A name may come again: of another class, or with a part of a test that failed.
        if found.get(row) != "FAILED":
            found[row] = {"ok": "passed", "skipped": "skipped"}.get(word, "FAILED")
    return found


def version_of(python: str) -> str:
    """"2.11.0+cu130, Python 3.12.3". OSError or subprocess.CalledProcessError if it has no PyTorch."""
    text = "import sys, torch; print(torch.__version__ + ', Python ' + sys.version.split()[0])"
    return subprocess.run([python, "-c", text], check=True, capture_output=True, text=True, timeout=120).stdout.strip()


def environment(library: str) -> dict[str, str]:
    folders = [os.path.join(ROOT, "worker/python"), os.path.join(ROOT, "tests/worker/python")]
    return {**os.environ, "STARRING_LIBRARY": library, "PYTHONPATH": os.pathsep.join(folders)}


def run_module(python: str, module: str, library: str) -> tuple[dict[str, str], str]:
    """The outcomes of a module's tests, and all that it wrote. Empty outcomes if it skipped itself."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run([python, os.path.join(ROOT, "tests/worker/python", module + ".py"), "-v"], cwd=ROOT,
                                  env={**environment(library), "TEST_TMPDIR": folder}, text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  timeout=MODULE_SECONDS_MAX, check=False)
        except subprocess.TimeoutExpired as error:
            return {module: "FAILED"}, f"no end after {MODULE_SECONDS_MAX} s: {error.output!r}"
    outcomes = parse_outcomes(module, done.stdout)
    if done.returncode != 0 and "FAILED" not in outcomes.values():
        outcomes[module] = "FAILED"
    return outcomes, done.stdout


def table(columns: dict[str, dict[str, str]]) -> list[str]:
    """Lines of Markdown."""
    rows = list(dict.fromkeys(name for outcomes in columns.values() for name in outcomes))
    lines = ["| test | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    lines += [f"| {row} | " + " | ".join(outcomes.get(row, "not there") for outcomes in columns.values()) + " |"
              for row in rows]
    return lines


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", help="a python3 with PyTorch; again for a further column")
    parser.add_argument("--only", default=",".join(MODULES), help="modules of tests, separated by commas")
    flags = parser.parse_args(argv)
    modules = flags.only.split(",")
    if unknown := sorted(set(modules) - set(MODULES)):
        parser.error(f"--only: there is no {', '.join(unknown)}, only {', '.join(MODULES)}")
    library = os.environ.get("STARRING_LIBRARY") or os.path.abspath("worker/python/libstarring.so")
    if not os.path.isfile(library):
        parser.error(f"there is no {library}: use bazel run, or name it by STARRING_LIBRARY")
    columns: dict[str, dict[str, str]] = {}
    for python in flags.python or ["/usr/bin/python3"]:
        try:
            column = version_of(python)
        except (OSError, subprocess.SubprocessError) as error:
            parser.error(f"--python={python} does not run with PyTorch: {error}")
        outcomes: dict[str, str] = {}
        for module in modules:
            found, text = run_module(python, module, library)
            outcomes.update(found)
            if "FAILED" in found.values():
                print(f"{module} under {python}:\n{text}", file=sys.stderr)
        columns[column] = outcomes
    print("\n".join(table(columns)))
    failed = sum(outcome == "FAILED" for outcomes in columns.values() for outcome in outcomes.values())
    ran = sum(outcome == "passed" for outcomes in columns.values() for outcome in outcomes.values())
    print(f"\n{ran} passed, {failed} failed")
    return 1 if failed or ran == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
