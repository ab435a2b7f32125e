"""Tests measurements between hosts, and of the user's model and cluster, with programs that are not there."""

import dataclasses
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
    """alone.exchanges of hosts on which a star with servers on hosts of their own wastes the time of 1.5 buckets."""

    def __init__(self, slower=1.0, failing=("star-servers-tcp",)):
        self.slower, self.failing, self.asked = slower, failing, []

    def __call__(self, syncs, workers, servers, torch, sizes, lab, steps_max):
        self.asked.append((list(syncs), workers, lab.section, steps_max))
        found, missing = [], []
        book = dataclasses.replace(make_book(), wasted_buckets={"star@own": 1.5})
        hosts = lab.hosts + lab.server_hosts
        cluster = Cluster(hosts=hosts, cores=2 / (2 if list(syncs) == ["ring"] else hosts), bytes_per_second=RATE,
                          latency_s=LATENCY, burst_s=BURST)
        for sync in [*syncs, *[alone.OWN_HOSTS] * (lab.server_hosts > 0)]:
            if sync in self.failing:
                missing.append({"sync": sync, "workers": workers, "section": lab.section, "reason": "no benchmark"})
                continue
            own = sync == alone.OWN_HOSTS
            place = dataclasses.replace(cells.BY_SYNC["star"], placement=cells.OWN_HOSTS) if own else \
                cells.BY_SYNC[sync]
            count = workers if place.has_servers else 0
            for size in sizes:
                seconds, *_ = labs.predict(book, place, workers, count, size, cluster)
                found.append({"sync": sync, "workers": workers, "servers": count, "bytes": size,
                              "latency_us": 1e6 * self.slower * seconds, "bus_gb_per_s": 1.0, "section": lab.section})
        return found, missing, []


