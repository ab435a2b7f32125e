"""One rank of a job under DistributedDataParallel: runs the cases that its command line names, in order.

    ddp_job.py [--cuda] CASE...

A case returns a value, which the rank prints as {"CASE": value}. What a case may learn of the world is in the
environment, as ranks.py sets it. With --cuda models are on the GPU, which all ranks share.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import signal
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence
from unittest import mock

import fake_library
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as Ddp

import starring.torch
from starring import _exchange, _library

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
WIDTH, BATCH, STEPS = 256, 4, 4
DEVICE = "cuda" if "--cuda" in sys.argv else "cpu"
DEADLINES = {"join_deadline_s": 5.0, "exchange_deadline_s": 2.0, "stall_report_s": 0.5}
# DDP's first bucket has up to 1 MiB, and a layer 257 KiB: with 0.25 there are five buckets after the first step.
CAPS_MB = (0.25, 0.6, 25)
GLOO_DEADLINE = datetime.timedelta(seconds=float(os.environ.get("GLOO_SECONDS", 60)))


class NarrowLinear(torch.nn.Linear):
    """Computes in float32, as PyTorch 1.13 has no products of narrow numbers on the CPU. Its gradients are narrow."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(images.float(), self.weight.float(), self.bias.float())


def layers(seed: int = 1, dtype: Any = torch.float32, count: int = 9) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    parts: List[torch.nn.Module] = []
    for _ in range(count):
        parts += [(torch.nn.Linear if dtype == torch.float32 else NarrowLinear)(WIDTH, WIDTH), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts).to(DEVICE, dtype)


class Partial(torch.nn.Module):
    """Uses one of two branches, another one on each rank and in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = torch.nn.ModuleList([layers(1, count=3), layers(2, count=3)])
        self.choice = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.branches[self.choice](images)


def batch(rank: int, step: int, dtype: Any = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(BATCH, WIDTH, generator=generator).to(DEVICE, dtype)


def digest(module: torch.nn.Module) -> str:
    found = hashlib.sha256()
    for parameter in module.parameters():
        found.update(parameter.detach().float().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def optimizer_of(module: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def loss_of(model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    return model(images).float().square().mean() * 100


def reference(seed: int = 1, dtype: Any = torch.float32, accumulate: int = 1) -> str:
    """The digest after STEPS steps, by one process that computes every rank's gradient and adds them as a tree."""
    models = [layers(seed, dtype) for _ in range(WORLD_SIZE)]
    optimizers = [optimizer_of(model) for model in models]
    for step in range(STEPS):
        for rank, model in enumerate(models):
            model.zero_grad(set_to_none=True)
            for part in range(accumulate):
                loss_of(model, batch(rank, accumulate * step + part, dtype)).backward()
        for gradients in zip(*([parameter.grad for parameter in model.parameters()] for model in models)):
            # On the CPU: a GPU divides by multiplying.
            mean = (fake_library.tree_sum([one.float().cpu() for one in gradients]) / WORLD_SIZE).to(dtype)
            for gradient in gradients:
                gradient.copy_(mean)
        for optimizer in optimizers:
            optimizer.step()
    return digest(models[0])


def train(model: Any, steps: int = STEPS, dtype: Any = torch.float32, accumulate: int = 1,
          first_step: int = 0) -> str:
    optimizer = optimizer_of(model)
    for step in range(first_step, first_step + steps):
        optimizer.zero_grad(set_to_none=True)
        for part in range(accumulate - 1):
            with model.no_sync():
                loss_of(model, batch(RANK, accumulate * step + part, dtype)).backward()
        loss_of(model, batch(RANK, accumulate * step + accumulate - 1, dtype)).backward()
        optimizer.step()
    return digest(model)


def attached(module: torch.nn.Module, sync: str = "star", **ddp: Any) -> Any:
    model = Ddp(module, **ddp)
    starring.torch.attach(model, sync=sync, **DEADLINES)
    return model


