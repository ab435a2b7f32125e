"""Stars and rings of many workers must end with the digest of one process that adds their gradients by the formula.

The argument chooses the class: eight workers, or 64, at which a sum over ranks is no longer exact by chance.
bench/load.py measures the cost of 256 workers.
"""

import os
import subprocess
import sys
import unittest

from tests.e2e.jobs import JobTest

REFERENCE_JOB = os.path.abspath("tests/reference_job/reference_job")

# Eight steps. 520 samples in batches of 70: no number of workers here divides 70 or the last batch of 30.
JOB = ["--model=logreg", "--dataset=synthetic", "--synthetic_train_count=520", "--synthetic_test_count=64",
       "--global_batch=70", "--max_steps=8", "--seed=1"]
PATIENT = ["--progress=plain", "--join_deadline_s=300", "--exchange_deadline_s=300"]


def reference_digest(workers, flags):
    return subprocess.run([REFERENCE_JOB, str(workers), *flags], check=True, stdout=subprocess.PIPE, text=True,
                          timeout=300).stdout.strip()


class EightWorkersTest(JobTest):

    def test_star(self):
        self.assertEqual(self.digest("star", workers=8, servers=3, flags=[*JOB, *PATIENT]), reference_digest(8, JOB))

    def test_ring(self):
        self.assertEqual(self.digest("ring", workers=8, flags=[*JOB, *PATIENT]), reference_digest(8, JOB))

    def test_star_that_adds_as_a_tree(self):
        flags = [*JOB, "--sum_order=tree"]
        digest = reference_digest(8, flags)
        self.assertEqual(self.digest("star", workers=8, servers=3, flags=[*flags, *PATIENT]), digest)
        for sync in ("star/mpi", "star/tcp"):
            self.assertEqual(self.digest(sync, workers=8, flags=[*flags, *PATIENT]), digest, sync)
        self.assertNotEqual(digest, reference_digest(8, JOB))  # the order shows, so the test can fail
        # With two workers a + b = b + a.
        self.assertEqual(reference_digest(2, flags), reference_digest(2, JOB))

    def test_star_without_servers(self):
        for sync in ("star/mpi", "star/tcp"):
            self.assertEqual(self.digest(sync, workers=8, flags=[*JOB, *PATIENT]), reference_digest(8, JOB), sync)

    def test_ring_over_tcp(self):
        self.assertEqual(self.digest("ring/tcp", workers=8, flags=[*JOB, *PATIENT]), reference_digest(8, JOB))

    def test_several_blocks_and_adamw(self):
        # 1.9 million parameters: 29 reduction blocks of 256 KiB, the last of which is shorter.
        flags = [*JOB, "--model=mlp", "--max_steps=2", "--optimizer=adamw", "--learning_rate=0.001"]
        for duplicate in ("--model=logreg", "--max_steps=8"):
            flags.remove(duplicate)
        digest = reference_digest(8, flags)
        self.assertEqual(self.digest("star", workers=8, servers=2, flags=[*flags, *PATIENT]), digest)
        self.assertEqual(self.digest("star/mpi", workers=8, flags=[*flags, *PATIENT]), digest)


class SixtyFourWorkersTest(JobTest):

    def test_star(self):
        # With this seed, a sum of 64 digests in floating point is rounded. Ranks that compared such sums would refuse a
        # healthy job.
        flags = ["--model=logreg", "--dataset=synthetic", "--synthetic_train_count=4096",
                 "--synthetic_test_count=256", "--global_batch=512", "--max_steps=8", "--seed=1"]
        digest = reference_digest(64, flags)
        self.assertEqual(self.digest("star", workers=64, flags=[*flags, *PATIENT]), digest)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], sys.argv[1]])
