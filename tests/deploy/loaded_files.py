"""The files that a running process has loaded, for tests of what is installed elsewhere."""

from __future__ import annotations

import os
import re


def mapped_files(pid: str) -> set[str]:
    """The files that a process maps as code."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        lines = [line.rstrip("\n").split(maxsplit=5) for line in file]
    return {line[5] for line in lines if len(line) == 6 and "x" in line[1] and line[5].startswith("/")}


def name_in_ps(pid: str) -> str:
    with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
        return file.read().strip()


def started_as(file: str) -> str:
    """bin/worker for the files of that program in a bundle: libexec/bin/worker and libexec/loader/bin/worker."""
    return re.sub(r"^libexec/(loader/)?", "", file)


class LoadedFiles:
    """Collects, look by look, what the programs below a folder have loaded, and their names in ps."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.by_program: dict[str, set[str]] = {}  # by the program's path below the folder
        self.names: dict[str, set[str]] = {}

    def look(self) -> None:
        """Looks at every process of this machine."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                program = os.readlink(f"/proc/{pid}/exe")
                files, name = mapped_files(pid), name_in_ps(pid)
                # A process that started another program meanwhile would show one's path and the other's name.
                if program != os.readlink(f"/proc/{pid}/exe"):
                    continue
            except OSError:  # the process has ended
                continue
            if not program.startswith(self._folder):
                continue
            place = started_as(os.path.relpath(program, self._folder))
            self.by_program.setdefault(place, set()).update(files)
            self.names.setdefault(place, set()).add(name)
