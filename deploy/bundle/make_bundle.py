#!/usr/bin/env python3
"""Makes the bundle: one tar.gz with programs and all shared libraries that they need, the C library and its loader too.

bin/worker is a starter (starter.cc), which starts libexec/bin/worker with the bundle's C library or the machine's. That
program finds its libraries wherever the bundle is unpacked, because its RPATH is $ORIGIN/../../lib (starring.bzl). An
RPATH comes before LD_LIBRARY_PATH and also holds for the libraries' libraries. Parts of Open MPI have a search path of
their own, which is overwritten. For how Open MPI finds its plugins, see common/transport/mpi/bundled_open_mpi.h.

Nothing is left out silently: a library that is not found, or has no licence text, ends the script with exit code 1. The
same input gives the same bytes.
"""

from __future__ import annotations

import argparse
import glob
import gzip
import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from typing import IO, cast

from deploy.bundle.elf_file import ElfError, ElfFile, is_elf

TOP = "starring"  # the one folder in the archive
FIXED_MTIME = 1767225600  # 2026-01-01: the archive does not say when it was made
COMMON_LICENCES = "/usr/share/common-licenses"

# Libraries of glibc. They are in a folder of their own, because a program must not get them with the machine's loader.
GLIBC = re.compile(r"(ld-linux-x86-64|lib(c|m|dl|rt|pthread|resolv|util|anl|mvec|nsl|nss_(compat|dns|files|hesiod)"
                   r"|thread_db|BrokenLocale))\.so\.\d+")
GLIBC_FOLDER = "lib/glibc"
LOADER = "ld-linux-x86-64.so.2"
PROGRAM_RPATH = "$ORIGIN/../../lib"
# Libraries of the GPU's driver belong to the machine, since they must match the driver's kernel module.
DRIVER = re.compile(r"lib(cuda|nvidia-ml)\.so\.1")
# cuBLAS has several hundred MB. Only --with_cublas includes it.
CUBLAS = re.compile(r"libcublas(Lt)?\.so\.\d+")
# Drivers of fabrics, which Debian's configuration of Open MPI does not use either, and OpenSHMEM. A plugin that needs
# one is left out, and the manifest says so. Between nodes the bundle uses TCP.
NOT_BUNDLED = re.compile(r"lib(fabric|ibverbs|psm2|psm_infinipath|ucp|ucs|oshmem)\.so\.\d+")


class BundleError(Exception):
    """The bundle cannot be made. The message says what is missing and what to do."""


def run(command: list[str]) -> str:
    """The standard output of a command. The exit code is ignored: dpkg-query fails if one of many names is unknown."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError as error:
        raise BundleError(f"cannot run {command[0]}: {error}") from error


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


class LibraryFinder:
    """Finds a library by its soname as the loader of this machine would: in given folders, then in its cache."""

    def __init__(self, folders: Sequence[str] = ()) -> None:
        self._folders = list(folders)
        self._cache: dict[str, str] = {}
        for line in run(["/sbin/ldconfig", "-p"]).splitlines():
            match = re.fullmatch(r"\t(\S+) \((libc6,x86-64[^)]*)\) => (\S+)", line)
            # A hwcap library needs a certain CPU, so it does not run on every machine.
            if match and "hwcap" not in match[2]:
                self._cache.setdefault(match[1], match[3])

    def find(self, soname: str, needed_by: str, run_path: str | None) -> str:
        own = os.path.dirname(needed_by)
        folders = [folder.replace("$ORIGIN", own) for folder in (run_path or "").split(":") if folder]
        for folder in self._folders + folders:
            path = os.path.join(folder, soname)
            if os.path.exists(path):
                return path
        if soname in self._cache:
            return self._cache[soname]
        raise BundleError(f"{needed_by} needs {soname}, which is nowhere on this machine: install the package that has "
                          "it, or name its folder with --library_folder")

    def glibc(self) -> str:
        """The version of the C library that add_glibc takes, such as 2.36."""
        exports = ElfFile("libc.so.6", read(self.find("libc.so.6", "every program", None))).exports
        versions = (re.fullmatch(r"GLIBC_2\.(\d+)", version) for _, version in exports)
        return f"2.{max(int(version[1]) for version in versions if version)}"


class Packages:
    """Finds the Debian packages of files, and the packages' versions."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}

    def learn(self, paths: list[str]) -> None:
        """Looks up many files at once, because each dpkg-query reads its whole database."""
        spellings = []
        for path in paths:
            # dpkg knows a file by its path in the package, which may lack /usr.
            spellings += [path, path[len("/usr"):] if path.startswith("/usr/lib") else "/usr" + path]
        if not spellings:
            return
        for line in run(["dpkg-query", "--search", *spellings]).splitlines():
            owner, _, path = line.rpartition(": ")
            if owner and not owner.startswith("diversion"):
                self._owners[path] = owner.split(",")[0].split(":")[0]

    def owner(self, path: str) -> str | None:
        other = path[len("/usr"):] if path.startswith("/usr/lib") else "/usr" + path
        return self._owners.get(path) or self._owners.get(other)

    @staticmethod
    def versions(names: list[str]) -> dict[str, tuple[str, ...]]:
        """{name: (version, source package, its version)}"""
        form = "${Package}\t${Version}\t${source:Package}\t${source:Version}\n"
        rows = [line.split("\t") for line in run(["dpkg-query", "--show", "-f", form, *names]).splitlines()]
        return {row[0]: tuple(row[1:]) for row in rows}


