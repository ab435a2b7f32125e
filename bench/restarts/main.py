#!/usr/bin/env python3
"""Counts what becomes of a job's restarts under `torchrun --max-restarts`, by rendezvous and by the job's exchange.

    bazel run //bench:restarts -- --python=/opt/torch/bin/python3 [--restarts=20] [--out=restarts.jsonl]

In each job a rank is killed in a constructor, of DistributedDataParallel or of attach in turns, and after the restart
in a step. An attempt that fails on its own is restarted, too. The same job with plain DistributedDataParallel over Gloo
shows which failures are PyTorch's. A job ends early when its ranks have said nothing for a time; their stacks are
printed then.

Exit status 0: each restart of a star or ring with fresh_store went on or ended in a sentence, 1: one did not, 2: the
command line was refused.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from bench.restarts import outcomes

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WORLD_SIZE = 2
RESTARTS_MAX = 6  # of a job: some fail on their own
RENDEZVOUS = ("standalone", "static", "c10d")
JOBS = ("ddp", "ddp+fresh", "star", "star+fresh", "ring", "ring+fresh")  # +fresh: with starring.torch.fresh_store()
GLOO_S = 6.0
# Gloo waits five times its deadline for a first connection.
SILENT_S = 5 * GLOO_S + 30
JOB_S = 400.0
END_S = 40.0  # for torchrun to end its ranks, for which it gives them 30


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def rendezvous_flags(rendezvous: str) -> list[str]:
    if rendezvous == "standalone":
        return ["--standalone"]
    port = free_port()
    if rendezvous == "static":
        return ["--nnodes=1", "--node_rank=0", "--master_addr=127.0.0.1", f"--master_port={port}"]
    return ["--nnodes=1", "--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_id=restarts"]


def read_events(folder: str) -> list[dict[str, Any]]:
    try:
        with open(os.path.join(folder, "events.jsonl"), encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []


def living(events: Sequence[dict[str, Any]]) -> list[int]:
    """The ranks' processes that have not ended."""
    found = []
    for pid in {int(event["pid"]) for event in events}:
        try:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
                if "restarts/job.py" in file.read():
                    found.append(pid)
        except OSError:
            pass  # it has ended
    return found


def send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # it has ended since


def print_stacks(folder: str) -> None:
    """Lets each rank write its stacks (job.py)."""
    pids = living(read_events(folder))
    send(pids, signal.SIGUSR1)
    time.sleep(1.0)
    for name in sorted(os.listdir(folder)):
        if name.startswith("stacks-"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                if text := file.read():
                    print(f"{name}:\n{text}", file=sys.stderr, flush=True)


def end(process: subprocess.Popen[bytes], folder: str) -> None:
    """Ends torchrun, which ends its ranks, and then what is left."""
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    send(living(read_events(folder)), signal.SIGKILL)


def command(python: str, folder: str, rendezvous: str, job: str, number: int) -> list[str]:
    sync, _, fresh = job.partition("+")
    constructor = "attach" if sync != "ddp" and number % 2 else "ddp"
    victim = 1 - (number // 2) % WORLD_SIZE
    argv = [python, "-m", "torch.distributed.run", *rendezvous_flags(rendezvous), f"--nproc_per_node={WORLD_SIZE}",
            f"--max-restarts={RESTARTS_MAX}", os.path.join(ROOT, "bench/restarts/job.py"), "--folder=" + folder,
            "--sync=" + sync, "--constructor=" + constructor, f"--victim={victim}", f"--gloo_s={GLOO_S}"]
    return argv + (["--fresh_store"] if fresh else [])


def run_job(argv: Sequence[str], folder: str, library: str) -> None:
    """Runs torchrun to its end, or until its ranks have been silent for SILENT_S."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "STARRING_LIBRARY": library, "GLOO_SOCKET_IFNAME": "lo",
                   "PYTHONPATH": os.path.join(ROOT, "worker/python")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each of many processes would compile PyTorch
    began = time.monotonic()
    with open(os.path.join(folder, "log"), "wb") as log:
        process = subprocess.Popen(argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=subprocess.STDOUT, start_new_session=True)
    count, changed = 0, time.monotonic()
    try:
        while process.poll() is None:
            time.sleep(0.2)
            events = read_events(folder)
            if len(events) != count:
                count, changed = len(events), time.monotonic()
            if time.monotonic() - changed > SILENT_S or time.monotonic() - began > JOB_S:
                print_stacks(folder)
                break
    finally:
        end(process, folder)


def measure(flags: argparse.Namespace, rendezvous: str, job: str, library: str) -> list[outcomes.Restart]:
    """Runs jobs until there are flags.restarts restarts."""
    found: list[outcomes.Restart] = []
    for number in range(flags.restarts):
        if len(found) >= flags.restarts:
            break
        with tempfile.TemporaryDirectory(prefix="restarts.") as folder:
            run_job(command(flags.python, folder, rendezvous, job, number), folder, library)
            restarts = outcomes.restarts(read_events(folder), WORLD_SIZE, GLOO_S)
            with open(os.path.join(folder, "log"), encoding="utf-8", errors="replace") as log:
                tail = log.read()[-2000:]
        found += restarts
        for one in restarts:
            print(f"{rendezvous}, {job}, job {number}, attempt {one.attempt} after {one.after}: {one.outcome} after "
                  f"{one.seconds:.1f} s {one.sentence[:160]}", file=sys.stderr, flush=True)
            if flags.out:
                with open(flags.out, "a", encoding="utf-8") as out:
                    out.write(json.dumps({"rendezvous": rendezvous, "job": job, "number": number,
                                          **dataclasses.asdict(one)}) + "\n")
        if not restarts:
            print(f"{rendezvous}, {job}, job {number}: no restart; torchrun said: {tail}", file=sys.stderr, flush=True)
    return found


def names(text: str, known: Sequence[str], parser: argparse.ArgumentParser, flag: str) -> list[str]:
    chosen = text.split(",")
    if unknown := sorted(set(chosen) - set(known)):
        parser.error(f"--{flag}: there is no {', '.join(unknown)}, only {', '.join(known)}")
    return chosen


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="a python3 with a PyTorch whose torchrun works")
    parser.add_argument("--restarts", type=int, default=20, help="of each kind, at least")
    parser.add_argument("--rendezvous", default=",".join(RENDEZVOUS))
    parser.add_argument("--jobs", default="ddp,star,star+fresh")
    parser.add_argument("--out", default="", help="a file that gets a line of JSON for each restart")
    flags = parser.parse_args(argv)
    library = os.environ.get("STARRING_LIBRARY") or os.path.abspath("worker/python/libstarring.so")
    if not os.path.isfile(library):
        parser.error(f"there is no {library}: use bazel run, or name it by STARRING_LIBRARY")
    if flags.restarts < 2:
        parser.error(f"--restarts={flags.restarts}: a job has 2 or more")
    jobs = names(flags.jobs, JOBS, parser, "jobs")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # run_job() then ends its processes
    rows = {(rendezvous, job): measure(flags, rendezvous, job, library)
            for rendezvous in names(flags.rendezvous, RENDEZVOUS, parser, "rendezvous") for job in jobs}
    print("\n".join(outcomes.table(rows)))
    bad = [one for (_, job), found in rows.items() if job.endswith("+fresh") for one in found
           if one.outcome not in (outcomes.WENT_ON, outcomes.OUR_SENTENCE)]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
