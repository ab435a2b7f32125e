"""Sentences that begin with who, what or of, in comments and pages.

A native reader expects the process or object that acts first. "Who is later joins" needs a second reading, "Latecomers
join" does not. Questions and headings may begin so.
"""

import re
from collections.abc import Iterator

COMMENTED = {".h": "//", ".cc": "//", ".cu": "//", ".cuh": "//", ".proto": "//", ".py": "#", ".sh": "#", ".bzl": "#"}
WORDS = r"(?:Who|What|Of)\b(?!'s)"
# A sentence begins a paragraph, or follows a full stop, a colon or a row's edge.
BEGINNING = re.compile(rf"(?:^|(?<=[.:|] )|(?<=- ))({WORDS}[^.?|]*[.?|]?)")


def paragraphs(path: str, text: str) -> Iterator[str]:
    """The comments of a source, or the paragraphs of a page: each one line."""
    suffix = path[path.rfind("."):] if "." in path else ".bzl" if path.endswith("BUILD") else ""
    mark = COMMENTED.get(suffix)
    if path.endswith(".md"):
        text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        lines = [line if re.match(r"\s*(#|\||- |\d+\. )", line) is None else "\n" + line for line in text.split("\n")]
        yield from ("" if part.startswith("#") else " ".join(part.split("\n"))
                    for part in re.split(r"\n\s*\n|\n(?=\n)", "\n".join(lines)))
        return
    if mark is None:
        return
    comment: list[str] = []
    for line in text.split("\n"):
        match = re.match(rf"\s*{mark} ?(.*)", line)
        if match and match[1].strip():
            comment.append(match[1].strip())
            continue
        yield " ".join(comment)
        comment = []
        trailing = re.search(rf"[;,{{}}(] +{mark} (.*)", line)
        if trailing:
            yield trailing[1]
    yield " ".join(comment)


def sentences(path: str, text: str) -> list[str]:
    """Those that begin so, in the order of the text."""
    return [match[1] for paragraph in paragraphs(path, text)
            for match in BEGINNING.finditer(re.sub(r"\s+", " ", paragraph).strip()) if not match[1].endswith("?")]
