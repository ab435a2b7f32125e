#!/usr/bin/env python3
"""Makes the two wheels: `starring`, the Python package with libstarring.so, and `starring-programs`, the programs.

Both are bundles (deploy/bundle/make_bundle.py) whose folders are in a package. The programs leave no library to the
machine. libstarring.so leaves it three: glibc, and the compiler's libstdc++ and libgcc_s, which every machine with
PyTorch has. It shares a process with PyTorch: if it brought an older libstdc++ and were loaded first, a PyTorch that
needs a newer one would not load. The library that deploy/wheel/portable_wheel.py builds has its own copies inside,
which no other library sees.

The platform in the wheel's name is checked: manylinux_2_X only if every file runs with glibc 2.X. pip then refuses the
wheel on an older system. The programs' linux_x86_64 makes pip refuse them on another processor or kernel alone. The
same input gives the same bytes: files are sorted, with one date and one owner.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import hashlib
import os
import re
import sys
import time
import zipfile
from collections.abc import Sequence

from deploy.bundle.elf_file import ElfError, ElfFile
from deploy.bundle.make_bundle import (CUBLAS, DRIVER, FIXED_MTIME, GLIBC, Bundle, BundleError, LibraryFinder,
                                       add_licences, add_open_mpi, manifest, read)
from deploy.wheel import portable_rules

COMPILER = re.compile(r"lib(stdc\+\+|gcc_s)\.so\.\d+")
# All that a libstarring.so of GCC may bring into a process of PyTorch. Debian's Abseil has its version in its
# namespace, so it meets no other Abseil there; and zlib, which the loader unpacks with, has only ever added symbols.
LIBRARY_MAY_NEED = re.compile(r"libabsl_\w+\.so\.\d+|libz\.so\.1")

METADATA = """\
Metadata-Version: 2.1
Name: @PROJECT@
Version: @VERSION@
Summary: @SUMMARY@
License: Apache-2.0
License-File: LICENSE
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Requires-Python: >=3.9
@EXTRAS@Description-Content-Type: text/plain

@DESCRIPTION@
Needs Linux on x86-64@NEEDS@. @FOLDER@/MANIFEST.txt lists where every file comes from,
and @FOLDER@/licences has the licences.
"""

WHEEL = """\
Wheel-Version: 1.0
Generator: starring
Root-Is-Purelib: false
Tag: @TAG@
"""


@dataclasses.dataclass(frozen=True)
class Project:
    """Texts of one wheel.

    needs: what the machine must have, with @GLIBC@ for the version that the files need.
    extras: lines of METADATA.
    entry_points: the file of that name, or nothing.
    """
    name: str
    summary: str
    description: str
    needs: str
    extras: str = ""
    entry_points: str = ""

    @property
    def folder(self) -> str:
        """The package, and the first part of the wheel's name."""
        return self.name.replace("-", "_")


LIBRARY = Project(
    name="starring",
    summary="Star and ring: two ways to synchronise gradients, under PyTorch's DistributedDataParallel",
    description="""\
    import starring.torch
    starring.torch.attach(model, sync="star")    # or "ring"; model is a DistributedDataParallel

pip install starring[programs] adds the programs, which train without PyTorch.
""",
    needs=" with glibc @GLIBC@ or newer",
    extras="""\
Provides-Extra: torch
Requires-Dist: torch>=1.13; extra == "torch"
Provides-Extra: pack
Requires-Dist: numpy; extra == "pack"
Requires-Dist: pillow; extra == "pack"
Provides-Extra: programs
Requires-Dist: starring-programs==@VERSION@; extra == "programs"
""")

PROGRAMS = Project(
    name="starring-programs",
    summary="Starring's programs: data-parallel training by star or ring",
    description="The programs are starring-launch, starring-worker and starring-server; --help shows their flags.\n",
    needs=", kernel 3.17 or newer, and no C library: the programs bring theirs",
    entry_points="""\
[console_scripts]
starring-launch = starring_programs:launch
starring-server = starring_programs:server
starring-worker = starring_programs:worker
""")

Files = dict[str, tuple[bytes, int]]  # name -> content and mode


def check_library(path: str) -> None:
    """BundleError if libstarring.so at `path` needs a library that it may not bring along."""
    foreign = [soname for soname in ElfFile(path, read(path)).needed
               if not (LIBRARY_MAY_NEED.fullmatch(soname) or COMPILER.fullmatch(soname) or GLIBC.fullmatch(soname))]
    if foreign:
        raise BundleError(f"{path} needs {', '.join(foreign)}, which may clash with a library of PyTorch: link it "
                          "without")


def library_bundle(library: str, models: Sequence[str], headers: Sequence[str]) -> Bundle:
    """libstarring.so with the libraries that it needs, the layer files, and the headers for programs in C."""
    bundle = Bundle(LibraryFinder(), left_to_machine=(GLIBC, COMPILER))
    if ElfFile(library, read(library)).has_search_path:
        check_library(library)
        bundle.add_library("libstarring.so", library)
    else:
        bundle.add("libstarring.so", read(library))
    for path in models:
        bundle.add(f"layer_files/{os.path.basename(path)}", read(path))
    for path in headers:
        bundle.add(f"include/{os.path.basename(path)}", read(path))
    return bundle


