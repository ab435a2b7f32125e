#!/usr/bin/env python3
"""How fast does a set train that is larger than memory? Compares the loader with a plain loop of pread.

    bazel run //bench/mapped -- --limit_mib=256 --folder=/var/tmp

Writes two sets of NumPy's arrays, pixels of 32 x 32 x 3 and float32 of 64 x 64 x 3, of --times times the memory of a
control group that it makes for the runs (this needs root). Both ways read the same samples in the order of a training,
in turns, with a cold cache. Prints the median samples per second and the median ratio of each pair. Exit status 1: the
loader has less than --goal times the samples of the loop.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from typing import Iterator

import numpy as np

V1 = "/sys/fs/cgroup/memory"
V2 = "/sys/fs/cgroup"
SETS = {"pixels": ("|u1", (32, 32, 3)), "numbers": ("<f4", (64, 64, 3))}
DEADLINE_S = 600


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[str]:
    """The path of a control group's cgroup.procs whose processes may have `limit` bytes."""
    base, name = (V1, "memory.limit_in_bytes") if os.path.isdir(V1) else (V2, "memory.max")
    folder = os.path.join(base, f"starring_mapped_{os.getpid()}")
    try:
        os.mkdir(folder)
        with open(os.path.join(folder, name), "w", encoding="ascii") as file:
            file.write(str(limit))
    except OSError as error:
        sys.exit(f"mapped: no control group of its own in {base} ({error}): run as root, with version 1 or 2 mounted")
    try:
        yield os.path.join(folder, "cgroup.procs")
    finally:
        os.rmdir(folder)


def write_set(folder: str, kind: str, size: int) -> int:
    """Returns the number of samples."""
    dtype, shape = SETS[kind]
    sample = int(np.prod(shape)) * np.dtype(dtype).itemsize
    count, block = size // sample, 1024
    images = np.lib.format.open_memmap(f"{folder}/train_images.npy", mode="w+", dtype=np.dtype(dtype),
                                       shape=(count, *shape))
    random = np.random.default_rng(1)
    for first in range(0, count, block):
        values = random.integers(0, 256, (min(block, count - first), *shape), dtype=np.uint8)
        images[first:first + block] = values
    images.flush()
    del images
    np.save(f"{folder}/train_labels.npy", np.arange(count) % 10)
    np.save(f"{folder}/test_images.npy", np.zeros((1, *shape), dtype=np.dtype(dtype)))
    np.save(f"{folder}/test_labels.npy", np.zeros(1, dtype=np.int64))
    return count


def run(program: str, group: str, folder: str, mode: str, samples: int) -> float:
    script = f'echo $$ > "{group}" && exec "$@"'
    done = subprocess.run(["/bin/sh", "-c", script, "sh", program, folder, mode, str(samples)], capture_output=True,
                          text=True, timeout=DEADLINE_S, check=False)
    if done.returncode != 0:
        sys.exit(f"mapped: {mode} ended with {done.returncode}: {done.stderr}")
    return float(done.stdout.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit_mib", type=int, default=256, help="memory of the control group")
    parser.add_argument("--times", type=float, default=4, help="the set's size in limits")
    parser.add_argument("--samples", type=int, default=20000, help="read in each run, at most those of the set")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--goal", type=float, default=0.9)
    parser.add_argument("--folder", default="/var/tmp", help="on the disk that is measured")
    parser.add_argument("--program", default=os.path.join(os.path.dirname(__file__), "cold_reads"))
    flags = parser.parse_args()
    limit = flags.limit_mib << 20
    slow = False
    for kind in SETS:
        folder = tempfile.mkdtemp(prefix="starring_mapped_", dir=flags.folder)
        try:
            samples = min(flags.samples, write_set(folder, kind, int(flags.times * limit)))
            with memory_group(limit) as group:
                pairs = [{mode: run(flags.program, group, folder, mode, samples) for mode in order}
                         for order in [("pread", "loader"), ("loader", "pread")] * flags.repeats][:flags.repeats]
        finally:
            shutil.rmtree(folder)
        ratio = statistics.median(pair["loader"] / pair["pread"] for pair in pairs)
        rates = {mode: statistics.median(pair[mode] for pair in pairs) for mode in ("loader", "pread")}
        print(f"{kind}: loader {rates['loader']:.0f} samples/s, pread {rates['pread']:.0f}, ratio {ratio:.2f}",
              flush=True)
        slow |= ratio < flags.goal
    sys.exit(1 if slow else 0)


if __name__ == "__main__":
    main()
