"""Servers for jobs of tests, started by python -m starring.servers without a command."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from typing import Any, Dict, List

import ranks


class Servers:
    """A context manager. `environment` is that of jobs that use the servers."""

    def __init__(self, count: int, more: Any = None) -> None:
        self._folder = tempfile.TemporaryDirectory()
        secret = os.path.join(self._folder.name, "secret")
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
        environment = {**os.environ, "PYTHONPATH": ranks.PACKAGE, **(more or {})}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "starring.servers", f"--servers={count}", "--job_secret=" + secret], text=True,
            env=environment, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        addresses = self._process.stdout.readline().strip().partition("=")[2]
        self.environment: Dict[str, str] = {"STARRING_SERVERS": addresses, "STARRING_JOB_SECRET": secret,
                                            **(more or {})}

    def processes(self) -> List[int]:
        """The servers, in order."""
        with open(f"/proc/{self._process.pid}/task/{self._process.pid}/children", encoding="ascii") as file:
            return sorted(map(int, file.read().split()))

    def __enter__(self) -> "Servers":
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.terminate()
        try:
            self._process.communicate(timeout=20)
        finally:
            self._process.kill()
            self._folder.cleanup()
