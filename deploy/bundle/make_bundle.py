#!/usr/bin/env python3
"""Makes the bundle: programs, and every shared library that they need and that a bare machine lacks, in one tar.gz.

How a program finds its libraries wherever the bundle lies: its RPATH says $ORIGIN/../lib (starring.bzl), which comes
before LD_LIBRARY_PATH and holds for the libraries of its libraries too. Those parts of Open MPI that carry a search
path of their own get a new one, written over the old. How Open MPI finds its plugins: common/host/bundled_open_mpi.h.

Nothing is left out silently: a library that is found nowhere, or has no licence text, ends the script with exit code 1.
The same input gives the same bytes.
"""

import argparse
import glob
import gzip
import io
import os
import re
import subprocess
import sys
import tarfile

try:
    from deploy.bundle.elf_file import ElfError, ElfFile, is_elf
except ImportError:  # started as a script, not by Bazel
    from elf_file import ElfError, ElfFile, is_elf

TOP = "starring"  # the one folder in the archive
FIXED_MTIME = 1767225600  # 2026-01-01: the archive does not say when it was made
COMMON_LICENCES = "/usr/share/common-licenses"

# Belongs to glibc: part of the machine, as the kernel is.
GLIBC = re.compile(r"(ld-linux-x86-64|lib(c|m|dl|rt|pthread|resolv|util|anl|mvec|nsl|thread_db|BrokenLocale))\.so\.\d+")
# Belongs to the GPU's driver, and has to match the kernel's part of it.
DRIVER = re.compile(r"lib(cuda|nvidia-ml)\.so\.1")
# Several hundred MB: only --with_cublas takes them along.
CUBLAS = re.compile(r"libcublas(Lt)?\.so\.\d+")
# Drivers of fabrics, which Debian's configuration of Open MPI leaves alone as well, and OpenSHMEM. A plugin that needs
# one is left out, and the manifest says so: between nodes the bundle speaks TCP.
NOT_BUNDLED = re.compile(r"lib(fabric|ibverbs|psm2|psm_infinipath|ucp|ucs|oshmem)\.so\.\d+")


class BundleError(Exception):
    """The bundle cannot be made; says what is missing and what to do."""


