"""Gradients of a DistributedDataParallel model by a star or a ring of ours.

Two lines turn a script around:

    import starring.torch
    ...
    model = torch.nn.parallel.DistributedDataParallel(model)
    starring.torch.attach(model, sync="star")

Everything else stays: the process group serves DDP's constructor, buffers and your own collectives, and the optimizer
is PyTorch's. Only the gradients travel in another way, each the mean over all ranks, as DDP makes it.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import os
import secrets
import sys
import threading
import weakref
from typing import Any, Iterator, List, Optional, Sequence, Union

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from starring import _address, _control, _exchange, _library, _meeting
from starring._library import StarringError

__all__ = ["Attachment", "StarringError", "attach", "connect", "fresh_store"]

SYNCS = ("star", "ring")
SAME_HOSTS = ("auto", "gpu_memory")
_LOG = logging.getLogger("starring")
# Each bucket has a place in GPU memory, which begins and ends at a multiple of this. More buckets wait for a place.
_GPU_ALIGNMENT, _GPU_BUCKETS_MAX = 512, 2048
_GROUP_S = 20.0  # from the import to a process group, after which a restarted rank says what may be wrong
_fresh_stores = 0  # how often fresh_store() was called


class Attachment:
    """What attach() returns. It need not be kept: the exchange ends with the model, or with the process."""

    def __init__(self, sync: str, rank: int, world_size: int, servers: Sequence[str]) -> None:
        self.sync, self.rank, self.world_size, self.servers = sync, rank, world_size, list(servers)
        self._exchange: Optional[_exchange.BucketExchange] = None

    @property
    def step(self) -> int:
        """How many times gradients were exchanged."""
        return self._exchange.step if self._exchange is not None else 0

    @property
    def way(self) -> str:
        """Where gradients are added: in "gpu_memory" or in "host_memory"."""
        return "gpu_memory" if self._exchange is not None and self._exchange.adds_in_gpu_memory else "host_memory"

    @property
    def why_not_gpu_memory(self) -> str:
        """With same_host="gpu_memory": why gradients are added in host memory, as the first rank that refuses says;
        the same on all ranks. Else, and if they are not, empty."""
        return self._exchange.why_no_gpu_memory if self._exchange is not None else ""

    @property
    def device_copies(self) -> int:
        """Copies of buckets on this rank's GPU so far: two for each bucket in GPU memory."""
        return self._exchange.device_copies if self._exchange is not None else 0

    @property
    def failure(self) -> Optional[StarringError]:
        """Why no gradients can be exchanged any more, or None."""
        return self._exchange.failure if self._exchange is not None else None

    def close(self) -> None:
        """Ends the exchange before the model ends. Afterwards the model can run backward under no_sync() only.

        All ranks call it after the same step; otherwise those that go on get a StarringError.
        """
        if self._exchange is not None:
            self._exchange.end()

    def _hook(self, bucket: Any) -> Any:
        try:
            if self._exchange is None:
                raise StarringError("starring.torch.attach failed on this model, so its gradients cannot be exchanged")
            return self._exchange.submit(bucket)
        except (StarringError, KeyboardInterrupt) as error:
            return _exchange.raise_after_backward(error, bucket)


# Without annotations: DDP compares them with types, and those of this file are strings.
def _starring_hook(state, bucket):
    return state._hook(bucket)


def _unwrapped(model: Any) -> Any:
    return getattr(model, "_orig_mod", model)  # torch.compile(DistributedDataParallel(...))


def _warn_without_group() -> None:
    if _fresh_stores == 0 and not dist.is_initialized():
        _LOG.warning("rank %s, attempt %s of torchrun: no process group %g s after `import starring.torch`. If the "
                     "script is in init_process_group, that may have read the address of a rank that has ended, since "
                     "torchrun's store outlives a restart: give it store=starring.torch.fresh_store()",
                     os.environ.get("RANK"), os.environ.get("TORCHELASTIC_RESTART_COUNT"), _GROUP_S)


