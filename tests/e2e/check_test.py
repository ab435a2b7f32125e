"""Tests launch --check and worker --check with real processes: ready, or the one problem to mend."""

import contextlib
import os
import random
import re
import shutil
import socket
import time
import unittest

from jobs import LAUNCH, SERVER, SMALL_JOB, WORKER, JobTest

# A check ends after a minute at most, by its own deadlines.
CHECK_SECONDS_MAX = 120
HAS_MPIRUN = shutil.which("mpirun") is not None


class CheckTest(JobTest):

    def check(self, *flags, worker_flags=()):
        done = self.run_to_end([LAUNCH, "--check", *flags, "--", *worker_flags], CHECK_SECONDS_MAX)
        self.assert_fits(done.output)
        return done

    def worker_check(self, servers, *flags):
        return self.run_to_end([WORKER, "--check", "--servers=" + ",".join(servers), *flags], CHECK_SECONDS_MAX)

    def assert_fits(self, output):
        """The table and its sentences; what a process says is as long as it must be."""
        for line in output.splitlines():
            if not re.match(r"(\S+Z )?[sw]\d+ \| ", line):
                self.assertLessEqual(len(line), 120, line)

    def last_sentence(self, done):
        """The last sentence. Its lines are indented, except the first."""
        lines = done.output.rstrip("\n").splitlines()
        start = len(lines) - 1
        while lines[start].startswith("  "):
            start -= 1
        return " ".join(line.strip() for line in lines[start:])

    def test_star_is_ready(self):
        done = self.check("--sync=star", "--workers=2", "--servers=2")
        self.assertEqual(done.returncode, 0, done.output)
        self.assertRegex(self.last_sentence(done), "^ready: 2 workers reach all 2 servers")
        for process in ("w0", "w1", "s0", "s1"):
            self.assertRegex(done.output, r"(?m)^%s +\S+ +\d+ +[\d.]+ GiB +\d+ +[+-]?[\d.]+ " % process)
        for pair in ("w0 +s0", "w0 +s1", "w1 +s0", "w1 +s1"):
            self.assertRegex(done.output,
                             r"(?m)^%s +grpc +127.0.0.1:\d+ +lo +reachable +[\d.]+ ms +[\d.]+ .bit/s" % pair)
        self.assertRegex(done.output, r"s0, s1: starring [\d.]+, .*protobuf [\d.]+, gRPC [\d.]+")

    def test_a_server_without_notes_measures_bandwidth_too(self):
        # Notes are put on the first four servers. The fifth must not cut the payloads as a stranger's.
        done = self.check("--sync=star", "--workers=2", "--servers=5")
        self.assertEqual(done.returncode, 0, done.output)
        self.assertRegex(self.last_sentence(done), "^ready: 2 workers reach all 5 servers")
        for rank in range(2):
            self.assertRegex(done.output, r"(?m)^w%d +s4 +grpc .*reachable +[\d.]+ ms +[\d.]+ .bit/s" % rank)

    def test_a_quota_is_told(self):
        group = "/sys/fs/cgroup/cpu/starring-check-test-%d" % os.getpid()
        try:
            os.mkdir(group)
            self.addCleanup(os.rmdir, group)
            with open(group + "/cpu.cfs_quota_us", "w", encoding="utf-8") as file:
                file.write("50000")
        except OSError as error:
            self.skipTest("no control group of version 1 with a quota: %s" % error)
        done = self.run_to_end(["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', group, LAUNCH, "--check",
                                "--sync=star", "--workers=1"], CHECK_SECONDS_MAX)
        self.assertEqual(done.returncode, 0, done.output)
        self.assertRegex(done.output, r"(?m) launch: star, cores: w0=\d s0=.* \(\d+ cores?, quota 0.5\)$")
        self.assertRegex(done.output, r"(?m)^w0, s0: 1 core, quota 0.5$")
        self.assertIn("w0 has 1 core, quota 0.5, on ", done.output)

    def free_ports(self, count):
        """The first of so many ports that are free now, and that the system gives to nobody who asks for any."""
        for first in random.sample(range(20_000, 30_000), 100):
            try:
                for port in range(first, first + count):
                    with socket.socket() as probe:
                        probe.bind(("127.0.0.1", port))
                return first
            except OSError:
                continue
        return self.fail("no free ports")

    def test_everything_listens_in_the_range(self):
        for count, flags in ((3, ["--sync=ring", "--transport=tcp", "--workers=3"]),
                             (2, ["--sync=star", "--workers=2", "--servers=2"]),
                             (3, ["--sync=star", "--transport=tcp", "--workers=2", "--servers=1"])):
            first = self.free_ports(count)
            ports = "--port_range=%d-%d" % (first, first + count - 1)
            for _ in range(2):  # the kernel still knows connections of the first time
                done = self.check(*flags, ports)
                self.assertEqual(done.returncode, 0, done.output)
                found = set(map(int, re.findall(r"(?m)^[sw]\d +[sw]\d .*127.0.0.1:(\d+) ", done.output)))
                self.assertLessEqual(found, set(range(first, first + count)), done.output)
        done = self.check("--sync=star", "--workers=1", "--servers=2", "--port_range=%d-%d" % (first, first))
        self.assertEqual(done.returncode, 2, done.output)
        self.assertIn("no port from %d to %d is free: end what listens there, or widen --port_range" % (first, first),
                      done.output)

    def test_a_job_trains_in_the_range(self):
        for sync, more, count in (("ring/tcp", [], 3), ("star", ["--elastic"], 2)):
            first = self.free_ports(count)
            record = self.train(sync, workers=3, servers=2, flags=SMALL_JOB,
                                launch_flags=[*more, "--port_range=%d-%d" % (first, first + count - 1)])
            self.assertGreater(record["steps"], 0)

    @unittest.skipUnless(HAS_MPIRUN, "no mpirun")
    def test_ring_is_ready(self):
        done = self.check("--sync=ring", "--workers=3")
        self.assertEqual(done.returncode, 0, done.output)
        self.assertRegex(self.last_sentence(done), "^ready: 3 workers reach each other")
        for rank in range(3):
            for other in {0, 1, 2} - {rank}:
                self.assertRegex(done.output, r"(?m)^w%d +w%d +tcp +127.0.0.1:\d+ +lo +reachable " % (rank, other))
            self.assertRegex(done.output, r"(?m)^w%d +w%d +mpi .*reachable +[\d.]+ ms +[\d.]+ .bit/s" %
                             (rank, (rank + 1) % 3))
        self.assertIn("Open MPI 4", done.output)

    @unittest.skipUnless(HAS_MPIRUN, "no mpirun")
    def test_star_without_servers_is_ready(self):
        done = self.check("--sync=star", "--transport=mpi", "--workers=2")
        self.assertEqual(done.returncode, 0, done.output)
        self.assertRegex(self.last_sentence(done), "^ready: 2 workers reach each other")
        self.assertRegex(done.output, r"(?m)^w0 +w1 +mpi .*reachable ")

    def test_ranks_over_tcp_are_ready(self):
        for sync, more in (("ring", ["--tls"]), ("star", [])):
            done = self.check("--sync=" + sync, "--transport=tcp", "--workers=3", *more)
            self.assertEqual(done.returncode, 0, done.output)
            self.assertRegex(self.last_sentence(done), "^ready: 3 workers reach each other")
            for rank in range(3):
                self.assertRegex(done.output, r"(?m)^w%d +w%d +tcp .*reachable +[\d.]+ ms +[\d.]+ .bit/s" %
                                 (rank, (rank + 1) % 3))
            self.assertNotIn("Open MPI", done.output)

    def test_servers_over_tcp_are_ready(self):
        done = self.check("--sync=star", "--transport=tcp", "--workers=2", "--servers=2")
        self.assertEqual(done.returncode, 0, done.output)
        self.assertRegex(self.last_sentence(done), "^ready: 2 workers reach all 2 servers")
        for process in ("w0", "w1", "s0", "s1"):
            self.assertRegex(done.output, r"(?m)^%s +\S+ +\d+ +[\d.]+ GiB +\d+ +[+-]?[\d.]+ " % process)
        for pair in ("w0 +s0", "w0 +s1", "w1 +s0", "w1 +s1"):
            self.assertRegex(done.output, r"(?m)^%s +tcp +\S+ .*reachable +[\d.]+ ms +[\d.]+ .bit/s" % pair)

    def test_a_server_over_tcp_that_was_checked_serves_its_job(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            meeting = "--rendezvous=127.0.0.1:%d" % free.getsockname()[1]
        server = self.start([SERVER, "--transport=tcp", "--world_size=2", meeting])

        alone = self.run_to_end([WORKER, "--check", "--sync=star", "--transport=tcp", meeting, "--server_ranks=1",
                                 "--rank=0", "--world_size=2", "--join_deadline_s=3"], CHECK_SECONDS_MAX)
        self.assertEqual(alone.returncode, 3, alone.output)
        self.assertRegex(self.last_sentence(alone), "^not ready: rank 1 of 3 has not joined at ")

        def run_workers(*flags):
            workers = [self.start([WORKER, "--sync=star", "--transport=tcp", meeting, "--server_ranks=1",
                                   "--rank=%d" % rank, "--world_size=2", *flags]) for rank in range(2)]
            for worker in workers:
                self.assertEqual(self.finish(worker, CHECK_SECONDS_MAX).returncode, 0, self.output_of(worker))

        for _ in range(2):
            run_workers("--check")
        run_workers(*SMALL_JOB, "--max_steps=2")
        self.assertEqual(self.finish(server).returncode, 0, self.output_of(server))

    def test_one_process_needs_no_other(self):
        done = self.check("--sync=local")
        self.assertEqual(done.returncode, 0, done.output)
        self.assertEqual(self.last_sentence(done).partition(";")[0], "ready: one worker, which needs no other")

    def test_a_closed_port_is_named(self):
        _, address = self.start_server()
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            closed = "127.0.0.1:%d" % bound.getsockname()[1]
            done = self.worker_check([address, closed])
        self.assertEqual(done.returncode, 3, done.output)
        self.assertEqual(self.last_sentence(done),
                         "not ready: w0 cannot reach s1 at %s: connection refused (ECONNREFUSED): start that server, "
                         "or correct --servers" % closed)
        self.assertRegex(done.output, r"w0 +s0 +grpc +%s +lo +reachable" % address)
        self.assert_fits(done.output)

    def test_a_worker_whose_packets_are_dropped_speaks_of_firewall_and_check(self):
        with socket.socket() as full, contextlib.ExitStack() as dials:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for _ in range(3):  # once the backlog is full, no dial is answered
                dial = dials.enter_context(socket.socket())
                dial.setblocking(False)
                dial.connect_ex(full.getsockname())
            address = "127.0.0.1:%d" % full.getsockname()[1]
            done = self.run_to_end([WORKER, "--servers=" + address, *SMALL_JOB, "--join_deadline_s=2"])
        self.assertEqual(done.returncode, 3, done.output)
        self.assertIn("server %s (shard 0): nothing answers at its address: a firewall may drop the packets: start the "
                      "processes with --check instead" % address, done.output)

    def test_a_port_that_is_silent_is_named(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen(16)
            address = "127.0.0.1:%d" % silent.getsockname()[1]
            started = time.monotonic()
            done = self.worker_check([address])
        self.assertLess(time.monotonic() - started, 60)
        self.assertEqual(done.returncode, 3, done.output)
        self.assertIn("not ready: w0 cannot reach s0 at %s: connected, but no server of Starring answers" % address,
                      self.last_sentence(done))

    def test_a_name_that_does_not_resolve(self):
        done = self.worker_check(["no-such-host.invalid:7077"])
        self.assertEqual(done.returncode, 3, done.output)
        self.assertIn("no-such-host.invalid", self.last_sentence(done))

    def test_servers_in_another_order_are_refused(self):
        servers = []
        for shard in (0, 1):
            port_file = self.path("port.%d" % shard)
            process = self.start([SERVER, "--listen=127.0.0.1:0", "--shard=%d" % shard, "--shard_count=2",
                                  "--port_file=" + port_file])
            self.wait_for_output(process, "listening on")
            servers.append(self.output_of(process).split()[2])
        done = self.worker_check(reversed(servers))
        self.assertEqual(done.returncode, 2, done.output)
        self.assertRegex(self.last_sentence(done), r"at \S+ answers as shard (1, .* as shard 0|0, .* as shard 1): give")

    def test_a_worker_that_never_comes_is_named(self):
        _, address = self.start_server()
        done = self.worker_check([address], "--rank=0", "--world_size=2", "--join_deadline_s=4")
        self.assertEqual(done.returncode, 3, done.output)
        self.assertIn("not ready: w1 has not reported within 4s", self.last_sentence(done))

    def test_a_server_that_was_checked_serves_its_job(self):
        server, address = self.start_server()
        for _ in range(2):
            checks = [self.start([WORKER, "--check", "--servers=" + address, "--rank=%d" % rank, "--world_size=2"])
                      for rank in range(2)]
            for check in checks:
                done = self.finish(check, CHECK_SECONDS_MAX)
                self.assertEqual(done.returncode, 0, done.output)
        worker = self.start([WORKER, "--servers=" + address, *SMALL_JOB, "--max_steps=2"])
        self.assertEqual(self.finish(worker).returncode, 0, self.output_of(worker))
        self.assertEqual(self.finish(server).returncode, 0, self.output_of(server))

    def test_a_server_that_trains_is_left_alone(self):
        _, address = self.start_server()
        endless = [flag for flag in SMALL_JOB if not flag.startswith("--epochs")]
        worker = self.start([WORKER, "--servers=" + address, *endless, "--epochs=1000000"])
        self.wait_for_output(worker, "epoch ")
        done = self.worker_check([address])
        self.assertEqual(done.returncode, 3, done.output)
        self.assertIn("shard 0 already trains with 1 workers: check before the job starts", self.last_sentence(done))
        self.assertIsNone(worker.poll())

    def test_ctrl_c_ends_it(self):
        _, address = self.start_server()
        process = self.start([WORKER, "--check", "--servers=" + address, "--rank=0", "--world_size=2"])
        time.sleep(1)  # now it waits for worker 1; an earlier or later signal would end it as well
        process.terminate()
        self.assertNotEqual(self.finish(process, 15).returncode, 0)


if __name__ == "__main__":
    unittest.main()
