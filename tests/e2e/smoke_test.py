"""One star and one ring, whole: what a sanitizer sees of real jobs, since the other tests here run plain only."""

import unittest

from tests.e2e.jobs import JobTest, SMALL_JOB

FLAGS = [*SMALL_JOB, "--model=lenet5", "--checkpoint_every_epochs=1"]


class SmokeTest(JobTest):

    def test_star_and_ring(self):
        star = self.digest("star", workers=2, servers=2, flags=[*FLAGS, "--checkpoint_dir=" + self.path("star")])
        self.assertEqual(self.digest("ring", workers=2, flags=[*FLAGS, "--checkpoint_dir=" + self.path("ring")]), star)


if __name__ == "__main__":
    unittest.main()
