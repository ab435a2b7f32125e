"""The files from elsewhere that libstarring.so for old systems is built of, each with its SHA-256.

Sources are Debian 12's, by their addresses in its archive: neither /etc/apt nor another list of the user's is read.
Programs are of PyPI, installed by pip into a folder of their own. A file that is in the cache is not fetched again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Mapping

DEBIAN = "https://deb.debian.org/debian/pool/main"
SECONDS_MAX = 60  # without a byte from a server
INSTALL_SECONDS_MAX = 900


class DownloadError(Exception):
    """A file cannot be had, or is not the one that is wanted."""


@dataclasses.dataclass(frozen=True)
class File:
    """A file of Debian's archive."""
    path: str  # below DEBIAN
    sha256: str

    @property
    def name(self) -> str:
        return os.path.basename(self.path)


@dataclasses.dataclass(frozen=True)
class Source:
    """A source package: upstream's archive, Debian's patches for it, and its licence.

    name: of the folder that the archive is unpacked into.
    folder: the one in the archive.
    """
    name: str
    version: str
    archive: File
    folder: str
    patches: File
    licence: str


# The same versions as those of libabsl-dev and zlib1g-dev, for the same code and bits as in a build with GCC.
SOURCES = (
    Source("abseil", "20220623.1-1+deb12u2",
           File("a/abseil/abseil_20220623.1.orig.tar.gz",
                "abfe2897f3a30edaa74bc34365afe3c2a3cd012091a97dc7e008f7016adcd5fe"), "abseil-20220623.1",
           File("a/abseil/abseil_20220623.1-1+deb12u2.debian.tar.xz",
                "e08490fc7b6f3beca1925953b0c4fb92df2de5e2a01295e4641e2a3d4e528eeb"), "LICENSE"),
    Source("zlib", "1:1.2.13.dfsg-1",
           File("z/zlib/zlib_1.2.13.dfsg.orig.tar.bz2",
                "71feb7947e3c00ef125f83b79a4e529bde31171e5babe48b391f06758d1ab0a1"), "zlib-1.2.13.dfsg",
           File("z/zlib/zlib_1.2.13.dfsg-1.debian.tar.xz",
                "f66cf3d4f2d7defcd4d1fd1fb0a11ee39f1e01b42ec7d059c9dc5c1695133c44"), "README"),
)

# Zig is a clang with glibc's symbols of every version, and auditwheel judges the wheel. The last two are its needs.
PROGRAMS = {
    "ziglang==0.17.1": "ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54",
    "auditwheel==6.8.2": "05fd2dd4b743217cd5f66066adc95b03a079424b1f0a878ad1e40fe2cdea4704",
    "packaging==26.4": "81383611a09c1bc0b08b76e0fd5829d7c6824c65b27a6aee339da133f4233ea2",
    "pyelftools==0.33": "f215ad5f47d3f1373a21496a6c9e0707c622840d0622f23ff7ce08678b020036",
}


def sha256_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fetch(file: File, folder: str, archive: str = DEBIAN) -> str:
    """The path of the file in `folder`, fetched if it is not there yet."""
    path = os.path.join(folder, file.name)
    if not os.path.exists(path):
        part = path + ".part"
        try:
            with urllib.request.urlopen(f"{archive}/{file.path}", timeout=SECONDS_MAX) as answer, \
                    open(part, "wb") as output:
                shutil.copyfileobj(answer, output)
        except (OSError, urllib.error.URLError) as error:
            raise DownloadError(f"cannot fetch {archive}/{file.path}: {error}: connect this machine, or put the file "
                                f"into {folder}") from error
        os.replace(part, path)
    found = sha256_of(path)
    if found != file.sha256:
        raise DownloadError(f"{path} has the SHA-256 {found}, wanted is {file.sha256}: delete it to have it fetched")
    return path


def unpack(source: Source, downloads: str, folder: str) -> None:
    """Unpacks the source, with Debian's patches, into the subfolder of its name."""
    place = os.path.join(folder, source.name)
    with tarfile.open(fetch(source.archive, downloads)) as archive:
        archive.extractall(folder, [member for member in archive if member.name.startswith(source.folder + "/")])
    os.rename(os.path.join(folder, source.folder), place)
    with tarfile.open(fetch(source.patches, downloads)) as archive:
        texts = {member.name: data.read().decode() for member in archive
                 if (data := archive.extractfile(member) if member.isfile() else None) is not None
                 and member.name.startswith("debian/patches/")}
    for name in texts["debian/patches/series"].split():
        try:
            done = subprocess.run(["patch", "--strip=1", "--quiet", "--forward"], input=texts[f"debian/patches/{name}"],
                                  cwd=place, text=True, capture_output=True, check=False, timeout=SECONDS_MAX)
        except FileNotFoundError as error:
            raise DownloadError("there is no program patch: apt-get install patch") from error
        if done.returncode != 0:
            raise DownloadError(f"Debian's patch {name} does not fit {source.archive.name}: {done.stdout.strip()}")


def install_programs(cache: str, packages: Mapping[str, str] | None = None, folder: str = "programs") -> str:
    """The folder of the programs of `packages`, or PROGRAMS, in an environment of their own in `folder` of the cache.

    They are installed if they are not there yet.
    """
    packages = PROGRAMS if packages is None else packages
    wanted = "".join(f"{name} --hash=sha256:{digest}\n" for name, digest in packages.items())
    place = os.path.join(cache, folder)
    list_of_them = os.path.join(place, "installed.txt")
    if os.path.exists(list_of_them):
        with open(list_of_them, encoding="utf-8") as file:
            if file.read() == wanted:
                return os.path.join(place, "bin")
    os.makedirs(cache, exist_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    requirements = os.path.join(cache, "requirements.txt")
    with open(requirements, "w", encoding="utf-8") as file:
        file.write(wanted)
    for command in ([sys.executable, "-m", "venv", place],
                    [f"{place}/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                     "--no-compile", "--no-deps", "--only-binary=:all:", "--require-hashes",
                     f"--find-links={os.path.join(cache, 'downloads')}", f"--requirement={requirements}"]):
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                              timeout=INSTALL_SECONDS_MAX)
        if done.returncode != 0:
            last = (done.stdout.strip().splitlines() or ["no output"])[-1]
            raise DownloadError(f"{' '.join(command[:4])} failed: {last}: python3-venv must be installed, and PyPI "
                                f"reached, or the wheels of {', '.join(packages)} must be in {cache}/downloads")
    os.replace(requirements, list_of_them)
    return os.path.join(place, "bin")
