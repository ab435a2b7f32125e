#!/usr/bin/env python3
"""Makes the wheel: the Python package starring, libstarring.so, and the programs with the libraries that they need.

The native part is a bundle (deploy/bundle/make_bundle.py) whose folders bin/, lib/, share/ ... are in the package. It
leaves three libraries to the machine: glibc, as every bundle does, and the compiler's libstdc++ and libgcc_s, which
every machine with PyTorch has. libstarring.so shares a process with PyTorch: if it brought an older libstdc++ and were
loaded first, a PyTorch that needs a newer one would not load.

The same input gives the same bytes: files are sorted, with one date and one owner.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import sys
import time
import zipfile

from deploy.bundle.elf_file import ElfError, ElfFile
from deploy.bundle.make_bundle import (CUBLAS, DRIVER, FIXED_MTIME, GLIBC, Bundle, BundleError, LibraryFinder,
                                       add_licences, add_open_mpi, manifest, read)

TAG = "py3-none-linux_x86_64"
COMPILER = re.compile(r"lib(stdc\+\+|gcc_s)\.so\.\d+")
# All that libstarring.so may bring into a process of PyTorch. Debian's Abseil has its version in its namespace, so it
# meets no other Abseil there; and zlib, which the loader unpacks with, has only ever added symbols.
LIBRARY_MAY_NEED = re.compile(r"libabsl_\w+\.so\.\d+|libz\.so\.1")

METADATA = """\
Metadata-Version: 2.1
Name: starring
Version: @VERSION@
Summary: Star and ring: two ways to synchronise gradients, under PyTorch's DistributedDataParallel or as C++ programs
License: Apache-2.0
License-File: LICENSE
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Requires-Python: >=3.9
Provides-Extra: torch
Requires-Dist: torch>=1.13; extra == "torch"
Description-Content-Type: text/plain

    import starring.torch
    starring.torch.attach(model, sync="star")    # or "ring"; model is a DistributedDataParallel

The programs are starring-launch, starring-worker and starring-server; --help shows their flags.
Needs Linux on x86-64 with glibc @GLIBC@ or newer. starring/MANIFEST.txt lists where every file comes from,
and starring/licences has the licences.
"""

WHEEL = f"""\
Wheel-Version: 1.0
Generator: starring
Root-Is-Purelib: false
Tag: {TAG}
"""

ENTRY_POINTS = """\
[console_scripts]
starring-launch = starring._programs:launch
starring-server = starring._programs:server
starring-worker = starring._programs:worker
"""

Files = dict[str, tuple[bytes, int]]  # name -> content and mode


def check_library(path: str) -> None:
    """BundleError if libstarring.so at `path` needs a library that it may not bring along."""
    foreign = [soname for soname in ElfFile(path, read(path)).needed
               if not (LIBRARY_MAY_NEED.fullmatch(soname) or COMPILER.fullmatch(soname) or GLIBC.fullmatch(soname))]
    if foreign:
        raise BundleError(f"{path} needs {', '.join(foreign)}, which may clash with a library of PyTorch: link it "
                          "without")


def native_files(options: argparse.Namespace) -> tuple[Files, str]:
    """The files of the bundle, and the oldest glibc with which they run."""
    finder = LibraryFinder()
    check_library(options.library)
    bundle = Bundle(finder, (GLIBC, DRIVER, CUBLAS, COMPILER))
    bundle.add_library("libstarring.so", options.library)
    for path in options.bin:
        bundle.add_program("bin", path)
    add_open_mpi(bundle, finder, options.open_mpi_starter)
    for path in options.models:
        bundle.add(f"layer_files/{os.path.basename(path)}", read(path))
    for path in options.headers:
        bundle.add(f"include/{os.path.basename(path)}", read(path))
    bundle.check()
    # Named before its text is made, so that the manifest lists itself.
    bundle.add("MANIFEST.txt", b"")
    text = manifest(bundle, add_licences(bundle))
    files = bundle.files
    files["MANIFEST.txt"] = (text.encode(), 0o644)
    return files, bundle.glibc()


def package_files(paths: list[str]) -> Files:
    """The modules by their names in the wheel. Each path is in a folder starring/, which is the package."""
    files: Files = {}
    for path in paths:
        _, found, name = ("/" + path).rpartition("/starring/")
        # Bazel's folder of the whole repository has that name too.
        if not found or "/" in name:
            raise BundleError(f"{path} is in no folder starring/: the package has no place for it")
        files[f"starring/{name}"] = (read(path), 0o644)
    if "starring/__init__.py" not in files:
        raise BundleError("the package has no starring/__init__.py")
    # Tells type checkers that the package has annotations (PEP 561).
    files["starring/py.typed"] = (b"", 0o644)
    return files


def with_record(files: Files, record: str) -> Files:
    """The files and, as the last one, their list with SHA-256 and size (PEP 427)."""
    lines = []
    for name, (data, _) in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return {**files, record: ("".join([*lines, f"{record},,\n"]).encode(), 0o644)}


def write_wheel(files: Files, output: str) -> None:
    """Writes the files sorted by name, those of *.dist-info last, as PEP 427 recommends."""
    date = time.gmtime(FIXED_MTIME)[:6]
    with zipfile.ZipFile(output, "w") as archive:
        for name in sorted(files, key=lambda name: (".dist-info/" in name, name)):
            data, mode = files[name]
            member = zipfile.ZipInfo(name, date)
            member.create_system = 3  # Unix: pip keeps the modes of such members
            member.external_attr = (0o100000 | mode) << 16
            archive.writestr(member, data, zipfile.ZIP_DEFLATED, compresslevel=6)


def make(options: argparse.Namespace) -> None:
    name = re.fullmatch(r"starring-([0-9.]+)-" + TAG + r"\.whl", os.path.basename(options.output))
    if name is None:
        raise BundleError(f"the file's name must be starring-VERSION-{TAG}.whl, not {options.output}")
    native, glibc = native_files(options)
    info = f"starring-{name[1]}.dist-info"
    files = {**package_files(options.package), **{f"starring/{path}": file for path, file in native.items()}}
    texts = {"METADATA": METADATA.replace("@VERSION@", name[1]).replace("@GLIBC@", glibc), "WHEEL": WHEEL,
             "entry_points.txt": ENTRY_POINTS}
    files.update({f"{info}/{path}": (text.encode(), 0o644) for path, text in texts.items()})
    files[f"{info}/LICENSE"] = (read(options.licence), 0o644)
    write_wheel(with_record(files, f"{info}/RECORD"), options.output)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0], allow_abbrev=False)
    parser.add_argument("--output", required=True)
    parser.add_argument("--package", nargs="+", required=True, help="the modules of the package")
    parser.add_argument("--library", required=True, help="libstarring.so")
    parser.add_argument("--bin", nargs="+", required=True, help="the programs")
    parser.add_argument("--models", nargs="*", default=[], help="layer files")
    parser.add_argument("--headers", nargs="*", default=[], help="those of libstarring.so")
    parser.add_argument("--open_mpi_starter", required=True, help="the program that becomes mpirun and orted")
    parser.add_argument("--licence", required=True)
    try:
        make(parser.parse_args())
    except (BundleError, ElfError, OSError) as error:
        sys.exit(f"make_wheel: error: {error}")


if __name__ == "__main__":
    main()
