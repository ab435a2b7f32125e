"""Tests the jobs of deploy/slurm on a real Slurm: four nodes on this machine, each with its own network."""

import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
import unittest

from cluster import Cluster

ROOT = os.getcwd()  # has the layout of a built clone
JOBS = os.path.join(ROOT, "deploy/slurm")
SECONDS_MAX = 60
# 7 steps per epoch, the last one with two samples.
JOB = ["--dataset=synthetic", "--synthetic_train_count=200", "--synthetic_test_count=50", "--global_batch=33",
       "--device=cpu"]
SHORT = [*JOB, "--epochs=2"]
# The job never ends by itself, and writes a checkpoint only when it is asked to stop.
LONG = [*JOB, "--epochs=100000", "--checkpoint_every_epochs=100000"]
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")


class SlurmTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        reason = Cluster.why_not()
        if reason:
            raise unittest.SkipTest("NO JOB OF deploy/slurm WAS SUBMITTED: " + reason)
        # A short path, because a socket's path may have only 107 characters.
        cls.folder = tempfile.mkdtemp(prefix="starring-slurm-", dir="/tmp")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.cluster = Cluster(cls.folder, nodes=4)
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.__exit__)

    def submit(self, script, flags, name, options=(), starring=ROOT, **variables):
        """Submits a job and returns its number. starring: the clone or the bundle whose programs run."""
        done = self.cluster.run("sbatch", "--parsable", "--job-name=" + name,
                                "--output=%s/%s.out" % (self.folder, name), *options,
                                os.path.join(JOBS, script), *flags,
                                STARRING=starring, RECORD=self.path(name + ".json"),
                                CHECKPOINTS=self.path("checkpoints-" + re.sub(r"-again$", "", name)), **variables)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def path(self, name):
        return os.path.join(self.folder, name)

    def output(self, name):
        try:
            with open(self.path(name + ".out")) as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def wait_until(self, is_so, name):
        end = time.monotonic() + SECONDS_MAX
        while not (result := is_so()):
            self.assertLess(time.monotonic(), end, self.output(name) + self.cluster.logs())
            time.sleep(0.2)  # there is no event to wait for
        return result

    def finish(self, job, name):
        """Waits until all groups of a job have ended. Returns (state, exit code)."""
        def over():
            text = self.cluster.run("scontrol", "show", "job", job).stdout
            states = re.findall(r"JobState=(\w+)", text)
            if states and all(state in OVER for state in states):
                return states[0], int(re.search(r"ExitCode=(\d+):", text)[1])
            return None
        return self.wait_until(over, name)

    def digest_of(self, job, name):
        self.assertEqual(self.finish(job, name), ("COMPLETED", 0), self.output(name))
        return self.record(name)["parameter_sha256"]

    def record(self, name):
        with open(self.path(name + ".json")) as file:
            return json.load(file)

    def test_star_and_ring_agree(self):
        jobs = {"star": self.submit("star.sbatch", SHORT, "star", TLS="1"),
                "ring": self.submit("ring.sbatch", SHORT, "ring"),
                "mpirun": self.submit("ring.sbatch", SHORT, "mpirun", START="mpirun"),
                "tcp": self.submit("ring.sbatch", SHORT, "tcp", START="tcp")}
        if shutil.which("mpiexec.mpich") is not None:
            jobs["pmi2"] = self.submit("ring.sbatch", [*SHORT, "--mpi=mpich"], "pmi2", START="pmi2")
        digests = {self.digest_of(job, name) for name, job in jobs.items()}
        self.assertEqual(len(digests), 1, digests)
        for name in jobs:
            config = self.record(name)["config"]
            self.assertEqual((config["sync"], config["world_size"]), ("star" if name == "star" else "ring", 2))
        config = self.record("star")["config"]
        self.assertEqual((config["server_count"], config["security"]), (2, "tls"))
        config = self.record("tcp")["config"]
        self.assertEqual((config["transport"], config["security"]), ("tcp", "token"))
        secrets = [name for name in os.listdir(self.folder)
                   if "secret" in name and (jobs["star"] in name or jobs["tcp"] in name)]
        self.assertEqual(secrets, [])  # the jobs have removed their secrets
        # Servers and workers are on different nodes.
        found = re.search(r"servers (host\d):\d+,(host\d):\d+, workers on host\[(\d)-(\d)\]", self.output("star"))
        self.assertTrue(found and found[1] == found[2] and found[1][-1] not in found.groups()[2:], self.output("star"))

    def test_a_check_trains_nothing(self):
        jobs = {"check-star": self.submit("star.sbatch", SHORT, "check-star", CHECK="1"),
                "check-ring": self.submit("ring.sbatch", [*SHORT, "--check"], "check-ring"),
                "check-mpirun": self.submit("ring.sbatch", SHORT, "check-mpirun", START="mpirun", CHECK="1"),
                "check-tcp": self.submit("ring.sbatch", SHORT, "check-tcp", START="tcp", CHECK="1")}
        for name, job in jobs.items():
            self.assertEqual(self.finish(job, name), ("COMPLETED", 0), self.output(name))
            self.assertIn("ready: 2 workers reach %s" % ("all 2 servers" if name == "check-star" else "each other"),
                          self.output(name))
            self.assertFalse(os.path.exists(self.path(name + ".json")))

    def test_a_cancelled_job_goes_on(self):
        starts = {"stopped-star": ("star.sbatch", ""), "stopped-ring": ("ring.sbatch", "pmix"),
                  "stopped-mpirun": ("ring.sbatch", "mpirun")}
        # Once by the user, and once as Slurm does before the time limit.
        ways = {name: [] for name in starts} | {"stopped-mpirun": ["--batch", "--signal=USR1"]}
        jobs = {name: self.submit(script, LONG, name, START=start) for name, (script, start) in starts.items()}
        for name, job in jobs.items():
            self.wait_until(lambda name=name: "epoch 20/" in self.output(name), name)
            self.assertEqual(self.cluster.run("scancel", *ways[name], job).returncode, 0)
        steps = 0
        for name, job in jobs.items():
            self.assertEqual(self.finish(job, name)[0], "COMPLETED" if ways[name] else "CANCELLED")
            saved = re.search(r"stopped after (\d+) steps.*\nsaved in", self.output(name))
            self.assertTrue(saved, self.output(name))
            steps = max(steps, int(saved[1]))
        rest = [*LONG, "--max_steps=%d" % (steps + 100)]
        again = {name + "-again": self.submit(script, rest, name + "-again", START=start)
                 for name, (script, start) in starts.items()}
        whole = self.digest_of(self.submit("ring.sbatch", rest, "whole"), "whole")
        for name, job in again.items():
            self.assertEqual(self.digest_of(job, name), whole)
            self.assertNotIn("starting from the beginning", self.output(name))

    def test_a_bundle_runs_under_srun_and_under_its_own_mpirun(self):
        with tarfile.open("deploy/starring-bundle.tar.gz") as archive:
            archive.extractall(self.folder)
        bundle = self.path("starring")
        shutil.copytree(JOBS, os.path.join(bundle, "deploy/slurm"))
        path = os.path.join(bundle, "bin") + ":" + os.environ["PATH"]
        # Its mpirun starts an orted on each node, by srun.
        jobs = {"bundle-pmix": self.submit("ring.sbatch", SHORT, "bundle-pmix", starring=bundle),
                "bundle-mpirun": self.submit("ring.sbatch", SHORT, "bundle-mpirun", starring=bundle, START="mpirun",
                                             PATH=path),
                "bundle-star": self.submit("star.sbatch", SHORT, "bundle-star", starring=bundle)}
        digests = {self.digest_of(job, name) for name, job in jobs.items()}
        self.assertEqual(len(digests), 1)

    def await_generation(self, workers, name, before=0):
        """Waits until the last generation has so many workers, and is not one of the first `before`. Returns how many
        generations there have been."""
        def last_has_them():
            found = re.findall(r"generation \d+ from step \d+ with (\d+) worker", self.output(name))
            return len(found) if len(found) > before and found[-1] == str(workers) else None
        return self.wait_until(last_has_them, name)

    def local_digest(self, flags):
        """The digest of a run on one process."""
        path = self.path("local.json")
        done = subprocess.run([os.path.join(ROOT, "worker/worker"), "--sync=local", "--progress=none",
                               "--checkpoint_dir=none",
                               "--record=" + path, *flags], capture_output=True, text=True, timeout=SECONDS_MAX,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return self.record("local")["parameter_sha256"]

    def test_an_elastic_star_gains_a_worker_and_loses_a_node(self):
        flags = [*JOB, "--micro_batches=4", "--epochs=100000", "--checkpoint_every_epochs=100000"]
        job = self.submit("star.sbatch", flags, "elastic", ["--no-kill", "--nodes=2"], ELASTIC="1")
        self.await_generation(2, "elastic")
        self.assertIn("servers on host[1-2], workers on host[3-4]", self.output("elastic"))
        state = re.search(r"sbatch deploy/slurm/join.sbatch (\S+)", self.output("elastic"))[1]
        join = self.submit("join.sbatch", [state], "join", ["--nodelist=host1"])
        self.await_generation(3, "elastic")
        self.addCleanup(self.cluster.restore, 4)
        self.cluster.lose(4)
        before = self.await_generation(2, "elastic")
        # Slurm notices by itself only after SlurmdTimeout.
        told = self.cluster.run("scontrol", "update", "nodename=host4", "state=down", "reason=lost")
        self.assertEqual(told.returncode, 0, told.stderr)
        self.cluster.kill(1, "--shard=0")
        self.await_generation(2, "elastic", before)
        # As before the time limit.
        self.assertEqual(self.cluster.run("scancel", "--batch", "--signal=USR1", job).returncode, 0)
        digest = self.digest_of(job, "elastic")
        self.assertEqual(self.finish(join, "join"), ("COMPLETED", 0), self.output("join"))
        # Either job may have the worker that reports.
        stopped = re.search(r"stopped after (\d+) steps.*\nsaved in", self.output("elastic") + self.output("join"))
        self.assertTrue(stopped, self.output("elastic") + self.output("join"))
        self.assertEqual(digest, self.local_digest([*flags, "--max_steps=" + stopped[1]]))
        self.assertEqual([name for name in os.listdir(self.folder) if "state-" in name], [])

    def test_an_elastic_run_that_fails_leaves_its_state(self):
        flags = [*JOB, "--micro_batches=4", "--epochs=2", "--learning_rate=1e30"]
        job = self.submit("star.sbatch", flags, "explodes", ["--no-kill", "--nodes=2"], ELASTIC="1")
        self.assertEqual(self.finish(job, "explodes"), ("FAILED", 1), self.output("explodes"))
        self.assertRegex(self.output("explodes"), r"the gradient of tensor \w+\.\w+ is -?(nan|inf)")
        state = re.search(r"submit it again with STATE_DIR=(\S+)", self.output("explodes"))
        self.assertTrue(state, self.output("explodes"))
        self.addCleanup(shutil.rmtree, state[1])
        self.assertTrue(os.path.exists(os.path.join(state[1], "run-0/generations.log")))

    def test_ranks_that_do_not_find_each_other_are_refused(self):
        # Like a launcher that does not know this MPI: every process is alone.
        os.mkdir(self.path("bin"))
        with open(self.path("bin/mpirun"), "w") as file:
            file.write('#!/bin/bash\nwhile [[ $1 != */worker ]]; do shift; done\nexec "$@"\n')
        os.chmod(self.path("bin/mpirun"), 0o755)
        path = self.path("bin") + ":" + os.environ["PATH"]
        state = self.finish(self.submit("ring.sbatch", SHORT, "alone", START="mpirun", PATH=path), "alone")
        self.assertEqual(state, ("FAILED", 2), self.output("alone"))
        self.assertIn("the launcher says rank 0 of 1", self.output("alone"))
        state = self.finish(self.submit("ring.sbatch", SHORT, "pigeon", START="pigeon"), "pigeon")
        self.assertEqual(state, ("FAILED", 2), self.output("pigeon"))
        state = self.finish(self.submit("ring.sbatch", SHORT, "interface", START="tcp", INTERFACE="eth0"), "interface")
        self.assertEqual(state, ("FAILED", 2), self.output("interface"))
        self.assertIn("set RENDEZVOUS", self.output("interface"))

    def test_a_comparison_runs_in_a_job(self):
        flags = ["--quick", "--syncs=star,ring", "--workers=2", "--model=logreg", "--dataset=synthetic",
                 "--trace=false"]
        # Neither PyTorch nor matplotlib may be needed here, so there is no peer and no page.
        job = self.submit("compare.sbatch", flags, "compare", STARRING_BINARIES=ROOT)
        self.assertEqual(self.finish(job, "compare"), ("COMPLETED", 0), self.output("compare"))
        with open(self.path("starring-report-%s/results.json" % job)) as file:
            results = json.load(file)
        runs = {c["sync"]: c["runs"] for c in results["configurations"] if c["accounting"] == "equal-workers"}
        self.assertEqual(sorted(runs), ["ring", "star"])
        self.assertEqual(len({run["parameter_sha256"] for sync in runs for run in runs[sync]}), 1)


if __name__ == "__main__":
    unittest.main()
