"""One whole star and one whole ring, for sanitizers: the other tests of this folder run only without them."""

import unittest

from tests.e2e.jobs import JobTest, SMALL_JOB

FLAGS = [*SMALL_JOB, "--model=lenet5", "--checkpoint_every_epochs=1"]


class SmokeTest(JobTest):

    def test_star_and_ring(self):
        star = self.digest("star", workers=2, servers=2, flags=[*FLAGS, "--checkpoint_dir=" + self.path("star")])
        self.assertEqual(self.digest("ring", workers=2, flags=[*FLAGS, "--checkpoint_dir=" + self.path("ring")]), star)


if __name__ == "__main__":
    unittest.main()
