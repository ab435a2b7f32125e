"""What decides the numbers is compared by content, between ranks and when a run resumes."""

import json
import os
import re
import shutil
import time
import unittest

from tests.e2e.jobs import JobTest, LAUNCH, SERVER, WORKER

REFUSED = 2
# Three steps an epoch. No cosine schedule: it would end with --epochs.
TINY = ["--dataset=synthetic", "--synthetic_train_count=60", "--synthetic_test_count=10", "--synthetic_size=4",
        "--synthetic_channels=1", "--global_batch=20", "--schedule=constant", "--progress=plain", "--device=cpu"]
LOGREG = [*TINY, "--model=logreg"]
NET = """
layer { name: "fc1" dense { units: 16 %s } }
layer { name: "dr" dropout { rate: %s } }
layer { name: "fc2" dense { units: 10 } }
"""


class RanksTest(JobTest):
    """Two ranks whose layer files have one name and different folders."""

    def write(self, folder, text):
        os.makedirs(self.path(folder), exist_ok=True)
        path = os.path.join(self.path(folder), "net.textproto")
        with open(path, "w") as file:
            file.write(text)
        return path

    def start_pair(self, way, models, *flags):
        """Starts both ranks of a job, and its servers. Returns the ranks, or the one process that has both."""
        flags = [*TINY, "--epochs=1", "--join_deadline_s=30", *flags]
        ranks = [["--rank=%d" % rank, "--world_size=2", "--model=" + model] for rank, model in enumerate(models)]
        if way == "ring/mpi":
            commands = [[WORKER, "--sync=ring", "--model=" + model, *flags] for model in models]
            return [self.start(["mpirun", "--oversubscribe", "-np", "1", *commands[0], ":", "-np", "1", *commands[1]])]
        if way == "star":
            _, address = self.start_server()
            meet = ["--servers=" + address]
        elif way == "elastic":
            coordinator = self.free_address()
            self.start([SERVER, "--elastic", "--listen=" + coordinator, "--first_workers=2", "--shard_count=1",
                        "--state_dir=" + self.path("state.%d" % len(self.processes))])
            meet, flags = ["--coordinator=" + coordinator], [*flags, "--micro_batches=4"]
            ranks = [["--model=" + model] for model in models]
        else:
            meet = ["--rendezvous=" + self.free_address()]
            meet.append("--sync=ring" if way == "ring/tcp" else "--sync=star")
            if way == "star-servers/tcp":
                meet.append("--server_ranks=1")
                self.start([SERVER, "--transport=tcp", meet[0], "--shard=0", "--shard_count=1", "--world_size=2"])
        return [self.start([WORKER, *meet, *rank, *flags]) for rank in ranks]

    def test_other_content_under_one_name_is_refused_and_equal_content_anywhere_is_not(self):
        here = self.write("here", NET % ("relu: true", "0.5"))
        there = self.write("there", NET % ("", "0.1"))
        copy = self.write("copy", "# The same layers.\n" + NET % ("relu: true", "0.5"))
        for way in ("ring/tcp", "star/tcp", "star-servers/tcp", "star", "ring/mpi", "elastic"):
            processes = self.start_pair(way, (here, there))
            if way in ("star", "elastic"):  # the first to come waits for another one, until --join_deadline_s
                end = time.monotonic() + 60
                while all(process.poll() is None for process in processes) and time.monotonic() < end:
                    time.sleep(0.02)  # for either of them
                [waiting] = [process for process in processes if process.poll() is None]
                self.assertNotIn("done after", self.output_of(waiting))
                waiting.kill()
                processes.remove(waiting)
            done = [self.finish(process, deadline_s=60) for process in processes]
            output = "".join(d.output for d in done)
            self.assertTrue(all(d.returncode != 0 for d in done), way + output)
            self.assertRegex(output, r"--model=a layer file with digest \w{16}, rank \d has --model=a layer file with "
                                     r"digest \w{16}: give all workers the same layer file", way)
        for way in ("ring/tcp", "star"):
            for process in self.start_pair(way, (here, copy)):
                done = self.finish(process, deadline_s=60)
                self.assertEqual(done.returncode, 0, way + done.output)

    def test_a_variable_that_changes_arithmetic_is_the_same_on_all_ranks(self):
        address = self.free_address()
        ranks = [self.start([WORKER, "--sync=ring", "--rendezvous=" + address, "--rank=%d" % rank, "--world_size=2",
                             *LOGREG, "--epochs=1"], env={**os.environ, **variables})
                 for rank, variables in enumerate(({}, {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}))]
        for process in ranks:
            done = self.finish(process, deadline_s=60)
            self.assertEqual(done.returncode, REFUSED, done.output)
            self.assertIn("environment.ONEDNN_DEFAULT_FPMATH_MODE=BF16", done.output)

    def test_a_foreign_launcher_is_refused_by_its_variables(self):
        torchrun = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        done = self.run_to_end([WORKER, "--sync=ring", *LOGREG, "--epochs=1"], deadline_s=60, env=torchrun)
        self.assertEqual(done.returncode, REFUSED, done.output)
        self.assertIn("RANK=0 WORLD_SIZE=2 (torchrun or Kubeflow)", done.output)
        # The launcher gives its workers flags.
        done = self.run_to_end([LAUNCH, "--sync=ring", "--transport=tcp", "--workers=2", "--", *LOGREG, "--epochs=1"],
                               deadline_s=60, env=torchrun)
        self.assertEqual(done.returncode, 0, done.output)

    def test_a_ring_of_one_worker_says_so(self):
        done = self.run_to_end([WORKER, "--sync=ring", *LOGREG, "--epochs=1"], deadline_s=60)
        self.assertIn("note: this is the only worker", done.output)

    def test_threads_are_those_that_are_granted(self):
        done = self.run_to_end([WORKER, *LOGREG, "--epochs=1", "--threads=2"], deadline_s=60,
                               env={**os.environ, "OMP_THREAD_LIMIT": "1"})
        self.assertEqual(done.returncode, REFUSED, done.output)
        for word in ("--threads", '"2"', "OpenMP grants 1 thread, because OMP_THREAD_LIMIT is 1"):
            self.assertIn(word, done.output)


