"""Attacks a job in every way for a few seconds: checks digest, memory, and that nothing is answered."""

import os
import subprocess
import unittest

STRANGERS = os.path.abspath("bench/strangers/strangers")


class StrangersTest(unittest.TestCase):
    def test_every_attack(self):
        done = subprocess.run([STRANGERS, "--quick"], capture_output=True, text=True, check=False, timeout=800)
        print(done.stdout)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("nothing was lost", done.stdout)


if __name__ == "__main__":
    unittest.main()
