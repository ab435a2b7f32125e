"""Tests paired ratios: Student's t against tables, intervals against values worked out by hand, and what a tie is."""

import math
import random
import unittest

import ratios

# Two-sided 95 % and 99 % points of Student's t, from printed tables (and scipy.stats.t.ppf to all digits shown).
T_95 = {1: 12.706205, 2: 4.302653, 3: 3.182446, 4: 2.776445, 5: 2.570582, 6: 2.446912, 7: 2.364624, 8: 2.306004,
        9: 2.262157, 10: 2.228139, 20: 2.085963, 30: 2.042272, 60: 2.000298, 120: 1.979930, 1000: 1.962339}
T_99 = {1: 63.656741, 2: 9.924843, 6: 3.707428, 7: 3.499483, 30: 2.749996}


def of(*values):
    return ratios.of_pairs([math.log(value) for value in values])


def by_repeat(*rates):
    return dict(enumerate(rates))


class QuantileTest(unittest.TestCase):
    def test_agrees_with_the_tables(self):
        for freedom, t in T_95.items():
            self.assertAlmostEqual(ratios.t_quantile(freedom), t, places=6, msg=freedom)
        for freedom, t in T_99.items():
            self.assertAlmostEqual(ratios.t_quantile(freedom, 0.99), t, places=6, msg=freedom)

    def test_closed_forms(self):
        for confidence in (0.5, 0.9, 0.95, 0.999):
            self.assertAlmostEqual(ratios.t_quantile(1, confidence) / math.tan(math.pi / 2 * confidence), 1, places=9)
            two = math.sqrt(2) * confidence / math.sqrt(1 - confidence ** 2)
            self.assertAlmostEqual(ratios.t_quantile(2, confidence) / two, 1, places=9)

    def test_the_probability_grows_to_one(self):
        for freedom in range(1, 40):
            last = 0.0
            for angle in range(1, 16):
                now = ratios.two_sided_probability(angle * math.pi / 32, freedom)
                self.assertGreaterEqual(now, last - 1e-15)
                last = now
            self.assertAlmostEqual(ratios.two_sided_probability(math.pi / 2, freedom), 1, places=12)


class IntervalTest(unittest.TestCase):
    def test_by_hand(self):
        # Logarithms 0.1, 0.2, ..., 0.7: mean 0.4, standard deviation sqrt(0.28 / 6), t with 6 degrees of freedom.
        found = ratios.of_pairs([0.1 * i for i in range(1, 8)])
        half = 2.446912 * math.sqrt(0.28 / 6) / math.sqrt(7)
        self.assertAlmostEqual(found["value"], math.exp(0.4), places=9)
        self.assertAlmostEqual(found["low"], math.exp(0.4 - half), places=6)
        self.assertAlmostEqual(found["high"], math.exp(0.4 + half), places=6)
        self.assertEqual(found["pairs"], 7)

    def test_four_pairs(self):
        # Logarithms -a, -a, a, a: mean 0, standard deviation a sqrt(4 / 3); half an interval is 3.182446 a / sqrt(3).
        found = ratios.of_pairs([-0.01, -0.01, 0.01, 0.01])
        self.assertAlmostEqual(math.log(found["high"]), 0.0318244631 / math.sqrt(3), places=9)
        self.assertAlmostEqual(found["low"] * found["high"], 1, places=12)

    def test_three_pairs_have_no_interval(self):
        for count in (1, 3):
            found = of(*[2.0] * count)
            self.assertAlmostEqual(found["value"], 2.0)
            self.assertEqual((found["low"], found["high"], found["pairs"]), (None, None, count))
        self.assertIsNotNone(of(*[2.0] * 4)["low"])

    def test_equal_ratios_have_an_interval_of_one_point(self):
        found = of(*[1.25] * 7)
        self.assertAlmostEqual(found["low"], 1.25, places=12)
        self.assertAlmostEqual(found["high"], 1.25, places=12)

    def test_it_covers_as_often_as_it_says(self):
        seed = 20261122
        generator = random.Random(seed)
        covered = sum(
            (found["low"] <= 1.2 <= found["high"]) for found in
            (ratios.of_pairs([math.log(1.2) + generator.gauss(0, 0.05) for _ in range(7)]) for _ in range(2000)))
        self.assertTrue(0.935 < covered / 2000 < 0.965, f"seed {seed}: {covered} of 2000")

    def test_inverse(self):
        one, other = by_repeat(100, 110, 90), by_repeat(80, 100, 85)
        there, back = ratios.paired(one, other), ratios.inverse(ratios.paired(other, one))
        for name in ("value", "low", "high"):
            self.assertAlmostEqual(there[name], back[name], places=12)
        self.assertEqual(ratios.inverse(of(2.0)), {"value": 0.5, "low": None, "high": None, "pairs": 1})


