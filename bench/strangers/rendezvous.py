"""Starts jobs over TCP while a stranger without their secret floods rank 0's address, and prints a table.

  bazel run //bench:strangers_rendezvous             20 starts of 8 ranks a row; needs root for a namespace
  bazel run //bench:strangers_rendezvous -- --quick  2 starts a row, from the ranks' own address

The ranks run on the first core, the stranger on the last. A connection of the stranger says nothing, one byte, or a
genuine hello that was recorded. It comes from the ranks' own address (loopback), or from another one (a network
namespace). A job starts if all its ranks are connected with each other before the join deadline. Exit code 1 if one
does not.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

RANKS = 8
HEAD_START_S = 0.5
FLOOD_S_MAX = 100
NAMESPACE = "starring-strangers"
OUTSIDE, INSIDE = "10.213.77.1", "10.213.77.2"


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rendezvous", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--starts", type=int, default=20, help="of each row (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=40000, help="connections a second (default: %(default)s)")
    parser.add_argument("--join_deadline_s", type=int, default=60, help="(default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="2 starts, from the ranks' own address alone")
    parser.add_argument("--parts", default=None, help="the program rendezvous_parts")
    options = parser.parse_args(arguments)
    if options.quick:
        options.starts = 2
    return options


def find_parts(given: str | None) -> str:
    here = os.path.dirname(os.path.abspath(__file__))
    places = [given] if given else [os.path.join(here, "rendezvous_parts"),
                                    os.path.join(here, "../../bazel-bin/bench/strangers/rendezvous_parts")]
    for place in places:
        if os.access(place, os.X_OK):
            return os.path.abspath(place)
    sys.exit("rendezvous: no rendezvous_parts: bazel build //bench/strangers:rendezvous_parts, or give --parts")


@contextlib.contextmanager
def namespace() -> Iterator[list[str]]:
    """A network namespace with the address INSIDE, and the words that start a program there."""
    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)
    ip("netns", "add", NAMESPACE)
    try:
        ip("link", "add", "strangers0", "type", "veth", "peer", "name", "strangers1", "netns", NAMESPACE)
        ip("addr", "add", OUTSIDE + "/24", "dev", "strangers0")
        ip("link", "set", "strangers0", "up")
        ip("-n", NAMESPACE, "addr", "add", INSIDE + "/24", "dev", "strangers1")
        ip("-n", NAMESPACE, "link", "set", "strangers1", "up")
        yield ["ip", "netns", "exec", NAMESPACE]
    finally:
        ip("netns", "del", NAMESPACE)  # and its devices with it


def pin(core: int) -> Callable[[], None]:
    return lambda: os.sched_setaffinity(0, {core})


class Starts:
    """Starts jobs, and counts those whose ranks meet."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._parts = find_parts(options.parts)
        cores = sorted(os.sched_getaffinity(0))
        self._job_core, self._stranger_core = cores[0], cores[-1]
        hello = subprocess.run([self._parts, "hello", str(RANKS)], check=True, capture_output=True).stdout
        self._said = {"nothing": b"", "one byte": b"x", "a recorded hello": hello}

    def run(self) -> int:
        print("| a stranger says | from | starts | seconds, median | longest | connections/s |")
        print("| --- | --- | --- | --- | --- | --- |")
        failures = self._row("127.0.0.1", None, "no stranger", [])
        for said in self._said:
            failures += self._row("127.0.0.1", said, "the ranks' own address", [])
        if not self._options.quick:
            with namespace() as words:
                for said in self._said:
                    failures += self._row(OUTSIDE, said, "another address", words)
        return 1 if failures else 0

    def _row(self, host: str, said: str | None, whence: str, words: list[str]) -> int:
        times, rates, troubles = [], [], []
        for _ in range(self._options.starts):
            met, rate, trouble = self._start(host, said, words)
            rates.append(rate)
            if met is None:
                troubles.append(trouble)
            else:
                times.append(met)
        print("| %s | %s | %d of %d | %.2f | %.2f | %.0f |" % (
            said or "", whence, len(times), self._options.starts, statistics.median(times) if times else 0,
            max(times, default=0), statistics.median(rates)), flush=True)
        for trouble in troubles:
            print("  " + trouble.strip().replace("\n", "\n  "), file=sys.stderr, flush=True)
        return len(troubles)

    def _start(self, host: str, said: str | None, words: list[str]) -> tuple[float | None, float, str]:
        """The seconds until all ranks have met, the stranger's connections a second, and why they have not met."""
        deadline = self._options.join_deadline_s
        with subprocess.Popen([self._parts, "start", host, str(RANKS), str(deadline)], stdin=subprocess.PIPE, text=True,
                              stdout=subprocess.PIPE, preexec_fn=pin(self._job_core)) as job:
            assert job.stdin is not None and job.stdout is not None
            address = job.stdout.readline().strip()
            flood, rate = None, 0.0
            if said is not None:
                flood = subprocess.Popen([*words, self._parts, "flood", address, str(self._options.rate),
                                          str(FLOOD_S_MAX)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         preexec_fn=pin(self._stranger_core))
                assert flood.stdin is not None
                flood.stdin.write(self._said[said])
                flood.stdin.close()
                time.sleep(HEAD_START_S)
            begin = time.monotonic()
            out = job.communicate("\n")[0]
            if flood is not None:
                flood.terminate()
                counted = flood.stdout.read() if flood.stdout else b""
                flood.wait()
                rate = float(counted or 0) / (time.monotonic() - begin + HEAD_START_S)
        return (float(out.split()[1]) if out.startswith("met ") else None), rate, out


def main() -> None:
    sys.exit(Starts(parse(sys.argv[1:])).run())


if __name__ == "__main__":
    main()
