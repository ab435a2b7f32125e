"""An elastic run ends with the bits of one process, whatever happens to its processes on the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import unittest
from typing import Any

from tests.e2e.jobs import JobTest, Process, WORKER

CHECK_LOG = os.path.abspath("tests/server/elastic/check_log")
JOB = ["--dataset=synthetic", "--synthetic_train_count=2000", "--synthetic_test_count=300", "--global_batch=64",
       "--seed=1", "--micro_batches=8", "--record_losses", "--device=cpu", "--model=lenet5"]
# A machine that is busy is no reason to give a process up.
SERVER_FLAGS = ["--elastic", "--run_id=test", "--member_silent_s=8"]


def outcome(record: dict[str, Any]) -> dict[str, Any]:
    epochs = [{name: epoch[name] for name in ("epoch", "train_loss", "test_loss", "test_accuracy")}
              for epoch in record["epochs"]]
    losses = [(one["step"], one["loss"]) for one in record["losses"]]
    return {"parameters": record["parameter_sha256"], "losses": losses, "epochs": epochs}


class ElasticTest(JobTest):

    epochs = 12  # two seconds

    def setUp(self) -> None:
        super().setUp()
        self.servers: dict[int, tuple[Process, str]] = {}
        self.workers: list[Process] = []
        self.records: list[str] = []

    def job(self) -> list[str]:
        return [*JOB, "--epochs=%d" % self.epochs]

    def start_shard(self, shard: int, shard_count: int, *flags: str, listen: str = "127.0.0.1:0") -> None:
        more = ["--coordinator=" + self.servers[0][1]] if shard > 0 else []
        self.servers[shard] = self.start_server(*SERVER_FLAGS, "--state_dir=" + self.path("state"), *flags, *more,
                                                shard=shard, shard_count=shard_count, listen=listen)

    def start_servers(self, count: int, *flags: str) -> None:
        for shard in range(count):
            self.start_shard(shard, count, *flags)

    def add_worker(self, *flags: str) -> Process:
        record = self.path("record.%d" % len(self.records))
        worker = self.start([WORKER, "--elastic", "--coordinator=" + self.servers[0][1], "--run_id=test", *self.job(),
                             "--progress=plain", "--record=" + record, *flags])
        self.workers.append(worker)
        self.records.append(record)
        return worker

    def await_generation(self, number: int) -> None:
        self.wait_for_output(self.servers[0][0], "generation %d from" % number)

    def await_snapshot(self) -> None:
        """Waits until every shard has written one."""
        end = time.monotonic() + 60
        count = len(self.servers)
        while True:
            names = os.listdir(self.path("state")) if os.path.exists(self.path("state")) else []
            if all(any(name.startswith("snapshot-%dof%d-" % (shard, count)) and not name.endswith(".tmp")
                       for name in names) for shard in range(count)):
                return
            self.assertLess(time.monotonic(), end, names)
            time.sleep(0.02)  # a folder has no event to wait for

    def expect_local_outcome(self) -> None:
        """All processes end, and the run has the outcome of one without an exchange."""
        for worker in self.workers:
            self.finish(worker)
        texts = "\n".join(self.output_of(process) for process in self.processes)
        records = [record for record in self.records if os.path.exists(record)]
        self.assertEqual(len(records), 1, texts)
        with open(records[0], encoding="utf-8") as file:
            found = outcome(json.load(file))
        local = self.path("local")
        done = self.run_to_end([WORKER, *self.job(), "--progress=none", "--record=" + local])
        self.assertEqual(done.returncode, 0, done.output)
        with open(local, encoding="utf-8") as file:
            self.assertEqual(found, outcome(json.load(file)), texts)
        for server, _ in self.servers.values():
            self.assertEqual(self.finish(server).returncode, 0, texts)
        checked = self.run_to_end([CHECK_LOG, self.path("state/generations.log")])
        self.assertEqual(checked.returncode, 0, checked.output)

    def test_nothing_happens(self):
        self.start_servers(2, "--first_workers=2")
        for _ in range(2):
            self.add_worker()
        self.expect_local_outcome()

    def test_a_worker_joins(self):
        self.epochs = 36
        self.start_servers(2)
        self.add_worker()
        self.await_generation(1)
        self.add_worker()
        self.await_generation(2)
        self.expect_local_outcome()

    def test_a_worker_leaves(self):
        self.epochs = 36
        self.start_servers(1, "--first_workers=3")
        for _ in range(3):
            self.add_worker()
        self.await_snapshot()
        self.workers[0].send_signal(signal.SIGTERM)
        self.await_generation(2)
        self.assertEqual(self.finish(self.workers[0]).returncode, 0, self.output_of(self.workers[0]))
        self.expect_local_outcome()

    def test_a_worker_is_killed(self):
        self.start_servers(2, "--first_workers=3")
        for _ in range(3):
            self.add_worker()
        self.await_snapshot()
        self.workers[0].kill()
        self.await_generation(2)
        self.expect_local_outcome()

    def test_a_worker_sleeps_and_wakes_up(self):
        self.epochs = 36
        self.start_servers(1, "--first_workers=2")
        for _ in range(2):
            self.add_worker()
        self.await_snapshot()
        self.workers[1].send_signal(signal.SIGSTOP)
        self.await_generation(2)
        self.workers[1].send_signal(signal.SIGCONT)
        self.await_generation(3)
        self.expect_local_outcome()

    def test_a_shard_is_killed(self):
        self.start_servers(2, "--first_workers=2")
        for _ in range(2):
            self.add_worker()
        self.await_snapshot()
        self.servers[1][0].kill()
        self.start_shard(1, 2)
        self.await_generation(2)
        self.expect_local_outcome()

    def test_the_coordinator_is_killed(self):
        self.start_servers(2, "--first_workers=2")
        for _ in range(2):
            self.add_worker()
        self.await_snapshot()
        process, address = self.servers[0]
        process.kill()
        process.wait()
        self.start_shard(0, 2, listen=address)
        self.wait_for_output(self.servers[0][0], "generation ")
        self.expect_local_outcome()

    def test_checkpoints_come_from_snapshots(self):
        self.start_servers(2, "--first_workers=2")
        checkpoints = self.path("checkpoints")
        for _ in range(2):
            self.add_worker("--checkpoint_dir=" + checkpoints, "--checkpoint_every_steps=100", "--momentum=0.9")
        for worker in self.workers:
            self.assertEqual(self.finish(worker).returncode, 0, self.output_of(worker))
        folders = sorted(name for name in os.listdir(checkpoints) if name.startswith("step-"))
        self.assertGreater(len(folders), 1)
        shutil.rmtree(os.path.join(checkpoints, folders[-1]))  # the last one was gathered when all had stopped
        digests = []
        for flags in (("--checkpoint_dir=" + checkpoints, "--resume"), ()):
            record = self.path("record.local")
            done = self.run_to_end([WORKER, *self.job(), "--momentum=0.9", "--progress=none", "--record=" + record,
                                    *flags])
            self.assertEqual(done.returncode, 0, done.output)
            with open(record, encoding="utf-8") as file:
                digests.append(json.load(file)["parameter_sha256"])
        self.assertEqual(digests[0], digests[1])

    def test_a_snapshot_that_was_cut_short_is_passed_over(self):
        self.start_servers(1, "--first_workers=2")
        for _ in range(2):
            self.add_worker()
        self.await_snapshot()
        process, address = self.servers[0]
        process.kill()
        process.wait()
        state = self.path("state")
        newest = max((name for name in os.listdir(state) if name.startswith("snapshot-") and name.count(".") == 0),
                     key=lambda name: int(name.rpartition("-")[2]))
        with open(os.path.join(state, newest), "r+b") as file:
            file.truncate(os.path.getsize(file.name) // 2)
        self.start_shard(0, 1, listen=address)
        self.wait_for_output(self.servers[0][0], newest)
        self.expect_local_outcome()

    def test_a_second_coordinator_does_not_get_the_log(self):
        self.epochs = 36
        self.start_servers(1)
        self.add_worker()
        self.await_generation(1)
        _, address = self.start_server(*SERVER_FLAGS, "--state_dir=" + self.path("state"))
        worker = self.run_to_end([WORKER, "--elastic", "--coordinator=" + address, *self.job(), "--progress=none"])
        self.assertEqual(worker.returncode, 1, worker.output)
        self.assertIn("another coordinator runs with --state_dir", worker.output)
        self.expect_local_outcome()

    def test_who_would_compute_other_bits_is_refused(self):
        self.start_servers(1)
        self.add_worker()
        self.await_generation(1)
        for flag, found in (("--seed=2", "--seed"), ("--synthetic_train_count=1999", "data.train=1999"),
                            ("--isa=baseline", "--isa"), ("--model=mlp", "--model"),
                            ("--learning_rate=0.5", "schedule.base")):
            name = flag.partition("=")[0] + "="
            job = [word for word in self.job() if not word.startswith(name)]
            stranger = self.run_to_end([WORKER, "--elastic", "--coordinator=" + self.servers[0][1], "--run_id=test",
                                        *job, "--progress=none", flag])
            self.assertEqual(stranger.returncode, 2, stranger.output)
            self.assertRegex(stranger.output, "coordinator .*" + found)
        self.expect_local_outcome()


if __name__ == "__main__":
    unittest.main()
