"""Server and worker processes for tests. Run from the root of the runfiles, as Bazel does."""

from __future__ import annotations
import os
import resource
import subprocess
import tempfile

SERVER = "server/server"
LAUNCH = "deploy/launch"
WORKER = "tests/worker/exchange/star/star_worker"
PATIENCE_S = 50  # for a process that should end by itself


class Server:
    """//server in its own process, on a free port."""

    def __init__(self, *flags: str, limits: dict[int, tuple[int, int]] | None = None) -> None:
        """`limits`: for setrlimit, {resource: (soft, hard)}."""
        def set_limits() -> None:
            for which, values in (limits or {}).items():
                resource.setrlimit(which, values)
        says_where = any(flag.startswith(("--listen=", "--flagfile=")) for flag in flags)
        where = [] if says_where else ["--listen=127.0.0.1:0"]
        self.process = subprocess.Popen([SERVER, *where, *flags], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True,
                                        # With one, Python forks instead of vfork: beside threads, such as those of
                                        # grpcio, the child may wait for a lock for ever.
                                        preexec_fn=set_limits if limits else None)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), line + self.process.communicate()[1]
        self.address = line[len("listening on "):].strip()

    def wait(self) -> tuple[int, str]:
        """The exit code and the text on stderr."""
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, errors

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def make_secret(path: str) -> None:
    subprocess.run([LAUNCH, "--make_secret=" + path], check=True, stdout=subprocess.DEVNULL)


def start_worker(servers: list[Server], rank: int, world_size: int, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [WORKER, "--servers=" + ",".join(server.address for server in servers), "--rank=%d" % rank,
         "--world_size=%d" % world_size, *flags],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def digest_of(worker: subprocess.Popen[str]) -> str:
    """Waits for a worker that should succeed: the SHA-256 of its parameters."""
    output, errors = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 0, errors
    return output.strip()


def agreement_bytes(world_size: int) -> bytes:
    """The agreement that star_worker brings, serialised."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "agreement")
        subprocess.run([WORKER, "--world_size=%d" % world_size, "--agreement_file=" + path], check=True)
        with open(path, "rb") as file:
            return file.read()