def run(command):
    """Standard output of a command; dpkg-query's exit code only says that some of many names are unknown."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError as error:
        raise BundleError(f"cannot run {command[0]}: {error}") from error


def read(path):
    with open(path, "rb") as file:
        return file.read()


class LibraryFinder:
    """Finds a library by its soname as the loader of this machine would: in given folders, then in its cache."""

    def __init__(self, folders=()):
        self._folders = list(folders)
        self._cache = {}
        for line in run(["/sbin/ldconfig", "-p"]).splitlines():
            match = re.fullmatch(r"\t(\S+) \((libc6,x86-64[^)]*)\) => (\S+)", line)
            # A library for a certain CPU does not run on every machine.
            if match and "hwcap" not in match[2]:
                self._cache.setdefault(match[1], match[3])

    def find(self, soname, needed_by, run_path):
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


class Packages:
    """Which Debian package a file came from, and what that package says about its licence."""

    def __init__(self):
        self._owners = {}

    def learn(self, paths):
        """One question for many files: dpkg-query reads its whole data base each time."""
        spellings = []
        for path in paths:
            # dpkg knows a file under the name that its package used, with or without /usr.
            spellings += [path, path[len("/usr"):] if path.startswith("/usr/lib") else "/usr" + path]
        if not spellings:
            return
        for line in run(["dpkg-query", "--search", *spellings]).splitlines():
            owner, _, path = line.rpartition(": ")
            if owner and not owner.startswith("diversion"):
                self._owners[path] = owner.split(",")[0].split(":")[0]

    def owner(self, path):
        other = path[len("/usr"):] if path.startswith("/usr/lib") else "/usr" + path
        return self._owners.get(path) or self._owners.get(other)

    @staticmethod
    def versions(names):
        """{name: (version, source package, its version)}"""
        form = "${Package}\t${Version}\t${source:Package}\t${source:Version}\n"
        rows = [line.split("\t") for line in run(["dpkg-query", "--show", "-f", form, *names]).splitlines()]
        return {row[0]: tuple(row[1:]) for row in rows}


class Bundle:
    """Files by their name in the bundle, gathered in memory."""

    def __init__(self, finder, with_cublas=False):
        self._finder = finder
        self._with_cublas = with_cublas
        self._files = {}  # name -> (bytes, mode)
        self._sources = {}  # name -> where a file of the system came from
        self.left_out = {}  # plugin -> the library for whose sake
        self.from_machine = set()  # sonames that the machine has to offer, glibc's aside

    @property
    def files(self):
        return dict(self._files)

    @property
    def sources(self):
        return dict(self._sources)

    def add(self, name, data, mode=0o644):
        if name in self._files and self._files[name] != (data, mode):
            raise BundleError(f"two different files want to be {name} in the bundle: rename one")
        self._files[name] = (data, mode)

    def add_text(self, name, path):
        """A file of the system that is no program."""
        self._sources[name] = os.path.realpath(path)
        self.add(name, read(path))

    def add_program(self, folder, path):
        """A program of ours, or a script, and the libraries that it needs."""
        name = f"{folder}/{os.path.basename(path)}"
        data = read(path)
        if is_elf(data):
            elf = ElfFile(path, data)
            if elf.needed and "$ORIGIN/../lib" not in (elf.rpath or "").split(":"):
                raise BundleError(f"{path} has the RPATH {elf.rpath} and the RUNPATH {elf.runpath}, not the RPATH "
                                  "$ORIGIN/../lib: build it with starring_cc_binary or starring_cc_test")
            self._add_libraries(elf, path)
        self.add(name, data, 0o755)

    def add_system_elf(self, name, path, mode=0o644):
        """A program, plugin or library of the system, its search path turned to our lib, and what it needs."""
        if name in self._files:
            return
        real = os.path.realpath(path)
        elf = ElfFile(path, read(real))
        self._sources[name] = real
        data = elf.data
        if elf.rpath is not None or elf.runpath is not None:
            way = os.path.relpath("lib", os.path.dirname(name))
            data = elf.with_rpath("$ORIGIN" if way == "." else f"$ORIGIN/{way}")
        elif mode == 0o755:
            raise BundleError(f"{path} has no search path that could be turned to the bundle's libraries")
        self.add(name, data, mode)
        self._add_libraries(elf, path)

    def add_plugin(self, name, path):
        """A plugin of Open MPI, unless it drives what the bundle leaves out."""
        obstacle = self._obstacle(path, set())
        if obstacle is None:
            self.add_system_elf(name, path)
        else:
            self.left_out[os.path.basename(name)] = obstacle

    def _obstacle(self, path, seen):
        """The first library in the closure of `path` that the bundle leaves out, or None."""
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

    def _is_from_machine(self, soname):
        return (GLIBC.fullmatch(soname) or DRIVER.fullmatch(soname) or
                (CUBLAS.fullmatch(soname) and not self._with_cublas))

    def _add_libraries(self, elf, path):
        for soname in elf.needed:
            if self._is_from_machine(soname):
                if not GLIBC.fullmatch(soname):
                    self.from_machine.add(soname)
            elif f"lib/{soname}" not in self._files:
                library = self._finder.find(soname, path, elf.runpath or elf.rpath)
                self.add_system_elf(f"lib/{soname}", library)

    def check(self):
        """Every library that a file of the bundle needs is in it, or is the machine's, and no path leads elsewhere."""
        for name, (data, _) in sorted(self._files.items()):
            if not is_elf(data):
                continue
            elf = ElfFile(name, data)
            for soname in elf.needed:
                if not self._is_from_machine(soname) and f"lib/{soname}" not in self._files:
                    raise BundleError(f"{name} needs {soname}, which did not get into the bundle")
            strays = name in self._sources and not (elf.rpath or "$ORIGIN").startswith("$ORIGIN")
            if elf.runpath is not None or strays:
                raise BundleError(f"{name} would look for libraries in {elf.runpath or elf.rpath}")

    def glibc(self):
        """The oldest glibc on which everything runs, such as 2.36."""
        newest = max(ElfFile(name, data).glibc for name, (data, _) in self._files.items() if is_elf(data))
        return ".".join(map(str, newest))


def add_open_mpi(bundle, finder, starter):
    """Open MPI and PMIx under the names of common/host/bundled_open_mpi.cc."""
    folders = dict(line.split(":")[1:3] for line in run(["ompi_info", "--parsable", "--path", "all"]).splitlines()
                   if line.startswith("path:"))
    for wanted in ("bindir", "pkglibdir", "pkgdatadir", "sysconfdir"):
        if not os.path.isdir(folders.get(wanted, "")):
            raise BundleError(f"ompi_info names no {wanted}: install Open MPI (Debian: openmpi-bin)")
    for program in ("mpirun", "orted"):
        bundle.add(f"bin/{program}", read(starter), 0o755)
        bundle.add_system_elf(f"libexec/{program}", os.path.join(folders["bindir"], program), 0o755)
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


