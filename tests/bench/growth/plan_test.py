"""Tests plans: crossings, servers, verdicts, what is printed and written, and what is refused."""

import contextlib
import dataclasses
import io
import json
import os
import subprocess
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree as ElementTree

import cost_book
import exchange_model as model
import line_plot
import machine
import plan as program
import planning
import predictions
import programs
import regimes
import sync_cells as cells
from emulated_hosts import Comparison, Link
from made_costs import COSTS, FREE, make_book
from workload import Cluster, Workload

MIB = 1 << 20
POWERS = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
HOSTS = Cluster(hosts=4, cores=2, bytes_per_second=119.6e6, latency_s=5e-5)


def make(size=8 * MIB, compute_s=0.005, cluster=HOSTS, workers=tuple(POWERS), costs=COSTS, **more):
    return planning.make(Workload("mlp", size, compute_s), cluster, workers, make_book(costs), **more)


class PlanningTest(unittest.TestCase):
    def test_lines(self):
        names = [line.name for line in make(workers=[2]).lines]
        self.assertEqual(names, ["ring/mpi", "ring/tcp", "co-located/mpi", "co-located/tcp",
                                 "star/tcp with the workers", "star/tcp on own hosts", "star/grpc with the workers",
                                 "star/grpc on own hosts"])
        on_one = [line.name for line in make(workers=[2], cluster=Cluster(cores=2)).lines]
        self.assertEqual(len(on_one), 6)
        self.assertNotIn("star/grpc on own hosts", on_one)

    def test_servers(self):
        grpc, tcp = cells.BY_SYNC["star"], cells.BY_SYNC["star-servers-tcp"]
        self.assertEqual(planning.server_counts(grpc, 1), [1])
        self.assertEqual(planning.server_counts(grpc, 6), [1, 2, 4, 6])
        self.assertEqual(planning.server_counts(grpc, 1024), [2 ** power for power in range(9)])
        self.assertEqual(planning.server_counts(tcp, 1000), [1, 2, 4, 8, 16])
        self.assertEqual(planning.server_counts(tcp, 1024), [])
        # Each server on a host of its own adds its link, so the plan takes as many as there are workers.
        for line in make(costs=FREE, workers=[4, 16]).lines:
            if line.own_hosts:
                self.assertEqual([one.servers for one in line.points], [4, 16])
        # Where nothing is gained by more servers, one is taken.
        fast = dataclasses.replace(HOSTS, bytes_per_second=1e15)
        self.assertEqual({one.servers for line in make(costs=FREE, cluster=fast).lines if line.place.has_servers
                          for one in line.points if one}, {1})
        self.assertEqual({one.servers for line in make(servers=3, workers=[4]).lines for one in line.points}, {0, 3})

    def test_jobs_that_our_programs_refuse(self):
        for found, lost in ((make(), [1024]), (make(servers=256), [1024]),
                            (make(servers=250, workers=[2, 800]), [800])):
            for line in found.lines:
                over_tcp = line.place.sync == "star-servers-tcp"
                self.assertEqual([workers for workers, point in zip(found.workers, line.points) if point is None],
                                 lost if over_tcp else [], line.name)
                self.assertTrue(all(point.servers <= 256 for point in line.points if point))
            self.assertTrue(planning.crossings(found) and planning.verdict(found))
            self.assertEqual(planning.to_json(found)["workers"], [one for one in found.workers if one not in lost])
        text = "\n".join(program.text_of(make()))
        self.assertRegex(text, r"star/tcp on own hosts .* - \n")
        self.assertIn("- is no job: at most 256 servers, and over TCP at most 1024 workers and servers", text)
        ElementTree.fromstring(program.picture_of(make(workers=[1024])))

    def test_the_default_size_of_a_bucket(self):
        on_one, between = Cluster(cores=2), dataclasses.replace(HOSTS, workers_per_host=2)
        unset, given = Workload("a", MIB, bucket_bytes=0), Workload("a", MIB, bucket_bytes=4096)
        star = cells.BY_SYNC["star"]
        own = dataclasses.replace(star, placement=cells.OWN_HOSTS)
        over_tcp = cells.BY_SYNC["star-servers-tcp"]
        for place, workers, servers, cluster, expected in (
                (star, 4, 4, on_one, 4 * MIB), (star, 2, 2, between, 4 * MIB), (star, 4, 4, between, MIB // 2),
                (star, 4, 16, between, MIB), (own, 2, 1, between, MIB // 8), (over_tcp, 4, 2, between, MIB // 4),
                (over_tcp, 4, 4, on_one, 4 * MIB), (cells.BY_SYNC["star-mpi"], 4, 0, on_one, MIB),
                (cells.BY_SYNC["ring"], 4, 0, between, MIB)):
            self.assertEqual(planning.bucket_bytes(place, workers, servers, cluster, unset), expected)
            self.assertEqual(planning.bucket_bytes(place, workers, servers, cluster, given), 4096)

        def star_step(size):
            found = planning.make(Workload("a", 8 * MIB, 0.001, bucket_bytes=size), on_one, [2], make_book())
            return next(line.points[0].step_s for line in found.lines if line.name.startswith("star/grpc"))

        self.assertEqual(star_step(0), star_step(4 * MIB))
        self.assertNotEqual(star_step(0), star_step(MIB))

    def test_own_hosts_win_between_hosts(self):
        found = make(costs=FREE, workers=[4, 8])
        line, best = found.best(0)
        self.assertTrue(line.own_hosts)
        _, rival = found.best(0, lambda line: line.place.topology == "ring")
        self.assertGreater(rival.step_s / best.step_s, 1.2)
        self.assertIn("4 to 8 workers: star/tcp on own hosts with 4 to 8 servers is the fastest; the best ring takes",
                      planning.crossings(found)[0])

    def test_crossing(self):
        # Two ranks exchange in as many hops either way, and without servers' two processes. Many ranks make many hops.
        slow_start = dataclasses.replace(FREE, seconds={**FREE.seconds, "hop": 1e-3, "message": 1e-6})
        found = make(256 * 1024, 1.0, Cluster(cores=2), [2, 64], slow_start)
        self.assertEqual([found.best(index)[0].place.topology for index in (0, 1)], ["ring", "star"])
        sentences = planning.crossings(found)
        self.assertEqual(len(sentences), 2)
        self.assertTrue(sentences[0].startswith("2 workers: ring/mpi is the fastest; the best star takes 1.00 times"))
        self.assertTrue(sentences[1].startswith("64 workers: "))

    def test_within_the_bands(self):
        tied = make(costs=dataclasses.replace(FREE, band=0.5), workers=[4])
        apart = make(costs=dataclasses.replace(FREE, band=0.02), workers=[4])
        self.assertIn(", which is within the bands", planning.crossings(tied)[0])
        self.assertNotIn("bands", planning.crossings(apart)[0])

    def test_do_not_distribute(self):
        found = make(64 * MIB, 0.001, workers=[2, 4])
        self.assertEqual(len(planning.verdict(found)), 1)
        self.assertIn("do not distribute this: one process makes", planning.verdict(found)[0])

    def test_distribute_from_some_workers_on(self):
        text = "; ".join(planning.verdict(make(8 * MIB, 0.02)))
        self.assertIn("2, 4 workers make fewer than 1.1 times the samples/s of one process", text)
        self.assertIn("the most samples/s", text)

    def test_where_more_workers_gain_little(self):
        text = "; ".join(planning.verdict(make(4096, 0.01, Cluster(cores=4), [2, 4, 8, 16], FREE)))
        self.assertIn("beyond 4 workers, more of them gain little: 1.00 times the samples/s with 8", text)
        self.assertNotIn("beyond", "; ".join(planning.verdict(make(4096, 0.01, Cluster(cores=64), [2, 4, 8], FREE))))

    def test_workers_of_one_host_reach_servers_elsewhere_by_sockets(self):
        memory = dataclasses.replace(FREE, seconds={**FREE.seconds, "step": 1.0})
        book = make_book(FREE)
        book = dataclasses.replace(book, costs={key: memory if key[1] == "memory" else FREE for key in book.costs})
        cluster = dataclasses.replace(HOSTS, workers_per_host=2)
        found = planning.make(Workload("a", 4096, 0.001), cluster, [2], book)
        slow = {line.name for line in found.lines if line.points[0].step_s > 1}
        self.assertEqual(slow, {"ring/mpi", "co-located/mpi", "star/grpc with the workers",
                                "star/tcp with the workers"})

    def test_bands_and_extrapolation(self):
        line = make().lines[0]
        self.assertEqual([one.extrapolated for one in line.points], [workers > 64 for workers in POWERS])
        self.assertEqual([round(one.band, 3) for one in line.points[-5:]], [0.05, 0.075, 0.1, 0.125, 0.15])
        self.assertEqual(make().measured_until, 64)
        # A larger model is as far from the measurements as more workers.
        large = make(32 * MIB, workers=[2, 4])
        self.assertEqual({(one.extrapolated, round(one.band, 3)) for each in large.lines for one in each.points},
                         {(True, 0.075)})
        self.assertEqual(large.measured_until, 0)

    def test_every_cell_is_extrapolated_from_its_own_measurements(self):
        book = make_book()
        few = dataclasses.replace(COSTS, workers_max=4)
        book = dataclasses.replace(book, costs={key: few if key[0] == "star" else COSTS for key in book.costs})
        found = planning.make(Workload("a", MIB, 0.01), HOSTS, [2, 8], book)
        self.assertEqual({line.place.sync for line in found.lines if line.points[1].extrapolated}, {"star"})
        self.assertFalse(any(line.points[0].extrapolated for line in found.lines))
        self.assertEqual(found.measured_until, 4)

    def test_notes(self):
        book = dataclasses.replace(make_book(syncs=("ring", "ring-tcp", "star-mpi", "star-tcp", "star")),
                                   wasted_buckets={})
        found = planning.make(Workload("a", MIB, 0.01), HOSTS, [2], book)
        self.assertEqual(len(found.notes), 2)
        self.assertIn("star-servers-tcp by sockets was not measured", found.notes[0])
        self.assertIn("//bench:growth -- --lab", found.notes[1])
        self.assertEqual(make().notes, [])

    def test_one_process_computes_and_updates(self):
        found = make(MIB, 0.01, workers=[2])
        self.assertAlmostEqual(found.alone, 64 / (0.01 + MIB * COSTS.seconds["apply_byte"]))

    def test_jitter_reaches_the_plan(self):
        book = make_book()
        steps = [planning.make(Workload("a", 4096, 1.0), HOSTS, [64], each).lines[0].points[0].step_s
                 for each in (book, dataclasses.replace(book, jitter=0.02))]
        self.assertGreater(steps[1], 1.04 * steps[0])


class OutputTest(unittest.TestCase):
    def test_the_comparison_reads_it(self):
        made = make()
        text = json.dumps(planning.to_json(made))
        found = predictions.of_plan(json.loads(text))
        self.assertEqual(len(found), 8 * (len(POWERS) - 1))  # over TCP 1,024 workers can have no servers
        by_key = {(one["sync"], one["accounting"], one["workers"]): one for one in found}
        self.assertEqual(len(by_key), len(found))
        for line in made.lines:
            accounting = cells.ACCOUNTING_OWN_HOSTS if line.own_hosts else "equal-workers"
            for point in line.points[:-1]:
                one = by_key[line.place.sync, accounting, point.workers]
                self.assertAlmostEqual(one["step_ms"], 1e3 * point.step_s)
                self.assertAlmostEqual(one["step_ms_high"], 1e3 * point.step_s * (1 + point.band))
                self.assertAlmostEqual(one["step_ms_low"], 1e3 * point.step_s * (1 - point.band))
                self.assertEqual(one["extrapolated"], point.workers > 64)
                self.assertEqual(one["section"], "hosts with 2 cores and 0.957 Gbit/s of payload")
        self.assertEqual(len(regimes.sentences([], regimes.planned(found))), 1)

    def test_printed(self):
        text = "\n".join(program.text_of(make()))
        for wanted in ("step ms", "exposed exchange ms", "samples/s", "servers", "1,024", "* extrapolated",
                       "star/grpc on own hosts", "Verdict: ", "is the fastest"):
            self.assertIn(wanted, text)
        self.assertRegex(text, r"\nring/mpi( +[\d.]+ ){6}( +[\d.]+\*){4}\n")
        self.assertNotIn("*", "\n".join(program.text_of(make(workers=[2, 4]))))
        self.assertLessEqual(max(len(line) for line in text.splitlines() if line.startswith(("ring", "star"))), 120)

    def test_the_error_of_each_cell_is_stated(self):
        book = make_book(dataclasses.replace(COSTS, median_error=0.123, worst_error=0.456))
        made = planning.make(Workload("mlp", MIB, 0.01), HOSTS, [2], book)
        self.assertEqual({(line["median_error"], line["worst_error"]) for line in planning.to_json(made)["lines"]},
                         {(0.123, 0.456)})
        text = "\n".join(program.text_of(made))
        for line in made.lines:
            self.assertRegex(text, rf"\n{line.name} +12 +46\n")

    def test_picture(self):
        root = ElementTree.fromstring(program.picture_of(make()))
        kinds = [element.tag.rpartition("}")[2] for element in root.iter()]
        self.assertEqual((kinds.count("polyline"), kinds.count("polygon")), (8, 8))
        self.assertIn("extrapolated", ElementTree.tostring(root, "unicode"))
        for workers in ([128, 256], [128]):
            self.assertIn("extrapolated", program.picture_of(make(workers=workers)))
        self.assertIn("extrapolated", program.picture_of(make(32 * MIB, workers=[2, 4])))
        self.assertNotIn("extrapolated", program.picture_of(make(workers=[2, 64])))
        ElementTree.fromstring(line_plot.draw("a < b", "x", "y", [line_plot.Line("one", [1.0], [2.0])]))


@unittest.mock.patch.object(machine, "cores", lambda: [0, 1])
class ProgramTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.costs = os.path.join(self.folder, "costs.json")
        cost_book.write(self.costs, make_book())

    def run_plan(self, *flags, costs=True):
        """(exit status, standard output, standard error)"""
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            try:
                status = program.main([*flags, *["--costs=" + self.costs] * costs])
            except SystemExit as end:
                status = end.code
        return status, out.getvalue(), err.getvalue()

    def test_described(self):
        out, plot = os.path.join(self.folder, "plan.json"), os.path.join(self.folder, "plan.svg")
        status, text, _ = self.run_plan("--bytes=8388608", "--compute_ms=5", "--hosts=4", "--gbits=1", "--out=" + out,
                                        "--plot=" + plot)
        self.assertEqual(status, 0)
        self.assertIn("0.957 Gbit/s of payload and 50 us between hosts", text)
        self.assertEqual(len(predictions.read(out)), 72)
        ElementTree.parse(plot)

    def test_one_host(self):
        status, text, _ = self.run_plan("--bytes=8388608", "--compute_ms=5")
        self.assertEqual(status, 0)
        self.assertNotIn("own hosts", text)
        self.assertNotIn("between hosts", text)

    def test_a_model_and_a_cluster_are_measured(self):
        with unittest.mock.patch.object(program, "model_facts", lambda *_: (8 * MIB, 0.004)), \
                unittest.mock.patch.object(program, "link", lambda hosts, _: Link(1e9 / 8 * 10, 1e-5)):
            status, text, _ = self.run_plan("--model=mlp", "--measure=a,b,c")
            self.assertEqual(status, 0)
            self.assertIn("mlp: 8,388,608 bytes, 4.00 ms of computing", text)
            self.assertIn("10 Gbit/s of payload and 10 us", text)
            self.assertIn("7.00 ms of computing", self.run_plan("--model=mlp", "--compute_ms=7")[1])

    def test_refusals(self):
        for flags, said in (([], "give either --model=mlp, or --bytes=B and --compute_ms=T"),
                            (["--model=mlp", "--bytes=4"], "give either --model"),
                            (["--bytes=4096"], "--bytes needs --compute_ms"),
                            (["--bytes=4096", "--compute_ms=1", "--hosts=4"], "--gbits, or --measure"),
                            (["--bytes=4096", "--compute_ms=1", "--hosts=4", "--gbits=1", "--measure=a,b"],
                             "give either --measure"),
                            (["--bytes=1", "--compute_ms=1"], "at least one parameter"),
                            (["--bytes=4096", "--compute_ms=1", "--workers=2048"], "2 to 1024 workers"),
                            (["--bytes=4096", "--compute_ms=1", "--measure=a"], "between two hosts"),
                            (["--bytes=4096", "--compute_ms=1", "--servers=257"], "1 to 256 servers"),
                            (["--bytes=4096", "--compute_ms=1", "--servers=-1"], "1 to 256 servers"),
                            (["--bytes=4096", "--compute_ms=1", "--hosts=4", "--gbits=nan"], "a finite number"),
                            (["--bytes=4096", "--compute_ms=1", "--hosts=4", "--gbits=inf"], "a finite number"),
                            (["--bytes=4096", "--compute_ms=1", "--hosts=4", "--gbits=1", "--latency_us=nan"],
                             "a finite number"),
                            (["--bytes=4096", "--compute_ms=1", "--cores=nan", "--workers=2"], "a finite number"),
                            (["--check=1gbit"], "is not like 1gbit:2-4")):
            status, _, err = self.run_plan(*flags)
            self.assertEqual(status, 2, flags)
            self.assertIn(said, err)

    def test_a_check_that_fails_is_said(self):
        for error in (programs.ProgramError("boom"), subprocess.CalledProcessError(1, "launch")):
            with unittest.mock.patch.object(program.emulated_hosts, "compare", side_effect=error):
                status, _, err = self.run_plan("--check=1gbit:2")
            self.assertEqual((status, err), (2, f"plan: {error}\n"))
        good = Comparison(cells.BY_SYNC["ring"], "netlab:2,1gbit", 2, 0, MIB, 1.0, 1.05)
        for failures in ([], ["netlab:2,1gbit: star: no benchmark"]):
            with unittest.mock.patch.object(program.emulated_hosts, "compare", return_value=([good], failures)):
                status, out, _ = self.run_plan("--check=1gbit:2-3")
            self.assertEqual(status, 1 if failures else 0)
            self.assertEqual(out.count("not measured: netlab:2,1gbit: star: no benchmark"), 3 * len(failures))
        with unittest.mock.patch.object(program.emulated_hosts, "compare",
                                        side_effect=[([good], []), programs.ProgramError("boom")]):
            status, out, _ = self.run_plan("--check=1gbit:2-3")
        self.assertEqual(status, 2)
        self.assertIn("netlab:2,1gbit", out)

    def test_without_costs_it_says_how_to_measure_them(self):
        with unittest.mock.patch.object(cost_book, "SHIPPED", os.path.join(self.folder, "gone.json")), \
                unittest.mock.patch.dict(os.environ, BUILD_WORKING_DIRECTORY=self.folder):
            status, _, err = self.run_plan("--bytes=4096", "--compute_ms=1", costs=False)
            self.assertEqual(status, 2)
            self.assertIn("bazel run //bench:growth", err)
            # Own costs come before the shipped ones.
            os.makedirs(os.path.join(self.folder, "data/growth"))
            own = dataclasses.replace(make_book(), machine="my machine")
            cost_book.write(os.path.join(self.folder, "data/growth/costs.json"), own)
            self.assertIn("my machine", self.run_plan("--bytes=4096", "--compute_ms=1", costs=False)[1])

    def test_shipped_costs_can_be_read(self):
        if os.path.exists(cost_book.SHIPPED):
            book = cost_book.read(cost_book.SHIPPED)
            self.assertTrue(all(book.find(sync, medium) for sync in cells.SYNCS for medium in cost_book.MEDIA))
            self.assertEqual(set(book.costs["ring", "memory"].seconds), {*model.FITTED, *model.KERNELS})


if __name__ == "__main__":
    unittest.main()
