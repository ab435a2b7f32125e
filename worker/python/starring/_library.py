"""libstarring.so by ctypes: where it is, its C interface, and its errors. starring.h is the contract of every function.

The library is opened with RTLD_LOCAL, so that none of its symbols can replace one of PyTorch's, or the other way round.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import multiprocessing.util
import os
from typing import Any, Callable, List, Optional

LIBRARY = "libstarring.so"

OK, TIMEOUT, INVALID, PEER, INTERNAL = range(5)
TOPOLOGIES = {"star": 0, "ring": 1}
FLOAT32, BFLOAT16, FLOAT16 = range(3)
TOKEN_BYTES = 32
TICKETS_MAX = 1000  # that have not ended; st_allreduce refuses more

_KINDS = {INVALID: "invalid", PEER: "peer", INTERNAL: "internal"}
_Say = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)


class StarringError(RuntimeError):
    """A sum failed, or ranks cannot work together. The text is a sentence that names who, where, and the way out.

    `kind` is "invalid" (a wrong call, or ranks that disagree), "peer" (a rank or server is missing, stuck, or has given
    up) or "internal" (the system or the library failed).
    """

    def __init__(self, sentence: str, kind: str = "invalid") -> None:
        super().__init__(sentence)
        self.kind = kind


class Options(ctypes.Structure):
    """st_options."""
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("rank", ctypes.c_int32),
        ("world_size", ctypes.c_int32),
        ("server_count", ctypes.c_int32),
        ("topology", ctypes.c_int32),
        ("rendezvous", ctypes.c_char_p),
        ("listener", ctypes.c_int32),
        ("port_range", ctypes.c_char_p),
        ("group_name", ctypes.c_char_p),
        ("token", ctypes.POINTER(ctypes.c_uint8)),
        ("insecure", ctypes.c_int32),
        ("join_deadline_s", ctypes.c_double),
        ("exchange_deadline_s", ctypes.c_double),
        ("stall_report_s", ctypes.c_double),
        ("say", _Say),
        ("say_context", ctypes.c_void_p),
        ("gpu_memory", ctypes.c_int32),
        ("gpu", ctypes.c_int32),
        ("gpu_bytes", ctypes.c_int64),
    ]


class Description(ctypes.Structure):
    """st_description."""
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("adds_in_gpu_memory", ctypes.c_int32),
        ("why_not", ctypes.c_char_p),
        ("device_copies", ctypes.c_int64),
    ]


@dataclasses.dataclass
class Gpu:
    """The wish to add arrays in GPU memory, which all ranks of a group have, or none."""
    number: int  # among the GPUs that this process sees; -1: this rank's arrays are on none, or on several
    memory_bytes: int  # for the sums that are under way (starring.h)


@dataclasses.dataclass
class Settings:
    """What a process of a group knows before it meets the others. Times are in seconds."""
    rank: int  # a server: world_size + its number
    world_size: int
    topology: str  # star, ring
    rendezvous: str  # host:port, where rank 0 listens
    group_name: str
    token: Optional[bytes] = None
    server_count: int = 0
    listener: int = -1  # rank 0: the descriptor of a listening socket, which the library closes
    insecure: bool = False
    join_deadline_s: float = 60.0
    exchange_deadline_s: float = 60.0
    stall_report_s: float = 4.0
    # Takes a line about a stall. Called by a thread of the library, which takes the GIL for it.
    say: Optional[Callable[[str], None]] = None
    port_range: str = ""  # "7000-7100": from which ranks other than 0 take a port to listen at; empty: any free one
    gpu: Optional[Gpu] = None


def candidates() -> List[str]:
    """Where the library may be: as STARRING_LIBRARY says; in a wheel; in Bazel's runfiles; in a source tree."""
    here = os.path.dirname(os.path.abspath(__file__))
    above = os.path.dirname(here)
    root = os.path.dirname(os.path.dirname(above))
    named = os.environ.get("STARRING_LIBRARY")
    return [named] if named else [os.path.join(folder, LIBRARY) for folder in
                                  (here, above, os.path.join(root, "bazel-bin", "worker", "python"))]


def _declare(library: Any) -> Any:
    group, ticket = ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64)
    prototypes = {
        "st_open": [ctypes.POINTER(Options), ctypes.POINTER(group)],
        "st_allreduce": [group, ctypes.c_int64, ctypes.c_int32, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int64,
                         ctypes.c_int32, ctypes.c_float, ticket],
        "st_allreduce_gpu": [group, ctypes.c_int64, ctypes.c_int32, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int64,
                             ctypes.c_int32, ctypes.c_float, ctypes.c_void_p, ticket],
        "st_describe": [group, ctypes.POINTER(Description)],
        "st_wait": [group, ctypes.c_int64, ctypes.c_int64],
        "st_last_error": [group],
        "st_abort": [group, ctypes.c_char_p],
        "st_close": [group],
        "st_serve": [ctypes.POINTER(Options)],
    }
    for name, arguments in prototypes.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = ctypes.c_char_p if name == "st_last_error" else ctypes.c_int
    return library


