"""Tests that the programs of the gate measure every cell: one run of each, with two ranks and one small size."""

import dataclasses
import os
import unittest

import cells
import gate
import programs
from cells import Cell

SIZE = 4096


class ProgramsTest(unittest.TestCase):
    def test_every_cell_has_a_row(self):
        folder = os.path.dirname(programs.binary("bench/ring_bench"))
        for run in cells.runs(2, (SIZE,)):
            few = tuple("--steps_max=3" if flag.startswith("--steps_max=") else flag for flag in run.flags)
            with self.subTest(run.flags):
                rows = gate.start(dataclasses.replace(run, flags=few), folder)
                found = {Cell(*run.names[row["sync"]], 2, row["bytes"]) for row in rows}
                self.assertEqual(found, {Cell(*name, 2, SIZE) for name in run.names.values()})
                for row in rows:
                    self.assertGreater(row["latency_us"], 0)
                    self.assertGreater(row["cpu_us"], 0)
                    self.assertGreater(row["resident_kib"], 1000)
                    kind, way = run.names[row["sync"]]
                    # The network's messages are counted.
                    carries = kind != "control" and "memory" not in kind + way and not way.startswith("gRPC")
                    self.assertEqual(row["messages"] > 0, carries, row)
                    if kind == "ring":
                        self.assertEqual(row["messages"], 2, row)  # 2 (N - 1)


if __name__ == "__main__":
    unittest.main()
