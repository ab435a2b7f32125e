"""Stops processes (SIGSTOP): the job must name the process and its phase within seconds, and end with the same bits."""

import json
import os
import re
import signal
import time
import unittest

from tests.e2e.jobs import JobTest, SERVER, STOPPING_WORKER, WORKER

# 12 steps in three epochs, a checkpoint after each.
JOB = ["--dataset=synthetic", "--synthetic_train_count=128", "--synthetic_test_count=64", "--global_batch=32",
       "--epochs=3", "--model=lenet5", "--progress=plain", "--checkpoint_every_epochs=1", "--stall_report_s=1",
       "--exchange_deadline_s=60"]
# The phases in which rank 1 stops, in order, and what the others report about it.
STOPS = [("data:1", "reading data for step 1"), ("forward:2", "in forward of step 2"),
         ("evaluation:3", "in the evaluation after step 3"), ("checkpoint:3", "in the checkpoint after step 3"),
         ("backward:5", "in backward of step 5"), ("exchange:6", "in the exchange at step 6")]
# The report is due after 1 s. The rest is for a busy machine.
REPORT_SECONDS_MAX = 10
LINE = re.compile(r"worker 0: (stuck for .*)")


def is_stopped(pid):
    with open("/proc/%d/stat" % pid) as file:
        return file.read().rpartition(")")[2].split()[0] in "Tt"


