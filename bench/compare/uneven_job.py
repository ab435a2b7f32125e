"""One job with uneven or failing workers, while it runs: where it is, which process is which worker, and its end."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import http.client
import math
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import IO

import counted
import machine
import programs
from jobs import Command

START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.1
_KEPT_LINES = 60
_PAGE_SECONDS_MAX = 1.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a job is started, and what becomes of it when a worker is killed."""
    command: Command
    position_file: str | None = None  # of the peer; ours serve pages
    all_restart: bool = True  # when a worker is killed; otherwise that worker alone


def _environment(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as file:
            return dict(word.partition("=")[::2] for word in file.read().split("\0"))
    except OSError:
        return {}


def worker_number(words: list[str], environment: dict[str, str]) -> int | None:
    """The number of a worker, of ours or of the peer, from its command line; None for another process."""
    if not words:
        return None
    if os.path.basename(words[0]) == "worker":
        flag = next((word.partition("=")[2] for word in words if word.startswith("--rank=")), "")
        return int(flag or environment.get("OMPI_COMM_WORLD_RANK") or 0)
    # torchrun itself has the script's name among its arguments, too, but it is no rank.
    is_peer = any(os.path.basename(word) == "train.py" for word in words)
    return int(environment["RANK"]) if is_peer and environment.get("RANK", "").isdigit() else None


def _started(pid: int) -> str | None:
    """When the process was started; it tells the process from a later one with the same id."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


class RunningJob:
    """Starts a job. As a context manager, it leaves no process behind."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._lines: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self._pages: dict[int, str] = {}  # by worker: the address of the newest process that is one
        self.generations: list[tuple[int, int]] = []  # (number, first step)
        self.deals = 0  # generations that ended because other shares are faster
        self._lock = threading.Lock()
        command = plan.command
        self._process: subprocess.Popen[str] = subprocess.Popen(
            command.argv, env={**os.environ, **command.environment}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def __enter__(self) -> RunningJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._lines.append(line.rstrip())
            address, generation = counted.metrics_address(line), counted.generation(line)
            with self._lock:
                if address is not None:
                    self._pages[address[0]] = address[1]
                if generation is not None:
                    self.generations.append(generation)
                self.deals += counted.deals_shares(line)

    def pages(self) -> dict[int, counted.Page]:
        """The pages of all workers that answer."""
        with self._lock:
            addresses = dict(self._pages)
        found = {}
        for number, address in addresses.items():
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                with urllib.request.urlopen(address, timeout=_PAGE_SECONDS_MAX) as answer:
                    found[number] = counted.page(answer.read().decode())
        return found

    def position(self) -> int | None:
        """Where the run is, from processes that have finished a step since the last kill; None if there is none."""
        if self._plan.position_file is not None:
            with contextlib.suppress(OSError, ValueError):
                with open(self._plan.position_file, encoding="utf-8") as file:
                    return int(file.read())
            return None
        return max((page.position for page in self.pages().values() if page.position is not None), default=None)

    def workers(self) -> dict[int, int]:
        """The process ids of the workers that run, by their number."""
        found = {}
        for pid in machine.descendants(self._process.pid):
            number = worker_number(machine.command_line(pid), _environment(pid))
            if number is not None:
                found[number] = pid
        return found

    def kill(self, number: int) -> bool:
        """Kills that worker, or another one if it does not run. False if none runs."""
        running = self.workers()
        if not running:
            return False
        number = number if number in running else min(running)
        # What processes of before the kill say will not be where the run is. This comes first: the launcher is quick to
        # start a worker again, whose page must stay known.
        with self._lock:
            if self._plan.all_restart:
                self._pages.clear()
            else:
                self._pages.pop(number, None)
        if self._plan.position_file is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._plan.position_file)
        with contextlib.suppress(ProcessLookupError):
            os.kill(running[number], signal.SIGKILL)
        return True

    def wait(self, condition: Callable[[], bool], seconds_max: float) -> bool:
        """Whether the condition holds within that time. ProgramError if the job ends."""
        end = time.monotonic() + seconds_max
        while not condition():
            if self._process.poll() is not None:
                raise self.failure(f"ended with {self._process.returncode}")
            if time.monotonic() > end:
                return False
            time.sleep(LOOK_SECONDS)
        return True

    def wait_until(self, moment: float) -> None:
        """Waits until a time of the monotonic clock. ProgramError if the job ends."""
        self.wait(lambda: time.monotonic() >= moment, math.inf)

    def await_position(self, seconds_max: float = START_SECONDS_MAX) -> int:
        """ProgramError if no step comes."""
        found: list[int] = []

        def is_known() -> bool:
            position = self.position()
            found.extend([] if position is None else [position])
            return bool(found)

        if not self.wait(is_known, seconds_max):
            raise self.failure(f"has made no step within {seconds_max:.0f} s")
        return found[-1]

    def failure(self, what: str) -> programs.ProgramError:
        text = "\n".join(list(self._lines))
        return programs.ProgramError(f"{' '.join(self._plan.command.text())} {what}:\n{text}")

    def stop(self) -> None:
        """Asks the job to end, and ends by force what still runs afterwards. A second call does nothing."""
        own = {pid: _started(pid) for pid in machine.descendants(self._process.pid)}
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=STOP_SECONDS_MAX)
        # torchrun's ranks outlive a torchrun that was killed. Ours die with their launcher.
        for pid, started in own.items():
            if started is not None and _started(pid) == started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(timeout=5)
