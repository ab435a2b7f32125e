"""Tests of jobs on GPUs, which cuda_test runs on real ones and cuda_emulated_test on emulated ones."""

from __future__ import annotations

import os
import re
import signal
from typing import Any, Callable, Sequence

from tests.e2e.jobs import JobTest, children_of

# 67 samples in batches of 33 leave a last batch of 1 sample, in which one of two ranks has none.
DATA = ["--dataset=synthetic", "--synthetic_train_count=67", "--synthetic_test_count=20", "--global_batch=33",
        "--progress=plain"]
# 1.9 million parameters in twenty buckets or more, so that forward has several segments.
MLP = [*DATA, "--model=mlp", "--bucket_bytes=1"]

# A small model with every kind of layer.
EVERYTHING = """
name: "everything"
layer { name: "conv1" conv2d { out_channels: 4 kernel: 5 stride: 2 padding: 2 no_bias: true } }
layer { name: "bn1" batch_norm { relu: true } }
layer { name: "pool1" max_pool { kernel: 2 } }
layer { name: "conv2" conv2d { out_channels: 4 kernel: 3 padding: 1 } }
layer { name: "relu2" relu {} }
layer { name: "add2" input: "relu2" input: "pool1" add { relu: true } }
layer { name: "drop2" dropout { rate: 0.25 } }
layer { name: "conv3" conv2d { out_channels: 24 kernel: 3 stride: 2 relu: true } }
layer { name: "mean3" global_average_pool {} }
layer { name: "flatten" flatten {} }
layer { name: "fc1" dense { units: 24 relu: true } }
layer { name: "fc2" dense { units: 10 } }
"""


def without(flags: list[str], name: str) -> list[str]:
    return [flag for flag in flags if not flag.startswith("--%s=" % name)]


def deep(path: str) -> list[str]:
    """A model of half a million parameters in six buckets or more, one a layer: backward runs beside the exchange, and
    forward has several segments. It takes an emulated GPU a third of MLP's time."""
    with open(path, "w") as file:
        file.write('name: "deep" layer { name: "flatten" flatten {} }\n')
        for layer in range(6):
            file.write('layer { name: "fc%d" dense { units: 256 relu: true } }\n' % layer)
        file.write('layer { name: "out" dense { units: 10 } }\n')
    return [*DATA, "--model=" + path, "--bucket_bytes=1"]


