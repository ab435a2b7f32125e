"""What must hold of models under DistributedDataParallel with starring.torch, and what torch_bits_test.py,
torch_faults_test.py and, on a GPU, torch_gpu_test.py ask of it.
"""

from __future__ import annotations

import os
import signal
import time
import unittest
from typing import Any, Dict, List, Optional, Sequence

import ranks

JOB = os.path.join(ranks.HERE, "ddp_job.py")
# A fault is noticed after the exchange deadline of ddp_job.py (2 s), or at once; the rest is for a busy machine.
FAULT_SECONDS_MAX = 12.0


class JobCase(unittest.TestCase):
    library: Sequence[str] = ()  # flags of ddp_job.py

    def job(self, world_size: int, *cases: str, environment: Optional[Dict[str, str]] = None) -> ranks.Ranks:
        started = ranks.Ranks(world_size, [JOB, *self.library, *cases], environment)
        self.addCleanup(started.__exit__)
        return started

    def run_job(self, world_size: int, *cases: str) -> List[Dict[str, Any]]:
        """What every rank says."""
        return [one.said for one in ranks.run(world_size, [JOB, *self.library, *cases])]


class ModeCases(JobCase):
    """Ways to use DDP. Not a test by itself."""

    def assert_modes(self, world_size: int) -> None:
        names = ["reference", "buckets", "accumulated", "bfloat16", "float16", "unused", "several", "joined",
                 "compiled", "closed", "forked"]
        for rank, said in enumerate(self.run_job(world_size, *names)):
            with self.subTest(rank=rank):
                self.assert_mode(said)

    def assert_mode(self, said: Dict[str, Any]) -> None:
        # DDP's first step has one bucket or a few, by the order of the parameters; then they are made anew.
        self.assertGreater(said["buckets"][2], 2)
        self.assertEqual(said["buckets"][2], said["buckets"][3])
        for name in ("accumulated", "bfloat16", "float16"):
            self.assertEqual(said[name][0], said[name][1], name)
        self.assertEqual(said["unused"], [True, True])
        self.assertEqual(said["several"][0], said["several"][1])
        self.assertEqual(said["several"][2], said["several"][3])
        self.assertEqual(said["joined"], 1)
        self.assertIn(said["compiled"][0], ("none", said["reference"]))
        self.assertRegex(said["closed"]["text"], "closed")
        self.assertEqual(said["closed"]["type"], "StarringError")

    def assert_gpu_memory(self, world_size: int, way: str, why: str) -> None:
        for said in self.run_job(world_size, "gpu_memory", "reference"):
            found = said["gpu_memory"]
            for sync in ("star", "ring"):
                wish, auto = found[f"{sync} gpu_memory"], found[f"{sync} auto"]
                self.assertEqual((wish["way"], auto["way"]), (way, "host_memory"), wish["why"])
                self.assertEqual((wish["why"], auto["why"]), (why, ""))
                self.assertEqual(wish["digest"], auto["digest"])
                self.assertEqual(wish["copies"] > 0, way == "gpu_memory")
            self.assertEqual(found["star gpu_memory"]["digest"], said["reference"])


class RefusalCases(JobCase):
    """What attach() refuses. Not a test by itself."""

    def assert_refusals(self, world_size: int) -> None:
        expected = {"sync": "rank 1 has sync=ring, rank 0 has sync=star", "unknown": "rank 1: sync='mesh'",
                    "sparse": "layer 0 has sparse gradients.*sparse=False", "double": "torch.float64, and only float32",
                    "no ddp": "not a Sequential", "twice": "hook already", "servers of a ring": "a ring has no servers",
                    "no such server": "the job's secret",
                    "same host": "rank 1 has same_host=gpu_memory, rank 0 has same_host=auto: give all ranks the same",
                    "unknown host": "same_host='gpu' is not one of auto, gpu_memory"}
        for said in self.run_job(world_size, "refusals"):
            for name, text in expected.items():
                self.assertRegex(said["refusals"][name]["text"], text)
                self.assertEqual((said["refusals"][name]["type"], said["refusals"][name]["kind"]),
                                 ("StarringError", "invalid"), name)
                self.assertLess(said["refusals"][name]["seconds"], 4)  # at once, not at the deadline