class Bundle:
    """The bundle's files by name, collected in memory.

    left_to_machine: patterns of the sonames that are not in lib, because every machine or GLIBC_FOLDER has them.
    starter: the file under which each program is started; nothing for a bundle without programs.
    """

    def __init__(self, finder: LibraryFinder, starter: bytes = b"",
                 left_to_machine: Sequence[re.Pattern[str]] = (GLIBC, DRIVER, CUBLAS)) -> None:
        self._finder = finder
        self._starter = starter
        self._left_to_machine = left_to_machine
        self._files: dict[str, tuple[bytes, int]] = {}  # name -> content and mode
        self._sources: dict[str, str] = {}  # name -> path of a file of the system
        self.left_out: dict[str, str] = {}  # plugin -> the library that it needs
        self.from_machine: set[str] = set()  # sonames that the machine must have, without glibc's

    @property
    def files(self) -> dict[str, tuple[bytes, int]]:
        return dict(self._files)

    @property
    def sources(self) -> dict[str, str]:
        return dict(self._sources)

    def add(self, name: str, data: bytes, mode: int = 0o644) -> None:
        if name in self._files and self._files[name] != (data, mode):
            raise BundleError(f"two different files have the name {name} in the bundle: rename one")
        self._files[name] = (data, mode)

    def add_text(self, name: str, path: str) -> None:
        """Adds a file of the system that is no program."""
        self._sources[name] = os.path.realpath(path)
        self.add(name, read(path))

    def add_program(self, folder: str, path: str, name: str = "") -> None:
        """Adds a program or script of ours, and the libraries that it needs. name: the file's own name without one."""
        name = f"{folder}/{name or os.path.basename(path)}"
        data = read(path)
        if is_elf(data):
            elf = ElfFile(path, data)
            if PROGRAM_RPATH not in (elf.rpath or "").split(":"):
                raise BundleError(f"{path} has the RPATH {elf.rpath} and the RUNPATH {elf.runpath}, not the RPATH "
                                  f"{PROGRAM_RPATH}: build it with starring_cc_binary or starring_cc_test")
            self._add_libraries(elf, path)
            self._add_started(name)
            name = f"libexec/{name}"
        self.add(name, data, 0o755)

    def _add_started(self, name: str) -> None:
        """Adds the starter of a program, and its loader, whose path and name tell which program a process is."""
        self.add(name, self._starter, 0o755)
        loader = self._finder.find(LOADER, name, None)
        self._sources[f"libexec/loader/{name}"] = os.path.realpath(loader)
        self.add(f"libexec/loader/{name}", read(loader), 0o755)

    def add_glibc(self) -> None:
        """Adds all libraries of glibc: those that programs need, and those that it opens itself, to find names."""
        folder = os.path.dirname(self._finder.find("libc.so.6", "every program", None))
        for soname in sorted(os.listdir(folder)):
            if GLIBC.fullmatch(soname):
                self.add_system_elf(f"{GLIBC_FOLDER}/{soname}", os.path.join(folder, soname))

    def add_library(self, name: str, path: str) -> None:
        """Adds a library of ours, with its search path turned to the bundle's libraries, and those that it needs."""
        self._add_turned(name, self._with_search_path(ElfFile(path, read(path))), 0o644)

    def add_system_program(self, name: str, path: str) -> None:
        """Adds a program of the system, with a starter, our search path, and the libraries that it needs."""
        self._add_started(name)
        self.add_system_elf(f"libexec/{name}", path, 0o755)

    def add_system_elf(self, name: str, path: str, mode: int = 0o644) -> None:
        """Adds a program, plugin or library of the system, with our search path, and the libraries that it needs."""
        if name in self._files:
            return
        real = os.path.realpath(path)
        elf = ElfFile(path, read(real))
        self._sources[name] = real
        # A library may have none: its program's holds for it.
        self._add_turned(name, elf if mode != 0o755 else self._with_search_path(elf), mode)

    @staticmethod
    def _with_search_path(elf: ElfFile) -> ElfFile:
        if not elf.has_search_path:
            raise BundleError(f"{elf.name} has no search path that could be turned to the bundle's libraries")
        return elf

    def _add_turned(self, name: str, elf: ElfFile, mode: int) -> None:
        data = elf.data
        if elf.has_search_path:
            way = os.path.relpath("lib", os.path.dirname(name) or ".")
            data = elf.with_rpath("$ORIGIN" if way == "." else f"$ORIGIN/{way}")
        # Added before its libraries, which may need each other in a circle.
        self.add(name, data, mode)
        self._add_libraries(elf, elf.name)

    def add_plugin(self, name: str, path: str) -> None:
        """Adds a plugin of Open MPI, unless it needs a library that the bundle leaves out."""
        obstacle = self._obstacle(path, set())
        if obstacle is None:
            self.add_system_elf(name, path)
        else:
            self.left_out[os.path.basename(name)] = obstacle

    def _obstacle(self, path: str, seen: set[str]) -> str | None:
        """The first library among those that `path` needs, also indirectly, that the bundle leaves out; or None."""
        seen.add(path)
        elf = ElfFile(path, read(path))
        for soname in elf.needed:
            if NOT_BUNDLED.fullmatch(soname):
                return soname
            if not GLIBC.fullmatch(soname):
                library = self._finder.find(soname, path, elf.runpath or elf.rpath)
                found = None if library in seen else self._obstacle(library, seen)
                if found is not None:
                    return found
        return None

    def _is_from_machine(self, soname: str) -> bool:
        return any(pattern.fullmatch(soname) for pattern in self._left_to_machine)

    def _add_libraries(self, elf: ElfFile, path: str) -> None:
        for soname in elf.needed:
            if self._is_from_machine(soname):
                if not GLIBC.fullmatch(soname):
                    self.from_machine.add(soname)
            elif f"lib/{soname}" not in self._files:
                library = self._finder.find(soname, path, elf.runpath or elf.rpath)
                self.add_system_elf(f"lib/{soname}", library)

    def check(self) -> None:
        """Checks that every needed library is in the bundle or the machine's, and that no path leads elsewhere."""
        own_glibc = f"{GLIBC_FOLDER}/libc.so.6" in self._files
        for name, (data, _) in sorted(self._files.items()):
            if not is_elf(data):
                continue
            elf = ElfFile(name, data)
            for soname in elf.needed:
                is_here = f"lib/{soname}" in self._files or f"{GLIBC_FOLDER}/{soname}" in self._files
                if not is_here and (not self._is_from_machine(soname) or own_glibc and GLIBC.fullmatch(soname)):
                    raise BundleError(f"{name} needs {soname}, which did not get into the bundle")
            strays = name in self._sources and not (elf.rpath or "$ORIGIN").startswith("$ORIGIN")
            if elf.runpath is not None or strays:
                raise BundleError(f"{name} would look for libraries in {elf.runpath or elf.rpath}")

    def glibc(self) -> str:
        """The oldest glibc with which all files run, such as 2.36."""
        newest = max(ElfFile(name, data).glibc for name, (data, _) in self._files.items() if is_elf(data))
        return ".".join(map(str, newest))


