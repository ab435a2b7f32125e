"""Starts the servers of a star, and a job that uses them:

    python -m starring.servers --servers=2 -- torchrun --nproc_per_node=4 train.py

In train.py, starring.torch.attach(model, sync="star") then finds the servers by itself. They end with the command,
whose exit status is this program's (128 + N if signal N ended it). Signals are passed on to the command.

Without a command the servers run until this program is ended, for jobs of other hosts: there set STARRING_SERVERS to
the addresses that it prints, and STARRING_JOB_SECRET to a copy of the secret's file, which only you may read.

    head -c 32 /dev/urandom >secret; chmod 600 secret
    python -m starring.servers --servers=2 --listen=192.168.1.7 --job_secret=secret
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Dict, Iterator, List, Optional

from starring import _address, _control, _library
from starring._library import StarringError

SERVERS_MAX = 256
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_AWAITED = (*_PASSED_ON, signal.SIGCHLD)
_FROM_KERNEL = 0x80  # si_code of a signal that the terminal sent, which the command has got as well
_END_S = 5.0


def parse(arguments: Optional[List[str]] = None) -> argparse.Namespace:
    words = sys.argv[1:] if arguments is None else arguments
    own = words[:words.index("--")] if "--" in words else words
    parser = argparse.ArgumentParser(prog="python -m starring.servers", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage="python -m starring.servers [flags] [-- command ...]")
    parser.add_argument("--servers", type=int, default=1, help="how many")
    parser.add_argument("--listen", default="127.0.0.1", help="this host's address, at which ranks reach the servers")
    parser.add_argument("--job_secret", default="", help="a file that only you may read; default: a fresh one")
    parser.add_argument("--port_range", default="",
                        help="first-last, such as 7000-7100: the ports from which servers take theirs, for a firewall; "
                             "default: any free ones")
    flags = parser.parse_args(own)
    flags.command = words[len(own) + 1:]
    if not 1 <= flags.servers <= SERVERS_MAX:
        parser.error(f"--servers={flags.servers} is not from 1 to {SERVERS_MAX}")
    try:
        _address.ports_of(flags.port_range)
    except ValueError as error:
        parser.error(f"--{error}")
    if not flags.command and not flags.job_secret:
        parser.error("give a command after --, or --job_secret=FILE for jobs that are started elsewhere")
    return flags


@contextlib.contextmanager
def _secret_file(path: str) -> Iterator[str]:
    """The path of the job's secret: `path`, or that of a fresh one for as long as the job runs."""
    if path:
        _control.load_secret(path)
        yield os.path.abspath(path)
        return
    with tempfile.TemporaryDirectory(prefix="starring-") as folder:  # which only its owner may enter
        made = os.path.join(folder, "secret")
        with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
        yield made


def _listen(host: str, port_range: str) -> socket.socket:
    try:
        return _address.listen(host, port_range=port_range)
    except OSError as error:
        raise StarringError(f"--listen={host}: {error}: give an address of this host") from error


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)


def _start_server(number: int, listener: socket.socket, port_range: str,
                  environment: Dict[str, str]) -> "subprocess.Popen[bytes]":
    # In a session of its own: Ctrl-C is for the job, which needs its servers until it has ended.
    with listener:
        return subprocess.Popen(
            [sys.executable, "-m", "starring._server", f"--number={number}", f"--listener={listener.fileno()}",
             f"--port_range={port_range}"],
            env=environment, pass_fds=[listener.fileno()], stdin=subprocess.PIPE, start_new_session=True,
            preexec_fn=_unblock_signals)


class Job:
    """Servers and, if there is one, the command that uses them. Used by the main thread, with _AWAITED blocked."""

    def __init__(self) -> None:
        self.addresses: List[str] = []
        self._servers: List["subprocess.Popen[bytes]"] = []
        self._gone: List[int] = []
        self._command: Optional["subprocess.Popen[bytes]"] = None

    def start(self, flags: argparse.Namespace, secret: str) -> None:
        """Starts all processes. StarringError if one cannot be started; end() then ends the others."""
        listeners = [_listen(flags.listen, flags.port_range) for _ in range(flags.servers)]
        self.addresses = [_address.join(flags.listen, listener.getsockname()[1]) for listener in listeners]
        environment = {**os.environ, _control.SECRET_VARIABLE: secret,
                       _control.SERVERS_VARIABLE: ",".join(self.addresses)}
        folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
        for number, listener in enumerate(listeners):
            self._servers.append(_start_server(number, listener, flags.port_range,
                                               {**environment, "PYTHONPATH": path}))
        if not flags.command:
            print(f"{_control.SERVERS_VARIABLE}={','.join(self.addresses)}", flush=True)
            return
        try:
            self._command = subprocess.Popen(flags.command, env=environment, preexec_fn=_unblock_signals)
        except OSError as error:
            raise StarringError(f"{flags.command[0]} cannot be started: {error}") from error

    def run(self) -> int:
        """Waits for the end; returns the exit status."""
        while True:
            if self._command is not None and self._command.poll() is not None:
                status = self._command.returncode
                return status if status >= 0 else 128 - status
            self._look_at_servers()
            if self._command is None and self._gone:
                return 1
            received = signal.sigwaitinfo(_AWAITED)
            if received.si_signo == signal.SIGCHLD:
                continue
            if self._command is None:
                return 0
            if received.si_code != _FROM_KERNEL:
                self._command.send_signal(received.si_signo)

    def _look_at_servers(self) -> None:
        for number, server in enumerate(self._servers):
            if number not in self._gone and server.poll() is not None:
                self._gone.append(number)
                print(f"starring.servers: server {number} at {self.addresses[number]} has ended with "
                      f"{server.returncode}: the job's next sum will fail", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Ends what still runs."""
        for server in self._servers:
            if server.stdin is not None:
                server.stdin.close()
        for server in self._servers:
            try:
                server.wait(_END_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def run(flags: argparse.Namespace) -> int:
    with _secret_file(flags.job_secret) as secret:
        _library.load()
        signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
        job = Job()
        try:
            job.start(flags, secret)
            return job.run()
        finally:
            job.end()


def main() -> None:
    try:
        sys.exit(run(parse()))
    except StarringError as error:
        print(f"starring.servers: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
