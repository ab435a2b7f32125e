#!/usr/bin/env python3
"""Runs libFuzzer over the targets of tests/fuzz, to find inputs that crash, leak, or need too much time or memory.

    bazel run //bench:fuzz -- --continue

Builds the targets with clang, AddressSanitizer and UndefinedBehaviorSanitizer (.bazelrc, --config=fuzz). Then runs
them, `--jobs` at a time, in pieces of a minute; each piece is a line of the log. A target gets only the time that no
other process wants. `--continue` counts the inputs in an existing log, so a search may be interrupted (Ctrl-C,
SIGTERM), and continued after a defect is mended.

Writes to the folder --out: log.jsonl, corpus/TARGET (the inputs that libFuzzer keeps and begins with the next time) and
findings/ (inputs that fail). When the defect is mended, such an input belongs in tests/fuzz/corpus/TARGET, which the
tests replay. Exit status 0: all inputs were tried and none failed, 1: an input failed or there were too few, also after
an interruption, 2: the command line was refused.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

INPUTS = 1_000_000  # for each target by default
INPUTS_OF = {"shard_job": 2_000_000}
# Limits for one input. The memory is that of the whole process, which has about 40 MiB without any input.
INPUT_SECONDS_MAX = 1
MEMORY_MB_MAX = 256
INPUT_BYTES_MAX = 4096
INPUT_BYTES_MAX_OF = {"shard_job": 768}  # some hundred messages; longer inputs find less in the same time
PIECE_SECONDS = 60
# AddressSanitizer keeps freed memory to find late uses of it. A small quarantine shows the memory that an input needs.
SANITIZERS = {"ASAN_OPTIONS": "quarantine_size_mb=4:malloc_context_size=8:detect_leaks=1",
              "UBSAN_OPTIONS": "print_stacktrace=1"}

Line = dict[str, Any]  # of the log


def parse_options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fuzz", allow_abbrev=False, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--target", default="", help="targets, separated by commas (default: all)")
    parser.add_argument("--inputs", type=int, default=0,
                        help="inputs for each target (default: %d, shard_job %d)" % (INPUTS, INPUTS_OF["shard_job"]))
    parser.add_argument("--seconds", type=int, default=0, help="time limit for each target (default: none)")
    parser.add_argument("--jobs", type=int, default=1, help="targets that run at a time (default: %(default)s)")
    parser.add_argument("--continue", dest="resume", action="store_true", help="count the inputs in the log")
    parser.add_argument("--summary", action="store_true", help="print the log's table and run nothing")
    parser.add_argument("--out", default="data/fuzz", help="folder, from the repository's root (default: %(default)s)")
    parser.add_argument("--binaries", default="", help="folder of TARGET_fuzz (default: build them)")
    options = parser.parse_args(arguments)
    if options.inputs < 0 or options.seconds < 0:
        parser.error("--inputs and --seconds must be 0 or more")
    if options.jobs < 1:
        parser.error("--jobs must be 1 or more")
    return options


def build(root: str) -> str:
    """Builds the targets. Returns the folder of the binaries."""
    labels = subprocess.run(["bazel", "query", "--noshow_progress", "filter(_fuzz$, //tests/fuzz:all)"], cwd=root,
                            check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    subprocess.run(["bazel", "build", "--noshow_progress", "--config=fuzz", *labels], cwd=root, check=True)
    folder = subprocess.run(["bazel", "info", "--noshow_progress", "--config=fuzz", "bazel-bin"], cwd=root, check=True,
                            stdout=subprocess.PIPE, text=True).stdout.strip()
    return os.path.join(folder, "tests/fuzz")


def read_log(path: str) -> list[Line]:
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except FileNotFoundError:
        return []


def number(pattern: str, text: str, default: int = 0) -> int:
    found = re.findall(pattern, text, re.M)
    return int(found[-1]) if found else default


def parse_output(text: str) -> Line:
    """The numbers in libFuzzer's output of a piece. The corpus runs first and is not counted, since it is not new: a
    piece that ends within the corpus has no input."""
    executed = number(r"stat::number_of_executed_units:\s*(\d+)", text)
    return {
        "inputs": max(0, executed - number(r"^#(\d+)\s+INITED", text, default=executed)),
        "edges": number(r" cov: (\d+)", text),
        "edges_all": number(r"Loaded 1 modules\s+\((\d+) inline", text),
        "memory_mb": number(r"stat::peak_rss_mb:\s*(\d+)", text),
        "slowest_s": number(r"stat::slowest_unit_time_sec:\s*(\d+)", text),
    }


def leave_cores_to_others(pid: int) -> None:
    """Lets a process run only while no other one wants its core: a search must not disturb a measurement."""
    with contextlib.suppress(OSError):  # it has ended, or the system does not allow it
        os.setpriority(os.PRIO_PROCESS, pid, max(15, os.getpriority(os.PRIO_PROCESS, 0)))
        if hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


class Interrupted(Exception):
    """The search was told to end."""


class Processes:
    """The processes of a search. Several threads start and await them; any thread may end all."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: set[int] = set()
        self.stopped = False

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        with self.lock:
            if self.stopped:
                raise Interrupted
            # In a session of its own: Ctrl-C would make libFuzzer end as if it had found something.
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                       errors="replace", env={**os.environ, **SANITIZERS}, start_new_session=True)
            self.running.add(process.pid)
        return process

    def finish(self, process: subprocess.Popen[str]) -> tuple[str, resource.struct_rusage]:
        """Waits for the end of a process. Returns its output and what it used."""
        assert process.stderr is not None
        with process.stderr:
            output = process.stderr.read()
        with self.lock:
            self.running.discard(process.pid)  # before the number is free
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if self.stopped:
            raise Interrupted
        return output, usage

    def stop(self) -> None:
        with self.lock:
            self.stopped = True
            for pid in self.running:
                os.killpg(pid, signal.SIGKILL)


