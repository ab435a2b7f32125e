"""Digests of the results of a libstarring.so: sums of three ranks by star and ring, and the batches of a loader.

Equal digests of two libraries mean equal bits. Each library is opened in processes of its own.

    python3 -m deploy.wheel.same_bits LIBRARY      # with this repository and the package starring in PYTHONPATH
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

import numpy

from starring import _library, data

WORLD_SIZE = 3
DEADLINE_S = 60.0
# One element, fewer than there are ranks, an odd number, and more than one piece on its way.
COUNTS = (1, 2, 100_003, 1_000_000)
TYPES = {_library.FLOAT32: numpy.uint32, _library.BFLOAT16: numpy.uint16, _library.FLOAT16: numpy.uint16}
# The bits of an exponent. With one of them cleared a value is finite.
LOWEST_EXPONENT_BIT = {_library.FLOAT32: 1 << 23, _library.BFLOAT16: 1 << 7, _library.FLOAT16: 1 << 10}

processes = multiprocessing.get_context("spawn")


def sums_of_rank(rank: int, topology: str, server_count: int, listener: socket.socket | None, address: str) -> str:
    """The digest of the sums of all ranks, as this rank has them. A server has none."""
    settings = _library.Settings(
        rank=rank, world_size=WORLD_SIZE, topology=topology, rendezvous=address, group_name="same bits",
        server_count=server_count, listener=-1 if listener is None else listener.detach(),
        join_deadline_s=DEADLINE_S, exchange_deadline_s=DEADLINE_S)
    if rank >= WORLD_SIZE:
        _library.serve(settings)
        return ""
    group = _library.Group(settings)
    digest = hashlib.sha256()
    # Random bits are numbers of every size, denormal ones among them, so that each rounding shows.
    random = numpy.random.RandomState(rank)
    for step, (element_type, count) in enumerate((kind, count) for kind in TYPES for count in COUNTS):
        bits = random.randint(0, 1 << 16, size=2 * count, dtype=numpy.uint16).view(TYPES[element_type])[:count].copy()
        bits &= ~TYPES[element_type](LOWEST_EXPONENT_BIT[element_type])
        ticket = group.allreduce(step, 0, 0, bits.ctypes.data, count, element_type, 3.0)
        if not group.wait(ticket, int(DEADLINE_S * 1000)):
            raise TimeoutError(f"no sum of {count} elements by a {topology} after {DEADLINE_S} s")
        digest.update(bits.tobytes())
    group.close()
    return digest.hexdigest()


def batches() -> str:
    """The digest of two epochs of shuffled, cropped and normalised images with their labels."""
    digest = hashlib.sha256()
    loader = data.Loader(data.Dataset("synthetic", seed=7, train_count=500, test_count=10, height=20, width=24,
                                      channels=3, classes=10),
                         batch=32, seed=5, augment="crop_flip", epochs=2, arrays="numpy")
    for _ in range(2):
        for images, labels in loader:
            digest.update(images.tobytes() + labels.tobytes())
    return digest.hexdigest()


def _answer(results: Any, key: str, function: Callable[..., str], arguments: tuple[Any, ...]) -> None:
    try:
        results.put((key, function(*arguments), ""))
    except BaseException as error:  # pylint: disable=broad-except  # the parent raises it
        results.put((key, "", f"{type(error).__name__}: {error}"))


def _run(tasks: dict[str, tuple[Callable[..., str], tuple[Any, ...]]]) -> dict[str, str]:
    """The answers of functions, each called in a process of its own, all at the same time."""
    results = processes.Queue()
    started = [processes.Process(target=_answer, args=(results, key, *task), daemon=True)
               for key, task in tasks.items()]
    for process in started:
        process.start()
    try:
        answers = {}
        for _ in started:
            key, answer, error = results.get(timeout=4 * DEADLINE_S)
            if error:
                raise RuntimeError(f"{key}: {error}")
            answers[key] = answer
        return answers
    finally:
        for process in started:
            process.join(DEADLINE_S)
            process.kill()


def digests(library: str) -> dict[str, str]:
    """The digests of the library at the path `library`, by what was computed.

    Sets STARRING_LIBRARY, by which the processes find it.
    """
    os.environ["STARRING_LIBRARY"] = library
    found = _run({"batches": (batches, ())})
    for topology, server_count in (("star", 0), ("star", 1), ("ring", 0)):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            answers = _run({str(rank): (sums_of_rank, (rank, topology, server_count, listener if rank == 0 else None,
                                                       address)) for rank in range(WORLD_SIZE + server_count)})
        different = set(answers.values()) - {""}
        if len(different) != 1:
            raise RuntimeError(f"{library}: the ranks of a {topology} have different sums: {answers}")
        found[f"{topology} with {server_count} servers"] = different.pop()
    return found


if __name__ == "__main__":
    for case, value in digests(os.path.abspath(sys.argv[1])).items():
        print(f"{value}  {case}")
