"""The comparison of digests, without any job. site_mpi_test.py trains."""

import unittest
from unittest import mock

import mpi_libraries
from mpi_libraries import Result


class MpiLibrariesTest(unittest.TestCase):

    def test_digests_must_be_equal_where_the_order_of_the_sum_is_ours(self):
        results = {"one": {("ring", 3): Result("aa", 9), ("mpi", 2): Result("bb", 9), ("mpi", 3): Result("cc", 9)},
                   "other": {("ring", 3): Result("aa", 7), ("mpi", 2): Result("bb", 7), ("mpi", 3): Result("dd", 7)}}
        self.assertEqual(mpi_libraries.wrong_digests(results), [])
        results["other"]["ring", 3] = Result("ab", 7)
        results["other"]["mpi", 2] = Result("bc", 7)
        problems = mpi_libraries.wrong_digests(results)
        self.assertEqual([problem.split(":")[0] for problem in problems], ["mpi with 2 ranks", "ring with 3 ranks"])

    def test_the_table_has_a_row_for_each_library(self):
        results = {"intel": {("ring", 2): Result("aa", 12345)}}
        self.assertEqual(mpi_libraries.table(results, [2])[-1], "| intel | `aa` (12,345) | - | - |")

    def test_a_job_that_fails_shows_its_last_lines(self):
        with self.assertRaisesRegex(mpi_libraries.JobError, "ended with 2:\nthe reason"):
            mpi_libraries.run(["sh", "-c", "echo the reason; exit 2"])

    def test_names_the_libraries_that_it_knows(self):
        with self.assertRaises(SystemExit), mock.patch("sys.stderr"):
            mpi_libraries.main(["--libraries=lam"])


if __name__ == "__main__":
    unittest.main()
