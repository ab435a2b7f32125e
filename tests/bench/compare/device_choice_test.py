"""Tests the choice of a comparison's device, the flags that follow from it, and NVML with a stand-in."""

import dataclasses
import os
import time
import unittest
from unittest import mock

import device_choice
import gpu_cells
import jobs
import machine
import measure
import options
import programs

from bench import gpu_exchange

NVML = os.path.abspath("tests/bench/compare/libfake_nvml.so")
CPU_TORCH = programs.Torch("/usr/bin/python3", "1.13.1", "oneDNN")
GPU_TORCH = programs.Torch("python3", "2.4.0", gpus=2, nccl="2.20.5", cuda="12.4")


def worker_can(error=None):
    return mock.patch.object(device_choice, "_try_worker", side_effect=error)


def choose(asked, gpus, *torches, wants_torch=True, error=None):
    with worker_can(error):
        return device_choice.choose(asked, gpus, list(torches), wants_torch)


class ChooseTest(unittest.TestCase):
    def test_auto_without_a_driver_runs_no_worker(self):
        with mock.patch.object(device_choice, "_try_worker", side_effect=AssertionError):
            device, torch = device_choice.choose("auto", 0, [CPU_TORCH], True)
        self.assertEqual((device, torch), (device_choice.Device(), CPU_TORCH))

    def test_takes_the_python_that_sees_the_gpus(self):
        for asked in ("auto", "cuda"):
            device, torch = choose(asked, 2, CPU_TORCH, GPU_TORCH)
            self.assertEqual((device.kind, device.gpus, torch), ("cuda", 2, GPU_TORCH))
        self.assertEqual(choose("cpu", 2, CPU_TORCH, GPU_TORCH)[1], CPU_TORCH)

    def test_a_peer_without_cuda_takes_all_to_the_cpu_or_is_refused(self):
        device, torch = choose("auto", 2, CPU_TORCH)
        self.assertEqual((device.kind, torch), ("cpu", CPU_TORCH))
        self.assertIn("pip install torch", device.note)
        with self.assertRaisesRegex(programs.ProgramError, "1.13.1.*pip install torch.*--device=cpu"):
            choose("cuda", 2, CPU_TORCH)
        self.assertEqual(choose("cuda", 2, wants_torch=False)[0], device_choice.Device("cuda", 2))

    def test_a_worker_without_cuda_likewise(self):
        error = programs.ProgramError("worker ended with 2:\nit was built without CUDA\n")
        self.assertRegex(choose("auto", 1, GPU_TORCH, error=error)[0].note, "CPU.*it was built without CUDA")
        with self.assertRaisesRegex(programs.ProgramError, "it was built without CUDA.*--device=cpu"):
            choose("cuda", 1, GPU_TORCH, error=error)


