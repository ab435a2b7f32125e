"""Tests python -m starring.servers: requests and their proofs, the launcher, and its ends. The library is
fake_library.py, and no test needs torch.
"""

import hashlib
import hmac
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import fake_library
from starring import _control, _library, _server, servers

# A rank of a job with two servers, without torch: it asks them as starring.torch does, and sums once.
RANK = """
import ctypes, json, os, secrets, sys
from starring import _control, _library
listener = __import__("socket").create_server(("127.0.0.1", 0))
servers = os.environ["STARRING_SERVERS"].split(",")
secret = _control.load_secret(os.environ["STARRING_JOB_SECRET"])
place = "127.0.0.1:%d" % listener.getsockname()[1]
for number, server in enumerate(servers):
    _control.ask(server, secret, {"number": number, "server_count": len(servers), "world_size": 1, "rendezvous": place,
                                  "group_name": "g", "join_deadline_s": 5, "exchange_deadline_s": 5})
group = _library.Group(_library.Settings(0, 1, "star", place, "g", _control.group_token(secret, "g"), len(servers),
                                         listener.detach()))
values = (ctypes.c_float * 2)(1, 2)
ticket = group.allreduce(0, 0, 0, ctypes.addressof(values), 2, _library.FLOAT32, 1.0)
while not group.wait(ticket, 1000):
    pass
group.close()
print(json.dumps({"servers": servers, "sum": list(values)}), flush=True)
"""