def add_open_mpi(bundle: Bundle, finder: LibraryFinder, starter: str) -> None:
    """Adds Open MPI and PMIx under the names that common/transport/mpi/bundled_open_mpi.cc expects."""
    folders = dict(line.split(":")[1:3] for line in run(["ompi_info", "--parsable", "--path", "all"]).splitlines()
                   if line.startswith("path:"))
    for wanted in ("bindir", "pkglibdir", "pkgdatadir", "sysconfdir"):
        if not os.path.isdir(folders.get(wanted, "")):
            raise BundleError(f"ompi_info names no {wanted}: install Open MPI (Debian: openmpi-bin)")
    for program in ("mpirun", "orted"):
        bundle.add_program("bin", starter, program)
        bundle.add_system_program(f"openmpi/{program}", os.path.join(folders["bindir"], program))
    # Workers load it at run time, so no program names it.
    bundle.add_system_elf("lib/libmpi.so.40", finder.find("libmpi.so.40", "every worker over MPI", None))
    for name in sorted(os.listdir(folders["pkglibdir"])):
        if name.startswith("mca_") and name.endswith(".so"):
            bundle.add_plugin(f"lib/openmpi/{name}", os.path.join(folders["pkglibdir"], name))
    for name in sorted(os.listdir(folders["pkgdatadir"])):
        if name.startswith("help-"):
            bundle.add_text(f"share/openmpi/{name}", os.path.join(folders["pkgdatadir"], name))
    bundle.add_text("etc/openmpi/openmpi-mca-params.conf",
                    os.path.join(folders["sysconfdir"], "openmpi-mca-params.conf"))

    pmix = os.path.dirname(os.path.realpath(finder.find("libpmix.so.2", "Open MPI", None)))
    for name in sorted(os.listdir(os.path.join(pmix, "pmix"))):
        if name.endswith(".so"):
            bundle.add_plugin(f"lib/pmix/{name}", os.path.join(pmix, "pmix", name))
    texts = os.path.join(pmix, "../share/pmix")
    for name in sorted(os.listdir(texts)):
        if name.startswith("help-"):
            bundle.add_text(f"share/pmix/{name}", os.path.join(texts, name))


