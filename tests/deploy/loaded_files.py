"""The files that a running process has loaded, for tests of what is installed elsewhere."""

from __future__ import annotations

import os


def mapped_files(pid: str) -> tuple[str | None, set[str]]:
    """The program of a process and the files that it maps as code; nothing if the process has ended."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
            lines = [line.rstrip("\n").split(maxsplit=5) for line in file]
        return os.readlink(f"/proc/{pid}/exe"), {line[5] for line in lines
                                                 if len(line) == 6 and "x" in line[1] and line[5].startswith("/")}
    except OSError:
        return None, set()


class LoadedFiles:
    """Collects, look by look, what the programs below a folder have loaded."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.by_program: dict[str, set[str]] = {}  # by the program's path below the folder

    def look(self) -> None:
        """Looks at every process of this machine."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            program, files = mapped_files(pid)
            if program is not None and program.startswith(self._folder):
                self.by_program.setdefault(os.path.relpath(program, self._folder), set()).update(files)
