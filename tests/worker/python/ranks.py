"""Starts the processes of a test job, and collects what each says and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import starring

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(starring.__file__)))
JOB_SECONDS_MAX = 120.0


class Ended(NamedTuple):
    """A process that has ended."""
    status: int
    said: Dict[str, Any]  # the JSON objects of its standard output, put together
    errors: str  # its standard error
    seconds: float  # from the start of the job to its end


class Ranks:
    """Processes that run a Python file with RANK and WORLD_SIZE, as torchrun's. A context manager, which ends them."""

    def __init__(self, world_size: int, argv: Sequence[str], environment: Optional[Dict[str, str]] = None) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._started = time.monotonic()
        self._outputs = []
        self.processes: List["subprocess.Popen[str]"] = []
        for rank in range(world_size):
            files = [open(os.path.join(self._folder.name, f"{rank}.{name}"), "w+", encoding="utf-8")
                     for name in ("out", "err")]
            self._outputs.append(files)
            more = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1",
                    "GLOO_SOCKET_IFNAME": "lo", "STORE": os.path.join(self._folder.name, "store"),
                    "PYTHONPATH": os.pathsep.join([HERE, PACKAGE]), **(environment or {})}
            self.processes.append(subprocess.Popen([sys.executable, *argv], env={**os.environ, **more}, text=True,
                                                   stdin=subprocess.DEVNULL, stdout=files[0], stderr=files[1]))

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        for files in self._outputs:
            for file in files:
                file.close()
        self._folder.cleanup()

    def await_file(self, name: str, seconds: float = JOB_SECONDS_MAX) -> None:
        """Waits until a rank has made the file (see mark() of ddp_job.py)."""
        end = time.monotonic() + seconds
        while not os.path.exists(os.path.join(self._folder.name, name)):
            if time.monotonic() > end or all(process.poll() is not None for process in self.processes):
                errors = [self._read(rank, 1) for rank in range(len(self.processes))]
                raise AssertionError(f"no rank has come to {name}: {errors}")
            time.sleep(0.01)

    def _read(self, rank: int, output: int) -> str:
        with open(self._outputs[rank][output].name, encoding="utf-8") as file:
            return file.read()

    def wait(self, ranks: Optional[Sequence[int]] = None, seconds: float = JOB_SECONDS_MAX) -> List[Ended]:
        """How `ranks`, or all, have ended. AssertionError if one has not after `seconds`."""
        found: Dict[int, float] = {}
        waited = list(range(len(self.processes))) if ranks is None else list(ranks)
        end = time.monotonic() + seconds
        while len(found) < len(waited):
            for rank in waited:
                if rank not in found and self.processes[rank].poll() is not None:
                    found[rank] = time.monotonic() - self._started
            if time.monotonic() > end:
                raise AssertionError(f"ranks {sorted(set(waited) - set(found))} have not ended after {seconds:g} s: "
                                     f"{[self._read(rank, 1) for rank in waited]}")
            time.sleep(0.01)
        ended = []
        for rank in waited:
            said: Dict[str, Any] = {}
            for line in self._read(rank, 0).splitlines():
                if line.startswith("{"):
                    said.update(json.loads(line))
            ended.append(Ended(self.processes[rank].returncode, said, self._read(rank, 1), found[rank]))
        return ended


def run(world_size: int, argv: Sequence[str], environment: Optional[Dict[str, str]] = None) -> List[Ended]:
    """Runs a job in which every rank succeeds."""
    with Ranks(world_size, argv, environment) as job:
        ended = job.wait()
    for rank, one in enumerate(ended):
        if one.status != 0:
            raise AssertionError(f"rank {rank} ended with {one.status}: {one.errors}")
    return ended
