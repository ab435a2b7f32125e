"""Tests bench:growth with programs that are not there."""

import contextlib
import io
import json
import os
import tempfile
import unittest
import unittest.mock

import cost_book
import cost_fit
import growth
import growth_runs
import machine
import programs
import sync_cells as cells
from made_costs import CORES, COSTS, KERNELS, of_medium

MIB = 1 << 20
ELEMENTS = 1 << 22
FEW = ("--workers=1,2,4,8,16", "--syncs=ring,star")


def flag(argv, name, default=""):
    return next((word.partition("=")[2] for word in argv if word.startswith(f"--{name}=")), default)


class Programs:
    """Answers as the benches would, with COSTS."""

    def __init__(self, failing=()):
        self.failing, self.ran = failing, []

    def run(self, argv, _environment=None, _seconds_max=0.0):
        self.ran.append(argv)
        if any(word in " ".join(argv) for word in self.failing):
            raise programs.ProgramError(f"{argv[0]} ended with 1:\nboom")
        if "/bin/bench/common_bench" in argv:
            seconds = {workers: 4 * ELEMENTS * (workers * KERNELS["sum_byte"] + KERNELS["apply_byte"])
                       for workers in (2, 8)}
            return json.dumps({"benchmarks": [
                {"name": f"ShardChain/{count}/workers:{workers}/piece:1048576/shift:5",
                 "real_time": 1e9 * seconds[workers] * (1 if count == ELEMENTS else 1e-6)}
                for workers in (2, 8) for count in (1024, ELEMENTS)]})
        star = "/bin/bench/star_bench" in argv
        syncs = flag(argv, "syncs").split(",")
        if star:
            syncs = ["star" if flag(argv, "transport") == "grpc" else "star-servers-tcp"]
        if syncs == ["library"]:
            return json.dumps({"sync": "library", "workers": 1, "bytes": 4096, "latency_us": 0.0,
                               "p95_us": 10_000 * 1.01645}) + "\n"
        workers = int(flag(argv, "workers")) if star else int(argv[argv.index("-np") + 1])
        sockets = flag(argv, "shared_memory") == "false" if star else "tcp,self" in argv
        computing = 1e-6 * int(flag(argv, "compute_us"))
        lines = []
        for name in syncs:
            for size in map(int, flag(argv, "bytes").split(",")):
                one = cost_fit.Measurement(name, "sockets" if sockets else "memory", workers,
                                           int(flag(argv, "servers", "0")), size, int(flag(argv, "bucket_bytes")),
                                           computing, 0.0)
                seconds = cost_fit.predicted_s(one, CORES, of_medium(COSTS, one.medium))
                lines.append(json.dumps({"sync": name, "workers": workers, "bytes": size,
                                         "latency_us": 1e6 * (seconds - computing), "p95_us": 1e6 * seconds}))
        return "\n".join(["noise", *lines])


