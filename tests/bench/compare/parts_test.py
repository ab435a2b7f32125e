"""Tests the schema, the agreement of losses, the matrix of jobs, and the runs made from run records."""

import json
import os
import tempfile
import unittest
import unittest.mock

import agreement
import alone
import jobs
import machine
import measure
import options
import programs
import results as schema
import training

CORES = [0, 1]


def parse(*flags):
    return options.parse(list(flags))


def matrix(*flags, torch=True):
    peer = programs.Torch("python3", "1.13", "gloo, cpu") if torch else None
    return jobs.Matrix(parse(*flags), peer, lambda model, sync, workers: {"data": "ram"})


def record(steps=100, batch=128, train_count=60000, mean=2.0):
    return {"config": {"train_count": train_count, "global_batch": batch, "device": "cpu"}, "steps": steps,
            "step_ms": {"p50": mean, "p95": mean, "p99": mean, "max": mean, "mean": mean, "steps_measured": steps - 10},
            "breakdown_ms": {part: 0.0 for part in schema.BREAKDOWN_PARTS},
            "exchange": {"bytes_sent": 1e6, "bytes_received": 2e6}, "parameter_sha256": "d",
            "epochs": [{"epoch": 0, "train_loss": 1.0, "test_accuracy": 0.5, "seconds": 2.0},
                       {"epoch": 1, "train_loss": 0.5, "test_accuracy": 0.8, "seconds": 2.0}],
            "workers": [{"compute_ms": 1.0, "cpu_percent": 99.0}, {"compute_ms": 1.5, "cpu_percent": 98.0}]}


@unittest.mock.patch.object(machine, "cores", lambda: CORES)
@unittest.mock.patch.object(programs, "binary", lambda name: "/bin/" + name)
class ResultsTest(unittest.TestCase):
    def test_what_is_written_is_read(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "results.json")
            results = schema.empty(["a"], "now", {})
            results["something later"] = 1
            schema.write(path, results)
            self.assertEqual(schema.read(path), results)
            self.assertEqual(os.listdir(folder), ["results.json"])

    def test_refuses_what_it_does_not_know(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "results.json")
            for text in ("{", "[]", '{"schema": 2}'):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                with self.assertRaises(schema.ResultsError):
                    schema.read(path)

    def test_a_row_for_each_run(self):
        results = schema.empty([], "", {})
        sampler = unittest.mock.Mock(server_seconds={"server 0": 1.0}, gpu_samples=[], clocks=[])
        job = matrix("--syncs=star,ring", "--workers=2").of_group("lenet5", 2, "weak")[0]
        job.configuration["runs"] = [measure.make_run(i, record(), sampler, 0.5) for i in range(3)]
        results["configurations"] = [job.configuration]
        with tempfile.TemporaryDirectory() as folder:
            schema.write_runs_csv(os.path.join(folder, "runs.csv"), results)
            with open(os.path.join(folder, "runs.csv"), encoding="utf-8") as file:
                lines = file.read().splitlines()
        self.assertEqual(len(lines), 4)
        row = dict(zip(lines[0].split(","), lines[1].split(",")))
        self.assertEqual((row["id"], row["warmup_steps"], row["cpu_percent_servers"]),
                         ("lenet5/star/2w/equal-workers/weak", "10", "25.0"))


class AgreementTest(unittest.TestCase):
    def test_small_differences_agree(self):
        entry = agreement.compare("lenet5", "ddp", 2, [2.0, 1.0], [2.0, 1.00009])
        self.assertTrue(entry["agrees"])
        self.assertEqual(entry["worst_step"], 1)

    def test_what_does_not_agree(self):
        for theirs in ([2.0, 1.00011], [2.0, float("nan")], [2.0], []):
            entry = agreement.compare("lenet5", "ddp", 2, [2.0, 1.0], theirs)
            self.assertFalse(entry["agrees"], theirs)
            json.dumps(entry["worst_relative_difference"], allow_nan=False)

    def test_the_rate_is_small(self):
        self.assertEqual(agreement.rate(["--seed=1"]), agreement.RATE)
        self.assertEqual(agreement.rate(["--learning_rate=0.001", "--seed=1"]), 0.001)
        self.assertEqual(agreement.rate(["--learning_rate=0.1"]), agreement.RATE)

    def test_double_precision_decides_where_single_does_not_agree(self):
        def against(theirs):
            return agreement.compare("mlp", "ddp", 2, [2.0, 1.0], theirs)

        self.assertEqual(agreement.settle(against([2.0, 1.0]), self.fail)["peer_precision"], "single")
        settled = agreement.settle(against([2.0, 1.25]), lambda: against([2.0, 1.00001]))
        self.assertTrue(settled["agrees"])
        self.assertEqual((settled["peer_precision"], settled["single_difference"]), ("double", 0.25))
        self.assertFalse(agreement.settle(against([2.0, 1.25]), lambda: against([2.0, 1.2]))["agrees"])


