"""Trains a job of two workers while a stranger without its secret attacks the server.

  bazel run //bench:strangers                 all attacks, with 10,000 connections: takes some minutes
  bazel run //bench:strangers -- --quick      a few seconds per attack, 1,000 connections, no verdict on times

The job runs on the first core, the stranger on the last. For each attack the job runs twice: once attacked, and once as
a control, while the same stranger attacks another server on the job's core. The difference is the effect of the attack
on the job itself. The attacked job must end with the digest of a quiet job. Its server's memory may exceed the
control's by 64 MiB, the p50 of its steps by 10 %. The server must not answer any request of the stranger.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from bench.strangers import attacks

MEMORY_GROWTH_BYTES_MAX = 64 << 20
RATIO_MAX = 1.10
WORKERS = 2
JOB_SECONDS_MAX = 120
# How long the stranger attacks before the workers start.
HEAD_START_S = 0.3


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="strangers", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--attacks", default=",".join(attacks.ATTACKS), help="(default: %(default)s)")
    parser.add_argument("--connections", type=int, default=10000, help="connections of the attack `connections`")
    parser.add_argument("--steps", type=int, default=12000, help="steps of the job (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="repeats of every pair of jobs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the stranger's messages (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="1,000 connections, short jobs, no limit on times")
    parser.add_argument("--without_secret", action="store_true", help="an open job, to show the effect of the secret")
    parser.add_argument("--programs", default=None, help="folder with server/server, worker/worker, deploy/launch")
    options = parser.parse_args(arguments)
    if options.quick:
        options.connections, options.steps, options.repeats = 1000, 5000, 1
    for name in options.attacks.split(","):
        if name not in attacks.ATTACKS:
            parser.error("--attacks has %r: it can have %s" % (name, ", ".join(attacks.ATTACKS)))
    return options


def find_programs(given: str | None) -> str:
    here = os.path.dirname(os.path.abspath(__file__))
    for root in [given] if given else [os.getcwd(), os.path.join(here, "../.."), os.path.join(here, "../../bazel-bin")]:
        if os.access(os.path.join(root, "server/server"), os.X_OK):
            return os.path.abspath(root)
    sys.exit("strangers: no server/server: bazel build //server //worker //deploy:launch, or give --programs")


@dataclasses.dataclass
class Seen:
    """The result of one job."""
    digest: str = ""
    step_p50_ms: float = 0.0
    memory_bytes: int = 0  # the server's maximum
    descriptors: int = 0  # likewise
    trouble: str = ""  # why there is no digest
    counts: dict[str, Any] = dataclasses.field(default_factory=dict)  # the attack's


def pin(core: int) -> Callable[[], None]:
    return lambda: os.sched_setaffinity(0, {core})


def _attack(core: int, pipe: Connection, *arguments: Any) -> None:
    """The stranger's process."""
    os.sched_setaffinity(0, {core})
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        pipe.send(attacks.run(*arguments))
    except Exception as error:  # the harness prints it
        pipe.send({"error": repr(error)})


