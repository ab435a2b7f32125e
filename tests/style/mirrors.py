"""Every header has a test of its name, or is in a list with the reason why it has none.

common/job/layout.h is tested by tests/common/job/layout_test.cc (or .py, .sh), or by a suite that several tests run,
tests/common/<stem>_suite.cc. The test may also be in the folder above.

The list, headers_without_tests.txt, has paragraphs: a reason, which ends in a colon and may have several lines, then
the headers, two spaces in.
"""

import posixpath
from collections.abc import Iterable, Iterator

LIST = "tests/style/headers_without_tests.txt"
_SUFFIXES = ("_test.cc", "_test.py", "_test.sh", "_suite.cc")


def tests_of(header: str) -> list[str]:
    """Paths of which one is the test of `header`."""
    folder, name = posixpath.split(header)
    stem = name.rsplit(".", 1)[0]
    folders = [folder] + ([posixpath.dirname(folder)] if "/" in folder else [])
    return [f"tests/{each}/{stem}{suffix}" for each in folders for suffix in _SUFFIXES]


def untested_headers(paths: Iterable[str]) -> set[str]:
    """The headers of production code that have no test of their name."""
    known = set(paths)
    headers = (path for path in known
               if path.endswith((".h", ".cuh")) and not path.startswith(("tests/", "third_party/")))
    return {header for header in headers if known.isdisjoint(tests_of(header))}


def problems(paths: Iterable[str], text: str) -> Iterator[str]:
    """What is wrong with the list `text`: "line: problem"."""
    untested = untested_headers(paths)
    known = set(paths)
    listed: set[str] = set()
    reason = ""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            reason = ""
        elif not line.startswith(" "):
            reason = line
        else:
            header = line.strip()
            if not reason.endswith(":"):
                yield f"{number}: {header} has no reason above it"
            if header not in known:
                yield f"{number}: {header} does not exist: take it out"
            elif header not in untested:
                yield f"{number}: {header} has a test: take it out"
            elif header in listed:
                yield f"{number}: {header} is here twice"
            listed.add(header)
    for header in sorted(untested - listed):
        yield f"1: {header} has no test: write {tests_of(header)[0]}, or list it with the reason"
