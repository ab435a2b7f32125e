"""Tests the gate on made rows: what it refuses, that old and new take turns, and what its tables say."""

import math
import unittest

import cells
import gate
import judge
from cells import Cell


class MadePrograms:
    """Stands for the programs of two commits: each field of a row is multiplied by a factor of the new commit."""

    def __init__(self, **factors):
        self.factors = factors
        self.started = []  # (folder, run)
        self.wrong = lambda cell, field: 1.0

    def __call__(self, run, folder):
        self.started.append((folder, run))
        sizes = next(flag.partition("=")[2] for flag in run.flags if flag.startswith("--bytes="))
        rows = []
        for size in map(int, sizes.split(",")):
            for sync, name in list(run.names.items())[:1 if run.program != "ring_bench" else None]:
                row = {"sync": sync, "bytes": size}
                for field in ("latency_us", "cpu_us", "messages", "resident_kib"):
                    # The machine is disturbed now and then, in both alike.
                    noise = 1 + 0.3 * math.sin((len(self.started) - 1) // 2)
                    factor = 1.0
                    if folder == "new":
                        factor = self.factors.get(field, 1.0) * self.wrong(Cell(*name, run.ranks, size), field)
                    row[field] = 100.0 * factor * (noise if field in ("latency_us", "cpu_us") else 1.0)
                rows.append(row)
        return rows


def failures(programs, repeats=4):
    return gate.compare(["old", "new"], repeats, programs, lambda line: None)[1]


class GateTest(unittest.TestCase):
    def test_the_same_passes(self):
        self.assertEqual(failures(MadePrograms()), [])

    def test_a_kind_that_is_slower_by_more_than_a_hundredth_is_refused(self):
        self.assertEqual(failures(MadePrograms(latency_us=1.009)), [])
        kinds = {run.names[sync][0] for run in cells.runs(2, cells.SIZES) for sync in run.names}
        found = failures(MadePrograms(latency_us=1.012))
        self.assertEqual(len(found), len(kinds), found)
        self.assertIn("the geometric mean is 1.012", found[0])

    def test_a_single_cell_that_is_slower_is_refused(self):
        slow = Cell("ring", "MPI", 4, 4096)
        programs = MadePrograms()
        programs.wrong = lambda cell, field: 1.06 if cell == slow and field == "latency_us" else 1.0
        found = [line for line in failures(programs) if "wholly above" in line]
        self.assertEqual(len(found), 1, found)
        self.assertIn("the time of a step of ring, MPI, 4 ranks, 4 KiB: 1.06", found[0])

    def test_a_cell_that_only_scatters_passes(self):
        old = [100.0] * 8
        new = [90.0, 118.0] * 4
        judged = judge.of_cells({Cell("ring", "MPI", 2, 4096): list(zip(old, new))})
        self.assertGreater(judged[0].ratio["value"], 1.03)
        self.assertFalse(judge.is_slower(judged[0]))

    def test_processor_time_messages_and_memory_count(self):
        for field, factor, text in (("cpu_us", 1.05, "the processor time of a step of"),
                                    ("messages", 1.02, "messages of"), ("resident_kib", 1.03, "resident KiB of")):
            with self.subTest(field):
                self.assertTrue(all(line.startswith(text) for line in failures(MadePrograms(**{field: factor}))))
                self.assertTrue(failures(MadePrograms(**{field: factor})))
        self.assertEqual(failures(MadePrograms(messages=0.9, resident_kib=1.015, cpu_us=0.8)), [])

    def test_what_carries_no_messages_is_not_compared(self):
        cell = Cell("control", "MPI_Allreduce", 8, 4096)
        self.assertEqual(gate.pairs({cell: [{"messages": 0}]}, {cell: [{"messages": 0}]}, "messages"), {})

    def test_old_and_new_take_turns(self):
        programs = MadePrograms()
        gate.measure(cells.runs(2, (4096,))[:2], ["old", "new"], 2, programs, lambda line: None)
        self.assertEqual([folder for folder, _ in programs.started],
                         ["old", "new", "old", "new", "new", "old", "new", "old"])

    def test_memory_is_measured_in_processes_of_its_own(self):
        for run in cells.runs_of_memory():
            syncs = [flag for flag in run.flags if flag.startswith("--syncs=")]
            self.assertEqual(syncs, ["--syncs=" + next(iter(run.names))] if run.program == "ring_bench" else [])

    def test_every_cell_has_a_name_of_its_own(self):
        for ranks in cells.RANKS:
            names = [name for run in cells.runs(ranks, cells.SIZES) for name in set(run.names.values())]
            self.assertEqual(len(names), len(set(names)))

    def test_the_page_names_the_slowest_cell_of_each_kind(self):
        programs = MadePrograms()
        programs.wrong = lambda cell, field: 1.02 if cell == Cell("ring", "TCP", 2, 4096) else 1.0
        page, _ = gate.compare(["old", "new"], 4, programs, lambda line: None)
        self.assertIn("| ring | 12 | 1.002 | TCP, 2 ranks, 4 KiB: 1.020 [1.020, 1.020] |", page)


if __name__ == "__main__":
    unittest.main()
