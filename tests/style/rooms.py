"""Finds rooms that are too full, and circles: files, or folders, that need each other.

A file needs the files that it includes (C++) or imports (Python, also for its types alone). A folder needs the folders
of the files that its own files need. Folders within each other count as any two folders. A reader can then read a
folder after those it needs, and change it without those that do not need it.
"""

import ast
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping

FILES_MAX = 25  # of a folder: sources and headers
FULLER = ("kernels/cuda",)  # a kernel a file
SOURCES = (".h", ".cuh", ".cc", ".cu", ".c", ".py", ".sh", ".proto")
PRODUCTION = ("bench/", "common/", "deploy/", "kernels/", "proto/", "server/", "worker/")
_INCLUDE = re.compile(r'^\s*#include "([^"]+)"', re.M)
_PROTO_IMPORT = re.compile(r'^import "([^"]+)";', re.M)


def full_rooms(paths: Iterable[str]) -> Iterator[str]:
    """"folder: how many files it has", for each that has too many."""
    counts: dict[str, int] = {}
    for path in paths:
        folder = posixpath.dirname(path)
        if path.endswith(SOURCES) and not path.startswith("third_party/") and folder not in FULLER:
            counts[folder] = counts.get(folder, 0) + 1
    for folder, count in sorted(counts.items()):
        if count > FILES_MAX:
            yield f"{folder}: {count} files, {FILES_MAX} are the limit"


def _modules(path: str, text: str) -> Iterator[str]:
    """The modules that a Python file imports, as dotted names; those of its own package begin with a dot."""
    for node in ast.walk(ast.parse(text, path)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module
            # A name may be a module of the package.
            yield from ((module if module.endswith(".") else module + ".") + name.name for name in node.names)


def needs(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """By file of `texts` (path: content) the other files of `texts` that it needs."""
    # Bazel's `imports` put the folders of bench/ and the packages of worker/python on the path.
    by_name: dict[str, list[str]] = {}
    for path in texts:
        if path.endswith(".py"):
            parts = path[:-3].split("/")
            for first in range(len(parts)):
                if "/".join([*parts[:first], "__init__.py"]) not in texts:  # a package is imported by its whole name
                    by_name.setdefault(".".join(parts[first:]), []).append(path)

    def found(path: str, module: str) -> str | None:
        folder = posixpath.dirname(path)
        if module.startswith("."):
            near = posixpath.join(folder, module.lstrip(".").replace(".", "/") + ".py")
            return near if near in texts else None
        near = posixpath.join(folder, module.replace(".", "/") + ".py")
        if near in texts and posixpath.join(folder, "__init__.py") not in texts:
            return near
        others = by_name.get(module, [])
        return others[0] if len(others) == 1 else None

    graph: dict[str, set[str]] = {}
    for path, text in texts.items():
        if path.endswith(".py"):
            wanted: set[str | None] = {found(path, module) for module in _modules(path, text)}
        elif path.endswith(".proto"):
            wanted = set(_PROTO_IMPORT.findall(text))
        else:
            wanted = set(_INCLUDE.findall(text))
        graph[path] = {other for other in wanted if other is not None and other in texts and other != path}
    return graph


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The sets of nodes that reach each other, each sorted: strongly connected components, by Tarjan's algorithm
    (SIAM J. Comput. 1972) without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    result = []
    for root in sorted(graph):
        if root in index:
            continue
        work = [(root, iter(sorted(graph[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, others = work[-1]
            for other in others:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(sorted(graph.get(other, ())))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component: list[str] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    if len(component) > 1:
                        result.append(sorted(component))
    return result


def of_folders(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    folders: dict[str, set[str]] = {}
    for path, others in graph.items():
        folder = posixpath.dirname(path)
        folders.setdefault(folder, set()).update(
            {posixpath.dirname(other) for other in others} - {folder})
    return folders


def problems(texts: Mapping[str, str]) -> Iterator[str]:
    """A line for each circle among the production code of `texts`, with the files that close it."""
    graph = needs({path: text for path, text in texts.items()
                   if path.startswith(PRODUCTION) and path.endswith(SOURCES) and not path.endswith(".sh")})
    for circle in circles(graph):
        yield "these files need each other: " + ", ".join(circle)
    for circle in circles(of_folders(graph)):
        closing = [f"{path} needs {other}" for path in sorted(graph) for other in sorted(graph[path])
                   if posixpath.dirname(path) in circle and posixpath.dirname(other) in circle
                   and posixpath.dirname(path) != posixpath.dirname(other)]
        yield f"these folders need each other: {', '.join(circle)}\n    " + "\n    ".join(closing)