@unittest.mock.patch.object(machine, "cores", lambda: [0, 1])
class LabsTest(unittest.TestCase):
    def compare(self, lab, fake, book=None):
        said = []
        with unittest.mock.patch.object(netlab, "Netlab", FakeLab), \
                unittest.mock.patch.object(alone, "exchanges", fake):
            found, self.failures = labs.compare(lab, book or make_book(), 2, said.append)
            return found, said

    def test_parse(self):
        self.assertEqual(labs.parse_labs("1gbit:2-4,200mbit:6"),
                         [labs.Lab("1gbit", 2), labs.Lab("1gbit", 3), labs.Lab("1gbit", 4), labs.Lab("200mbit", 6)])
        for text in ("", "1gbit", "1gbit:", "1gbit:1-2", "1gbit:4-2", "fast:2", "1gbit:2,", "netlab:4,1gbit"):
            with self.assertRaisesRegex(labs.LabsError, "is not like 1gbit:2-4"):
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
            self.assertEqual(labs.cluster_of(found, 2).burst_s, burst)
        # A link as fast as memory has no latency below 0, and no endless rate.
        fast = labs.measured_link({size: 0.0 for size in seconds}, COSTS, 1.0)
        self.assertEqual(fast.latency_s, 0)
        self.assertLess(fast.bytes_per_second, 1e12)

    def test_comparison(self):
        fake = FakeExchanges()
        found, said = self.compare(labs.Lab("1gbit", 4), fake)
        self.assertEqual([asked[1:] for asked in fake.asked],
                         [(2, "netlab:4,1gbit", labs.STEPS_MAX)] * 2 + [(4, "netlab:4,1gbit", labs.STEPS_MAX)] * 2
                         + [(2, "netlab:2+2,1gbit", labs.STEPS_MAX)] * 2)
        self.assertEqual({(one.place.sync, one.place.placement) for one in found},
                         {(cell.sync, cell.placement) for cell in cells.CELLS if cell.sync != "star-servers-tcp"}
                         | {("star", cells.OWN_HOSTS)})
        self.assertEqual(sum("star-servers-tcp has failed: no benchmark" in text for text in said), 1)
        self.assertEqual(self.failures, ["netlab:4,1gbit: star-servers-tcp: no benchmark"])
        self.assertEqual(sum("bursts of 300 us" in text for text in said), 1)
        lines = labs.table(found)
        self.assertEqual(len(lines), len(found) + 2)
        self.assertTrue(lines[-1].startswith("met") or "worst" in lines[-1])
        wasted = labs.wasted_buckets(found)
        self.assertAlmostEqual(wasted["star@own"], 1.5, delta=0.02)
        self.assertEqual(wasted["ring"], 0)

    def test_without_a_link_nothing_is_predicted(self):
        with self.assertRaisesRegex(programs.ProgramError, "netlab:4,1gbit: the link cannot be measured: no benchmark"):
            self.compare(labs.Lab("1gbit", 4), FakeExchanges(failing=["ring"]))

    def test_what_has_no_costs_is_not_measured(self):
        fake = FakeExchanges(failing=())
        found, said = self.compare(labs.Lab("1gbit", 4), fake, make_book(syncs=("ring", "star-mpi")))
        self.assertEqual({sync for syncs, *_ in fake.asked for sync in syncs}, {"ring", "star-mpi"})
        self.assertEqual({one.place.sync for one in found}, {"ring", "star-mpi"})
        self.assertIn("cells that have costs: ring, star-mpi", said)
        fake = FakeExchanges()
        with self.assertRaises(cost_book.CostsError):
            self.compare(labs.Lab("1gbit", 4), fake, make_book(syncs=("star",)))
        self.assertEqual(fake.asked, [])

    def test_servers_of_their_own_that_fail_are_said(self):
        self.compare(labs.Lab("1gbit", 4), FakeExchanges(failing=[alone.OWN_HOSTS]))
        self.assertEqual(self.failures, ["netlab:2+2,1gbit: star-own-hosts: no benchmark"])

    def test_an_odd_lab_has_no_half_for_servers(self):
        found, _ = self.compare(labs.Lab("200mbit", 3), FakeExchanges())
        self.assertEqual({one.lab for one in found}, {"netlab:3,200mbit"})

    def test_the_verdict_counts_what_is_off(self):
        one = labs.Comparison(cells.BY_SYNC["ring"], "netlab:2,1gbit", 2, 0, labs.LARGE, 1.0, 1.05, True)
        off = dataclasses.replace(one, predicted_s=1.2)
        self.assertTrue(labs.table([one])[-1].startswith("met: 1 of 1"))
        self.assertTrue(labs.table([one, off])[-1].startswith("missed: 1 of 2"))
        self.assertTrue(labs.table([])[-1].startswith("missed"))
        # What was not measured was not met.
        self.assertEqual([labs.is_met(*both) for both in (([one], []), ([one, off], []), ([one], ["x"]), ([], []))],
                         [True, False, False, False])
        *_, named, verdict = labs.table([one], ["netlab:2,1gbit: star: no benchmark"])
        self.assertEqual(named, "not measured: netlab:2,1gbit: star: no benchmark")
        self.assertTrue(verdict.startswith("missed: 1 of 1"))
        # Only what a link limits tells of links, and nothing is faster than its link.
        wasteful = dataclasses.replace(one, measured_s=1.05 + 0.2, bucket_s=0.1)
        for more, wasted in (({}, {"ring": 2.0}), ({"wire_bound": False}, {}), ({"bytes": labs.LARGE - 1}, {}),
                             ({"bucket_s": 0.0}, {"ring": 0.0}), ({"measured_s": 1.0}, {"ring": 0.0})):
            found = labs.wasted_buckets([dataclasses.replace(wasteful, **more)])
            self.assertEqual(found.keys(), wasted.keys())
            self.assertAlmostEqual(found.get("ring", 0.0), wasted.get("ring", 0.0))
        # Of an exchange four times as long a bucket is a small part, so its error says less.
        longer = dataclasses.replace(wasteful, measured_s=4.2, predicted_s=4.2)
        self.assertAlmostEqual(labs.wasted_buckets([wasteful, longer])["ring"], 2.0 / (1 + (1.05 / 4.2) ** 2))


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
