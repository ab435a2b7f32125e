"""No function, constant, library or flag of ours is there without a program that uses it.

Four ways to find what is unused, each blind where another one sees:

1. The linker drops a function to which nothing in a program refers (--gc-sections, which Bazel's optimised build uses).
   A function that every program drops is unused, unless the compiler has inlined all its calls. The compiler can do so
   only in the function's own source and its header, so a call there counts as a use.
2. The linker does not see functions that are defined in headers, nor constants: the compiler emits them where they are
   used, or not at all. A name that a header declares and that no production source mentions again is unused. An unused
   overload of a name that is used remains unseen there, and so does a virtual function that is never called.
3. A library that no program reaches is unused.
4. A flag whose field of the program's options is written by the flag's row and read nowhere is unused.

What may be unused has an entry with its reason below. An entry that excuses nothing fails, too.
"""

import os
import re
import subprocess
import sys
import unittest

Sources = dict[str, str]  # path to text

# Full name: why it stays although no program needs it.
ALLOWED: dict[str, str] = {
    "starring::CheckFlagTable": "a test calls it for the table of every program",
    "starring::SerializeSafetensors": "tests and a fuzzer write a file as a whole, programs in pieces",
    "//kernels/cuda:cudnn_interface": "for a test; the device has the header among its sources",
    "common/wire/exchange_message.h: held_bytes": "a fuzzer checks by it that memory stays bounded",
}

LIBRARIES = ""  # file of tests/unused/linked.bzl
PROGRAMS: list[str] = []
FOLDERS = ("common", "deploy", "kernels", "proto", "server", "worker")


