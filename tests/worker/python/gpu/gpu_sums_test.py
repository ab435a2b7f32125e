"""Tests the sums of libstarring.so in GPU memory, in processes without a GPU: the driver is an emulated one, with the
kernels of the library compiled for the host. It finds no error of a real GPU's memory order (tests/cuda_emulation)."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from typing import Any, Dict, Iterator, List, Optional

import gpu_job

import starring

DEADLINE_S = 60
DRIVER = os.path.abspath("tests/cuda_emulation/driver/libcuda.so.1")


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


class Ranks:
    """Processes of gpu_job.py."""

    def __init__(self, world_size: int, work: str, environments: Optional[Dict[int, Dict[str, str]]] = None,
                 options: Optional[Dict[int, Dict[str, Any]]] = None, **common: Any) -> None:
        given = {"world_size": world_size, "work": work, "group": free_address(), "other": free_address(), **common}
        here = os.path.dirname(os.path.abspath(gpu_job.__file__))
        package = os.path.dirname(os.path.dirname(os.path.abspath(starring.__file__)))
        self.processes: List["subprocess.Popen[str]"] = []
        for rank in range(world_size):
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, package]),
                           "LD_LIBRARY_PATH": os.path.dirname(DRIVER), "EMULATED_GPU_SAYS_BYTES": "yes",
                           "STARRING_LIBRARY": os.path.abspath("worker/python/libstarring.so"),
                           "OPENBLAS_NUM_THREADS": "1", **(environments or {}).get(rank, {})}
            argument = json.dumps({**given, "rank": rank, **(options or {}).get(rank, {})})
            self.processes.append(subprocess.Popen([sys.executable, gpu_job.__file__, argument], env=environment,
                                                   text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE))

    def line(self, rank: int) -> Dict[str, Any]:
        """The next line that the rank says."""
        stdout = self.processes[rank].stdout
        assert stdout is not None
        return dict(json.loads(stdout.readline()))

    def end(self) -> List[Dict[str, Any]]:
        """What the ranks said, by rank. "bytes" is what they have not freed on their GPU."""
        found = []
        for process in self.processes:
            out, err = process.communicate(timeout=DEADLINE_S)
            said: Dict[str, Any] = {"code": process.returncode, "stderr": err}
            for line in out.splitlines():
                said.update(json.loads(line))
            if "bytes are not freed" in err:
                said["bytes"] = int(err.split("emulated GPU: ")[1].split()[0])
            found.append(said)
        return found

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def started(*arguments: Any, **more: Any) -> Iterator[Ranks]:
    ranks = Ranks(*arguments, **more)
    try:
        yield ranks
    finally:
        ranks.kill()


class GpuSumsTest(unittest.TestCase):
    def assert_bits(self, world_size: int, sync: str, streams: str = "", **more: Any) -> None:
        environments = {rank: {"EMULATED_GPU_STREAMS": streams} for rank in range(world_size)}
        with started(world_size, "bits", environments, sync=sync, **more) as ranks:
            for rank, said in enumerate(ranks.end()):
                with self.subTest(world_size=world_size, sync=sync, streams=streams, rank=rank):
                    self.assertEqual(said.get("why_not"), "", said)
                    self.assertTrue(said["on_gpu"])
                    self.assertEqual(said.get("different"), [], said)
                    self.assertEqual(said["bytes"], 0)
                    # One to its place and one back, and none to a host.
                    self.assertEqual(said["device_copies"], 2 * said["sums"])
                    self.assertEqual(said["seen_device_copies"], 2 * said["sums"])
                    self.assertEqual(said["seen_host_copies"], 0)

    def test_a_star_has_the_bits_of_host_memory(self) -> None:
        for world_size in (2, 3, 4):
            self.assert_bits(world_size, "star")

    def test_a_ring_has_the_bits_of_host_memory(self) -> None:
        for world_size in (2, 3, 4):
            self.assert_bits(world_size, "ring")

    def test_more_ranks(self) -> None:
        self.assert_bits(8, "star", counts=[3, 90_001])
        self.assert_bits(7, "ring", counts=[3, 90_001])

    def test_streams_that_are_late_or_in_any_order(self) -> None:
        """A sum waits for the stream that makes its contribution, and for the work of all ranks."""
        for sync, streams in (("star", "late"), ("ring", "late"), ("star", "async:1"), ("ring", "async:2")):
            self.assert_bits(3, sync, streams, counts=[5_000, 100_001, 100_001])

    def assert_refused(self, reason: str, environments: Any = None, options: Any = None, world_size: int = 2) -> None:
        with started(world_size, "bits", environments, options, sync="star") as ranks:
            found = ranks.end()
        for said in found:
            self.assertIn("why_not", said, said["stderr"])
            self.assertFalse(said["on_gpu"])
            self.assertRegex(said["why_not"], reason)
            self.assertEqual(said["why_not"], found[0]["why_not"])
            self.assertEqual(said["sum"], 1000.0)  # in host memory
            self.assertEqual(said.get("bytes", 0), 0)

    def test_one_rank_that_refuses_is_enough(self) -> None:
        self.assert_refused("rank 1 cannot share memory of its GPU: sharing GPU memory failed: cudaErrorNotSupported",
                            {1: {"EMULATED_GPU_IPC": "nothing"}}, world_size=3)
        self.assert_refused("rank 1 cannot map the GPU memory of rank 0: .* out of memory",
                            {1: {"EMULATED_GPU_IPC": "full"}})
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "libcuda.so.1"), "w", encoding="ascii"):
                pass
            self.assert_refused("rank 1: the CUDA driver cannot be loaded: .*libcuda.so.1: file too short",
                                {1: {"LD_LIBRARY_PATH": folder}})
        self.assert_refused("rank 0 has 2097152 bytes of GPU memory, and rank 1 has 4194304: give all ranks the same",
                            options={1: {"bytes": 4 << 20}})
        self.assert_refused("the arrays of rank 1 are not all on one GPU", options={1: {"gpu": -1}})
        self.assert_refused("rank 1: GPU 5: looking for it failed: .* invalid device ordinal", options={1: {"gpu": 5}})

    def test_the_self_test_finds_memory_that_does_not_serve(self) -> None:
        for fault in ("one_way", "corrupt", "late_visible"):
            self.assert_refused(r"rank \d has written .* into the GPU memory of rank \d, in round \d+ of a test",
                                {1: {"EMULATED_GPU_IPC": fault}})

    def test_a_call_that_fails_in_the_self_test_is_said_before_what_others_find(self) -> None:
        self.assert_refused(r"^rank 1: .*cudaErrorInvalidValue", {1: {"EMULATED_DRIVER_REFUSES_LAUNCHES": "yes"}})

    def test_a_killed_rank_is_named(self) -> None:
        for sync in ("star", "ring"):
            with started(3, "for_ever", sync=sync) as ranks:
                for rank in range(3):
                    self.assertEqual(ranks.line(rank), {"begun": True})
                ranks.processes[1].send_signal(signal.SIGKILL)
                begin = time.monotonic()
                found = ranks.end()
            self.assertLess(time.monotonic() - begin, 5)
            for rank in (0, 2):
                self.assertRegex(found[rank]["error"], "rank 1")
                self.assertEqual(found[rank]["kind"], "peer")

    def test_a_stopped_rank_is_named_at_the_deadline(self) -> None:
        with started(3, "for_ever", sync="star", deadline_s=2.0) as ranks:
            for rank in range(3):
                self.assertEqual(ranks.line(rank), {"begun": True})
            ranks.processes[1].send_signal(signal.SIGSTOP)
            begin = time.monotonic()
            said = [ranks.line(rank) for rank in (0, 2)]
            self.assertLess(time.monotonic() - begin, 15)
        for one in said:
            self.assertIn("did not come within 2s: rank 1 does not answer", one["error"])

    def test_a_gpu_that_hangs_is_named_and_waited_for_a_while(self) -> None:
        environments = {rank: {"EMULATED_GPU_STREAMS": "async:1"} for rank in range(2)}
        with started(2, "for_ever", environments, {1: {"hangs_at": 3}}, sync="star", deadline_s=2.0) as ranks:
            begin = time.monotonic()
            said = [ranks.line(rank) for rank in range(2)]
            self.assertLess(time.monotonic() - begin, 25)
        for one in said:
            self.assertRegex(one["error"], "step 3, bucket 0 did not come within 2s: ")
            self.assertRegex(one["error"], r"rank 1 lives but is 1 call behind \(rank 1 answers, and has.*backward")

    def test_ranks_that_disagree_add_nothing(self) -> None:
        with started(2, "disagree", sync="star") as ranks:
            for said in ranks.end():
                self.assertRegex(said["error"], "adds 100[01] elements in step 7, bucket 3, rank . adds 100[01] ")
                self.assertEqual(said["kind"], "invalid")

    def test_wrong_calls(self) -> None:
        with started(2, "wrong_calls", sync="ring") as ranks:
            errors = [[ranks.line(rank)["error"] for _ in range(3)] for rank in range(2)]
            ends = ranks.end()
        for mine in errors:
            self.assertIn("adds arrays in GPU memory: call st_allreduce_gpu", mine[0])
            self.assertIn("adds arrays in host memory: call st_allreduce", mine[1])
            self.assertIn("10000000 elements of float32 takes 40000000 bytes of GPU memory, and the group has 2097152",
                          mine[2])
        for said in ends:
            self.assertEqual(said["bytes"], 0)


if __name__ == "__main__":
    unittest.main()
