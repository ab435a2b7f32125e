"""Starts real jobs of real binaries, for the tests of this folder.

Every wait has a deadline. All processes of a test end with the test, even if it fails or gets SIGTERM.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, Callable, Iterable, Sequence, TypeVar

# The programs of a bundle, if starring/tests/gpu_checks.sh named its folder; else those that Bazel built.
BUNDLE_BIN = os.environ.get("STARRING_BIN")
LAUNCH = os.path.join(BUNDLE_BIN, "launch") if BUNDLE_BIN else os.path.abspath("deploy/launch")
WORKER = os.path.join(BUNDLE_BIN, "worker") if BUNDLE_BIN else os.path.abspath("worker/worker")
SERVER = os.path.join(BUNDLE_BIN, "server") if BUNDLE_BIN else os.path.abspath("server/server")
# A worker that misbehaves as variables say (stopping_worker.cc). A bundle has none.
STOPPING_WORKER = os.path.abspath("tests/e2e/stopping_worker")

Case = TypeVar("Case")

# Sanitized binaries are several times slower, and four processes share two cores.
JOB_SECONDS_MAX = 300

# A job of a few steps. 200 samples in batches of 33 leave a last batch of 2 samples, in which some ranks have none.
SMALL_JOB = ["--dataset=synthetic", "--synthetic_train_count=200", "--synthetic_test_count=50", "--global_batch=33",
             "--epochs=2", "--progress=plain", "--share_gpus"]

# Variables with which a stopping_worker computes other bits, and how it is refused: with the first of its facts that
# differs, and the way out. The first variable is oneDNN's own. The last one no fact shows but the known answer: the
# others are over after so many exponentials.
OTHER_BITS = [
    ({"ONEDNN_MAX_CPU_ISA": "SSE41"},
     r"arithmetic\.onednn_isa=.*: give all workers the same --isa, the lowest of theirs"),
    ({"STARRING_TEST_ROUNDS": "down"}, r"arithmetic\.libm=.*: give all workers the same release of it"),
    ({"STARRING_TEST_EXPONENTIALS": "300000"},
     r"known_answer\.first_leaf=.*: give all workers --isa=baseline, and test the memory"),
]


def with_flags(job: Sequence[str], *flags: str) -> list[str]:
    """The job with these flags in place of its own of the same names."""
    names = [flag.partition("=")[0] for flag in flags]
    return [word for word in job if word.partition("=")[0] not in names] + list(flags)


def children_of(pid: int, word: str) -> list[int]:
    """The processes that `pid` has started and that have `word` among their arguments. A GPU's machine may lack pgrep.
    """
    children = []
    for name in os.listdir("/proc"):
        try:
            with open("/proc/%s/stat" % name, encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()  # a program's name may have spaces
            with open("/proc/%s/cmdline" % name, encoding="utf-8", errors="replace") as file:
                words = file.read().split("\0")
        except OSError:
            continue  # no process, or one that has ended
        if name.isdigit() and int(fields[1]) == pid and word in words:
            children.append(int(name))
    return children


class Process(subprocess.Popen):
    """A process whose output goes to a file."""

    def __init__(self, command: Sequence[str], output: IO[bytes], **kwargs: Any) -> None:
        super().__init__(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                         start_new_session=True, **kwargs)
        self.output_file = output
        self.started = time.monotonic()


class Finished:
    """A process that has ended: its exit code, and its standard output and error as one text."""

    def __init__(self, returncode: int, output: str, seconds: float) -> None:
        self.returncode = returncode
        self.output = output
        self.seconds = seconds


class JobTest(unittest.TestCase):
    """Gives each test a folder of its own, and processes that end with it."""

    maxDiff = None

    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.processes: list[Process] = []
        self.starting = threading.Lock()
        # Tests that run side by side have threads of their own, and a handler is the main thread's.
        if threading.current_thread() is threading.main_thread():
            self.addCleanup(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, self.end))
        self.addCleanup(self.end_processes)

    def end(self, number: int, frame: object) -> None:
        """A time limit has sent SIGTERM: the processes are in sessions of their own, and it has not reached them."""
        # The lock is kept, so no thread starts a process after this. One that is being started is known in a moment.
        if not self.starting.acquire(blocking=False):
            threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
            return
        self.doCleanups()
        os._exit(128 + number)  # unittest would catch an exception and go on with the next test

    def mpi_files(self) -> dict[str, str]:
        """Folders for one mpirun. Open MPI names its files after the number of mpirun's process, and sandboxes have
        the same numbers. It also fails if another mpirun makes or removes the same parent folder meanwhile."""
        folders = {}
        for name, place in (("orte_tmpdir_base", "/tmp"), ("btl_vader_backing_directory", "/dev/shm")):
            if not os.path.isdir(place):
                continue
            folder = tempfile.mkdtemp(prefix="m", dir=place)  # short: it becomes part of a socket's path
            self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
            folders["OMPI_MCA_" + name] = folder
        return folders

    def end_processes(self) -> None:
        running = [process for process in self.processes if process.poll() is None]
        for process in running:
            os.killpg(process.pid, signal.SIGKILL)
        for process in running:
            process.wait(timeout=30)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def start(self, command: Sequence[str], **kwargs: Any) -> Process:
        """Starts a process in its own process group, with its output in a file."""
        kwargs["env"] = {**self.mpi_files(), **(kwargs.get("env") or os.environ)}
        kwargs.setdefault("cwd", self.folder)  # where a worker saves by default
        with self.starting:
            output = open(self.path("output.%d" % len(self.processes)), "w+b")
            self.addCleanup(output.close)
            process = Process(command, output, **kwargs)
            self.processes.append(process)
        return process

    def for_each(self, cases: Iterable[Case], check: Callable[[Case], None]) -> None:
        """Checks four cases at a time: a job waits more than it computes. `check` may start processes."""
        with ThreadPoolExecutor(max_workers=4) as pool:
            for _ in pool.map(check, cases):
                pass  # raises what the check has raised

    def output_of(self, process: Process) -> str:
        with open(process.output_file.name, "rb") as file:
            return file.read().decode(errors="replace")

    def finish(self, process: Process, deadline_s: float = JOB_SECONDS_MAX) -> Finished:
        try:
            process.wait(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            self.fail("no end after %d s:\n%s" % (deadline_s, self.output_of(process)))
        return Finished(process.returncode, self.output_of(process), time.monotonic() - process.started)

    def wait_for_output(self, process: Process, text: str, deadline_s: float = JOB_SECONDS_MAX) -> None:
        """Waits until the process has printed `text`; fails if it ends before."""
        end = time.monotonic() + deadline_s
        while text not in self.output_of(process):
            if process.poll() is not None or time.monotonic() > end:
                self.fail("%r was not printed:\n%s" % (text, self.output_of(process)))
            time.sleep(0.02)  # a file has no event to wait for

    def run_to_end(self, command: Sequence[str], deadline_s: float = JOB_SECONDS_MAX, **kwargs: Any) -> Finished:
        return self.finish(self.start(command, **kwargs), deadline_s)

    def start_server(self, *flags: str, shard: int = 0, shard_count: int = 1,
                     listen: str = "127.0.0.1:0") -> tuple[Process, str]:
        """Starts the server of one shard. Returns the process and its address."""
        port_file = self.path("port.%d" % len(self.processes))
        process = self.start(
            [SERVER, "--listen=" + listen, "--shard=%d" % shard, "--shard_count=%d" % shard_count,
             "--port_file=" + port_file, *flags])
        end = time.monotonic() + 60
        while not os.path.exists(port_file):  # the server renames it into place when it is complete
            if process.poll() is not None or time.monotonic() > end:
                self.fail("the server does not listen:\n" + self.output_of(process))
            time.sleep(0.02)  # a file has no event to wait for
        with open(port_file) as file:
            return process, "127.0.0.1:" + file.read().strip().rpartition(":")[2]

    def free_address(self) -> str:
        """An address for --rendezvous. Its port stays this process's own, and rank 0 may listen there all the same."""
        holder = socket.socket()
        self.addCleanup(holder.close)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % holder.getsockname()[1]

    def job_command(self, sync: str, workers: int = 1, servers: int = 1, flags: Sequence[str] = (),
                    launch_flags: Sequence[str] = ()) -> list[str]:
        """`sync` may name the transport as well: "star/mpi" is the star whose workers own the parameters, and
        "star-servers/tcp" the one that has servers all the same."""
        sync, _, transport = sync.partition("/")
        has_servers = sync == "star-servers" or (sync == "star" and not transport)
        sync = sync.removesuffix("-servers")
        command = [LAUNCH, "--sync=" + sync, "--workers=%d" % workers, *launch_flags]
        if transport:
            command.append("--transport=" + transport)
        if has_servers:
            command.append("--servers=%d" % servers)
        # The machine may have one GPU.
        share = [] if "--share_gpus" in flags or "--noshare_gpus" in flags else ["--share_gpus"]
        # The lines at the end of a job are those of one that saves nothing.
        names = {flag.partition("=")[0] for flag in flags}
        save = [] if names & {"--checkpoint_dir", "--evaluate", "--flagfile"} else ["--checkpoint_dir=none"]
        # Ranks of one host would share memory by themselves, and no test would have messages.
        ranks = sync in ("ring", "star") and not has_servers
        send = ["--same_host=socket"] if ranks and not names & {"--same_host", "--cuda_aware_mpi", "--flagfile"} else []
        return command + ["--", *share, *save, *send, *flags]

    def train(self, sync: str, workers: int = 1, servers: int = 1, flags: Sequence[str] = (),
              launch_flags: Sequence[str] = ()) -> dict[str, Any]:
        """Runs a job to its end, which must succeed. Returns its run record."""
        record = self.path("record.%d.json" % len(self.processes))
        done = self.run_to_end(
            self.job_command(sync, workers, servers, [*flags, "--record=" + record], launch_flags))
        self.assertEqual(done.returncode, 0, done.output)
        with open(record) as file:
            return json.load(file)

    def digest(self, *args: Any, **kwargs: Any) -> str:
        return self.train(*args, **kwargs)["parameter_sha256"]

    def assert_nothing_runs(self) -> None:
        """Fails if a worker or server of this test's folder is left."""
        found = subprocess.run(["pgrep", "-af", self.folder], capture_output=True, text=True, check=False).stdout
        left = [line for line in found.splitlines() if "pgrep" not in line]
        self.assertEqual(left, [])
