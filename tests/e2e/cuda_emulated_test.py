"""Tests the worker on emulated GPUs. tests/cuda_emulation says what the emulation cannot show."""

import json
import os
import re
import signal
import subprocess
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from tests.e2e import cuda_jobs
from tests.e2e.jobs import WORKER, children_of


class CudaEmulatedTest(cuda_jobs.CudaJobs):

    worker = os.path.abspath("tests/cuda_emulation/worker_emulated")
    mpi_is_cuda_aware = True
    epochs = 2  # an emulated GPU is some hundred times slower than a real one

    def test_gpu_memory_that_does_not_serve(self):
        # A GPU has no IPC, one rank cannot map the other's memory, or what is written there arrives damaged.
        job = self.job_command("ring/tcp", 2, flags=["--device=cuda", *cuda_jobs.MLP, "--epochs=1",
                                                     "--same_host=gpu_memory"],
                               launch_flags=["--worker_binary=" + self.worker])
        damaged = "(finds|has written|cannot map) "
        for fault, why in (("nothing", "cannot share memory of its GPU"), ("one_way", damaged), ("corrupt", damaged),
                           ("late_visible", damaged)):
            refused = self.run_to_end(["env", "EMULATED_GPU_IPC=" + fault, *job])
            self.assertEqual(refused.returncode, 2, (fault, refused.output))
            self.assertRegex(refused.output, "--same_host=gpu_memory: rank .*" + why + ".*give --same_host=auto")

    def test_the_timeline_has_a_row_of_the_gpu(self):
        for more in ([], ["--nocuda_graph"]):
            trace = self.path("trace.json")
            self.cuda("ring/tcp", 2, flags=[*cuda_jobs.MLP, "--epochs=2", "--trace=" + trace, *more])
            with open(self.path("trace.worker-0.json")) as file:
                events = json.load(file)["traceEvents"]
            row, = {(event["pid"], event["tid"]) for event in events
                    if event["name"] == "thread_name" and event["args"]["name"] == "GPU"}
            gpu = [event for event in events if (event["pid"], event.get("tid")) == row and event["ph"] == "X"]
            gpu.sort(key=lambda event: event["ts"])
            # Two epochs of three steps, and the GPU waits before each step but the first of an epoch.
            waits = {event["args"]["step"] for event in gpu if event["name"] == "exposed exchange"}
            self.assertLessEqual({1, 2, 4, 5}, waits)
            self.assertEqual({event["args"]["step"] for event in gpu if event["name"] == "compute"}, set(range(6)))
            for event, after in zip(gpu, gpu[1:]):
                self.assertLessEqual(event["ts"] + event["dur"], after["ts"] + 0.002)  # rounded to nanoseconds

    def test_auto_says_why_gpu_memory_was_not_tried(self):
        for variable, why in (("EMULATED_GPU_IPC=nothing", "GPU 0 has no memory that processes share .CUDA IPC.; "),
                              ("EMULATED_GPU_PEERS=no", "GPU 0 does not reach that of GPU 1; ")):
            record = self.path("record." + variable)
            job = self.job_command("ring/tcp", 2, flags=["--device=cuda", *cuda_jobs.DATA, "--model=logreg",
                                                         "--max_steps=1", "--same_host=auto", "--record=" + record],
                                   launch_flags=["--worker_binary=" + self.worker])
            done = self.run_to_end(["env", variable, *job])
            self.assertEqual(done.returncode, 0, done.output)
            with open(record) as file:
                self.assertRegex(json.load(file)["config"]["same_host_reason"], "GPU memory: " + why)

    def test_a_driver_that_does_not_say_what_it_shares_refuses_no_job(self):
        job = self.job_command("ring/tcp", 2, flags=["--device=cuda", *cuda_jobs.DATA, "--model=logreg",
                                                     "--max_steps=4", "--same_host=gpu_memory"],
                               launch_flags=["--worker_binary=" + self.worker])
        done = self.run_to_end(["env", "EMULATED_GPU_ANSWERS=no", *job])
        self.assertEqual(done.returncode, 0, done.output)

    def test_too_little_gpu_memory_to_share_is_no_end(self):
        # The ranks agree, and go by way of memory of the host.
        flags = [*self.deep(), "--epochs=1"]
        for sync in ("ring/tcp", "star/tcp"):
            record = self.path("record." + sync.replace("/", "."))
            job = self.job_command(sync, 2, flags=["--device=cuda", *flags, "--same_host=gpu_memory",
                                                   "--record=" + record],
                                   launch_flags=["--worker_binary=" + self.worker])
            done = self.run_to_end(["env", "EMULATED_GPU_IPC=full", *job])
            self.assertEqual(done.returncode, 0, done.output)
            why = "rank 0 cannot map the GPU memory of rank 1: .*out of memory"
            self.assertRegex(done.output, "worker 0: .*--same_host=gpu_memory: arrays go through memory of the host: " +
                             why)
            with open(record) as file:
                other = json.load(file)
            self.assertEqual(other["config"]["same_host"], "shared_memory")
            self.assertRegex(other["config"]["same_host_reason"], "GPU memory: " + why + ".*; shared memory: ")
            self.assertEqual(other["parameter_sha256"], self.cuda("star/tcp", 2, flags=flags)["parameter_sha256"])

    def test_gpu_memory_while_work_waits(self):
        # Streams that go on by themselves, each at its own pace: a wait that is missing shows.
        flags = [*self.deep(), "--epochs=1"]
        digest = self.cuda("star/tcp", 3, flags=flags)["parameter_sha256"]
        for seed, sync in ((1, "star/tcp"), (2, "star/tcp"), (3, "ring/tcp"), (4, "ring/tcp")):
            more = ["--same_host=gpu_memory", *(["--nocuda_graph"] if seed % 2 else [])]
            self.assertEqual(self.digest_on("EMULATED_GPU_STREAMS=async:%d" % seed, sync, 3, [*flags, *more]),
                             digest, seed)

    def test_gpus_wait_for_each_other_while_work_waits(self):
        # A missing edge of a graph, or a wait for a wrong word, shows with some seeds. Each slot's graph is launched
        # again.
        flags = [*self.deep(), "--epochs=4"]
        digest = self.cuda("star/tcp", 3, flags=flags)["parameter_sha256"]
        for seed in range(1, 7):
            more = ["--same_host=gpu_memory", "--gpu_waits=graph", *(["--nocuda_graph"] if seed > 4 else [])]
            sync = "ring/tcp" if seed % 2 else "star/tcp"
            self.assertEqual(self.digest_on("EMULATED_GPU_STREAMS=async:%d" % seed, sync, 3, [*flags, *more]),
                             digest, seed)

    def test_gpus_that_cannot_wait_are_refused(self):
        for machine, sync, flags, why in (
                ("EMULATED_GPU_WAITS=no", "star/tcp", ["--same_host=gpu_memory"],
                 "--gpu_waits=graph: rank 0: the GPU's streams cannot wait for 64-bit words .*: give --gpu_waits=host"),
                ("EMULATED_GPU_REGISTERS=nothing", "star/tcp", ["--same_host=gpu_memory"],
                 "--gpu_waits=graph: rank 0: cudaHostRegister.*: give --gpu_waits=host"),
                ("A=a", "star/tcp", [], "flag --gpu_waits cannot be .*give --same_host=gpu_memory")):
            refused = self.run_to_end(["env", machine, *self.job_command(
                sync, 2, flags=["--device=cuda", *cuda_jobs.DATA, "--model=logreg", "--epochs=1", "--gpu_waits=graph",
                                *flags], launch_flags=["--worker_binary=" + self.worker])])
            self.assertEqual(refused.returncode, 2, (machine, refused.output))
            self.assertRegex(refused.output, why)

    def counts_of_a_step(self, more, streams="now", sync="star/tcp"):
        """What the GPU of a rank is given in a step, by the emulation's names, and how often its host waits."""
        totals = []
        for steps in (12, 20):
            flags = ["--device=cuda", "--dataset=synthetic", "--synthetic_train_count=400", "--synthetic_test_count=1",
                     "--global_batch=16", "--model=mlp", "--bucket_bytes=1048576", "--progress=none",
                     "--max_steps=%d" % steps, *more]
            job = self.job_command(sync, 2, flags=flags, launch_flags=["--worker_binary=" + self.worker])
            done = self.run_to_end(["env", "EMULATED_GPU_SAYS_COUNTS=yes", "EMULATED_GPU_STREAMS=" + streams, *job])
            self.assertEqual(done.returncode, 0, done.output)
            said = re.findall(r"emulated GPU: (.*host waits)", done.output)
            self.assertEqual(len(said), 2, done.output)
            ranks = [{name: int(count) for count, name in re.findall(r"(\d+) ([a-z ]+)", one)} for one in said]
            totals.append({name: sum(rank[name] for rank in ranks) for name in ranks[0]})
        return {name: (totals[1][name] - totals[0][name]) / 16 for name in totals[0]}

    def test_a_step_in_the_graph_is_one_launch(self):
        # bench/results/2026-11-29-exchange-in-the-graph.md has the numbers. mlp has 8 buckets of 1 MiB.
        staged, host, graph = (self.counts_of_a_step(more) for more in (
            ["--same_host=shared_memory"], ["--same_host=gpu_memory"],
            ["--same_host=gpu_memory", "--gpu_waits=graph"]))
        self.assertGreater(staged["graph launches"], 1)
        self.assertGreater(host["graph launches"], 1)
        self.assertEqual(graph["graph launches"], 1)
        self.assertGreaterEqual(host["host waits"], 16)
        self.assertLess(graph["host waits"], 2)
        # Where work takes its time: for the batch's copy, and for the step before the three last ones.
        self.assertLess(self.counts_of_a_step(["--same_host=gpu_memory", "--gpu_waits=graph"], "async")["host waits"],
                        2.5)
        self.assertEqual(graph["copies"], host["copies"])
        self.assertEqual(graph["events"], 0)
        self.assertEqual(graph["memory operations"], 9)
        ring = self.counts_of_a_step(["--same_host=gpu_memory", "--gpu_waits=graph"], sync="ring/tcp")
        self.assertEqual((ring["graph launches"], ring["events"]), (1, 0))
        # One for each of two hops of a bucket, and one for the end; a hop is one kernel.
        self.assertEqual(ring["memory operations"], 8 * 2 + 1)
        self.assertEqual(ring["kernels"], graph["kernels"] + 8)

    def test_gpu_memory_is_freed_at_the_end(self):
        for sync, waits in (("ring/tcp", "host"), ("star/tcp", "host"), ("star/tcp", "graph"),
                            ("ring/tcp", "graph")):
            job = self.job_command(sync, 2, flags=["--device=cuda", *cuda_jobs.DATA, "--model=lenet5", "--epochs=1",
                                                   "--optimizer=adamw", "--same_host=gpu_memory",
                                                   "--gpu_waits=" + waits],
                                   launch_flags=["--worker_binary=" + self.worker])
            done = self.run_to_end(["env", "EMULATED_GPU_SAYS_BYTES=yes", *job])
            self.assertEqual(done.returncode, 0, done.output)
            self.assertEqual(re.findall(r"emulated GPU: (\d+) bytes are not freed", done.output), ["0", "0"])

    def test_a_rank_that_stops_or_dies_with_shared_gpu_memory_is_named(self):
        flags = [*cuda_jobs.without(cuda_jobs.MLP, "progress"), "--epochs=1000", "--progress=plain",
                 "--same_host=gpu_memory", "--exchange_deadline_s=3"]
        in_graph = ["env", "EMULATED_GPU_STREAMS=async"]
        sentence = {signal.SIGKILL: "worker 0: error: .*rank 1",
                    signal.SIGSTOP: r"worker 0: error: .*did not come within 3s \(oldest in flight: step \d+, bucket "
                                    r"\d+\): .*rank 1"}

        def run(cell):
            sync, number, waits, pause_s = cell
            job = self.job_command(sync, 2, flags=["--device=cuda", *flags, "--gpu_waits=" + waits],
                                   launch_flags=["--worker_binary=" + self.worker])
            running = self.start([*(in_graph if waits == "graph" else []), *job])
            self.wait_for_output(running, "epoch 1/1000")
            time.sleep(pause_s)
            os.kill(children_of(running.pid, "--rank=1")[0], number)
            done = self.finish(running, deadline_s=60)
            self.assertNotEqual(done.returncode, 0)
            self.assertRegex(done.output, sentence[number])

        # They wait for deadlines, so several run at once.
        with ThreadPoolExecutor(max_workers=3) as pool:
            list(pool.map(run, (
                ("star/tcp", signal.SIGKILL, "host", 0), ("ring/tcp", signal.SIGKILL, "host", 0),
                ("ring/tcp", signal.SIGSTOP, "host", 0), ("star/tcp", signal.SIGKILL, "graph", 0),
                ("ring/tcp", signal.SIGKILL, "graph", 0.29), ("star/tcp", signal.SIGSTOP, "graph", 0.17),
                ("ring/tcp", signal.SIGSTOP, "graph", 0.23))))
        left = subprocess.run(["pgrep", "-f", self.worker], capture_output=True, text=True, check=False)
        self.assertEqual(left.stdout, "")

    def test_gpu_memory_resumes_what_another_began(self):
        flags = [*cuda_jobs.without(self.everything(), "epochs"), "--total_steps=100", "--checkpoint_every_epochs=1"]
        whole = self.cuda("ring", 3, flags=[*flags, "--epochs=2"])
        for number, (first, then) in enumerate((
                (("star/tcp", "gpu_memory"), ("star/mpi", "socket")),
                (("star/tcp", "socket"), ("ring", "gpu_memory")),
                (("ring/tcp", "gpu_memory"), ("star/mpi", "gpu_memory")),
                (("ring/tcp", "gpu_memory"), ("ring", "shared_memory")),
                (("star/tcp", "gpu_memory", "--gpu_waits=graph"), ("ring", "gpu_memory", "--gpu_waits=graph")))):
            folder = ["--checkpoint_dir=" + self.path("saved.%d" % number), "--resume"]
            self.cuda(first[0], 3, flags=[*flags, *folder, "--epochs=1", "--same_host=" + first[1], *first[2:]])
            again = self.cuda(then[0], 3, flags=[*flags, *folder, "--epochs=2", "--same_host=" + then[1], *then[2:]])
            self.assertEqual(again["parameter_sha256"], whole["parameter_sha256"], (first, then))

    def test_cuda_aware_mpi_gives_the_same_bits(self):
        for model, variants in (([*cuda_jobs.MLP, "--epochs=2"],
                                 (("ring", []), ("ring", ["--nocuda_graph"]), ("star/mpi", []))),
                                (self.everything(), (("ring", []),))):
            staged = self.cuda("ring", 2, flags=model)
            self.assertEqual(staged["config"]["cuda_aware_mpi"], "off")
            for sync, more in variants:
                straight = self.cuda(sync, 2, flags=[*model, *more, "--cuda_aware_mpi=auto"])
                self.assertEqual(straight["config"]["cuda_aware_mpi"], "auto")
                self.assertEqual(straight["exchange"]["gpu_transfer"], "cuda-aware")
                self.assertEqual(straight["parameter_sha256"], staged["parameter_sha256"])

    def test_cuda_aware_mpi_is_in_the_plan_of_gpu_memory(self):
        flags = ["--device=cuda", *cuda_jobs.DATA, "--model=logreg", "--epochs=1"]
        for sync, aware in (("ring", "off"), ("ring", "auto"), ("star/mpi", "auto")):
            done = self.run_to_end(self.job_command(sync, 2, flags=[*flags, "--cuda_aware_mpi=" + aware],
                                                    launch_flags=["--worker_binary=" + self.worker]))
            self.assertEqual(done.returncode, 0, done.output)
            self.assertRegex(done.output, "GPU memory: .*, batches ")
            (self.assertNotRegex if aware == "off" else self.assertRegex)(done.output, r"GPU memory: .*, exchange \d")

    def test_cuda_aware_mpi_sends_a_bucket_of_several_blocks_at_once(self):
        # Buckets of three blocks of three ranks. The last block is short.
        flags = [*cuda_jobs.without(cuda_jobs.MLP, "bucket_bytes"), "--bucket_bytes=1048576", "--epochs=1"]
        aware = ["--cuda_aware_mpi=auto"]
        for more, cells in (([], ("ring", "star/mpi")), (["--sum_order=tree"], ("star/mpi",))):
            digest = self.cuda("star/tcp", 3, flags=[*flags, *more])["parameter_sha256"]
            for sync in cells:
                for streams in ("now", "late", "async:5"):
                    straight = self.record_on("EMULATED_GPU_STREAMS=" + streams, sync, 3, [*flags, *more, *aware])
                    self.assertEqual(straight["exchange"]["gpu_transfer"], "cuda-aware", (sync, more, streams))
                    self.assertEqual(straight["parameter_sha256"], digest, (sync, more, streams))

    def test_two_gpus_evaluate_together(self):
        folder = self.path("saved")
        self.cuda("local", flags=[*cuda_jobs.MLP, "--epochs=1", "--checkpoint_dir=" + folder])
        lines = []
        for workers in (1, 2):
            flags = ["--device=cuda", *cuda_jobs.DATA[:3], "--evaluate=" + folder]
            job = self.job_command("ring/tcp", workers, flags=flags, launch_flags=["--worker_binary=" + self.worker])
            done = self.run_to_end(job)
            self.assertEqual(done.returncode, 0, done.output)
            lines += re.findall("loss .*samples", done.output)
        self.assertEqual(len(lines), 2)
        self.assertEqual(lines[0], lines[1])

    def test_an_mpi_that_does_not_say_so_is_tried_if_asked(self):
        flags = [*cuda_jobs.MLP, "--epochs=1"]
        os.environ["EMULATED_MPI_IS_AWARE"] = "no"
        self.addCleanup(os.environ.pop, "EMULATED_MPI_IS_AWARE")
        asked, tried = (self.cuda("ring", 2, flags=[*flags, "--cuda_aware_mpi=" + way]) for way in ("auto", "try"))
        self.assertNotEqual(asked["exchange"]["gpu_transfer"], "cuda-aware")
        self.assertEqual(tried["exchange"]["gpu_transfer"], "cuda-aware")
        self.assertEqual(tried["parameter_sha256"], asked["parameter_sha256"])

    def test_cuda_aware_mpi_resumes_what_another_began(self):
        flags = [*cuda_jobs.without(self.everything(), "epochs"), "--total_steps=100", "--checkpoint_every_epochs=1"]
        whole = self.cuda("ring", 2, flags=[*flags, "--epochs=2"])
        folder = ["--checkpoint_dir=" + self.path("saved"), "--resume"]
        self.cuda("ring", 2, flags=[*flags, *folder, "--epochs=1", "--cuda_aware_mpi=auto"])
        again = self.cuda("ring", 2, flags=[*flags, *folder, "--epochs=2", "--cuda_aware_mpi=auto"])
        self.assertEqual(again["exchange"]["gpu_transfer"], "cuda-aware")
        self.assertEqual(again["parameter_sha256"], whole["parameter_sha256"])

    def record_on(self, machine, sync, workers=1, flags=()):
        """The run record of a job on emulated GPUs, which the environment `machine` describes."""
        record = self.path("record.on.%d" % len(self.processes))
        done = self.run_to_end(["env", machine] + self.job_command(sync, workers, 2, [
            "--device=cuda", *flags, "--record=" + record], ["--worker_binary=" + self.worker]))
        self.assertEqual(done.returncode, 0, done.output)
        with open(record) as file:
            return json.load(file)

    def digest_on(self, machine, sync, workers=1, flags=()):
        return self.record_on(machine, sync, workers, flags)["parameter_sha256"]

    def test_cudnn_gives_the_same_bits_in_every_way(self):
        base = [*cuda_jobs.without(self.everything(), "epochs"), "--epochs=2"]
        flags = [*base, "--conv=cudnn"]
        self.with_cudnn()
        local = self.cuda("local", flags=flags)
        self.assertEqual(local["config"]["conv"], "cudnn")
        self.assertEqual(local["host"]["versions"]["cudnn"], "9.19.0")
        self.assertIn("cuDNN 9.19.0", local["host"]["device"])
        # Three convolutions, in batches of 33 and of 1. The evaluation has 20 samples at once and is planned for 256.
        self.assertEqual(len(local["host"]["engines"]), 12)
        plain = self.cuda("local", flags=[*flags, "--nocuda_graph"])
        self.assertEqual(plain["parameter_sha256"], local["parameter_sha256"])
        self.assertEqual(self.cuda("star", 3, 2, flags)["parameter_sha256"],
                         self.cuda("ring", 3, flags=flags)["parameter_sha256"])
        own = self.cuda("local", flags=base)
        self.assertEqual((own["config"]["conv"], own["host"]["engines"]), ("own", {}))
        self.assert_near(local, own)
        self.assertEqual(self.digest_on("EMULATED_GPU_STREAMS=late", "local", flags=flags), local["parameter_sha256"])

    def with_cudnn(self):
        os.environ["EMULATED_GPU_CUDNN"] = "91900"
        self.addCleanup(os.environ.pop, "EMULATED_GPU_CUDNN")

    def test_bf16_has_one_digest_in_every_cell(self):
        self.with_cudnn()
        self.check_bf16()

    def test_bf16_is_saved_and_evaluated(self):
        self.with_cudnn()
        flags = ["--device=cuda", *cuda_jobs.DATA, "--math=bf16"]
        folder = self.path("saved")
        trained = self.cuda("local", flags=[*flags[1:], "--model=lenet5", "--epochs=1", "--checkpoint_dir=" + folder])
        done = self.run_to_end([self.worker, *flags[:4], "--math=bf16", "--evaluate=" + folder])
        self.assertEqual(done.returncode, 0, done.output)
        loss = float(re.search(r"loss ([\d.]+)", done.output)[1])
        self.assertAlmostEqual(loss, trained["epochs"][-1]["test_loss"], delta=2e-4)

    def test_bf16_that_is_not_there_is_refused_by_name(self):
        # Without cuDNN, and with our own convolutions; a last layer that cannot write float32.
        flags = [self.worker, "--device=cuda", *cuda_jobs.DATA, "--epochs=1", "--math=bf16"]
        done = self.run_to_end([*flags, "--model=lenet5"])
        self.assertEqual(done.returncode, 2, done.output)
        self.assertRegex(done.output, "layer .*: conv2d: bfloat16 convolutions are cuDNN's, .*: give --math=tf32, or "
                                      "--conv=cudnn")
        self.assertEqual(self.run_to_end([*flags, "--model=mlp"]).returncode, 0)
        path = self.path("mean.textproto")
        with open(path, "w") as file:
            file.write("layer { name: \"fc\" dense { units: 10 } }\nlayer { name: \"last\" scale { factor: 2 } }\n")
        done = self.run_to_end([*flags, "--model=" + path])
        self.assertEqual(done.returncode, 2, done.output)
        self.assertRegex(done.output, "mean.textproto.*last.*the last layer must be dense.*--math=tf32")

    def test_ranks_with_other_convolutions_are_refused_by_name(self):
        with_cudnn = "EMULATED_GPU_CUDNN=91900"
        for other, difference in (
                (["EMULATED_GPU_CUDNN=0"], "rank 1 has --conv=own, rank 0 has --conv=cudnn: with --conv=auto a worker"),
                (["EMULATED_GPU_CUDNN=91800"], "rank 1 has cudnn.version=9.18.0, rank 0 has cudnn.version=9.19.0: "),
                ([with_cudnn, "EMULATED_GPU_CUDNN_ENGINE=9"],
                 r"rank 1 has cudnn\.engines of a convolution 1 x 14 x 14 x 6 to 16, .*=forward 49 \(.*, rank 0 has "
                 r"cudnn\.engines of .*=forward 47 \(.*: give all workers the same cuDNN .*--conv=own")):
            # The last batch has one sample. Only rank 0 computes it, but both ranks plan for it.
            job = [self.worker, *cuda_jobs.DATA, "--model=lenet5", "--epochs=1", "--device=cuda", "--math=tf32"]
            done = self.run_to_end(["mpirun", "--oversubscribe", "-np", "1", "env", with_cudnn, *job,
                                    ":", "-np", "1", "env", *other, *job], deadline_s=120)
            self.assertNotEqual(done.returncode, 0)
            self.assertRegex(done.output, difference)

    def test_cudnn_that_is_not_there_is_refused(self):
        done = self.run_to_end([self.worker, "--device=cuda", "--conv=cudnn", *cuda_jobs.DATA, "--model=lenet5"])
        self.assertEqual(done.returncode, 2, done.output)
        self.assertIn('flag --conv cannot be "cudnn": give --conv=auto or --conv=own, or see why: cuDNN 9',
                      done.output)

    def test_memory_that_cannot_be_pinned_is_copied(self):
        flags = [*cuda_jobs.MLP, "--epochs=2"]
        digest = self.cuda("star", 2, 2, flags)["parameter_sha256"]
        for registers in ("writable", "nothing"):
            self.assertEqual(self.digest_on("EMULATED_GPU_REGISTERS=" + registers, "star", 2, flags), digest)

    def test_everything_waits_for_what_it_needs(self):
        late, by_themselves = ("EMULATED_GPU_STREAMS=" + streams for streams in ("late", "async:1"))
        flags = [*cuda_jobs.without(self.everything(), "epochs"), "--epochs=2"]
        digest = self.cuda("local", flags=flags)["parameter_sha256"]
        for more in ("--prefetch_depth=0", "--nocuda_graph"):
            self.assertEqual(self.digest_on(late, "local", flags=[*flags, more]), digest)
        self.assertEqual(self.digest_on(by_themselves, "local", flags=flags), digest)
        flags = [*cuda_jobs.MLP, "--epochs=2"]
        digest = self.cuda("ring", 2, flags=flags)["parameter_sha256"]
        for streams in (late, by_themselves):
            self.assertEqual(self.digest_on(streams, "star", 2, flags), digest)
        straight = self.record_on(late, "ring", 2, [*flags, "--cuda_aware_mpi=auto"])
        self.assertEqual((straight["exchange"]["gpu_transfer"], straight["parameter_sha256"]), ("cuda-aware", digest))

    def test_gradients_that_are_not_finite_are_refused_by_name(self):
        for sync, workers, more in (("local", 1, []), ("ring", 2, []), ("ring", 2, ["--cuda_aware_mpi=auto"]),
                                    ("ring/tcp", 2, ["--same_host=gpu_memory"]),
                                    ("star/tcp", 2, ["--same_host=gpu_memory"]),
                                    ("star/tcp", 2, ["--same_host=gpu_memory", "--gpu_waits=graph"])):
            done = self.run_to_end(
                self.job_command(sync, workers, flags=[*cuda_jobs.DATA, "--model=logreg", "--epochs=2", "--device=cuda",
                                                       "--schedule=constant", "--learning_rate=1e38", *more],
                                 launch_flags=["--worker_binary=" + self.worker]))
            self.assertNotEqual(done.returncode, 0, done.output)
            self.assertRegex(done.output, r"step \d+: the gradient of tensor \w+\.\w+ is (not finite|-?nan|-?inf): ")

    def test_a_gpu_that_hangs_ends_the_job_with_a_sentence(self):
        for sync, workers, graph_launches in (("local", 1, 5), ("ring", 2, 4), ("star", 2, 4)):
            begin = time.monotonic()
            done = self.run_to_end(["env", "EMULATED_GPU_HANGS_AT_LAUNCH=%d" % graph_launches] + self.job_command(
                sync, workers, 1, ["--device=cuda", *cuda_jobs.DATA, "--model=logreg", "--epochs=20",
                                   "--exchange_deadline_s=1"], ["--worker_binary=" + self.worker]))
            # 3: a peer with the same deadline gave up first.
            self.assertIn(done.returncode, (1, 3) if workers > 1 else (1,), done.output)
            self.assertRegex(done.output, r"worker \d: error: GPU \d \(emulated GPU\) does not answer: "
                                          r"waiting for an event has taken 1s, .* step \d+: nvidia-smi.*"
                                          r"--resume.*--exchange_deadline_s")
            self.assertLess(time.monotonic() - begin, 20)

    def worker_with(self, rank, variables):
        """A program that is the worker, with these variables in the environment of this rank."""
        path = self.path("worker_of_%d.%s.sh" % (rank, variables))
        with open(path, "w") as file:
            file.write('#!/bin/sh\ncase " $* " in *" --rank=%d "*) export %s;; esac\nexec "%s" "$@"\n' % (
                rank, variables, self.worker))
        os.chmod(path, 0o755)
        return path

    def job_in_graph(self, rank, variables, streams="async", more=("--model=logreg",), sync="star/tcp"):
        """Runs a job in which this rank's GPU is as the variables say. The first launch is that of the trial."""
        job = self.job_command(
            sync, 2, flags=["--device=cuda", *cuda_jobs.DATA, "--epochs=20", "--exchange_deadline_s=2",
                            "--same_host=gpu_memory", "--gpu_waits=graph", *more],
            launch_flags=["--worker_binary=" + self.worker_with(rank, variables)])
        return self.run_to_end(["env", "EMULATED_GPU_STREAMS=" + streams, *job])

    def test_a_rank_that_waits_with_an_empty_batch_names_the_one_that_stops(self):
        # Rank 0 runs every third step call by call, while two are queued. Rank 1 stops in the first of them, and in it:
        # after the vote before step 8. But for steps 0 and 2, each step is a launch of rank 1, whose GPU may be behind.
        cells = ((9, "star/tcp"), (11, "star/tcp"), (9, "ring/tcp"))
        with ThreadPoolExecutor(max_workers=3) as pool:
            jobs = list(pool.map(
                lambda cell: self.job_in_graph(1, "EMULATED_GPU_STOPS_AT_LAUNCH=%d" % cell[0], sync=cell[1]), cells))
        for (launch, _), done in zip(cells, jobs):
            self.assertEqual(done.returncode, 3, done.output)
            found = re.search(
                r"worker 0: error: (step (\d+), bucket 0) did not come within 2s \(oldest in flight: \1\): "
                "the GPU waits for that of rank 1: rank 1 does not answer", done.output)
            self.assertIsNotNone(found, done.output)
            self.assertIn(int(found[2]), range(9, launch + 1))

    def test_an_error_while_branches_wait_ends_all(self):
        # The error comes between the calls of a step: branches wait for other ranks, and the device's stream has not
        # joined them. The GPU is drained all the same, before its memory goes.
        found = set()
        for kernel in (520, 523, 526, 529, 532):
            begin = time.monotonic()
            done = self.job_in_graph(1, "EMULATED_GPU_REFUSES_KERNEL=%d" % kernel,
                                     more=["--nocuda_graph", "--model=mlp", "--bucket_bytes=1"])
            self.assertLess(time.monotonic() - begin, 15, done.output)
            self.assertNotEqual(done.returncode, 0, done.output)
            error = re.search(r"worker 1: error: (.*): too many resources requested for launch", done.output)
            self.assertIsNotNone(error, done.output)
            self.assertIn("worker 0: error: rank 1 gave up: " + error[1], done.output)
            found.add(error[1])
        self.assertGreater(len(found), 2, found)

    def test_a_rank_that_cannot_enqueue_the_trial_says_why(self):
        # One of the trial's rounds, and one of the kernels that run beside them. No other rank waits in vain for it.
        for kernel in (300, 305):
            begin = time.monotonic()
            done = self.job_in_graph(1, "EMULATED_GPU_REFUSES_KERNEL=%d" % kernel)
            self.assertLess(time.monotonic() - begin, 8, done.output)
            self.assertEqual(done.returncode, 2, done.output)
            self.assertRegex(done.output, "worker 0: error: --gpu_waits=graph: rank 1: .*: too many resources "
                                          "requested for launch.*: give --gpu_waits=host")

    def test_a_nan_of_one_rank_is_told_by_all_with_its_rank_and_step(self):
        for sync in ("star/tcp", "ring/tcp"):
            done = self.job_in_graph(1, "EMULATED_GPU_NANS_AT_LAUNCH=4", "now", sync=sync)
            self.assertNotEqual(done.returncode, 0, done.output)
            self.assertRegex(done.output,
                             r"worker 0: error: .*rank 1, step 4: the gradient of tensor \w+\.\w+ is not finite")
            self.assertNotIn("rank 0, step", done.output)

    def test_a_gpu_that_hangs_is_named_by_those_that_wait_for_it(self):
        for sync in ("star/tcp", "ring/tcp"):
            done = self.job_in_graph(1, "EMULATED_GPU_HANGS_AT_LAUNCH=6", sync=sync)
            self.assertNotEqual(done.returncode, 0, done.output)
            self.assertRegex(done.output, "worker 1: error: GPU .* does not answer: |worker 0: error: .*rank 1")
            self.assertNotRegex(done.output, "worker 0: error: GPU .* does not answer")
            self.assertNotIn("look at the network", done.output)

    def test_mpi_starts_when_the_gpu_of_the_rank_is_current(self):
        for device, gpus in (("cuda", "01"), ("cpu", ["-1", "-1"])):
            done = self.run_to_end(["env", "EMULATED_MPI_SAYS_GPU=yes"] + self.job_command(
                "ring", 2, flags=["--device=" + device, *cuda_jobs.DATA, "--model=logreg", "--epochs=1"],
                launch_flags=["--worker_binary=" + self.worker]))
            self.assertEqual(done.returncode, 0, done.output)
            self.assertEqual(sorted(re.findall(r"MPI_Init with GPU (\S+)", done.output)), sorted(gpus))

    def three_workers(self, sync, flags):
        """Runs a job on a machine with two GPUs."""
        return self.run_to_end(
            self.job_command(sync, 3, flags=[*cuda_jobs.DATA, "--model=logreg", "--epochs=1", *flags],
                             launch_flags=["--worker_binary=" + self.worker]))

    def test_workers_share_the_gpus_if_they_may(self):
        done = self.three_workers("ring", ["--device=cuda", "--share_gpus"])
        self.assertEqual(done.returncode, 0, done.output)
        self.assertIn("note: 3 workers share 2 GPUs of this machine", done.output)

    def test_more_workers_than_gpus_are_refused(self):
        for sync in ("ring", "star"):
            for device in ("cuda", "auto"):
                done = self.three_workers(sync, ["--device=" + device, "--noshare_gpus"])
                self.assertEqual(done.returncode, 2, done.output)
                self.assertRegex(done.output, r"3 workers on this machine, but the driver shows worker \d only 2 GPUs: "
                                              r".*--share_gpus.*--device=cpu")
                self.assertNotIn("epoch", done.output)

    def test_auto_is_silent_where_there_is_no_gpu(self):
        done = self.run_to_end([WORKER, *cuda_jobs.DATA, "--model=logreg", "--epochs=1"])
        self.assertEqual(done.returncode, 0, done.output)
        if "on cuda" not in done.output:
            self.assertNotIn("CUDA", done.output)
            self.assertNotIn("GPU", done.output)


if __name__ == "__main__":
    unittest.main()
