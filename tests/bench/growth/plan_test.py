"""Tests plans: crossings, servers, verdicts, what is printed and written, and what is refused."""

import contextlib
import csv
import dataclasses
import io
import json
import math
import os
import re
import subprocess
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree as ElementTree

import cost_book
import exchange_model as model
import machine
import plan as program
import plan_plot
import planning
import predictions
import programs
import regimes
import sync_cells as cells
from emulated_hosts import Comparison
from made_costs import COSTS, FREE, make_book
from workload import Cluster, Workload, WorkloadError

MIB = 1 << 20
POWERS = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
HOSTS = Cluster(hosts=2048, cores=2, bytes_per_second=119.6e6, latency_s=5e-5)


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
        own = dataclasses.replace(grpc, placement=cells.OWN_HOSTS)
        for place, workers, expected in ((grpc, 1, [1]), (grpc, 6, [1, 2, 4, 6]),
                                         (grpc, 1024, [2 ** power for power in range(9)]),
                                         (tcp, 1000, [1, 2, 4, 8, 16, 24]), (tcp, 1024, []), (own, 6, [1, 2, 4, 6])):
            self.assertEqual(planning.server_counts(place, workers, HOSTS), expected, (place.name, workers))
        few = dataclasses.replace(HOSTS, hosts=5, workers_per_host=2)
        for workers, expected in ((4, [1, 2, 3]), (6, [1, 2]), (7, [1]), (8, [1]), (9, [])):
            self.assertEqual(planning.server_counts(own, workers, few), expected, workers)
        # Each server on a host of its own adds its link, so the plan takes as many as there are workers.
        for line in make(costs=FREE, workers=[4, 16]).lines:
            if line.place.placement == cells.OWN_HOSTS:
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
        text = "\n".join(program.text_of(make()))
        self.assertRegex(text, r"star/tcp on own hosts .* - \n")
        self.assertIn("over 256 servers, or over TCP more than 1024 workers and servers together", text)
        ElementTree.fromstring(plan_plot.picture_of(make(workers=[1024])))

    def test_hosts_of_servers_are_counted(self):
        found = make(workers=[2, 3, 4], cluster=dataclasses.replace(HOSTS, hosts=4))
        for line in found.lines:
            own = line.place.placement == cells.OWN_HOSTS
            self.assertEqual([bool(point) for point in line.points], [True, True, not own], line.name)
            self.assertTrue(all(point.hosts == point.workers + own * point.servers for point in line.points if point))
            self.assertTrue(all(point.hosts <= 4 for point in line.points if point))
        self.assertIn("- is no job: more servers on own hosts than hosts are left", "\n".join(program.text_of(found)))
        with self.assertRaisesRegex(WorkloadError, "no such job: there are too few hosts"):
            made = make_book(syncs=("star",))
            planning.make(Workload("a", MIB), HOSTS, [1024], dataclasses.replace(made), 300, ["star"])

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
        best = planning.winners(found)[0]
        self.assertEqual(best.point.place.placement, cells.OWN_HOSTS)
        self.assertEqual(best.rival.place.topology, "ring")
        self.assertGreater(best.rival.step_s / best.point.step_s, 1.2)
        self.assertIn("4 to 8 workers: star/tcp on own hosts with 4 to 8 servers (8 to 16 hosts in all) is the "
                      "fastest; the best ring takes", planning.crossings(found)[0])

    def test_crossing(self):
        # Two ranks exchange in as many hops either way, and without servers' two processes. Many ranks make many hops.
        slow_start = dataclasses.replace(FREE, seconds={**FREE.seconds, "hop": 1e-3, "message": 1e-6})
        found = make(256 * 1024, 0.0, Cluster(cores=2), [2, 64], slow_start)
        self.assertEqual([one.point.place.topology for one in planning.winners(found)], ["ring", "star"])
        sentences = planning.crossings(found)
        self.assertEqual(len(sentences), 2)
        self.assertEqual(sentences[0], "2 workers: a tie within the bands: ring/mpi, and co-located/mpi, which takes "
                                       "1.00 times as long")
        self.assertRegex(sentences[1], "^64 workers: star/.* is the fastest; the best ring takes [0-9.]+ times as long")

    def test_within_the_bands_is_a_tie(self):
        slow = dataclasses.replace(FREE, seconds={**FREE.seconds, "step": 0.05})
        slower = dataclasses.replace(FREE, seconds={**FREE.seconds, "step": 0.06})

        def sentence(band):
            costs = {(sync, medium): dataclasses.replace(slower if sync.startswith("ring") else slow, band=band)
                     for sync in cells.SYNCS for medium in cost_book.MEDIA}
            found = planning.make(Workload("a", 4096), Cluster(cores=2), [2],
                                  dataclasses.replace(make_book(), costs=costs))
            return planning.crossings(found)[0]

        self.assertEqual(sentence(0.15), "2 workers: a tie within the bands: co-located/mpi, and ring/mpi, which takes "
                                         "1.20 times as long")
        self.assertEqual(sentence(0.05), "2 workers: co-located/mpi is the fastest; the best ring takes 1.20 times as "
                                         "long")

    def test_a_band_moves_costs_and_neither_links_nor_computing(self):
        for compute_s in (0.0, 10.0):
            points = [line.points[0] for line in make(compute_s=compute_s, workers=[4]).lines]
            self.assertTrue(all(one.bound_s <= one.low_s <= one.step_s <= one.high_s for one in points))
            self.assertTrue(all(one.high_s < 1.01 * one.step_s for one in points))  # of 5 % of the costs
        wide = dataclasses.replace(COSTS, band=1.0)
        on_one = make(compute_s=0.0, workers=[4], cluster=Cluster(cores=2), costs=wide).lines[0].points[0]
        self.assertAlmostEqual(on_one.high_s / on_one.step_s, 2)
        self.assertAlmostEqual(on_one.low_s / on_one.step_s, 0.5)
        self.assertEqual(on_one.bound_s, 0)

    def test_the_bound_has_no_costs(self):
        for line, free in zip(make(workers=[2, 4]).lines, make(workers=[2, 4], costs=FREE).lines):
            for point, other in zip(line.points, free.points):
                if point.servers == other.servers:
                    self.assertAlmostEqual(point.bound_s, other.step_s, msg=line.name)
                self.assertLess(point.bound_s, point.step_s)

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
        # A larger model is as far from the measurements as more workers.
        large = make(32 * MIB, workers=[2, 4])
        self.assertEqual({one.extrapolated for each in large.lines for one in each.points}, {True})
        on_one = [make(size, 0.0, Cluster(cores=2), [workers]).lines[0].points[0]
                  for size, workers in ((MIB, 64), (MIB, 128), (32 * MIB, 2))]
        self.assertEqual([round(one.high_s / one.step_s - 1, 3) for one in on_one], [0.05, 0.075, 0.075])

    def test_every_cell_is_extrapolated_from_its_own_measurements(self):
        book = make_book()
        few = dataclasses.replace(COSTS, workers_max=4)
        book = dataclasses.replace(book, costs={key: few if key[0] == "star" else COSTS for key in book.costs})
        found = planning.make(Workload("a", MIB, 0.01), HOSTS, [2, 8], book)
        self.assertEqual({line.place.sync for line in found.lines if line.points[1].extrapolated}, {"star"})
        self.assertFalse(any(line.points[0].extrapolated for line in found.lines))

    def test_cells_without_costs_are_left_out(self):
        for syncs, said in ((("ring", "star-tcp"), ["ring/mpi", "co-located/tcp"]), (("ring",), ["ring/mpi"])):
            found = planning.make(Workload("a", MIB, 0.01), Cluster(cores=2), [2], make_book(syncs=syncs))
            self.assertEqual([line.name for line in found.lines], said)
            left_out = [one for one in found.assumptions if one.startswith("left out: no costs of ")]
            self.assertEqual(len(left_out), 6 - len(syncs))
            self.assertIn("//bench:growth -- --syncs=star measures them", left_out[-1])
        self.assertEqual(planning.crossings(found), ["2 workers: ring/mpi is the fastest"])
        asked = make(workers=[2], syncs=["ring-tcp", "star"])
        self.assertEqual([line.name for line in asked.lines], ["ring/tcp", "star/grpc with the workers",
                                                               "star/grpc on own hosts"])
        with self.assertRaisesRegex(cost_book.CostsError, "no cell can be planned; left out: no costs of ring"):
            planning.make(Workload("a", MIB, 0.01), HOSTS, [2], make_book(syncs=()))

    def test_what_is_assumed_is_said(self):
        text = "\n".join(make(workers=[2]).assumptions)
        for wanted in ("each host has 2 cores (--cores)", "GPUs, NCCL and NVLink are not modelled",
                       "no jitter: --jitter", "two thirds of computing", "links share no bottleneck",
                       "wastes part of a link", "travel by TCP"):
            self.assertIn(wanted, text)
        noisy = dataclasses.replace(make_book(), jitter=0.1)
        text = "\n".join(planning.make(Workload("a", MIB), HOSTS, [2], noisy).assumptions)
        self.assertIn("computing takes no time, so nothing hides the exchange: --compute_ms=T", text)
        self.assertNotIn("jitter", text)
        self.assertNotIn("links share", "".join(make(workers=[2], cluster=Cluster(cores=2)).assumptions))
        full = make(workers=[2], cluster=dataclasses.replace(HOSTS, workers_per_host=4)).assumptions
        self.assertIn("workers fill a host, with 4, before the next one: --workers_per_host=1", "\n".join(full))
        self.assertNotIn("workers fill a host", "\n".join(make(workers=[2]).assumptions))

    def test_one_process_computes_and_updates(self):
        found = make(MIB, 0.01, workers=[2])
        self.assertAlmostEqual(found.alone, 64 / (0.01 + MIB * COSTS.seconds["apply_byte"]))

    def test_jitter_is_a_line_of_its_own(self):
        book = make_book()
        quiet, noisy = (planning.make(Workload("a", 4096, 1.0), HOSTS, [2, 64], each)
                        for each in (book, dataclasses.replace(book, jitter=0.02)))
        self.assertEqual((list(quiet.jitter_s), list(quiet.computing_s)), ([0.0, 0.0], [1.0, 1.0]))
        self.assertAlmostEqual(noisy.jitter_s[1], 0.02 * math.sqrt(2 * math.log(64)))
        for line, other in zip(quiet.lines, noisy.lines):
            for index in (0, 1):
                self.assertAlmostEqual(other.points[index].step_s, noisy.computing_s[index] + noisy.jitter_s[index]
                                       + other.points[index].exposed_s)
            self.assertGreater(other.points[1].step_s, 1.04 * line.points[1].step_s)
        self.assertRegex("\n".join(program.text_of(noisy)), "\nof it jitter of the cores +23.55 +57.68 \n")

    def test_without_computing_there_is_no_verdict_on_distributing(self):
        found = make(compute_s=0.0, workers=[2, 4])
        self.assertEqual(planning.verdict(found), [])
        self.assertTrue(planning.crossings(found))
        self.assertNotIn("samples/s", "\n".join(program.text_of(found)))


