"""Starring's programs as commands: starring-launch, starring-worker and starring-server.

Each command becomes its program: process id, signals and exit code are the program's own. The programs bring their C
library, so they need nothing of the system but its kernel.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

__all__ = ["launch", "server", "worker"]

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")


def _become(name: str) -> NoReturn:
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
