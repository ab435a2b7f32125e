"""Tests deploy:launch with fake workers and servers: how they are started, and that nothing of them is left."""

import base64
import errno
import hashlib
import os
import pty
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest

from tests.e2e import at_once

LAUNCH = os.path.realpath("deploy/launch")
FAKE = os.path.realpath("tests/deploy/launch/fake_role")
DEADLINE_S = 40  # for all waits that a loaded machine may delay
HAS_MPIRUN = shutil.which("mpirun") is not None
CORES = sorted(os.sched_getaffinity(0))


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # ended before the file was opened, or before it was read
        return False


class LaunchTest(unittest.TestCase):
    def setUp(self):
        self.notes = tempfile.mkdtemp(prefix="n")
        self.temporary = tempfile.mkdtemp(prefix="t")
        self.addCleanup(shutil.rmtree, self.notes, ignore_errors=True)
        self.addCleanup(shutil.rmtree, self.temporary, ignore_errors=True)

    def command(self, flags, worker_flags=()):
        stamps = [] if any(flag.startswith("--log_time") for flag in flags) else ["--log_time=none"]
        return [LAUNCH, f"--worker_binary={FAKE}", f"--server_binary={FAKE}"] + stamps + list(flags) + [
            "--", f"--notes={self.notes}"] + list(worker_flags)

    def environment(self, **more):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("OMP_")}
        environment.pop("BUILD_WORKING_DIRECTORY", None)
        return {**environment, "FAKE_NOTES": self.notes, "TMPDIR": self.temporary, **more}

    def start(self, flags, worker_flags=(), nohup=False, soft_descriptors=None, **more):
        before = ["nohup"] if nohup else []
        if soft_descriptors is not None:
            before += ["sh", "-c", 'ulimit -Sn "$0" && exec "$@"', str(soft_descriptors)]
        return subprocess.Popen(before + self.command(flags, worker_flags), env=self.environment(**more), text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def finish(self, process):
        out, err = process.communicate(timeout=DEADLINE_S)
        self.assert_nothing_left()
        return process.returncode, out, err

    def launch(self, flags, worker_flags=(), **more):
        return self.finish(self.start(flags, worker_flags, **more))

    def note(self, name, what="start"):
        with open(f"{self.notes}/{name}.{what}", encoding="utf-8") as file:
            lines = file.read().splitlines()
        facts = dict(line.split(" ", 1) for line in lines if not line.startswith("--"))
        return facts, [line for line in lines if line.startswith("--")]

    def await_started(self, *names):
        self.await_notes(*(f"{name}.start" for name in names))

    def await_notes(self, *files):
        deadline = time.monotonic() + DEADLINE_S
        while not all(os.path.exists(f"{self.notes}/{file}") for file in files):
            self.assertLess(time.monotonic(), deadline, f"{files} were never written")
            time.sleep(0.01)  # a file has no event to wait for

    def await_error_line(self, process, text):
        """Reads what the launcher prints on standard error up to a line with `text`. Returns that line, or the last."""
        guard = threading.Timer(DEADLINE_S, process.kill)
        guard.start()
        line = ""
        for line in process.stderr:
            if text in line:
                break
        guard.cancel()
        return line

    def clear_notes(self):
        for name in os.listdir(self.notes):
            os.unlink(f"{self.notes}/{name}")

    def assert_nothing_left(self, wait_s=0):
        """Fails if a child of the job still runs, or a file of the launcher is left."""
        deadline = time.monotonic() + wait_s
        pids = {name: int(self.note(name)[0]["pid"]) for name in
                {file.split(".")[0] for file in os.listdir(self.notes) if file.endswith(".start")}}
        while any(alive(pid) for pid in pids.values()) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual([name for name, pid in pids.items() if alive(pid)], [])
        if wait_s == 0:
            self.assertEqual([name for name in os.listdir(self.temporary) if name.startswith("starring")], [])


class StarTest(LaunchTest):
    def test_starts_servers_then_workers(self):
        code, _, err = self.launch(["--sync=star", "--workers=2", "--servers=2"], ["--model=x y"])
        self.assertEqual(code, 0, err)
        for shard in (0, 1):
            flags = self.note(f"s{shard}")[1]
            self.assertIn("--listen=127.0.0.1:0", flags)
            self.assertIn("--shard_count=2", flags)
        for rank in (0, 1):
            _, flags = self.note(f"w{rank}")
            for expected in ("--sync=star", "--servers=127.0.0.1:7000,127.0.0.1:7001", f"--rank={rank}",
                             "--world_size=2", "--model=x y"):
                self.assertIn(expected, flags)

    def test_workers_dial_proxies_and_the_servers_are_named(self):
        code, _, err = self.launch(["--servers=2", "--through_proxy=127.0.0.1:81,127.0.0.1:82"])
        self.assertEqual(code, 0, err)
        self.assertIn("--servers=127.0.0.1:81,127.0.0.1:82", self.note("w0")[1])
        for shard in (0, 1):
            self.assertIn(f"launch: s{shard} listens at 127.0.0.1:700{shard}, the workers dial 127.0.0.1:8{shard + 1}",
                          err)

    def test_the_secret_is_in_a_file_and_nowhere_else(self):
        process = self.start(["--sync=star", "--workers=2", "--servers=2", "--tls"], ["--wait"])
        names = ("w0", "w1", "s0", "s1")
        self.await_started(*names)
        paths, runs = set(), set()
        for name in names:
            facts, flags = self.note(name)
            self.assertIn("--tls", flags)
            paths |= {flag.partition("=")[2] for flag in flags if flag.startswith("--job_secret=")}
            runs |= {flag for flag in flags if flag.startswith("--run_id=")}
        self.assertEqual((len(paths), len(runs)), (1, 1), (paths, runs))
        self.assertRegex(runs.pop(), r"^--run_id=launch-[0-9a-f]{8}-0$")
        secret = paths.pop()
        self.assertEqual(stat.S_IMODE(os.stat(secret).st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(os.stat(os.path.dirname(secret)).st_mode), 0o700)
        with open(secret, "rb") as file:
            content = file.read()
        token = hashlib.sha256(content)
        hidden = [token.digest(), token.hexdigest().encode(), base64.b64encode(token.digest())]
        hidden += [line for line in content.splitlines() if not line.startswith(b"-----")]
        pids = [process.pid] + [int(self.note(name)[0]["pid"]) for name in names]
        for pid in pids:
            for place in ("cmdline", "environ"):
                with open(f"/proc/{pid}/{place}", "rb") as file:
                    seen = file.read()
                for word in hidden:
                    self.assertNotIn(word, seen, f"{place} of {pid}")
        process.terminate()
        self.assertEqual(self.finish(process)[0], 0)
        self.assertFalse(os.path.exists(secret))

    def test_a_copy_of_a_secret(self):
        given, copy = os.path.join(self.notes, "given"), os.path.join(self.notes, "copy")
        subprocess.run([LAUNCH, "--make_secret=" + given], check=True, stdout=subprocess.DEVNULL)
        os.chmod(given, 0o440)
        for command, code, sentence in (
                (["--secret_from=" + given], 2, "it needs --make_secret=file"),
                (["--secret_from=" + given, "--make_secret=" + copy], 0, copy),
                (["--secret_from=" + given, "--make_secret=" + copy], 0, copy),
                (["--secret_from=/nowhere/secret", "--make_secret=" + copy], 2, "/nowhere/secret")):
            done = subprocess.run([LAUNCH, *command], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(sentence, done.stdout + done.stderr)
        self.assertEqual(stat.S_IMODE(os.stat(copy).st_mode), 0o600)
        with open(given, "rb") as one, open(copy, "rb") as other:
            self.assertEqual(one.read(), other.read())

    def test_a_secret_by_hand(self):
        secret = os.path.join(self.notes, "secret")
        made = subprocess.run([LAUNCH, "--make_secret=" + secret], capture_output=True, text=True, check=False)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertIn(secret, made.stdout)
        self.assertEqual(stat.S_IMODE(os.stat(secret).st_mode), 0o600)
        again = subprocess.run([LAUNCH, "--make_secret=" + secret], capture_output=True, text=True, check=False)
        self.assertEqual(again.returncode, 2)
        self.assertIn("never overwritten", again.stderr)
        code, _, err = self.launch(["--workers=1", "--job_secret=" + secret])
        self.assertEqual(code, 0, err)
        for name in ("w0", "s0"):
            self.assertIn("--job_secret=" + secret, self.note(name)[1])
        os.chmod(secret, 0o644)
        code, _, err = self.launch(["--workers=1", "--job_secret=" + secret])
        self.assertEqual(code, 2)
        self.assertIn("mode 0644", err)

    def test_what_protects_a_star_is_refused_elsewhere(self):
        for flags, worker_flags, expected in (
                (["--sync=local", "--tls"], [], "--sync=local has none"),
                (["--workers=1"], ["--tls"], "give it before --"),
                (["--workers=1"], ["--run_id=x"], "the launcher sets it"),
                (["--workers=1", "--tls_ca=/nowhere"], [], "--tls_ca"),
                (["--workers=1", "--job_secret=/nowhere/secret"], [], "--make_secret=/nowhere/secret")):
            code, _, err = self.launch(flags, worker_flags)
            self.assertEqual(code, 2, err)
            self.assertIn(expected, err)

    def test_pins_cores_and_says_so(self):
        code, _, err = self.launch(["--workers=2", "--servers=2", "--cores_per_worker=1"], SLURM_PROCID="3",
                                   OMP_NUM_THREADS="7")
        self.assertEqual(code, 0, err)
        expected = [str(CORES[rank % len(CORES)]) for rank in (0, 1)]
        for rank in (0, 1):
            facts, _ = self.note(f"w{rank}")
            self.assertEqual(facts["cores"], expected[rank])
            self.assertEqual(facts["OMP_WAIT_POLICY"], "PASSIVE")
            self.assertEqual(facts["OMP_NUM_THREADS"], "7")
            self.assertEqual(facts["SLURM_PROCID"], "")
            self.assertEqual(facts["STARRING_CORES_PER_WORKER"], ";".join(expected))
        left = [core for core in CORES if str(core) not in expected] or CORES
        self.assertEqual(self.note("s0")[0]["cores"], ",".join(map(str, left)))
        self.assertRegex(err, rf"launch: star, cores: w0={expected[0]} w1={expected[1]} s0=\S+ s1=\S+\n")

    def test_prefixes_every_line(self):
        code, out, err = self.launch(["--workers=3"], [r"--print=one\ntwo", r"--error=oops\n"])
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(out.splitlines()), ["one", "s0 | s0 saved after signal 15", "two", "w1 | one",
                                                    "w1 | two", "w2 | one", "w2 | two"])
        self.assertEqual(sorted(line for line in err.splitlines() if "oops" in line),
                         ["w0 | oops", "w1 | oops", "w2 | oops"])

    def test_stamps_every_line_on_standard_error_once(self):
        code, out, err = self.launch(["--workers=2", "--log_time=auto"], ["--print=one", r"--error=oops\n"])
        self.assertEqual(code, 0, err)
        self.assertIn("one\n", out)
        self.assertNotRegex(out, r"\dZ ")
        for line in err.splitlines():
            self.assertRegex(line, r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (launch:|[ws]\d \|) (?!20)")

    def test_a_failing_worker_ends_the_job(self):
        for code in (1, 7, -9):
            got, _, err = self.launch(["--workers=3", "--servers=2"],
                                      ["--wait", f"--exit=w1:{code}", "--everybody=w0,w1,w2"])
            self.assertEqual(got, 137 if code == -9 else code)
            self.assertIn("launch: w1 was ended by signal 9" if code == -9 else f"w1 failed with exit code {code}", err)
            self.clear_notes()

    def test_a_failing_server_ends_the_job(self):
        got, _, err = self.launch(["--workers=2", "--servers=2"], ["--wait"], FAKE_SERVER_EXIT="s1:5",
                                  FAKE_EVERYBODY="w0,w1")
        self.assertEqual(got, 5, err)

    def test_the_cause_counts_not_who_missed_it(self):
        # w0 reports a missing peer (3) and ends before s0, which is the cause.
        got, _, err = self.launch(["--workers=2"], ["--exit=w0:3", "--everybody=w1", "--wait"], FAKE_SERVER_EXIT="s0:6",
                                  FAKE_EVERYBODY="w0", FAKE_SERVER_AFTER="w0")
        self.assertEqual(got, 6, err)

    def test_kills_whoever_ignores_sigterm(self):
        got, _, err = self.launch(["--workers=2"], ["--wait", "--exit=w1:5", "--everybody=w0", "--stubborn=w0"])
        self.assertEqual(got, 5, err)

    def test_a_server_that_ends_before_listening(self):
        got, _, err = self.launch(["--workers=1", "--servers=2"], FAKE_SERVER_EXIT="s0:2", FAKE_SERVER_SILENT="1")
        self.assertEqual(got, 2, err)
        self.assertFalse(os.path.exists(f"{self.notes}/w0.start"))

    def test_a_server_that_never_listens(self):
        got, _, err = self.launch(["--workers=1", "--start_deadline_s=1"], FAKE_SERVER_SILENT="1")
        self.assertEqual(got, 3, err)
        self.assertIn("s0 is not listening after 1 s", err)

    def test_the_first_signal_asks_and_waits(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            process = self.start(["--workers=2", "--servers=1"], ["--wait", "--save_ms=200"])
            self.await_started("w0", "w1")
            process.send_signal(number)
            code, out, err = self.finish(process)
            self.assertEqual(code, 0, err)
            passed_on = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
            self.assertIn(f"w0 saved after signal {int(passed_on)}", out)
            self.assertIn(f"w1 | w1 saved after signal {int(passed_on)}", out)
            self.clear_notes()

    def test_under_nohup_a_hang_up_stops_neither_launcher_nor_children(self):
        for flags in (["--workers=2"], ["--sync=ring", "--transport=tcp", "--workers=2"],
                      *([["--sync=ring", "--workers=2"]] if HAS_MPIRUN else [])):
            process = self.start(flags, ["--wait"], nohup=True)
            self.await_started("w0", "w1")
            for pid in (process.pid, *(int(self.note(name)[0]["pid"]) for name in ("w0", "w1"))):
                os.kill(pid, signal.SIGHUP)
                with open(f"/proc/{pid}/status", encoding="utf-8") as file:
                    [ignored] = [line.split()[1] for line in file if line.startswith("SigIgn:")]
                self.assertTrue(int(ignored, 16) & 1 << (signal.SIGHUP - 1), flags)
            process.terminate()
            code, _, err = self.finish(process)
            self.assertEqual(code, 0, err)
            self.assertIn("launch: Terminated: asking", err)
            self.assertNotIn("Hangup", err)
            self.clear_notes()

    def test_the_second_signal_kills(self):
        process = self.start(["--workers=2"], ["--wait", "--stubborn=w0"])
        self.await_started("w0", "w1")
        process.send_signal(signal.SIGINT)
        self.await_notes("w1.saved")
        process.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(process)[0], 130)

    def test_a_stop_has_a_deadline(self):
        process = self.start(["--workers=1", "--stop_deadline_s=1"], ["--wait", "--stubborn=w0"])
        self.await_started("w0")
        process.send_signal(signal.SIGTERM)
        code, _, err = self.finish(process)
        self.assertEqual(code, 143, err)
        self.assertIn("still run 1 s later", err)

    def test_children_are_in_groups_of_their_own(self):
        process = self.start(["--workers=1"], ["--wait"])
        self.await_started("w0", "s0")
        for name in ("w0", "s0"):
            facts, _ = self.note(name)
            self.assertEqual(facts["group"], facts["pid"])
        process.terminate()
        self.assertEqual(self.finish(process)[0], 0)

    def test_nothing_survives_a_killed_launcher(self):
        process = self.start(["--workers=2", "--servers=2"], ["--wait", "--stubborn=w0"])
        self.await_started("w0", "w1", "s0", "s1")
        process.kill()
        process.communicate(timeout=DEADLINE_S)
        self.assert_nothing_left(wait_s=DEADLINE_S)

    def test_restarts_with_resume(self):
        code, _, err = self.launch(["--workers=2", "--restarts=2"],
                                   ["--exit=w1:-9", "--resumed_exit=0", "--checkpoint_dir=x", "--resume=false"])
        self.assertEqual(code, 0, err)
        self.assertIn("restart 1 of 2", err)
        self.assertNotIn("restart 2 of 2", err)
        flags = self.note("w1")[1]
        self.assertIn("--resume=true", flags)
        self.assertNotIn("--resume=false", flags)
        # A worker of the first attempt must not be able to join the second.
        self.assertRegex(" ".join(flags), r"--run_id=launch-[0-9a-f]{8}-1")

    def test_gives_up_after_the_last_restart(self):
        code, _, err = self.launch(["--workers=1", "--restarts=2"], ["--exit=w0:9", "--checkpoint_dir=x"])
        self.assertEqual(code, 9, err)
        self.assertIn("restart 2 of 2", err)
        self.assertIn("giving up after 2 restarts", err)

    def test_wrong_flags_of_a_worker_are_not_tried_again(self):
        code, _, err = self.launch(["--workers=1", "--restarts=2"], ["--exit=w0:2", "--checkpoint_dir=x"])
        self.assertEqual(code, 2, err)
        self.assertNotIn("restart 1", err)

    def test_a_result_that_was_not_written_is_passed_on_and_not_tried_again(self):
        code, _, err = self.launch(["--sync=ring", "--transport=tcp", "--workers=2", "--restarts=2"],
                                   ["--exit=w1:4", "--checkpoint_dir=x"])
        self.assertEqual(code, 4, err)
        self.assertNotIn("restart 1", err)
        self.assertEqual(err.splitlines()[-2:], [
            "launch: w1 failed with exit code 4: it has trained, and could not write the result",
            "launch: exit code 4 means that the training is over: no restart would bring the result back"])

    def test_live_output_on_a_terminal(self):
        master, slave = pty.openpty()
        process = subprocess.Popen(self.command(["--workers=2"], [r"--print=\r10 %\r20 %", "--wait"]),
                                   env=self.environment(), stdout=slave, stderr=subprocess.PIPE, text=True)
        os.close(slave)
        self.await_started("w0", "w1")
        seen = b""

        def read_until(text):
            nonlocal seen
            deadline = time.monotonic() + DEADLINE_S
            while text not in seen and time.monotonic() < deadline:
                if select.select([master], [], [], 0.1)[0]:
                    try:
                        seen += os.read(master, 4096)
                    except OSError as error:
                        self.assertEqual(error.errno, errno.EIO)
                        break
            self.assertIn(text, seen)

        # The live line appears before it ends, without a prefix.
        read_until(b"\r10 %\r20 %")
        process.terminate()
        read_until(b"w0 saved")
        read_until(b"w1 | ")
        self.assertEqual(process.wait(DEADLINE_S), 0)
        process.stderr.close()
        os.close(master)

    def test_a_stopped_terminal_does_not_hold_the_job_up(self):
        master, slave = pty.openpty()
        termios.tcflow(slave, termios.TCOOFF)  # Ctrl-S
        text = "x" * 5000 + r"\n"
        process = subprocess.Popen(self.command(["--workers=2"], ["--print=" + 20 * text]), env=self.environment(),
                                   stdout=slave, stderr=slave)
        self.assertEqual(process.wait(DEADLINE_S), 0)
        self.assert_nothing_left()
        os.close(slave)
        os.close(master)

    def test_a_stop_between_two_attempts_ends_the_launcher(self):
        process = self.start(["--workers=1", "--restarts=100"], ["--exit=w0:9", "--checkpoint_dir=x"])
        seen = self.await_error_line(process, "restart 5 of 100")  # printed right before a pause of 2 s
        process.terminate()
        _, _, err = self.finish(process)
        self.assertIn("restart 5 of 100", seen)
        self.assertNotIn("restart 7 of 100", err)


class ElasticTest(LaunchTest):
    def test_shard_0_decides_that_the_run_has_failed(self):
        # w1 hears of the end first.
        code, _, err = self.launch(["--elastic", "--workers=2", "--servers=2", "--restart_processes=3"],
                                   ["--wait", "--exit=w1:3", "--everybody=w0,s1"], FAKE_SERVER_EXIT="s0:1",
                                   FAKE_EVERYBODY="w0,w1,s1", FAKE_SERVER_AFTER="w1")
        self.assertEqual(code, 1, err)
        self.assertIn("launch: s0 failed with exit code 1: ending the others", err)
        self.assertNotIn("starting it again", err)

    def test_shard_0_is_started_again_when_it_was_killed(self):
        code, _, err = self.launch(["--elastic", "--restart_processes=2"], ["--wait"], FAKE_SERVER_EXIT="s0:-9",
                                   FAKE_EVERYBODY="w0")
        self.assertEqual(code, 137, err)
        self.assertIn("starting it again, 2 of 2", err)

    def test_the_job_starts_again_when_its_processes_may_not(self):
        code, _, err = self.launch(["--elastic", "--restarts=1", "--restart_processes=1"],
                                   ["--wait", "--checkpoint_dir=x"], FAKE_SERVER_EXIT="s0:-9", FAKE_EVERYBODY="w0")
        self.assertEqual(code, 137, err)
        said = re.findall(r"launch: (?:s0 .*: )?(starting it again.*|ending the others|restart .*|giving up .*)", err)
        attempt = ["starting it again, 1 of 1", "ending the others"]
        self.assertEqual(said, [*attempt, "restart 1 of 1, from the last complete checkpoint", *attempt,
                                "giving up after 1 restart"], err)

    def test_who_misses_the_end_of_the_run_is_ended(self):
        code, out, err = self.launch(["--elastic", "--workers=2", "--servers=2", "--restart_processes=3"],
                                     ["--wait", "--exit=w1:3", "--everybody=w0,s1"], FAKE_SERVER_EXIT="s0:0",
                                     FAKE_EVERYBODY="w0,w1,s1", FAKE_SERVER_AFTER="w1")
        self.assertEqual(code, 0, err)
        self.assertIn("launch: the run has ended, and not all workers have: ending them", err)
        self.assertIn("w0 saved after signal 15", out)
        self.assertIn("s1 | s1 saved after signal 15", out)
        self.assertNotIn("starting it again", err)

    def test_servers_do_not_wait_for_a_first_worker_that_has_failed(self):
        code, _, err = self.launch(["--elastic"], ["--exit=w0:1"])
        self.assertEqual(code, 1, err)
        self.assertIn("launch: w0 failed with exit code 1: ending the others", err)

    def test_a_result_that_was_not_written_is_the_runs(self):
        code, _, err = self.launch(["--elastic", "--workers=2", "--restart_processes=3"],
                                   ["--exit=w0:4", "--everybody=w1"], FAKE_SERVER_EXIT="s0:0", FAKE_EVERYBODY="w0",
                                   FAKE_SERVER_AFTER="w0")
        self.assertEqual(code, 4, err)
        self.assertIn("launch: w0 failed with exit code 4", err)
        self.assertNotIn("starting it again", err)

    def test_who_could_not_write_the_result_is_not_started_again(self):
        process = self.start(["--elastic", "--restart_processes=3"], ["--exit=w0:4"])
        self.await_started("w0", "s0")
        time.sleep(3.5)  # a worker that fails alone is started again after 3 s
        process.terminate()
        code, _, err = self.finish(process)
        self.assertEqual(code, 4, err)
        self.assertNotIn("starting it again", err)

    def test_who_joins_fails_once(self):
        secret = os.path.join(self.notes, "secret")
        subprocess.run([LAUNCH, "--make_secret=" + secret], stdout=subprocess.DEVNULL, check=True)
        code, _, err = self.launch(["--join=127.0.0.1:9", "--job_secret=" + secret, "--restart_processes=3"],
                                   ["--exit=w0:3"])
        self.assertEqual(code, 3, err)
        self.assertNotIn("starting it again", err)

    def test_a_run_that_has_failed_goes_on(self):
        failing = self.start(["--elastic"], ["--wait"], FAKE_SERVER_LOG="launch-12-0", FAKE_SERVER_EXIT="s0:1",
                             FAKE_EVERYBODY="w0")
        _, err = failing.communicate(timeout=DEADLINE_S)
        self.assertEqual(failing.returncode, 1, err)
        state = re.search(r"start it again with (--state_dir=\S+)", err)
        self.assertTrue(state, err)
        self.clear_notes()
        again = self.start(["--elastic", state[1]], FAKE_SERVER_LOG="launch-12-0", FAKE_SERVER_ENDS="1",
                           FAKE_SERVER_EXIT="s0:0", FAKE_EVERYBODY="w0")
        _, err = again.communicate(timeout=DEADLINE_S)
        self.assertEqual(again.returncode, 0, err)
        self.assertIn("launch: going on with the run of " + state[1], err)
        self.assertNotIn("start it again", err)
        for name in ("s0", "w0"):
            self.assertIn("--run_id=launch-12-0", self.note(name)[1])


@unittest.skipUnless(HAS_MPIRUN, "no mpirun on PATH")
class RingTest(LaunchTest):
    def test_starts_pinned_ranks_with_prefixes(self):
        code, out, err = self.launch(["--sync=ring", "--workers=3"], [r"--print=one\ntwo", r"--error=oops\n"])
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(out.splitlines()),
                         ["one", "two", "w1 | one", "w1 | two", "w2 | one", "w2 | two"])
        for rank in range(3):
            self.assertIn(f"w{rank} | oops\n", err)
            facts, flags = self.note(f"w{rank}")
            self.assertEqual(facts["OMPI_COMM_WORLD_SIZE"], "3")
            self.assertEqual(facts["cores"], facts["STARRING_CORES_PER_WORKER"].split(";")[rank])
            self.assertEqual(flags[0], "--sync=ring")
            self.assertFalse([flag for flag in flags if flag.startswith("--rank")])

    def test_a_star_over_mpi_has_ranks_and_no_servers(self):
        code, _, err = self.launch(["--sync=star", "--transport=mpi", "--workers=2"])
        self.assertEqual(code, 0, err)
        self.assertIn("launch: co-located star, cores: w0=", err)
        for rank in (0, 1):
            facts, flags = self.note(f"w{rank}")
            self.assertEqual(facts["OMPI_COMM_WORLD_SIZE"], "2")
            self.assertEqual(flags[:2], ["--sync=star", "--transport=mpi"])
            for flag in flags:
                self.assertNotRegex(flag, "^--(servers|rank|rendezvous|job_secret)")
        self.assertFalse(os.path.exists(f"{self.notes}/s0.start"))

    def test_a_failing_rank_ends_the_job(self):
        for code in (7, -9):
            got, _, err = self.launch(["--sync=mpi", "--workers=2"], ["--wait", f"--exit=w1:{code}", "--everybody=w0"])
            self.assertEqual(got, 137 if code == -9 else code, err)
            self.clear_notes()

    def test_the_first_signal_asks_and_waits(self):
        process = self.start(["--sync=ring", "--workers=2"], ["--wait", "--save_ms=3000"])
        self.await_started("w0", "w1")
        process.send_signal(signal.SIGINT)
        code, out, err = self.finish(process)
        self.assertEqual(code, 0, err)
        self.assertIn(f"w0 saved after signal {int(signal.SIGUSR1)}", out)
        self.assertIn(f"w1 | w1 saved after signal {int(signal.SIGUSR1)}", out)

    def test_the_second_signal_kills(self):
        process = self.start(["--sync=ring", "--workers=2"], ["--wait", "--stubborn=w0"])
        self.await_started("w0", "w1")
        process.send_signal(signal.SIGTERM)
        self.await_notes("w1.saved")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(process)[0], 143)  # before --stop_deadline_s, which is 60
        self.assertEqual(os.listdir(self.temporary), [])  # not even Open MPI's session folder

    def test_nothing_survives_a_killed_launcher(self):
        process = self.start(["--sync=ring", "--workers=2"], ["--wait", "--stubborn=w0"])
        self.await_started("w0", "w1")
        process.kill()
        process.communicate(timeout=DEADLINE_S)
        self.assert_nothing_left(wait_s=DEADLINE_S)

    def test_a_killed_mpirun_takes_its_ranks_along(self):
        process = self.start(["--sync=ring", "--workers=2"], ["--wait", "--stubborn=w0"])
        self.await_started("w0", "w1")
        os.kill(int(self.note("w0")[0]["parent"]), signal.SIGKILL)
        _, err = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 137, err)
        self.assert_nothing_left(wait_s=DEADLINE_S)

    def mpirun_that_hangs(self):
        """The PATH to an mpirun that starts one rank of two, and waits for ever."""
        with open(f"{self.temporary}/mpirun", "w", encoding="utf-8") as file:
            file.write("#!/bin/bash\nshift 5\nulimit -Sn\n"
                       "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 \"$@\" &\nsleep 1000 &\nwait\n")
        os.chmod(f"{self.temporary}/mpirun", 0o755)
        return self.temporary + ":" + os.environ["PATH"]

    def test_an_mpirun_that_does_not_start_all_ranks_is_ended(self):
        process = self.start(["--sync=ring", "--workers=2"], ["--wait", "--join_deadline_s=5"],
                             PATH=self.mpirun_that_hangs(), soft_descriptors=64)
        out, err = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 3, err)
        self.assert_nothing_left(wait_s=DEADLINE_S)  # the rank ends after mpirun
        self.assertIn("launch: mpirun has started 1 of 2 ranks within 5 s (--join_deadline_s): ending it; it may need "
                      "80 descriptors, and ulimit -n allows 80", err)
        self.assertIn("mpirun | 80\n", out)

    def test_a_stop_does_not_wait_for_an_mpirun_that_hangs(self):
        process = self.start(["--sync=ring", "--workers=2"], ["--wait"], PATH=self.mpirun_that_hangs())
        self.await_started("w0")
        process.terminate()
        _, err = process.communicate(timeout=DEADLINE_S)  # an mpirun that hangs runs for 1000 s
        self.assertEqual(process.returncode, 143, err)
        self.assert_nothing_left(wait_s=DEADLINE_S)  # the rank ends after mpirun
        self.assertIn("launch: Terminated before all ranks have started", err)

    def test_an_mpirun_that_outlives_its_ranks_is_ended(self):
        # The real mpirun does so at times, if a rank dies while it connects.
        with open(f"{self.temporary}/mpirun", "w", encoding="utf-8") as file:
            file.write("#!/bin/bash\nshift 5\nfor rank in 0 1; do OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=2 "
                       "\"$@\" & done\nwait\nsleep 1000\n")
        os.chmod(f"{self.temporary}/mpirun", 0o755)
        code, _, err = self.launch(["--sync=ring", "--workers=2", "--restarts=1"], ["--checkpoint_dir=x"],
                                   PATH=self.temporary + ":" + os.environ["PATH"])
        self.assertEqual(code, 137, err)
        self.assertIn("2 of 2 ranks have ended, and mpirun has not noticed: ending it", err)
        self.assertIn("launch: restart 1 of 1", err)

    def test_restarts_with_resume(self):
        code, _, err = self.launch(["--sync=ring", "--workers=2", "--restarts=1"],
                                   ["--exit=w1:3", "--resumed_exit=0", "--checkpoint_dir=x"])
        self.assertEqual(code, 0, err)
        self.assertIn("--resume=true", self.note("w0")[1])


