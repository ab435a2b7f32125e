"""Tests that a plan of bench:plan becomes predictions, and that what is no plan is refused."""

import copy
import json
import os
import tempfile
import unittest

import predictions
import regimes
import sync_cells as cells


def row(name, workers, step_ms, band=None, extrapolated=False):
    low, high = band or (step_ms, step_ms)
    return {"cell": name, "own_hosts": name.endswith("on own hosts"), "workers": workers, "step_ms": step_ms,
            "step_ms_low": low, "step_ms_high": high, "extrapolated": extrapolated}


# As bench:plan --out writes it: a row for each cell and number of workers.
PLAN = {
    "title": "mlp, predicted",
    "workload": {"name": "mlp", "bytes": 7.45e6, "compute_s": 0.005, "batch": 64, "threads": 1},
    "cluster": {"hosts": 4, "workers_per_host": 1, "cores": 2, "bytes_per_second": 119.6e6, "latency_s": 3e-5},
    "alone": 12800.0,
    "rows": [row("ring/mpi", 4, 100.0), row("ring/mpi", 128, 150.0, (140.0, 160.0), True),
             row("star/grpc on own hosts", 4, 80.0), row("star/grpc on own hosts", 128, 90.0, (80.0, 100.0), True),
             row("star/grpc with the workers", 4, 120.0), row("star/grpc with the workers", 128, 170.0, None, True),
             row("moon/mpi", 4, 1.0)],
}


class PredictionsTest(unittest.TestCase):
    def test_a_plan(self):
        found = predictions.of_plan(PLAN)
        self.assertEqual([(one["sync"], one["accounting"], one["workers"], one["step_ms"], one["extrapolated"])
                          for one in found],
                         [("ring", "equal-workers", 4, 100.0, False), ("ring", "equal-workers", 128, 150.0, True),
                          ("star", cells.ACCOUNTING_OWN_HOSTS, 4, 80.0, False),
                          ("star", cells.ACCOUNTING_OWN_HOSTS, 128, 90.0, True),
                          ("star", "equal-workers", 4, 120.0, False), ("star", "equal-workers", 128, 170.0, True)])
        self.assertEqual({(one["model"], one["section"]) for one in found},
                         {("mlp", "hosts with 2 cores and 0.957 Gbit/s of payload")})
        self.assertAlmostEqual(found[1]["step_ms_high"], 160.0)
        self.assertAlmostEqual(found[1]["step_ms_low"], 140.0, places=3)
        self.assertAlmostEqual(found[0]["step_ms_low"], 100.0)
        json.dumps(found)

    def test_it_reaches_the_verdict(self):
        sentence, = regimes.sentences([], regimes.planned(predictions.of_plan(PLAN)))
        self.assertIn("the star on hosts of its own beats every ring for mlp with 4 to 128 workers (extrapolated from "
                      "128 on) on hosts with 2 cores and 0.957 Gbit/s of payload (1.25 to 1.67 times as fast)",
                      sentence)

    def test_one_host(self):
        self.assertEqual(predictions.cluster_text({"hosts": 1, "cores": 1}), "one host with 1 core")

    def test_every_cell_has_a_name_in_plans(self):
        self.assertEqual({predictions.plan_name(cell) for cell in cells.CELLS},
                         {"star/grpc", "star/tcp", "co-located/mpi", "co-located/tcp", "ring/mpi", "ring/tcp"})

    def test_what_is_no_plan_is_refused(self):
        def without(name):
            plan = copy.deepcopy(PLAN)
            del plan[name]
            return json.dumps(plan)

        short = copy.deepcopy(PLAN)
        del short["rows"][0]["step_ms"]
        still = copy.deepcopy(PLAN)
        still["rows"][0]["step_ms_low"] = "fast"
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            for text in ("", "3", "[]", "{}", without("workload"), without("rows"), without("cluster"),
                         json.dumps(short), json.dumps(still)):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                with self.assertRaisesRegex(predictions.PredictionError, "plan.json is no plan .*//bench:plan"):
                    predictions.read(path)
            with open(path, "w", encoding="utf-8") as file:
                json.dump(PLAN, file)
            self.assertEqual(predictions.read(path), predictions.of_plan(PLAN))
            with self.assertRaisesRegex(predictions.PredictionError, "No such file"):
                predictions.read(path + ".gone")


if __name__ == "__main__":
    unittest.main()