def bits(sync: Optional[str]) -> Dict[str, str]:
    """Digests by setting; of DDP's own exchange without `sync`."""
    settings: Dict[str, Dict[str, Any]] = {f"cap {cap}": {"bucket_cap_mb": cap} for cap in CAPS_MB}
    settings["never rebuilt"] = {"bucket_cap_mb": 0.25, "find_unused_parameters": True}
    settings["static"] = {"bucket_cap_mb": 0.25, "static_graph": True}
    settings["views"] = {"bucket_cap_mb": 0.6, "gradient_as_bucket_view": True}
    settings["again"] = {"bucket_cap_mb": 0.25}
    found = {}
    for name, setting in settings.items():
        model = attached(layers(), sync, **setting) if sync else Ddp(layers(), **setting)
        found[name] = train(model)
    return found


def buckets() -> List[int]:
    """How many buckets each of STEPS steps has."""
    model = Ddp(layers(), bucket_cap_mb=0.25)
    attachment = starring.torch.attach(model, **DEADLINES)
    found = []
    for step in range(STEPS):
        with mock.patch.object(_library.Group, "allreduce", autospec=True,
                               side_effect=_library.Group.allreduce) as allreduce:
            train(model, 1, first_step=step)
        found.append(allreduce.call_count)
    assert attachment.step == STEPS
    attachment.close()
    return found


def accumulated() -> List[str]:
    return [train(attached(layers()), accumulate=3), reference(accumulate=3)]


def narrow(dtype: Any) -> List[str]:
    return [train(attached(layers(dtype=dtype)), dtype=dtype), reference(dtype=dtype)]


def bfloat16() -> List[str]:
    """Without DDP: Gloo broadcasts no bfloat16 in PyTorch 1.13, and so DDP cannot have such a model there."""
    group = starring.torch.connect(**DEADLINES)
    parts = [(batch(rank, 0).cpu() * 1e3).to(torch.bfloat16) for rank in range(WORLD_SIZE)]
    values = parts[RANK].clone()
    ticket = group.allreduce(0, 0, 0, values.data_ptr(), values.numel(), _library.BFLOAT16, float(WORLD_SIZE))
    while not group.wait(ticket, 1000):
        pass
    group.close()
    expected = (fake_library.tree_sum([part.float() for part in parts]) / WORLD_SIZE).to(torch.bfloat16)
    return [hashlib.sha256(one.float().numpy().tobytes()).hexdigest() for one in (values, expected)]


def gpu_memory() -> Dict[str, Any]:
    """Digests with same_host="gpu_memory" and without, and which way gradients went."""
    found: Dict[str, Any] = {}
    for sync in ("star", "ring"):
        for same_host in ("auto", "gpu_memory"):
            model = Ddp(layers(), bucket_cap_mb=0.25)
            attachment = starring.torch.attach(model, sync=sync, same_host=same_host, **DEADLINES)
            found[f"{sync} {same_host}"] = {"digest": train(model), "way": attachment.way,
                                            "why": attachment.why_not_gpu_memory, "copies": attachment.device_copies}
            attachment.close()
    return found


def unused() -> List[bool]:
    """With parameters that a rank does not use: equal to DDP's own exchange up to rounding, and on all ranks?"""
    parameters = []
    for sync in ("star", None):
        module = Partial()
        model = (attached(module, sync, find_unused_parameters=True) if sync
                 else Ddp(module, find_unused_parameters=True))
        optimizer = optimizer_of(model)
        for step in range(STEPS):
            module.choice = (step + RANK) % 2
            optimizer.zero_grad()
            loss_of(model, batch(RANK, step)).backward()
            optimizer.step()
        # On the CPU: Gloo gathers nothing from a GPU.
        parameters.append(torch.cat([parameter.detach().flatten().cpu() for parameter in module.parameters()]))
    same = [torch.empty_like(parameters[0]) for _ in range(WORLD_SIZE)]
    dist.all_gather(same, parameters[0])
    return [torch.allclose(*parameters, rtol=1e-4, atol=1e-6), all(torch.equal(same[0], one) for one in same)]


def several() -> List[str]:
    """Two models in turns, and one of them dropped between."""
    first, second = attached(layers(1)), attached(layers(2), "ring" if WORLD_SIZE == 2 else "star")
    found = []
    optimizers = [optimizer_of(model) for model in (first, second)]
    for step in range(STEPS):
        for model, optimizer in zip((first, second), optimizers):
            optimizer.zero_grad(set_to_none=True)
            loss_of(model, batch(RANK, step)).backward()
            optimizer.step()
    found += [digest(first), reference(1), digest(second), reference(2)]
    del first, model
    train(second, 1)
    return found


