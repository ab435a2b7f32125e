"""Tests in which regimes star and ring are said to win, and that what was measured and what is planned stay apart."""

import unittest

import analysis
import regimes
import results as schema
import sync_cells as cells
from made_results import make_configuration as configuration

LAB = "netlab:4+4,1gbit"


def results(*configurations, predictions=()):
    found = schema.empty([], "", {})
    found["configurations"] = list(configurations)
    found["predictions"] = list(predictions)
    return found


def prediction(sync, workers, step_ms, accounting="equal-workers", band=0.1, extrapolated=False, section=LAB,
               model="mlp"):
    return {"sync": sync, "accounting": accounting, "model": model, "section": section, "workers": workers,
            "step_ms": step_ms, "step_ms_low": step_ms * (1 - band), "step_ms_high": step_ms * (1 + band),
            "extrapolated": extrapolated}


def own_hosts(rate, **more):
    return configuration("star", [rate] * 7, 4, 4, cells.ACCOUNTING_OWN_HOSTS, section=LAB, model="mlp", **more)


class MeasuredTest(unittest.TestCase):
    def contests(self, *configurations):
        found = results(*configurations)
        return regimes.measured(found, analysis.analyse(found)["groups"])

    def test_the_fastest_star_meets_the_fastest_ring(self):
        one, = self.contests(configuration("ring", [100] * 7), configuration("ring-tcp", [110] * 7),
                             configuration("star-mpi", [90] * 7), configuration("star", [120] * 7, servers=2),
                             configuration("mpi", [500] * 7), configuration("ddp", [400] * 7))
        self.assertEqual((one.outcome, one.winner), ("star", "the star"))
        self.assertEqual(one.ratio, f"{120 / 110:.3f} [{120 / 110:.3f}, {120 / 110:.3f}]")

    def test_the_ratio_is_the_winners(self):
        one, = self.contests(configuration("ring", [150] * 7), configuration("star", [100] * 7, servers=2))
        self.assertEqual((one.outcome, one.winner, one.ratio), ("ring", "the ring", "1.500 [1.500, 1.500]"))

    def test_ties_and_too_few_repeats(self):
        ring, star = [100, 101, 99, 100, 102, 98, 100], [101, 100, 99, 101, 100, 99, 101]
        tie, = self.contests(configuration("ring", ring), configuration("star-mpi", star))
        self.assertEqual((tie.outcome, tie.ratio), (regimes.TIE, ""))
        few, = self.contests(configuration("ring", [100] * 6), configuration("star-mpi", [10] * 6))
        self.assertEqual((few.outcome, few.ratio), (regimes.UNDECIDED, ""))
        self.assertIn("fewer than 7 repeats decide nothing between", regimes.sentences([few], [])[0])
        self.assertIn("tie for lenet5 with 2 workers on this machine", regimes.sentences([tie], [])[0])

    def test_no_contest_without_both(self):
        self.assertEqual(self.contests(configuration("ring", [1] * 7), configuration("ddp", [2] * 7)), [])
        # A star with fewer workers is in no contest.
        self.assertEqual(self.contests(configuration("ring", [1] * 7), configuration(
            "star", [2] * 7, workers=1, servers=1, accounting="equal-cores")), [])

    def test_strong_scaling_counts_where_there_is_no_weak_one(self):
        weak = [configuration("ring", [2] * 7), configuration("star-mpi", [1] * 7)]
        strong = [configuration("ring", [1] * 7, scaling="strong"),
                  configuration("star-mpi", [2] * 7, scaling="strong")]
        self.assertEqual([one.outcome for one in self.contests(*weak, *strong)], ["ring"])
        self.assertEqual([one.outcome for one in self.contests(*strong)], ["star"])


