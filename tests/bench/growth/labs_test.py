"""Tests measurements between hosts, and of the user's model and cluster, with programs that are not there."""

import contextlib
import dataclasses
import io
import json
import os
import unittest
import unittest.mock

import alone
import cost_book
import emulated_hosts as labs
import exchange_model as model
import machine
import plan
import netlab
import programs
import sync_cells as cells
from made_costs import COSTS, make_book
from workload import Cluster, WorkloadError

RATE, LATENCY, BURST = 119.6e6, 8e-5, 3e-4


class FakeLab(netlab.Netlab):
    """A lab without hosts."""

    def __enter__(self):
        self.burst_s = BURST
        return self

    def __exit__(self, *exception):
        pass


class FakeExchanges:
    """alone.exchanges of hosts that are as predicted."""

    def __init__(self, slower=1.0, failing=("star-servers-tcp",)):
        self.slower, self.failing, self.asked = slower, failing, []

    def __call__(self, syncs, workers, servers, torch, sizes, lab, steps_max):
        self.asked.append((list(syncs), workers, lab.section, steps_max))
        found, missing = [], []
        book = make_book()
        hosts = lab.hosts + lab.server_hosts
        cluster = Cluster(hosts=hosts, cores=2 / (2 if list(syncs) == ["ring"] else hosts), bytes_per_second=RATE,
                          latency_s=LATENCY, burst_s=BURST)
        for sync in [*syncs, *[alone.OWN_HOSTS] * (lab.server_hosts > 0)]:
            if sync in self.failing:
                missing.append({"sync": sync, "workers": workers, "section": lab.section, "reason": "no benchmark"})
                continue
            place = labs.PLACES[sync]
            count = workers if place.has_servers else 0
            for size in sizes:
                seconds = labs.predicted_s(book, place, workers, count, size, cluster)
                found.append({"sync": sync, "workers": workers, "servers": count, "bytes": size,
                              "latency_us": 1e6 * self.slower * seconds, "bus_gb_per_s": 1.0, "section": lab.section})
        return found, missing, []


@unittest.mock.patch.object(machine, "cores", lambda: [0, 1])
class LabsTest(unittest.TestCase):
    def compare(self, lab, fake, book=None):
        with unittest.mock.patch.object(netlab, "Netlab", FakeLab), \
                unittest.mock.patch.object(alone, "exchanges", fake), \
                contextlib.redirect_stdout(io.StringIO()) as said:
            lab, = labs.parse_labs(lab)
            found, self.failures = labs.compare(lab, book or make_book(), 2)
            return found, said.getvalue()

    def test_parse(self):
        self.assertEqual([(lab.rate, lab.hosts) for lab in labs.parse_labs("1gbit:2-4,200mbit:6")],
                         [("1gbit", 2), ("1gbit", 3), ("1gbit", 4), ("200mbit", 6)])
        for text in ("", "1gbit", "1gbit:", "1gbit:1-2", "1gbit:4-2", "fast:2", "1gbit:2,", "netlab:4,1gbit"):
            with self.assertRaisesRegex(WorkloadError, "is not like 1gbit:2-4"):
                labs.parse_labs(text)

    def test_a_link_is_found_from_two_exchanges(self):
        job = model.Job(cells.BY_SYNC["ring"], 2, 0)
        for burst in (0.0, 1e-5, BURST):
            cluster = Cluster(hosts=2, cores=1.0, bytes_per_second=RATE, latency_s=LATENCY, burst_s=burst)
            seconds = {}
            for size in (labs.SMALL, labs.LARGE):
                load, = model.loads(job, cluster, size, labs.RANKS_BUCKET_BYTES)
                seconds[size] = model.parts(load, cluster, COSTS).exchange_s
            found = labs.measured_link(seconds, COSTS, 1.0, burst)
            self.assertAlmostEqual(found.latency_s, LATENCY, delta=0.25 * LATENCY)  # 4 KiB take some time on the link
            self.assertAlmostEqual(found.bytes_per_second, RATE, delta=0.002 * RATE)
            self.assertEqual((found.hosts, found.cores, found.burst_s), (2, 1.0, burst))
        # A link as fast as memory has no latency below 0, and no endless rate.
        fast = labs.measured_link({size: 0.0 for size in seconds}, COSTS, 1.0)
        self.assertEqual(fast.latency_s, 0)
        self.assertLess(fast.bytes_per_second, 1e12)

    def test_comparison(self):
        fake = FakeExchanges()
        found, said = self.compare("1gbit:4", fake)
        self.assertEqual([asked[1:] for asked in fake.asked],
                         [(2, "netlab:4,1gbit", labs.STEPS_MAX)] * 2 + [(4, "netlab:4,1gbit", labs.STEPS_MAX)] * 2
                         + [(2, "netlab:2+2,1gbit", labs.STEPS_MAX)] * 2)
        self.assertEqual({(one.place.sync, one.place.placement) for one in found},
                         {(cell.sync, cell.placement) for cell in cells.CELLS if cell.sync != "star-servers-tcp"}
                         | {("star", cells.OWN_HOSTS)})
        self.assertEqual(self.failures, ["netlab:4,1gbit: star-servers-tcp: no benchmark"])
        self.assertEqual(said.count("bursts of 300 us"), 1)
        for sync, workers in (("star", 4), (alone.OWN_HOSTS, 2)):
            self.assertEqual([one.workers for one in found if one.place == labs.PLACES[sync]], [workers] * 4)
        met, lines = labs.table(found, [])
        self.assertTrue(met and lines[-1].startswith("met: "))
        self.assertEqual(len(lines), len(found) + 2)

    def test_without_a_link_nothing_is_predicted(self):
        with self.assertRaisesRegex(programs.ProgramError,
                                    "the link cannot be measured: netlab:4,1gbit: ring: no benchmark"):
            self.compare("1gbit:4", FakeExchanges(failing=["ring"]))

    def test_what_has_no_costs_is_not_measured(self):
        fake = FakeExchanges(failing=())
        found, said = self.compare("1gbit:4", fake, make_book(syncs=("ring", "star-mpi")))
        self.assertEqual({sync for syncs, *_ in fake.asked for sync in syncs}, {"ring", "star-mpi"})
        self.assertEqual({one.place.sync for one in found}, {"ring", "star-mpi"})
        self.assertIn("cells that have costs: ring, star-mpi", said)
        fake = FakeExchanges()
        with self.assertRaises(cost_book.CostsError):
            self.compare("1gbit:4", fake, make_book(syncs=("star",)))
        self.assertEqual(fake.asked, [])

    def test_servers_of_their_own_that_fail_are_said(self):
        self.compare("1gbit:4", FakeExchanges(failing=[alone.OWN_HOSTS]))
        self.assertEqual(self.failures, ["netlab:2+2,1gbit: star-own-hosts: no benchmark"])

    def test_an_odd_lab_has_no_half_for_servers(self):
        found, _ = self.compare("200mbit:3", FakeExchanges())
        self.assertEqual({one.lab for one in found}, {"netlab:3,200mbit"})

    def test_the_verdict_counts_what_is_off(self):
        one = labs.Comparison(cells.BY_SYNC["ring"], "netlab:2,1gbit", 2, labs.LARGE, 1.0, 1.05)
        off = dataclasses.replace(one, predicted_s=1.2)
        # Cells that were not measured were not met.
        failure = "netlab:2,1gbit: star: no benchmark"
        for found, failures, met, verdict in (([one], [], True, "met: 1 of 1"),
                                              ([one, off], [], False, "missed: 1 of 2"),
                                              ([one], [failure], False, "missed: 1 of 1"),
                                              ([], [], False, "missed: nothing")):
            answer, [*_, named, last] = labs.table(found, failures)
            self.assertEqual((answer, named == "not measured: " + failure), (met, bool(failures)))
            self.assertTrue(last.startswith(verdict), last)


