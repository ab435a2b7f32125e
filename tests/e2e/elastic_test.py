"""An elastic run ends with the bits of one process, whatever happens to its processes on the way."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from typing import Any

from bench.chaos.proxy import Proxy
from tests.e2e import at_once
from tests.e2e.jobs import JobTest, OTHER_BITS, Process, SERVER, STOPPING_WORKER, WORKER, with_flags

# Ten steps an epoch.
JOB = ["--dataset=synthetic", "--synthetic_train_count=640", "--synthetic_test_count=100", "--global_batch=64",
       "--seed=1", "--micro_batches=8", "--record_losses", "--device=cpu", "--model=lenet5"]
# With running statistics, which workers keep from step to step, and dropout.
STATEFUL_MODEL = """name: "stateful"
layer { name: "conv1" conv2d { out_channels: 6 kernel: 5 padding: 2 no_bias: true } }
layer { name: "bn1" batch_norm { relu: true } }
layer { name: "pool1" max_pool { kernel: 4 } }
layer { name: "dropout1" dropout { rate: 0.25 } }
layer { name: "flatten" flatten {} }
layer { name: "fc1" dense { units: 10 } }
"""
# A machine that is busy is no reason to give a process up.
SERVER_FLAGS = ["--elastic", "--run_id=test", "--member_silent_s=8"]


def outcome(record: dict[str, Any]) -> dict[str, Any]:
    epochs = [{name: epoch[name] for name in ("epoch", "train_loss", "test_loss", "test_accuracy")}
              for epoch in record["epochs"]]
    losses = [(one["step"], one["loss"]) for one in record["losses"]]
    return {"parameters": record["parameter_sha256"], "losses": losses, "epochs": epochs}


class ElasticRunTest(JobTest):
    """What the tests of elastic runs share."""

    epochs = 18
    # A worker sleeps so long in each micro-batch, so that a run lasts while things happen to it, and takes no cores
    # from others: three workers need 2.2 s for 18 epochs. 0: it does not sleep.
    pace_ms = 4

    def setUp(self) -> None:
        super().setUp()
        self.flags = JOB
        self.servers: dict[int, tuple[Process, str]] = {}
        self.workers: list[Process] = []
        self.records: list[str] = []

    def job(self) -> list[str]:
        return [*self.flags, "--epochs=%d" % self.epochs]

    def start_shard(self, shard: int, shard_count: int, *flags: str, listen: str = "127.0.0.1:0") -> None:
        more = ["--coordinator=" + self.servers[0][1]] if shard > 0 else []
        self.servers[shard] = self.start_server(*SERVER_FLAGS, "--state_dir=" + self.path("state"), *flags, *more,
                                                shard=shard, shard_count=shard_count, listen=listen)

    def start_servers(self, count: int, *flags: str) -> None:
        for shard in range(count):
            self.start_shard(shard, count, *flags)

    def add_worker(self, *flags: str, **misbehaviour: str) -> Process:
        """Starts a worker, or with a pace or variables a stopping_worker."""
        record = self.path("record.%d" % len(self.records))
        if self.pace_ms > 0:
            misbehaviour = {"STARRING_TEST_SLOW": "forward:%d" % self.pace_ms, **misbehaviour}
        worker = self.start([STOPPING_WORKER if misbehaviour else WORKER, "--coordinator=" + self.servers[0][1],
                             "--run_id=test",
                             *with_flags([*self.job(), "--progress=plain", "--checkpoint_dir=none",
                                          "--record=" + record], *flags)],
                            env={**os.environ, **misbehaviour})
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

    def await_file(self, name: str) -> None:
        end = time.monotonic() + 60
        while not os.path.exists(self.path(name)):
            self.assertLess(time.monotonic(), end, self.output_of(self.servers[0][0]))
            time.sleep(0.01)  # a folder has no event to wait for

    def await_any(self, text: str) -> Process:
        """Waits until one of the workers has printed `text`, and returns it."""
        end = time.monotonic() + 60
        while True:
            for worker in self.workers:
                if text in self.output_of(worker):
                    return worker
            self.assertLess(time.monotonic(), end, [self.output_of(worker) for worker in self.workers])
            time.sleep(0.02)  # a file has no event to wait for

    def expect_local_outcome(self) -> str:
        """All processes end, and the run has the outcome of one without an exchange. Returns its digest."""
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
        self.log()
        return found["parameters"]

    def log(self) -> str:
        """What the coordinator has logged. The log must prove that every leaf of every step counted once."""
        printed = self.run_to_end([SERVER, "--print_log", "--state_dir=" + self.path("state")])
        self.assertEqual(printed.returncode, 0, printed.output)
        return printed.output


class ElasticTest(ElasticRunTest):

    def test_nothing_happens(self):
        self.pace_ms = 0
        self.start_servers(2, "--first_workers=2")
        for _ in range(2):
            self.add_worker()
        self.expect_local_outcome()
        steps = 10 * self.epochs
        self.assertEqual(re.findall("counted {[^}]*}", self.log()), [
            "counted { generation: 1 from: 0 to: %d shards: [%d, %d] }" % (steps, 8 * steps, 8 * steps)])

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
        leaving = self.await_any("epoch 1/%d" % self.epochs)  # rank 0
        leaving.send_signal(signal.SIGTERM)
        reporter = self.await_any("reports the run from here on")
        self.assertEqual(self.finish(leaving).returncode, 0, self.output_of(leaving))
        self.expect_local_outcome()
        self.assertNotIn("without --record", self.output_of(reporter))

    def test_a_reporter_without_a_record_says_so(self):
        self.epochs = 36
        self.flags = [flag for flag in JOB if flag != "--record_losses"]
        self.start_servers(1, "--first_workers=2")
        for _ in range(2):
            self.add_worker("--record=")
        self.await_snapshot()
        leaving = self.await_any("epoch 1/%d" % self.epochs)  # rank 0
        leaving.send_signal(signal.SIGTERM)
        reporter = self.await_any("was started without --record: give that to every worker")
        self.assertIsNot(reporter, leaving)
        self.assertNotIn("without --record", self.output_of(leaving))  # it was the first
        for worker in self.workers:
            self.assertEqual(self.finish(worker).returncode, 0, self.output_of(worker))

    def test_who_could_not_save_is_refused_before_it_joins(self):
        self.epochs = 3
        self.start_servers(1, "--first_workers=2")
        self.add_worker()
        self.await_file("state/generations.log")  # the coordinator knows what the run is
        done = self.run_to_end([WORKER, "--coordinator=" + self.servers[0][1], "--run_id=test", *self.job(),
                                "--checkpoint_dir=/dev/null/folder"])
        self.assertEqual(done.returncode, 2, done.output)
        self.assertIn("flag --checkpoint_dir", done.output)
        self.assertNotIn("generation 1 from", self.output_of(self.servers[0][0]))
        self.add_worker()
        self.expect_local_outcome()
        self.assertNotIn("joins", self.output_of(self.servers[0][0]))

    def test_a_worker_is_killed(self):
        self.start_servers(2, "--first_workers=3")
        for _ in range(3):
            self.add_worker()
        self.await_snapshot()
        self.workers[0].kill()
        self.await_generation(2)
        self.expect_local_outcome()

    def test_what_a_worker_keeps_survives_it(self):
        model = self.path("stateful.textproto")
        with open(model, "w", encoding="utf-8") as file:
            file.write(STATEFUL_MODEL)
        self.flags = with_flags(JOB, "--model=" + model, "--momentum=0.9", "--augment=crop_flip")
        self.start_servers(2, "--first_workers=2")
        for _ in range(2):
            self.add_worker()
        self.await_snapshot()
        self.workers[0].kill()
        self.await_generation(2)
        self.expect_local_outcome()

    def test_a_worker_is_killed_during_the_last_evaluation(self):
        # Four steps. One worker has evaluated its part, and the other one is about to.
        self.flags = with_flags(JOB, "--synthetic_train_count=256")
        self.epochs = 1
        checkpoints = "--checkpoint_dir=" + self.path("checkpoints")
        self.start_servers(1, "--first_workers=2")
        self.add_worker(checkpoints, STARRING_TEST_SLOW="evaluation:4000")
        self.add_worker(checkpoints)
        self.await_file("state/snapshot-0of1-%09d" % 4)  # the evaluation begins when the last step has its snapshot
        self.workers[0].kill()
        self.await_generation(2)
        digest = self.expect_local_outcome()
        record = self.path("record.resumed")
        done = self.run_to_end([WORKER, *self.job(), checkpoints, "--resume", "--progress=plain", "--record=" + record])
        self.assertEqual(done.returncode, 0, done.output)
        self.assertIn("step-%09d" % 4, done.output)
        with open(record, encoding="utf-8") as file:
            resumed = json.load(file)
        self.assertEqual((resumed["steps"], resumed["parameter_sha256"]), (0, digest))

    def test_a_spare_comes_in_and_too_few_workers_end_the_run(self):
        self.flags = with_flags(JOB, "--micro_batches=2")
        self.epochs = 7000  # it never gets there
        self.start_servers(1, "--first_workers=2", "--min_workers=2", "--join_deadline_s=3")
        for _ in range(3):
            self.add_worker()
        spare = self.await_any("a spare: all 2 micro-batches have a worker")
        first, second = [worker for worker in self.workers if worker is not spare]
        first.kill()
        self.wait_for_output(self.servers[0][0], "generation 2 from")
        second.kill()
        why = "1 of at least 2 workers have come within 3.0 s, after: worker .* is gone"
        for process in (spare, self.servers[0][0]):
            done = self.finish(process)
            self.assertEqual(done.returncode, 3, done.output)
            self.assertRegex(done.output, "error: .*" + why + ".*: start again with --resume from the last checkpoint")

    def test_a_worker_that_waits_says_for_what(self):
        self.epochs = 3
        self.start_servers(1, "--first_workers=2")
        first = self.add_worker("--stall_report_s=1")
        self.wait_for_output(first, "the coordinator %s has begun none of which this worker has heard, and prints why" %
                             self.servers[0][1])
        self.add_worker()
        self.expect_local_outcome()
        self.assertIn("the job goes on after", self.output_of(first))
        done = self.run_to_end([WORKER, *self.job(), "--coordinator=127.0.0.1:1", "--stall_report_s=1",
                                "--join_deadline_s=2"])
        self.assertEqual(done.returncode, 3, done.output)
        self.assertRegex(done.output, r"waiting for a generation\): the coordinator 127\.0\.0\.1:1 cannot be reached: "
                         r".*; this worker tries for 2s \(--join_deadline_s\): start the elastic run, or give the ")

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

    def test_a_worker_that_is_stuck_is_given_up(self):
        self.epochs = 6
        self.start_servers(1, "--first_workers=2", "--member_stuck_s=2")
        self.add_worker()
        stuck = self.add_worker(STARRING_TEST_BLOCKS="forward:40")
        self.await_generation(2)
        self.assertRegex(self.output_of(self.servers[0][0]),
                         r"worker \(process %d on .*\) is stuck: it has computed nothing for" % stuck.pid)
        self.assertIn("blocks in forward:40", self.output_of(stuck))
        stuck.kill()
        self.expect_local_outcome()

    def expect_failure(self, worker: Process, text: str) -> None:
        """The worker ends with its own error, and the coordinator says so."""
        done = self.finish(worker)
        self.assertEqual(done.returncode, 1, done.output)
        self.assertRegex(done.output, "error: .*" + text)
        self.assertRegex(self.output_of(self.servers[0][0]),
                         r"worker \(process %d on .*\) has failed: .*%s" % (worker.pid, text))

    def test_a_worker_whose_device_fails_leaves(self):
        self.start_servers(2, "--first_workers=3")
        for _ in range(2):
            self.add_worker()
        failing = self.add_worker(STARRING_TEST_FAILS="forward:40")
        self.await_generation(2)
        self.expect_failure(failing, "uncorrectable ECC error")
        self.workers.remove(failing)
        self.expect_local_outcome()

    def test_a_worker_that_alone_finds_a_gradient_that_is_not_finite_leaves(self):
        self.start_servers(1, "--first_workers=3")
        for _ in range(2):
            self.add_worker()
        wrong = self.add_worker(STARRING_TEST_NAN="forward:40")
        self.await_generation(3)  # the second one has checked it
        self.expect_failure(wrong, "step 40: the gradient of tensor .*; the other workers have computed the step")
        self.workers.remove(wrong)
        self.expect_local_outcome()
        self.assertIn("step 40 is computed again to check that", self.output_of(self.servers[0][0]))

    def test_a_joiner_that_cannot_reach_a_shard_waits_outside(self):
        self.epochs = 20  # one worker alone would need 13 s
        self.pace_ms = 8
        proxy = Proxy()
        self.addCleanup(proxy.close)
        self.start_shard(0, 2)
        self.start_shard(1, 2, "--announce=" + proxy.address)
        proxy.set_target(self.servers[1][1])
        self.add_worker()
        self.await_generation(1)
        proxy.block()
        self.add_worker()
        self.wait_for_output(self.servers[0][0], "is left out for 5 s: server %s (shard 1) cannot be reached" %
                             proxy.address)
        self.assertNotIn("generation 1 ends", self.output_of(self.servers[0][0]))
        proxy.open()
        self.await_generation(2)
        self.expect_local_outcome()

    def test_no_more_workers_come_in_than_servers_have_memory_for(self):
        # The model's 1,199,882 parameters make a contribution of 4.8 MB; besides, a server has 4 copies and 8 snapshots
        # of 2 vectors with the momentum.
        self.flags = with_flags(JOB, "--model=mnist_cnn", "--momentum=0.9", "--micro_batches=2",
                                "--synthetic_train_count=256")
        self.epochs = 2  # eight steps
        self.pace_ms = 300
        self.start_servers(1, "--memory_limit_gb=0.11")
        self.add_worker()
        self.await_generation(1)
        spare = self.add_worker()
        self.wait_for_output(spare, "a spare: shard 0 has memory for 1 contributions to a bucket")
        self.expect_local_outcome()
        self.assertNotIn("generation 2 from", self.output_of(self.servers[0][0]))

    def test_a_worker_that_is_slow_is_not_stuck(self):
        # One step of 8 micro-batches, which takes 3.2 s. Only they show that it goes on: before a worker has told the
        # time of a step, it may compute for 2 s without a result.
        self.flags = with_flags(JOB, "--synthetic_train_count=64")
        self.epochs = 1
        self.start_servers(1, "--member_stuck_s=2")
        self.add_worker(STARRING_TEST_SLOW="forward:400")
        self.expect_local_outcome()
        self.assertNotIn("is stuck", self.output_of(self.servers[0][0]))
        self.assertNotIn("generation 2 from", self.output_of(self.servers[0][0]))

    def test_a_shard_is_killed(self):
        self.start_servers(2, "--first_workers=2")
        for _ in range(2):
            self.add_worker()
        self.await_snapshot()
        self.servers[1][0].kill()
        self.start_shard(1, 2)
        self.await_generation(2)
        self.expect_local_outcome()
        for worker in self.workers:
            self.assertRegex(self.output_of(worker), r"Z worker \d: server 1 .*; the run goes "
                             r"(back from step \d+ to|on at) step \d+ with 2 workers")

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
            self.add_worker("--checkpoint_dir=" + checkpoints, "--checkpoint_every_steps=60", "--momentum=0.9")
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
        self.epochs = 3
        self.start_servers(1, "--first_workers=2")
        self.add_worker()
        self.await_file("state/generations.log")
        second, _ = self.start_server(*SERVER_FLAGS, "--state_dir=" + self.path("state"))
        done = self.finish(second)
        self.assertEqual(done.returncode, 1, done.output)
        self.assertIn("another coordinator runs with --state_dir", done.output)
        self.add_worker()
        self.expect_local_outcome()

    def test_who_would_compute_other_bits_is_refused(self):
        self.epochs = 3
        self.start_servers(1, "--first_workers=2")
        self.add_worker()
        self.await_file("state/generations.log")  # now the coordinator knows what the run is
        join = ["--coordinator=" + self.servers[0][1], "--run_id=test", "--progress=none", "--checkpoint_dir=none"]
        for flag, found in (("--seed=2", "--seed"), ("--synthetic_train_count=639", "data.train=639"),
                            ("--isa=baseline", "--isa"), ("--model=mlp", "--model"),
                            ("--learning_rate=0.5", "schedule.base")):
            stranger = self.run_to_end([WORKER, *join, *with_flags(self.job(), flag)])
            self.assertEqual(stranger.returncode, 2, stranger.output)
            self.assertRegex(stranger.output, "coordinator .*" + found)
        for variables, refusal in OTHER_BITS:
            stranger = self.run_to_end([STOPPING_WORKER, *join, *self.job()], env={**os.environ, **variables})
            self.assertEqual(stranger.returncode, 2, stranger.output)
            self.assertRegex(stranger.output, "coordinator .*" + refusal)
        self.add_worker()
        self.expect_local_outcome()


class ElasticSharesTest(ElasticRunTest):

    pace_ms = 0

    def test_a_slow_worker_gets_fewer_micro_batches(self):
        # While the slow worker has 4 of the 8 micro-batches, a step takes it 0.2 s. So the 160 steps last longer than
        # the 20 s after which the coordinator compares the workers' speeds. A snapshot follows every eighth step.
        self.flags = with_flags(JOB, "--synthetic_train_count=512")
        self.epochs = 20
        self.start_servers(1, "--first_workers=2")
        self.add_worker()
        self.add_worker(STARRING_TEST_SLOW="forward:50")
        self.wait_for_output(self.servers[0][0], "other shares are faster")
        self.expect_local_outcome()
        owners = re.search(r"generation: 2 first_step.* leaf_owners: \[([\d, ]+)\]", self.log())
        assert owners is not None
        slow_rank = 1 if os.path.exists(self.records[0]) else 0  # rank 0 writes the record
        self.assertLess(owners[1].count(str(slow_rank)), 4, owners[0])


if __name__ == "__main__":
    at_once.main(4)
