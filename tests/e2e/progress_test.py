"""Tests the visible progress of a run: one live line on a terminal, plain lines in a file, with every launcher."""

import errno
import os
import pty
import select
import signal
import subprocess
import time
import unittest

from tests.e2e import jobs


def flags(train_count):
    return ["--dataset=synthetic", f"--synthetic_train_count={train_count}", "--synthetic_test_count=50", "--epochs=2"]


# An epoch lasts long enough to be watched: the live line changes ten times a second, and two fast workers take 90,000
# samples a second.
WATCHED = flags(20000)
SHORT = flags(1000)


class ProgressTest(jobs.JobTest):
    def on_a_terminal(self, command, stop_at=None):
        """Runs `command` on its own terminal, and asks it to stop at a text. Returns the terminal's text."""
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=slave, stderr=subprocess.PIPE, text=True,
                                   start_new_session=True)
        self.addCleanup(process.stderr.close)
        self.processes.append(process)
        os.close(slave)
        seen = b""
        end = time.monotonic() + jobs.JOB_SECONDS_MAX
        while time.monotonic() < end:
            if not select.select([master], [], [], 0.1)[0]:
                continue
            try:
                seen += os.read(master, 4096)
            except OSError as error:  # a terminal without any writer reports an error
                self.assertEqual(error.errno, errno.EIO)
                break
            if stop_at is not None and stop_at in seen:
                process.send_signal(signal.SIGTERM)
                stop_at = None
        self.assertEqual(process.wait(timeout=30), 0, seen.decode(errors="replace") + process.stderr.read())
        return seen.decode(errors="replace")

    def check_live(self, seen):
        for text in ("\repoch 1/2 [", "samples/s  ETA", "\x1b[K", "test accuracy"):
            self.assertIn(text, seen)

    def check_plain(self, seen):
        self.assertIn("epoch 2/2", seen)
        for text in ("ETA", "\x1b"):
            self.assertNotIn(text, seen)

    def test_one_process(self):
        self.check_live(self.on_a_terminal([jobs.WORKER, *WATCHED]))
        self.check_plain(self.run_to_end([jobs.WORKER, *SHORT]).output)

    def test_a_result_is_not_behind_the_live_line(self):
        command = jobs.with_flags([jobs.WORKER, *WATCHED], "--epochs=100000")
        self.assertRegex(self.on_a_terminal(command, stop_at=b"ETA"), r"(\n|\r\x1b\[K)stopped after")

    def test_star_and_ring_by_launch(self):
        for sync in ("star", "ring"):
            with self.subTest(sync=sync):
                self.check_live(self.on_a_terminal(self.job_command(sync, workers=2, flags=WATCHED)))
                self.check_plain(self.run_to_end(self.job_command(sync, workers=2, flags=SHORT)).output)

    def test_mpirun_by_hand_is_plain(self):
        # mpirun gives its ranks a terminal even if its own output goes to a file.
        command = ["mpirun", "--oversubscribe", "-np", "2", jobs.WORKER, *SHORT]
        self.check_plain(self.on_a_terminal(command))
        self.check_plain(self.run_to_end(command).output)


if __name__ == "__main__":
    unittest.main()
