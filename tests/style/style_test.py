"""The house style, as far as a machine can judge it, over every file of the repository.

What is checked: the functions below whose names begin with `check_`. Each takes a path (from the repository's root) and
the text, and yields "line: what is wrong and what to do". StyleTest proves that each finds what it is there to find.
"""

import datetime
import os
import re
import subprocess
import unittest

import mirrors
import references

LINE_WIDTH_MAX = 120
# Pages that a user reads whole, and how many words each may have. Measurements belong in bench/results/.
WORDS_MAX = {"bench/README.md": 2500}
CPP = (".h", ".cc", ".cu", ".cuh")
# Text that people wrap as they like, and text that is not ours.
FREE_WIDTH = (".md", "LICENSE", ".svg", ".json")
# Headers that replace those of others, under their names.
FOREIGN_NAMES = ("tests/cuda_emulation/include/",)


def _lines(text, pattern, flags=0):
    for number, line in enumerate(text.split("\n"), 1):
        match = re.search(pattern, line, flags)
        if match:
            yield number, match


def check_whitespace(path, text):
    if text and not text.endswith("\n"):
        yield f"{text.count(chr(10)) + 1}: the last line has no end"
    if text.endswith("\n\n"):
        yield f"{text.count(chr(10))}: empty lines at the end"
    for number, _ in _lines(text, r"[ \t\r]$"):
        if not path.endswith(".md"):
            yield f"{number}: white space at the end of the line"
    for number, _ in _lines(text, r"\t"):
        yield f"{number}: a tab"


def check_width(path, text):
    if path.endswith(FREE_WIDTH):
        return
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > LINE_WIDTH_MAX and "http" not in line:
            yield f"{number}: {len(line)} characters, {LINE_WIDTH_MAX} are the limit"


def check_words(path, text):
    if path.startswith("tests/style/"):
        return
    for number, match in _lines(text, r"\b(FIXME|XXX|HACK)\b"):
        yield f"{number}: {match[1]}: mend it, or write TO" + "DO(2027-01-31): what is to be done"
    for number, match in _lines(text, r"\bTODO\b(\((\d{4})-(\d\d)-(\d\d)\): \w+)?"):
        try:
            datetime.date(int(match[2]), int(match[3]), int(match[4]))
        except (TypeError, ValueError):
            yield f"{number}: TO" + "DO without what and when: TO" + "DO(2027-01-31): what is to be done"
    # A path of the machine that a file was written on.
    for number, match in _lines(text, r"(?<![\w./-])(/work/|/tmp/w/|/home/\w)"):
        yield f"{number}: {match[1]} exists only on the author's machine"


def check_file_name(path, text):
    del text
    name = os.path.basename(path)
    for word in re.split(r"[_.]", name.lower()):
        if word in ("util", "utils", "manager", "helper", "helpers", "misc", "fast", "optimized", "new"):
            yield f"1: '{word}' in a file's name says nothing: name what it is"
    if path.startswith(FOREIGN_NAMES):
        return
    if path.endswith(CPP + (".proto", ".py")) and not re.fullmatch(r"[a-z0-9_]+(\.\w+)+", name):
        yield "1: file names are lower case with underscores"


def check_header_guard(path, text):
    if path.endswith((".h", ".cuh")):
        guard = "STARRING_" + re.sub(r"[^A-Z0-9]", "_", path.upper()) + "_"
        if f"#ifndef {guard}\n#define {guard}\n" not in text:
            yield f"1: expected the include guard {guard}"
        if not text.startswith("//"):
            yield "1: a header begins with a comment that states its contract"


def check_build_file(path, text):
    if os.path.basename(path) not in ("BUILD", "BUILD.bazel") or path.startswith("third_party/"):
        return
    for number, match in _lines(text, r"^\[?(cc_library|cc_test|cc_binary)\("):
        yield f"{number}: {match[1]} lacks our options: starring_{match[1]} of //third_party:starring.bzl"
    for match in re.finditer(r"^\[?(\w*_test)\((.*?)^\)", text, re.M | re.S):
        if not re.search(r"^    size = ", match[2], re.M):
            yield f"{text.count(chr(10), 0, match.start()) + 1}: a test without size"


