"""Tests that Python targets run under the system's interpreter and find the distribution's modules."""

import sys
import unittest


class PythonTest(unittest.TestCase):

    def test_interpreter_is_the_systems(self):
        self.assertEqual(sys.executable, "/usr/bin/python3")

    def test_numpy_is_there(self):
        import numpy

        self.assertEqual(numpy.float32(1.5) * 2, 3)


if __name__ == "__main__":
    unittest.main()