class PairedTest(unittest.TestCase):
    def test_pairs_are_of_one_repeat(self):
        # The machine is half as fast in the last repeats. Spreads overlap, and one is 10 % faster in each repeat.
        one, other = [110, 111, 109, 110, 55, 54.5, 55.5], [100, 101, 99, 100, 50, 49.5, 50.5]
        found = ratios.paired(by_repeat(*one), by_repeat(*other))
        self.assertEqual(ratios.outcome(found), "faster")
        self.assertAlmostEqual(found["value"], 1.1, places=2)
        # The same rates in another order are no pairs.
        shuffled = ratios.paired(by_repeat(*one), by_repeat(*reversed(other)))
        self.assertEqual(ratios.outcome(shuffled), "tie")

    def test_a_repeat_that_one_lacks_makes_no_pair(self):
        found = ratios.paired({0: 10.0, 2: 30.0, 5: 1.0}, {0: 5.0, 1: 99.0, 2: 15.0})
        self.assertEqual((found["value"], found["pairs"]), (2.0, 2))
        self.assertIsNone(ratios.paired({0: 1.0}, {1: 1.0}))
        self.assertIsNone(ratios.paired({}, {}))

    def test_the_mean_is_geometric(self):
        self.assertAlmostEqual(ratios.paired(by_repeat(1, 4), by_repeat(1, 1))["value"], 2, places=12)

    def test_an_interval_that_the_medians_contradict_is_a_tie(self):
        # The first is 10 % faster in five pairs of seven. The medians are those of the other two.
        one, other = [110, 111, 109, 50, 51, 5.5, 5.6], [100, 101, 99, 51.5, 50.5, 5, 5.1]
        self.assertGreater(ratios.of_pairs([math.log(a / b) for a, b in zip(one, other)])["low"], 1)
        found = ratios.paired(by_repeat(*one), by_repeat(*other))
        self.assertEqual((ratios.outcome(found), found["low"]), ("tie", 1))
        self.assertEqual(ratios.outcome(ratios.paired(by_repeat(*other), by_repeat(*one))), "tie")

    def test_products_of_steps_are_the_total(self):
        a, b, c = by_repeat(3, 5, 4, 6), by_repeat(2, 7, 1, 8), by_repeat(9, 2, 6, 5)
        product = ratios.paired(a, b)["value"] * ratios.paired(b, c)["value"]
        self.assertAlmostEqual(product, ratios.paired(a, c)["value"], places=12)


class OutcomeTest(unittest.TestCase):
    def test_an_interval_that_contains_one_is_a_tie(self):
        noisy = of(1.01, 0.99, 1.02, 0.98, 1.03, 0.97, 1.001)
        self.assertTrue(ratios.tie(noisy))
        self.assertEqual(ratios.outcome(noisy), "tie")
        faster = of(1.01, 1.02, 1.015, 1.012, 1.018, 1.011, 1.02)
        self.assertFalse(ratios.tie(faster))
        self.assertEqual(ratios.outcome(faster), "faster")
        self.assertEqual(ratios.outcome(ratios.inverse(faster)), "slower")

    def test_an_end_at_one_is_a_tie(self):
        for low, high in ((1.0, 1.2), (0.8, 1.0)):
            self.assertEqual(ratios.outcome({"value": 1.0, "low": low, "high": high, "pairs": 7}), "tie")
        self.assertEqual(ratios.outcome({"value": 1.1, "low": 1.0001, "high": 1.2, "pairs": 7}), "faster")
        self.assertEqual(ratios.outcome({"value": 0.9, "low": 0.8, "high": 0.9999, "pairs": 7}), "slower")

    def test_fewer_than_seven_pairs_decide_nothing(self):
        self.assertEqual(ratios.REPEATS_MIN, 7)
        for count, expected in ((1, "undecided"), (2, "undecided"), (6, "undecided"), (7, "faster"), (20, "faster")):
            self.assertEqual(ratios.outcome(of(*[2.0] * count)), expected, count)
            self.assertFalse(ratios.tie(of(*[2.0] * count)))
        self.assertFalse(ratios.tie(of(*[1.0] * 6)))
        self.assertEqual(ratios.outcome(None), "undecided")

    def test_text(self):
        self.assertEqual(ratios.text({"value": 1.163, "low": 1.124, "high": 1.203, "pairs": 7}), "1.16 [1.12, 1.20]")
        # Two decimals would print [1.03, 1.03].
        self.assertEqual(ratios.text({"value": 1.03, "low": 1.026, "high": 1.034, "pairs": 7}), "1.030 [1.026, 1.034]")
        self.assertEqual(ratios.text(of(1.5)), "1.50")
        self.assertEqual(ratios.interval_text(of(1.5)), "")


if __name__ == "__main__":
    unittest.main()
