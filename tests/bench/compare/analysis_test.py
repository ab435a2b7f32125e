"""Tests medians, ties, efficiency, calling a winner or not, bottlenecks, and the verdict's sentences."""

import copy
import unittest

import analysis
import bottleneck
import results as schema


def run(rate, batch=128, repeat=0, exchange=0.1, data=0.01, compute=None):
    mean = 1e3 * batch / rate
    compute = mean - exchange - data if compute is None else compute
    return {"repeat": repeat, "samples_per_second": rate, "seconds_per_epoch": 60000 / rate, "steps_measured": 90,
            "warmup_steps": 10, "step_ms": {"p50": mean, "p95": mean, "p99": mean, "mean": mean, "max": mean},
            "breakdown_ms": {"data_wait": data, "h2d": 0.0, "forward": compute / 2, "backward": compute / 2,
                             "exposed_exchange": exchange, "optimizer": 0.0, "other": 0.0},
            "exchange_bytes_per_step": {"sent": 1e6, "received": 1e6}, "gpu": None, "load": 0.1, "clock_mhz": None,
            "cpu_percent": {"worker 0": 99.0}, "parameter_sha256": "d"}


def configuration(sync, rates, workers=2, servers=0, accounting="equal-workers", scaling="weak", model="lenet5",
                  section="machine", **more):
    batch = 64 * workers if scaling == "weak" else 64
    return {"id": f"{model}/{sync}/{workers}w/{accounting}/{scaling}", "sync": sync, "model": model,
            "dataset": "fashion-mnist", "section": section, "workers": workers, "servers": servers,
            "accounting": accounting, "scaling": scaling, "global_batch": batch,
            "cores": {"worker": [str(i) for i in range(workers)], "server": [str(i) for i in range(servers)]},
            "oversubscribed": workers + servers > 2, "command": [], "trace": None, "slowest_worker_ratio": 1.0,
            "runs": [run(rate, batch, i, **more) for i, rate in enumerate(rates)]}


def made(*configurations, agreement=()):
    found = schema.empty([], "", {})
    found["configurations"] = list(configurations)
    found["agreement"] = list(agreement)
    return found


def agreement(agrees, model="lenet5"):
    return {"model": model, "peer": "ddp", "workers": 2, "steps": 20, "tolerance": 1e-4, "ours": [1.0],
            "worst_relative_difference": 1e-7 if agrees else 0.5, "worst_step": 4, "theirs": [1.5], "agrees": agrees}


def row(found, sync, group=0):
    return next(row for row in found["groups"][group]["rows"] if row["sync"] == sync)


class RatesTest(unittest.TestCase):
    def test_median_and_spread(self):
        rate = analysis.rates(configuration("ring", [90, 100, 120]))
        self.assertEqual((rate["median"], rate["min"], rate["max"]), (100, 90, 120))
        self.assertAlmostEqual(rate["spread"], 0.3)

    def test_a_difference_below_the_spread_is_a_tie(self):
        found = analysis.analyse(made(configuration("ring", [70e3, 71e3, 75e3]),
                                      configuration("mpi", [69e3, 70e3, 70e3]),
                                      configuration("star", [60e3, 60.5e3, 61e3], servers=2)))
        self.assertEqual(row(found, "ring")["tie_with"], ["lenet5/mpi/2w/equal-workers/weak"])
        self.assertEqual(row(found, "mpi")["tie_with"], ["lenet5/ring/2w/equal-workers/weak"])
        self.assertEqual(row(found, "star")["tie_with"], [])
        self.assertIn("a tie with MPI_Allreduce", found["verdict"][0])

    def test_ratio_and_order(self):
        found = analysis.analyse(made(configuration("star", [50, 50], servers=2), configuration("ring", [100, 101])))
        self.assertEqual([row["sync"] for row in found["groups"][0]["rows"]], ["ring", "star"])
        self.assertAlmostEqual(row(found, "star")["ratio_to_best"], 50 / 100.5)

    def test_efficiency_against_one_process_of_the_same_code(self):
        found = analysis.analyse(made(configuration("local", [40, 40], workers=1),
                                      configuration("ddp", [10, 10], workers=1),
                                      configuration("ring", [60, 60]), configuration("ddp", [16, 16]),
                                      configuration("star", [40, 40], workers=1, servers=1, accounting="equal-cores"),
                                      configuration("ring", [50, 50], scaling="strong")))
        self.assertAlmostEqual(row(found, "ring", 1)["efficiency"], 0.75)
        self.assertAlmostEqual(row(found, "ddp", 1)["efficiency"], 0.8)
        # A worker and a server have two cores, so they belong to the group of two workers and reach half of the ideal.
        self.assertAlmostEqual(row(found, "star", 1)["efficiency"], 0.5)
        # Strong scaling is compared with one worker with the same global batch, which is also the weak scaling's job.
        self.assertAlmostEqual(row(found, "ring", 2)["efficiency"], 0.625)


