"""Tests least squares, the fit of known costs, and the file of costs."""

import dataclasses
import json
import os
import random
import tempfile
import unittest

import correction
import cost_book
import cost_fit
import exchange_model as model
import least_squares
import sync_cells as cells
import workload
from correction import Correction
from made_costs import CORES, COSTS, FREE, KERNELS, make_book, make_measurements, of_medium


class LeastSquaresTest(unittest.TestCase):
    def test_what_fits_exactly_is_found(self):
        found = least_squares.non_negative([[1, 0], [1, 1], [1, 2], [1, 3]], [1, 3, 5, 7])
        self.assertAlmostEqual(found[0], 1)
        self.assertAlmostEqual(found[1], 2)

    def test_a_negative_cost_becomes_zero(self):
        # The best line falls: the best one that does not is the mean.
        found = least_squares.non_negative([[1, 0], [1, 1], [1, 2]], [3, 2, 1])
        self.assertEqual(found[1], 0)
        self.assertAlmostEqual(found[0], 2)
        self.assertEqual(least_squares.non_negative([[1.0], [2.0]], [-1.0, -1.0]), [0.0])

    def test_columns_of_all_sizes_zero_or_alike(self):
        rows = [[1e-9 * i, 1.0, 0.0, 1.0] for i in range(1, 9)]
        found = least_squares.non_negative(rows, [2 * i + 3 for i in range(1, 9)])
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
            found = least_squares.non_negative(rows, right)
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
            self.assertLess(found.test.worst, 1e-6, sync)
            self.assertTrue(found.test.met)
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

    def test_noise_is_met_by_the_test_on_other_sizes(self):
        found = cost_fit.fit(self.measured("ring", noise=0.05), CORES, KERNELS)
        self.assertTrue(found.test.met, found.test)
        self.assertGreater(found.test.median, 0.01)
        self.assertGreater(found.costs.band, found.test.median)

    def test_the_test_sees_no_size_of_the_fit(self):
        self.assertFalse(set(cost_fit.FIT_BYTES) & set(cost_fit.TEST_BYTES))
        measured = self.measured("ring")
        spoiled = [dataclasses.replace(one, seconds=2 * one.seconds) if one.is_test else one for one in measured]
        found, other = (cost_fit.fit(each, CORES, KERNELS) for each in (measured, spoiled))
        self.assertEqual(found.costs.seconds, other.costs.seconds)
        self.assertFalse(other.test.met)
        self.assertAlmostEqual(other.test.median, 0.5, places=6)
        self.assertIn("workers", other.test.worst_at)

    def test_what_costs_cannot_say_is_corrected(self):
        # A library that is twice as slow from some length on.
        def bent(one):
            exchange = (one.seconds - one.compute_s) * (2 if one.bytes > 65536 else 1)
            return dataclasses.replace(one, seconds=one.compute_s + exchange)
        found = cost_fit.fit([bent(one) for one in self.measured("ring")], CORES, KERNELS)
        straight = cost_fit.fit(self.measured("ring"), CORES, KERNELS)
        self.assertGreater(found.bare_test.worst, 0.1)
        self.assertLess(found.test.median, found.bare_test.median / 2)
        self.assertEqual(len(found.costs.corrections), sum(
            one.bytes in cost_fit.FIT_BYTES and not one.compute_s and one.bucket_bytes == workload.BUCKET_BYTES
            for one in self.measured("ring")))
        self.assertTrue(all(abs(one.factor - 1) < 1e-6 for one in straight.costs.corrections))

    def test_one_bad_point_misses_the_worst(self):
        spoiled = self.measured("ring")
        place = next(i for i, one in enumerate(spoiled) if one.is_test)
        spoiled[place] = dataclasses.replace(spoiled[place], seconds=2 * spoiled[place].seconds)
        found = cost_fit.fit(spoiled, CORES, KERNELS)
        self.assertLess(found.test.median, 0.01)
        self.assertFalse(found.test.met)

    def test_too_few_measurements(self):
        with self.assertRaisesRegex(cost_fit.FitError, "5 measurements to fit 10 costs: give more --workers"):
            cost_fit.fit([one for one in self.measured("ring") if one.workers == 2][:7], CORES, KERNELS)


class CorrectionTest(unittest.TestCase):
    MADE = (Correction(2, 1, 4096, 1.0), Correction(2, 1, 65536, 4.0), Correction(2, 2, 4096, 2.0),
            Correction(8, 4, 4096, 0.5), Correction(8, 4, 65536, 0.5))

    def test_measured_places_and_between_them(self):
        for workers, servers, size, expected in (
                (2, 1, 4096, 1.0), (2, 1, 65536, 4.0), (2, 2, 4096, 2.0),
                (2, 1, 16384, 2.0),  # half way, in logarithms
                (4, 1, 4096, 0.5 ** 0.5), (4, 4, 4096, 1.0),
                (1, 1, 4096, 1.0), (2, 1, 1024, 1.0), (2, 1, 1 << 20, 4.0), (64, 64, 4096, 0.5)):  # beyond the ends
            found = correction.factor(self.MADE, workers, servers, size)
            self.assertAlmostEqual(found, expected, msg=f"{workers} {servers} {size}")

    def test_ranks_that_own(self):
        self.assertEqual(correction.factor((Correction(2, 0, 4096, 3.0),), 5, 0, 8192), 3.0)
        self.assertEqual(correction.factor((), 5, 0, 8192), 1.0)

    def test_nothing_is_interpolated_over_a_jump(self):
        ends = (Correction(2, 0, 4096, 1.0), Correction(2, 0, 8192, 2.0), Correction(2, 0, 16384, 8.0))
        for size, jump, expected in ((12288, 0, 4.5), (12288, 16384, 2.0), (12288, 12288, 8.0), (8192, 8192, 2.0),
                                     (6144, 16384, 1.5), (1 << 20, 16384, 8.0), (4096, 4096, 1.0)):
            found = correction.factor(ends, 2, 0, size, jump)
            self.assertAlmostEqual(found / expected, 1, delta=0.03, msg=f"{size} {jump}")
        self.assertEqual(correction.factor(ends[:2], 2, 0, 1 << 20, 16384), 1.0)


class CostBookTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "costs.json")

    def test_written_and_read(self):
        book = make_book(dataclasses.replace(COSTS, corrections=CorrectionTest.MADE, band=0.03))
        cost_book.write(self.path, book)
        self.assertEqual(cost_book.read(self.path), book)
        self.assertEqual(cost_book.read_first((self.path + ".gone", self.path)), book)

    def test_what_has_no_costs_is_refused(self):
        good = cost_book.to_json(make_book())
        without = json.loads(json.dumps(good))
        del without["cells"]["ring"]["memory"]["seconds"]["hop"]
        for text in ("", "3", "[]", "{}", json.dumps({**good, "version": 99}), json.dumps(without),
                     json.dumps({**good, "cells": {"moon": {}}})):
            with open(self.path, "w", encoding="utf-8") as file:
                file.write(text)
            with self.assertRaisesRegex(cost_book.CostsError, "costs.json has no costs .*bazel run //bench:growth"):
                cost_book.read(self.path)
        for read in (lambda: cost_book.read(self.path + ".gone"), lambda: cost_book.read_first((self.path + ".gone",))):
            with self.assertRaisesRegex(cost_book.CostsError, "bazel run //bench:growth"):
                read()

    def test_a_cell_that_was_not_measured_borrows_from_its_transport(self):
        known = dataclasses.replace(COSTS, cores=2, corrections=CorrectionTest.MADE)
        book = make_book(known, syncs=("ring", "star-tcp", "star"))
        costs, note = book.find("star-servers-tcp", "sockets")
        self.assertEqual(costs, dataclasses.replace(COSTS, cores=2, band=cost_book.BORROWED_BAND_MIN,
                                                    bare_band=cost_book.BORROWED_BAND_MIN))
        self.assertIn("star-servers-tcp by sockets was not measured", note)
        self.assertIn("star-tcp by sockets", book.find("star-servers-tcp", "memory")[1])
        self.assertEqual(book.find("ring", "memory"), (known, ""))
        with self.assertRaisesRegex(cost_book.CostsError, "no costs of star-tcp: bazel run //bench:growth"):
            make_book(syncs=("ring",)).find("star-tcp", "sockets")

    def test_tcp_has_sockets_alone(self):
        book = dataclasses.replace(make_book(), costs={("ring-tcp", "sockets"): COSTS, ("ring", "sockets"): COSTS})
        self.assertEqual(book.find("ring-tcp", "memory"), (COSTS, ""))
        self.assertIn("by sockets", book.find("ring", "memory")[1])
        # Costs of shared memory are no costs of TCP.
        shared = dataclasses.replace(COSTS, band=0.5)
        for sync in ("star-tcp", "ring-tcp", "star-servers-tcp"):
            both = dataclasses.replace(book, costs={(sync, "memory"): shared, (sync, "sockets"): COSTS})
            self.assertEqual(both.find(sync, "memory"), (COSTS, ""))
            with self.assertRaises(cost_book.CostsError):
                dataclasses.replace(book, costs={(sync, "memory"): shared}).find(sync, "memory")

    def test_a_band_grows_beyond_what_was_measured(self):
        def bands(*points):
            return [round(cost_book.band(COSTS, workers, size, corrected=True), 4) for workers, size in points]
        self.assertEqual(bands((2, 4096), (64, 4096), (128, 4096), (1024, 4096)), [0.05, 0.05, 0.075, 0.15])
        self.assertEqual(bands((2, 16 << 20), (2, 32 << 20), (2, 128 << 20)), [0.05, 0.075, 0.125])
        self.assertEqual([cost_book.is_extrapolated(COSTS, *point) for point in
                          ((64, 16 << 20), (65, 16 << 20), (64, 17 << 20))], [False, True, True])
        self.assertEqual(cost_book.band(FREE, 1 << 20, 1 << 40, corrected=True), FREE.band)
        self.assertEqual(cost_book.band(dataclasses.replace(FREE, bare_band=0.4), 4, 4096, corrected=False), 0.4)

    def test_each_cell_has_been_measured_so_far(self):
        measured = make_measurements(["ring"], workers=(2, 3, 4, 8))
        found = cost_fit.fit([one for one in measured if one.medium == "memory"], CORES, KERNELS)
        self.assertEqual((found.costs.workers_max, found.costs.bytes_max), (8, 16 << 20))

    def test_keys_of_places(self):
        star = cells.BY_SYNC["star"]
        self.assertEqual(cost_book.place_key(star), "star")
        self.assertEqual(cost_book.place_key(dataclasses.replace(star, placement=cells.OWN_HOSTS)), "star@own")


if __name__ == "__main__":
    unittest.main()