def _watch_restart() -> Optional[threading.Timer]:
    """In a restarted rank: a timer for a hint. Gloo waits without a word for five times its timeout of 30 minutes."""
    environment = os.environ
    if (environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
            or environment.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"):
        return None
    timer = threading.Timer(_GROUP_S, _warn_without_group)
    timer.daemon = True
    timer.start()
    return timer


def fresh_store(deadline_s: float = 60.0) -> Any:
    """A store for torch.distributed.init_process_group in which no key is older than this call.

        dist.init_process_group("gloo", store=starring.torch.fresh_store(), rank=int(os.environ["RANK"]),
                                world_size=int(os.environ["WORLD_SIZE"]))

    torchrun's store outlives a restart of the ranks. The process group then may read the addresses of ranks that have
    ended: it is refused a connection, or two ranks wait for each other in silence. All ranks call this. They meet at
    MASTER_ADDR and MASTER_PORT, as by init_process_group's default, within `deadline_s` or with a StarringError.
    """
    global _fresh_stores
    _fresh_stores += 1
    environment = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    if not all(value.isdigit() for value in environment):
        raise StarringError("fresh_store takes the rank and the number of ranks from RANK and WORLD_SIZE, which are "
                            f"{environment[0]!r} and {environment[1]!r}: start the script by torchrun, or set them")
    rank, world_size = map(int, environment)
    try:
        # PyTorch 1.13 counts whole seconds.
        timeout = datetime.timedelta(seconds=max(1.0, deadline_s))
        store, _, _ = next(iter(dist.rendezvous("env://", rank, world_size, timeout=timeout)))
        meeting = _meeting.StoreMeeting(store, rank, world_size, "starring/store", deadline_s,
                                        "starring.torch.fresh_store", "deadline_s")
        decision = meeting.decide({}, lambda _: {"name": secrets.token_hex(8)})
        store.set_timeout(distributed_c10d.default_pg_timeout)  # as init_process_group does; new_group waits for keys
    except StarringError:
        raise
    except (RuntimeError, ValueError, OSError) as error:  # torch's
        place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise StarringError(f"rank {rank} of {world_size} has lost or never reached the store at {place}: {error}: "
                            "does its process run, and do all ranks have this address?", "peer") from error
    return dist.PrefixStore(f"starring/fresh/{decision['name']}", store)


def _wrong_arguments(sync: str, servers: Sequence[str], port_range: str, same_host: str = "auto") -> Iterator[str]:
    try:
        _address.ports_of(port_range)
    except ValueError as error:
        yield str(error)
    if sync not in SYNCS:
        yield f"sync={sync!r} is not one of {', '.join(SYNCS)}"
    if same_host not in SAME_HOSTS:
        yield f"same_host={same_host!r} is not one of {', '.join(SAME_HOSTS)}"
    if sync == "ring" and servers:
        yield "a ring has no servers: give sync=\"star\", or no servers"


def _refusals(model: Any, sync: str, servers: Sequence[str], port_range: str, same_host: str) -> Iterator[str]:
    """Why this model cannot be served."""
    yield from _wrong_arguments(sync, servers, port_range, same_host)
    for name, parameter in model.module.named_parameters():
        if parameter.requires_grad and parameter.dtype not in _exchange.ELEMENT_TYPES:
            yield (f"parameter {name} is {parameter.dtype}, and only float32, bfloat16 and float16 are summed: convert "
                   "the model")
        if parameter.device.type not in ("cpu", "cuda"):
            yield f"parameter {name} is on {parameter.device}, and only the CPU and CUDA are served"
    for name, module in model.module.named_modules():
        if getattr(module, "sparse", False) is True:
            yield f"layer {name} has sparse gradients, which are not summed: make it with sparse=False"
    # Not torch._dynamo: to ask for it would import it, which takes seconds.
    if getattr(sys.modules.get("torch._dynamo.config"), "compiled_autograd", False):
        yield "compiled autograd is not served: leave torch._dynamo.config.compiled_autograd off"


def _gpu_wish(model: Any, sync: str) -> _library.Gpu:
    """This rank's wish to add the gradients of `model` in GPU memory."""
    parameters = [parameter for parameter in model.module.parameters() if parameter.requires_grad]
    devices = {parameter.device for parameter in parameters}
    device = devices.pop() if len(devices) == 1 else None
    number = device.index if device is not None and device.type == "cuda" else -1
    # Before DDP has made its buckets anew, one may have all gradients. A ring keeps partial sums in float32.
    needed = sum(parameter.numel() * (parameter.element_size() if sync == "star" or parameter.element_size() == 4
                                      else 3 * parameter.element_size()) for parameter in parameters)
    return _library.Gpu(number, needed + _GPU_BUCKETS_MAX * _GPU_ALIGNMENT)


def _server_list(servers: Union[None, str, Sequence[str]], sync: str) -> List[str]:
    if servers is None:  # starring.servers says where they are; a ring has none
        servers = os.environ.get(_control.SERVERS_VARIABLE, "") if sync == "star" else ""
    return [server for server in servers.split(",") if server] if isinstance(servers, str) else list(servers)


def _decide(ranks: List[_meeting.Registration], job_secret: bytes, servers: Sequence[str], address: Optional[str],
            port_range: str, deadlines: Any) -> Any:
    """On rank 0: where and by which token the ranks meet. Servers are told here. Returns the decision, and the
    listening socket that goes with it."""
    if servers and not job_secret:
        _control.load_secret(None)  # says how to give one
    host = address or _meeting.listening_host(ranks, servers)
    listener, rendezvous = _meeting.listen(host, len(ranks) + len(servers), port_range)
    name = "torch-" + secrets.token_hex(8)
    try:
        for number, server in enumerate(servers):
            _control.ask(server, job_secret, {"number": number, "server_count": len(servers), "world_size": len(ranks),
                                              "rendezvous": rendezvous, "group_name": name, **deadlines})
    except StarringError:
        listener.close()
        raise
    # Ranks with the job's secret derive the token, as servers do, and it does not travel.
    token = "" if job_secret else secrets.token_hex(_library.TOKEN_BYTES)
    return {"rendezvous": rendezvous, "name": name, "token": token}, listener


def connect(process_group: Any = None, sync: str = "star", servers: Union[None, str, Sequence[str]] = None, *,
            refusal: Optional[str] = None, parameters: str = "", address: Optional[str] = None, port_range: str = "",
            gpu: Optional[_library.Gpu] = None, join_deadline_s: float = 60.0, exchange_deadline_s: float = 60.0,
            stall_report_s: float = 4.0) -> _library.Group:
    """The ranks of a process group as a group of the library, for sums of other things than a model's gradients. All
    ranks call it, in the same order. The arguments are those of attach(); `refusal` says why this rank cannot take
    part, and `parameters` has to be equal on all. `gpu`, on all ranks or on none, is the wish to add in GPU memory."""
    group = process_group if process_group is not None else dist.group.WORLD
    addresses = _server_list(servers, sync)
    deadlines = {"join_deadline_s": join_deadline_s, "exchange_deadline_s": exchange_deadline_s}
    meeting = _meeting.Meeting(group, join_deadline_s)
    refusal = refusal or next(_wrong_arguments(sync, addresses, port_range), None)
    if refusal is None:
        try:
            _library.load()
        except StarringError as error:
            refusal = str(error)
    job_secret = b""
    try:
        if os.environ.get(_control.SECRET_VARIABLE):
            job_secret = _control.load_secret(os.environ[_control.SECRET_VARIABLE])
    except StarringError as error:
        refusal = refusal or str(error)
    listeners: List[Any] = []

    def make(ranks: List[_meeting.Registration]) -> _meeting.Decision:
        decision, listener = _decide(ranks, job_secret, addresses, address, port_range, deadlines)
        listeners.append(listener)
        return decision

    mine = _meeting.registration(refusal, sync=sync, servers=addresses, parameters=parameters,
                                 same_host="auto" if gpu is None else "gpu_memory", has_secret=bool(job_secret),
                                 **deadlines)
    try:
        decision = meeting.decide(mine, make)
        listener = listeners.pop().detach() if listeners else -1
    finally:
        for unused in listeners:
            unused.close()
    name = decision["name"]
    token = _control.group_token(job_secret, name) if job_secret else bytes.fromhex(decision["token"])
    return _library.Group(_library.Settings(
        rank=meeting.rank, world_size=meeting.world_size, topology=sync, rendezvous=decision["rendezvous"],
        group_name=name, token=token, server_count=len(addresses),
        listener=listener, join_deadline_s=join_deadline_s, exchange_deadline_s=exchange_deadline_s,
        stall_report_s=stall_report_s, say=_LOG.warning, port_range=port_range, gpu=gpu))


def attach(model: Any, sync: str = "star", process_group: Any = None,
           servers: Union[None, str, Sequence[str]] = None, *, address: Optional[str] = None, port_range: str = "",
           same_host: str = "auto", join_deadline_s: float = 60.0, exchange_deadline_s: float = 60.0,
           stall_report_s: float = 4.0) -> Attachment:
    """Lets a star or a ring of ours exchange the gradients of `model` instead of its process group.

    `model` is a DistributedDataParallel, or a torch.compile of one, that has run no backward yet and has no
    communication hook. Every rank calls attach() for the same model, with the same arguments.

    sync              "star": every element is summed by one owner, and in an order that depends on nothing but the
                      ranks: the bits are the same for every bucket_cap_mb, with and without DDP's rebuild of buckets,
                      and for any number of servers. "ring": partial sums travel from rank to rank; with three ranks or
                      more the last bits of a gradient depend on its place in its bucket, and so on bucket_cap_mb.
    process_group     through which the ranks meet; default: the model's. It has the same ranks in the same order.
    servers           addresses of servers ("host:port", a list, or separated by commas), which then are the owners;
                      default: those of `python -m starring.servers`, if it started this job; else the ranks are.
    address           rank 0's, by which the other ranks reach it; default: found.
    port_range        "first-last", such as "7000-7100": each rank listens at the first free port of these, for hosts
                      whose firewall lets through only some; may differ between ranks; default: any free one.
    same_host         "gpu_memory": ranks whose parameters are all on one GPU each, 2 to 8 of one host, map each
                      other's GPU memory, and add gradients there. Either all ranks do, or none: see Attachment.way. It
                      takes as much GPU memory as the gradients; of 16 bits in a ring three times as much. "auto":
                      gradients of GPUs pass through pinned host memory.
    join_deadline_s   for all ranks to be there.
    exchange_deadline_s  without any progress, after which a sum has failed on every rank.
    stall_report_s    without progress, after which the logger "starring" is told who waits for whom.

    Raises StarringError, on every rank, if ranks disagree, one is missing, or the model cannot be served. Later errors
    come out of backward(): as StarringError, or, where PyTorch catches it (in the first step with static_graph), as a
    RuntimeError with the same sentence.
    """
    replica = _unwrapped(model)
    if not isinstance(replica, DistributedDataParallel):
        raise StarringError(f"attach takes a DistributedDataParallel model, not a {type(model).__name__}: wrap it "
                            "first")
    group = process_group if process_group is not None else replica.process_group
    addresses = _server_list(servers, sync)
    attachment = Attachment(sync, dist.get_rank(group), dist.get_world_size(group), addresses)
    refusal = next(_refusals(replica, sync, addresses, port_range, same_host), None)
    if attachment.world_size == 1 and not addresses and refusal is None:
        return attachment  # the mean over one rank is what it has
    if refusal is None:
        try:
            replica.register_comm_hook(attachment, _starring_hook)
        except RuntimeError as error:
            refusal = f"the model has a communication hook already: {error}"
    names = _exchange.parameter_names(replica.module)
    parameters = hashlib.sha256("\n".join(names.values()).encode()).hexdigest()[:16]
    gpu = _gpu_wish(replica, sync) if same_host == "gpu_memory" else None
    library_group = connect(group, sync, addresses, refusal=refusal, parameters=parameters, address=address,
                            port_range=port_range, gpu=gpu, join_deadline_s=join_deadline_s,
                            exchange_deadline_s=exchange_deadline_s, stall_report_s=stall_report_s)
    exchange = _exchange.BucketExchange(library_group, attachment.rank, attachment.world_size, names,
                                        exchange_deadline_s)
    attachment._exchange = exchange
    if exchange.why_no_gpu_memory and attachment.rank == 0:
        _LOG.warning("gradients are added in host memory, not in GPU memory: %s", exchange.why_no_gpu_memory)
    # The exchange must not keep the model alive. A process that ends calls _exchange.end_all() instead.
    weakref.finalize(replica, exchange.begin_to_end).atexit = False
    return attachment


_watch_restart()
