"""Tests bench/records/mnist.py with a data set that needs no file."""

import argparse
import contextlib
import io
import os
import subprocess
import sys
import unittest
from unittest import mock

from bench.records import mnist

SCRIPT = os.path.abspath("bench/records/mnist.py")
TINY = "--train_flags=--dataset=synthetic --synthetic_train_count=64 --synthetic_test_count=20 --epochs=2 "\
       "--warmup_steps=0"


def run(seed, accuracy, steps_s):
    return mnist.Run(seed=seed, accuracy=accuracy, steps_s=steps_s, whole_s=2 * steps_s, steps=2814, p50_ms=0.17,
                     device="cuda:0")


class MnistTest(unittest.TestCase):

    def run_script(self, *flags):
        return subprocess.run([sys.executable, SCRIPT, "--device=cpu", TINY, *flags], capture_output=True, text=True,
                              check=False, timeout=50)

    def test_seeds_are_a_range(self):
        self.assertEqual(mnist.seeds("1-3"), [1, 2, 3])
        self.assertEqual(mnist.seeds("7"), [7])
        for text in ("", "a", "3-1"):
            with self.assertRaises(argparse.ArgumentTypeError):
                mnist.seeds(text)

    def test_the_conclusion_counts_what_reaches_the_target(self):
        lines = mnist.conclusion([run(1, 0.9916, 0.5), run(2, 0.9899, 0.7), run(3, 0.9911, 0.6)], 0.99)
        self.assertEqual(lines, [
            "3 seeds, 2814 steps each, on cuda:0",
            "accuracy: mean 99.09 %, least 98.99 %, most 99.16 %, standard deviation 0.09; 2 of 3 reach 99.00 %",
            "seconds of steps: median 0.600, most 0.700; of the whole process: median 1.200"])

    def test_flags_replace_those_of_the_recipe(self):
        flags = mnist.parse_flags(["--train_flags=--epochs=4 --math=tf32", "--worker=w", "--data_dir=/d"])
        command = mnist.command(flags, 7, "r.json")
        self.assertEqual([word for word in command if word.startswith("--epochs")], ["--epochs=4"])
        for word in ("--math=tf32", "--model=lenet5", "--seed=7", "--data_dir=/d"):
            self.assertIn(word, command)

    def test_a_run_for_each_seed_and_the_target_decides(self):
        done = self.run_script("--seeds=1-2", "--target=0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^   1 +\d+\.\d\d %  +\d+\.\d{3} +\d+\.\d{3} ")
        self.assertRegex(done.stdout, r"(?m)^2 seeds, 2 steps each, on cpu")
        self.assertEqual(self.run_script("--seeds=1", "--target=1.01").returncode, 1)

    def test_ctrl_c_leaves_the_conclusion_of_the_seeds_so_far(self):
        output = io.StringIO()
        with mock.patch.object(mnist, "train", side_effect=[run(1, 0.99, 0.5), KeyboardInterrupt]), \
                mock.patch.object(sys, "argv", ["mnist.py", "--worker=" + SCRIPT]), contextlib.redirect_stdout(output):
            self.assertEqual(mnist.main(), 1)
        self.assertIn("1 seeds, 2814 steps each", output.getvalue())

    def test_a_run_that_fails_is_told(self):
        done = self.run_script("--seeds=1", "--data_dir=/nonexistent", "--train_flags=--dataset=mnist")
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("mnist: seed 1: exit status 2: ", done.stderr)


if __name__ == "__main__":
    unittest.main()