class Search:
    """The search over all targets, and its log."""

    def __init__(self, options: argparse.Namespace, root: str, binaries: str) -> None:
        self.options, self.root, self.binaries = options, root, binaries
        self.out = os.path.join(root, options.out)
        self.findings = os.path.join(self.out, "findings")
        os.makedirs(self.findings, exist_ok=True)
        self.log_path = os.path.join(self.out, "log.jsonl")
        self.log = read_log(self.log_path)
        self.first = 0 if options.resume or options.summary else len(self.log)
        self.processes = Processes()
        self.output_lock = threading.Lock()  # of the log and of this program's own output

    def counted(self, target: str) -> list[Line]:
        return [line for line in self.log[self.first:] if line["target"] == target]

    def is_slow_alone(self, binary: str, path: str) -> bool:
        """Whether an input that took too long is slow when it runs alone: it may only have waited for a core.

        The processor time counts, and the best of three runs.
        """
        times = []
        for _ in range(3):
            _, usage = self.processes.finish(self.processes.start([binary, path]))
            times.append(usage.ru_utime + usage.ru_stime)
        return min(times) > INPUT_SECONDS_MAX

    def run_piece(self, target: str, inputs: int, seconds: int) -> Line:
        binary = os.path.join(self.binaries, target + "_fuzz")
        corpus = os.path.join(self.out, "corpus", target)
        os.makedirs(corpus, exist_ok=True)
        begin = time.time()
        # Each piece has its own seed, so that it does not repeat another.
        seed = 1 + sum(1 for line in self.log if line["target"] == target)
        # The corpus runs as well, and libFuzzer counts its inputs.
        runs = inputs + len(os.listdir(corpus)) + 100
        process = self.processes.start(
            [binary, "-runs=%d" % runs, "-max_total_time=%d" % seconds, "-seed=%d" % seed, "-print_final_stats=1",
             "-timeout=%d" % max(1, INPUT_SECONDS_MAX), "-rss_limit_mb=%d" % MEMORY_MB_MAX,
             "-max_len=%d" % INPUT_BYTES_MAX_OF.get(target, INPUT_BYTES_MAX),
             "-artifact_prefix=%s/%s-" % (self.findings, target), corpus,
             os.path.join(self.root, "tests/fuzz/corpus", target)])
        leave_cores_to_others(process.pid)
        output, _ = self.processes.finish(process)
        line = {"target": target, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begin)),
                "seconds": round(time.time() - begin, 1), **parse_output(output), "finding": ""}
        if process.returncode == -signal.SIGALRM:
            line["starved"] = True  # libFuzzer sets its timer before it handles the timer's signal
        elif process.returncode != 0:
            written = re.findall(r"Test unit written to (\S+)", output)
            path = written[-1] if written else ""
            if "/%s-timeout-" % target in path and not self.is_slow_alone(binary, path):
                line["starved"] = True  # the input waited for a core that other processes used
                os.remove(path)
            else:
                line["finding"] = path or "exit status %d" % process.returncode
                with open(os.path.join(self.findings, target + ".output"), "w", encoding="utf-8") as file:
                    file.write(output)
        with self.output_lock, open(self.log_path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            self.log.append(line)
        return line

    def run(self, target: str) -> bool:
        """Fuzzes one target. True if it got all its inputs."""
        wanted = self.options.inputs or INPUTS_OF.get(target, INPUTS)
        end = time.monotonic() + self.options.seconds if self.options.seconds else float("inf")
        while True:
            left = wanted - sum(line["inputs"] for line in self.counted(target))
            seconds = min(PIECE_SECONDS, end - time.monotonic())
            if left <= 0 or seconds < 1:
                return left <= 0
            line = self.run_piece(target, left, int(seconds))
            finding = ", FINDING: " + line["finding"] if line["finding"] else ""
            with self.output_lock:
                print("fuzz: %-21s %9d inputs, %d left%s" % (target, line["inputs"], max(0, left - line["inputs"]),
                                                             finding), flush=True)
            if line["finding"]:
                return False

    def run_all(self, targets: list[str]) -> bool:
        """Fuzzes the targets, --jobs at a time. True if all got their inputs."""
        with ThreadPoolExecutor(max_workers=self.options.jobs) as pool:
            try:
                runs = [pool.submit(self.run, target) for target in targets]
                return all([run.result() for run in runs])
            except BaseException:  # also an interruption, of which this thread alone hears
                self.processes.stop()
                raise

    def table(self, targets: list[str]) -> str:
        rows = ["| target | inputs | inputs/s | edges covered | peak memory | slowest input | findings |",
                "| --- | --- | --- | --- | --- | --- | --- |"]
        total = 0
        for target in targets:
            lines = self.counted(target)
            if not lines:
                continue
            inputs = sum(line["inputs"] for line in lines)
            total += inputs
            edges, edges_all = max((line["edges"], line["edges_all"]) for line in lines)
            slowest = max((line["slowest_s"] for line in lines if not line.get("starved")), default=0)
            rows.append("| %s | %s | %d | %d of %d (%d %%) | %d MiB | %s | %d |" % (
                target, "{:,}".format(inputs), inputs / max(1, sum(line["seconds"] for line in lines)), edges,
                edges_all, 100 * edges / max(1, edges_all), max(line["memory_mb"] for line in lines),
                "%d s" % slowest if slowest else "below 1 s", sum(1 for line in lines if line["finding"])))
        rows.append("| all | %s | | | | | |" % "{:,}".format(total))
        return "\n".join(rows)


def main(arguments: list[str]) -> int:
    options = parse_options(arguments)
    root = os.environ.get("BUILD_WORKSPACE_DIRECTORY", os.getcwd())
    corpora = os.path.join(root, "tests/fuzz/corpus")
    if not os.path.isdir(corpora):
        print("fuzz: %s has no tests/fuzz/corpus: run it from the repository's root" % root, file=sys.stderr)
        return 2
    targets = options.target.split(",") if options.target else sorted(os.listdir(corpora))
    for target in targets:
        if not os.path.isdir(os.path.join(corpora, target)):
            print("fuzz: there is no target %s, only %s" % (target, ", ".join(sorted(os.listdir(corpora)))),
                  file=sys.stderr)
            return 2
    if options.summary:
        print(Search(options, root, "").table(targets))
        return 0
    search = Search(options, root, options.binaries or build(root))
    try:
        complete = search.run_all(targets)
    except KeyboardInterrupt:
        print("fuzz: interrupted, --continue goes on", file=sys.stderr)
        complete = False
    print(search.table(targets))
    return 0 if complete else 1


if __name__ == "__main__":
    for number_of_signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number_of_signal, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
