"""Tests the measure of a machine's speed."""

import subprocess
import unittest

from deploy import machine_pace


class MachinePaceTest(unittest.TestCase):
    def test_a_fast_machine_does_not_shrink_a_budget(self):
        self.assertEqual(machine_pace.pace(machine_pace.REFERENCE_SECONDS / 3), 1)

    def test_a_slow_machine_stretches_it_up_to_a_limit(self):
        self.assertAlmostEqual(machine_pace.pace(2.5 * machine_pace.REFERENCE_SECONDS), 2.5)
        self.assertEqual(machine_pace.pace(100 * machine_pace.REFERENCE_SECONDS), 4)

    def test_the_command_reads_the_source(self):
        self.assertGreater(machine_pace.compile_seconds(["g++", "-fsyntax-only", "-x", "c++", "-"]), 0)
        with self.assertRaises(subprocess.CalledProcessError):
            machine_pace.compile_seconds(["g++", "-fsyntax-only", "-x", "c", "-"])


if __name__ == "__main__":
    unittest.main()
