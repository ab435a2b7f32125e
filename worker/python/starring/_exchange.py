"""What happens to DDP's buckets: they are summed by the library while backward goes on.

    thread that runs backward    hook(bucket 0) ── hook(bucket 1) ── hook(last) ──── end of backward ─▶ optimizer
                                     │ st_allreduce  │ st_allreduce    │                 ▲ every future is complete
    exchange thread                  └─▶ st_wait, complete the future ─┴─▶ ... ──────────┘

Words. A *step* is one backward that exchanges, counted from 0; backward under no_sync() does not reach the hook.

The exchange thread alone waits for sums and ends the group, so that neither can meet the other. It takes buckets from
`_inbox`, in the order in which their sums began.

The copy thread exists if a GPU's buckets are summed. It takes buckets from `_copies`, waits until their values are in
host memory, and begins their sums. Without it, the hook begins them. A group that adds in GPU memory needs none: the
library waits for the stream in which backward makes the values.

None in a queue ends its thread. The copy thread passes it on, so the exchange thread ends last, after all buckets.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import multiprocessing.util
import os
import queue
import sys
import threading
import weakref
from typing import Any, Dict, Optional, Set, Tuple

import torch
import torch.distributed as dist

from starring import _library
from starring._library import StarringError
from starring._staging import PinnedStaging, Staged

ELEMENT_TYPES = {torch.float32: _library.FLOAT32, torch.bfloat16: _library.BFLOAT16, torch.float16: _library.FLOAT16}

_WAIT_MS = 1000  # of one call of st_wait; the library's own deadline ends the waiting
_END_S = 10.0  # for the exchange thread to end once its group is broken or idle, on top of the exchange deadline
_REASON_CHARS_MAX = 200


class _State(enum.Enum):
    """Where a bucket is. Each state says which thread moves the bucket to the next one."""
    SUBMITTED = enum.auto()  # the hook, or the copy thread once a GPU's values are in host memory: begins the sum
    SUMMING = enum.auto()  # the exchange thread: waits for the sum
    DROPPED = enum.auto()  # the exchange thread: there is no sum, because the group has failed or is about to end
    FINISHED = enum.auto()  # no thread: the future has the sum or the failure


@dataclasses.dataclass(eq=False)
class _Bucket:
    """A bucket that the hook was given."""
    index: int
    step: int
    layout: int
    memory: torch.Tensor  # what the library sums: the bucket itself, or its copy in host memory
    staged: Optional[Staged]  # GPU buckets that are summed in host memory
    stream: Optional[int]  # GPU buckets that are summed where they are: the CUDA stream that makes them
    future: Any
    state: _State = _State.SUBMITTED
    ticket: int = -1  # of the sum, while SUMMING


def parameter_names(module: torch.nn.Module) -> Dict[int, str]:
    """Names that are equal on all ranks, by the identity of the parameter."""
    return {id(parameter): f"{name} {tuple(parameter.shape)} {parameter.dtype}"
            for name, parameter in module.named_parameters()}


def layout_hash(names: Any) -> int:
    """64 bits that are equal on two ranks if their lists of names are."""
    return int.from_bytes(hashlib.blake2b("\n".join(names).encode(), digest_size=8).digest(), "little")


def raise_after_backward(error: BaseException, bucket: Any) -> Any:
    """Lets the backward that runs the hook end with `error`; returns what the hook returns for `bucket`.

    An exception that leaves the hook passes DDP's C++ code, and PyTorch 1.13 turns it into a RuntimeError. One that a
    callback of the engine raises keeps its type. Outside of backward (join) `error` is raised at once.
    """
    def raise_error() -> None:
        raise error

    if not isinstance(bucket, dist.GradBucket):
        raise error
    try:
        torch.autograd.Variable._execution_engine.queue_callback(raise_error)
    except RuntimeError:
        raise error from None
    # Complete, for the first step with static_graph waits for it in C++ before it comes to the callback.
    values = bucket.buffer()
    future: Any = _future_on(values.device)
    future.set_result(values)
    return future


def _future_on(device: torch.device) -> Any:
    return torch.futures.Future(devices=[device]) if device.type == "cuda" else torch.futures.Future()


class BucketExchange:
    """The state of the communication hook of one model. Owns `group`.

    submit() is called by the thread that runs backward, end_of_backward() by that thread or one of the engine; the
    other methods by any thread.
    """

    def __init__(self, group: _library.Group, rank: int, world_size: int, names: Dict[int, str],
                 exchange_deadline_s: float) -> None:
        self.step = 0  # of the next bucket
        self._group, self._rank, self._world_size, self._names = group, rank, world_size, names
        self._end_s = exchange_deadline_s + _END_S
        self._process = os.getpid()
        self._layouts: Dict[Tuple[int, ...], int] = {}
        self._staging = PinnedStaging()
        self._next_index = 0
        # Guards the group against calls after its end, the states of buckets, and the three members below. Notified at
        # each change.
        self._changed = threading.Condition()
        self._unfinished: Set[_Bucket] = set()
        self._failure: Optional[StarringError] = None
        self._closing = False
        self._inbox: "queue.SimpleQueue[Optional[_Bucket]]" = queue.SimpleQueue()
        self._copies: "queue.SimpleQueue[Optional[_Bucket]]" = queue.SimpleQueue()
        self._copy_thread: Optional[threading.Thread] = None
        # Daemons: the interpreter waits for other threads before it runs what ends these.
        self._thread = threading.Thread(target=self._exchange, name="starring-exchange", daemon=True)
        self._thread.start()
        _open.add(self)
        _end_with_this_process()

    @property
    def failure(self) -> Optional[StarringError]:
        return self._failure

    @property
    def adds_in_gpu_memory(self) -> bool:
        return self._group.adds_in_gpu_memory

    @property
    def why_no_gpu_memory(self) -> str:
        return self._group.why_no_gpu_memory

    @property
    def device_copies(self) -> int:
        with self._changed:
            return 0 if self._closing else self._group.device_copies

    def submit(self, bucket: Any) -> Any:
        """The hook: begins the sum of a bucket, and returns the future of the same tensor. StarringError if the sums of
        this model have failed before, or if `bucket` is none that can be summed."""
        if not isinstance(bucket, dist.GradBucket):
            raise StarringError("compiled autograd hands gradients to the hook one by one, which starring cannot sum: "
                                "leave torch._dynamo.config.compiled_autograd off")
        self._check_order(bucket.index())
        values = bucket.buffer()
        self._check_values(values)
        future = _future_on(values.device)
        staged, stream = None, None
        if self._group.adds_in_gpu_memory:
            stream = torch.cuda.current_stream(values.device).cuda_stream
        elif values.device.type == "cuda":
            staged = self._staging.copy_to_host(bucket.index(), values)
        entry = _Bucket(bucket.index(), self.step, self._layout(bucket), staged.host if staged else values, staged,
                        stream, future)
        is_last = bucket.is_last()
        self._leave_room()
        self._next_index = 0 if is_last else entry.index + 1
        self.step += is_last
        self._hand_over(entry)
        if is_last:
            self._wait_at_the_end_of_backward()
        return future

    def end_of_backward(self) -> None:
        """Waits until every bucket is finished. StarringError if one failed.

        DDP would wait for the futures next, but in C++: an error would come out as a RuntimeError about a cast, and
        Ctrl-C would have to wait for the exchange.
        """
        with self._changed:
            while self._unfinished and self._failure is None:
                self._changed.wait()
        self._raise_failure()

    def fail(self, why: str, kind: str = "peer") -> None:
        """Breaks the group on every rank."""
        with self._changed:
            if self._failure is None:
                self._failure = StarringError(why, kind)
                if not self._closing:
                    self._group.abort(why)
                self._changed.notify_all()

    def begin_to_end(self, why: Optional[str] = None) -> None:
        """Lets the exchange thread end the group; waits for nothing. All ranks get `why`, if it is given; if it is not,
        they go on as far as they can without this rank."""
        if os.getpid() != self._process:
            return  # a child of fork has the memory of its parent, but no exchange thread
        unfinished = self._next_index != 0 or bool(self._unfinished)
        if unfinished and why is None:
            why = "its model was closed or its process ended"
        if why is not None:
            self.fail(f"rank {self._rank} gave up in step {self.step}: {why}")
        with self._changed:
            if self._closing:
                return
            self._closing = True
        self._copies.put(None)
        if self._copy_thread is None:
            self._inbox.put(None)

    def end(self, why: Optional[str] = None) -> None:
        """The same, and waits until the group is closed."""
        self.begin_to_end(why)
        if os.getpid() == self._process and threading.current_thread() is not self._thread:
            self._thread.join(self._end_s)

    def _check_order(self, index: int) -> None:
        self._raise_failure()
        if self._closing:
            raise StarringError("the exchange of this model was closed: attach is for the whole life of a model")
        if index != self._next_index:
            self.fail(f"rank {self._rank} began a backward after its backward of step {self.step} had stopped before "
                      f"bucket {self._next_index}, so ranks are no longer at the same step: after an exception in "
                      "backward end the process, and resume all ranks from a checkpoint", "invalid")
            self._raise_failure()

    def _leave_room(self) -> None:
        """Waits if more sums are under way than the library takes; DDP rarely has so many buckets."""
        with self._changed:
            while len(self._unfinished) >= _library.TICKETS_MAX and self._failure is None:
                self._changed.wait()

    def _check_values(self, values: torch.Tensor) -> None:
        problem = None
        if values.is_sparse:
            problem = "is sparse: make its layer with sparse=False"
        elif values.dtype not in ELEMENT_TYPES:
            problem = f"is {values.dtype}: only float32, bfloat16 and float16 are summed"
        elif values.device.type not in ("cpu", "cuda"):
            problem = f"is on {values.device}: only the CPU and CUDA are served"
        elif self._group.adds_in_gpu_memory and (values.device.type, values.device.index) != (
                "cuda", self._group.gpu_number):
            problem = (f"is on {values.device}, and the group adds on cuda:{self._group.gpu_number}: move no model "
                       "after attach")
        if problem:
            self.fail(f"rank {self._rank}: bucket {self._next_index} {problem}", "invalid")
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            # A new one: the traceback of the first would grow with each.
            raise StarringError(str(self._failure), self._failure.kind)

    def _layout(self, bucket: Any) -> int:
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        if key not in self._layouts:
            self._layouts[key] = layout_hash(
                self._names.get(id(parameter), f"? {tuple(parameter.shape)}") for parameter in parameters)
        return self._layouts[key]

    def _hand_over(self, entry: _Bucket) -> None:
        try:
            with self._changed:
                self._unfinished.add(entry)
            if entry.staged is not None:
                self._to_copy_thread(entry)
            else:
                self._begin(entry)
        except BaseException:
            # Ctrl-C, most likely. The bucket may never be finished: a later backward must fail, not wait for it.
            self.fail(f"rank {self._rank} was interrupted at bucket {entry.index} of step {entry.step}")
            raise

    def _begin(self, entry: _Bucket) -> None:
        """Takes a bucket out of SUBMITTED: begins the sum and hands the bucket to the exchange thread."""
        with self._changed:
            entry.state = _State.DROPPED
            if self._failure is None and not self._closing:
                try:
                    entry.ticket = self._group.allreduce(entry.step, entry.index, entry.layout, entry.memory.data_ptr(),
                                                         entry.memory.numel(), ELEMENT_TYPES[entry.memory.dtype],
                                                         float(self._world_size), entry.stream)
                    entry.state = _State.SUMMING
                except StarringError as error:
                    self._failure = error
                    # A call that was only refused breaks nothing, and the others would wait until the deadline.
                    self._group.abort(f"rank {self._rank} gave up in step {entry.step}: {error}")
                    self._changed.notify_all()
        self._inbox.put(entry)

    def _wait_at_the_end_of_backward(self) -> None:
        try:
            torch.autograd.Variable._execution_engine.queue_callback(self.end_of_backward)
        except RuntimeError:
            pass  # DDP also runs the hook outside of backward, for a rank that has no more inputs (join)

    def _to_copy_thread(self, entry: _Bucket) -> None:
        if self._copy_thread is None:
            self._copy_thread = threading.Thread(target=self._copy, name="starring-copy", daemon=True)
            self._copy_thread.start()
        self._copies.put(entry)

    def _copy(self) -> None:
        """The copy thread: begins the sums of a GPU's buckets."""
        for entry in iter(self._copies.get, None):
            assert entry.staged is not None, "only buckets of a GPU are copied"
            try:
                self._staging.wait(entry.staged)
            except RuntimeError as error:  # CUDA's
                self._fail_copy(entry, "from", error)
            self._begin(entry)
        self._inbox.put(None)

    def _fail_copy(self, entry: _Bucket, way: str, error: RuntimeError) -> None:
        self.fail(f"rank {self._rank}: bucket {entry.index} of step {entry.step} could not be copied {way} the GPU: "
                  f"{error}", "internal")

    def _exchange(self) -> None:
        """The exchange thread: finishes every bucket, then ends the group."""
        for entry in iter(self._inbox.get, None):
            failure: Optional[StarringError] = None
            try:
                while entry.state is _State.SUMMING and not self._group.wait(entry.ticket, _WAIT_MS):
                    pass
            except StarringError as error:
                failure = error
            self._finish(entry, failure)
        self._group.close()

    def _finish(self, entry: _Bucket, failure: Optional[StarringError]) -> None:
        """Takes a bucket out of SUMMING or DROPPED: completes its future."""
        with self._changed:
            # After abort() the library may say no more than that; the reason was kept.
            self._failure = self._failure or failure
        try:
            if self._failure is not None:
                entry.future.set_exception(self._failure)
            elif entry.staged is not None:
                self._staging.copy_back(entry.staged, entry.future)
            else:
                entry.future.set_result(entry.memory)
        except RuntimeError as error:  # CUDA's
            self._fail_copy(entry, "to", error)
            entry.future.set_exception(self._failure)
        with self._changed:
            entry.state = _State.FINISHED
            self._unfinished.remove(entry)
            self._changed.notify_all()


_open: "weakref.WeakSet[BucketExchange]" = weakref.WeakSet()
_ends_with_process = 0  # the process for which end_all() is registered


def _end_with_this_process() -> None:
    global _ends_with_process
    if _ends_with_process != os.getpid():
        _ends_with_process = os.getpid()
        # Before the groups themselves are closed (_library.Group): their threads use them.
        multiprocessing.util.Finalize(None, end_all, exitpriority=100)


def end_all() -> None:
    """Ends the groups of all models, as the process does. An uncaught exception is the reason that the others get."""
    error = getattr(sys, "last_value", None)
    reason = None
    if error is not None:
        text = str(error).split("\n", maxsplit=1)[0][:_REASON_CHARS_MAX]
        reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    exchanges = list(_open)
    for exchange in exchanges:
        exchange.begin_to_end(reason)
    for exchange in exchanges:
        exchange.end()
