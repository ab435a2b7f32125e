"""Runs shellcheck, flake8 and mypy over every script of the repository, and demands annotated public functions.

Files are found as in style_test.py, so that no file escapes by not being listed. Each linter is shown a seeded error
first: a linter that accepts everything, for example because of a wrong flag, would otherwise pass unnoticed.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import tempfile
import unittest
from collections.abc import Iterator

import style_test

# E402: scripts extend sys.path before they import their siblings. W503, W504: line breaks at operators, either way.
FLAKE8 = ["/usr/bin/python3", "-m", "flake8", "--isolated", f"--max-line-length={style_test.LINE_WIDTH_MAX}",
          "--ignore=E402,W503,W504"]
SHELLCHECK = ["shellcheck", "--external-sources", "--format=gcc"]
MYPY = ["/usr/bin/mypy", "--no-error-summary", "--cache-dir=/dev/null"]

# Scripts of one folder import each other without a package, so mypy sees each such folder in a run of its own.
# {search path: the folders that are checked with it}
MYPY_RUNS = {
    "bench/compare:bench/compare/measured:bench/compare/judgement:bench/netlab:bench/growth:bench/gate":
        ("bench/compare/", "bench/netlab/", "bench/growth/", "bench/gate/"),
    "bench/ddp:worker/python": ("bench/ddp/", "worker/python/"),
    ".:tests/style": ("",),
}


def find_python(paths: list[str]) -> list[str]:
    """All Python of production, and the modules that tests share: these must be annotated. Tests are not called."""
    return [path for path in paths if path.endswith(".py") and not path.endswith("_test.py")]


def is_shell(path: str, text: str) -> bool:
    return path.endswith((".sh", ".sbatch")) or re.match(r"#!.*\b(ba)?sh\b", text) is not None


def find_embedded_shell(text: str) -> Iterator[tuple[int, str]]:
    """(line, script) of each string in a Python file that is a whole shell script."""
    tree = ast.parse(text)
    templates = {id(node.left) for node in ast.walk(tree) if isinstance(node, ast.BinOp)}  # "..." % ...
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in templates:
            if re.match(r"#!/bin/(ba)?sh\n.*\n", node.value):
                yield node.lineno, node.value


def find_unannotated(path: str, text: str) -> Iterator[str]:
    """Public functions and methods that lack the type of an argument or of the result."""
    def visit(node: ast.AST, is_public: bool, depth: int) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                yield from visit(child, is_public and not child.name.startswith("_"), depth)
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                special = child.name.startswith("__") and child.name.endswith("__")
                if is_public and (special or not child.name.startswith("_")):
                    arguments = child.args.posonlyargs + child.args.args + child.args.kwonlyargs
                    arguments += [one for one in (child.args.vararg, child.args.kwarg) if one]
                    bare = [one.arg for one in arguments if one.annotation is None and one.arg not in ("self", "cls")]
                    if bare or child.returns is None:
                        yield f"{path}:{child.lineno}: {child.name} lacks the type of " + ", ".join(
                            bare + ["its result"] * (child.returns is None))
            elif not isinstance(child, ast.expr):
                yield from visit(child, is_public, depth)

    yield from visit(ast.parse(text), True, 0)


def run(command: list[str], folder: str, **environment: str) -> str:
    """Standard output and error of a linter, empty if it finds nothing."""
    done = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout if done.returncode != 0 else ""


def mypy(root: str, search_path: str, paths: list[str]) -> str:
    config = "--config-file=" + os.path.join(style_test.find_repository(), "tests/style/mypy.ini")
    return run([*MYPY, config, *paths], root, MYPYPATH=search_path)


class LintTest(unittest.TestCase):

    def setUp(self) -> None:
        self.root = style_test.find_repository()
        self.paths = style_test.list_files(self.root)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def read(self, path: str) -> str:
        try:
            with open(os.path.join(self.root, path), encoding="utf-8") as file:
                return file.read()
        except UnicodeDecodeError:
            return ""  # an image or a data file

    def write(self, name: str, text: str) -> str:
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)
        return name

    def test_shell(self) -> None:
        seeded = self.write("seeded.sh", "#!/bin/bash\nrm $1/*\n")
        self.assertIn("SC2086", run([*SHELLCHECK, seeded], self.folder))
        scripts = [path for path in self.paths if is_shell(path, self.read(path))]
        self.assertIn("deploy/setup.sh", scripts)
        self.assertEqual(run([*SHELLCHECK, *scripts], self.root), "")

    def test_shell_inside_python(self) -> None:
        seeded = "SCRIPT = '''#!/bin/sh\nrm $1/*\n'''\nTEMPLATE = '''#!/bin/sh\n%s\n''' % 1\n"
        self.assertEqual([line for line, _ in find_embedded_shell(seeded)], [1])
        scripts = [self.write(f"{path.replace('/', '_')}_{line}.sh", script) for path in self.paths
                   if path.endswith(".py") and not path.startswith("tests/style/")
                   for line, script in find_embedded_shell(self.read(path))]
        self.assertTrue(any(name.startswith("tests_deploy_bundle_test") for name in scripts), scripts)
        self.assertEqual(run([*SHELLCHECK, *scripts], self.folder), "")

    def test_python(self) -> None:
        seeded = self.write("seeded.py", "import os\n")
        self.assertIn("F401", run([*FLAKE8, seeded], self.folder))
        self.assertEqual(run([*FLAKE8, *(path for path in self.paths if path.endswith(".py"))], self.root), "")

    def test_types(self) -> None:
        seeded = self.write("seeded.py", "def f(a: int) -> str:\n    return a\n")
        self.assertIn("Incompatible return value", mypy(self.folder, ".", [seeded]))
        left = find_python(self.paths)
        for search_path, folders in MYPY_RUNS.items():
            checked = [path for path in left if path.startswith(folders)]
            self.assertTrue(checked, folders)
            left = [path for path in left if path not in checked]
            self.assertEqual(mypy(self.root, search_path, checked), "")
        self.assertEqual(left, [])

    def test_public_functions_are_annotated(self) -> None:
        seeded = "class A:\n    def f(self, a) -> int: ...\n    def _g(self, a): ...\ndef h(a: int): ...\n"
        self.assertEqual(list(find_unannotated("a.py", seeded)),
                         ["a.py:2: f lacks the type of a", "a.py:4: h lacks the type of its result"])
        self.assertEqual([problem for path in find_python(self.paths)
                          for problem in find_unannotated(path, self.read(path))], [])


if __name__ == "__main__":
    unittest.main()