def subgroup() -> List[str]:
    """A group of the last two ranks alone."""
    group = dist.new_group([WORLD_SIZE - 2, WORLD_SIZE - 1])
    if RANK < WORLD_SIZE - 2:
        return []
    model = Ddp(layers(), process_group=group)
    starring.torch.attach(model, **DEADLINES)
    return [train(model, 1)]


def joined() -> int:
    """Inputs of different lengths, under DDP's join()."""
    model = attached(layers())
    with model.join():
        for step in range(2 + RANK):
            loss_of(model, batch(RANK, step)).backward()
    return 1


def compiled() -> List[str]:
    if not hasattr(torch, "compile"):
        return ["none"]
    model = Ddp(layers(), bucket_cap_mb=1)  # at least DDP's first bucket, or the compiler refuses it
    starring.torch.attach(torch.compile(model, backend="aot_eager"), **DEADLINES)
    return [train(torch.compile(model, backend="aot_eager"))]


def error_of(work: Callable[[], Any]) -> Dict[str, Any]:
    """The error that `work` ends with, and how long that took."""
    started = time.monotonic()
    try:
        work()
    except Exception as error:
        return {"type": type(error).__name__, "text": str(error), "kind": getattr(error, "kind", ""),
                "seconds": time.monotonic() - started}
    return {"type": "none", "text": "", "kind": "", "seconds": time.monotonic() - started}


def refusals() -> Dict[str, Any]:
    """attach() with something wrong on rank 1, or on all."""
    one = RANK == 1
    Ddp(layers())  # the first one imports much, for seconds

    def attach(module: torch.nn.Module, **arguments: Any) -> Callable[[], Any]:
        return lambda: starring.torch.attach(Ddp(module), **{**DEADLINES, **arguments})

    def twice() -> None:
        model = attached(layers())
        starring.torch.attach(model, **DEADLINES)

    found = {
        "sync": attach(layers(), sync="ring" if one else "star"),
        "unknown": attach(layers(), sync="mesh" if one else "star"),
        "sparse": attach(torch.nn.Sequential(torch.nn.Embedding(4, 4, sparse=True), torch.nn.Linear(4, 4))),
        "double": attach(layers(dtype=torch.float64)),
        "no ddp": lambda: starring.torch.attach(layers(), **DEADLINES),
        "twice": twice,
        "servers of a ring": attach(layers(), sync="ring", servers="127.0.0.1:1"),
        "no such server": attach(layers(), servers=["127.0.0.1:1"]),
        "same host": attach(layers(), same_host="gpu_memory" if one else "auto"),
        "unknown host": attach(layers(), same_host="gpu"),
    }
    return {name: error_of(work) for name, work in found.items()}


def steps(model: Any, before: Callable[[int], None] = lambda step: None, count: int = 1000) -> None:
    for step in range(count):
        before(step)
        train(model, 1, first_step=step)


def at(step: int, action: Callable[[], None]) -> Callable[[int], None]:
    return lambda now: action() if now == step and RANK == 1 else None


def mark(name: str) -> None:
    """Makes a file that Ranks.await_file() waits for."""
    with open(os.path.join(os.path.dirname(os.environ["STORE"]), name), "w", encoding="utf-8"):
        pass


def missing() -> Dict[str, Any]:
    if RANK == 1:
        module = Ddp(layers())
        time.sleep(60)
        return {"type": type(module).__name__}
    return error_of(lambda: attached(layers()))


def killed() -> Dict[str, Any]:
    model = attached(layers(), bucket_cap_mb=0.25)
    return error_of(lambda: steps(model, at(2, lambda: os.kill(os.getpid(), signal.SIGKILL))))


def stopped() -> Dict[str, Any]:
    model = attached(layers(), bucket_cap_mb=0.25)
    return error_of(lambda: steps(model, at(2, lambda: os.kill(os.getpid(), signal.SIGSTOP))))