@unittest.mock.patch.object(machine, "cores", lambda: [4, 5])
@unittest.mock.patch.object(programs, "binary", lambda name: "/bin/" + name)
class MeasuredFactsTest(unittest.TestCase):
    def worker(self, argv, *_):
        self.assertEqual(argv[:3], ["taskset", "-c", "4"])
        self.assertIn("--device=cpu", argv)
        record = next(word.partition("=")[2] for word in argv if word.startswith("--record="))
        self.assertTrue(os.path.isdir(os.path.dirname(record)))
        with open(record, "w", encoding="utf-8") as file:
            json.dump({"breakdown_ms": {"forward": 1.0, "backward": 2.0, "data_wait": 0.1, "other": 0.2,
                                        "optimizer": 9.0, "exposed_exchange": 9.0}}, file)
        return self.said

    def test_a_model(self):
        self.said = "mlp, 1863690 parameters, on fashion-mnist (60000 training images)"
        with unittest.mock.patch.object(programs, "run", self.worker):
            size, seconds = plan.model_facts("mlp", "fashion-mnist", 64, 1)
            self.assertEqual(size, 4 * 1863690)
            self.assertAlmostEqual(seconds, 0.0033)
            self.said = "done"
            with self.assertRaisesRegex(WorkloadError, "give --bytes and --compute_ms"):
                plan.model_facts("mlp", "fashion-mnist", 64, 1)

    def test_a_link(self):
        ran = []

        def run(argv, *_):
            ran.append(argv)
            return "".join(json.dumps({"bytes": size, "latency_us": 1e6 * (2e-4 + size / RATE)}) + "\n"
                           for size in (labs.SMALL, labs.LARGE))

        with unittest.mock.patch.object(programs, "run", run):
            found = plan.link(["a", "b", "c"], make_book())
        self.assertEqual(ran[0][ran[0].index("--host") + 1], "a:1,b:1")
        self.assertEqual(ran[0][ran[0].index("btl") + 1], "tcp,self")
        self.assertAlmostEqual(found.bytes_per_second, RATE, delta=0.02 * RATE)


if __name__ == "__main__":
    unittest.main()