@unittest.mock.patch.object(machine, "cores", lambda: CORES)
@unittest.mock.patch.object(programs, "binary", lambda name: "/bin/" + name)
class MatrixTest(unittest.TestCase):
    def test_one_worker_is_one_process(self):
        found = matrix("--syncs=star,ring,mpi,ddp").of_group("lenet5", 1, "weak")
        self.assertEqual([job.configuration["sync"] for job in found], ["local", "ddp", "ddp-tuned"])

    def test_two_workers(self):
        found = {job.configuration["id"]: job for job in matrix("--syncs=star,ring,ddp").of_group("mlp", 2, "weak")}
        self.assertEqual(list(found), ["mlp/star/2w/equal-workers/weak", "mlp/ring/2w/equal-workers/weak",
                                       "mlp/star/1w/equal-cores/weak", "mlp/ddp/2w/equal-workers/weak",
                                       "mlp/ddp-tuned/2w/equal-workers/weak"])
        star = found["mlp/star/2w/equal-workers/weak"].configuration
        self.assertTrue(star["oversubscribed"])
        self.assertEqual(star["cores"], {"worker": ["0", "1"], "server": ["1", "0"]})
        fewer = found["mlp/star/1w/equal-cores/weak"].configuration
        self.assertFalse(fewer["oversubscribed"])
        self.assertEqual((fewer["cores"], fewer["global_batch"]), ({"worker": ["0"], "server": ["1"]}, 64))
        self.assertFalse(found["mlp/ddp/2w/equal-workers/weak"].configuration["oversubscribed"])
        self.assertIn("--cores=0;1", found["mlp/ddp/2w/equal-workers/weak"].configuration["command"])

    def test_strong_scaling_keeps_the_global_batch_and_measures_one_worker_once(self):
        groups = matrix("--syncs=ring,mpi", "--workers=1,2").groups()
        self.assertEqual([group[0].group[2:] for group in groups], [(1, "weak"), (2, "weak"), (2, "strong")])
        self.assertEqual(groups[1][0].configuration["global_batch"], 128)
        self.assertEqual(groups[2][0].configuration["global_batch"], 64)

    def test_without_torch_there_is_no_column_of_it(self):
        found = matrix("--syncs=ring,mpi,ddp", torch=False).of_group("lenet5", 2, "weak")
        self.assertEqual([job.configuration["sync"] for job in found], ["ring", "mpi"])


class OptionsTest(unittest.TestCase):
    def test_ddp_brings_the_tuned_one(self):
        self.assertEqual(parse("--syncs=star,ddp").syncs, ["star", "ddp", "ddp-tuned"])

    def test_several_models_and_hosts(self):
        found = parse("--model=mlp,lenet5", "--hosts=netlab:4,1gbit")
        self.assertEqual((found.models, found.hosts), (["mlp", "lenet5"], (4, "1gbit")))

    def test_quick_yields_to_what_is_given(self):
        found = parse("--quick", "--repeats=3")
        self.assertEqual((found.repeats, found.steps), (3, options.QUICK["steps"]))

    def test_refuses_nonsense(self):
        for flag in ("--syncs=moon", "--workers=0", "--workers=x", "--model=vgg", "--hosts=four", "--mod=lenet5"):
            with self.assertRaises(SystemExit) as refused, unittest.mock.patch("sys.stderr"):
                parse(flag)
            self.assertEqual(refused.exception.code, 2, flag)


