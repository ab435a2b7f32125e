"""Tests bench/gpu_wait_spike on a machine without a GPU: it says so, and refuses flags."""

import os
import subprocess
import unittest

PROGRAM = os.path.abspath("bench/gpu_wait_spike/gpu_wait_spike")


@unittest.skipUnless(os.path.exists(PROGRAM), "THIS BUILD HAS NO CUDA TOOLKIT: there is no gpu_wait_spike")
class SpikeTest(unittest.TestCase):

    def run_spike(self, *flags):
        # Without GPUs for CUDA, also where the machine has some.
        return subprocess.run([PROGRAM, *flags], capture_output=True, text=True, check=False, timeout=50,
                              env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})

    def test_a_machine_without_a_gpu_is_told_so(self):
        done = self.run_spike()
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"^no GPU: (libcuda\.so\.1|cuda\w+|the driver shows none)")
        self.assertEqual(done.stdout, "")

    def test_flags_are_refused_with_their_values(self):
        for flag, why in (("--only=ipc,pong", '--only has "pong": it can have attributes, ipc, ping_pong, yield'),
                          ("--rounds=2001", "--rounds is 2001: give 1 to 2000"),
                          ("--seconds_max=0", "--seconds_max is 0: give 1 or more")):
            done = self.run_spike(flag)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(why, done.stderr)


if __name__ == "__main__":
    unittest.main()
