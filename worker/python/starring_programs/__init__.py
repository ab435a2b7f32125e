"""Starring's programs as commands: starring-launch, starring-worker and starring-server.

Each command becomes its program: process id, signals and exit code are the program's own.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

__all__ = ["launch", "server", "worker"]

GLIBC_MIN = (2, 36)  # of the programs and their libraries

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")


def _glibc() -> str:
    """The version of this process's C library, such as 2.36; empty if it is not glibc."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (OSError, ValueError):  # another C library does not know the name
        return ""
    return version if name == "glibc" else ""


def _check_glibc(name: str) -> None:
    """The loader would print a line for each symbol that it misses."""
    found = _glibc()
    if tuple(int(part) for part in found.split(".")[:2] if part.isdigit()) < GLIBC_MIN:
        sys.exit(f"starring-{name}: error: this system has {'glibc ' + found if found else 'no glibc'}, the programs "
                 f"need glibc {GLIBC_MIN[0]}.{GLIBC_MIN[1]} or newer: start them on a newer system, or train under "
                 "PyTorch by import starring.torch, which needs less")


def _become(name: str) -> NoReturn:
    _check_glibc(name)
    path = os.path.join(_FOLDER, name)
    try:
        os.execv(path, [path, *sys.argv[1:]])
    except FileNotFoundError:
        sys.exit(f"starring-{name}: error: there is no {path}: install the wheel (bazel build "
                 "//deploy:programs_wheel)")
    except PermissionError:
        sys.exit(f"starring-{name}: error: {path} may not be executed: unpack the wheel with pip or unzip, which keep "
                 "the files' modes")


def launch() -> NoReturn:
    """Runs a job of several processes on this machine."""
    _become("launch")


def worker() -> NoReturn:
    """Runs one training process."""
    _become("worker")


def server() -> NoReturn:
    """Runs one shard of a star."""
    _become("server")