class RecordTest(unittest.TestCase):
    def test_samples_of_a_step_count_the_last_batch(self):
        self.assertEqual(measure.samples_per_step(record(steps=10, batch=64, train_count=1000)), 64)
        self.assertEqual(measure.samples_per_step(record(steps=32, batch=64, train_count=1000)), 1000 / 16)

    def test_slowest_worker(self):
        self.assertAlmostEqual(measure.slowest_worker_ratio(record()), 1.5)
        self.assertIsNone(measure.slowest_worker_ratio({"workers": [{"compute_ms": 1.0}]}))

    def test_time_to_what_all_reach(self):
        entries = [{"model": "mlp", "epochs": training.epochs_of(record())} for _ in range(2)]
        entries[1]["epochs"][1]["test_accuracy"] = 0.76
        training.set_targets(entries, 0)
        self.assertEqual([entry["target_accuracy"] for entry in entries], [0.76, 0.76])
        self.assertEqual(entries[0]["seconds_to_target"], 4.0)
        training.set_targets(entries, 0.79)
        self.assertEqual([entry["seconds_to_target"] for entry in entries], [4.0, None])

    def test_losses_are_thinned_by_means(self):
        losses = [{"step": i, "seconds": i / 10, "loss": float(i)} for i in range(10)]
        self.assertEqual(training.thinned(losses, 4), [{"step": 2, "seconds": 0.2, "loss": 1.0},
                                                       {"step": 5, "seconds": 0.5, "loss": 4.0},
                                                       {"step": 8, "seconds": 0.8, "loss": 7.0},
                                                       {"step": 9, "seconds": 0.9, "loss": 9.0}])

    def test_rows_of_benchmarks(self):
        self.assertEqual(alone.rows('what bytes\n{"bytes": 1}\n\n{"bytes": 2}\n'), [{"bytes": 1}, {"bytes": 2}])

    def test_no_driver_is_no_gpu(self):
        gpus = machine.Gpus("libno-such-library.so")
        self.assertEqual((gpus.name(), gpus.sample(1)), (None, None))


class LaboratoryTest(unittest.TestCase):
    """Measures with jobs that fail in the given calls of run_job, counted from 0 for each job."""

    def measure(self, failing):
        calls, said = {}, []

        def run_job(job, _steps, _gpus):
            call = calls[job.name] = calls.get(job.name, -1) + 1
            if call in failing.get(job.name, ()):
                raise programs.ProgramError(f"{job.name} ended with [1]:\ndetails")
            versions = {"host": {"versions": {}, "device": "cpu"}}
            return {**record(), **versions}, unittest.mock.Mock(server_seconds={}, gpu_samples=[], clocks=[])

        jobs_of_group = [unittest.mock.Mock(configuration={"id": name, "runs": []}) for name in ("star", "ddp")]
        for job in jobs_of_group:
            job.name = job.configuration["id"]
        laboratory = measure.Laboratory(parse("--repeats=3"), None, said.append)
        with unittest.mock.patch.object(measure, "run_job", run_job):
            measured = laboratory.measure(jobs_of_group)
        for job in jobs_of_group:
            self.assertEqual(bool(job.configuration["runs"]), job in measured, job.name)
        return {job.name: [run["repeat"] for run in job.configuration["runs"]] for job in measured}, laboratory.failures

    def test_all_well(self):
        self.assertEqual(self.measure({}), ({"star": [0, 1, 2], "ddp": [0, 1, 2]}, []))

    def test_one_failure_is_noted_and_the_run_repeated(self):
        runs, failures = self.measure({"ddp": [0, 3]})
        self.assertEqual(runs, {"star": [0, 1, 2], "ddp": [0, 1, 2]})
        self.assertEqual(failures, ["ddp ended with [1]: it was run again"] * 2)

    def test_a_job_that_fails_twice_takes_no_other_with_it(self):
        for failing in ([0, 1], [2, 3]):
            runs, failures = self.measure({"ddp": failing})
            self.assertEqual(runs, {"star": [0, 1, 2]})
            self.assertEqual(failures[-1], "ddp ended with [1]: it failed twice and is left out")


if __name__ == "__main__":
    unittest.main()
