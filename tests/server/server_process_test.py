"""The server as a process: flags, exit codes, signals."""
import os
import queue
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from tests.server.server_process import PATIENCE_S, SERVER, Server, digest_of, make_secret, start_worker


class SlowProxy:
    """Forwards connections, and delays every byte by `delay_s`."""

    def __init__(self, target, delay_s):
        host, _, port = target.rpartition(":")
        self._target, self._delay_s = (host, int(port)), delay_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        self._run(self._accept)

    def close(self):
        self._listener.close()

    def _run(self, function, *arguments):
        threading.Thread(target=function, args=arguments, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near = self._listener.accept()[0]
            except OSError:
                return
            far = socket.create_connection(self._target)
            for source, sink in ((near, far), (far, near)):
                pieces = queue.Queue()
                self._run(self._read, source, pieces)
                self._run(self._write, sink, pieces)

    def _read(self, source, pieces):
        piece = b"start"
        while piece:
            try:
                piece = source.recv(1 << 16)
            except OSError:
                piece = b""
            pieces.put((time.monotonic() + self._delay_s, piece))

    def _write(self, sink, pieces):
        piece = b"start"
        while piece:
            due, piece = pieces.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                if piece:
                    sink.sendall(piece)
                else:
                    sink.shutdown(socket.SHUT_RDWR)
            except OSError:
                return


def run_server(*flags):
    return subprocess.run([SERVER, *flags], capture_output=True, text=True, timeout=PATIENCE_S)


class ServerProcessTest(unittest.TestCase):
    def start(self, *flags, **options):
        server = Server(*flags, **options)
        self.addCleanup(server.stop)
        return server

    def start_worker(self, *arguments):
        worker = start_worker(*arguments)
        self.addCleanup(worker.communicate)
        self.addCleanup(worker.kill)
        return worker

    def test_a_job_ends_with_0(self):
        servers = [self.start("--shard=%d" % shard, "--shard_count=2") for shard in range(2)]
        workers = [self.start_worker(servers, rank, 2) for rank in range(2)]
        digests = {digest_of(worker) for worker in workers}
        self.assertEqual(len(digests), 1)
        for server in servers:
            code, errors = server.wait()
            self.assertEqual(code, 0, errors)
            self.assertIn("all workers have finished", errors)

    def test_unknown_flags_and_stray_words_are_refused(self):
        for flag in ("--lisen=127.0.0.1:0", "--shard=x", "word"):
            result = run_server(flag)
            self.assertEqual(result.returncode, 2, flag)
            self.assertIn("error: ", result.stderr)

    def test_values_that_make_no_sense_are_refused(self):
        for flags, expected in ((("--shard=2", "--shard_count=2"), "--shard_count is 2"), (("--shard=-1",), '"-1"'),
                                (("--shard_count=0",), '"0"'), (("--listen=127.0.0.1:99999",), "99999"),
                                (("--listen=localhost",), "localhost"),
                                (("--listen=192.0.2.1:7077", "--insecure"), "192.0.2.1:7077"),
                                (("--memory_limit_gb=-1",), "-1"), (("--memory_limit_gb=nan",), "nan")):
            result = run_server(*flags)
            self.assertEqual(result.returncode, 2, flags)
            self.assertIn(expected, result.stderr)

    def test_flags_from_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "server.flags")
            with open(path, "w") as file:
                file.write("# One server of two.\n--listen=127.0.0.2:0\n--shard_count=2\n")
            server = self.start("--flagfile=" + path)
            self.assertTrue(server.address.startswith("127.0.0.2:"), server.address)
            with open(path, "a") as file:
                file.write("--shard_cuont=2\n")
            result = run_server("--flagfile=" + path)
            self.assertEqual(result.returncode, 2)
            self.assertIn("error: %s:4: unknown flag --shard_cuont" % path, result.stderr)

    def test_without_a_secret_only_loopback_is_listened_on(self):
        result = run_server("--listen=0.0.0.0:0")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--insecure", result.stderr)
        server = self.start("--listen=0.0.0.0:0", "--insecure")
        self.assertTrue(server.address.startswith("0.0.0.0:"))

    def test_a_secret_that_others_may_read_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "secret")
            result = run_server("--job_secret=" + path)
            self.assertEqual(result.returncode, 2)
            self.assertIn("--make_secret=" + path, result.stderr)
            make_secret(path)
            os.chmod(path, 0o644)
            result = run_server("--job_secret=" + path)
            self.assertEqual(result.returncode, 2)
            self.assertIn("mode 0644", result.stderr)
            os.chmod(path, 0o600)
            server = self.start("--listen=0.0.0.0:0", "--job_secret=" + path, "--tls")
            self.assertTrue(server.address.startswith("0.0.0.0:"))

    def test_workers_join_over_a_slow_network(self):
        # The TLS handshake needs some round trips, which take longer here than a worker waits between two attempts.
        with tempfile.TemporaryDirectory() as folder:
            secret = os.path.join(folder, "secret")
            make_secret(secret)
            security = ["--job_secret=" + secret, "--tls"]
            server = self.start(*security)
            proxy = SlowProxy(server.address, 0.1)
            self.addCleanup(proxy.close)
            workers = [self.start_worker([proxy], rank, 2, *security, "--steps=2") for rank in range(2)]
            self.assertEqual(len({digest_of(worker) for worker in workers}), 1)

    def test_a_taken_port_is_refused(self):
        server = self.start()
        result = run_server("--listen=" + server.address)
        self.assertEqual(result.returncode, 2)
        self.assertIn(server.address, result.stderr)
        self.assertIn("taken", result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)  # nothing of gRPC's own log

    def test_the_port_file_holds_the_address(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "port")
            server = self.start("--port_file=" + path)
            end = time.monotonic() + PATIENCE_S
            while not os.path.exists(path):
                self.assertIsNone(server.process.poll())
                self.assertLess(time.monotonic(), end, "the server does not write its port file")
                time.sleep(0.01)  # a file has no event to wait for
            with open(path) as file:
                self.assertEqual(file.read(), server.address + "\n")

    def test_a_signal_before_a_job_ends_it_with_0(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            server = self.start()
            server.process.send_signal(number)
            code, errors = server.wait()
            self.assertEqual(code, 0, errors)

    def test_a_signal_during_a_job_lets_it_finish(self):
        server = self.start()
        workers = [self.start_worker([server], rank, 2, "--steps=3000") for rank in range(2)]
        while "all 2 workers joined" not in server.process.stderr.readline():
            self.assertIsNone(server.process.poll())
        server.process.send_signal(signal.SIGTERM)
        self.assertIn("asked to stop", server.process.stderr.readline())
        self.assertEqual(digest_of(workers[0]), digest_of(workers[1]))
        code, errors = server.wait()
        self.assertEqual(code, 0, errors)

    def test_a_second_signal_ends_it_at_once(self):
        server = self.start()
        self.start_worker([server], 0, 1, "--steps=100000000")
        while "all 1 workers joined" not in server.process.stderr.readline():
            self.assertIsNone(server.process.poll())
        server.process.send_signal(signal.SIGINT)
        while "asked to stop" not in server.process.stderr.readline():
            self.assertIsNone(server.process.poll())
        self.assertIsNone(server.process.poll())
        server.process.send_signal(signal.SIGINT)
        self.assertEqual(server.wait()[0], 130)

    def test_a_job_that_needs_more_descriptors_than_there_are_is_refused(self):
        server = self.start(limits={resource.RLIMIT_NOFILE: (256, 512)})
        with open("/proc/%d/limits" % server.process.pid) as file:
            line = next(line for line in file if line.startswith("Max open files"))
        self.assertEqual(line.split()[3:5], ["512", "512"])  # raised as far as the hard limit
        # ... but not beyond the largest number that any job needs.
        hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 100_000)
        other = self.start(limits={resource.RLIMIT_NOFILE: (256, hard)})
        self.assertEqual(resource.prlimit(other.process.pid, resource.RLIMIT_NOFILE), (min(32_960, hard), hard))
        worker = self.start_worker([server], 0, 500, "--deadline=10s")
        _, errors = worker.communicate(timeout=PATIENCE_S)
        self.assertIn("RESOURCE_EXHAUSTED", errors)
        self.assertIn("500 workers with --lanes=1 need 1192 descriptors", errors)
        self.assertIn("may open 512", errors)

    def test_no_worker_comes(self):
        result = run_server("--listen=127.0.0.1:0", "--join_deadline_s=1")
        self.assertEqual(result.returncode, 3)
        self.assertIn("no worker has joined within 1s", result.stderr)

    def test_a_killed_worker_fails_the_job_within_the_deadline(self):
        server = self.start()
        workers = [self.start_worker([server], rank, 2, "--steps=100000000", "--deadline=2s") for rank in range(2)]
        while "all 2 workers joined" not in server.process.stderr.readline():
            self.assertIsNone(server.process.poll())
        workers[1].kill()
        code, errors = server.wait()
        self.assertEqual(code, 3, errors)
        self.assertIn("rank 1", errors)
        _, worker_errors = workers[0].communicate(timeout=PATIENCE_S)
        self.assertNotEqual(workers[0].returncode, 0)
        self.assertIn("rank 1", worker_errors)


if __name__ == "__main__":
    unittest.main()
