"""A worker that is slower than the others in most steps must be named, with the phase in which it is slow."""

import json
import os
import unittest

from tests.e2e.jobs import JobTest, STOPPING_WORKER

# An epoch has 500 steps: more than the window of 200 steps, and longer than the second between two checks.
JOB = ["--dataset=synthetic", "--synthetic_train_count=8000", "--synthetic_test_count=16", "--synthetic_size=8",
       "--global_batch=16", "--model=logreg", "--progress=plain"]
# Sleeps in every step. They are much longer than the rest of a step, and than the ranks' other differences.
SLOW = "forward:3"
QUICK = "forward:1"


class StragglerTest(JobTest):

    def star(self, first, second, epochs=1):
        """Runs a job whose ranks 0 and 1 sleep. Returns its record and rank 0's output."""
        _, address = self.start_server()
        flags = [*JOB, "--epochs=%d" % epochs, "--servers=" + address, "--world_size=2"]
        workers = [self.start([STOPPING_WORKER, *flags, "--rank=%d" % rank, "--record=" + self.path("record")],
                              env={**os.environ, "STARRING_TEST_SLOW": slow})
                   for rank, slow in enumerate([first, second])]
        return self.ended(workers)

    def ring(self, first, second):
        command = ["mpirun"]
        for slow in (first, second):
            command += [":"] if len(command) > 1 else []
            command += ["-np", "1", "-x", "STARRING_TEST_SLOW=" + slow, STOPPING_WORKER, *JOB, "--epochs=1",
                        "--record=" + self.path("record")]
        return self.ended([self.start(command)])

    def ended(self, processes):
        done = [self.finish(process) for process in processes]
        self.assertEqual([one.returncode for one in done], [0] * len(done), done[0].output)
        with open(self.path("record")) as file:
            return json.load(file), done[0].output

    def check_is_named(self, record, output):
        self.assertEqual([(found["rank"], found["phase"]) for found in record["stragglers"]], [(1, "forward")], output)
        found = record["stragglers"][0]
        self.assertGreater(found["percent"], 50)
        self.assertGreaterEqual(found["first_step"], 200)
        self.assertEqual(output.count("rank 1 is slow"), 1, output)
        self.assertRegex(output, r"rank 1 is slow: its steps take \d+ % longer than the others', most of it in forward")

    def check_none_is_named(self, record, output):
        self.assertEqual(record["stragglers"], [], output)
        self.assertNotIn("is slow", output)

    def test_a_star_names_a_slow_worker_once_a_minute(self):
        # Every step takes 3 ms or more, so at most 333 are between two checks, and two or more come after step 200.
        self.check_is_named(*self.star(QUICK, SLOW, epochs=2))

    def test_a_ring_names_a_slow_worker(self):
        self.check_is_named(*self.ring(QUICK, SLOW))

    def test_workers_that_are_equally_slow_are_not_named(self):
        self.check_none_is_named(*self.star(SLOW, SLOW))
        self.check_none_is_named(*self.ring(SLOW, SLOW))


if __name__ == "__main__":
    unittest.main()