@unittest.mock.patch.object(machine, "cores", lambda: [0, 1])
@unittest.mock.patch.object(programs, "binary", lambda name: "/bin/" + name)
class RunsTest(unittest.TestCase):
    def plan(self, syncs=cells.SYNCS, workers=(1, 2, 8, 64)):
        return growth_runs.plan_runs(list(syncs), list(workers), CORES)

    def test_commands(self):
        for run in self.plan():
            argv = run.command()
            self.assertEqual("tcp,self" in argv, run.medium == "sockets" and not run.servers)
            self.assertEqual(argv[0] == "mpirun", not run.servers)
            if not run.servers:
                self.assertGreater(run.workers, 1)
                self.assertEqual(flag(argv, "syncs"), "ring,star-mpi" if run.medium == "memory" else
                                 "ring,ring-tcp,star-mpi,star-tcp")
                self.assertEqual(argv[argv.index("--bind-to") + 1], "core" if run.workers <= 2 else "none")
            if min(run.sizes) <= growth_runs.LARGE_BYTES:
                self.assertLessEqual(max(run.sizes) * run.workers, growth_runs.BYTES_OF_ALL_MAX)
                self.assertGreaterEqual(int(flag(argv, "steps_max")), growth_runs.STEPS_MIN)

    def test_vectors_to_256_mib_of_few_workers(self):
        for quick, sizes in ((False, {24 * MIB, 64 * MIB, 96 * MIB, 256 * MIB}), (True, {24 * MIB, 256 * MIB})):
            runs = growth_runs.plan_runs(cells.SYNCS, growth_runs.WORKERS, CORES, quick)
            large = [run for run in runs if max(run.sizes) > 16 * MIB]
            self.assertEqual({run.workers for run in large}, {2, 4})  # 64 would need 48 GiB for a vector and its copies
            self.assertEqual({size for run in large for size in run.sizes}, sizes)
            self.assertEqual({(sync, run.medium) for run in large for sync in run.syncs},
                             {(sync, run.medium) for run in runs for sync in run.syncs})
            self.assertTrue(all(int(flag(run.command(), "steps_max")) <= growth_runs.LARGE_STEPS for run in large))

    def test_quick_has_a_part_of_the_sizes_and_steps(self):
        whole, quick = (growth_runs.plan_runs(cells.SYNCS, growth_runs.QUICK_WORKERS, CORES, each)
                        for each in (False, True))
        self.assertLessEqual(len(quick), len(whole))

        def steps(runs):
            return sum(int(flag(run.command(), "steps_max")) * len(run.sizes) for run in runs)

        self.assertLess(steps(quick), steps(whole) / 6)
        self.assertEqual({(sync, run.medium) for run in quick for sync in run.syncs},
                         {(sync, run.medium) for run in whole for sync in run.syncs})

    def test_every_cell_is_measured(self):
        self.assertEqual({sync for run in self.plan() for sync in run.syncs}, set(cells.SYNCS))
        for sync in ("ring-tcp", "star-tcp"):
            self.assertEqual({run.medium for run in self.plan([sync])}, {"sockets"})
        self.assertEqual({run.medium for run in self.plan(["star-servers-tcp"])}, {"memory", "sockets"})
        self.assertEqual({sync for run in self.plan(["ring"]) for sync in run.syncs}, {"ring"})
        self.assertEqual({run.servers for run in self.plan(["star"]) if run.workers == 64}, {1, 4})
        computing = {run.compute_s for run in self.plan() if run.workers > CORES}
        self.assertEqual(computing, {0.0})
        for workers in ([1, 3], [2], [4, 8]):
            self.assertEqual({run.workers for run in self.plan(["ring", "star"], workers)}, set(workers))

    def test_the_fit_sees_the_runs_with_many_messages(self):
        self.assertIn(growth_runs.MESSAGES[0], cost_fit.FIT_BYTES)
        self.assertTrue(any(run.bucket_bytes == growth_runs.MESSAGES[1] for run in self.plan()))

    def test_rounds_are_in_turns_and_become_medians(self):
        fake = Programs()
        runs = self.plan(["ring"], [2, 4])
        with unittest.mock.patch.object(programs, "run", fake.run), contextlib.redirect_stdout(io.StringIO()) as said:
            *_, (found, failures) = growth_runs.rounds(runs, 3)
        self.assertRegex(said.getvalue(), "this round took [0-9]+ s; rounds that are left: 2")
        first, second, third = (fake.ran[i * len(runs):(i + 1) * len(runs)] for i in range(3))
        self.assertEqual((first, second), (third, first[::-1]))
        self.assertEqual(failures, [])
        self.assertEqual(len(found), sum(len(run.sizes) for run in runs))
        some = [cost_fit.Measurement("ring", "memory", 2, 0, 4096, 1, 0.0, seconds) for seconds in (3.0, 1.0, 9.0)]
        median, = growth_runs.medians(some)
        self.assertEqual(median.seconds, 3.0)

    def test_what_fails_is_told_once_and_left_out(self):
        fake = Programs(failing=["star_bench"])
        with unittest.mock.patch.object(programs, "run", fake.run), contextlib.redirect_stdout(io.StringIO()):
            *_, (found, failures) = growth_runs.rounds(self.plan(["ring", "star"], [2]), 2)
        self.assertEqual({one.sync for one in found}, {"ring"})
        self.assertEqual(len(failures), len(set(failures)))
        self.assertEqual(len(failures), sum("star_bench" in argv[0] for argv in fake.ran))
        self.assertRegex(failures[0], "^star by memory, 2 workers, 1 servers, 19 sizes to 16384 KiB, buckets of 1024 "
                                      "KiB, 0 ms of computing: /bin/bench/star_bench ended with 1")

    def test_kernels(self):
        with unittest.mock.patch.object(programs, "run", Programs().run):
            found = growth_runs.measure_kernels()
            self.assertAlmostEqual(growth_runs.measure_jitter(), 0.01)
        for name in KERNELS:
            self.assertAlmostEqual(1e9 * found[name], 1e9 * KERNELS[name])


