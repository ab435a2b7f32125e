"""Prints what the package has: a line for each module."""

import ast
import pathlib
import sys
from typing import Iterator


def lines() -> Iterator[str]:
    """Of each module how to use it, and the first line of its text."""
    for path in sorted(pathlib.Path(__file__).parent.glob("[a-z]*.py")):
        text = path.read_text(encoding="utf-8")
        first = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
        way = "python3 -m" if '\nif __name__ == "__main__":' in text else "import"
        yield f"{way} starring.{path.stem}".ljust(30) + first.rstrip(":,.")


if __name__ == "__main__":
    is_asked = sys.argv[1:] == ["--help"]
    print("starring is a package of these modules:", *lines(), sep="\n", file=sys.stdout if is_asked else sys.stderr)
    sys.exit(0 if is_asked else 2)
