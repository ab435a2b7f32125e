"""Tests what the jobs of deploy/slurm tell srun and the worker, with an srun that prints its arguments."""

import os
import shutil
import subprocess
import tempfile
import unittest

JOBS = os.path.abspath("deploy/slurm")
MANIFEST = '{\n "step": "14",\n "version": 1,\n "finished": %s\n}\n'
PROGRAMS = {"worker": "", "srun": 'printf "%s\\n" "srun $*"', "mpirun": 'printf "%s\\n" "mpirun $*"',
            "scontrol": 'if [[ $2 == hostnames ]]; then echo host3; else echo "NodeName=$3 NodeAddr=127.0.0.1"; fi',
            "server": ""}
STAR = {"SLURM_HET_SIZE": "2", "SLURM_NTASKS_HET_GROUP_0": "1", "SLURM_NTASKS_HET_GROUP_1": "2",
        "SLURM_CPUS_PER_TASK": "1", "SLURM_CPUS_PER_TASK_HET_GROUP_0": "1", "SLURM_CPUS_PER_TASK_HET_GROUP_1": "4",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "host[3-4]", "TRANSPORT": "tcp"}


class ScriptsTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(shutil.rmtree, self.folder)
        for name, script in PROGRAMS.items():
            path = os.path.join(self.folder, "bin", name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write("#!/bin/bash\n" + script + "\n")
            os.chmod(path, 0o755)
        with open(os.path.join(self.folder, "secret"), "w") as file:
            file.write("of this test")
        os.makedirs(os.path.join(self.folder, "deploy"))
        os.symlink(JOBS, os.path.join(self.folder, "deploy/slurm"))

    def run_job(self, script, **variables):
        """Runs a batch script as Slurm does, on the first node."""
        environment = {"PATH": os.path.join(self.folder, "bin") + ":" + os.environ["PATH"],
                       "SLURM_SUBMIT_DIR": self.folder, "SLURM_JOB_NAME": "mine", "SLURM_JOB_ID": "7",
                       "SLURM_NTASKS": "2", "SLURMD_NODENAME": "host1", "JOB_SECRET": self.folder + "/secret",
                       **variables}
        return subprocess.run(["bash", os.path.join(JOBS, script), "--epochs=3"], env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False,
                              cwd=self.folder)

    def save(self, folder, finished):
        path = os.path.join(self.folder, "starring-checkpoints", folder, "step-000000014")
        os.makedirs(path)
        with open(os.path.join(path, "manifest.json"), "w") as file:
            file.write(MANIFEST % finished)

    def test_a_task_has_the_cores_of_the_job(self):
        for start in ("pmix", "tcp"):
            done = self.run_job("ring.sbatch", START=start, SLURM_CPUS_PER_TASK="2")
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertRegex(done.stdout, r"srun --mpi=\w+ --cpus-per-task=2 ")
            self.assertNotIn("cpus-per-task", self.run_job("ring.sbatch", START=start).stdout)
        done = self.run_job("star.sbatch", **STAR)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("srun --het-group=0 --cpus-per-task=1 ", done.stdout)
        self.assertIn("srun --het-group=1 --cpus-per-task=4 ", done.stdout)

    def test_a_job_stays_in_its_ports(self):
        for script, variables in (("ring.sbatch", {"START": "tcp"}), ("star.sbatch", STAR)):
            done = self.run_job(script, PORT_RANGE="29000-29010", **variables)
            self.assertEqual(done.stdout.count("srun "), done.stdout.count("--port_range=29000-29010"), done.stdout)
            self.assertRegex(done.stdout, r"--rendezvous=127.0.0.1:290(0\d|10) ")
            self.assertNotIn("--port_range", self.run_job(script, **variables).stdout)
        self.assertIn("OMPI_MCA_btl_tcp_port_min_v4", self.run_job("ring.sbatch", PORT_RANGE="29000-29010").stdout)
        self.assertIn("PORT_RANGE is 29000, not like 7000-7100",
                      self.run_job("ring.sbatch", START="tcp", PORT_RANGE="29000").stdout)

    def test_a_job_over_tcp_encrypts_all_or_nothing(self):
        for script, variables in (("ring.sbatch", {"START": "tcp"}), ("star.sbatch", STAR)):
            done = self.run_job(script, TLS="1", **variables)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertEqual(done.stdout.count("srun "), done.stdout.count(" --tls"), done.stdout)
            self.assertNotIn("--tls", self.run_job(script, **variables).stdout)
        done = self.run_job("ring.sbatch", START="pmix", TLS="1")
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("TLS is for START=tcp", done.stdout)
        self.assertNotIn("srun ", done.stdout)

    def test_a_stopped_run_is_resumed_and_one_that_has_ended_is_not(self):
        folder = "--checkpoint_dir=%s/starring-checkpoints/mine --resume" % self.folder
        self.assertIn(folder, self.run_job("ring.sbatch").stdout)
        self.save("mine", "false")
        self.assertIn(folder, self.run_job("ring.sbatch").stdout)
        shutil.rmtree(os.path.join(self.folder, "starring-checkpoints"))
        self.save("mine", "true")
        for script, variables in (("ring.sbatch", {}), ("star.sbatch", STAR)):
            done = self.run_job(script, **variables)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn("the run in %s/starring-checkpoints/mine has ended" % self.folder, done.stdout)
            self.assertIn("RESUME=1 sbatch", done.stdout)
            self.assertNotIn("srun ", done.stdout)
            # The user says so, Slurm starts the same job again, or nothing is trained.
            for why in ({"RESUME": "1"}, {"SLURM_RESTART_COUNT": "1"}, {"CHECK": "1"}):
                self.assertIn("srun ", self.run_job(script, **variables, **why).stdout)

    def test_each_task_of_an_array_is_a_run(self):
        self.save("mine/task-1", "true")
        ended = self.run_job("ring.sbatch", SLURM_ARRAY_TASK_ID="1")
        self.assertIn("starring-checkpoints/mine/task-1 has ended", ended.stdout)
        other = self.run_job("ring.sbatch", SLURM_ARRAY_TASK_ID="2", RECORD=self.folder + "/r.json")
        self.assertIn("--checkpoint_dir=%s/starring-checkpoints/mine/task-2 " % self.folder, other.stdout)
        self.assertIn("--record=%s/r-task-2.json" % self.folder, other.stdout)


if __name__ == "__main__":
    unittest.main()
