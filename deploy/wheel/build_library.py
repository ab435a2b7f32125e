"""Builds libstarring.so for old systems: with zig, for glibc 2.28, and with all of Abseil, zlib and libc++ inside."""

from __future__ import annotations

import concurrent.futures
import glob
import os
import re
import shutil
import subprocess
from collections.abc import Sequence

from deploy.wheel import downloads
from deploy.wheel.portable_rules import GLIBC_MAX, dotted

# As for GCC's library, where clang has the option. Clang contracts a multiplication and an addition unless it is told
# not to, and then a machine with FMA would have other bits.
COMPILE = ["-O3", "-DNDEBUG", "-fPIC", "-ffp-contract=off", "-fno-semantic-interposition", "-ffunction-sections",
           "-fdata-sections", "-Werror=return-type"]
LINK = ["-shared", "-s", "-Wl,-Bsymbolic", "-Wl,--gc-sections"]
COMPILE_SECONDS_MAX = 600
LINK_SECONDS_MAX = 1800  # the first link compiles libc++

# Parts of Abseil that the library never calls, and tests.
NOT_BUILT = re.compile(r"/(flags|random)/|test|benchmark|print_hash_of")


class BuildError(Exception):
    """A compiler failed. The message has the file and the compiler's first lines."""


class Zig:
    """The compiler, with its cache in a folder of our own."""

    def __init__(self, programs: str, cache: str) -> None:
        self._environment = {"PATH": "/usr/bin:/bin", "HOME": cache, "ZIG_GLOBAL_CACHE_DIR": os.path.join(cache, "zig"),
                             "ZIG_LOCAL_CACHE_DIR": os.path.join(cache, "zig")}
        self._command = [os.path.join(programs, "python"), "-m", "ziglang"]
        self._target = ["-target", "x86_64-linux-gnu." + dotted(GLIBC_MAX)]

    def run(self, arguments: Sequence[str], folder: str, seconds_max: int) -> None:
        """Runs `zig ARGUMENTS` for the target in `folder`, from which all names of files are relative."""
        command = [*self._command, arguments[0], *self._target, *arguments[1:]]
        done = subprocess.run(command, cwd=folder, env=self._environment, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False, timeout=seconds_max)
        if done.returncode != 0:
            raise BuildError(f"{' '.join(arguments)} in {folder} failed:\n" + done.stdout[:4000])

    def folder(self) -> str:
        """The one with the sources of libc++, and with their licences."""
        code = "import ziglang; print(ziglang.__path__[0])"
        done = subprocess.run([self._command[0], "-c", code], text=True, capture_output=True, check=True,
                              timeout=COMPILE_SECONDS_MAX)
        return done.stdout.strip()


def own_sources(query: str) -> list[str]:
    """The files of this repository in the output of a Bazel query for source files: //a/b:c/d.cc is a/b/c/d.cc."""
    names = (line.strip() for line in query.splitlines())
    return sorted(name[2:].replace(":", "/").lstrip("/") for name in names if name.startswith("//"))


def stage_own(names: Sequence[str], tree: str, folder: str) -> None:
    """Copies files of `tree` to `folder`, by the same names."""
    for name in names:
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        shutil.copyfile(os.path.join(tree, name), os.path.join(folder, name))


def stage(own: Sequence[str], tree: str, cache: str) -> str:
    """An empty folder with all sources in it, ours by the same names as in the repository."""
    folder = os.path.join(cache, "build")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    stage_own(own, tree, folder)
    for source in downloads.SOURCES:
        downloads.unpack(source, os.path.join(cache, "downloads"), folder)
    return folder


def units(folder: str, own: Sequence[str]) -> list[list[str]]:
    """The compiler's arguments for each source, without those of COMPILE. Names are relative to `folder`."""
    cpp = ["c++", "-std=c++20", "-isystem", "abseil"]
    commands = [[*cpp, "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Wshadow", "-isystem", "zlib", "-iquote",
                 ".", name] for name in own if name.endswith(".cc")]
    abseil = sorted(glob.glob("abseil/absl/**/*.cc", root_dir=folder, recursive=True))
    commands += [[*cpp, "-w", name] for name in abseil if not NOT_BUILT.search(name)]
    commands += [["cc", "-std=c99", "-D_GNU_SOURCE", "-w", name]
                 for name in sorted(glob.glob("zlib/*.c", root_dir=folder))]
    return commands


def build(zig: Zig, own: Sequence[str], folder: str, jobs: int) -> str:
    """The path of the library, built of the sources in `folder` by `jobs` compilers at a time."""
    commands = units(folder, own)
    objects = [command[-1] + ".o" for command in commands]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(zig.run, [*command[:-1], *COMPILE, "-c", command[-1], "-o", output], folder,
                               COMPILE_SECONDS_MAX) for command, output in zip(commands, objects)]
        try:
            for future in concurrent.futures.as_completed(waiting):
                future.result()
        finally:
            for future in waiting:
                future.cancel()
    script, = (name for name in own if name.endswith(".lds"))
    zig.run(["c++", *LINK, f"-Wl,--version-script={script}", "-o", "libstarring.so", *objects], folder,
            LINK_SECONDS_MAX)
    return os.path.join(folder, "libstarring.so")
