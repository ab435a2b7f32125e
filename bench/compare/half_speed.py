"""Makes one process run at half speed, as if its machine were slower.

A control group gives it 50 % of a core where this machine lets us make one (version 2: cpu.max, version 1:
cpu.cfs_quota_us). Elsewhere another process that is always busy takes turns with it on its core.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator

QUOTA = "a control group with half of a core"
COMPETITOR = "a busy process on the same core"
# Short against a step, so that every step is slowed alike.
_PERIOD_US = 20_000
_LEAVE_SECONDS_MAX = 5.0
# It ends with the process that has started it.
_BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100000))\n"


def parents(mounts: str, groups: str) -> list[tuple[str, dict[str, str]]]:
    """(folder in which to make a group, what to write into its files), the most wanted first, from the texts of
    /proc/self/mountinfo and /proc/self/cgroup."""
    own = {controller: path for controllers, path in re.findall(r"^\d+:([^:]*):(.*)$", groups, re.MULTILINE)
           for controller in controllers.split(",")}
    found = []
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        root, mounted = before.split()[3:5]
        kind, _, options = (after.split() + ["", "", ""])[:3]
        if kind == "cgroup2":
            path, limits = own.get("", "/"), {"cpu.max": f"{_PERIOD_US // 2} {_PERIOD_US}"}
        elif kind == "cgroup" and "cpu" in options.split(","):
            path = own.get("cpu", "/")
            limits = {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(_PERIOD_US // 2)}
        else:
            continue
        # In a container the mount may show a part of the hierarchy alone.
        folder = os.path.normpath(os.path.join(mounted, os.path.relpath(path, root) if path.startswith(root) else "."))
        found.append((folder, limits))
        # In version 2 a group with processes of its own, such as ours, gives no processor time to groups within it.
        while len(folder) > len(mounted):
            folder = os.path.dirname(folder)
            found.append((folder, limits))
    return found


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _write(folder: str, name: str, text: str) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(text)


def _make_group(pid: int) -> str | None:
    """Puts the process into a group of its own; None if this machine has none for us."""
    for parent, limits in parents(_read("/proc/self/mountinfo"), _read("/proc/self/cgroup")):
        folder = os.path.join(parent, f"starring-half-speed-{os.getpid()}-{pid}")
        try:
            os.mkdir(folder)
        except OSError:
            continue
        try:
            for name, text in limits.items():
                # Opening it for writing would make it, were this no control group.
                if not os.path.exists(os.path.join(folder, name)):
                    raise FileNotFoundError(name)
                _write(folder, name, text)
            _write(folder, "cgroup.procs", str(pid))
            return folder
        except OSError:
            _remove_group(folder)
    return None


def _remove_group(folder: str) -> None:
    """A group can be removed when its processes have ended."""
    end = time.monotonic() + _LEAVE_SECONDS_MAX
    while True:
        try:
            os.rmdir(folder)
            return
        except OSError:
            if time.monotonic() > end:
                return
        time.sleep(0.05)


@contextlib.contextmanager
def halved(pid: int) -> Iterator[str]:
    """Within this block the process has half of its core; gives QUOTA or COMPETITOR. The process must have ended when
    the block is left, or its group stays."""
    folder = _make_group(pid)
    if folder is not None:
        try:
            yield QUOTA
        finally:
            _remove_group(folder)
        return
    with subprocess.Popen([sys.executable, "-c", _BUSY], stdin=subprocess.DEVNULL) as busy:
        try:
            os.sched_setaffinity(busy.pid, os.sched_getaffinity(pid))
            yield COMPETITOR
        finally:
            busy.kill()
