"""Finds the processes of one job by a variable in their environment, which all children inherit."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import signal
import time

MARK = "STARRING_CHAOS_JOB"

# Of sys/ptrace.h and sys/wait.h.
_PTRACE_DETACH, _PTRACE_SEIZE, _PTRACE_INTERRUPT = 17, 0x4206, 0x4207
_WALL = 0x40000000
# A thread that trains waits for others again and again. It is stopped while it computes, if that comes within this.
_RUNNING_SECONDS_MAX = 2.0


@dataclasses.dataclass(frozen=True)
class Process:
    """A process of a job."""
    pid: int
    started: str  # in clock ticks since boot; it tells the process from a later one with the same id
    role: str  # worker, server, mpirun, launch or other
    number: int  # rank or shard
    parent: int = 0  # the process id of its launcher, or of what that has started


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _stat(pid: int) -> tuple[str, str, int]:
    """The process's state, start time and parent."""
    fields = _read("/proc/%d/stat" % pid).rpartition(b")")[2].split()
    return fields[0].decode(), fields[19].decode(), int(fields[1])


def _describe(pid: int, environment: dict[bytes, bytes], command: list[bytes]) -> Process:
    program = os.path.basename(command[0]).decode(errors="replace") if command else ""
    role = program if program in ("worker", "server", "mpirun", "launch") else "other"
    if program == "stopping_worker":  # a worker that fails when it is told to
        role = "worker"
    number = 0
    if role == "worker":
        number = _number(command, b"--rank=", environment.get(b"OMPI_COMM_WORLD_RANK", b"0"))
    elif role == "server":
        number = _number(command, b"--shard=", b"0")
    elif role == "launch" and b"OMPI_COMM_WORLD_RANK" in environment:
        role = "other"  # a rank that is about to become a worker
    _, started, parent = _stat(pid)
    return Process(pid=pid, started=started, role=role, number=number, parent=parent)


def _number(command: list[bytes], flag: bytes, default: bytes) -> int:
    for word in command:
        if word.startswith(flag):
            return int(word[len(flag):])
    return int(default)


def find(mark: str) -> list[Process]:
    """All processes of the job `mark` that have not ended."""
    wanted = ("%s=%s" % (MARK, mark)).encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            variables = _read("/proc/%s/environ" % name).split(b"\0")
            if wanted not in variables or _stat(int(name))[0] == "Z":
                continue
            environment = dict(variable.partition(b"=")[::2] for variable in variables)
            command = _read("/proc/%s/cmdline" % name).split(b"\0")
            found.append(_describe(int(name), environment, command))
        except (OSError, IndexError, ValueError):
            continue  # it ended meanwhile, or belongs to another user
    return found


def send(process: Process, number: int) -> bool:
    """Sends a signal. Returns whether the process still existed."""
    try:
        if _stat(process.pid)[1] != process.started:
            return False
        os.kill(process.pid, number)
        return True
    except (OSError, IndexError):
        return False


def hold_first_thread(process: Process, seconds: float) -> bool:
    """Stops a process's first thread, and no other: a worker that hangs while it goes on to report. False: the process
    has ended, or this user may not trace it."""
    try:
        if _stat(process.pid)[1] != process.started or not _ptrace(_PTRACE_SEIZE, process.pid):
            return False
        try:
            end = time.monotonic() + _RUNNING_SECONDS_MAX
            while _stat(process.pid)[0] != "R" and time.monotonic() < end:
                time.sleep(0.0005)
            if not _ptrace(_PTRACE_INTERRUPT, process.pid):
                return False
            os.waitpid(process.pid, _WALL)
            time.sleep(seconds)
            return True
        finally:
            _let_go(process.pid)
    except (OSError, IndexError):
        return False


def _let_go(pid: int) -> None:
    """Ends the trace of a thread, which goes on. Only a thread that is stopped can be let go."""
    with contextlib.suppress(OSError):  # an error on the way here matters more
        if _ptrace(_PTRACE_DETACH, pid):
            return
        is_alive = _ptrace(_PTRACE_INTERRUPT, pid)
        # Of one that was killed its parent learns only after this.
        os.waitpid(pid, _WALL if is_alive else _WALL | os.WNOHANG)
        _ptrace(_PTRACE_DETACH, pid)


def _ptrace(request: int, pid: int) -> bool:
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    ptrace.restype = ctypes.c_long
    return int(ptrace(request, pid, None, None)) == 0


def kill_all(mark: str) -> None:
    for process in find(mark):
        send(process, signal.SIGKILL)
