"""Finds dead references: links, paths and labels in pages and comments that lead nowhere.

What counts as a reference, so that ordinary words do not:

    [text](path#anchor)      in a page: the file, relative to the page, and the heading in it
    common/base/limits.h     in a page or a comment: a word with a slash whose first part is a folder of our top level.
                             It is alive if it names a file, a folder, files without their suffix (common/job/layout),
                             or a target (deploy/launch). `*` stands for anything, {a,b} for either; a word with <...>,
                             $... or %... in it is a pattern for other words and is not looked up.
    wire/lane.h              the same where wire/ is a folder next to the page or source
    //common/base:limits     in a page or a comment: a Bazel label, as are //common/wire and //common/...
    layout.cc                in a page or a comment: a source's name without its folder. It is alive if a file of ours
                             has it, or if a source of ours includes a file of that name.
    server/README.md#limits  anywhere, strings included: a page, and the heading in it

A part in capital letters (tests/fuzz/corpus/TARGET) is a pattern as well. Words with a slash that are no path
("worker-server pairs") are best written with a hyphen.
"""

import ast
import fnmatch
import io
import os
import posixpath
import re
import tokenize
from collections.abc import Iterator, Mapping

CPP = (".h", ".cc", ".cu", ".cuh", ".proto")
HASH = (".py", ".sh", ".bzl", ".sbatch", ".textproto", ".yml", ".yaml", "BUILD", "WORKSPACE", ".bazelrc", ".gitignore")

_CPP_TOKEN = re.compile(
    r'R"([^()\s\\]*)\((?:.*?)\)\1"'  # a raw string
    r'|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\''
    r"|(?P<line>//[^\n]*)|(?P<block>/\*.*?\*/)", re.S)
_PREFIX = re.compile(r"\bbazel-bin/|(?<![\w./])\./")
_LINK = re.compile(r"\[[^\]\[]*\]\(([^()\s]+)\)")
_PATH = re.compile(r"(?<![\w./$@:~*<>{}-])([\w.-]+/[\w./{},*<>$%-]*)")
_LABEL = re.compile(r"(?<![\w:/@.\"])//([\w./-]*\w(?:/\.\.\.)?)?(?::([\w.+/-]*\w))?")
_PAGE = re.compile(r"(?<![\w./$-])((?:[\w.-]+/)*\w[\w.-]*\.md)(#[\w-]+)?")
_NAME = re.compile(r"(?<![\w./$*{}<>-])([a-z]\w*\.(?:h|cc|cu|cuh|py|sh|proto|bzl|sbatch|textproto))\b(?![\w/(*-])")
_PATTERN = re.compile(r"[<>$%]|(?:^|[/:.])(?!README|BUILD|LICENSE|WORKSPACE)[A-Z_]{2,}(?:[/:.]|$)")


def comments_of(path: str, text: str) -> list[tuple[int, str]]:
    """The lines of `text` that people read, each with its number: of a page all, of a source its comments."""
    if path.endswith(".md"):
        return list(enumerate(text.split("\n"), 1))
    if path.endswith(CPP):
        found = []
        for match in _CPP_TOKEN.finditer(text):
            comment = match["line"] or match["block"]
            if comment:
                first = text.count("\n", 0, match.start()) + 1
                found += [(first + i, line[2:] if i == 0 else line) for i, line in enumerate(comment.split("\n"))]
        return found
    if path.endswith(".py"):
        return _comments_of_python(text)
    if path.endswith(HASH) or text.startswith("#!"):
        return [(number, hashed[1]) for number, line in enumerate(text.split("\n"), 1)
                if (hashed := re.search(r"(?:^|\s)#(.*)", line))]
    return []