def check_shell(path, text):
    if path.endswith(".sh") or re.match(r"#!.*\bsh\b|#!.*bash", text):
        syntax = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
        if syntax.returncode != 0:
            yield f"1: bash -n: {syntax.stderr.strip()}"
        if not text.startswith("#!"):
            yield "1: a script begins with #!"


def check_python(path, text):
    if path.endswith(".py"):
        try:
            compile(text, path, "exec")
        except SyntaxError as error:
            yield f"{error.lineno}: {error.msg}"


def check_tests_can_be_seen(path, text):
    if path.startswith("tests/") and path.endswith(CPP):
        for number, match in _lines(text, r"TEST(_[FP])?\(\w+, *(DISABLED_\w+)"):
            yield f"{number}: {match[2]}: mend it or delete it"


# What a person or another program reads as a date.
DATES = ("worker/report/dashboards_tensorboard.cc", "worker/main.cc", "common/base/steady_time.h")


def check_clock(path, text):
    if path.endswith(CPP) and path.startswith(("common/", "server/", "worker/", "deploy/")) and path not in DATES:
        for number, _ in _lines(text, r"absl::Now\(\)"):
            yield f"{number}: a wall clock can be set: SteadyNow() of common/base/steady_time.h"


def check_length(path, text):
    count = len(text.split())
    if count > WORDS_MAX.get(path, count):
        yield f"1: {count} words, {WORDS_MAX[path]} are the limit: a measurement is a page of bench/results/"


CHECKS = [check for name, check in sorted(globals().items()) if name.startswith("check_")]


def find_problems(path, text):
    return [f"{path}:{problem}" for check in CHECKS for problem in check(path, text)]


def find_repository():
    """The root of the source tree: what .clang-format, a data file of this test, is a link to."""
    return os.path.dirname(os.path.realpath(".clang-format"))


def list_files(root):
    """Every text file of the repository: what git tracks or would track; without git, what is no output of Bazel."""
    command = ["git", "-C", root, "-c", f"safe.directory={root}", "ls-files", "-z", "--cached", "--others",
               "--exclude-standard", "--deduplicate"]
    try:
        paths = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]
    except (OSError, subprocess.CalledProcessError):
        paths = []
        for folder, folders, names in os.walk(root):
            # What .gitignore excludes.
            folders[:] = [name for name in folders if name not in (".git", "__pycache__")
                          and not (folder == root and name.startswith(("bazel-", "data", "report")))]
            paths += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    # A corpus is bytes that some parser got, whether they are text or not.
    return sorted(path for path in paths
                  if os.path.isfile(os.path.join(root, path)) and not path.startswith("tests/fuzz/corpus/"))