def licence_outside_packages(path: str) -> str:
    """The path of CUDA's licence text in the nearest folder above, where its installer or a Python wheel puts it."""
    folder = os.path.dirname(path)
    while folder != "/":
        for pattern in ("EULA.txt", "dist-info/nvidia_cublas-*/licenses/License.txt",
                        "nvidia_cublas-*.dist-info/licenses/License.txt"):
            found = sorted(glob.glob(os.path.join(glob.escape(folder), pattern)))
            if found:
                return found[-1]
        folder = os.path.dirname(folder)
    raise BundleError(f"{path} belongs to no Debian package and has no EULA.txt above it: its licence is unknown, and "
                      "the bundle must not have files without one")


def add_licences(bundle: Bundle) -> list[str]:
    """Adds the copyright files of all packages that have files in the bundle. Returns the manifest's lines."""
    sources = bundle.sources
    packages = Packages()
    packages.learn(sorted(set(sources.values())))
    files_of: dict[str, list[str]] = {}
    for name, path in sorted(sources.items()):
        owner = packages.owner(path)
        if owner is None:
            eula = licence_outside_packages(path)
            bundle.add("licences/NVIDIA/EULA.txt", read(eula))
            owner = "NVIDIA"
        files_of.setdefault(owner, []).append(name)
    versions = packages.versions([name for name in files_of if name != "NVIDIA"])
    common: set[bytes] = set()
    lines = []
    for owner in sorted(files_of):
        if owner != "NVIDIA":
            if owner not in versions:
                raise BundleError(f"dpkg-query knows no version of the package {owner}")
            version, source, source_version = versions[owner]
            copyright_file = f"/usr/share/doc/{owner}/copyright"
            if not os.path.exists(copyright_file):
                raise BundleError(f"the package {owner} has no {copyright_file}, and the bundle needs one: "
                                  f"apt-get install --reinstall {owner}")
            text = read(copyright_file)
            common.update(re.findall(COMMON_LICENCES.encode() + rb"/([A-Za-z0-9.+-]*[A-Za-z0-9+])", text))
            bundle.add(f"licences/{owner}/copyright", text)
            lines.append(f"{owner} {version} (Debian source {source} {source_version})")
        else:
            lines.append("NVIDIA CUDA")
        lines += [f"  {name}" for name in files_of[owner]]
    for name in sorted(licence.decode() for licence in common):
        path = os.path.join(COMMON_LICENCES, name)
        if os.path.exists(path):
            bundle.add(f"licences/common-licenses/{name}", read(path))
    return lines