class CudaJobs(JobTest):
    """Subclasses set `worker` to the binary under test."""

    worker = ""
    mpi_is_cuda_aware = False  # whether the library is known to say so
    epochs = 3

    def cuda(self, sync: str, workers: int = 1, servers: int = 1, flags: Sequence[str] = ()) -> dict[str, Any]:
        """The run record of a job on GPUs."""
        return self.train(sync, workers, servers, ["--device=cuda", *flags], ["--worker_binary=" + self.worker])

    def everything(self) -> list[str]:
        path = self.path("everything.textproto")
        with open(path, "w") as file:
            file.write(EVERYTHING)
        return [*DATA, "--model=" + path, "--augment=crop_flip", "--optimizer=adamw", "--learning_rate=0.003",
                "--weight_decay=0.01", "--schedule=cosine", "--epochs=%d" % self.epochs]

    def deep(self) -> list[str]:
        return deep(self.path("deep.textproto"))

    def assert_near(self, cuda: dict[str, Any], cpu: dict[str, Any]) -> None:
        """Compares the curves of two records: epochs, and the first 50 steps if both have them."""
        self.assertEqual(len(cuda["epochs"]), len(cpu["epochs"]))
        for step, other in list(zip(cuda.get("losses", []), cpu.get("losses", [])))[:50]:
            self.assertEqual(step["step"], other["step"])
            self.assertAlmostEqual(step["loss"], other["loss"], delta=1e-3 * other["loss"], msg=step)
        for epoch, other in zip(cuda["epochs"], cpu["epochs"]):
            for name in ("train_loss", "test_loss"):
                self.assertAlmostEqual(epoch[name], other[name], delta=1e-3 * other[name])

    def assert_exposed(self, record: dict[str, Any]) -> None:
        """The GPU's clock has seen the exchange of the measured steps, but for the first one of each epoch."""
        exposed = record["gpu_exposed_exchange_ms"]
        steps = record["step_ms"]["steps_measured"]
        self.assertGreaterEqual(exposed["steps_measured"], steps - len(record["epochs"]))
        self.assertGreater(exposed["steps_measured"], 0)
        self.assertGreater(exposed["p50"], 0)
        self.assertLessEqual(exposed["p50"], record["step_ms"]["max"])

    def test_star_is_ring_is_without_graphs(self) -> None:
        flags = [*MLP, "--epochs=%d" % self.epochs]
        ring = self.cuda("ring", 2, flags=flags)
        self.assertEqual(ring["exchange"]["gpu_transfer"], "host-staged")
        self.assert_exposed(ring)
        self.assertTrue(ring["config"]["cuda_graph"])
        digest = ring["parameter_sha256"]
        variants: tuple[tuple[int, list[str]], ...] = (
            (2, []), (1, ["--same_host=socket"]), (2, ["--bucket_bytes=100000000"]))
        for servers, more in variants:
            star = [*without(flags, "bucket_bytes"), *more] if more and "bucket" in more[0] else [*flags, *more]
            self.assertEqual(self.cuda("star", 2, servers, star)["parameter_sha256"], digest)
        plain = self.cuda("ring", 2, flags=[*flags, "--nocuda_graph"])
        self.assertFalse(plain["config"]["cuda_graph"])
        self.assertEqual(plain["parameter_sha256"], digest)
        self.assert_exposed(plain)

    def assert_mapped_memory_gives(self, sync: str, workers: int, flags: list[str], digest: str) -> float:
        """Ranks that map each other's GPU memory end with this digest. Returns the bytes that rank 0 has sent."""
        mapped = self.cuda(sync, workers, flags=[*flags, "--same_host=gpu_memory"])
        in_graph = "--gpu_waits=graph" in flags
        self.assertEqual(mapped["config"]["gpu_waits"], "graph" if in_graph else "host")
        self.assertEqual(mapped["config"]["same_host"], "gpu_memory", (workers, sync))
        self.assertEqual(mapped["config"]["same_host_reason"], "GPU memory: asked for")
        self.assertEqual(mapped["exchange"]["gpu_transfer"], "gpu-memory-graph" if in_graph else "gpu-memory")
        self.assertGreater(mapped["exchange"]["bytes_sent"], 0)
        self.assert_exposed(mapped)
        for use in mapped["workers"]:
            self.assertEqual(use["compute_ms"] == 0, in_graph)
        self.assertEqual(mapped["parameter_sha256"], digest, (workers, flags, sync))
        return mapped["exchange"]["bytes_sent"]

    def check_bf16(self) -> None:
        """One digest in every cell, of a model with every kind of layer. REQUIRES: cuDNN."""
        flags = [*without(self.everything(), "epochs"), "--epochs=1", "--math=bf16"]
        local = self.cuda("local", flags=flags)
        self.assertEqual((local["config"]["math"], local["config"]["conv"]), ("bf16", "cudnn"))
        alone: tuple[tuple[str, int, list[str]], ...] = (
            ("local", 1, ["--nocuda_graph"]), ("ring", 1, []), ("local", 1, ["--data_on_gpu=off"]))
        for sync, workers, more in alone:
            self.assertEqual(self.cuda(sync, workers, flags=[*flags, *more])["parameter_sha256"],
                             local["parameter_sha256"], (sync, more))
        ring = self.cuda("ring", 2, flags=flags)
        cells: tuple[tuple[str, list[str]], ...] = (
            ("star", []), ("star/tcp", []), ("ring/tcp", ["--nocuda_graph"]), ("star-servers/tcp", []),
            ("ring/tcp", ["--same_host=shared_memory"]), ("ring", ["--cuda_aware_mpi=auto"]),
            ("star/mpi", ["--cuda_aware_mpi=auto"]))
        if os.environ.get("STARRING_TEST_NCCL") == "yes":
            cells += (("nccl/tcp", []),)
        for sync, more in cells:
            record = self.cuda(sync, 2, flags=[*flags, *more])
            self.assertEqual(record["parameter_sha256"], ring["parameter_sha256"], (sync, more))
            if self.mpi_is_cuda_aware and "--cuda_aware_mpi=auto" in more:
                self.assertEqual(record["exchange"]["gpu_transfer"], "cuda-aware", sync)
        self.assert_mapped_memory_gives("star/tcp", 2, flags, ring["parameter_sha256"])
        exact = self.cuda("local", flags=[*without(flags, "math"), "--math=tf32"])
        self.assertNotEqual(exact["parameter_sha256"], local["parameter_sha256"])
        for epoch, other in zip(local["epochs"], exact["epochs"]):
            self.assertAlmostEqual(epoch["test_loss"], other["test_loss"], delta=5e-2 * other["test_loss"])

    def test_gpus_that_map_each_others_memory(self) -> None:
        flags = [*self.deep(), "--epochs=1"]
        variants: tuple[tuple[str, list[str]], ...] = (
            ("star/mpi", []), ("star/tcp", ["--nocuda_graph"]), ("ring", ["--nocuda_graph"]), ("ring/tcp", []))
        for workers in (2, 3):
            digest = self.cuda("ring/tcp", workers, flags=[*flags, "--same_host=socket"])["parameter_sha256"]
            for sync, more in variants:
                self.assert_mapped_memory_gives(sync, workers, [*flags, *more], digest)
        auto = self.cuda("ring/tcp", 2, flags=[*flags, "--same_host=auto"])["config"]
        self.assertEqual(auto["same_host"], "shared_memory")
        self.assertRegex(auto["same_host_reason"],
                         "GPU memory: not tried by itself until .*--same_host=gpu_memory.*; shared memory: ")
        flags += ["--sum_order=tree"]
        tree = self.cuda("star/tcp", 3, flags=flags)["parameter_sha256"]
        for sync in ("star/mpi", "star/tcp"):
            self.assert_mapped_memory_gives(sync, 3, flags, tree)

    def test_gpus_that_wait_for_each_other(self) -> None:
        # Several epochs, so that each slot's graph is launched again.
        flags = [*self.deep(), "--epochs=3"]
        for workers in (2, 3):
            digest = self.cuda("star/tcp", workers, flags=[*flags, "--same_host=socket"])["parameter_sha256"]
            # Each round counts once, also where a step runs call by call behind steps that are queued.
            for sync, other in (("star/mpi", "star/tcp"), ("ring/tcp", "ring")):
                sent = [self.assert_mapped_memory_gives(sync, workers, [*flags, "--gpu_waits=graph"], digest),
                        self.assert_mapped_memory_gives(other, workers, [*flags, "--nocuda_graph",
                                                                         "--gpu_waits=graph"], digest)]
                self.assertEqual(sent[0], sent[1])
        # As many bytes as its hosts count.
        self.assertEqual(sent[0], self.assert_mapped_memory_gives("ring/tcp", 3, flags, digest))
        flags += ["--sum_order=tree"]
        tree = self.cuda("star/tcp", 3, flags=flags)["parameter_sha256"]
        self.assert_mapped_memory_gives("star/tcp", 3, [*flags, "--gpu_waits=graph"], tree)
        # One bucket of one owner: the other rank must not wait for arrivals that it could miss.
        flags = [*DATA, "--model=logreg", "--epochs=3"]
        few = self.cuda("star/tcp", 2, flags=[*flags, "--same_host=socket"])["parameter_sha256"]
        self.assert_mapped_memory_gives("star/tcp", 2, [*flags, "--gpu_waits=graph"], few)

    def test_many_gpus_that_map_each_others_memory(self) -> None:
        flags = [*self.deep(), "--epochs=1", "--momentum=0.9", "--nesterov", "--weight_decay=0.01",
                 "--schedule=cosine", "--warmup_steps=2", "--learning_rate=0.05"]
        for workers in (4, 8):
            digest = self.cuda("ring", workers, flags=[*flags, "--same_host=socket"])["parameter_sha256"]
            for sync, more in (("ring", "host"), ("star/tcp", "host"), ("star/tcp", "graph"), ("ring/tcp", "graph")):
                self.assert_mapped_memory_gives(sync, workers, [*flags, "--gpu_waits=" + more], digest)

    def assert_a_rank_is_named(self, number: signal.Signals, sync: str, memory: str, sentence: str) -> None:
        """The others end with this sentence when rank 1 gets the signal in the middle of a step."""
        # On a GPU so many epochs take a minute: a job that is left over ends.
        flags = ["--device=cuda", *without(MLP, "progress"), "--epochs=20000", "--progress=plain",
                 "--exchange_deadline_s=3", *(["--same_host=" + memory] if memory else [])]
        running = self.start(self.job_command(sync, 2, flags=flags, launch_flags=["--worker_binary=" + self.worker]))
        self.wait_for_output(running, "epoch 1/20000")
        os.kill(children_of(running.pid, "--rank=1")[0], number)
        done = self.finish(running, deadline_s=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.output, sentence, (sync, memory))

    def fault_cells(self) -> list[tuple[str, str]]:
        by_nccl = [("nccl/tcp", "")] if os.environ.get("STARRING_TEST_NCCL") == "yes" else []
        return [("star/tcp", "gpu_memory"), ("ring/tcp", "gpu_memory"), *by_nccl]

    def test_a_rank_that_is_killed_is_named(self) -> None:
        self.for_each((*self.fault_cells(), ("ring/tcp", "shared_memory")),
                      lambda cell: self.assert_a_rank_is_named(signal.SIGKILL, *cell, "worker 0: error: .*rank 1"))
        # The GPU is of use to the next job.
        self.cuda("ring/tcp", 2, flags=[*MLP, "--epochs=1", "--same_host=gpu_memory"])

    def test_a_rank_that_is_stopped_is_named(self) -> None:
        sentence = (r"worker 0: error: .*did not come within 3s \(oldest in flight: step \d+, bucket \d+\): "
                    r".*rank 1")
        self.for_each(self.fault_cells()[1:],
                      lambda cell: self.assert_a_rank_is_named(signal.SIGSTOP, *cell, sentence))

    def assert_shared_memory_gives(self, sync: str, flags: list[str], digest: str) -> None:
        """Three ranks that share memory, on GPUs, end with this digest."""
        shared = self.cuda(sync, 3, flags=[*flags, "--same_host=shared_memory"])
        self.assertEqual(shared["config"]["same_host"], "shared_memory")
        self.assertEqual(shared["exchange"]["gpu_transfer"], "host-staged")
        self.assertEqual(shared["parameter_sha256"], digest, sync)

    def test_every_cell_has_one_digest(self) -> None:
        flags = [*MLP, "--epochs=1"]
        ring = self.cuda("ring", 3, flags=flags)["parameter_sha256"]
        for sync in ("star", "star/mpi", "star/tcp", "ring/tcp", "star-servers/tcp"):
            self.assertEqual(self.cuda(sync, 3, 2, flags)["parameter_sha256"], ring, sync)
        self.assert_shared_memory_gives("star/mpi", flags, ring)
        # Only a star adds three gradients in another order.
        flags += ["--sum_order=tree"]
        tree = self.cuda("star", 3, 2, flags)["parameter_sha256"]
        self.assertNotEqual(tree, ring)
        for sync in ("star/mpi", "star/tcp"):
            self.assertEqual(self.cuda(sync, 3, flags=flags)["parameter_sha256"], tree, sync)
        self.assert_shared_memory_gives("star/tcp", flags, tree)

    def test_every_layer_local_is_a_ring_of_one(self) -> None:
        flags = self.everything()
        local = self.cuda("local", flags=flags)
        self.assertEqual(local["config"]["device"], "cuda")
        self.assertEqual(local["config"]["math"], "fp32")
        self.assertIn("cuda:0", local["host"]["device"])
        self.assertEqual(local["exchange"]["gpu_transfer"], "")
        self.assertNotIn("gpu_exposed_exchange_ms", local)
        digest = local["parameter_sha256"]
        self.assertEqual(self.cuda("local", flags=[*flags, "--nocuda_graph"])["parameter_sha256"], digest)
        self.assertEqual(self.cuda("local", flags=[*flags, "--prefetch_depth=0"])["parameter_sha256"], digest)
        self.assertEqual(self.cuda("ring", 1, flags=flags)["parameter_sha256"], digest)

    def test_a_clipped_gradient(self) -> None:
        flags = self.everything()
        free = self.cuda("local", flags=flags)
        self.assertEqual(self.cuda("local", flags=[*flags, "--clip_norm=1e9"])["parameter_sha256"],
                         free["parameter_sha256"])
        flags += ["--clip_norm=0.25"]
        local = self.cuda("local", flags=flags)
        self.assertEqual(local["exchange"]["gpu_transfer"], "host-staged")
        self.assertNotEqual(local["parameter_sha256"], free["parameter_sha256"])
        self.assert_near(local, self.train("local", flags=["--device=cpu", *flags]))
        self.assertEqual(self.cuda("ring", 1, flags=flags)["parameter_sha256"], local["parameter_sha256"])
        ring = self.cuda("ring", 3, flags=flags)["parameter_sha256"]
        self.assertEqual(self.cuda("star/tcp", 3, flags=flags)["parameter_sha256"], ring)
        self.assert_shared_memory_gives("star/mpi", flags, ring)

    def test_the_data_sets_place_changes_no_bit(self) -> None:
        flags = self.everything()
        for sync, workers in (("local", 1), ("ring", 2)):
            here = self.cuda(sync, workers, flags=[*flags, "--data_on_gpu=off"])
            self.assertEqual(here["config"]["data_on_gpu"], "off")
            variants: list[list[str]] = [[], ["--data_on_gpu=on", "--nocuda_graph"]]
            for more in variants:
                there = self.cuda(sync, workers, flags=[*flags, *more])
                self.assertEqual(there["config"]["data_on_gpu"], "on")
                self.assertEqual(there["parameter_sha256"], here["parameter_sha256"])
                for epoch, other in zip(here["epochs"], there["epochs"]):
                    self.assertEqual([epoch[name] for name in ("train_loss", "test_loss", "test_accuracy")],
                                     [other[name] for name in ("train_loss", "test_loss", "test_accuracy")])

    def test_every_layer_with_three_workers(self) -> None:
        flags = self.everything()
        self.assertEqual(self.cuda("star", 3, 2, flags)["parameter_sha256"],
                         self.cuda("ring", 3, flags=flags)["parameter_sha256"])

    def test_the_curve_is_the_cpus(self) -> None:
        for flags in (self.everything(), [*MLP, "--epochs=%d" % self.epochs, "--learning_rate=0.01"]):
            flags = [*flags, "--record_losses"]
            self.assert_near(self.cuda("local", flags=flags), self.train("local", flags=["--device=cpu", *flags]))
            self.assert_near(self.cuda("ring", 2, flags=flags),
                             self.train("ring", 2, flags=["--device=cpu", *flags]))

    def test_resumes_here_and_there(self) -> None:
        flags = without(self.everything(), "epochs") + ["--total_steps=100", "--checkpoint_every_epochs=1"]
        whole = self.cuda("local", flags=[*flags, "--epochs=4"])
        cpu = self.train("local", flags=["--device=cpu", *flags, "--epochs=4"])

        def halves(name: str, first: Callable[..., Any], second: Callable[..., Any]) -> dict[str, Any]:
            folder = ["--checkpoint_dir=" + self.path(name), "--resume"]
            first(flags=[*flags, *folder, "--epochs=2"])
            return second(flags=[*flags, *folder, "--epochs=4"])

        def on_gpu(flags: list[str]) -> dict[str, Any]:
            return self.cuda("local", flags=flags)

        def on_gpu_in_a_ring(flags: list[str]) -> dict[str, Any]:
            return self.cuda("ring", 1, flags=flags)

        def on_cpu(flags: list[str]) -> dict[str, Any]:
            return self.train("local", flags=["--device=cpu", *flags])

        self.assertEqual(halves("same", on_gpu, on_gpu)["parameter_sha256"], whole["parameter_sha256"])
        self.assertEqual(halves("ring", on_gpu_in_a_ring, on_gpu)["parameter_sha256"], whole["parameter_sha256"])
        second = {"epochs": cpu["epochs"][2:]}
        self.assert_near(halves("down", on_gpu, on_cpu), second)
        self.assert_near(halves("up", on_cpu, on_gpu), second)

    def test_a_gradient_that_is_not_finite_is_refused(self) -> None:
        flags = [*DATA, "--model=lenet5", "--learning_rate=1e30", "--epochs=2"]
        for sync, workers in (("local", 1), ("ring", 2), ("star", 2)):
            places = []
            for device in (["--device=cuda"], ["--device=cuda", "--cuda_aware_mpi=auto"], ["--device=cpu"]):
                command = self.job_command(sync, workers, 1, [*device, *flags], ["--worker_binary=" + self.worker])
                done = self.run_to_end(command)
                self.assertEqual(done.returncode, 1, done.output)
                found = re.search(r"rank \d+, (step \d+): the gradient of tensor (\w+\.\w+) is .*refused", done.output)
                self.assertTrue(found, done.output)
                places += [found.group(1)] if found else []
            self.assertEqual(len(set(places)), 1, places)

    def test_what_the_gpu_has_no_memory_for_is_refused_with_numbers(self) -> None:
        done = self.run_to_end([self.worker, "--device=cuda", *without(DATA, "global_batch"), "--model=mnist_cnn",
                                "--global_batch=2000000"])
        self.assertEqual(done.returncode, 2, done.output)
        self.assertRegex(done.output, r"has too little memory: \S+ GiB are needed \(activations .*, batches .*\), "
                                      r"\S+ .iB of \S+ GiB are free: give a smaller --global_batch")

    def test_auto_takes_the_gpu_and_says_which(self) -> None:
        done = self.run_to_end([self.worker, *DATA, "--model=logreg", "--epochs=1"])
        self.assertEqual(done.returncode, 0, done.output)
        self.assertIn(", on cuda:0 (", done.output)
