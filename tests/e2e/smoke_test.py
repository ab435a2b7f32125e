"""A star over gRPC and TCP, and a star without servers and a ring over MPI and TCP, for sanitizers: most tests of this
folder run only without them."""

import unittest

from tests.e2e.jobs import JobTest, SMALL_JOB

FLAGS = [*SMALL_JOB, "--model=lenet5", "--checkpoint_every_epochs=1"]


class SmokeTest(JobTest):

    def test_stars_and_ring(self):
        star = self.digest("star", workers=2, servers=2, flags=[*FLAGS, "--checkpoint_dir=" + self.path("star")])
        for sync in ("ring", "star/mpi", "ring/tcp", "star/tcp", "star-servers/tcp"):
            folder = self.path(sync.replace("/", "."))
            self.assertEqual(self.digest(sync, workers=2, servers=2, flags=[*FLAGS, "--checkpoint_dir=" + folder]),
                             star)


if __name__ == "__main__":
    unittest.main()
