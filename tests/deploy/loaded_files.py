"""The files that a running process has loaded, for tests of what is installed elsewhere."""

from __future__ import annotations

import os
import re


def mapped_files(pid: str) -> tuple[str | None, set[str]]:
    """The program of a process and the files that it maps as code; nothing if the process has ended."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
            lines = [line.rstrip("\n").split(maxsplit=5) for line in file]
        return os.readlink(f"/proc/{pid}/exe"), {line[5] for line in lines
                                                 if len(line) == 6 and "x" in line[1] and line[5].startswith("/")}
    except OSError:
        return None, set()


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
            program, files = mapped_files(pid)
            if program is None or not program.startswith(self._folder):
                continue
            place = started_as(os.path.relpath(program, self._folder))
            self.by_program.setdefault(place, set()).update(files)
            try:
                with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
                    self.names.setdefault(place, set()).add(file.read().strip())
            except OSError:  # the process has ended
                pass