def manifest(bundle: Bundle, package_lines: list[str]) -> str:
    ours = sorted(name for name in bundle.files if name not in bundle.sources and not name.startswith("licences/"))
    lines = ["Files of this bundle, by origin. The licence of each package is in licences/<package>/copyright; its",
             "source code is at https://snapshot.debian.org/package/<source>/<version>/", "",
             "Starring (LICENSE)", *[f"  {name}" for name in ours], ""]
    lines += package_lines
    own = f"{GLIBC_FOLDER}/libc.so.6" in bundle.files
    machine = sorted(bundle.from_machine) if own else [f"glibc {bundle.glibc()} or newer", *sorted(bundle.from_machine)]
    lines += ["", "Taken from the machine: " + (", ".join(machine) or "nothing")]
    if bundle.left_out:
        lines += ["", "Plugins left out, because they need libraries that are not in the bundle:"]
        lines += [f"  {plugin}: {library}" for plugin, library in sorted(bundle.left_out.items())]
    return "\n".join(lines) + "\n"


def write_archive(files: dict[str, tuple[bytes, int]], output: str) -> None:
    """Writes the files sorted by name, with one owner and one date, so that equal files give equal bytes.

    Programs of the same bytes are one file with several names: starters and loaders.
    """
    folders = {os.path.dirname(name) for name in files}
    for folder in list(folders):
        while folder:
            folders.add(folder)
            folder = os.path.dirname(folder)
    members: list[tuple[str, bytes | None, int]] = [(f"{TOP}/{folder}".rstrip("/"), None, 0o755) for folder in folders]
    members += [(f"{TOP}/{name}", data, mode) for name, (data, mode) in files.items()]
    with open(output, "wb") as file, gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
        with tarfile.open(fileobj=cast(IO[bytes], packed), mode="w", format=tarfile.USTAR_FORMAT) as archive:
            first_names: dict[bytes, str] = {}
            for name, data, mode in sorted(members, key=lambda member: member[0]):
                member = tarfile.TarInfo(name)
                member.mtime = FIXED_MTIME
                member.mode = mode
                if data is None:
                    member.type = tarfile.DIRTYPE
                    archive.addfile(member)
                elif mode == 0o755 and first_names.setdefault(data, name) != name:
                    member.type = tarfile.LNKTYPE
                    member.linkname = first_names[data]
                    archive.addfile(member)
                else:
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))


def make(options: argparse.Namespace) -> None:
    finder = LibraryFinder(options.library_folder)
    bundle = Bundle(finder, read(options.starter), (GLIBC, DRIVER) if options.with_cublas else (GLIBC, DRIVER, CUBLAS))
    bundle.add_glibc()
    for folder in ("bin", "tests", "bench"):
        for path in getattr(options, folder):
            bundle.add_program(folder, path)
    for name_and_path in options.scripts:
        name, _, path = name_and_path.partition("=")
        data = read(path)
        bundle.add(name, data, 0o755 if data.startswith(b"#!") else 0o644)
    add_open_mpi(bundle, finder, options.open_mpi_starter)
    for path in options.models:
        bundle.add(f"models/{os.path.basename(path)}", read(path))
    bundle.add("LICENSE", read(options.licence))
    bundle.check()
    machine = "".join(f", and {soname} where its loader finds it" for soname in sorted(bundle.from_machine))
    bundle.add("README.txt", read(options.readme).replace(b"@GLIBC@", finder.glibc().encode())
               .replace(b"@MACHINE@", machine.encode()))
    # Named before its text is made, so that the manifest lists itself.
    bundle.add("MANIFEST.txt", b"")
    text = manifest(bundle, add_licences(bundle))
    files = bundle.files
    files["MANIFEST.txt"] = (text.encode(), 0o644)
    write_archive(files, options.output)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0], allow_abbrev=False)
    parser.add_argument("--output", required=True)
    parser.add_argument("--bin", nargs="+", required=True, help="programs and scripts that users run")
    parser.add_argument("--tests", nargs="*", default=[])
    parser.add_argument("--bench", nargs="*", default=[])
    parser.add_argument("--scripts", nargs="*", default=[], help="NAME=FILE: files, each with its name in the bundle")
    parser.add_argument("--models", nargs="*", default=[], help="layer files")
    parser.add_argument("--open_mpi_starter", required=True, help="the program that becomes mpirun and orted")
    parser.add_argument("--starter", required=True, help="the program under the name of each program")
    parser.add_argument("--readme", required=True)
    parser.add_argument("--licence", required=True)
    parser.add_argument("--with_cublas", action="store_true", help="include cuBLAS, which has several hundred MB")
    parser.add_argument("--library_folder", action="append", default=[], help="folder to search for libraries first")
    try:
        make(parser.parse_args())
    except (BundleError, ElfError, OSError) as error:
        sys.exit(f"make_bundle: error: {error}")


if __name__ == "__main__":
    main()
