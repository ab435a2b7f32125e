"""The worker takes no function of libm whose bits nobody compares: LibmBits (kernels/cpu/cpu_device.cc) tells machines
apart by those of exp and log, and the rest is exact."""

import re
import subprocess
import unittest

WORKER = "worker/worker"
COMPARED = {"expf", "log"}
EXACT = {"round", "sqrt"}  # IEEE 754 defines every bit


def symbols(*command: str) -> set[str]:
    text = subprocess.run(["nm", "--dynamic", *command], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].partition("@")[0] for line in text.splitlines()}


def libm() -> str:
    linked = subprocess.run(["ldd", WORKER], capture_output=True, text=True, check=True).stdout
    found = re.search(r"libm\.so\.6 => (\S+)", linked)
    assert found, linked
    return found[1]


class LibmImportsTest(unittest.TestCase):

    def test_all_are_compared_or_exact(self) -> None:
        taken = symbols("--undefined-only", WORKER) & symbols("--defined-only", libm())
        self.assertEqual(taken, COMPARED | EXACT, "LibmBits compares the results of %s: add what is new there, and here"
                         % ", ".join(sorted(COMPARED)))


if __name__ == "__main__":
    unittest.main()