class WinnerTest(unittest.TestCase):
    def setUp(self):
        self.pair = [configuration("ring", [100, 101, 102]), configuration("ddp", [10, 11, 12])]

    def test_is_called_when_losses_agree(self):
        found = analysis.analyse(made(*self.pair, agreement=[agreement(True)]))
        self.assertTrue(found["calls_winner"])
        self.assertTrue(row(found, "ring")["best"])
        self.assertIn("Run the ring here", found["verdict"][0])

    def test_is_not_called_when_losses_disagree(self):
        found = analysis.analyse(made(*self.pair, agreement=[agreement(True), agreement(False)]))
        self.assertFalse(found["calls_winner"])
        self.assertFalse(any(row["best"] for row in found["groups"][0]["rows"]))
        self.assertIn("No winner is called", found["verdict"][0])
        self.assertIn("5.0e-01", found["verdict"][0])

    def test_is_not_called_from_single_runs(self):
        found = analysis.analyse(made(configuration("ring", [100]), configuration("ddp", [10])))
        self.assertFalse(found["calls_winner"])
        self.assertIn("No winner is called", found["verdict"][0])

    def test_always_three_sentences(self):
        for results in (made(), made(self.pair[0]), made(*self.pair), made(*self.pair, agreement=[agreement(False)])):
            found = analysis.analyse(copy.deepcopy(results))
            self.assertEqual(len(found["verdict"]), 3)

    def test_says_when_processes_shared_cores_and_bits_are_equal(self):
        star = configuration("star", [50, 51], servers=2)
        found = analysis.analyse(made(star, self.pair[0]))
        self.assertIn("more processes than cores", found["verdict"][2])
        for ring in (self.pair[0]["runs"][0], self.pair[0]["runs"][1]):
            ring["parameter_sha256"] = "other"
        found = analysis.analyse(made(star, self.pair[0]))
        self.assertIn("a defect", found["verdict"][2])


class BottleneckTest(unittest.TestCase):
    def find(self, target, *others):
        return bottleneck.find(target, [target, *others])

    def test_compute(self):
        self.assertEqual(self.find(configuration("ring", [100] * 2))["name"], "compute")

    def test_data(self):
        found = self.find(configuration("ring", [64e3], data=0.7))
        self.assertEqual(found["name"], "data")
        self.assertIn("0.70 of 2.00 ms a step (35 %)", found["why"])

    def test_exchange(self):
        found = self.find(configuration("ring", [64e3], exchange=0.9))
        self.assertEqual(found["name"], "exchange")
        self.assertIn("0.90 of 2.00 ms a step (45 %)", found["why"])

    def test_straggler(self):
        slow = configuration("ring", [64e3], exchange=0.9)
        slow["slowest_worker_ratio"] = 1.5
        self.assertEqual(self.find(slow)["name"], "straggler")
        self.assertIn("1.50 times", self.find(slow)["why"])
        slow["slowest_worker_ratio"] = 1.1
        self.assertEqual(self.find(slow)["name"], "exchange")

    def test_servers_on_the_workers_cores(self):
        star = configuration("star", [64e3], servers=2, exchange=0.9)
        star["runs"][0]["cpu_percent"].update({"server 0": 40.0, "server 1": 41.0})
        found = self.find(star, configuration("ring", [80e3]))
        self.assertEqual(found["name"], "server CPU")
        self.assertIn("81 % of a core", found["why"])
        self.assertIn("which are 90 % busy", found["why"])

    def test_servers_on_idle_cores_are_no_bottleneck(self):
        star = configuration("star", [64e3], servers=2, exchange=0.9)
        star["runs"][0]["cpu_percent"] = {"worker 0": 20.0, "worker 1": 20.0, "server 0": 11.0, "server 1": 11.0}
        self.assertEqual(self.find(star, configuration("ring", [80e3]))["name"], "exchange")

    def test_a_server_with_a_core_to_itself(self):
        star = configuration("star", [64e3], workers=1, servers=1, exchange=0.5)
        star["cores"] = {"worker": ["0"], "server": ["1"]}
        star["runs"][0]["cpu_percent"]["server 0"] = 95.0
        self.assertEqual(self.find(star)["name"], "server CPU")
        star["runs"][0]["cpu_percent"]["server 0"] = 50.0
        self.assertEqual(self.find(star)["name"], "exchange")


if __name__ == "__main__":
    unittest.main()