def read_symbols(path: str) -> list[tuple[str, str, str]]:
    """The object ("" in a program), type and mangled name of every symbol that a program or an archive defines."""
    listing = subprocess.run(["nm", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    member = ""
    symbols = []
    for line in listing.split("\n"):
        if line.endswith(":"):
            member = line[:-1]
        elif len(parts := line.split()) >= 2:
            symbols.append((member, parts[-2], parts[-1]))
    return symbols


def demangle(names: list[str]) -> list[str]:
    """Full names without parameters, in the order of `names`."""
    text = subprocess.run(["c++filt", "--no-params"], input="\n".join(names), capture_output=True, text=True,
                          check=True).stdout
    return [re.sub(r"\[abi:\w+\]", "", name) for name in text.split("\n")[:len(names)]]


def strip_comments(text: str) -> str:
    """C++ without comments and without the content of strings, for which the same line numbers hold."""
    return re.sub(r'//[^\n]*|"(?:\\.|[^"\\\n])*"', lambda match: '""' if match[0].startswith('"') else "", text)


def is_declaration(line: str, name: str) -> bool:
    """Whether `line` declares or defines the function `name`, rather than calls it."""
    before = re.sub(r"<[^()]*>", "", re.split(rf"\b{name}\b", line)[0])
    if re.search(r"\b(return|co_return|throw|else|case|do)\s", before) or re.search(r"[=(){!?,|+.;]|->", before):
        return False
    return re.search(r"\w[\w: *&]*[\s*&]~?(\w+::)*$", before) is not None


def find_calls(text: str, name: str) -> list[str]:
    """Lines of a source that mention `name` without declaring it."""
    return [line for line in strip_comments(text).split("\n")
            if re.search(rf"\b{name}\b", line) and not is_declaration(line, name)]


def find_repository() -> str:
    return os.path.dirname(os.path.realpath(".clang-format"))


def read_sources(root: str) -> Sources:
    """Every production source and header."""
    sources: Sources = {}
    for folder in FOLDERS:
        for place, _, names in os.walk(os.path.join(root, folder)):
            for name in names:
                if name.endswith((".h", ".cc", ".cu")):
                    path = os.path.join(place, name)
                    with open(path, encoding="utf-8") as file:
                        sources[os.path.relpath(path, root)] = file.read()
    return sources


def find_dropped(libraries: list[list[str]], programs: list[str], sources: Sources) -> set[str]:
    """Full names of functions that all programs drop and that their own source does not call."""
    kept = {name for program in programs for _, _, name in read_symbols(program)}
    has_cuda = any(label == "//kernels/cuda:kernels" for label, _ in libraries)
    dropped = []
    for label, archive in libraries:
        package = label[2:].split(":")[0]
        # Without a CUDA toolkit a stub takes the device's place, and what only the device calls seems unused.
        if package == "kernels/cuda" and not has_cuda:
            continue
        for member, kind, name in read_symbols(archive):
            if kind == "T" and name not in kept and not member.endswith(".pb.o"):
                dropped.append((package, re.sub(r"(\.pic)?\.o$", "", member), name))
    found: set[str] = set()
    for (package, stem, _), name in zip(dropped, demangle([name for _, _, name in dropped])):
        if not name.startswith("starring::"):
            continue
        short = name.split("::")[-1]
        # Constructors and destructors go with the rest of their class.
        if not re.fullmatch(r"\w+", short) or short == name.split("::")[-2]:
            continue
        names = {stem + extension for extension in (".cc", ".cu", ".h")}
        own = [text for path, text in sources.items()
               if path.startswith(package + "/") and os.path.basename(path) in names]
        if own and not any(find_calls(text, short) for text in own):
            found.add(name)
    return found


def find_unmentioned(sources: Sources) -> set[str]:
    """Functions and constants that a header declares and that nothing else mentions."""
    code = {path: strip_comments(text) for path, text in sources.items()}
    count: dict[str, int] = {}
    for text in code.values():
        for word in re.findall(r"\b[A-Za-z_]\w*\b", text):
            count[word] = count.get(word, 0) + 1
    found: set[str] = set()
    for path, text in code.items():
        if not path.endswith(".h"):
            continue
        names = re.findall(r"^\s*(?:static |inline |constexpr |virtual )*[\w:<>,*& ]+[\s*&](\w+)\([^;{}]*\)[\w ]*\{",
                           text, re.M)
        names += re.findall(r"\bconstexpr [\w:<>, ]+[ &*](k[A-Z]\w*)\b", text)
        found |= {f"{path}: {name}" for name in names if count[name] == 1}
    return found


def find_flag_fields(sources: Sources) -> set[str]:
    """Fields of options that the row of a flag writes: `rank` in WholeAt<&Options::asked, &Asked::rank>(0, 9)."""
    return {field for text in sources.values()
            for field in re.findall(r"\b\w+At<[^()]*?&\w+::(\w+)>\(", strip_comments(text))}


def find_unread(fields: set[str], sources: Sources) -> set[str]:
    code = "\n".join(strip_comments(text) for text in sources.values())
    return {f"flag field {field}" for field in fields if not re.search(rf"(\.|->){field}\b(?!\s*=[^=])", code)}


def find_unreached(libraries: list[list[str]], root: str) -> set[str]:
    """Labels of production libraries that no program reaches."""
    reached = {label for label, _ in libraries}
    found: set[str] = set()
    for folder in FOLDERS:
        for place, _, names in os.walk(os.path.join(root, folder)):
            if "BUILD" not in names:
                continue
            with open(os.path.join(place, "BUILD"), encoding="utf-8") as file:
                text = file.read()
            package = os.path.relpath(place, root)
            for match in re.finditer(r'^starring_cc_(?:library|unit)\(\n(.*?)^\)', text, re.M | re.S):
                name = re.search(r'^    name = "(\w+)"', match[1], re.M)
                if name and "testonly = True" not in match[1] and f"//{package}:{name[1]}" not in reached:
                    found.add(f"//{package}:{name[1]}")
    return found


class UnusedTest(unittest.TestCase):

    def test_a_call_is_told_from_a_declaration(self) -> None:
        for line in ("  Grow(3);", "  return Grow(3);", "  x = Grow(3);", "  if (!Grow(3)) return;", "  list_.Grow(3);",
                     "  Run([this] { Grow(3); });", "  const int x = Tree::Grow(3);", "  done = &Grow;",
                     "  Wait([&] { return Grow(3) || full; });", "  else Grow(3);"):
            self.assertTrue(find_calls(line, "Grow"), line)
        for line in ("  void Grow(int n);", "void Tree::Grow(int n) {", "std::vector<int> Tree::Grow() const {",
                     "  static absl::Status Grow();", "  // Grow(3)", '  text = "Grow";', "const char* Grow();",
                     "std::map<int, int>::iterator Tree::Grow(int n) {"):
            self.assertFalse(find_calls(line, "Grow"), line)

    def test_what_is_not_read_is_found(self) -> None:
        sources = {"a.cc": '{"rank", "number", WholeAt<&W::asked, &Asked::rank>(0, 9)}, {"sync", TextAt<&W::sync>()}',
                   "b.cc": "options.rank = 3; // options.rank\nUse(options.sync);"}
        fields = find_flag_fields(sources)
        self.assertEqual(fields, {"rank", "sync"})
        self.assertEqual(find_unread(fields, sources), {"flag field rank"})
        sources["b.cc"] += " Use(asked->rank);"
        self.assertEqual(find_unread(fields, sources), set())

    def test_what_is_not_mentioned_is_found(self) -> None:
        sources = {"a.h": "constexpr int kUsed = 1;\nconstexpr int kLeft = 2;\n  int used() const { return 1; }\n"
                          "  int left() const {\n",
                   "a.cc": "Use(kUsed, used()); // left() kLeft"}
        self.assertEqual(find_unmentioned(sources), {"a.h: kLeft", "a.h: left"})

    def test_nothing_is_unused(self) -> None:
        root = find_repository()
        with open(LIBRARIES, encoding="utf-8") as file:
            libraries = [line.split() for line in file]
        self.assertGreater(len(libraries), 50)
        sources = read_sources(root)
        fields = find_flag_fields(sources)
        self.assertGreater(len(fields), 50)
        found = (find_dropped([entry for entry in libraries if entry[1] != "-"], PROGRAMS, sources)
                 | find_unmentioned(sources) | find_unreached(libraries, root) | find_unread(fields, sources))
        problems = [f"{name} is used by no program: delete it, or name it in ALLOWED with the reason"
                    for name in sorted(found - ALLOWED.keys())]
        problems += [f"{name} is in ALLOWED, but it is used, or is not there: delete the entry"
                     for name in sorted(ALLOWED.keys() - found)]
        if problems:
            self.fail("\n" + "\n".join(problems))


if __name__ == "__main__":
    LIBRARIES, *PROGRAMS = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