def licence_outside_packages(path):
    """The licence text of CUDA, in the nearest folder above: as its installer or a Python wheel leaves it."""
    folder = os.path.dirname(path)
    while folder != "/":
        for pattern in ("EULA.txt", "dist-info/nvidia_cublas-*/licenses/License.txt",
                        "nvidia_cublas-*.dist-info/licenses/License.txt"):
            found = sorted(glob.glob(os.path.join(glob.escape(folder), pattern)))
            if found:
                return found[-1]
        folder = os.path.dirname(folder)
    raise BundleError(f"{path} belongs to no Debian package and has no EULA.txt above it: its licence is unknown, and "
                      "what we pass on needs one")


def add_licences(bundle):
    """Copyright files of all packages that files came from, and the manifest."""
    sources = bundle.sources
    packages = Packages()
    packages.learn(sorted(set(sources.values())))
    files_of = {}
    for name, path in sorted(sources.items()):
        owner = packages.owner(path)
        if owner is None:
            eula = licence_outside_packages(path)
            bundle.add("licences/NVIDIA/EULA.txt", read(eula))
            owner = "NVIDIA"
        files_of.setdefault(owner, []).append(name)
    versions = packages.versions([name for name in files_of if name != "NVIDIA"])
    common = set()
    lines = []
    for owner in sorted(files_of):
        if owner != "NVIDIA":
            if owner not in versions:
                raise BundleError(f"dpkg-query knows no version of the package {owner}")
            version, source, source_version = versions[owner]
            copyright_file = f"/usr/share/doc/{owner}/copyright"
            if not os.path.exists(copyright_file):
                raise BundleError(f"the package {owner} has no {copyright_file}, and what we pass on needs one: "
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


def manifest(bundle, package_lines):
    ours = sorted(name for name in bundle.files if name not in bundle.sources and not name.startswith("licences/"))
    lines = ["Files of this bundle, by origin. The licence of each package is in licences/<package>/copyright; its",
             "source code is at https://snapshot.debian.org/package/<source>/<version>/", "",
             "Starring (LICENSE)", *[f"  {name}" for name in ours], ""]
    lines += package_lines
    lines += ["", "Taken from the machine: glibc " + bundle.glibc() + " or newer" +
              "".join(f", {soname}" for soname in sorted(bundle.from_machine))]
    lines += ["", "Plugins left out, as they need what is not in the bundle:"]
    lines += [f"  {plugin}: {library}" for plugin, library in sorted(bundle.left_out.items())]
    return "\n".join(lines) + "\n"


def write_archive(files, output):
    """Names sorted, one owner, one date, three modes: equal files give equal bytes."""
    folders = {os.path.dirname(name) for name in files}
    for folder in list(folders):
        while folder:
            folders.add(folder)
            folder = os.path.dirname(folder)
    members = [(f"{TOP}/{folder}".rstrip("/"), None, 0o755) for folder in folders]
    members += [(f"{TOP}/{name}", data, mode) for name, (data, mode) in files.items()]
    with open(output, "wb") as file, gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for name, data, mode in sorted(members, key=lambda member: member[0]):
                member = tarfile.TarInfo(name)
                member.mtime = FIXED_MTIME
                member.mode = mode
                if data is None:
                    member.type = tarfile.DIRTYPE
                    archive.addfile(member)
                else:
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))


def make(options):
    finder = LibraryFinder(options.library_folder)
    bundle = Bundle(finder, options.with_cublas)
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
    bundle.add("README.txt", read(options.readme).replace(b"@GLIBC@", bundle.glibc().encode())
               .replace(b"@MACHINE@", machine.encode()))
    bundle.add("MANIFEST.txt", b"")
    text = manifest(bundle, add_licences(bundle))
    files = bundle.files
    files["MANIFEST.txt"] = (text.encode(), 0o644)
    write_archive(files, options.output)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0], allow_abbrev=False)
    parser.add_argument("--output", required=True)
    parser.add_argument("--bin", nargs="+", required=True, help="programs and scripts that users run")
    parser.add_argument("--tests", nargs="*", default=[])
    parser.add_argument("--bench", nargs="*", default=[])
    parser.add_argument("--scripts", nargs="*", default=[], help="NAME=FILE: files that keep their place, NAME")
    parser.add_argument("--models", nargs="*", default=[], help="layer files")
    parser.add_argument("--open_mpi_starter", required=True, help="what becomes mpirun and orted")
    parser.add_argument("--readme", required=True)
    parser.add_argument("--licence", required=True)
    parser.add_argument("--with_cublas", action="store_true", help="take cuBLAS along, several hundred MB")
    parser.add_argument("--library_folder", action="append", default=[], help="searched for libraries first")
    try:
        make(parser.parse_args())
    except (BundleError, ElfError, OSError) as error:
        sys.exit(f"make_bundle: error: {error}")


if __name__ == "__main__":
    main()