class StallTest(JobTest):

    def wait_until(self, happened, what, process):
        end = time.monotonic() + 60
        while not happened():
            if process.poll() is not None or time.monotonic() > end:
                self.fail("%s did not happen:\n%s" % (what, self.output_of(process)))
            time.sleep(0.02)  # there is no event to wait for

    def start_servers(self, count):
        servers = [self.start_server(shard=shard, shard_count=count) for shard in range(count)]
        return [process for process, _ in servers], [address for _, address in servers]

    def star(self, worker, record, stops=""):
        servers, addresses = self.start_servers(2)
        flags = [*JOB, "--servers=" + ",".join(addresses), "--world_size=2", "--checkpoint_dir=" + record + ".d"]
        environment = {**os.environ, "STARRING_TEST_STOPS": stops}
        first = self.start([WORKER, *flags, "--rank=0", "--record=" + record])
        second = self.start([worker, *flags, "--rank=1"], env=environment)
        return servers, addresses, first, second

    def ranks(self, sync, worker, record, stops):
        flags = [*JOB, "--sync=" + sync, "--same_host=socket", "--checkpoint_dir=" + record + ".d"]
        return self.start(["mpirun", "-np", "1", WORKER, *flags, "--record=" + record, ":",
                           "-np", "1", "-x", "STARRING_TEST_STOPS=" + stops, worker, *flags])

    def ranks_over_tcp(self, sync, worker, record, stops):
        flags = [*JOB, "--sync=" + sync, "--same_host=socket", "--rendezvous=" + self.free_address(),
                 "--world_size=2", "--checkpoint_dir=" + record + ".d"]
        environment = {**os.environ, "STARRING_TEST_STOPS": stops}
        return (self.start([WORKER, *flags, "--rank=0", "--record=" + record]),
                self.start([worker, *flags, "--rank=1"], env=environment))

    def digest(self, record):
        with open(record) as file:
            return json.load(file)["parameter_sha256"]

    def check_stops(self, first, stopped_in, stops=STOPS):
        """For each stop: waits for the line that names it, continues the process, waits for the line that says so."""
        for number, (stop, words) in enumerate(stops):
            self.wait_until(lambda text="stops in %s\n" % stop: text in self.output_of(stopped_in), stop, stopped_in)
            pid = self.stopped_pid(stopped_in)
            begin = time.monotonic()
            self.wait_until(lambda count=number: len(LINE.findall(self.output_of(first))) > count,
                            "a report of " + stop, first)
            self.assertLess(time.monotonic() - begin, REPORT_SECONDS_MAX)
            line = LINE.findall(self.output_of(first))[number]
            self.assertIn("rank 1 does not answer: when last heard, ", line)
            self.assertIn("it was " + words, line)
            os.kill(pid, signal.SIGCONT)
            self.wait_until(lambda count=number: self.output_of(first).count("worker 0: the job goes on after") > count,
                            "going on", first)
        done = self.finish(first)
        self.assertEqual(done.returncode, 0, done.output)
        self.assertEqual(len(LINE.findall(done.output)), len(stops), done.output)
        self.assertEqual(done.output.count("worker 0: the job goes on after"), len(stops), done.output)
        self.assertNotIn("worker 1: stuck", done.output)

    def stopped_pid(self, process):
        """The stopped process among `process` and its children."""
        found = []

        def look():
            found[:] = [pid for pid in [process.pid, *self.children(process.pid)] if is_stopped(pid)]
            return bool(found)

        self.wait_until(look, "the stop", process)
        return found[0]

    def children(self, pid):
        with open("/proc/%d/task/%d/children" % (pid, pid)) as file:
            return [int(child) for child in file.read().split()]

    def test_a_star_names_a_stopped_worker_and_its_phase(self):
        stops = ",".join(stop for stop, _ in STOPS)
        _, _, first, second = self.star(STOPPING_WORKER, self.path("stopped"), stops)
        self.check_stops(first, second)
        self.assertEqual(self.finish(second).returncode, 0)
        # The servers report it as well.
        self.assertIn("server 0: stuck for", self.output_of(self.processes[0]))
        # The bits are those of a worker that never stops.
        self.assertEqual(self.digest(self.path("stopped")), self.undisturbed_digest())

    def test_a_ring_names_a_stopped_worker_and_its_phase(self):
        job = self.ranks("ring", STOPPING_WORKER, self.path("stopped"), ",".join(stop for stop, _ in STOPS))
        self.check_stops(job, job)
        self.assertEqual(self.digest(self.path("stopped")), self.undisturbed_digest())

    def test_a_star_without_servers_names_a_stopped_worker_and_its_phase(self):
        stops = [STOPS[1], STOPS[-1]]
        job = self.ranks("star", STOPPING_WORKER, self.path("stopped"), ",".join(stop for stop, _ in stops))
        self.check_stops(job, job, stops)

    def test_ranks_over_tcp_name_a_stopped_worker_and_its_phase(self):
        digests = set()
        for sync, stops in (("ring", [STOPS[1], STOPS[-1]]), ("star", [STOPS[2], STOPS[-1]])):
            first, second = self.ranks_over_tcp(sync, STOPPING_WORKER, self.path("stopped." + sync),
                                                ",".join(stop for stop, _ in stops))
            self.check_stops(first, second, stops)
            self.assertEqual(self.finish(second).returncode, 0)
            digests.add(self.digest(self.path("stopped." + sync)))
        self.assertEqual(len(digests), 1)

    def test_ranks_over_tcp_name_a_rank_that_is_not_there_yet(self):
        flags = [*JOB, "--sync=ring", "--rendezvous=" + self.free_address(), "--world_size=2",
                 "--checkpoint_dir=" + self.path("late.d")]
        first = self.start([WORKER, *flags, "--rank=0"])
        self.wait_until(lambda: LINE.search(self.output_of(first)), "a report", first)
        self.assertRegex(LINE.search(self.output_of(first))[1], r"\(joining\): rank 1 of 2 has not joined at ")
        second = self.start([WORKER, *flags, "--rank=1"])
        for worker in (first, second):
            done = self.finish(worker)
            self.assertEqual(done.returncode, 0, done.output)
        self.assertIn("worker 0: the job goes on after", self.output_of(first))

    def test_ranks_over_tcp_name_a_stopped_server(self):
        meet = ["--rendezvous=" + self.free_address(), "--world_size=2"]
        servers = [self.start([SERVER, "--transport=tcp", *meet, "--shard=%d" % shard, "--shard_count=2"])
                   for shard in range(2)]
        flags = [*JOB, "--sync=star", *meet, "--server_ranks=2", "--checkpoint_dir=" + self.path("stopped.d")]
        environment = {**os.environ, "STARRING_TEST_STOPS": "backward:5"}
        workers = [self.start([WORKER, *flags, "--rank=0", "--record=" + self.path("stopped")]),
                   self.start([STOPPING_WORKER, *flags, "--rank=1"], env=environment)]
        pid = self.stopped_pid(workers[1])
        servers[1].send_signal(signal.SIGSTOP)
        self.wait_until(lambda: is_stopped(servers[1].pid), "the stop", servers[1])
        os.kill(pid, signal.SIGCONT)
        for worker in workers:
            self.wait_until(lambda process=worker: "server 1 does not answer" in self.output_of(process), "a report",
                            worker)
        servers[1].send_signal(signal.SIGCONT)
        for worker in workers:
            done = self.finish(worker)
            self.assertEqual(done.returncode, 0, done.output)
            self.assertIn("the job goes on after", done.output.partition("server 1 does not answer")[2])
        self.assertEqual(self.digest(self.path("stopped")), self.undisturbed_digest())

    def undisturbed_digest(self):
        """The digest of the same job without stops, which is the same for star and ring."""
        _, _, first, second = self.star(WORKER, self.path("undisturbed"))
        done = self.finish(first)
        self.assertEqual(done.returncode, 0, done.output)
        self.assertEqual(self.finish(second).returncode, 0)
        self.assertNotIn("stuck", done.output)
        return self.digest(self.path("undisturbed"))

    def test_a_star_names_a_stopped_server(self):
        stops = "backward:5"
        servers, addresses, first, second = self.star(STOPPING_WORKER, self.path("stopped"), stops)
        # Rank 1 stops in a step, so that the server is stopped in the middle of that step.
        pid = self.stopped_pid(second)
        servers[1].send_signal(signal.SIGSTOP)
        self.wait_until(lambda: is_stopped(servers[1].pid), "the stop", servers[1])
        os.kill(pid, signal.SIGCONT)
        expected = "server %s (shard 1) does not answer: last heard" % addresses[1]
        for worker in (first, second):
            self.wait_until(lambda process=worker: expected in self.output_of(process), "a report", worker)
        servers[1].send_signal(signal.SIGCONT)
        for worker in (first, second):
            done = self.finish(worker)
            self.assertEqual(done.returncode, 0, done.output)
            self.assertIn("the job goes on after", done.output.partition(expected)[2])
        self.assertEqual(self.digest(self.path("stopped")), self.undisturbed_digest())


if __name__ == "__main__":
    unittest.main()