@functools.lru_cache(maxsize=None)
def load() -> Any:
    """The library, opened once for this process. StarringError if it is missing or does not fit."""
    path = next((path for path in candidates() if os.path.isfile(path)), None)
    if path is None:
        raise StarringError(f"there is no {LIBRARY} at {' or '.join(candidates())}: install the wheel, or run bazel "
                            "build //worker/python:libstarring.so", "internal")
    try:
        return _declare(ctypes.CDLL(path))
    except (OSError, AttributeError) as error:
        raise StarringError(f"{path} cannot be used: {error}: it is of another release, or the system lacks what it "
                            "needs: x86-64 and glibc 2.28 or newer, or, if GCC built it, a system as new as the one "
                            "that it was built on", "internal") from error


def _callback(say: Callable[[str], None]) -> Any:
    """`say` as the library calls it."""
    return _Say(lambda _, line: say(line.decode("utf-8", "replace")))


class _CallOptions:
    """An st_options, and what must live as long as the group that it opens."""

    def __init__(self, settings: Settings) -> None:
        self._token = (ctypes.c_uint8 * TOKEN_BYTES)(*settings.token) if settings.token is not None else None
        self._say = _callback(settings.say) if settings.say is not None else ctypes.cast(0, _Say)
        gpu = (1, settings.gpu.number, settings.gpu.memory_bytes) if settings.gpu is not None else (0, -1, 0)
        self.struct = Options(
            ctypes.sizeof(Options), settings.rank, settings.world_size, settings.server_count,
            TOPOLOGIES[settings.topology], settings.rendezvous.encode(), settings.listener,
            settings.port_range.encode() or None, settings.group_name.encode(), self._token, int(settings.insecure),
            settings.join_deadline_s, settings.exchange_deadline_s, settings.stall_report_s, self._say, None, *gpu)


def _check(library: Any, code: int, group: Any) -> None:
    if code != OK:
        sentence = (library.st_last_error(group) or b"").decode("utf-8", "replace")
        raise StarringError(sentence or f"libstarring.so failed with code {code}", _KINDS.get(code, "internal"))


def _close(library: Any, handle: ctypes.c_void_p, _options: _CallOptions) -> None:
    library.st_close(handle)


class Group:
    """This process's place in a group of ranks. Any thread may call any method, but nothing may run during close().

    Every method raises StarringError with the library's sentence. The calls release the GIL. A group is closed at the
    latest with its object, or with the process: a thread of the library must not call `say` of an interpreter that is
    no more. A child of fork does not close the groups of its parent.
    """

    def __init__(self, settings: Settings) -> None:
        """Meets the other ranks, for at most `join_deadline_s`."""
        self._library = load()
        self._handle = ctypes.c_void_p()
        options = _CallOptions(settings)
        _check(self._library, self._library.st_open(ctypes.byref(options.struct), ctypes.byref(self._handle)), None)
        # Unlike atexit, this also runs at the end of multiprocessing's processes, such as those of
        # torch.multiprocessing.spawn, and not in children of fork.
        self._end = multiprocessing.util.Finalize(self, _close, [self._library, self._handle, options], exitpriority=0)
        # Whether arrays are added in GPU memory, and why not. The reason is that of the first rank that has one.
        self.adds_in_gpu_memory, self.why_no_gpu_memory, self.gpu_number = False, "", -1
        if settings.gpu is not None:
            self.gpu_number = settings.gpu.number
            found = self._describe()
            self.adds_in_gpu_memory = bool(found.adds_in_gpu_memory)
            self.why_no_gpu_memory = (found.why_not or b"").decode("utf-8", "replace")

    @property
    def device_copies(self) -> int:
        """Copies of arrays on the GPU so far: two for each sum in GPU memory."""
        return int(self._describe().device_copies) if self.adds_in_gpu_memory else 0

    def _describe(self) -> Description:
        description = Description(ctypes.sizeof(Description))
        _check(self._library, self._library.st_describe(self._handle, ctypes.byref(description)), self._handle)
        return description

    def allreduce(self, step: int, bucket: int, layout: int, address: int, count: int, element_type: int,
                  divisor: float, stream: Optional[int] = None) -> int:
        """Begins a sum in place over `count` elements at `address`; returns its ticket. The memory belongs to the
        library until wait() has returned True for the ticket, or has raised. In GPU memory, the work in `stream` until
        now makes the elements: torch.cuda.current_stream().cuda_stream."""
        ticket = ctypes.c_int64()
        head = [self._handle, step, bucket, layout, address, count, element_type, divisor]
        if stream is None:
            code = self._library.st_allreduce(*head, ctypes.byref(ticket))
        else:
            code = self._library.st_allreduce_gpu(*head, stream, ctypes.byref(ticket))
        _check(self._library, code, self._handle)
        return ticket.value

    def wait(self, ticket: int, milliseconds: int) -> bool:
        """Whether the sum is there after at most `milliseconds`."""
        code = self._library.st_wait(self._handle, ticket, milliseconds)
        if code == TIMEOUT:
            return False
        _check(self._library, code, self._handle)
        return True

    def abort(self, why: str) -> None:
        """Breaks the group on every rank. No error: what is broken already stays so."""
        self._library.st_abort(self._handle, why.encode())

    def close(self) -> None:
        """Ends the group. A second call does nothing; the other methods then raise StarringError."""
        self._end()
        self._handle = ctypes.c_void_p()


def serve(settings: Settings) -> None:
    """Is a server of a group until its ranks have closed it. Releases the GIL. StarringError if the group breaks."""
    library = load()
    options = _CallOptions(settings)
    _check(library, library.st_serve(ctypes.byref(options.struct)), None)