class ControlTest(unittest.TestCase):
    def setUp(self):
        self.requests = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(self.listener.close)
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"

    def accept(self, request):
        if request.get("seeded"):
            raise _library.StarringError("seeded refusal")
        self.requests.append(request)

    def serve(self, secret):
        def answer():
            connection, _ = self.listener.accept()
            with connection:
                try:
                    _control.answer(connection, secret, self.accept)
                except OSError:
                    pass
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        self.addCleanup(thread.join, 10)

    def test_a_request_arrives(self):
        self.serve(b"s" * 32)
        _control.ask(self.address, b"s" * 32, {"number": 0, "group_name": "ä"})
        self.assertEqual(self.requests, [{"number": 0, "group_name": "ä"}])

    def test_what_is_refused(self):
        for secret, request, text in ((b"t" * 32, {}, "does not prove that it has this job's secret"),
                                      (b"s" * 32, {"seeded": 1}, "server 0 at .*: seeded refusal")):
            self.serve(b"s" * 32)
            with self.assertRaisesRegex(_library.StarringError, text):
                _control.ask(self.address, secret, {"number": 0, **request})
        self.assertEqual(self.requests, [])

    def speak(self, said):
        """The answers of a server to these lines."""
        self.serve(b"s" * 32)
        with socket.create_connection(self.listener.getsockname(), timeout=10) as rank:
            lines = rank.makefile("rw", newline="\n")
            nonce = lines.readline().split()[2]
            answers = []
            for line in said(nonce):
                lines.write(line + "\n")
                lines.flush()
                answers.append(lines.readline().strip())
            return answers

    def test_a_request_without_a_proof_is_refused(self):
        nonces = []

        def said(own):
            nonces.append((own, "a" * 32))
            yield "hello 2 " + "a" * 32
            yield _control._code(b"s" * 32, "server", nonces[0], "{}") + " {}"
        self.assertIn("not made with this job's secret", self.speak(said)[1])
        # A proof from one connection is worth nothing at the next one.
        heard = _control._code(b"s" * 32, "rank 0", nonces[0], "{}") + " {}"
        self.assertIn("not made with this job's secret", self.speak(lambda _: ["hello 2 " + "a" * 32, heard])[1])
        self.assertEqual(self.requests, [])

    def test_other_versions_are_told_so(self):
        # Rank 0 of version 1 takes the server's first line for a nonce.
        self.assertIn("version 2, rank 0 version 1", self.speak(lambda _: ["0" * 64 + ' {"version": 1}'])[0])
        self.assertIn("version 2, rank 0 version 3", self.speak(lambda _: ["hello 3 " + "a" * 32])[0])
        for first, text in (("a" * 32, "server 0 at .* speaks version 1, rank 0 version 2"),
                            ("starring 3 " + "a" * 32, "speaks version 3, rank 0 version 2"),
                            ("SSH-2.0-OpenSSH", "is no server of starring")):
            said = self.play_server([first])
            with self.assertRaisesRegex(_library.StarringError, text):
                _control.ask(self.address, b"s" * 32, {"number": 0})
            self.assertEqual(said.get(timeout=10), b"")

    def play_server(self, lines):
        """A false server says these lines. Returns a queue that gets what rank 0 has said."""
        said = queue.Queue()

        def play():
            connection, _ = self.listener.accept()
            with connection:
                connection.settimeout(10)
                got = b""
                for number, line in enumerate(lines):
                    got += connection.recv(4096) if number else b""
                    connection.sendall(line.encode() + b"\n")
                while part := connection.recv(4096):
                    got += part
                said.put(got)
        threading.Thread(target=play, daemon=True).start()
        return said

    def test_a_false_server_learns_nothing(self):
        said = self.play_server(["starring 2 " + "a" * 32, "b" * 64])
        with self.assertRaisesRegex(_library.StarringError, "does not prove that it has this job's secret"):
            _control.ask(self.address, b"s" * 32, {"number": 0, "group_name": "the group"})
        self.assertRegex(said.get(timeout=10), b"^hello 2 [0-9a-f]{32}\n$")

    def test_a_stranger_gets_no_answer(self):
        for said in (b"", b"x" * 5000 + b"\n", b"\n", b"\xff\xfe\n"):
            self.serve(b"s" * 32)
            with socket.create_connection(self.listener.getsockname(), timeout=10) as stranger:
                stranger.recv(100)
                try:
                    stranger.sendall(said)
                    stranger.shutdown(socket.SHUT_WR)
                    answer = stranger.recv(1000)
                except OSError:
                    answer = b""
            self.assertNotEqual(answer, b"{}\n")
        self.assertEqual(self.requests, [])

    def test_no_server_is_a_sentence(self):
        self.listener.close()
        with self.assertRaisesRegex(_library.StarringError, f"server 1 at {self.address} does not answer"):
            _control.ask(self.address, b"", {"number": 1})
        with self.assertRaisesRegex(_library.StarringError, "'here' is not host:port"):
            _control.ask("here", b"", {"number": 1})

    def test_a_secret_that_others_may_read_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "secret")
            with open(path, "wb") as file:
                file.write(b"x")
            os.chmod(path, 0o640)
            with self.assertRaisesRegex(_library.StarringError, "mode 640.*chmod 600"):
                _control.load_secret(path)
            os.chmod(path, 0o600)
            self.assertEqual(len(_control.load_secret(path)), 32)
            with open(path, "wb"):
                pass
            with self.assertRaisesRegex(_library.StarringError, "is empty"):
                _control.load_secret(path)
        with self.assertRaisesRegex(_library.StarringError, "cannot be read"):
            _control.load_secret(path)

    def test_groups_have_tokens_of_their_own(self):
        self.assertEqual(len({_control.group_token(secret, name) for secret in (b"a", b"b") for name in "xy"}), 4)

    def test_each_use_has_a_key_of_its_own(self):
        digest = hashlib.sha256(b"s").digest()
        labels = [b"starring grpc requests", b"starring tcp ranks", b"starring python servers",
                  b"starring python groups"]
        keys = [hmac.new(digest, label, hashlib.sha256).digest() for label in labels]
        self.assertEqual(len(set(keys)), 4)
        self.assertEqual(_control._code(digest, "server", ("a", "b")),
                         hmac.new(keys[2], b"server a b ", hashlib.sha256).hexdigest())
        self.assertEqual(_control.group_token(digest, "g"), hmac.new(keys[3], b"g", hashlib.sha256).digest())

    def test_a_broken_request_is_refused(self):
        for request in ({}, {"world_size": "two", "number": 0}, {"world_size": None, "number": 1}):
            with self.assertRaises((ValueError, TypeError, KeyError)):
                _server.settings_of(request)


class ServersTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.environment = {**os.environ, **fake_library.environment(self.folder), "STARRING_TEST": self.folder}

    def start(self, *arguments):
        process = subprocess.Popen([sys.executable, "-m", "starring.servers", *arguments], env=self.environment,
                                   text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.terminate)  # which it passes on
        return process

    def run_servers(self, *arguments):
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def assert_no_process_is_left(self):
        end = time.monotonic() + 10
        while self.found_processes():
            self.assertLess(time.monotonic(), end, self.found_processes())
            time.sleep(0.05)

    def found_processes(self):
        """Processes with the environment of this test."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if f"STARRING_TEST={self.folder}".encode() in file.read():
                        found.append(pid)
            except OSError:
                continue
        return found

    def test_a_job_finds_its_servers(self):
        status, out, err = self.run_servers("--servers=2", "--", sys.executable, "-c", RANK)
        self.assertEqual((status, err), (0, ""))
        said = json.loads(out)
        self.assertEqual((len(said["servers"]), said["sum"]), (2, [1, 2]))
        self.assert_no_process_is_left()

    def test_exit_codes_and_signals_are_passed_on(self):
        self.assertEqual(self.run_servers("--", "sh", "-c", "exit 7")[0], 7)
        self.assertEqual(self.run_servers("--", "sh", "-c", "kill -KILL $$")[0], 128 + signal.SIGKILL)
        script = ("import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); print(flush=True); "
                  "signal.pause()")
        for sent, expected in ((signal.SIGTERM, 5), (signal.SIGINT, 128 + signal.SIGINT)):
            process = self.start("--", sys.executable, "-c", script)
            process.stdout.readline()
            process.send_signal(sent)
            self.assertEqual(process.wait(30), expected)
        self.assert_no_process_is_left()

    def test_servers_end_with_a_killed_launcher(self):
        process = self.start("--servers=2", "--", "sleep", "1000")
        while len(self.found_processes()) < 4:
            time.sleep(0.02)
        process.kill()
        process.wait()
        while len(self.found_processes()) > 1:  # the command goes on
            time.sleep(0.02)
        os.kill(int(self.found_processes()[0]), signal.SIGKILL)

    def test_a_server_that_ends_is_reported(self):
        script = "import time; print(flush=True); time.sleep(60)"
        process = self.start("--servers=2", "--", sys.executable, "-c", script)
        process.stdout.readline()
        with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
            server = min(map(int, file.read().split()))
        os.kill(server, signal.SIGKILL)
        self.assertRegex(process.stderr.readline(), "server 0 at 127.0.0.1:[0-9]+ has ended with -9")

    def test_silent_strangers_keep_no_group_from_its_servers(self):
        secret = os.path.join(self.folder, "secret")
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(b"s" * 32)
        process = self.start("--job_secret=" + secret)
        address = process.stdout.readline().strip().partition("=")[2]
        for count in (48, _server._STRANGERS_MAX + 8):
            strangers = [socket.create_connection(_control.split_address(address), timeout=20) for _ in range(count)]
            done = subprocess.run([sys.executable, "-c", RANK], text=True, capture_output=True, check=False, timeout=60,
                                  env={**self.environment, "STARRING_SERVERS": address, "STARRING_JOB_SECRET": secret})
            self.assertEqual(json.loads(done.stdout or "{}").get("sum"), [1, 2], done.stderr)
            for stranger in strangers:
                stranger.close()

    def test_the_oldest_stranger_is_cut_after_its_time(self):
        ends = [socket.socketpair() for _ in range(_server._STRANGERS_MAX + 1)]
        strangers = _server.Strangers()
        begin = time.monotonic()
        for own, _ in ends[:-1]:
            strangers.add(own)
        strangers.forget(ends[0][0])  # it has proved itself
        strangers.add(ends[0][0])  # and comes again
        strangers.add(ends[-1][0])
        self.assertGreaterEqual(time.monotonic() - begin, _server._STRANGER_LIFE_MIN_S)
        self.assertEqual(ends[1][1].recv(1), b"")
        ends[0][1].setblocking(False)
        with self.assertRaises(BlockingIOError):
            ends[0][1].recv(1)
        for pair in ends:
            for end in pair:
                end.close()

    def test_without_a_command(self):
        secret = os.path.join(self.folder, "secret")
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(b"s" * 32)
        process = self.start("--servers=2", "--job_secret=" + secret)
        line = process.stdout.readline().strip()
        self.assertRegex(line, "^STARRING_SERVERS=127.0.0.1:[0-9]+,127.0.0.1:[0-9]+$")
        name, _, addresses = line.partition("=")
        done = subprocess.run([sys.executable, "-c", RANK], text=True, capture_output=True, check=False, timeout=60,
                              env={**self.environment, name: addresses, "STARRING_JOB_SECRET": secret})
        self.assertEqual(json.loads(done.stdout or "{}").get("sum"), [1, 2], done.stderr)
        process.terminate()
        self.assertEqual(process.wait(30), 0)
        self.assert_no_process_is_left()

    def test_what_is_refused(self):
        for arguments, text in ((["--servers=0", "--", "true"], "--servers=0 is not from 1"), ([], "give a command"),
                                (["--listen=192.0.2.1", "--", "true"], "--listen=192.0.2.1: "),
                                (["--job_secret=/nowhere", "--", "true"], "cannot be read"),
                                (["--", "/no/such/program"], "/no/such/program cannot be started")):
            status, _, err = self.run_servers(*arguments)
            self.assertEqual(status, 2, err)
            self.assertIn(text, err)
            self.assertNotIn("Traceback", err)

    def test_flags_after_the_dashes_are_the_commands(self):
        flags = servers.parse(["--servers=3", "--", "torchrun", "--servers=5", "--", "x"])
        self.assertEqual((flags.servers, flags.command), (3, ["torchrun", "--servers=5", "--", "x"]))


if __name__ == "__main__":
    unittest.main()