@unittest.mock.patch.object(machine, "cores", lambda: [0, 1])
@unittest.mock.patch.object(programs, "binary", lambda name: "/bin/" + name)
class GrowthTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = folder.name

    def run_growth(self, *flags, failing=()):
        repeats = [] if "--quick" in flags else ["--repeats=1"]
        with unittest.mock.patch.object(programs, "run", Programs(failing).run), \
                unittest.mock.patch("sys.argv", ["growth", "--out=" + self.out, *repeats, *flags]), \
                contextlib.redirect_stdout(io.StringIO()) as said:
            return growth.main(), said.getvalue()

    def test_files(self):
        status, said = self.run_growth("--workers=1,2,4,8,16,64")
        self.assertEqual(status, 0, said)
        self.assertEqual(sorted(os.listdir(self.out)), ["costs.json"])
        book = cost_book.read(os.path.join(self.out, "costs.json"))
        self.assertEqual({costs.workers_max for costs in book.costs.values()}, {64})
        self.assertEqual(book.costs["ring", "memory"].contention, COSTS.contention)
        self.assertTrue(all(costs.worst_error < 1e-6 for costs in book.costs.values()))
        self.assertIn("error on sizes not seen, %", said)

    def test_an_interruption_loses_a_round(self):
        fake = Programs()
        runs = len(growth_runs.plan_runs(["ring"], [2, 4, 8], CORES))

        def run(argv, *more):
            if sum("ring_bench" in word for one in fake.ran for word in one) > runs + 3:
                raise KeyboardInterrupt
            return fake.run(argv, *more)

        with unittest.mock.patch.object(programs, "run", run), contextlib.redirect_stdout(io.StringIO()), \
                unittest.mock.patch("sys.argv", ["growth", "--out=" + self.out, "--repeats=3", "--syncs=ring",
                                                 "--workers=2,4,8"]), self.assertRaises(KeyboardInterrupt):
            growth.main()
        costs = cost_book.read(os.path.join(self.out, "costs.json")).costs
        self.assertLess(costs["ring", "memory"].worst_error, 1e-6)

    def test_quick_is_one_round(self):
        with unittest.mock.patch.object(growth_runs, "rounds", wraps=growth_runs.rounds) as rounds:
            status, said = self.run_growth("--quick")
        self.assertEqual(status, 0, said)
        runs, repeats = rounds.call_args[0]
        self.assertEqual((repeats, {run.workers for run in runs}), (1, {1, 2, 4, 8}))
        self.assertRegex(said, "this round took [0-9]+ s; rounds that are left: 0")
        book = cost_book.read(os.path.join(self.out, "costs.json"))
        self.assertEqual({(costs.workers_max, costs.bytes_max) for costs in book.costs.values()}, {(8, 256 * MIB)})
        self.assertTrue(all(costs.worst_error < 1e-5 for costs in book.costs.values()))

    def test_the_error_is_stated_and_written(self):
        predicted_s = cost_fit.predicted_s

        def slow(one, *more):
            return predicted_s(one, *more) * (3 if one.bytes == cost_fit.TEST_BYTES[0] and not one.seconds else 1)

        # The programs ask for a measurement of 0 s, the fit for those that were measured.
        with unittest.mock.patch.object(cost_fit, "predicted_s", slow):
            status, said = self.run_growth(*FEW)
        self.assertEqual(status, 0)
        self.assertRegex(said, r"\nring by memory +0\.0 +66\.7 .* 6144 bytes\n")
        book = cost_book.read(os.path.join(self.out, "costs.json"))
        self.assertAlmostEqual(book.costs["ring", "memory"].worst_error, 2 / 3)
        self.assertEqual(book.command, f"bazel run //bench:growth -- --out={self.out} --repeats=1 {' '.join(FEW)}")

    def test_failures(self):
        status, said = self.run_growth(*FEW, failing=["star_bench"])
        self.assertEqual(status, 1)
        self.assertIn("not measured: star by memory", said)
        for failing, reason in (("ring_bench", "mpirun ended with 1"),
                                ("star_bench", "no cell could be fitted: star by memory")):
            with contextlib.redirect_stderr(io.StringIO()) as stderr:
                self.assertEqual(self.run_growth("--workers=2", "--syncs=star", failing=[failing])[0], 2)
            self.assertTrue(stderr.getvalue().startswith("growth: " + reason), stderr.getvalue())

    def test_refused(self):
        for flags in (["--workers=0"], ["--syncs=moon"], ["--repeats=0"], ["--lab=1gbit:4"]):
            with self.assertRaises(SystemExit), unittest.mock.patch("sys.stderr"):
                growth.parse(flags)
        self.assertEqual([growth.parse(flags).repeats for flags in ([], ["--quick"], ["--quick", "--repeats=2"])],
                         [3, 1, 2])


if __name__ == "__main__":
    unittest.main()