class PlannedTest(unittest.TestCase):
    def test_bands_and_the_plans_error_decide(self):
        apart, = regimes.planned([prediction("ring", 8, 130), prediction("star", 8, 100)])
        self.assertEqual((apart.outcome, apart.winner, apart.ratio), ("star", "the star", "1.30"))
        # Bands overlap; bands are apart, but the difference is one that a plan may be wrong by.
        for ring, band in ((120, 0.1), (109, 0.0)):
            close, = regimes.planned([prediction("ring", 8, ring, band=band), prediction("star", 8, 100, band=band)])
            self.assertEqual((close.outcome, close.ratio), (regimes.TIE, ""))
        measured, = regimes.planned([prediction("ring", 8, 111, band=0), prediction("star", 8, 100, band=0)])
        self.assertEqual(measured.outcome, "star")
        ring, = regimes.planned([prediction("ring", 8, 50), prediction("star", 8, 100)])
        self.assertEqual(ring.outcome, "ring")

    def test_the_best_of_each_topology_counts(self):
        one, = regimes.planned([prediction("ring", 8, 130), prediction("star", 8, 300),
                                prediction("star", 8, 90, cells.ACCOUNTING_OWN_HOSTS), prediction("mpi", 8, 1),
                                prediction("ring-tcp", 8, 140)])
        self.assertEqual((one.winner, one.ratio), ("the star on hosts of its own", f"{130 / 90:.2f}"))

    def test_nothing_without_both(self):
        self.assertEqual(regimes.planned([prediction("ring", 8, 1), prediction("ring", 16, 1)]), [])
        self.assertEqual(regimes.planned([]), [])

    def test_ranges_of_workers(self):
        predictions = [prediction(sync, workers, step, extrapolated=workers > 64)
                       for workers, star in ((4, 200), (2, 200), (8, 100), (16, 50), (128, 50), (1024, 50))
                       for sync, step in (("ring", 100), ("star", star))]
        sentence, = regimes.sentences([], regimes.planned(predictions))
        self.assertIn("the ring beats every star for mlp with 2 to 4 workers on 4 hosts and 4 for servers", sentence)
        self.assertIn("are equal within the plan's error for mlp with 8 workers", sentence)
        self.assertIn("The star beats every ring for mlp with 16 to 1,024 workers (extrapolated from 128 on)", sentence)


class VerdictTest(unittest.TestCase):
    def verdict(self, *configurations, predictions=()):
        return analysis.analyse(results(*configurations, predictions=predictions))["verdict"]

    def test_measured_and_planned_are_named_as_such(self):
        jobs = [configuration("ring", [100] * 7), configuration("star", [50] * 7, servers=2),
                configuration("ring", [10] * 7, 4, section=LAB, model="mlp"), own_hosts(13)]
        planned = [prediction("ring", 64, 100), prediction("star", 64, 50, cells.ACCOUNTING_OWN_HOSTS)]
        verdict = self.verdict(*jobs, predictions=planned)
        self.assertEqual(len(verdict), 4)
        self.assertTrue(verdict[2].startswith(regimes.MEASURED), verdict[2])
        self.assertIn("the ring beats every star for lenet5 with 2 workers on this machine", verdict[2])
        self.assertIn("The star on hosts of its own beats every ring for mlp with 4 workers on 4 hosts and 4 for "
                      "servers", verdict[2])
        self.assertTrue(verdict[3].startswith(regimes.PLANNED), verdict[3])
        self.assertIn("with 64 workers", verdict[3])
        self.assertNotIn("64 workers", " ".join(verdict[:3]))
        self.assertEqual(self.verdict(*jobs), verdict[:3])

    def test_no_plan_is_taken_for_a_measurement(self):
        planned = [prediction("ring", 64, 100), prediction("star", 64, 50)]
        verdict = self.verdict(configuration("ring", [100] * 7), configuration("mpi", [50] * 7), predictions=planned)
        self.assertEqual(len(verdict), 4)
        self.assertNotIn(regimes.MEASURED, " ".join(verdict))
        self.assertIn("measure those as well", verdict[2])

    def test_a_control_that_beats_all_cells_between_hosts_is_named(self):
        def third(*rates):
            jobs = [configuration(sync, rates_of, 4, section=LAB, model="mlp")
                    for sync, rates_of in zip(("ring", "star-mpi", "ddp-tuned"), rates)]
            return self.verdict(configuration("ring", [100] * 7), configuration("star", [50] * 7, servers=2), *jobs)[2]

        self.assertIn("tuned PyTorch DDP trains mlp fastest, 1.100 [1.100, 1.100] times as fast as the ring",
                      third([10] * 7, [9] * 7, [11] * 7))
        self.assertNotIn("DDP", third([10] * 7, [9] * 7, [8] * 7))
        self.assertNotIn("DDP", third([10, 11, 10, 9, 10, 11, 9], [5] * 7, [10, 10, 11, 10, 9, 11, 10]))

    def test_neither_where_losses_disagree(self):
        found = results(configuration("ring", [100] * 7), configuration("star", [50] * 7, servers=2),
                        predictions=[prediction("ring", 64, 100), prediction("star", 64, 50)])
        found["agreement"] = [{"model": "lenet5", "peer": "ddp", "workers": 2, "steps": 20, "tolerance": 1e-4,
                               "ours": [1.0], "theirs": [1.5], "worst_relative_difference": 0.5, "worst_step": 0,
                               "agrees": False}]
        verdict = analysis.analyse(found)["verdict"]
        self.assertEqual(len(verdict), 3)
        self.assertNotIn("beats", " ".join(verdict))


if __name__ == "__main__":
    unittest.main()