def stopped_at_once() -> Dict[str, Any]:
    """In the first step of a static graph DDP runs the hook after backward, and waits for the futures in C++."""
    model = attached(layers(), static_graph=True)
    return error_of(lambda: steps(model, at(0, lambda: os.kill(os.getpid(), signal.SIGSTOP))))


def waiting() -> None:
    """Rank 1 stops; the others are interrupted from outside while they wait."""
    model = Ddp(layers())
    starring.torch.attach(model, **{**DEADLINES, "exchange_deadline_s": 60.0})

    def before(step: int) -> None:
        if step == 2:
            mark(f"waiting{RANK}")
            if RANK == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
    steps(model, before)


class Raises(torch.autograd.Function):
    """Raises in the middle of backward."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise ValueError("seeded in backward")


class Seeded(torch.nn.Module):
    """Layers, whose backward raises in the middle if `raises`."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after, self.raises = layers(1, count=6), layers(2, count=6), False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        middle = self.before(images)
        return self.after(Raises.apply(middle) if self.raises else middle)


def raising() -> Dict[str, Any]:
    """Rank 1 raises in the middle of backward, does not catch it, and so ends."""
    module = Seeded()
    model = attached(module, bucket_cap_mb=0.25)

    def before(step: int) -> None:
        module.raises = RANK == 1 and step == 2
    if RANK == 1:
        steps(model, before)
    return error_of(lambda: steps(model, before))


def going_on() -> Dict[str, Any]:
    """Rank 1 raises in the middle of backward, catches it, and goes on with a model that DDP did not protect."""
    module = Seeded()
    model = attached(module, bucket_cap_mb=0.25)

    def work() -> None:
        for step in range(1000):
            module.raises = RANK == 1 and step == 2
            try:
                train(model, 1, first_step=step)
            except ValueError:
                pass
    return error_of(work)


def leaving() -> Dict[str, Any]:
    """Rank 1 ends after fewer steps than the others."""
    model = attached(layers())
    return error_of(lambda: steps(model, count=3 if RANK == 1 else 5))


def closed() -> Dict[str, Any]:
    model = Ddp(layers())
    attachment = starring.torch.attach(model, **DEADLINES)
    train(model, 2)
    attachment.close()
    attachment.close()
    return error_of(lambda: train(model, 1))


def forked() -> str:
    """A child of fork that ends what is open does not disturb its parent's group."""
    model = attached(layers())
    train(model, 1)
    child = os.fork()
    if child == 0:
        _exchange.end_all()
        os._exit(0)  # Gloo, which waits for threads that the child does not have, would never let it exit
    assert os.waitpid(child, 0)[1] == 0
    return train(model, 1)


def slow_server() -> Dict[str, Any]:
    """Steps until a server is gone, which the test kills."""
    model = attached(layers())
    return error_of(lambda: steps(model, lambda step: mark("training") if step == 3 else None))


CASES: Dict[str, Callable[[], Any]] = {
    "star": lambda: bits("star"), "ring": lambda: bits("ring"), "ddp": lambda: bits(None), "reference": reference,
    "float16": lambda: narrow(torch.float16),
    **{case.__name__: case for case in (buckets, accumulated, bfloat16, gpu_memory, unused, several, subgroup, joined,
                                        compiled, refusals, missing, killed, stopped, stopped_at_once, waiting, raising,
                                        going_on, leaving, closed, forked, slow_server)}}


def cases(names: Sequence[str]) -> Iterator[Dict[str, Any]]:
    for name in names:
        yield {name: CASES[name]()}


def main() -> None:
    names = [name for name in sys.argv[1:] if name != "--cuda"]
    torch.set_num_threads(1)
    if "FRESH_STORE" in os.environ:
        dist.init_process_group("gloo", store=starring.torch.fresh_store(20.0), rank=RANK, world_size=WORLD_SIZE,
                                timeout=GLOO_DEADLINE)
    elif "MASTER_ADDR" in os.environ:
        dist.init_process_group("gloo", timeout=GLOO_DEADLINE)
    else:
        dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=RANK, world_size=WORLD_SIZE,
                                timeout=GLOO_DEADLINE)
    for result in cases(names):
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
