"""Compares trained digests with known ones, so that any change of a bit of training is noticed.

golden_digests has a digest for each device, model and number of workers. The CPU's digests are for --isa=baseline,
which every x86-64 has and which needs no oneDNN. The GPU's digests are the emulation's. To change the bits on purpose,
replace the file by the output of the failing test, in a separate commit that says why.
"""

import os
import unittest

from tests.e2e.jobs import WORKER, JobTest

EMULATED = os.path.abspath("tests/cuda_emulation/worker_emulated")
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden_digests")

# 17 samples in batches of 7: every rank has a different part, and the last batch is short. All flags that decide the
# bits are given, so that defaults may change.
JOB = ["--dataset=synthetic", "--synthetic_train_count=17", "--synthetic_test_count=4", "--global_batch=7",
       "--epochs=1", "--seed=1", "--threads=1", "--augment=none", "--optimizer=sgd", "--learning_rate=0.05",
       "--momentum=0.9", "--weight_decay=0.0005", "--schedule=constant", "--warmup_steps=0", "--progress=none"]
SMALL_IMAGES = ["--synthetic_size=28", "--synthetic_channels=1"]
COLOUR_IMAGES = ["--synthetic_size=32", "--synthetic_channels=3"]
IMAGES = {"resnet20": COLOUR_IMAGES}
ON = {"cpu": (["--device=cpu", "--isa=baseline"], WORKER),
      "emulated": (["--device=cuda", "--math=fp32", "--conv=own", "--share_gpus"], EMULATED),
      "emulated_bf16": (["--device=cuda", "--math=bf16", "--conv=cudnn", "--share_gpus"], EMULATED)}


def read_golden():
    with open(GOLDEN, encoding="ascii") as file:
        rows = [line.split() for line in file if line.strip() and not line.startswith("#")]
    return [(device, model, int(workers), digest) for device, model, workers, digest in rows]


class GoldenTest(JobTest):

    def run_job(self, device, model, workers, sync="ring"):
        flags, worker = ON[device]
        return self.train(sync if workers > 1 else "local", workers,
                          flags=[*JOB, *IMAGES.get(model, SMALL_IMAGES), "--model=" + model, *flags],
                          launch_flags=["--worker_binary=" + worker])["parameter_sha256"]

    def check(self, device, numbers=(1, 2, 3)):
        rows = [row for row in read_golden() if row[0] == device]
        self.assertEqual(len(rows), 5 * len(numbers), f"five models, with {numbers} workers")
        found = [(device, model, workers, self.run_job(device, model, workers)) for _, model, workers, _ in rows]
        lines = "\n".join("%s %s %d %s" % row for row in found)
        self.assertEqual(found, rows, "if this change is wanted, these are the lines of golden_digests:\n" + lines)

    def test_on_the_cpu(self):
        self.check("cpu")

    def test_every_cell_has_the_rings_digest(self):
        golden = {row[1:3]: row[3] for row in read_golden() if row[0] == "cpu"}
        for sync in ("star", "star/mpi", "star/tcp", "ring/tcp", "star-servers/tcp"):
            self.assertEqual(self.run_job("cpu", "lenet5", 3, sync), golden["lenet5", 3], sync)

    def test_on_an_emulated_gpu(self):
        self.check("emulated")

    def test_on_an_emulated_gpu_in_bf16(self):
        os.environ["EMULATED_GPU_CUDNN"] = "91900"
        self.addCleanup(os.environ.pop, "EMULATED_GPU_CUDNN")
        self.check("emulated_bf16", numbers=(1, 2))


if __name__ == "__main__":
    unittest.main()
