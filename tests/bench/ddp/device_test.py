"""Tests the PyTorch peer's code for GPUs on a machine without one: the choice of device and backend, the refusals, and
clock, data and graph with a stand-in for torch.cuda, whose events are times of the host's clock.
"""

import contextlib
import os
import subprocess
import sys
import time
import unittest
from unittest import mock

try:
    import torch
except ImportError:
    print("SKIPPED: this python3 has no torch, so nothing of bench/ddp was tested", file=sys.stderr)
    sys.exit(0)

import batches
import data
import device as devices
import numpy as np
import options
import philox_dropout
import step_clock
import step_graph
import sweep
import train
import trainer

SAMPLES = 101  # 12 batches of 8 and one of 5


def gpus(count):
    return mock.patch.multiple(torch.cuda, is_available=lambda: count > 0, device_count=lambda: count)


def choose(count, *flags, world_size=1, rank=0, nccl=True, release=(2, 29, 7)):
    with gpus(count), mock.patch.object(torch.distributed, "is_nccl_available", lambda: nccl), \
            mock.patch.object(torch.cuda.nccl, "version", lambda: release):
        return devices.choose(options.parse(flags), world_size, rank, world_size)


class ChooseTest(unittest.TestCase):
    def found(self, *arguments, **more):
        device = choose(*arguments, **more)
        return str(device.torch), device.backend

    def test_auto_takes_a_gpu_where_there_is_one(self):
        self.assertEqual(self.found(0), ("cpu", ""))
        self.assertEqual(self.found(1), ("cuda:0", ""))
        self.assertEqual(self.found(1, "--device=cpu"), ("cpu", ""))
        self.assertEqual(self.found(1, "--device=cpu", world_size=2), ("cpu", "gloo"))

    def test_a_gpu_each_talks_nccl_and_a_shared_one_gloo(self):
        self.assertEqual(self.found(2, world_size=2, rank=1), ("cuda:1", "nccl"))
        self.assertEqual(self.found(2, world_size=2, nccl=False), ("cuda:0", "gloo"))
        self.assertEqual(self.found(2, "--share_gpus", world_size=3, rank=2), ("cuda:0", "gloo"))
        # All ranks must choose alike, also a rank that has a GPU to itself.
        self.assertEqual(self.found(2, "--share_gpus", world_size=3, rank=1), ("cuda:1", "gloo"))

    def test_two_share_a_gpu_over_nccl_from_its_release_2_30_on(self):
        for workers, release, backend in ((2, (2, 30, 3), "nccl"), (2, (3, 0, 1), "nccl"), (2, (2, 29, 7), "gloo"),
                                          (3, (2, 30, 3), "gloo")):
            device = choose(1, "--share_gpus", world_size=workers, release=release)
            self.assertEqual((device.backend, device.shared), (backend, True), (workers, release))
            with mock.patch.dict(os.environ), mock.patch.object(torch.distributed, "init_process_group"):
                device.join(0, "env://", 1)
                self.assertEqual(os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE"), "1" if backend == "nccl" else None)
            with mock.patch.object(devices, "nccl_version", lambda: "2.30.3"):
                self.assertRegex(device.versions()["backend"], f"^{backend}.*, shared GPUs$")
        self.assertFalse(choose(2, world_size=2).shared)

    def test_refuses_what_cannot_be_had_and_says_the_way_out(self):
        for count, flags, words in ((0, ["--device=cuda"], "--device=cpu"), (0, ["--math=tf32"], "drop one"),
                                    (1, ["--device=auto"], "2 workers .* only 1 GPU: .*--share_gpus.*--device=cpu")):
            with self.assertRaisesRegex(devices.DeviceError, words):
                choose(count, *flags, world_size=2)

    def test_the_program_refuses_before_it_starts(self):
        if torch.cuda.is_available():
            self.skipTest("THERE IS A GPU: not refused")
        for flags in (["--device=cuda"], ["--device=cuda", "--world_size=2"], ["--device=cpu", "--math=bf16"]):
            done = subprocess.run([sys.executable, train.__file__, *flags], timeout=120, capture_output=True, text=True,
                                  check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("--device=cpu", done.stderr)
            self.assertNotIn("Traceback", done.stderr)

    def test_rounds_as_math_says(self):
        device = devices.Device(torch.device("cuda", 0), "fp32")
        before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
        try:
            for math, expected in (("tf32", True), ("fp32", False), ("bf16", False)):
                device = devices.Device(torch.device("cuda", 0), math)
                with mock.patch.object(torch.cuda, "set_device") as set_device:
                    device.set_up(options.parse([]))
                set_device.assert_called_once_with(torch.device("cuda", 0))
                self.assertEqual((torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32),
                                 (expected, expected))
        finally:
            torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


class ObstacleTest(unittest.TestCase):
    def obstacle(self, *flags, backend="", world_size=1, version="2.1.0+cu121"):
        device = devices.Device(torch.device("cuda", 0), "fp32", backend, world_size)
        with mock.patch.object(torch, "__version__", version):
            return step_graph.obstacle(options.parse(["--cuda_graph", "--schedule=constant", *flags]), device)

    def test_nothing_stands_in_the_way(self):
        self.assertEqual(self.obstacle(), "")
        self.assertEqual(self.obstacle(version="1.13.0a0"), "")
        self.assertEqual(self.obstacle(backend="nccl", world_size=2), "")
        self.assertEqual(self.obstacle("--schedule=step", "--decay_steps=5"), "")

    def test_what_stands_in_the_way_is_said(self):
        self.assertIn("Gloo", self.obstacle(backend="gloo", world_size=2))
        self.assertIn("2.0", self.obstacle(backend="nccl", world_size=2, version="1.13.0a0"))
        self.assertIn("rate", self.obstacle("--schedule=cosine"))
        self.assertIn("rate", self.obstacle("--warmup_steps=3"))
        self.assertIn("DataLoader", self.obstacle("--data=dataloader"))
        self.assertIn("host", self.obstacle("--hook=star", backend="nccl", world_size=2))
        self.assertEqual(self.obstacle("--hook=star"), "")
        self.assertEqual(self.obstacle("--graph_failure=it broke"), "it broke")
        self.assertIn("CPU", step_graph.obstacle(options.parse([]), devices.Device(torch.device("cpu"))))


class CaptureFailureTest(unittest.TestCase):
    def test_starts_again_without_a_graph(self):
        started = mock.Mock(side_effect=step_graph.CaptureError("no capture"))
        with mock.patch.object(train, "start", started), mock.patch.object(os, "execv") as execv, \
                mock.patch.object(sys, "argv", ["train.py", "--cuda_graph"]), mock.patch.dict(os.environ):
            os.environ.pop("RANK", None)
            train.main()
        arguments = execv.call_args[0][1]
        self.assertEqual(arguments[:3], [sys.executable, "train.py", "--cuda_graph"])
        self.assertIn("no capture", step_graph.obstacle(options.parse(arguments[2:]), None))

    def test_is_seen_in_a_child_process(self):
        text = "\n\n-- Process 1 terminated:\nTraceback ...\nstep_graph.CaptureError: no capture\n"
        for raised, expected in ((text, step_graph.CaptureError), ("RuntimeError: other", Exception)):
            error = torch.multiprocessing.ProcessRaisedException(raised, 1, 17)
            with mock.patch.object(torch.multiprocessing, "spawn", side_effect=error), \
                    self.assertRaises(expected) as found:
                train.spawn(options.parse(["--world_size=2", "--device=cpu"]))
            self.assertEqual(str(found.exception) == "no capture", raised == text)


class Event:
    def __init__(self, enable_timing):
        assert enable_timing
        self.seconds = None

    def record(self):
        assert not Capture.running, "an event of a graph has no time"
        self.seconds = time.perf_counter()

    def elapsed_time(self, end):
        return 1e3 * (end.seconds - self.seconds)


class Capture:
    """Acts like step_graph.capture on a CPU: it computes nothing before the first launch, and every launch overwrites
    the previous result."""
    running = False
    count = 0

    def __init__(self, work):
        Capture.count += 1
        self.work, self.result = work, None

    def __call__(self):
        Capture.running = True
        result = self.work()
        Capture.running = False
        self.result = result.clone() if self.result is None else self.result.copy_(result)
        return self.result


class StandIn(devices.Device):
    """A GPU whose memory is the host's."""
    is_gpu = True

    def name(self):
        return "stand-in"


@contextlib.contextmanager
def stand_in_for_cuda():
    with mock.patch.multiple(torch.cuda, Event=Event, Stream=mock.Mock, current_stream=mock.Mock,
                             stream=lambda stream: contextlib.nullcontext(), synchronize=lambda: None,
                             is_current_stream_capturing=lambda: Capture.running), \
            mock.patch.object(step_graph, "capture", Capture), mock.patch.object(Capture, "count", 0):
        yield


def dataset(channels=1, size=28):
    generator = np.random.default_rng(3)
    return data.Dataset(generator.integers(0, 256, (SAMPLES, channels, size, size), np.uint8),
                        generator.integers(0, 10, SAMPLES),
                        generator.integers(0, 256, (20, channels, size, size), np.uint8), generator.integers(0, 10, 20))


def run(device, *flags):
    flags = options.parse(["--global_batch=8", "--epochs=3", "--record_losses", *flags])
    with mock.patch.object(data, "load", lambda *_: dataset()):
        job = trainer.Trainer(flags, 0, device, trainer.Data(flags, 0, device))
        return job.run()


class StandInTest(unittest.TestCase):
    def losses(self, record):
        return [step["loss"] for step in record["losses"]]

    def test_a_gpu_learns_what_the_cpu_does(self):
        cpu = run(devices.Device(torch.device("cpu")), "--model=lenet5")
        with stand_in_for_cuda():
            gpu = run(StandIn(torch.device("cpu")), "--model=lenet5")
            self.assertEqual(Capture.count, 0)
        self.assertEqual(self.losses(gpu), self.losses(cpu))
        self.assertEqual(gpu["parameter_sha256"], cpu["parameter_sha256"])
        self.assertEqual((gpu["host"]["device"], gpu["config"]["cuda_graph"]), ("stand-in", False))
        self.assertAlmostEqual(sum(gpu["breakdown_ms"].values()), gpu["step_ms"]["mean"], places=6)
        for part in ("data_wait", "forward", "backward", "optimizer"):
            self.assertGreater(gpu["breakdown_ms"][part], 0, part)
        seconds = [step["seconds"] for step in gpu["losses"]]
        self.assertEqual(seconds, sorted(seconds))
        self.assertEqual(len(seconds), 39)

    def test_a_graph_changes_nothing_but_the_time(self):
        # The rate falls at step 20, in the middle of the second epoch. Dropout draws a mask in every step.
        flags = ["--model=mnist_cnn", "--dropout=starring", "--schedule=step", "--decay_steps=20"]
        cpu = run(devices.Device(torch.device("cpu")), *flags)
        with stand_in_for_cuda():
            gpu = run(StandIn(torch.device("cpu")), "--cuda_graph", *flags)
            self.assertEqual(Capture.count, 2)  # one for each rate
        self.assertEqual(self.losses(gpu), self.losses(cpu))
        self.assertEqual(gpu["parameter_sha256"], cpu["parameter_sha256"])
        self.assertTrue(gpu["config"]["cuda_graph"])
        self.assertEqual(gpu["step_ms"]["steps_measured"], 39 - step_graph.EAGER_STEPS - 1)

    def test_dropout_drops_others_in_every_step(self):
        x = torch.ones(4, 1000)
        old = philox_dropout.PhiloxDropout(0.5, 3, 1, (1000, 1, 1))
        masks = []
        for step in range(3):
            old.prepare(step, 8)
            fresh = philox_dropout.PhiloxDropout(0.5, 3, 1, (1000, 1, 1))
            fresh.prepare(step, 8)
            masks.append(old(x))
            self.assertTrue(torch.equal(masks[-1], fresh(x)))
        self.assertFalse(torch.equal(masks[0], masks[1]))

    def test_says_why_there_is_no_graph(self):
        record = run(devices.Device(torch.device("cpu")), "--model=logreg", "--cuda_graph")
        self.assertFalse(record["config"]["cuda_graph"])
        self.assertEqual(record["host"]["versions"]["cuda_graph"], "none: the CPU has none")

    def test_time_between_steps_belongs_to_the_step_before(self):
        with stand_in_for_cuda():
            clock = step_clock.GpuClock()
            events = iter(range(100))
            with mock.patch.object(Event, "record", lambda event: setattr(event, "seconds", next(events))):
                for _ in range(2):
                    clock.start_step()
                    for part in ("data_wait", "data_wait", "forward"):
                        clock.done(part)
                first, second = clock.read()
                self.assertEqual(first, (0, 4, {"data_wait": 2, "forward": 1}))
                self.assertEqual(second, (4, 8, {"data_wait": 2, "forward": 1}))
                clock.start_step()
                self.assertEqual(clock.read(), [(0, 1, {})])  # the first step of a new epoch


class GpuDataTest(unittest.TestCase):
    def test_the_same_batches_as_from_ram(self):
        for augment in ("none", "crop_flip"):
            images = dataset(3, 32)
            sampler = batches.Sampler(SAMPLES, 16, 1, 2, 5)
            ram = batches.RamBatches(images, sampler, augment)
            gpu = batches.GpuBatches(images, sampler, augment, torch.device("cpu"))
            count = 0
            for (n, expected), (m, found) in zip(ram.epoch(3), gpu.epoch(3)):
                self.assertEqual(n, m)
                for a, b in zip(ram.load(*expected), gpu.load(*found)):
                    self.assertTrue(torch.equal(a, b))
                count += 1
            self.assertEqual(count, 7)

    def test_a_dataloader_for_a_gpu_pins(self):
        for kind in ("cpu", "cuda"):
            sampler = batches.Sampler(SAMPLES, 16, 0, 1, 5)
            found = batches.DataLoaderBatches(dataset(), sampler, "none", 0, torch.device(kind))
            self.assertEqual(found.loader.pin_memory, kind == "cuda")


class SweepTest(unittest.TestCase):
    def test_goes_on_after_a_try_that_failed(self):
        device = StandIn(torch.device("cpu"))
        seconds = {"cuda_graph": step_graph.CaptureError("no capture"), "fused": 1.0}

        def measure(flags, rank, device, data):
            del rank, device, data
            result = next((seconds[name] for name in seconds if getattr(flags, name)), 2.0)
            if isinstance(result, Exception):
                raise result
            return result

        with mock.patch.object(sweep, "_step_seconds", measure):
            best = sweep.find_best(options.parse(["--schedule=constant"]), 0, device, None)
        self.assertTrue(best["settings"]["fused"])
        self.assertFalse(best["settings"]["foreach"])
        self.assertFalse(best["settings"]["cuda_graph"])
        self.assertEqual(best["tried"][-1], {"settings": {"cuda_graph": True}, "error": "no capture"})


if __name__ == "__main__":
    unittest.main()