class Strangers:
    """Runs all attacks and prints a table."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._programs = find_programs(options.programs)
        cores = sorted(os.sched_getaffinity(0))
        self._job_core, self._stranger_core = cores[0], cores[-1]
        self._secret: list[str] = []
        self._folder = ""

    def run(self) -> int:
        options = self._options
        _raise_descriptors()
        attacks.prepare()
        failures: list[str] = []
        with tempfile.TemporaryDirectory(prefix="strangers.") as self._folder:
            self._secret = self._make_secret()
            quiet = [self._job(None, False) for _ in range(max(1, options.repeats))]
            digest = quiet[0].digest
            if not digest:
                sys.exit("strangers: the quiet job failed: " + quiet[0].trouble)
            print("quiet: digest %s, step p50 %.3f ms, server's memory %.1f MiB" % (
                digest[:12], statistics.median(seen.step_p50_ms for seen in quiet), quiet[0].memory_bytes / 2**20))
            print("\n| attack | digest | memory grows by MiB | descriptors | answers | p50 ms control | attacked "
                  "| ratio |\n| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
            notes: list[str] = []
            for name in options.attacks.split(","):
                pairs = [(self._job(name, False), self._job(name, True)) for _ in range(options.repeats)]
                failures += self._judge(name, digest, pairs, notes)
        print("\n" + "\n".join(notes))
        for failure in failures:
            print("strangers: " + failure)
        print("strangers: %s" % ("%d failures" % len(failures) if failures else "nothing was lost"))
        return 1 if failures else 0

    def _judge(self, name: str, digest: str, pairs: list[tuple[Seen, Seen]], notes: list[str]) -> list[str]:
        """Prints a row and returns the failures."""
        failures = []
        for control, attacked in pairs:
            for what, seen in (("control", control), ("attacked", attacked)):
                if seen.digest != digest:
                    failures.append("%s, %s: %s" % (name, what, seen.trouble or "digest " + seen.digest))
        growth = max(attacked.memory_bytes - control.memory_bytes for control, attacked in pairs)
        before = statistics.median(control.step_p50_ms for control, _ in pairs)
        after = statistics.median(attacked.step_p50_ms for _, attacked in pairs)
        ratio = statistics.median(attacked.step_p50_ms / control.step_p50_ms if control.step_p50_ms else 0
                                  for control, attacked in pairs)
        answers = sum(attacked.counts.get("answers", 0) for _, attacked in pairs)
        print("| %s | %s | %.1f | %d | %d | %.3f | %.3f | %.2f |" % (
            name, "wrong" if failures else "equal", growth / 2**20, max(a.descriptors for _, a in pairs), answers,
            before, after, ratio), flush=True)
        notes.append("%s: %s" % (name, ", ".join("%s %s" % (value, key)
                                                 for key, value in sorted(pairs[-1][1].counts.items()))))
        if growth > MEMORY_GROWTH_BYTES_MAX:
            failures.append("%s: the server's memory grows by %.1f MiB, 64 are allowed" % (name, growth / 2**20))
        if answers:
            failures.append("%s: %d requests were answered" % (name, answers))
        if any("error" in attacked.counts for _, attacked in pairs):
            failures.append("%s: the stranger itself failed: %s" % (name, pairs[-1][1].counts))
        if ratio > RATIO_MAX and not self._options.quick:
            failures.append("%s: a step takes %.2f times the control's, 1.10 are allowed" % (name, ratio))
        return failures

    def _make_secret(self) -> list[str]:
        """Makes the job's secret, which the stranger does not have. Returns the flag that names it."""
        if self._options.without_secret:
            return []
        path = os.path.join(self._folder, "secret")
        made = subprocess.run([os.path.join(self._programs, "deploy/launch"), "--make_secret=" + path],
                              capture_output=True, text=True, check=False)
        if made.returncode != 0:
            sys.exit("strangers: no secret: " + made.stderr)
        return ["--job_secret=" + path]

    def _server(self, number: int) -> tuple[subprocess.Popen[bytes], str]:
        """Starts a server. Returns its process and its address."""
        port_file = os.path.join(self._folder, "port.%d.%f" % (number, time.monotonic()))
        process = self._start("server.%d" % number, [
            os.path.join(self._programs, "server/server"), "--listen=127.0.0.1:0", "--port_file=" + port_file,
            *self._secret])
        end = time.monotonic() + 30
        while not os.path.exists(port_file):
            if process.poll() is not None or time.monotonic() > end:
                sys.exit("strangers: no server: " + self._log_of("server.%d" % number))
            time.sleep(0.01)
        with open(port_file) as file:
            return process, file.read().strip()

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with open(os.path.join(self._folder, name + ".log"), "wb") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                    env=dict(os.environ, OMP_WAIT_POLICY="PASSIVE"), preexec_fn=pin(self._job_core))

    def _log_of(self, name: str) -> str:
        with open(os.path.join(self._folder, name + ".log"), errors="replace") as file:
            return file.read()[-1500:]

    def _job(self, attack: str | None, on_the_job: bool) -> Seen:
        """Runs a job, and a second server. `attack` is on the job's server or on the second one; None: no attack."""
        with contextlib.ExitStack() as stack:
            server, address = self._server(0)
            stack.callback(_end, server)
            other, other_address = self._server(1)
            stack.callback(_end, other)
            pipe: Connection | None = None
            if attack is not None:
                pipe, theirs = multiprocessing.Pipe()
                stranger = multiprocessing.Process(target=_attack, args=(
                    self._stranger_core, theirs, attack, address if on_the_job else other_address,
                    time.monotonic() + JOB_SECONDS_MAX, self._options.connections, self._options.seed), daemon=True)
                stranger.start()
                stack.callback(stranger.join)
                stack.callback(stranger.kill)
                time.sleep(HEAD_START_S)
            record = os.path.join(self._folder, "record.json")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(record)
            workers = []
            for rank in range(WORKERS):
                workers.append(self._start("worker.%d" % rank, [
                    os.path.join(self._programs, "worker/worker"), "--servers=" + address, "--rank=%d" % rank,
                    "--world_size=%d" % WORKERS, "--same_host=socket", "--model=logreg", "--dataset=synthetic",
                    "--synthetic_train_count=2048", "--synthetic_test_count=64", "--global_batch=64", "--device=cpu",
                    "--epochs=%d" % (self._options.steps // 32 + 1), "--max_steps=%d" % self._options.steps,
                    "--learning_rate=0.01", "--progress=none", "--checkpoint_dir=none", "--record=" + record,
                    *self._secret]))
            for worker in workers:
                stack.callback(_end, worker)
            seen = self._watch(server, workers)
            if not seen.trouble:
                with open(record) as file:
                    numbers = json.load(file)
                seen.digest, seen.step_p50_ms = numbers["parameter_sha256"], numbers["step_ms"]["p50"]
            if pipe is not None and on_the_job:
                seen.counts = self._stop(stranger, pipe)
            return seen
        raise AssertionError("an ExitStack suppresses no exception here")

    @staticmethod
    def _stop(stranger: multiprocessing.Process, pipe: Connection) -> dict[str, Any]:
        assert stranger.pid is not None
        os.kill(stranger.pid, signal.SIGUSR1)  # the stranger sends its counts and ends
        return pipe.recv() if pipe.poll(20) else {"error": "no counts"}

    def _watch(self, server: subprocess.Popen[bytes], workers: list[subprocess.Popen[bytes]]) -> Seen:
        """Waits for the end of the job and samples the server's memory."""
        seen = Seen()
        end = time.monotonic() + JOB_SECONDS_MAX
        processes = [server, *workers]
        while any(process.poll() is None for process in processes):
            if time.monotonic() > end:
                seen.trouble = "it hangs: " + " ".join(self._log_of(n) for n in ("worker.0", "worker.1", "server.0"))
                return seen
            if any(process.poll() not in (None, 0) for process in processes):
                break
            with contextlib.suppress(OSError):
                seen.memory_bytes = max(seen.memory_bytes, _memory_peak(server.pid))
                seen.descriptors = max(seen.descriptors, len(os.listdir("/proc/%d/fd" % server.pid)))
            time.sleep(0.05)
        codes = [process.poll() for process in processes]
        if any(codes):
            seen.trouble = "exit codes of server and workers %s: %s" % (codes, " ".join(
                self._log_of(name) for name in ("server.0", "worker.0", "worker.1")))
        return seen


def _memory_peak(pid: int) -> int:
    with open("/proc/%d/status" % pid) as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    raise OSError("it has ended")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _raise_descriptors() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    print("%s, %d cores, load %.1f, %s" % (platform.platform(), os.cpu_count() or 0, os.getloadavg()[0],
                                           time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())))
    return Strangers(options).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
