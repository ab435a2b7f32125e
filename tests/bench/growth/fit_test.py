"""Tests least squares, the fit of known costs, and the file of costs."""

import dataclasses
import json
import os
import random
import tempfile
import unittest

import cost_book
import cost_fit
import exchange_model as model
from made_costs import CORES, COSTS, FREE, KERNELS, make_book, make_measurements, of_medium


class LeastSquaresTest(unittest.TestCase):
    def test_what_fits_exactly_is_found(self):
        found = cost_fit.non_negative([[1, 0], [1, 1], [1, 2], [1, 3]], [1, 3, 5, 7])
        self.assertAlmostEqual(found[0], 1)
        self.assertAlmostEqual(found[1], 2)

    def test_a_negative_cost_becomes_zero(self):
        # The best line falls: the best one that does not is the mean.
        found = cost_fit.non_negative([[1, 0], [1, 1], [1, 2]], [3, 2, 1])
        self.assertEqual(found[1], 0)
        self.assertAlmostEqual(found[0], 2)
        self.assertEqual(cost_fit.non_negative([[1.0], [2.0]], [-1.0, -1.0]), [0.0])

    def test_columns_of_all_sizes_zero_or_alike(self):
        rows = [[1e-9 * i, 1.0, 0.0, 1.0] for i in range(1, 9)]
        found = cost_fit.non_negative(rows, [2 * i + 3 for i in range(1, 9)])
        self.assertAlmostEqual(found[1] + found[3], 3, places=6)
        self.assertAlmostEqual(1e-9 * found[0], 2, places=6)
        self.assertEqual(found[2], 0)

    def test_no_neighbour_is_better(self):
        numbers = random.Random(7)

        def square(rows, right, x):
            return sum((sum(a * b for a, b in zip(row, x)) - value) ** 2 for row, value in zip(rows, right))

        for _ in range(50):
            rows = [[numbers.gauss(0, 1) for _ in range(6)] for _ in range(15)]
            right = [numbers.gauss(0, 1) for _ in range(15)]
            found = cost_fit.non_negative(rows, right)
            self.assertGreaterEqual(min(found), 0)
            for place in range(6):
                for step in (-1e-4, 1e-4):
                    other = [*found]
                    other[place] = max(0.0, other[place] + step)
                    self.assertGreaterEqual(square(rows, right, other), square(rows, right, found) - 1e-12)


class FitTest(unittest.TestCase):
    def measured(self, sync, medium="sockets", **more):
        return [one for one in make_measurements([sync], **more) if one.medium == medium]

    def test_known_costs_are_recovered(self):
        by_sockets = [(sync, "sockets") for sync in ("ring", "ring-tcp", "star-mpi", "star-tcp", "star")]
        for sync, medium in (*by_sockets, ("ring", "memory"), ("star", "memory")):
            found = cost_fit.fit(self.measured(sync, medium), CORES, KERNELS)
            self.assertEqual(found.costs.cache_bytes, COSTS.cache_bytes, sync)
            self.assertEqual(found.costs.contention, COSTS.contention, sync)
            self.assertLess(found.costs.worst_error, 1e-6, sync)
            self.assertEqual(found.costs.band, cost_fit.BAND_MIN)
            # A ring's hops grow with its ranks. A star has always two, so its step and hop cannot be told apart.
            told_apart = set(model.FITTED[1 if sync.startswith("ring") else 2:])
            # Without servers a star's messages are long, all of them: a short vector has few owners.
            if sync in ("star-mpi", "star-tcp"):
                pair = {"message", "long_message"}
                told_apart -= pair
                self.assertAlmostEqual(sum(found.costs.seconds[name] for name in pair)
                                       / sum(COSTS.seconds[name] for name in pair), 1, places=4, msg=sync)
            for name in sorted(told_apart):
                is_free = name == "incast" and sync.startswith("ring")
                expected = 0.0 if is_free else of_medium(COSTS, medium).seconds[name]
                self.assertAlmostEqual(found.costs.seconds[name] / COSTS.seconds[name], expected / COSTS.seconds[name],
                                       places=4, msg=f"{sync} by {medium} {name}")

    def test_the_error_shows_noise_and_the_band_has_nine_of_ten_errors(self):
        found = cost_fit.fit(self.measured("ring", noise=0.05), CORES, KERNELS)
        self.assertGreater(found.costs.median_error, 0.01)
        self.assertLess(found.costs.median_error, 0.1)
        unseen = [one for one in self.measured("ring", noise=0.05) if one.is_test]
        low, high = (found.costs.scaled(factor) for factor in (1 / (1 + found.costs.band), 1 + found.costs.band))
        within = [cost_fit.predicted_s(one, CORES, low) <= 1.000001 * one.seconds
                  and one.seconds <= 1.000001 * cost_fit.predicted_s(one, CORES, high) for one in unseen]
        self.assertAlmostEqual(sum(within) / len(within), cost_fit.BAND_SHARE, delta=1 / len(within))
        self.assertGreater(found.computing_error, 0.01)

    def test_a_band_holds_upwards_and_downwards(self):
        costs = dataclasses.replace(FREE, seconds={**FREE.seconds, "step": 0.01})
        for seconds, band in ((0.014, 0.4), (0.01 / 1.4, 0.4), (0.0101, cost_fit.BAND_MIN)):
            one = cost_fit.Measurement("ring", "memory", 2, 0, 4096, 1 << 20, 0.0, seconds)
            self.assertAlmostEqual(cost_fit.band_of([one], CORES, costs), band)

    def test_the_test_sees_no_size_of_the_fit(self):
        self.assertFalse(set(cost_fit.FIT_BYTES) & set(cost_fit.TEST_BYTES))
        measured = self.measured("ring")
        spoiled = [dataclasses.replace(one, seconds=2 * one.seconds) if one.is_test else one for one in measured]
        found, other = (cost_fit.fit(each, CORES, KERNELS) for each in (measured, spoiled))
        self.assertEqual(found.costs.seconds, other.costs.seconds)
        self.assertAlmostEqual(other.costs.median_error, 0.5, places=6)

    def test_one_bad_point_is_the_worst(self):
        spoiled = self.measured("ring")
        place = next(i for i, one in enumerate(spoiled) if one.is_test)
        spoiled[place] = dataclasses.replace(spoiled[place], seconds=2 * spoiled[place].seconds)
        found = cost_fit.fit(spoiled, CORES, KERNELS)
        self.assertLess(found.costs.median_error, 0.01)
        self.assertAlmostEqual(found.costs.worst_error, 0.5, places=6)
        self.assertEqual(found.worst_at, spoiled[place])

    def test_too_few_measurements(self):
        with self.assertRaisesRegex(cost_book.CostsError,
                                    "5 measurements to fit 10 costs, and 2 to test them: give more --workers"):
            cost_fit.fit([one for one in self.measured("ring") if one.workers == 2][:7], CORES, KERNELS)
        with self.assertRaisesRegex(cost_book.CostsError, "costs, and 0 to test them: give more --workers"):
            cost_fit.fit([one for one in self.measured("ring") if not one.is_test], CORES, KERNELS)


class CostBookTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "costs.json")

    def test_written_and_read(self):
        book = make_book(dataclasses.replace(COSTS, median_error=0.01, worst_error=0.2, band=0.03))
        cost_book.write(self.path, book)
        self.assertEqual(cost_book.read(self.path), book)

    def test_costs_of_another_machine_have_wide_bands_and_no_jitter(self):
        book = dataclasses.replace(make_book(), jitter=0.3)
        wide = cost_book.widened(book)
        self.assertEqual({costs.band for costs in wide.costs.values()}, {cost_book.SHIPPED_BAND_MIN})
        self.assertEqual((wide.jitter, wide.machine), (0.0, book.machine))
        wider = dataclasses.replace(COSTS, band=3.0)
        self.assertEqual({costs.band for costs in cost_book.widened(make_book(wider)).costs.values()}, {3.0})

    def test_what_has_no_costs_is_refused(self):
        cost_book.write(self.path, make_book())
        with open(self.path, encoding="utf-8") as file:
            good = json.load(file)
        without = json.loads(json.dumps(good))
        del without["cells"]["ring"]["memory"]["seconds"]["hop"]
        for text in ("", "3", "[]", "{}", json.dumps(without),
                     json.dumps({**good, "cells": {"moon": {}}})):
            with open(self.path, "w", encoding="utf-8") as file:
                file.write(text)
            with self.assertRaisesRegex(cost_book.CostsError, "costs.json has no costs .*bazel run //bench:growth"):
                cost_book.read(self.path)
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump({**good, "version": cost_book.VERSION - 1}, file)
        with self.assertRaisesRegex(cost_book.CostsError, "costs.json has no costs .*version 6, and this program "
                                    "reads version 7.*bazel run //bench:growth writes such a file"):
            cost_book.read(self.path)
        with self.assertRaisesRegex(cost_book.CostsError, "bazel run //bench:growth"):
            cost_book.read(self.path + ".gone")

    def test_a_cell_that_was_not_measured_has_no_costs(self):
        book = make_book(syncs=("ring", "star-tcp"))
        self.assertEqual(book.find("ring", "memory"), COSTS)
        for sync in ("star-servers-tcp", "star"):
            with self.assertRaisesRegex(cost_book.CostsError, f"no costs of {sync} by memory: .*//bench:growth -- "
                                                              f"--syncs={sync} measures them"):
                book.find(sync, "memory")

    def test_tcp_has_sockets_alone(self):
        # Costs of shared memory are no costs of TCP.
        shared = dataclasses.replace(COSTS, band=0.5)
        for sync in ("star-tcp", "ring-tcp"):
            both = dataclasses.replace(make_book(), costs={(sync, "memory"): shared, (sync, "sockets"): COSTS})
            self.assertEqual(both.find(sync, "memory"), COSTS)
            with self.assertRaises(cost_book.CostsError):
                dataclasses.replace(both, costs={(sync, "memory"): shared}).find(sync, "memory")

    def test_a_band_grows_beyond_what_was_measured(self):
        def bands(*points):
            return [round(COSTS.band_at(workers, size), 4) for workers, size in points]
        self.assertEqual(bands((2, 4096), (64, 4096), (128, 4096), (1024, 4096)), [0.05, 0.05, 0.075, 0.15])
        self.assertEqual(bands((2, 16 << 20), (2, 32 << 20), (2, 128 << 20)), [0.05, 0.075, 0.125])
        self.assertEqual([COSTS.band_at(*point) > COSTS.band for point in
                          ((64, 16 << 20), (65, 16 << 20), (64, 17 << 20))], [False, True, True])
        self.assertEqual(FREE.band_at(1 << 20, 1 << 40), FREE.band)

    def test_each_cell_has_been_measured_so_far(self):
        measured = make_measurements(["ring"], workers=(2, 3, 4, 8))
        found = cost_fit.fit([one for one in measured if one.medium == "memory"], CORES, KERNELS)
        self.assertEqual((found.costs.workers_max, found.costs.bytes_max), (8, 256 << 20))


if __name__ == "__main__":
    unittest.main()
