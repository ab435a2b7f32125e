"""Processes that die, connections that break, numbers that explode and disks that fill, in real jobs."""

import os
import resource
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from tests.e2e.jobs import JobTest, SERVER, SMALL_JOB, WORKER

ENDLESS = ["--dataset=synthetic", "--synthetic_train_count=600", "--synthetic_test_count=50", "--global_batch=32",
           "--model=lenet5", "--epochs=100000", "--share_gpus", "--progress=plain", "--exchange_deadline_s=10"]


def children_named(folder, name):
    """Ids of this test's processes whose program is `name`."""
    command = ["pgrep", "-f", "^[^ ]*/%s .*%s" % (name, folder)]
    lines = subprocess.run(command, capture_output=True, text=True, check=False)
    return [int(pid) for pid in lines.stdout.split()]


class CuttingProxy:
    """Passes bytes between a worker and a server and breaks the connection every `cut_bytes`, `cuts` times."""

    def __init__(self, target, cut_bytes, cuts):
        self.target, self.cut_bytes, self.cuts_left = target, cut_bytes, cuts
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.lock = threading.Lock()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.target)
            threading.Thread(target=self.forward, args=(client, server), daemon=True).start()

    def forward(self, client, server):
        passed = 0
        with client, server:
            while True:
                ready, _, _ = select.select([client, server], [], [])
                for source in ready:
                    try:
                        data = source.recv(65536)
                        if not data:
                            return
                        (server if source is client else client).sendall(data)
                    except OSError:
                        return
                    passed += len(data)
                with self.lock:
                    if passed >= self.cut_bytes and self.cuts_left > 0:
                        self.cuts_left -= 1
                        return

    def close(self):
        self.listener.close()


