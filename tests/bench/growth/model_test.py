"""Tests chunks, buckets and loads, the bounds of the cells, and steps with computing."""

import dataclasses
import itertools
import unittest

import exchange_model as model
import sync_cells as cells
from made_costs import COSTS, FREE
from workload import (Cluster, Group, Workload, WorkloadError, block_bytes, bucket_sizes, chunk_bytes, groups,
                      rounded_bucket_bytes)

MIB = 1 << 20
RATE = 1e8
BY_SYNC = cells.BY_SYNC


def own(sync):
    return dataclasses.replace(BY_SYNC[sync], placement=cells.OWN_HOSTS)


def bucket_count(*of):
    return sum(count for _, count in bucket_sizes(*of))


def exchange_s(place, workers, servers, size, bucket=MIB, costs=FREE, **cluster):
    found = Cluster(**{"hosts": 2, "cores": 2, "bytes_per_second": RATE, **cluster})
    job = model.Job(place, workers, servers)
    return max(model.parts(load, found, costs).exchange_s for load in model.loads(job, found, size, bucket))


class WorkloadTest(unittest.TestCase):
    def test_chunks(self):
        kib = [chunk_bytes(workers) // 1024 for workers in (1, 2, 4, 5, 8, 9, 16, 32, 33, 64, 100, 1024)]
        self.assertEqual(kib, [128, 128, 128, 32, 32, 16, 16, 8, 4, 4, 4, 4])
        self.assertEqual(block_bytes(4), 512 * 1024)
        self.assertEqual(block_bytes(1024), 4 * MIB)

    def test_buckets_as_the_bucket_map_rounds_them(self):
        self.assertEqual(rounded_bucket_bytes(8 * MIB, MIB, 4), MIB)
        self.assertEqual(rounded_bucket_bytes(8 * MIB, MIB + 1, 4), MIB + MIB // 2)
        self.assertEqual(rounded_bucket_bytes(1000, MIB, 2), 256 * 1024)
        self.assertEqual(bucket_count(8 * MIB, MIB, 4), 8)
        self.assertEqual(bucket_count(8 * MIB + 4, MIB, 4), 9)
        self.assertEqual(bucket_count(4, MIB, 64), 1)
        # resnet20 with 16 workers has at least 4 buckets.
        self.assertGreaterEqual(bucket_count(1_090_000, 256 * 1024, 16), 4)

    def test_hosts_of_workers(self):
        several = Cluster(hosts=4, workers_per_host=2, bytes_per_second=RATE)
        self.assertEqual([several.hosts_of(workers) for workers in (1, 2, 3, 8, 1024)], [1, 1, 2, 4, 512])
        self.assertEqual(Cluster(hosts=1, workers_per_host=2).hosts_of(1024), 1)

    def test_what_makes_no_sense_is_refused(self):
        for make in (lambda: Workload("a", 3), lambda: Cluster(cores=0)):
            self.assertRaises(WorkloadError, make)
        with self.assertRaisesRegex(WorkloadError, "--gbits, or --measure"):
            Cluster(hosts=2)


class BoundTest(unittest.TestCase):
    """Without costs and latency, the cells reach the bounds of their topology and placement."""

    def test_owners_in_the_ranks(self):
        for sync, workers in itertools.product(("ring", "ring-tcp", "star-mpi", "star-tcp"), (2, 4, 8, 64)):
            bound = 2 * (workers - 1) / workers * 16 * MIB / RATE
            self.assertAlmostEqual(exchange_s(BY_SYNC[sync], workers, 0, 16 * MIB), bound, places=9)

    def test_servers_on_the_workers_hosts(self):
        for sync in ("star", "star-servers-tcp"):
            self.assertAlmostEqual(exchange_s(BY_SYNC[sync], 4, 4, 16 * MIB), 1.5 * 16 * MIB / RATE, places=9)
            # One server's host carries what three other workers send and get.
            self.assertAlmostEqual(exchange_s(BY_SYNC[sync], 4, 1, 16 * MIB), 3 * 16 * MIB / RATE, places=9)

    def test_servers_on_hosts_of_their_own(self):
        for workers, servers in ((4, 4), (4, 2), (4, 1), (4, 8), (64, 16)):
            buckets = bucket_count(16 * MIB, MIB, workers)
            bound = (1 + 1 / buckets) * max(1, workers / servers) * 16 * MIB / RATE
            self.assertAlmostEqual(exchange_s(own("star"), workers, servers, 16 * MIB), bound, places=9)

    def test_a_ring_crosses_a_link_once_and_a_star_as_often_as_a_host_has_ranks(self):
        hosts = {"hosts": 2, "workers_per_host": 4}
        self.assertAlmostEqual(exchange_s(BY_SYNC["ring"], 8, 0, MIB, **hosts), 2 * 7 / 8 * MIB / RATE)
        self.assertAlmostEqual(exchange_s(BY_SYNC["star-mpi"], 8, 0, MIB, **hosts), 4 * 2 * 4 / 8 * MIB / RATE)

    def test_one_host_has_no_link(self):
        for sync, servers in (("ring", 0), ("star-mpi", 0), ("star", 2)):
            self.assertEqual(exchange_s(BY_SYNC[sync], 4, servers, MIB, hosts=1), 0)
        self.assertEqual(exchange_s(BY_SYNC["ring"], 4, 0, MIB, workers_per_host=4), 0)

    def test_latency_counts_hops(self):
        for sync, servers, hops in (("ring", 0, 14), ("star-mpi", 0, 2), ("star", 8, 2)):
            latency = exchange_s(BY_SYNC[sync], 8, servers, 4096, latency_s=1.0) - exchange_s(
                BY_SYNC[sync], 8, servers, 4096)
            self.assertAlmostEqual(latency, hops)

    def test_cores_and_link_take_turns_over_one_bucket_of_a_server(self):
        # Only summing costs anything: cores need as long for a MiB of one worker as a link.
        costs = dataclasses.replace(FREE, seconds={"sum_byte": 1 / RATE})
        size = 16 * MIB / RATE
        for buckets, bucket in ((1, 16 * MIB), (4, 4 * MIB), (16, MIB)):
            # Each host sums a quarter of each of 4 gradients; its link carries 1.5 times the vector.
            self.assertAlmostEqual(exchange_s(BY_SYNC["star"], 4, 4, 16 * MIB, bucket, costs, cores=1),
                                   1.5 * size + size / buckets)
            self.assertAlmostEqual(exchange_s(own("star"), 4, 4, 16 * MIB, bucket, costs, cores=1),
                                   (1 + 1 / buckets) * size + size / buckets)
            self.assertAlmostEqual(exchange_s(BY_SYNC["star"], 2, 2, 16 * MIB, bucket, costs, cores=1),
                                   size + size / buckets)
        # Ranks sum and send a bucket's chunks at the same time.
        for sync in ("ring", "star-tcp"):
            self.assertAlmostEqual(exchange_s(BY_SYNC[sync], 4, 0, 16 * MIB, 16 * MIB, costs, cores=1), 1.5 * size)
        step_s = model.predict_s(model.Job(BY_SYNC["star"], 4, 4), Cluster(4, cores=2, bytes_per_second=RATE),
                                 Workload("a", 16 * MIB, 10.0, bucket_bytes=4 * MIB), costs)
        self.assertAlmostEqual(step_s - 10, 1.5 * size / 4 + size / 2 / 4)

    def test_an_emulated_link_catches_up_on_idle_time(self):
        def saved(place, workers, servers, size, burst_s, **more):
            return (exchange_s(place, workers, servers, size, size, **more)
                    - exchange_s(place, workers, servers, size, size, burst_s=burst_s, **more))

        ring, star = BY_SYNC["ring"], BY_SYNC["star"]
        # A ring of two waits for 2 messages, and no longer than that was its link idle.
        self.assertAlmostEqual(saved(ring, 2, 0, MIB, 3e-4, latency_s=1e-4), 2e-4)
        self.assertAlmostEqual(saved(ring, 2, 0, MIB, 3e-4, latency_s=1.0), 3e-4)
        self.assertEqual(saved(ring, 2, 0, MIB, 3e-4), 0)
        # Only what it carries can it carry sooner, and one host has no link.
        self.assertAlmostEqual(saved(ring, 2, 0, 4096, 3e-4, latency_s=1.0), 4096 / RATE)
        self.assertEqual(saved(ring, 2, 0, MIB, 3e-4, hosts=1), 0)
        # With servers on hosts of their own, one direction is idle while the other one carries the only bucket.
        self.assertAlmostEqual(saved(own("star"), 2, 2, MIB, 3e-4), 6e-4)
        self.assertEqual(saved(star, 2, 2, MIB, 3e-4), 0)
        computing = Workload("a", MIB, 10.0, bucket_bytes=MIB)
        job = model.Job(own("star"), 1, 1)
        steps = [model.predict_s(job, Cluster(2, cores=2, bytes_per_second=RATE, burst_s=burst), computing, FREE)
                 for burst in (0.0, 3e-4)]
        self.assertAlmostEqual(steps[0] - steps[1], 6e-4)


class LoadTest(unittest.TestCase):
    def load(self, sync, workers, servers, size=16 * MIB, cores=2):
        found, = model.loads(model.Job(BY_SYNC[sync], workers, servers), Cluster(cores=cores), size, MIB)
        return found

    def test_messages_of_ranks(self):
        # 16 buckets of 1 MiB; 4 ranks own 2 chunks of 128 KiB of each. All 4 send and receive.
        self.assertEqual(self.load("ring", 4, 0).messages, 4 * 2 * 2 * 3 * 2 * 16)
        # With 16 ranks one message carries the chunks of several blocks.
        self.assertEqual(self.load("star-mpi", 16, 0).messages, 16 * 2 * 2 * 15 * 16)
        self.assertEqual(self.load("ring", 1, 0).messages, 0)
        # With 64 ranks a bucket is 4 blocks of 256 KiB, and the last one a block and a half.
        self.assertEqual(groups(MIB + 384 * 1024, MIB, 64, few_owners=False),
                         [Group(MIB, 64, 1), Group(384 * 1024, 64, 1)])

    def test_a_short_last_block_of_a_star_has_few_owners(self):
        # A ring of 64 sends 63 messages in each phase from each rank, a star's only owner one to each of 63, and back.
        self.assertEqual(self.load("ring", 64, 0, 4096).messages, 4 * 63 * 64)
        self.assertEqual(self.load("star-mpi", 64, 0, 4096).messages, 252)
        self.assertEqual(self.load("star-mpi", 64, 0, 65536).messages, 4 * 252)
        found = self.load("star-tcp", 64, 0, 4096)
        self.assertEqual((found.bytes, found.summed, found.applied), (252 * 4096, 64 * 4096, 4096))
        # The whole blocks before it have all ranks as owners, and the short one is a group of its own.
        self.assertEqual(groups(MIB + 384 * 1024, MIB, 64, few_owners=True),
                         [Group(MIB, 64, 1), Group(256 * 1024, 64, 1), Group(128 * 1024, 8, 1)])
        self.assertEqual(self.load("star-mpi", 64, 0, MIB + 384 * 1024).messages, 4 * 63 * (64 + 64 + 8))
        # A whole block has chunks of 4 KiB with 64 ranks, and none of its owners is left out.
        self.assertEqual(groups(256 * 1024, MIB, 64, few_owners=True), [Group(256 * 1024, 64, 1)])

    def test_an_owner_is_busier_than_other_hosts(self):
        cluster = Cluster(hosts=2, cores=2, bytes_per_second=RATE)
        found, = model.loads(model.Job(BY_SYNC["star-mpi"], 8, 0), cluster, 4096, MIB)
        self.assertEqual((found.messages, found.link_bytes), (2 * 7, 7 * 4096))
        many, = model.loads(model.Job(BY_SYNC["star-mpi"], 8, 0), cluster, MIB, MIB)
        self.assertEqual((many.messages, many.link_bytes), (4 * 7, 2 * 7 / 8 * MIB))

    def test_messages_of_servers(self):
        # Each of 3 workers pushes 16 buckets to 2 servers and pulls them; both sides handle each message. Ranks would
        # have 15, of three blocks of 384 KiB.
        self.assertEqual(bucket_count(16 * MIB, MIB, 3), 15)
        self.assertEqual(self.load("star", 3, 2).messages, 2 * (3 * 2 * 2 * 16))
        self.assertEqual(self.load("star", 3, 2).processes, 5)
        # A slice is one message, however long it is.
        for sync in ("star", "star-servers-tcp"):
            self.assertEqual(self.load(sync, 2, 1).messages, 2 * (2 * 1 * 2 * 16))
            self.assertEqual(self.load(sync, 2, 1).long_messages, self.load(sync, 2, 1).messages)
            self.assertEqual(self.load(sync, 2, 1, 4096).long_messages, self.load(sync, 2, 1, 4096).messages)
            self.assertEqual(self.load(sync, 2, 1, 2048).long_messages, 0)

    def test_bytes(self):
        for sync, servers in (("ring", 0), ("star-tcp", 0)):
            self.assertAlmostEqual(self.load(sync, 4, servers).bytes, 4 * 4 * 3 / 4 * 16 * MIB)
        for servers in (1, 2, 4):
            found = self.load("star", 4, servers)
            self.assertAlmostEqual(found.bytes, 2 * 4 * 2 * 16 * MIB)
            self.assertAlmostEqual(found.summed, 4 * 16 * MIB)
            self.assertAlmostEqual(found.applied, 16 * MIB)

    def test_more_processes_than_cores_share_them(self):
        cluster = Cluster(cores=2)
        one = model.terms(self.load("ring", 2, 0), cluster, 1e18)
        many = model.terms(self.load("ring", 8, 0), cluster, 1e18)
        self.assertEqual((one["crowd"], many["crowd"]), (0, 14 * 3))
        self.assertAlmostEqual(many["byte"] / one["byte"], (8 * 4 * 7 / 8) / (2 * 4 / 2))

    def test_a_cache_is_left_gradually(self):
        load, cluster = self.load("ring", 2, 0), Cluster(cores=2)
        self.assertEqual(model.terms(load, cluster, load.working_set)["cold_byte"], 0)
        half = model.terms(load, cluster, load.working_set / 2)
        self.assertAlmostEqual(half["cold_byte"], half["byte"] / 2)

    def test_a_short_array_is_in_small_pages(self):
        cluster = Cluster(cores=2)
        for sync, servers in (("ring", 0), ("star", 2)):
            short = model.terms(self.load(sync, 2, servers, size=2 * MIB - 4), cluster, 1e18)
            self.assertEqual(short["small_page_byte"], short["byte"])
            long = model.terms(self.load(sync, 2, servers, size=2 * MIB), cluster, 1e18)
            self.assertEqual(long["small_page_byte"], 0)


class StepTest(unittest.TestCase):
    def step_s(self, compute_s, costs=FREE, workers=4, bench=False, cores=8.0, **more):
        cluster = Cluster(hosts=2, cores=cores, bytes_per_second=RATE)
        return model.predict_s(model.Job(BY_SYNC["ring"], workers, 0), cluster,
                               Workload("a", 16 * MIB, compute_s), costs, bench=bench, **more)

    def test_without_computing_a_step_is_its_exchange(self):
        self.assertAlmostEqual(self.step_s(0.0), 1.5 * 16 * MIB / RATE)

    def test_long_computing_hides_all_but_the_last_bucket(self):
        self.assertAlmostEqual(self.step_s(10.0), 10 + 1.5 * MIB / RATE)

    def test_short_computing_delays_the_first_bucket(self):
        # The first of 16 buckets leaves after forward and a 16th of backward.
        self.assertAlmostEqual(self.step_s(0.03), 1.5 * 16 * MIB / RATE + 0.03 * (1 / 3 + 2 / 3 / 16))

    def test_a_bench_submits_before_it_computes(self):
        self.assertAlmostEqual(self.step_s(0.03, bench=True), 1.5 * 16 * MIB / RATE)

    def test_busy_cores_hide_nothing(self):
        cluster = Cluster(cores=2)
        job = model.Job(BY_SYNC["ring"], 2, 0)
        alone, busy = (model.predict_s(job, cluster, Workload("a", 16 * MIB, seconds), COSTS) - seconds
                       for seconds in (0.0, 10.0))
        load, = model.loads(job, cluster, 16 * MIB, MIB)
        work = model.parts(load, cluster, COSTS).cpu_s
        self.assertAlmostEqual(busy, COSTS.contention * work)
        self.assertLess(alone, busy)

    def test_workers_that_share_a_core_compute_longer(self):
        cluster = Cluster(cores=2)
        found = model.predict_s(model.Job(BY_SYNC["ring"], 8, 0), cluster, Workload("a", 4096, 1.0), FREE)
        self.assertAlmostEqual(found, 4.0)
        self.assertAlmostEqual(model.compute_s(8, cluster, Workload("a", 4096, 1.0)), 4.0)

    def test_the_slowest_of_many_is_slower(self):
        steps = [self.step_s(1.0, workers=workers, jitter=0.01) for workers in (2, 64)]
        self.assertGreater(steps[1], steps[0])
        self.assertLess(steps[1], 1.08)

    def test_more_of_anything_takes_longer(self):
        for cell in cells.CELLS:
            for workers in (2, 8, 64, 1024):
                job = model.Job(cell, workers, 2 * cell.has_servers)
                cluster = Cluster(hosts=2, cores=2, bytes_per_second=RATE, latency_s=1e-5)

                def step(size, compute_s, job=job, cluster=cluster):
                    return model.predict_s(job, cluster, Workload("a", size, compute_s), COSTS)

                # These are whole blocks: the few owners of a shorter one may take longer than the many of a whole one.
                self.assertLess(step(4 * MIB, 0.01), step(16 * MIB, 0.01))
                self.assertLess(step(4 * MIB, 0.01), step(4 * MIB, 0.02))


if __name__ == "__main__":
    unittest.main()
