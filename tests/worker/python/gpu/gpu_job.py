"""A rank that adds arrays in GPU memory, over the emulated driver that it finds in LD_LIBRARY_PATH.

Its argument is an object of JSON; each line that it prints is one, too.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any, Dict, List, Tuple

import numpy as np

from starring import _library

TYPES = (_library.FLOAT32, _library.BFLOAT16, _library.FLOAT16)
# Parts of one block of a ring, whole blocks of 2 and 4 ranks, and several and a part. All types together do not fit
# into 2 MiB.
COUNTS = (1, 17, 5_000, 131_072, 300_001, 0)
MEMORY_BYTES = 2 << 20
_POLL_MS = 100


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


class Gpu:
    """The emulated driver, for arrays and a stream of the test's own."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._driver.emulated_device_copies.restype = ctypes.c_int64
        self._driver.emulated_host_copies.restype = ctypes.c_int64
        context = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._call("cuCtxSetCurrent", context)
        self.stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(self.stream), 1)

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._driver, name)(*arguments)
        assert result == 0, f"{name} returned {result}"

    def allocate(self, size_bytes: int) -> int:
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(1, size_bytes)))
        return address.value

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def put(self, values: Any, address: int) -> None:
        """Returns before the copy: it is work of the stream."""
        if values.nbytes:
            self._call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), values.ctypes.data_as(ctypes.c_void_p),
                       ctypes.c_size_t(values.nbytes), self.stream)

    def get(self, address: int, like: Any) -> Any:
        values = np.empty_like(like)
        if values.nbytes:
            self._call("cuMemcpyDtoHAsync_v2", values.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(address),
                       ctypes.c_size_t(values.nbytes), self.stream)
        self._call("cuStreamSynchronize", self.stream)
        return values

    def hang(self) -> None:
        self._driver.emulated_hang(self.stream)

    def copies(self) -> Tuple[int, int]:
        """On the device; to or from the host."""
        return self._driver.emulated_device_copies(), self._driver.emulated_host_copies()


def wild(element_type: int, count: int, rank: int, seed: int) -> Any:
    """Many exponents, both signs, subnormal numbers and zeros: every order of additions has bits of its own."""
    random = np.random.default_rng([seed, rank, element_type, count])
    values = (random.random(count) - 0.5) * 2.0 ** random.integers(-18, 10, count)
    if element_type == _library.FLOAT32:
        values[::97] *= 2.0**-130
        return values.astype(np.float32)
    if element_type == _library.FLOAT16:
        return values.astype(np.float16)
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


class Rank:
    def __init__(self, given: Dict[str, Any]) -> None:
        self.rank, self.world_size, self.given = given["rank"], given["world_size"], given

    def open(self, name: str, wants_gpu: bool) -> _library.Group:
        gpu = _library.Gpu(self.given.get("gpu", 0), self.given.get("bytes", MEMORY_BYTES)) if wants_gpu else None
        return _library.Group(_library.Settings(
            rank=self.rank, world_size=self.world_size, topology=self.given["sync"],
            rendezvous=self.given[name], group_name=name, join_deadline_s=20.0,
            exchange_deadline_s=self.given.get("deadline_s", 20.0), gpu=gpu))

    @staticmethod
    def wait(group: _library.Group, ticket: int) -> None:
        while not group.wait(ticket, _POLL_MS):
            pass

    def host_sums(self, group: _library.Group, arrays: List[Tuple[int, Any]]) -> List[Any]:
        sums = [values.copy() for _, values in arrays]
        for bucket, ((element_type, _), values) in enumerate(zip(arrays, sums)):
            self.wait(group, group.allreduce(0, bucket, 0, values.ctypes.data, values.size, element_type,
                                             float(self.world_size)))
        return sums

    def gpu_sums(self, gpu: Gpu, group: _library.Group, arrays: List[Tuple[int, Any]]) -> List[Any]:
        """All are under way together. The group has to wait for the stream's work."""
        places = [gpu.allocate(values.nbytes) for _, values in arrays]
        for (_, values), place in zip(arrays, places):
            gpu.put(values, place)
        before = gpu.copies()
        tickets = [group.allreduce(0, bucket, 0, place, values.size, element_type, float(self.world_size),
                                   gpu.stream.value)
                   for bucket, ((element_type, values), place) in enumerate(zip(arrays, places))]
        for ticket in reversed(tickets):
            self.wait(group, ticket)
        after = gpu.copies()
        say(sums=sum(values.size > 0 for _, values in arrays), device_copies=group.device_copies,
            seen_device_copies=after[0] - before[0], seen_host_copies=after[1] - before[1])
        sums = [gpu.get(place, values) for (_, values), place in zip(arrays, places)]
        for place in places:
            gpu.free(place)
        return sums

    def bits(self) -> None:
        """Says which sums have other bits than those of a group in host memory."""
        counts = self.given.get("counts", COUNTS)
        arrays = [(element_type, wild(element_type, count, self.rank, index))
                  for element_type in TYPES for index, count in enumerate(counts)]
        group = self.open("group", True)
        say(on_gpu=group.adds_in_gpu_memory, why_not=group.why_no_gpu_memory)
        if not group.adds_in_gpu_memory:
            say(sum=float(self.host_sums(group, [(_library.FLOAT32, np.ones(1000, np.float32))])[0].sum()))
            return group.close()
        found = self.gpu_sums(Gpu(), group, arrays)
        group.close()
        other = self.open("other", False)
        wanted = self.host_sums(other, arrays)
        other.close()
        say(different=[f"type {element_type}, {values.size} elements: {int((a != b).sum())} differ"
                       for (element_type, values), a, b in zip(arrays, found, wanted) if a.tobytes() != b.tobytes()])

    def for_ever(self) -> None:
        """Adds until the group breaks."""
        gpu, group = Gpu(), self.open("group", True)
        place = gpu.allocate(40_000)
        try:
            for step in range(1 << 30):
                if step == self.given.get("hangs_at"):
                    gpu.hang()
                self.wait(group, group.allreduce(step, 0, 0, place, 10_000, _library.FLOAT32, 1.0, gpu.stream.value))
                if step == 20:
                    say(begun=True)
        except _library.StarringError as error:
            say(error=str(error), kind=error.kind)
            group.close()

    def disagree(self) -> None:
        gpu, group = Gpu(), self.open("group", True)
        place = gpu.allocate(40_000)
        try:
            self.wait(group, group.allreduce(7, 3, 0, place, 1000 + self.rank, _library.FLOAT32, 1.0,
                                             gpu.stream.value))
        except _library.StarringError as error:
            say(error=str(error), kind=error.kind)
        group.close()

    def wrong_calls(self) -> None:
        gpu, group, host = Gpu(), self.open("group", True), self.open("other", False)
        place = gpu.allocate(40_000)
        for one, count, stream in ((group, 10, None), (host, 10, gpu.stream.value),
                                   (group, 10_000_000, gpu.stream.value)):
            try:
                one.allreduce(0, 0, 0, place, count, _library.FLOAT32, 1.0, stream)
            except _library.StarringError as error:
                say(error=str(error), kind=error.kind)
        gpu.free(place)
        group.close()
        host.close()


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    getattr(Rank(arguments), arguments["work"])()
