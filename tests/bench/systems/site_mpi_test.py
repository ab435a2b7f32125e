"""Workers under the MPI that a site has: Debian's Open MPI and MPICH, found by the mpiexec that starts them."""

import os
import shutil
import unittest

from tests.e2e.jobs import JobTest, SMALL_JOB, WORKER

MPICH = "mpiexec.mpich"
REFUSED = 2
HAS_MPICH = shutil.which(MPICH) is not None


class SiteMpiTest(JobTest):

    def train(self, launcher, sync, ranks, *flags):
        """The output of a job that succeeded."""
        done = self.run_to_end([*launcher, "-n", str(ranks), WORKER, f"--sync={sync}", "--same_host=socket", *SMALL_JOB,
                                *flags],
                               deadline_s=120)
        self.assertEqual(done.returncode, 0, done.output)
        return done.output

    def digest_of(self, output):
        last = [line for line in output.splitlines() if line.startswith("done after")]
        self.assertEqual(len(last), 1, output)
        return last[0].split("parameters ")[1]

    @unittest.skipUnless(HAS_MPICH, "there is no MPICH: setup.sh --test installs it")
    def test_both_families_train_the_same_bits(self):
        for sync in ("ring", "star"):
            for ranks in (2, 3):
                with self.subTest(sync=sync, ranks=ranks):
                    open_mpi = self.train(["mpirun", "--oversubscribe"], sync, ranks)
                    self.assertEqual(self.digest_of(self.train([MPICH], sync, ranks)), self.digest_of(open_mpi))

    # With three ranks the library's order is its own; all ranks agree, or the exchange would say so.
    @unittest.skipUnless(HAS_MPICH, "there is no MPICH: setup.sh --test installs it")
    def test_the_librarys_own_sum_of_two(self):
        digests = {self.digest_of(self.train(launcher, "mpi", 2))
                   for launcher in ([MPICH], ["mpirun", "--oversubscribe"])}
        self.assertEqual(len(digests), 1)
        self.train([MPICH], "mpi", 3)

    @unittest.skipUnless(HAS_MPICH, "there is no MPICH: setup.sh --test installs it")
    def test_a_check_names_the_library(self):
        done = self.run_to_end([MPICH, "-n", "2", WORKER, "--sync=ring", "--check", *SMALL_JOB], deadline_s=120)
        self.assertEqual(done.returncode, 0, done.output)
        self.assertIn("MPI MPICH 4", done.output)

    @unittest.skipUnless(HAS_MPICH, "there is no MPICH: setup.sh --test installs it")
    def test_another_library_than_the_launchers_is_refused(self):
        done = self.run_to_end([MPICH, "-n", "2", WORKER, "--sync=ring", "--mpi=openmpi", *SMALL_JOB], deadline_s=60)
        self.assertEqual(done.returncode, REFUSED, done.output)
        self.assertIn("MPI sees 1 rank, a PMI launcher started 2: the library is Open MPI", done.output)
        self.assertIn("--mpi=PATH", done.output)

    def test_a_library_that_is_none(self):
        done = self.run_to_end(["mpirun", "-n", "1", WORKER, "--sync=ring", "--mpi=/no/such/libmpi.so", *SMALL_JOB],
                               deadline_s=60)
        self.assertEqual(done.returncode, REFUSED, done.output)
        self.assertIn("--mpi=/no/such/libmpi.so cannot be loaded", done.output)
        done = self.run_to_end([WORKER, "--mpi=mpich", *SMALL_JOB], deadline_s=60)
        self.assertEqual(done.returncode, REFUSED, done.output)
        self.assertIn("--mpi", done.output)
        self.assertIn("uses no MPI", done.output)
        done = self.run_to_end([WORKER, "--mpi=mpich", "--servers=127.0.0.1:1", *SMALL_JOB], deadline_s=60)
        self.assertEqual(done.returncode, REFUSED, done.output)
        self.assertIn("uses no MPI", done.output)

    # A shell under the name of a launcher. Debian's Open MPI, which would load, must not be taken in silence.
    def test_a_launchers_library_that_does_not_load_is_an_error(self):
        for folder in ("bin", "lib"):
            os.makedirs(self.path(f"site/{folder}"))
        shutil.copy("/bin/bash", self.path("site/bin/mpirun"))
        with open(self.path("site/lib/libmpi.so.40"), "w") as file:
            file.write("no library")
        # Two commands: with one the shell would become the worker.
        job = " ".join([WORKER, "--sync=ring", "--transport=mpi", *SMALL_JOB]) + "; exit $?"
        done = self.run_to_end([self.path("site/bin/mpirun"), "-c", job], deadline_s=60)
        self.assertEqual(done.returncode, REFUSED, done.output)
        self.assertIn("the MPI of this job's launcher cannot be loaded", done.output)
        self.assertIn("file too short", done.output)

    def test_a_machine_without_mpi_names_the_ways_out(self):
        empty = self.path("empty")
        os.mkdir(empty)
        done = self.run_to_end([WORKER, "--sync=ring", "--transport=mpi", f"--mpi={empty}", *SMALL_JOB], deadline_s=60)
        self.assertEqual(done.returncode, REFUSED, done.output)
        self.assertIn("none was found", done.output)


if __name__ == "__main__":
    unittest.main()