def _comments_of_python(text: str) -> list[tuple[int, str]]:
    try:
        found = [(token.start[0], token.string[1:]) for token in tokenize.generate_tokens(io.StringIO(text).readline)
                 if token.type == tokenize.COMMENT]
        for node in ast.walk(ast.parse(text)):
            # Docstrings: expressions that are nothing but a string.
            value = node.value if isinstance(node, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                lines = text.split("\n")[value.lineno - 1:value.end_lineno]
                found += list(enumerate(lines, value.lineno))
    except (SyntaxError, tokenize.TokenError):
        return []  # reported by another check
    return found


def anchors_of(page: str) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    anchors: set[str] = set()
    fenced = False
    for line in page.split("\n"):
        if line.startswith("```"):
            fenced = not fenced
        match = re.match(r"#+ +(.*?) *$", line)
        if not match or fenced:
            continue
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1])
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        anchor, again = name, 0
        while anchor in anchors:
            again += 1
            anchor = f"{name}-{again}"
        anchors.add(anchor)
    return anchors


class Tree:
    """What can be referred to: `files` maps the path of every file to its text, or to None if it is no text."""

    def __init__(self, files: Mapping[str, str | None]) -> None:
        self._files = files
        self._folders = {"/".join(path.split("/")[:i]) for path in files for i in range(1, path.count("/") + 1)}
        self._top = sorted({path.split("/")[0] for path in files if "/" in path and not path.startswith(".")})
        # A path without its suffixes: common/job/layout for common/job/layout.h and common/job/layout.cc.
        self._stems = {posixpath.join(posixpath.dirname(path), posixpath.basename(path).split(".")[0])
                       for path in files if posixpath.basename(path).split(".")[0]}
        self._anchors = {path: anchors_of(text or "") for path, text in files.items() if path.endswith(".md")}
        self._names = {posixpath.basename(path) for path in files}
        self._includes: set[str] = set()
        for path, text in files.items():
            if path.endswith((".h", ".cc", ".cu", ".cuh")):
                self._includes.update(re.findall(r'^#\s*include\s+[<"]([^>"]+)', text or "", re.M))
            elif posixpath.basename(path) == "BUILD":
                self._names |= set(_outputs_of(text or ""))
        self._names |= {posixpath.basename(name) for name in self._includes}
        self._suffixes = {suffix for path, text in files.items() if path.endswith(".bzl")
                          for suffix in re.findall(r'\bname = name \+ "(\w+)"', text or "")}

    def dead_references(self, path: str) -> Iterator[tuple[int, str]]:
        """Line and explanation of every reference in the file `path` that leads nowhere."""
        text = self._files[path]
        if not text:
            return
        for number, line in enumerate(text.split("\n"), 1):
            for match in _PAGE.finditer(line):
                if "/" in match[1] and match[1].split("/")[0] in self._top or match[1] == "README.md" and match[2]:
                    yield from self._dead_page(number, match[1], match[2], path)
        for number, line in comments_of(path, text):
            yield from self._dead_in_line(path, number, line)

    def _dead_page(self, number: int, page: str, anchor: str | None, path: str) -> Iterator[tuple[int, str]]:
        # In a page a link is relative to it, and is judged as a link.
        if path.endswith(".md") and posixpath.normpath(posixpath.join(posixpath.dirname(path), page)) in self._files:
            return
        if page not in self._files:
            yield number, f"{page}: there is no such page"
        elif anchor and anchor[1:] not in self._anchors[page]:
            yield number, f"{page}{anchor}: the page has no such heading"

    def _dead_in_line(self, path: str, number: int, line: str) -> Iterator[tuple[int, str]]:
        if path.endswith(".md"):
            for match in _LINK.finditer(line):
                problem = self._dead_link(path, match[1])
                if problem:
                    yield number, problem
            line = _LINK.sub(" ", line)
        line = _PREFIX.sub("", re.sub(r"\w+://\S*", " ", line))
        for match in _LABEL.finditer(line):
            package, target = match[1] or "", match[2]
            is_pattern = _PATTERN.search(match[0]) or re.match(r"[/:]?[<$%*{]", line[match.end():])
            if is_pattern or package.split("/")[0] not in self._top:
                continue
            if not self._has_label(package, target) and (target or not self._has_package(package)):
                yield number, f"{match[0]}: there is no such target"
        folder = posixpath.dirname(path)
        for match in _PATH.finditer(_LABEL.sub(" ", line)):
            word = match[1].rstrip(".,/-")
            first = word.split("/")[0]
            is_relative = posixpath.join(folder, first) in self._folders
            if _PATTERN.search(word) or not is_relative and (first not in self._top or word.endswith(".md")):
                continue
            if not any(self._has_path(each) or is_relative and self._has_path(posixpath.join(folder, each))
                       for each in _alternatives(word)):
                yield number, f"{word}: there is no such file, folder or target"
        for match in _NAME.finditer(line):
            if match[1] not in self._names:
                yield number, f"{match[1]}: there is no file of that name"

    def _dead_link(self, path: str, link: str) -> str | None:
        if re.match(r"\w+:", link):
            return None
        target, _, anchor = link.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), target)) if target else path
        if file not in self._files and file not in self._folders and file != ".":
            return f"({link}): there is no such file or folder"
        if anchor and file.endswith(".md") and anchor not in self._anchors[file]:
            return f"({link}): the page has no such heading"
        return None

    def _has_path(self, word: str) -> bool:
        if "*" in word:
            return any(fnmatch.filter(names, word) for names in (self._files, self._folders, self._stems))
        if any(word in known for known in (self._files, self._folders, self._stems, self._includes)):
            return True
        if re.search(r"\.(grpc\.)?pb\.(h|cc)$", word):  # made by protoc
            return re.sub(r"\.(grpc\.)?pb\.(h|cc)$", ".proto", word) in self._files
        folder, name = posixpath.split(word)
        return self._has_label(folder, name)

    def _has_package(self, package: str) -> bool:
        if package.endswith("/..."):
            folder = package[:-len("...")]
            return any(path.startswith(folder) and posixpath.basename(path) == "BUILD" for path in self._files)
        return posixpath.join(package, "BUILD") in self._files

    def _has_label(self, package: str, target: str | None) -> bool:
        build = self._files.get(posixpath.join(package, "BUILD"))
        if build is None:
            return False
        target = target or posixpath.basename(package)
        if target == "all" or posixpath.join(package, target) in self._files:
            return True
        names = re.findall(r'\bname = "([^"]+)"', build)
        # Rules made in a loop: [starring_cc_test(name = stem + "_test", ...) for stem in ["a", "b"]].
        names += ["*" + suffix for suffix in re.findall(r'\bname = \w+ \+ "([^"]+)"', build)]
        # Further rules that a rule of ours makes, and files that a rule makes.
        names += [name + suffix for name in names for suffix in self._suffixes] + _outputs_of(build)
        return any(fnmatch.fnmatchcase(target, name.replace("%s", "*").replace("{}", "*")) for name in names)


def _outputs_of(build: str) -> list[str]:
    return [name for names in re.findall(r"\bouts = \[([^\]]*)\]", build) for name in re.findall(r'"([^"]+)"', names)]


def _alternatives(word: str) -> list[str]:
    """common/job/layout.{h,cc} -> common/job/layout.h and common/job/layout.cc: one that exists is enough."""
    match = re.search(r"\{([^{}]*)\}", word)
    if not match:
        return [word]
    return [each for choice in match[1].split(",")
            for each in _alternatives(word[:match.start()] + choice + word[match.end():])]


def read_tree(root: str, paths: list[str]) -> Tree:
    """The files `paths` of the repository at `root`."""
    files: dict[str, str | None] = {}
    for path in paths:
        try:
            with open(os.path.join(root, path), encoding="utf-8", newline="") as file:
                files[path] = file.read()
        except UnicodeDecodeError:
            files[path] = None
    return Tree(files)