class ResumedTest(JobTest):

    def run_worker(self, *flags, code=0, **kwargs):
        done = self.run_to_end([WORKER, *flags], deadline_s=60, **kwargs)
        self.assertEqual(done.returncode, code, done.output)
        return done.output

    def record(self, *flags):
        path = self.path("record.%d.json" % len(self.processes))
        output = self.run_worker(*flags, "--record=" + path)
        with open(path) as file:
            return output, json.load(file)

    def test_what_may_change_is_said_and_what_may_not_is_refused(self):
        folder = self.path("ck")
        base = ["--checkpoint_dir=" + folder, "--resume"]
        self.run_worker(*LOGREG, *base, "--epochs=2")
        newest = folder + "/step-000000006"
        output, record = self.record(*LOGREG, *base, "--epochs=3", "--momentum=0.5", "--learning_rate=0.01")
        said = ["resumes with --%s, %s was written with %s" % (new, newest, old)
                for new, old in (("learning_rate 0.01", "0.05"), ("momentum 0.5", "0.9"))]
        for line in said:
            self.assertIn(line, output)
        self.assertEqual((record["resumed_from_step"], record["steps"], record["resume_notes"]), (6, 3, said))
        self.assertIn("logreg with digest ", record["facts"]["model"])
        newest = folder + "/step-000000009"
        others = self.path("net.textproto")
        with open(others, "w") as file:
            file.write('layer { name: "fc" dense { units: 10 relu: true } }')
        with_flag = [flag for flag in TINY if "train_count" not in flag]
        for flags, word in (([*TINY, "--model=" + others], "flag --model is a layer file with digest"),
                            ([*with_flag, "--model=logreg", "--synthetic_train_count=61"], "data.train is 61 images"),
                            ([*LOGREG, "--optimizer=adamw"], "flag --optimizer is adamw, %s was written with sgd"),
                            ([*LOGREG, "--seed=9"], "flag --seed is 9, %s was written with 1")):
            output = self.run_worker(*flags, *base, "--epochs=4", code=REFUSED)
            self.assertIn(word % newest if "%s" in word else word, output)
            self.assertIn("%s was written with " % newest, output)

    def test_a_run_with_nothing_left_says_so(self):
        base = ["--checkpoint_dir=" + self.path("ck"), "--epochs=1", *LOGREG]
        _, first = self.record(*base, "--learning_rate=0.05")
        output, record = self.record(*base, "--learning_rate=0.001", "--resume")
        left = "0 steps were left: %s/step-000000003 has 3 of 3 steps" % self.path("ck")
        self.assertIn(left, output)
        self.assertRegex(output, r"\ndone after 3 steps, 0 of them by this run, parameters \w+\n$")
        self.assertEqual((record["steps"], record["resumed_from_step"]), (0, 3))
        self.assertTrue(any(note.startswith(left) for note in record["resume_notes"]), record["resume_notes"])
        self.assertTrue(any("--learning_rate 0.001" in note for note in record["resume_notes"]))
        self.assertEqual(record["parameter_sha256"], first["parameter_sha256"])
        self.assertEqual((first["resumed_from_step"], first["resume_notes"]), (0, []))

    def test_a_checkpoint_is_no_folder_of_checkpoints(self):
        folder = self.path("ck")
        self.run_worker(*LOGREG, "--epochs=1", "--checkpoint_dir=" + folder)
        shutil.copytree(folder + "/step-000000003", self.path("new/best"))
        for path, way_out in ((folder + "/step-000000003", "give its folder, --checkpoint_dir=" + folder),
                              (self.path("new"), "rename it to %s/step-000000003" % self.path("new")),
                              (self.path("new/best"), "rename it to %s/step-000000003 and give its folder"
                               % self.path("new"))):
            before = sorted(os.listdir(path))
            output = self.run_worker(*LOGREG, "--epochs=2", "--resume", "--checkpoint_dir=" + path, code=REFUSED)
            self.assertIn(way_out, output)
            self.assertEqual(sorted(os.listdir(path)), before)
        output = self.run_worker(*LOGREG, "--epochs=1", "--resume", "--checkpoint_dir=" + self.path("empty"))
        self.assertIn("starting from the beginning", output)

    def test_a_checkpoint_of_version_0_is_resumed(self):
        shutil.copytree("tests/e2e/version_0", self.path("ck"))
        os.chmod(self.path("ck"), 0o755)
        _, whole = self.record(*LOGREG, "--isa=baseline", "--epochs=3")
        output, record = self.record(*LOGREG, "--isa=baseline", "--epochs=3", "--resume",
                                     "--checkpoint_dir=" + self.path("ck"))
        self.assertEqual(record["parameter_sha256"], whole["parameter_sha256"])
        self.assertRegex(output, r"step-000000006 was written by a version that kept neither layer file")
        # Only values that the checkpoint has kept are compared.
        seed = self.run_worker(*LOGREG, "--epochs=4", "--resume", "--seed=2", "--checkpoint_dir=" + self.path("ck"),
                               code=REFUSED)
        self.assertIn("flag --seed is 2", seed)
        # A checkpoint of a later version is not called damaged.
        manifest = self.path("ck/step-000000009/manifest.json")
        with open(manifest) as file:
            text = file.read()
        with open(manifest, "w") as file:
            file.write(re.sub(r'"version": \d+', '"version": 99, "colour": "red"', text))
        later = self.run_worker(*LOGREG, "--epochs=4", "--resume", "--checkpoint_dir=" + self.path("ck"), code=REFUSED)
        self.assertIn("has version 99, this build reads 0 to 2", later)


if __name__ == "__main__":
    unittest.main()
