"""Stops whole jobs (SIGSTOP to every process) for longer than their deadline: they go on. One process that is stopped
alone is still named at the deadline."""

import json
import os
import signal
import time
import unittest

from tests.e2e.jobs import JobTest, SERVER, STOPPING_WORKER, WORKER

# Rank 1 stops itself in a step, so that rank 0 is waiting for it when the whole job stops.
DEADLINE_S = 3
JOB = ["--dataset=synthetic", "--synthetic_train_count=128", "--synthetic_test_count=64", "--global_batch=32",
       "--epochs=2", "--model=lenet5", "--progress=none", "--exchange_deadline_s=%d" % DEADLINE_S]
STOP = "backward:2"
# Rank 0 waits for so long before the whole job stops, and the job then stops for so long.
WAIT_S = 0.3
SUSPENDED_S = DEADLINE_S + 0.3


class Job:
    """The processes of one job, rank 0's first, and where its record is."""

    def __init__(self, processes, record, stopped_in):
        self.processes = processes
        self.record = record
        self.stopped_in = stopped_in  # the process whose output says that rank 1 stops
        self.stopped_at = None


class SuspendedTest(JobTest):

    def start_job(self, name, stop=STOP):
        record = self.path(name + stop)
        flags = [*JOB, "--sync=" + name.partition("_")[0]]
        if name != "star_grpc":
            flags.append("--same_host=socket")
        environment = {**os.environ, "STARRING_TEST_STOPS": stop}
        if name.endswith("mpi"):
            mpirun = self.start(["mpirun", "-np", "1", WORKER, *flags, "--record=" + record, ":",
                                 "-np", "1", "-x", "STARRING_TEST_STOPS=" + stop, STOPPING_WORKER, *flags])
            return Job([mpirun], record, mpirun)
        servers = []
        if name == "star_grpc":
            server, address = self.start_server()
            servers.append(server)
            flags += ["--servers=" + address, "--world_size=2"]
        else:
            meet = ["--rendezvous=" + self.free_address(), "--world_size=2"]
            flags += meet
            if name == "star_tcp":
                servers.append(self.start([SERVER, "--transport=tcp", *meet, "--shard=0", "--shard_count=1"]))
                flags.append("--server_ranks=1")
        first = self.start([WORKER, *flags, "--rank=0", "--record=" + record])
        second = self.start([STOPPING_WORKER, *flags, "--rank=1"], env=environment)
        return Job([first, second, *servers], record, second)

    def start_jobs(self):
        jobs = {name: self.start_job(name) for name in ("ring_mpi", "ring_tcp", "star_tcp", "star_grpc")}
        jobs["star_co-located"] = self.start_job("star_co-located")
        return jobs

    def signal_all(self, job, number):
        left = [process.pid for process in job.processes if process.poll() is None]
        while left:
            pid = left.pop()
            os.kill(pid, number)
            # mpirun's ranks are its children.
            with open("/proc/%d/task/%d/children" % (pid, pid)) as file:
                left += [int(child) for child in file.read().split()]

    def await_each_stop(self, jobs, then):
        """Calls then(job) for each job, WAIT_S after its rank 1 has stopped."""
        left = list(jobs.values())
        end = time.monotonic() + 120
        while left:
            for job in list(left):
                if job.stopped_at is None and "stops in " + STOP in self.output_of(job.stopped_in):
                    job.stopped_at = time.monotonic()
                if job.stopped_at is not None and time.monotonic() >= job.stopped_at + WAIT_S:
                    then(job)
                    left.remove(job)
            self.assertLess(time.monotonic(), end, "a rank does not stop")
            time.sleep(0.02)  # there is no event to wait for

    def test_a_job_that_is_stopped_as_a_whole_goes_on(self):
        jobs = self.start_jobs()
        self.await_each_stop(jobs, lambda job: self.signal_all(job, signal.SIGSTOP))
        time.sleep(SUSPENDED_S)
        for job in jobs.values():
            self.signal_all(job, signal.SIGCONT)
        jobs["undisturbed"] = self.start_job("ring_tcp", stop="")
        digests = set()
        for name, job in jobs.items():
            with self.subTest(name):
                for process in job.processes:
                    done = self.finish(process)
                    self.assertEqual(done.returncode, 0, done.output)
                with open(job.record) as file:
                    digests.add(json.load(file)["parameter_sha256"])
        self.assertEqual(len(digests), 1, digests)

    def test_a_process_that_is_stopped_alone_is_named_at_the_deadline(self):
        jobs = self.start_jobs()
        self.await_each_stop(jobs, lambda job: None)
        for name, job in jobs.items():
            done = self.finish(job.processes[0])
            self.assertNotEqual(done.returncode, 0, name)
            self.assertIn("rank 1", done.output, name)
            self.assertIn("within %d" % DEADLINE_S, done.output, name)


if __name__ == "__main__":
    unittest.main()
