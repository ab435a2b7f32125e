"""Tests how the allreduces of mpi4py and Horovod are timed, with a library that only counts."""

import unittest
import unittest.mock

import exchange_by_mpirun
from exchange_by_mpirun import Library


class MeasureTest(unittest.TestCase):
    def setUp(self):
        self.calls = []
        self.now = 0.0

    def library(self, seconds):
        """A library whose allreduces take the given seconds, and whose other rank is twice as slow."""
        taken = iter(seconds)

        def allreduce(values):
            self.calls.append(values)
            self.now += next(taken)

        return Library(0, 2, lambda size: size, allreduce, lambda: self.calls.append("barrier"),
                       lambda own: 2 * own)

    def measure(self, seconds, size):
        with unittest.mock.patch.object(exchange_by_mpirun.time, "perf_counter", lambda: self.now):
            return exchange_by_mpirun.measure(self.library(seconds), size)

    def test_the_median_of_the_slowest_rank_without_the_warm_up(self):
        # 12 calls for the largest size: the first 2 warm up.
        found = self.measure([100, 100, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 64 << 20)
        self.assertEqual(found, 2 * 6)
        self.assertEqual(self.calls, ["barrier", 64 << 20] * 12)

    def test_small_sizes_are_measured_more_often(self):
        self.measure([1] * 1200, 4096)
        self.assertEqual(self.calls.count("barrier"), 1200)

    def test_bus_bandwidth(self):
        row = exchange_by_mpirun.row("mpi4py", 4, 1 << 30, 1.0)
        self.assertAlmostEqual(row["bus_gb_per_s"], 1.5 * (1 << 30) / 1e9)
        self.assertEqual((row["sync"], row["latency_us"]), ("mpi4py", 1e6))


if __name__ == "__main__":
    unittest.main()