class StyleTest(unittest.TestCase):

    def assert_found(self, path, text, expected):
        found = find_problems(path, text)
        self.assertTrue(any(expected in problem for problem in found), f"not found: {expected}; found: {found}")

    def test_each_check_finds_what_it_is_there_to_find(self):
        guarded = "// A.\n#ifndef STARRING_A_H_\n#define STARRING_A_H_\n#endif\n"
        self.assertEqual(find_problems("a.h", guarded), [])
        self.assert_found("b.h", guarded, "STARRING_B_H_")
        self.assert_found("a.h", "\n" + guarded, "states its contract")
        self.assert_found("a.cc", "int a;", "no end")
        self.assert_found("a.cc", "int a;\n\n", "empty lines")
        self.assert_found("a.cc", "int a; \n", "white space")
        self.assert_found("a.cc", "\tint a;\n", "a tab")
        self.assert_found("a.cc", "//" + 119 * "x" + "\n", "121 characters")
        self.assertEqual(find_problems("a.cc", "//" + 118 * "x" + "\n"), [])
        self.assert_found("a.cc", "// FIXME\n", "FIXME")
        self.assert_found("a.cc", "// TODO: later\n", "without what and when")
        self.assert_found("a.cc", "// TODO(2027-02-31): no such day\n", "without what and when")
        self.assertEqual(find_problems("a.cc", "// TODO(2027-01-31): measure again\n"), [])
        self.assert_found("a.sh", "#!/bin/bash\ncd /tmp/w/x\n", "author's machine")
        self.assertEqual(find_problems("a.py", "path = 'https://example.org/work/x'\n"), [])
        self.assert_found("common/string_util.h", guarded, "'util'")
        self.assert_found("common/Layout.cc", "", "lower case")
        self.assert_found("common/BUILD", "cc_library(\n)\n", "starring_cc_library")
        self.assert_found("tests/BUILD", "sh_test(\n    name = \"a\",\n)\n", "without size")
        self.assertEqual(find_problems("tests/BUILD", "sh_test(\n    name = \"a\",\n    size = \"small\",\n)\n"), [])
        self.assert_found("deploy/launch", "#!/bin/bash\nif true; then\n", "bash -n")
        self.assert_found("a.sh", "true\n", "begins with #!")
        self.assert_found("a.py", "def f(:\n", "1:")
        self.assert_found("tests/a_test.cc", "TEST(A, DISABLED_B) {}\n", "DISABLED_B")
        self.assert_found("worker/a.cc", "const absl::Time end = absl::Now() + deadline;\n", "can be set")
        self.assertEqual(find_problems("tests/a.cc", "absl::Now();\n"), [])
        self.assert_found("bench/README.md", 2501 * "a\n", "2501 words, 2500 are the limit")
        self.assertEqual(find_problems("bench/README.md", 2500 * "a\n"), [])
        self.assertEqual(find_problems("README.md", 2501 * "a\n"), [])

    def test_every_file(self):
        root = find_repository()
        problems = []
        paths = list_files(root)
        self.assertIn("tests/style/style_test.py", paths)
        for path in paths:
            try:
                with open(os.path.join(root, path), encoding="utf-8", newline="") as file:
                    problems += find_problems(path, file.read())
            except UnicodeDecodeError:
                continue  # an image or a data file
        if problems:
            self.fail("\n" + "\n".join(problems))

    def test_each_dead_reference_is_found(self):
        page = "# A page\n\n## How it works: twice\n\n```\n# no heading\n```\n"
        files = {"README.md": page, "common/README.md": page, "common/layout.h": "", "common/layout.cc": "",
                 "common/wire/lane.cc": '#include <omp.h>\n', "deploy/launch/main.cc": "",
                 "common/BUILD": 'starring_cc_library(\n    name = "layout",\n)\n',
                 "deploy/BUILD": 'starring_cc_binary(\n    name = "table",\n)\n'
                                 '[starring_cc_test(name = stem + "_test") for stem in ["a", "b"]]\n'
                                 'genrule(\n    name = "bundle",\n    outs = ["bundle.tar.gz"],\n)\n'}

        def find(path, text):
            tree = references.Tree({**files, path: text})
            return [f"{line}: {problem}" for line, problem in tree.dead_references(path)]

        alive = ("[a](common/README.md) [b](common/README.md#how-it-works-twice) [c](README.md#a-page) [d](deploy)",
                 "[e](common) [f](https://example.org/common/none.h) common/layout.h, common/layout, common/wire/.",
                 "common/*.h common/layout.{h,cc} common/<stem>.h common/KIND/x.h kernels/none worker-server pairs",
                 "bazel-bin/deploy/table, deploy/bundle.tar.gz",
                 "//common:layout //common:all //deploy/... `bazel run //deploy:table -- --x` //deploy:a_test //server",
                 "//common/<folder>/... //common:$NAME //deploy/*",
                 "layout.cc, omp.h, main.cc, printf.hpp; starring/common/none.h /common/none.h")
        for line in alive:
            self.assertEqual(find("a.md", line), [])
        dead = {"[a](common/none.md)": "(common/none.md): there is no such file",
                "[a](common/README.md#none)": "(common/README.md#none): the page has no such heading",
                "[a](#no-heading)": "(#no-heading): the page has no such heading",
                "in common/none.h and": "common/none.h: there is no such file",
                "common/wire/{none,nil}.h": "common/wire/{none,nil}.h: there is no such file",
                "common/wire has none.h": "none.h: there is no file of that name",
                "common/none/*.h": "common/none/*.h: there is no such file",
                "`deploy/none --x`": "deploy/none: there is no such file",
                "run ./common/none.sh": "common/none.sh: there is no such file",
                "bazel-bin/deploy/none": "deploy/none: there is no such file",
                "bazel run //deploy:none -- x": "//deploy:none: there is no such target",
                "//deploy/none": "//deploy/none: there is no such target",
                "//deploy/none/...": "//deploy/none/...: there is no such target",
                "see none.h.": "none.h: there is no file of that name"}
        for line, problem in dead.items():
            self.assertIn(f"3: {problem}", "\n".join(find("a.md", "\n\n" + line)))
        self.assertEqual(find("common/a.h", "// wire/lane.cc\n//\n// wire/none.h\n"),
                         ["3: wire/none.h: there is no such file, folder or target"])
        comments = {"a.cc": 'Print("common/none.h", x);\n/* a\n common/none.h */\n',
                    "a.proto": 'import "common/none.proto";\n\nint x;  // common/none.h\n',
                    "a.py": 'x = "common/none.h"\ndef f():\n    """See common/none.h."""\n',
                    "b.py": 'x = "# common/none.h"\n\n# common/none.h\n',
                    "a.sh": '#!/bin/sh\necho common/none.h\ntrue  # common/none.h\n',
                    "bench/BUILD": 'x = "common/none.h"\n\n# common/none.h\n'}
        for path, text in comments.items():
            self.assertEqual(find(path, text), ["3: common/none.h: there is no such file, folder or target"])
        self.assertEqual(find("a.cc", 'Print("see common/README.md#none");\n'),
                         ["1: common/README.md#none: the page has no such heading"])
        self.assertEqual(find("a.cc", 'Print("see common/none.md");\n'), ["1: common/none.md: there is no such page"])

    def test_each_header_without_a_test_is_found(self):
        paths = ["common/a.h", "common/b.h", "kernels/cuda/c.h", "kernels/cuda/d.h", "tests/common/a_test.cc",
                 "tests/kernels/c_suite.cc", "third_party/e.h", "tests/common/f.h"]
        right = "They have nothing\nto test:\n  common/b.h\n  kernels/cuda/d.h\n"

        def find(text):
            return list(mirrors.problems(paths, text))

        self.assertEqual(find(right), [])
        self.assertEqual(find("Why:\n  common/b.h\n"), ["1: kernels/cuda/d.h has no test: write "
                                                        "tests/kernels/cuda/d_test.cc, or list it with the reason"])
        self.assertEqual(find(right + "  common/a.h\n"), ["5: common/a.h has a test: take it out"])
        self.assertEqual(find(right + "  common/g.h\n"), ["5: common/g.h does not exist: take it out"])
        self.assertEqual(find(right + "  common/b.h\n"), ["5: common/b.h is here twice"])
        self.assertEqual(find("  common/b.h\n" + right)[0], "1: common/b.h has no reason above it")

    def test_every_header_has_a_test(self):
        root = find_repository()
        with open(os.path.join(root, mirrors.LIST), encoding="utf-8") as file:
            problems = [f"{mirrors.LIST}:{problem}" for problem in mirrors.problems(list_files(root), file.read())]
        if problems:
            self.fail("\n" + "\n".join(problems))

    def test_references(self):
        root = find_repository()
        paths = list_files(root)
        tree = references.read_tree(root, paths)
        # The references in this file are dead on purpose.
        problems = [f"{path}:{line}: {problem}" for path in paths if path != "tests/style/style_test.py"
                    for line, problem in tree.dead_references(path)]
        if problems:
            self.fail("\n" + "\n".join(problems))

    def test_clang_format(self):
        root = find_repository()
        sources = [path for path in list_files(root) if path.endswith(CPP)]
        self.assertTrue(sources)
        result = subprocess.run(["clang-format", "--dry-run", "--Werror", "--ferror-limit=1", *sources], cwd=root,
                                capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, "run clang-format -i on:\n" + result.stderr)


if __name__ == "__main__":
    unittest.main()