@mock.patch.object(machine, "cores", lambda: [0, 1, 2, 3])
@mock.patch.object(programs, "binary", lambda name: "/bin/" + name)
class MatrixTest(unittest.TestCase):
    def group(self, device, workers):
        matrix = jobs.Matrix(options.parse(["--syncs=ring,ddp"]), GPU_TORCH, lambda *_: jobs.tuned(device), device)
        return matrix.of_group("mlp", workers, "weak")

    def test_worker_and_peer_get_the_same_device(self):
        for workers, shared in ((2, False), (3, True)):
            for job in self.group(device_choice.Device("cuda", 2), workers):
                command = job.configuration["command"]
                self.assertEqual(command.count("--device=cuda"), 1, command)
                self.assertEqual("--share_gpus" in command, shared, command)
                self.assertEqual(job.configuration["oversubscribed"], shared)
        for job in self.group(device_choice.Device(), 2):
            self.assertEqual([word for word in job.configuration["command"] if "device" in word], ["--device=cpu"])

    def test_tuned_is_captured_on_a_gpu_alone(self):
        self.assertEqual(jobs.tuned(device_choice.Device("cuda", 1))["cuda_graph"], "true")
        self.assertNotIn("cuda_graph", jobs.tuned(device_choice.Device()))

    def test_the_backend_is_named(self):
        gpus = device_choice.Device("cuda", 2)
        self.assertEqual(device_choice.Device().backend(CPU_TORCH, [1, 2]), "gloo, cpu (oneDNN)")
        self.assertEqual(gpus.backend(GPU_TORCH, [1, 2]), "nccl 2.20.5, CUDA 12.4")
        self.assertEqual(gpus.backend(GPU_TORCH, [2, 4]), "nccl 2.20.5, gloo for 4 workers, CUDA 12.4")
        self.assertEqual(gpus.backend(GPU_TORCH, [4]), "gloo for 4 workers, CUDA 12.4")
        newer = dataclasses.replace(GPU_TORCH, nccl="2.30.7")
        self.assertEqual(gpus.backend(newer, [2, 4, 5]),
                         "nccl 2.30.7, where 4 workers share GPUs, gloo for 5 workers, CUDA 12.4")

    def test_nccl_needs_gpus(self):
        device_choice.Device().check(["ring", "mpi"], [8])
        device_choice.Device("cuda", 2).check(["ring", "nccl"], [1, 4])
        device_choice.Device("cuda", 2).check(["ring"], [5])
        with self.assertRaisesRegex(programs.ProgramError, "leave it out of --syncs"):
            device_choice.Device().check(["ring", "nccl"], [2])
        with self.assertRaisesRegex(programs.ProgramError, "at most 2 ranks on a GPU, and 5 workers share 2: leave "):
            device_choice.Device("cuda", 2).check(["ring", "nccl"], [1, 5])

    def test_our_worker_may_share_gpus_over_nccl(self):
        for workers, environment in ((2, {}), (3, {"NCCL_MULTI_RANK_GPU_ENABLE": "1"})):
            job = jobs.Matrix(options.parse(["--syncs=ring,nccl"]), GPU_TORCH, lambda *_: {},
                              device_choice.Device("cuda", 2)).job("mlp", "nccl", workers, "weak")
            command, = job.commands("record", 1)
            self.assertEqual(command.environment, environment)
            self.assertIn("--sync=nccl", command.argv)

    def test_the_cells_on_one_gpu_are_those_that_were_asked_for(self):
        with mock.patch.object(programs, "binary", side_effect=lambda name: "/" + name):
            for syncs, torch, more in ((["ring"], None, []), (["nccl", "ddp"], GPU_TORCH, ["nccl:tcp", "ddp"])):
                command = gpu_cells.command(["mlp", "a.textproto"], 5, 512, syncs, torch, "r.json")
                self.assertEqual([one for one in command[2:] if not one.startswith("--")], [*gpu_cells.CELLS, *more])
                self.assertIn("--models=mlp:600,a.textproto:200", command)
                flags = gpu_exchange.parse_flags(command[2:])
                # Its record is written before the time is over that the comparison gives it.
                self.assertLess(flags.seconds + flags.job_seconds + 2 * gpu_exchange.GRACE_S, gpu_cells.SECONDS_MAX)

    def test_a_record_without_an_end_is_no_measurement(self):
        def run(command, seconds_max):
            with open(next(one for one in command if one.startswith("--record=")).partition("=")[2], "w") as file:
                file.write('{"device": "cu')
            raise programs.ProgramError("it has not ended")
        with mock.patch.object(programs, "binary", side_effect=lambda name: "/" + name), \
                mock.patch.object(programs, "run", side_effect=run):
            with self.assertRaisesRegex(programs.ProgramError, "record of bench/gpu_exchange.py has no end"):
                gpu_cells.measure(["mlp"], 5, 512, ["ring"], None)

    def test_tolerance(self):
        self.assertEqual(device_choice.Device().tolerance(), 1e-4)
        self.assertEqual(device_choice.Device("cuda", 1).tolerance(), 1e-3)
        self.assertEqual(options.parse(["--train_flags=--momentum=0 --math=tf32"]).math, "tf32")

    def test_what_the_peer_knew_when_it_ran_is_noted(self):
        job = self.group(device_choice.Device("cuda", 1), 2)[-1]
        laboratory = measure.Laboratory(None, None, None)
        laboratory._note_peer(job, {"backend": "gloo", "cuda_graph": "none: Gloo's allreduce runs on the host"})
        self.assertEqual(job.configuration["settings"]["backend"], "gloo")
        self.assertIn("ddp-tuned", laboratory.failures[0])
        self.assertIn("runs on the host", laboratory.failures[0])
        self.assertNotIn("backend", job.settings)  # these are flags


class NvmlTest(unittest.TestCase):
    def test_every_gpu(self):
        gpus = machine.Gpus(NVML)
        self.assertEqual((gpus.count(), gpus.name()), (3, "3 x Fake 0"))
        self.assertEqual(gpus.sample(3), (20.0, 6 << 30))

    def test_only_the_gpus_that_a_job_uses(self):
        self.assertEqual(machine.Gpus(NVML).sample(1), (10.0, 1 << 30))
        self.assertEqual(machine.Gpus(NVML).sample(8), (20.0, 6 << 30))

    def test_only_what_cuda_sees(self):
        for visible, name, sample in (("2", "Fake 2", (30.0, 3 << 30)), ("2,0", "2 x Fake 2", (20.0, 4 << 30)),
                                      ("GPU-1", "Fake 1", (20.0, 2 << 30)), ("1,-1,0", "Fake 1", (20.0, 2 << 30)),
                                      ("", None, None), ("7", None, None)):
            gpus = machine.Gpus(NVML, visible)
            self.assertEqual((gpus.name(), gpus.sample(8)), (name, sample), visible)

    def test_a_running_job_is_sampled(self):
        sampler = measure._Sampler([], machine.Gpus(NVML), 2)
        before = time.monotonic()
        sampler._search()
        (when, *sample), = sampler.gpu_samples
        self.assertEqual(sample, [15.0, 3 << 30])
        self.assertTrue(before <= when <= time.monotonic())

    def test_a_gpu_is_used_while_it_trains(self):
        # A program that starts slowly, and trains from 13 to 16.5 s.
        samples = [(10.0, 0, 1), (11.5, 3, 5), (12.5, 0, 9), (13.5, 90, 9), (14.5, 80, 9), (15.5, 0, 8), (16.5, 70, 7),
                   (17.5, 0, 2)]
        self.assertEqual(measure.gpu_use(samples, 3.5), {"percent": 60.0, "memory_bytes": 9})
        self.assertEqual(measure.gpu_use([(1.0, 0, 1), (2.0, 0, 1)], 3.5), {"percent": 0.0, "memory_bytes": 1})
        self.assertIsNone(measure.gpu_use([], 3.5))

    def test_of_a_short_training_a_gpus_use_is_unknown(self):
        self.assertEqual(measure.gpu_use([(1.0, 2, 5), (1.5, 0, 6)], 1.4), {"percent": None, "memory_bytes": 6})


if __name__ == "__main__":
    unittest.main()
