"""The exit codes and last lines that deploy/README.md promises (How a run ends), in every topology."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from typing import NamedTuple

from tests.e2e import at_once
from tests.e2e.jobs import JobTest, Process, SERVER, STOPPING_WORKER, WORKER

JOB = ["--dataset=synthetic", "--synthetic_train_count=400", "--synthetic_test_count=40", "--model=logreg",
       "--progress=plain", "--device=cpu"]
LAST_STEP = 7  # of one epoch
# Runs until it is stopped, and sleeps meanwhile: the others need the cores.
ENDLESS = ["--epochs=100000", "--checkpoint_every_epochs=100000"]
SLOW = {**os.environ, "STARRING_TEST_SLOW": "forward:20"}

# By name: what JobTest.job_command takes, and what an elastic run needs besides.
TOPOLOGIES = {
    "local": ("local", 1, [], []),
    "ring over MPI": ("ring", 2, [], []),
    "ring over TCP": ("ring/tcp", 2, [], []),
    "star of ranks over MPI": ("star/mpi", 2, [], []),
    "star of ranks over TCP": ("star/tcp", 2, [], []),
    "star over gRPC": ("star", 2, [], []),
    "star with servers over TCP": ("star-servers/tcp", 2, [], []),
    "elastic star": ("star", 2, ["--micro_batches=4"], ["--elastic"]),
}
SIGNALS = [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT]


class End(NamedTuple):
    """How a job ended: its exit code, and the last lines of its workers and of the launcher."""

    code: int
    workers: list[str]
    launch: str
    output: str


BARE = ("--log_time=none",)
NOTHING_SAVED = "nothing was saved: --checkpoint_dir=FOLDER saves parameters and state there"


class ExitCodesTest(JobTest):

    def job(self, topology: str, *flags: str) -> Process:
        sync, workers, more, launch_flags = TOPOLOGIES[topology]
        return self.start(self.job_command(sync, workers, 1, [*JOB, *more, *flags], [*launch_flags, *BARE]))

    def endless_job(self, topology: str, *flags: str) -> Process:
        """A job that is in its second epoch, and ends when it is asked to stop."""
        sync, workers, more, launch_flags = TOPOLOGIES[topology]
        job = self.start(self.job_command(sync, workers, 1, [*JOB, *more, *ENDLESS, *flags],
                                          [*launch_flags, *BARE, "--worker_binary=" + STOPPING_WORKER]), env=SLOW)
        self.wait_for_output(job, "epoch 1/100000")
        return job

    def end_of(self, topology: str, job: Process) -> End:
        done = self.finish(job, deadline_s=60)
        lines = [line for line in done.output.splitlines() if line.strip()]
        # Worker 0's standard output has no prefix.
        own = [line for line in lines if not re.match(r"(launch:|w[1-9] \||s\d \||mpirun \|)", line)]
        last = [own[-1].removeprefix("w0 | ") if own else ""]
        for rank in range(1, TOPOLOGIES[topology][1]):
            theirs = [line for line in lines if line.startswith("w%d | " % rank)]
            last.append(theirs[-1].partition(" | ")[2] if theirs else "")
        # A run that has failed may go on, and the launcher says how.
        launch = [line for line in lines if line.startswith("launch:") and "to go on with this run" not in line]
        return End(done.returncode, last, launch[-1], done.output)

    def expect(self, topology: str, end: End, code: int, worker: str, launch: str) -> None:
        """`worker` is the last line of one of them."""
        self.assertEqual(end.code, code, topology + ":\n" + end.output)
        self.assertRegex("\n".join(end.workers), "(?m)^%s$" % worker, topology + ":\n" + end.output)
        self.assertRegex(end.launch, "^launch: %s$" % launch, topology + ":\n" + end.output)

    def folder_of(self, topology: str) -> str:
        return self.path(topology.replace(" ", "_"))

    def test_0_done(self) -> None:
        def check(topology: str) -> None:
            end = self.end_of(topology, self.job(topology, "--epochs=1"))
            self.expect(topology, end, 0, NOTHING_SAVED, "(the coordinator listens at .*|.*cores: .*)")
            self.assertRegex(end.output, r"done after 7 steps, p50 \d+\.\d+ ms a step, parameters [0-9a-f]{12}")
            self.assertNotIn("error", end.output)

        self.for_each(TOPOLOGIES, check)

    def test_0_stopped_as_asked_and_saved(self) -> None:
        def check(topology: str) -> None:
            job = self.endless_job(topology, "--checkpoint_dir=" + self.folder_of(topology))
            number = SIGNALS[list(TOPOLOGIES).index(topology) % len(SIGNALS)]
            job.send_signal(number)
            self.expect(topology, self.end_of(topology, job), 0,
                        "saved in %s: --resume goes on from there" % self.folder_of(topology),
                        re.escape(signal.strsignal(number) or "") + ": asking the workers to save and stop .*")
            self.assertTrue([name for name in os.listdir(self.folder_of(topology)) if name.startswith("step-")])

        self.for_each(TOPOLOGIES, check)

    def test_0_stopped_as_asked_and_nothing_to_save_in(self) -> None:
        def check(topology: str) -> None:
            job = self.endless_job(topology)
            job.send_signal(signal.SIGHUP)
            self.expect(topology, self.end_of(topology, job), 0,
                        NOTHING_SAVED, "Hangup: asking .*")

        self.for_each(("local", "elastic star"), check)

    def test_1_failed(self) -> None:
        def check(topology: str) -> None:
            job = self.job(topology, "--epochs=9", "--learning_rate=1e38")
            self.expect(topology, self.end_of(topology, job), 1, r"worker \d: error: .*(inf|nan).*",
                        r"[ws]\d failed with exit code 1(: ending the others)?")

        self.for_each([topology for topology in TOPOLOGIES if "MPI" not in topology], check)

    def test_2_refused(self) -> None:
        bad = "/no/such/folder/record.json"

        def check(topology: str) -> None:
            end = self.end_of(topology, self.job(topology, "--epochs=1", "--record=" + bad))
            self.expect(topology, end, 2, r'worker \d: error: flag --record cannot be "%s": .*' % bad,
                        r"(w\d|mpirun) failed with exit code 2(: ending the others)?")
            self.assertNotIn("done after", end.output)

        self.for_each(TOPOLOGIES, check)

    def test_3_a_peer_is_missing(self) -> None:
        address = self.free_address()
        alone = ["--rank=0", "--world_size=2", "--join_deadline_s=1", *JOB]
        processes = [self.start([WORKER, "--sync=ring", "--rendezvous=" + address, *alone]),
                     self.start([WORKER, "--servers=127.0.0.1:9", *alone]),
                     self.start([WORKER, "--elastic", "--coordinator=127.0.0.1:9", "--join_deadline_s=1",
                                 "--micro_batches=4", *JOB]),
                     self.start([SERVER, "--transport=tcp", "--rendezvous=127.0.0.1:9", "--world_size=1",
                                 "--join_deadline_s=1"]),
                     self.start([SERVER, "--listen=127.0.0.1:0", "--join_deadline_s=1"])]
        for process in processes:
            done = self.finish(process, deadline_s=60)
            self.assertEqual(done.returncode, 3, done.output)
            self.assertRegex(done.output.splitlines()[-1], r"Z (worker|server) 0: error: ")

    def test_4_trained_and_not_written(self) -> None:
        def check(topology: str) -> None:
            folder = self.folder_of(topology)
            os.mkdir(folder)
            # A checkpoint is filled under this name.
            with open("%s/.writing-step-%09d" % (folder, LAST_STEP), "w", encoding="utf-8"):
                pass
            end = self.end_of(topology, self.job(topology, "--epochs=1", "--checkpoint_dir=" + folder))
            self.expect(topology, end, 4,
                        r"worker \d: error: the checkpoint of step 7 was not written: cannot create .*; there is no "
                        "complete one in " + folder,
                        r"(w\d|mpirun) failed with exit code 4: it has trained, and could not write the result")
            self.assertIn("done after 7 steps", end.output)
            if len(end.workers) > 1:
                self.assertRegex("\n".join(end.workers), r"(?m)^worker \d: error: rank 0 could not write the "
                                 "checkpoint of step 7 into %s, and its own last line says why$" % folder)

        self.for_each(TOPOLOGIES, check)

    def test_4_stopped_and_not_written(self) -> None:
        def check(topology: str) -> None:
            folder = self.folder_of(topology)
            job = self.endless_job(topology, "--checkpoint_dir=" + folder)
            os.rename(folder, folder + ".away")
            with open(folder, "w", encoding="utf-8"):
                pass
            job.send_signal(signal.SIGTERM)
            end = self.end_of(topology, job)
            self.assertEqual(end.code, 4, topology + ":\n" + end.output)
            self.assertRegex(end.output, r"error: the checkpoint of step \d+ was not written: .*; there is no complete "
                             "one in %s\n" % folder)
            self.assertNotIn("saved in", end.output)

        self.for_each(("local", "ring over MPI", "ring over TCP", "star over gRPC", "elastic star"), check)

    def test_4_a_record_or_a_trace_that_cannot_be_written_at_the_end(self) -> None:
        for flag, what in (("record", "the run record"), ("trace", "the trace")):
            folder = self.path(flag)
            os.mkdir(folder)
            worker = self.start([WORKER, *JOB, "--epochs=100000", "--%s=%s/file.json" % (flag, folder)])
            self.wait_for_output(worker, "epoch 1/100000")
            shutil.rmtree(folder)
            open(folder, "w").close()  # a folder would be made again
            worker.send_signal(signal.SIGTERM)
            done = self.finish(worker, deadline_s=60)
            self.assertEqual(done.returncode, 4, done.output)
            self.assertRegex(done.output.splitlines()[-1],
                             "Z worker 0: error: could not write %s: cannot create " % what)

    def test_0_a_server_that_is_asked_to_stop_before_a_job(self) -> None:
        for number in SIGNALS:
            server, _ = self.start_server()
            of_ranks = self.start([SERVER, "--transport=tcp", "--rendezvous=127.0.0.1:9", "--world_size=1"])
            self.wait_for_output(of_ranks, "meeting the workers")
            for process in (server, of_ranks):
                process.send_signal(number)
                done = self.finish(process, deadline_s=60)
                self.assertEqual(done.returncode, 0, done.output)
                self.assertIn("server 0: asked to stop", done.output.splitlines()[-1])

    def test_a_reader_of_the_output_that_leaves_ends_nothing(self) -> None:
        folder = self.path("read")
        with subprocess.Popen([WORKER, *JOB, "--epochs=30", "--checkpoint_dir=" + folder], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT) as worker:
            assert worker.stdout is not None
            worker.stdout.readline()
            worker.stdout.close()
            self.assertEqual(worker.wait(60), 0)
        self.assertIn("step-%09d" % (30 * LAST_STEP), os.listdir(folder))


if __name__ == "__main__":
    at_once.main(3)
