"""Tests that the Python package and the programs say the same version."""

import re
import unittest

import starring


class VersionTest(unittest.TestCase):
    def test_the_package_has_the_version_of_the_programs(self) -> None:
        with open("common/flags/command_line.h", encoding="utf-8") as file:
            found = re.findall(r'constexpr char kStarringVersion\[\] = "([^"]+)";', file.read())
        self.assertEqual(found, [starring.__version__])


if __name__ == "__main__":
    unittest.main()