class OutputTest(unittest.TestCase):
    def test_the_comparison_reads_it(self):
        made = make()
        text = json.dumps(planning.to_json(made))
        found = predictions.of_plan(json.loads(text))
        self.assertEqual(len(found), 8 * len(POWERS) - 2)  # over TCP 1,024 workers can have no servers
        by_key = {(one["sync"], one["accounting"], one["workers"]): one for one in found}
        self.assertEqual(len(by_key), len(found))
        for line in made.lines:
            own = line.place.placement == cells.OWN_HOSTS
            accounting = cells.ACCOUNTING_OWN_HOSTS if own else "equal-workers"
            for point in filter(None, line.points):
                one = by_key[line.place.sync, accounting, point.workers]
                self.assertAlmostEqual(one["step_ms"], 1e3 * point.step_s)
                self.assertAlmostEqual(one["step_ms_high"], 1e3 * point.high_s)
                self.assertAlmostEqual(one["step_ms_low"], 1e3 * point.low_s)
                self.assertEqual(one["extrapolated"], point.workers > 64)
                self.assertEqual(one["section"], "hosts with 2 cores and 0.957 Gbit/s of payload")
        self.assertEqual(len(regimes.sentences([], regimes.planned(found))), 1)

    def test_printed(self):
        text = "\n".join(program.text_of(make()))
        for wanted in ("step ms", "of it computing", "of it jitter of the cores", "of it exposed exchange",
                       "step ms, at least (bound)", "band of the step, %", "samples/s", "servers", "1,024",
                       "* extrapolated", "star/grpc on own hosts", "Assumed:", "Verdict:", "is the fastest"):
            self.assertIn(wanted, text)
        self.assertRegex(text, r"\nring/mpi( +[\d.]+ ){6}( +[\d.]+\*){4}\n")
        self.assertNotIn("*", "\n".join(program.text_of(make(workers=[2, 4]))))
        self.assertLessEqual(max(len(line) for line in text.splitlines() if line.startswith(("ring", "star"))), 120)

    def test_the_error_of_each_cell_is_stated(self):
        book = make_book(dataclasses.replace(COSTS, median_error=0.123, worst_error=0.456))
        made = planning.make(Workload("mlp", MIB, 0.01), HOSTS, [2], book)
        self.assertEqual({(row["median_error"], row["worst_error"]) for row in planning.to_json(made)["rows"]},
                         {(0.123, 0.456)})
        text = "\n".join(program.text_of(made))
        for line in made.lines:
            self.assertRegex(text, rf"\n{line.name} +12 +46\n")

    def test_picture(self):
        made = make(workers=[2, 4, 8])
        root = ElementTree.fromstring(plan_plot.picture_of(made))
        elements = {kind: [one for one in root.iter() if one.tag.endswith("}" + kind)]
                    for kind in ("polyline", "polygon", "circle", "text")}
        self.assertEqual([len(elements[kind]) for kind in ("polyline", "polygon", "circle")], [8, 2, 24])
        texts = [one.text for one in elements["text"]]
        self.assertIn("over the fastest cell's", texts[0])
        fastest = planning.winners(made)[-1].point.place
        self.assertEqual(texts[-8], planning.line_name(fastest))  # the legend begins with it
        # Step time over the fastest cell's, so the lowest point of each number of workers is at 1.
        lowest = {}
        for circle in elements["circle"]:
            lowest.setdefault(circle.get("cx"), []).append(float(circle.get("cy")))
        one, = (float(text.get("y")) - 4 for text in elements["text"] if text.text == "1.00")
        self.assertEqual({max(values) for values in lowest.values()}, {one})

    def test_a_picture_is_linear_and_clipped(self):
        made = make(workers=[4], syncs=["ring", "ring-tcp", "star-mpi"])
        steps = (0.5, 1.0, 4.5)
        lines = [dataclasses.replace(line, points=[dataclasses.replace(line.points[0], step_s=step, low_s=step,
                                                                       high_s=step)])
                 for line, step in zip(made.lines, steps)]
        text = plan_plot.picture_of(dataclasses.replace(
            made, workload=dataclasses.replace(made.workload, name="a < b"), lines=lines))
        bottom, middle, top = map(float, re.findall('circle cx="[^"]*" cy="([^"]*)"', text))
        self.assertAlmostEqual(middle, (top + bottom) / 2, delta=0.2)
        self.assertEqual(bottom, plan_plot.HEIGHT - 46)  # the fastest cell is on the axis
        self.assertIn(">3.00<", text)
        self.assertNotIn(">9.00<", text)
        ElementTree.fromstring(text)


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
        self.assertEqual(len(predictions.read(out)), 22)  # 2, 3, 4 workers; servers on own hosts leave room for 3
        ElementTree.parse(plot)

    def test_csv(self):
        path = os.path.join(self.folder, "plan.csv")
        self.run_plan("--bytes=8MiB", "--compute_ms=5", "--hosts=4", "--gbits=1", "--jitter=0.1", "--csv=" + path)
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), 22)
        self.assertEqual({row["costs"] for row in rows},
                         {"measured on a machine at abc1234, 2026-11-22, by bazel run //bench:growth"})
        for row in rows:
            self.assertAlmostEqual(float(row["step_ms"]),
                                   sum(float(row[name]) for name in ("computing_ms", "jitter_ms", "exposed_ms")))
            self.assertGreater(float(row["jitter_ms"]), 0)
            self.assertLessEqual(int(row["hosts"]), 4)

    def test_sizes_in_words(self):
        self.assertEqual([program._bytes(text) for text in ("44700000", "4KiB", "40MiB", "1GiB")],
                         [44_700_000, 4096, 40 * MIB, 1 << 30])
        self.assertIn("41,943,040 bytes", self.run_plan("--bytes=40MiB")[1])

    def test_workers_stop_at_hosts(self):
        for flags, expected in ((["--hosts=4"], [2, 3, 4]), (["--hosts=6", "--workers_per_host=2"], [2, 3, 4, 8, 12]),
                                (["--hosts=2048"], [2, 3, *POWERS[1:]]), (["--hosts=8", "--workers=5,8"], [5, 8])):
            options = program.parser().parse_args(["--bytes=4096", "--gbits=1", *flags])
            self.assertEqual(program.workers_of(options.workers, program.cluster_of(options, make_book())), expected)
        for flags, expected in (([], [2]), (["--cores=8"], [2, 3, 4, 8]), (["--workers=16,64"], [16, 64]),
                                (["--workers_per_host=6"], [2, 3, 4, 6])):
            options = program.parser().parse_args(["--bytes=4096", *flags])
            self.assertEqual(program.workers_of(options.workers, program.cluster_of(options, make_book())), expected)
        status, _, err = self.run_plan("--bytes=4096", "--hosts=4", "--gbits=1", "--workers=8")
        self.assertEqual((status, err), (2, "plan: 8 workers, and room for 4: 4 hosts with 1 worker each: give "
                                            "--hosts or --workers_per_host\n"))

    def test_gpus_are_refused_aloud(self):
        for flag in ("--device=cuda", "--device=gpu", "--gpus=4", "--gpus_per_host=8", "--with-NCCL"):
            status, out, err = self.run_plan("--bytes=40MiB", "--compute_ms=5", flag)
            self.assertEqual((status, out), (2, ""))
            self.assertEqual(f"plan: {flag}: GPUs are not modelled yet, neither their copies nor NCCL nor NVLink. "
                             "--device=cpu plans for CPUs, and bazel run //bench:compare measures on GPUs\n", err)
        self.assertIn("plan: cuda: GPUs are not modelled yet", self.run_plan("--bytes=4096", "--device", "cuda")[2])
        self.assertIn("plan: error: unrecognized arguments: --speed=5", self.run_plan("--bytes=4096", "--speed=5")[2])
        out = os.path.join(self.folder, "gpu.json")
        self.assertEqual(self.run_plan("--bytes=4096", "--device=cpu", "--out=" + out)[0], 0)

    def test_one_host(self):
        status, text, _ = self.run_plan("--bytes=8388608", "--compute_ms=5")
        self.assertEqual(status, 0)
        self.assertNotIn("own hosts", text)
        self.assertNotIn("between hosts", text)

    def test_a_model_and_a_cluster_are_measured(self):
        link = Cluster(2, bytes_per_second=1e10 / 8, latency_s=1e-5)
        with unittest.mock.patch.object(program, "model_facts", lambda *_: (8 * MIB, 0.004)), \
                unittest.mock.patch.object(program, "link", lambda *_: link):
            status, text, _ = self.run_plan("--model=mlp", "--measure=a,b,c")
            self.assertEqual(status, 0)
            self.assertIn("mlp: 8,388,608 bytes, 4.00 ms of computing", text)
            self.assertIn("10 Gbit/s of payload and 10 us", text)
            self.assertIn("hosts: 3, each with 2 cores and up to 1 worker", text)
            self.assertIn("7.00 ms of computing", self.run_plan("--model=mlp", "--compute_ms=7")[1])

    def test_refusals(self):
        for flags, said in (([], "give either --model=mlp, or --bytes=B and --compute_ms=T"),
                            (["--model=mlp", "--bytes=4"], "give either --model"),
                            (["--bytes=40MB"], "is no number of bytes, such as 44700000 or 40MiB"),
                            (["--bytes=4096", "--syncs=moon"], "'moon' is not one of ring"),
                            (["--bytes=4096", "--compute_ms=-1"], "'-1' is no finite number of 0 or more"),
                            (["--bytes=4096", "--compute_ms=nan"], "--compute_ms: 'nan' is no finite number"),
                            (["--bytes=4096", "--compute_ms=ten"], "argument --compute_ms: "),
                            (["--bytes=4096", "--jitter=-0.1"], "'-0.1' is no finite number of 0 or more"),
                            *((["--bytes=4096", f"--{name}=0"], f"--{name}: 0 is below 1") for name in (
                                "batch", "threads", "bucket_bytes", "hosts", "workers_per_host", "servers", "repeats")),
                            (["--bytes=4096", "--compute_ms=1", "--hosts=4"], "--gbits, or --measure"),
                            (["--bytes=4096", "--compute_ms=1", "--hosts=4", "--gbits=1", "--measure=a,b"],
                             "give either --measure"),
                            (["--bytes=1", "--compute_ms=1"], "at least one parameter"),
                            (["--bytes=4096", "--compute_ms=1", "--workers=2048"], "2 to 1024 workers"),
                            (["--bytes=4096", "--compute_ms=1", "--workers=1,2"], "2 to 1024 workers"),
                            (["--bytes=4096", "--compute_ms=1", "--measure=a"], "between two hosts"),
                            (["--bytes=4096", "--servers=257", "--syncs=star"], "no such job: "),
                            (["--bytes=4096", "--hosts=4", "--gbits=nan"], "--gbits: 'nan' is no finite number"),
                            (["--bytes=4096", "--hosts=4", "--gbits=inf"], "--gbits: 'inf' is no finite number"),
                            (["--bytes=4096", "--latency_us=nan"], "--latency_us: 'nan' is no finite number"),
                            (["--bytes=4096", "--cores=nan"], "--cores: 'nan' is no finite number"),
                            (["--bytes=4096", "--cores=0"], "each has at least a part of a core"),
                            (["--check=1gbit"], "is not like 1gbit:2-4")):
            status, _, err = self.run_plan(*flags)
            self.assertEqual(status, 2, flags)
            self.assertIn(said, err)

    def test_a_check_that_fails_is_said(self):
        for error in (programs.ProgramError("boom"), subprocess.CalledProcessError(1, "launch")):
            with unittest.mock.patch.object(program.emulated_hosts, "compare", side_effect=error):
                status, _, err = self.run_plan("--check=1gbit:2")
            self.assertEqual((status, err), (2, f"plan: {error}\n"))
        good = Comparison(cells.BY_SYNC["ring"], "netlab:2,1gbit", 2, MIB, 1.0, 1.05)
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

    def test_without_measured_costs_the_shipped_ones_are_marked(self):
        flags = ["--bytes=40MiB", "--compute_ms=100", "--hosts=4", "--gbits=10"]
        out = os.path.join(self.folder, "plan.json")
        with unittest.mock.patch.dict(os.environ, BUILD_WORKING_DIRECTORY=self.folder):
            status, text, _ = self.run_plan(*flags, "--out=" + out, costs=False)
            self.assertEqual(status, 0)
            self.assertEqual(text.count("SHIPPED COSTS of "), 2)  # above and below the tables
            self.assertIn("bazel run //bench:growth -- --quick measures them in 5 minutes", text)
            self.assertIn("no jitter", text)
            with open(out, encoding="utf-8") as file:
                self.assertTrue(json.load(file)["mark"].startswith("SHIPPED COSTS of "))
            # Own costs come before the shipped ones.
            os.makedirs(os.path.join(self.folder, "data/growth"))
            own = dataclasses.replace(make_book(), machine="my machine")
            cost_book.write(os.path.join(self.folder, "data/growth/costs.json"), own)
            _, text, _ = self.run_plan(*flags, costs=False)
            self.assertIn("my machine", text)
            self.assertNotIn("SHIPPED", text)
            self.assertIn("SHIPPED", self.run_plan(*flags, "--costs=" + cost_book.SHIPPED, costs=False)[1])

    def test_shipped_costs_can_be_read(self):
        book = cost_book.read(cost_book.SHIPPED)
        self.assertTrue(all(book.find(sync, medium) for sync in cells.SYNCS for medium in cost_book.MEDIA))
        self.assertEqual(set(book.costs["ring", "memory"].seconds), {*model.FITTED, *model.KERNELS})
        self.assertEqual({costs.bytes_max for costs in book.costs.values()}, {256 * MIB})


if __name__ == "__main__":
    unittest.main()
