"""Reads the reports of ptxas about every kernel and GPU: no spills, no stack, and few enough registers.

Without a CUDA toolkit there is no report, and the test is skipped with that reason.
"""

import os
import re
import sys
import unittest

# 256 threads a block, and at least three blocks of them on a multiprocessor's 65536 registers. Two of a tall tile, and
# of an owner's kernel, which is launched with 32 blocks in all.
REGISTERS_MAX = 80
TALL_REGISTERS_MAX = 128
TALL = ("ProductKernelILi128E", "PeerUpdateKernel")
ARCHITECTURES = {"sm_80", "sm_90"}

KERNEL = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


def parse(report):
    """{(kernel, architecture): (stack bytes, spill bytes, registers)}"""
    kernels = {}
    current = frame = None
    for line in report.splitlines():
        if match := KERNEL.search(line):
            current, frame = match.groups(), None
        elif match := FRAME.search(line):
            frame = (int(match[1]), int(match[2]) + int(match[3]))
        elif (match := REGISTERS.search(line)) and current:
            kernels[current] = (*frame, int(match[1]))
            current = None
    return kernels


class PtxasReportTest(unittest.TestCase):

    def test_the_parser_sees_spills(self):
        report = ("ptxas info    : Compiling entry function 'k' for 'sm_90'\n"
                  "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
                  "ptxas info    : Used 33 registers, used 1 barriers\n")
        self.assertEqual(parse(report), {("k", "sm_90"): (8, 16, 33)})

    def test_every_kernel(self):
        reports = [path for path in sys.argv[1:] if path.endswith(".ptxas")]
        if not reports:
            self.skipTest("no kernel was compiled: this build has no CUDA toolkit")
        total = 0
        for path in reports:
            with open(path, encoding="utf-8") as file:
                kernels = parse(file.read())
            with self.subTest(report=os.path.basename(path)):
                self.assertTrue(kernels, "no kernel in the report")
                names = {name for name, _ in kernels}
                self.assertEqual(set(kernels), {(name, target) for name in names for target in ARCHITECTURES})
                total += len(names)
            for (name, target), (stack, spills, registers) in kernels.items():
                with self.subTest(kernel=name, target=target):
                    self.assertEqual(stack, 0, "bytes of stack")
                    self.assertEqual(spills, 0, "bytes spilled")
                    is_tall = any(part in name for part in TALL)
                    self.assertLessEqual(registers, TALL_REGISTERS_MAX if is_tall else REGISTERS_MAX)
            print(f"{os.path.basename(path)}: {len(names)} kernels, at most "
                  f"{max(registers for _, _, registers in kernels.values())} registers, no spills")
        print(f"{total} kernels for each of {', '.join(sorted(ARCHITECTURES))}")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
