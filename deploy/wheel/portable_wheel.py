#!/usr/bin/env python3
"""Makes the wheel `starring` for every x86-64 Linux with glibc 2.28 or newer, on Debian 12.

    bazel run //deploy:portable_wheel -- --output=FOLDER

fetches what deploy/wheel/downloads.py lists, builds libstarring.so, and writes the wheel. There is no wheel unless the
library keeps the rules of portable_rules.py, has the bits of GCC's library, and passes auditwheel.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time

from deploy.bundle.elf_file import ElfError, ElfFile
from deploy.bundle.make_bundle import Bundle, BundleError, read
from deploy.wheel import build_library, downloads, make_wheel, portable_rules, same_bits

AUDIT_SECONDS_MAX = 300
# Zig links these into the library, beside the sources that are compiled here. Each has its licence in zig's folder.
RUNTIMES = {"libcxx": "lib/libcxx/LICENSE.TXT", "libcxxabi": "lib/libcxxabi/LICENSE.TXT",
            "libunwind": "lib/libunwind/LICENSE.TXT", "zig": "LICENSE", "glibc": "lib/libc/glibc/LICENSES"}


def add_inside(bundle: Bundle, folder: str, zig_folder: str) -> list[str]:
    """Adds the licences of what is inside the library. Returns the manifest's lines."""
    lines = ["Inside libstarring.so:"]
    for source in downloads.SOURCES:
        bundle.add(f"licences/{source.name}/{source.licence}",
                   read(os.path.join(folder, source.name, source.licence)))
        lines += [f"  {source.name} {source.version} (Debian source)"]
        lines += [f"    {downloads.DEBIAN}/{file.path} sha256 {file.sha256}"
                  for file in (source.archive, source.patches)]
    for name, path in RUNTIMES.items():
        bundle.add(f"licences/{name}/{os.path.basename(path)}", read(os.path.join(zig_folder, path)))
    program, digest = next(iter(downloads.PROGRAMS.items()))
    return [*lines, f"  libc++, libc++abi, libunwind, compiler_rt and glibc's start-up code of {program} (PyPI)",
            f"    sha256 {digest}"]


def check_bits(library: str, gcc_library: str) -> None:
    """BundleError unless both libraries have the same bits."""
    found, wanted = same_bits.digests(library), same_bits.digests(gcc_library)
    different = [f"{name}: {found[name][:12]}, not {digest[:12]}" for name, digest in wanted.items()
                 if found[name] != digest]
    if different:
        raise BundleError(f"{library} has other bits than {gcc_library}, which GCC built: {'; '.join(different)}")
    for name, digest in found.items():
        say(f"{name}: {digest[:12]}, as with GCC's library")


def audit(programs: str, wheel: str) -> None:
    """Prints auditwheel's verdict. BundleError if it allows less than the wheel's name promises."""
    done = subprocess.run([os.path.join(programs, "auditwheel"), "show", wheel], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False, timeout=AUDIT_SECONDS_MAX)
    say("auditwheel show: " + " ".join(done.stdout.split()))
    verdict = re.search(r'platform\s+tag:\s+"manylinux_(\d+)_(\d+)_x86_64"', done.stdout)
    if verdict is None or (int(verdict[1]), int(verdict[2])) > portable_rules.GLIBC_MAX:
        raise BundleError(f"auditwheel does not find {wheel} good for {portable_rules.PLATFORM}")


def say(line: str) -> None:
    print(f"portable_wheel: {line}", flush=True)


def make(options: argparse.Namespace) -> str:
    """The path of the wheel."""
    tree = os.environ.get("BUILD_WORKSPACE_DIRECTORY", os.getcwd())
    output = os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd()), options.output)
    cache = os.path.abspath(os.path.expanduser(options.cache))
    os.makedirs(os.path.join(cache, "downloads"), exist_ok=True)
    os.makedirs(output, exist_ok=True)
    own = build_library.own_sources(read(options.sources).decode())
    say(f"fetches into {cache} what is not there yet (ziglang has 100 MB)")
    programs = downloads.install_programs(cache)
    folder = build_library.stage(own, tree, cache)
    # The sources that the build makes, such as the kernels' image, for which zig has no compiler.
    build_library.stage_own(options.generated, os.getcwd(), folder)
    own += options.generated
    zig = build_library.Zig(programs, cache)
    begin = time.monotonic()
    library = build_library.build(zig, own, folder, options.jobs)
    elf = ElfFile("libstarring.so", read(library))
    say(f"libstarring.so has {len(elf.data)} bytes after {time.monotonic() - begin:.0f} s; its newest symbol is "
        f"GLIBC_{portable_rules.dotted(elf.glibc)}")
    bundle = make_wheel.library_bundle(library, options.models, options.headers)
    wheel = os.path.join(output, f"starring-{options.version}-py3-none-{portable_rules.PLATFORM}.whl")
    part = os.path.join(folder, os.path.basename(wheel))
    make_wheel.make(make_wheel.LIBRARY, bundle, options.package, options.licence, part,
                    add_inside(bundle, folder, zig.folder()))
    check_bits(library, os.path.abspath(options.gcc_library))
    audit(programs, part)
    # In one step: whoever finds the wheel finds a whole and good one.
    os.replace(part, wheel)
    say(f"{wheel} has {os.path.getsize(wheel)} bytes, sha256 {downloads.sha256_of(wheel)}")
    return wheel


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0], allow_abbrev=False)
    parser.add_argument("--output", default=".", help="the folder for the wheel")
    parser.add_argument("--cache", default="~/.cache/starring/portable_wheel",
                        help="the folder for downloads and builds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time")
    given = parser.add_argument_group("given by the build")
    given.add_argument("--version", required=True)
    given.add_argument("--sources", required=True, help="the labels of the library's files, one a line")
    given.add_argument("--generated", nargs="*", default=[], help="files of the library that the build makes")
    given.add_argument("--gcc_library", required=True)
    given.add_argument("--package", nargs="+", required=True)
    given.add_argument("--models", nargs="+", required=True)
    given.add_argument("--headers", nargs="+", required=True)
    given.add_argument("--licence", required=True)
    try:
        make(parser.parse_args())
    except (BundleError, ElfError, OSError, RuntimeError, build_library.BuildError, downloads.DownloadError,
            subprocess.SubprocessError) as error:
        sys.exit(f"portable_wheel: error: {error}")


if __name__ == "__main__":
    main()