def programs_bundle(programs: Sequence[str], starter: str, open_mpi_starter: str) -> Bundle:
    """The programs, Open MPI, and the libraries that they need."""
    finder = LibraryFinder()
    bundle = Bundle(finder, read(starter), (GLIBC, DRIVER, CUBLAS))
    bundle.add_glibc()
    for path in programs:
        bundle.add_program("bin", path)
    add_open_mpi(bundle, finder, open_mpi_starter)
    return bundle


def check_platform(platform: str, bundle: Bundle) -> str:
    """The oldest glibc that a wheel of this platform promises to run with.

    BundleError if a file of the bundle does not run on each system for which pip takes such a wheel.
    """
    named = re.fullmatch(r"manylinux_(\d+)_(\d+)_x86_64", platform)
    if named is None and platform != "linux_x86_64":
        raise BundleError(f"the platform {platform} is neither linux_x86_64 nor manylinux_2_X_x86_64")
    if named is not None:
        needed = tuple(map(int, bundle.glibc().split(".")))
        if needed > (int(named[1]), int(named[2])):
            raise BundleError(f"the files need glibc {bundle.glibc()}, and {platform} promises that "
                              f"{named[1]}.{named[2]} is enough: name the platform manylinux_2_{needed[1]}_x86_64")
    if platform == portable_rules.PLATFORM:
        name = "libstarring.so"
        faults = portable_rules.faults(ElfFile(name, bundle.files[name][0]))
        if faults:
            raise BundleError("; ".join(faults))
    return f"{named[1]}.{named[2]}" if named is not None else bundle.glibc()


def package_files(folder: str, paths: Sequence[str]) -> Files:
    """The modules by their names in the wheel. Each path is in a folder of the name `folder`, which is the package."""
    files: Files = {}
    for path in paths:
        _, found, name = ("/" + path).rpartition(f"/{folder}/")
        # Bazel's folder of the whole repository has the name starring, too.
        if not found or "/" in name:
            raise BundleError(f"{path} is in no folder {folder}/: the package has no place for it")
        files[f"{folder}/{name}"] = (read(path), 0o644)
    if f"{folder}/__init__.py" not in files:
        raise BundleError(f"the package has no {folder}/__init__.py")
    # Tells type checkers that the package has annotations (PEP 561).
    files[f"{folder}/py.typed"] = (b"", 0o644)
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


def make(project: Project, bundle: Bundle, package: Sequence[str], licence: str, output: str,
         origins: Sequence[str] = ()) -> None:
    """Writes the wheel of a project.

    package: the modules' paths.
    licence: the path of ours.
    origins: further lines of the manifest, for what the bundle's files have inside.
    """
    name = re.fullmatch(project.folder + r"-([0-9.]+)-(py3-none-(\w+))\.whl", os.path.basename(output))
    if name is None:
        raise BundleError(f"the file's name must be {project.folder}-VERSION-py3-none-PLATFORM.whl, not {output}")
    bundle.check()
    glibc = check_platform(name[3], bundle)
    # Named before its text is made, so that the manifest lists itself.
    bundle.add("MANIFEST.txt", b"")
    text = manifest(bundle, [*add_licences(bundle), *origins])
    files = {**package_files(project.folder, package),
             **{f"{project.folder}/{path}": file for path, file in bundle.files.items()}}
    files[f"{project.folder}/MANIFEST.txt"] = (text.encode(), 0o644)
    metadata = METADATA
    for mark, value in (("PROJECT", project.name), ("SUMMARY", project.summary), ("EXTRAS", project.extras),
                        ("DESCRIPTION", project.description), ("NEEDS", project.needs), ("VERSION", name[1]),
                        ("GLIBC", glibc), ("FOLDER", project.folder)):
        metadata = metadata.replace(f"@{mark}@", value)
    texts = {"METADATA": metadata, "WHEEL": WHEEL.replace("@TAG@", name[2]), "entry_points.txt": project.entry_points}
    info = f"{project.folder}-{name[1]}.dist-info"
    files.update({f"{info}/{path}": (text.encode(), 0o644) for path, text in texts.items() if text})
    files[f"{info}/LICENSE"] = (read(licence), 0o644)
    write_wheel(with_record(files, f"{info}/RECORD"), output)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0], allow_abbrev=False)
    kinds = parser.add_subparsers(dest="kind", required=True)
    library = kinds.add_parser("library", allow_abbrev=False)
    library.add_argument("--library", required=True, help="libstarring.so")
    library.add_argument("--models", nargs="*", default=[], help="layer files")
    library.add_argument("--headers", nargs="*", default=[], help="those of libstarring.so")
    programs = kinds.add_parser("programs", allow_abbrev=False)
    programs.add_argument("--bin", nargs="+", required=True, help="the programs")
    programs.add_argument("--starter", required=True, help="the program under the name of each program")
    programs.add_argument("--open_mpi_starter", required=True, help="the program that becomes mpirun and orted")
    for kind in (library, programs):
        kind.add_argument("--output", required=True)
        kind.add_argument("--package", nargs="+", required=True, help="the modules of the package")
        kind.add_argument("--licence", required=True)
    options = parser.parse_args()
    try:
        if options.kind == "library":
            project, bundle = LIBRARY, library_bundle(options.library, options.models, options.headers)
        else:
            project, bundle = PROGRAMS, programs_bundle(options.bin, options.starter, options.open_mpi_starter)
        make(project, bundle, options.package, options.licence, options.output)
    except (BundleError, ElfError, OSError) as error:
        sys.exit(f"make_wheel: error: {error}")


if __name__ == "__main__":
    main()