class BitsCases(JobCase):
    """The same bits for all settings. Not a test by itself."""

    def assert_star_has_one_digest(self, world_size: int) -> None:
        said = self.run_job(world_size, "star", "ring", "ddp", "reference")
        for one in said:
            self.assertEqual(set(one["star"].values()), {one["reference"]}, one["star"])
            self.assertEqual(one, said[0])  # all ranks end with the same parameters
        if world_size == 2:  # a + b = b + a
            self.assertEqual(set(said[0]["ring"].values()), {said[0]["reference"]})
            return
        self.assertEqual(said[0]["ring"]["cap 0.25"], said[0]["ring"]["again"])
        # With DDP's exchange the bits follow the size of the buckets; our own exchange avoids that.
        self.assertGreater(len(set(said[0]["ddp"].values())), 1, said[0]["ddp"])


class FaultCases(JobCase):
    """A rank that is missing, ends, stops or goes astray. Not a test by itself."""

    def assert_fault(self, case: str, world_size: int, text: str, seconds_max: float = FAULT_SECONDS_MAX,
                     error: str = "StarringError",
                     environment: Optional[Dict[str, str]] = None) -> List[ranks.Ended]:
        """All ranks but 1 end with one error that names it."""
        job = self.job(world_size, case, environment=environment)
        others = [rank for rank in range(world_size) if rank != 1]
        ended = job.wait(others)
        for one in ended:
            self.assertEqual(one.status, 0, one.errors)
            self.assertRegex(one.said[case]["text"], text)
            self.assertEqual(one.said[case]["type"], error, one.said[case])
            self.assertLess(one.said[case]["seconds"], seconds_max)
            self.assertNotRegex(one.errors, "Fatal Python error|Segmentation|terminate called")
        return ended

    def assert_missing(self, world_size: int) -> None:
        self.assert_fault("missing", world_size, "rank 1 is missing.*attach was not called there within 5 s")

    def assert_killed(self, world_size: int) -> None:
        self.assert_fault("killed", world_size, "rank 1")

    def assert_stopped(self, world_size: int) -> None:
        self.assert_fault("stopped", world_size, "rank 1")

    def assert_stopped_at_once(self, world_size: int) -> None:
        # DDP has begun a sum of its own by then, for which Gloo waits until its deadline before the process can end.
        self.assert_fault("stopped_at_once", world_size, "rank 1", error="RuntimeError",
                          environment={"GLOO_SECONDS": "12"})

    def assert_raising(self, world_size: int) -> None:
        self.assert_fault("raising", world_size, "rank 1 gave up in step 2: ValueError: seeded in backward")

    def assert_going_on(self, world_size: int) -> None:
        job = self.job(world_size, "going_on")
        for rank, one in enumerate(job.wait()):
            self.assertEqual(one.status, 0, one.errors)
            if rank != 1:
                self.assertRegex(one.said["going_on"]["text"], "rank 1")

    def assert_leaving(self, world_size: int) -> None:
        job = self.job(world_size, "leaving")
        for rank, one in enumerate(job.wait()):
            self.assertEqual(one.status, 0, one.errors)
            if rank == 1:
                self.assertEqual(one.said["leaving"]["type"], "none", one.said["leaving"])
            else:
                self.assertRegex(one.said["leaving"]["text"], "rank 1")

    def assert_interrupted(self, world_size: int) -> None:
        """Ctrl-C, while all wait for a rank that has stopped."""
        job = self.job(world_size, "waiting")
        for rank in range(world_size):
            job.await_file(f"waiting{rank}")
        time.sleep(0.5)
        others = [rank for rank in range(world_size) if rank != 1]
        begin = time.monotonic()
        for rank in others:
            job.processes[rank].send_signal(signal.SIGINT)
        for one in job.wait(others):
            self.assertRegex(one.errors, "KeyboardInterrupt|gave up")
            self.assertNotRegex(one.errors, "Fatal Python error|Segmentation|terminate called")
            self.assertNotEqual(one.status, 0)
        self.assertLess(time.monotonic() - begin, 15)