class FailureTest(JobTest):

    def test_a_worker_killed_in_a_star_ends_the_job(self):
        self.killed_worker("star")

    def test_a_worker_killed_in_a_ring_ends_the_job(self):
        self.killed_worker("ring")

    def test_a_rank_killed_in_a_star_without_servers_ends_the_job(self):
        self.killed_worker("star/mpi")

    def test_a_rank_killed_over_tcp_ends_the_job(self):
        for sync in ("ring/tcp", "star/tcp", "star-servers/tcp"):
            self.killed_worker(sync)

    def test_a_rank_killed_while_others_wait_in_shared_memory_ends_the_job(self):
        before = set(os.listdir("/dev/shm"))
        for sync in ("star/mpi", "star/tcp"):
            self.killed_worker(sync, ["--same_host=shared_memory"])
        self.assertEqual([name for name in os.listdir("/dev/shm") if name not in before and "starring" in name], [])

    def test_a_server_killed_over_tcp_ends_the_job_and_is_named(self):
        address = self.free_address()
        servers = [self.start([SERVER, "--transport=tcp", "--rendezvous=" + address, "--world_size=2",
                               "--shard=%d" % shard, "--shard_count=2"]) for shard in range(2)]
        workers = [self.start([WORKER, "--sync=star", "--rendezvous=" + address, "--rank=%d" % rank, "--world_size=2",
                               "--server_ranks=2", *ENDLESS]) for rank in range(2)]
        self.wait_for_output(workers[0], "epoch 1/100000")
        os.kill(servers[1].pid, signal.SIGKILL)
        for survivor in (*workers, servers[0]):
            done = self.finish(survivor, 10)  # at once: --exchange_deadline_s has not passed
            self.assertEqual(done.returncode, 3, done.output)
            self.assertIn("server 1", done.output)

    def test_survivors_over_tcp_name_the_dead_rank(self):
        for sync in (["--sync=ring", "--same_host=socket"], ["--sync=star", "--same_host=socket"], ["--sync=star"]):
            address = self.free_address()
            workers = [self.start([WORKER, *sync, "--rendezvous=" + address, "--rank=%d" % rank,
                                   "--world_size=3", *ENDLESS]) for rank in range(3)]
            self.wait_for_output(workers[0], "epoch 1/100000")
            os.kill(workers[2].pid, signal.SIGKILL)
            for survivor in workers[:2]:
                done = self.finish(survivor, deadline_s=60)
                self.assertEqual(done.returncode, 3, done.output)
                self.assertIn("rank 2", done.output)

    def killed_worker(self, sync, flags=()):
        # A folder for each job: on a slow machine the job before may have saved something in its own.
        checkpoints = tempfile.mkdtemp(dir=self.folder)
        job = self.start(self.job_command(sync, 2, 1, [*ENDLESS, *flags, "--checkpoint_dir=" + checkpoints]))
        self.wait_for_output(job, "epoch 1/100000")
        victims = children_named(self.folder, "worker")
        self.assertGreaterEqual(len(victims), 2)
        os.kill(victims[-1], signal.SIGKILL)
        done = self.finish(job, deadline_s=60)
        self.assertNotEqual(done.returncode, 0, done.output)
        self.assert_nothing_runs()

    def test_survivors_without_launch_name_the_dead_rank(self):
        server, address = self.start_server()
        workers = [self.start([WORKER, "--servers=" + address, "--rank=%d" % rank, "--world_size=2", *ENDLESS])
                   for rank in range(2)]
        self.wait_for_output(workers[0], "epoch 1/100000")
        os.kill(workers[1].pid, signal.SIGKILL)
        done = self.finish(workers[0], deadline_s=60)
        self.assertEqual(done.returncode, 3, done.output)
        self.assertIn("rank 1", done.output)
        self.assertNotEqual(self.finish(server, deadline_s=60).returncode, 0)

    def test_a_killed_server_ends_the_job_and_is_named(self):
        job = self.start(self.job_command("star", 2, 2, [*ENDLESS, "--checkpoint_dir=" + self.path("none")]))
        self.wait_for_output(job, "epoch 1/100000")
        servers = subprocess.run(["pgrep", "-P", str(job.pid), "-f", "server/server"], capture_output=True, text=True,
                                 check=False).stdout.split()
        self.assertEqual(len(servers), 2)
        os.kill(int(servers[0]), signal.SIGKILL)
        done = self.finish(job, deadline_s=60)
        self.assertNotEqual(done.returncode, 0, done.output)
        self.assert_nothing_runs()

    def test_restart_goes_on_to_the_same_bits(self):
        flags = ["--dataset=synthetic", "--synthetic_train_count=2000", "--synthetic_test_count=50",
                 "--global_batch=32", "--model=lenet5", "--epochs=40", "--progress=plain",
                 "--checkpoint_every_epochs=2", "--exchange_deadline_s=10"]
        whole = self.digest("star", 2, 2, flags)
        record = self.path("restarted.json")
        folder = self.path("checkpoints")
        job = self.start(self.job_command("star", 2, 2, [*flags, "--checkpoint_dir=" + folder, "--record=" + record],
                                          ["--restarts=1"]))
        self.wait_for_output(job, "epoch 5/40")
        os.kill(children_named(self.folder, "worker")[-1], signal.SIGKILL)
        done = self.finish(job)
        self.assertEqual(done.returncode, 0, done.output)
        with open(record) as file:
            self.assertIn(whole, file.read())

    def test_broken_connections_change_nothing(self):
        flags = [*SMALL_JOB, "--model=lenet5"]
        whole = self.digest("star", 1, 1, flags)
        server, address = self.start_server()
        port = int(address.rpartition(":")[2])
        # An odd number of bytes, so that connections break in the middle of messages.
        proxy = CuttingProxy(("127.0.0.1", port), cut_bytes=700_001, cuts=6)
        self.addCleanup(proxy.close)
        record = self.path("cut.json")
        done = self.run_to_end([WORKER, "--servers=" + proxy.address, "--rank=0", "--world_size=1",
                                "--same_host=socket", *flags, "--record=" + record])
        self.assertEqual(done.returncode, 0, done.output)
        self.assertEqual(proxy.cuts_left, 0)
        with open(record) as file:
            self.assertIn(whole, file.read())
        self.assertEqual(self.finish(server, deadline_s=60).returncode, 0)

    def test_a_gradient_that_explodes_is_refused_by_name(self):
        for sync in ("local", "star", "ring"):
            folder = self.path("exploded." + sync)
            flags = [*SMALL_JOB, "--model=lenet5", "--checkpoint_dir=" + folder, "--checkpoint_every_epochs=1"]
            workers = 1 if sync == "local" else 2
            self.train(sync, workers, 1, flags)
            before = sorted(os.listdir(folder))
            flags[flags.index("--epochs=2")] = "--epochs=9"
            done = self.run_to_end(self.job_command(sync, workers, 1, [*flags, "--resume", "--learning_rate=1e30"]))
            self.assertNotEqual(done.returncode, 0, done.output)
            self.assertRegex(done.output, r"rank \d, step \d+: the gradient of tensor \w+\.\w+ is -?(nan|inf)")
            self.assertEqual(sorted(os.listdir(folder)), before)

    def test_a_full_disk_costs_a_warning_during_the_run_and_is_said_at_its_end(self):
        folder = self.path("checkpoints")
        flags = [*SMALL_JOB, "--model=lenet5", "--checkpoint_dir=" + folder, "--checkpoint_every_epochs=1", "--resume"]
        self.train("local", flags=flags)
        before = sorted(os.listdir(folder))
        flags[flags.index("--epochs=2")] = "--epochs=4"

        def limit_files():
            # A limit on a file's size exercises the same code as a full disk, and needs no file system of its own.
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        done = self.run_to_end([WORKER, *flags], preexec_fn=limit_files)
        self.assertEqual(done.returncode, 4, done.output)
        self.assertRegex(done.output, "warning: the checkpoint of step 21 was not written: .*no space left")
        self.assertRegex(done.output.splitlines()[-1],
                         "Z worker 0: error: the checkpoint of step 28 was not written: .*"
                         "no space left.*; the last complete one is %s/step-000000014$" % folder)
        self.assertEqual(sorted(os.listdir(folder)), before)
        self.assertEqual(self.train("local", flags=flags)["steps"], 14)

    def test_a_second_signal_ends_the_process_now(self):
        worker = self.start([WORKER, *ENDLESS])
        self.wait_for_output(worker, "epoch 1/100000")
        # The job is stopped before a step can end. A service manager and a launcher both send a signal, but the two
        # count as one request.
        for first in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
            os.kill(worker.pid, first)
        done = self.finish(worker, deadline_s=30)
        self.assertEqual(done.returncode, 0, done.output)

        # A worker that cannot stop politely: rank 0 of two, whose peer is missing.
        _, address = self.start_server()
        worker = self.start([WORKER, "--servers=" + address, "--rank=0", "--world_size=2", *ENDLESS])
        self.wait_for_output(worker, "parameters, on")
        os.kill(worker.pid, signal.SIGINT)
        time.sleep(1.2)  # within a second, another signal would be the same request
        self.assertIsNone(worker.poll())
        # Sent until it works: a worker that was late to take the first signal counts one within a second as the same.
        end = time.monotonic() + 30
        while worker.poll() is None and time.monotonic() < end:
            worker.send_signal(signal.SIGTERM)
            time.sleep(1.2)
        done = self.finish(worker, deadline_s=30)
        self.assertEqual(done.returncode, 130, done.output)


if __name__ == "__main__":
    unittest.main()
