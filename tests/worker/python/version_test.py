"""Tests that the Python package and the programs say the same version, and that the package says what it has."""

import os
import re
import subprocess
import sys
import unittest

import starring


class VersionTest(unittest.TestCase):
    def test_the_package_has_the_version_of_the_programs(self) -> None:
        with open("common/flags/command_line.h", encoding="utf-8") as file:
            found = re.findall(r'constexpr char kStarringVersion\[\] = "([^"]+)";', file.read())
        self.assertEqual(found, [starring.__version__])


class ModulesTest(unittest.TestCase):
    def run_package(self, *flags: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([sys.executable, "-m", "starring", *flags], capture_output=True, text=True, timeout=60,
                              check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})

    def test_the_package_lists_its_modules(self) -> None:
        asked = self.run_package("--help")
        self.assertEqual((asked.returncode, asked.stderr), (0, ""))
        self.assertRegex(asked.stdout, r"(?m)^python3 -m starring\.pack +Turns folders of PNG or JPEG images into ")
        self.assertRegex(asked.stdout, r"(?m)^python3 -m starring\.servers +Starts the servers of a star")
        self.assertRegex(asked.stdout, r"(?m)^import starring\.torch +Gradients of a .*ours$")
        self.assertNotIn("starring._", asked.stdout)
        for flags in ((), ("--version",)):
            refused = self.run_package(*flags)
            self.assertEqual((refused.returncode, refused.stdout), (2, ""))
            self.assertEqual(refused.stderr, asked.stdout)


if __name__ == "__main__":
    unittest.main()