class TcpTest(LaunchTest):
    def test_workers_meet_at_rank_0_with_a_secret(self):
        for sync in ("star", "ring"):
            code, _, err = self.launch([f"--sync={sync}", "--transport=tcp", "--workers=2"])
            self.assertEqual(code, 0, err)
            meetings = set()
            for rank in (0, 1):
                _, flags = self.note(f"w{rank}")
                for expected in (f"--sync={sync}", "--transport=tcp", f"--rank={rank}", "--world_size=2"):
                    self.assertIn(expected, flags)
                meetings |= {flag for flag in flags if flag.startswith(("--rendezvous=", "--job_secret=", "--run_id="))}
            self.assertEqual(len(meetings), 3, meetings)
            self.assertRegex(" ".join(sorted(meetings)), r"--rendezvous=127\.0\.0\.1:[1-9][0-9]*")
            self.assertFalse(os.path.exists(f"{self.notes}/s0.start"))

    def test_no_other_process_gets_rank_0s_port(self):
        process = self.start(["--sync=ring", "--transport=tcp", "--workers=2"], ["--wait"])
        self.await_started("w0", "w1")
        [address] = [flag for flag in self.note("w1")[1] if flag.startswith("--rendezvous=")]
        port = int(address.rpartition(":")[2])
        # Nobody listens there yet, and even who allows reuse is kept out.
        for reuse in (0, 1):
            with socket.socket() as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
                self.assertRaises(OSError, other.bind, ("127.0.0.1", port))
        inherited = {name: [flag.partition("=")[2] for flag in self.note(name)[1] if flag.startswith("--rendezvous_fd")]
                     for name in ("w0", "w1")}
        self.assertEqual(inherited["w1"], [])
        [fd] = inherited["w0"]
        self.assertRegex(os.readlink("/proc/%s/fd/%s" % (self.note("w0")[0]["pid"], fd)), "^socket:")
        self.assertFalse(os.path.exists("/proc/%s/fd/%s" % (self.note("w1")[0]["pid"], fd)))
        process.terminate()
        self.finish(process)

    def test_a_range_of_ports_is_for_rank_0_and_passed_on(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            code, _, err = self.launch(["--sync=ring", "--transport=tcp", f"--port_range={port}-{port}"])
            self.assertEqual(code, 2, err)
            self.assertIn(f"no port from {port} to {port} is free", err)
        for _ in range(2):
            code, _, err = self.launch(["--sync=ring", "--transport=tcp", "--workers=2", f"--port_range={port}-{port}"])
            self.assertEqual(code, 0, err)
            for rank in (0, 1):
                flags = self.note(f"w{rank}")[1]
                self.assertIn(f"--rendezvous=127.0.0.1:{port}", flags)
                self.assertIn(f"--port_range={port}-{port}", flags)

    def test_restarts_with_resume(self):
        code, _, err = self.launch(["--sync=star", "--transport=tcp", "--workers=2", "--restarts=1"],
                                   ["--exit=w1:3", "--resumed_exit=0", "--checkpoint_dir=x"])
        self.assertEqual(code, 0, err)
        self.assertIn("launch: restart 1 of 1", err)
        for rank in (0, 1):
            flags = self.note(f"w{rank}")[1]
            self.assertIn("--resume=true", flags)
            self.assertRegex(" ".join(flags), r"--run_id=\S+-1( |$)")


class RefusalTest(LaunchTest):
    def test_wrong_flags(self):
        for flags, worker_flags, message in (
                (["--sync=tree"], [], r"--sync cannot be \"tree\": it must be one of auto, local, star, ring, mpi"),
                (["--workers=0"], [], "--workers cannot be \"0\": it must be a whole number from 1"),
                (["--sync=ring", "--servers=2"], [], "--servers cannot be \"2\": --sync=ring has no servers"),
                (["--servers=2", "--through_proxy=h:1"], [], "it has 1 addresses for 2 servers"),
                (["--sync=ring", "--through_proxy=h:1"], [], "--sync=ring has no servers"),
                (["--sync=local", "--workers=2"], [], "--sync=local is one worker"),
                (["--restarts=1"], [], "give the workers a --checkpoint_dir"),
                (["--worker=2"], [], "unknown flag --worker, did you mean --workers"),
                ([], ["--rank=1"], "--rank is after --"),
                (["--sync=local"], ["--servers=a:1"], "--servers is after --")):
            code, _, err = self.launch(flags, worker_flags)
            self.assertEqual(code, 2, err)
            self.assertRegex(err, "launch: error: .*" + message)

    def test_a_binary_that_is_not_there(self):
        done = subprocess.run([LAUNCH, "--sync=local", "--worker_binary=/nowhere/worker"], capture_output=True,
                              text=True, timeout=DEADLINE_S, env=self.environment())
        self.assertEqual(done.returncode, 2)
        self.assertIn("--worker_binary names /nowhere/worker", done.stderr)

    def test_local_needs_nothing_else(self):
        code, out, err = self.launch(["--sync=local"], [r"--print=hello\n"])
        self.assertEqual((code, out), (0, "hello\n"), err)
        self.assertIn("--sync=local", self.note("w0")[1])


if __name__ == "__main__":
    if not HAS_MPIRUN:
        print("SKIPPED: no mpirun on PATH, so nothing of --sync=ring was tested", file=sys.stderr)
    at_once.main(8)
