"""One rank of a small job under torchrun that resumes from a checkpoint and dies where a plan says.

    torchrun ... job.py --folder=FOLDER --sync=SYNC --constructor=ddp|attach --victim=RANK --gloo_s=6

The victim kills itself twice: in the first attempt in a constructor, and in the next attempt that trains in a step.
Each rank writes what it has come to into FOLDER/events.jsonl; at SIGUSR1 its stacks into FOLDER/stacks-ATTEMPT-RANK.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import faulthandler
import json
import os
import signal
import time
from typing import Any
from unittest import mock

STEPS = 8  # of the whole job
KILL_STEPS = 2  # after the resume, until the victim dies in a step
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG

RANK = int(os.environ["RANK"])
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def say(folder: str, event: str, **more: Any) -> None:
    line = json.dumps({"attempt": ATTEMPT, "rank": RANK, "event": event, "time": time.time(), "pid": os.getpid(),
                       **more})
    with open(os.path.join(folder, "events.jsonl"), "a", encoding="utf-8") as file:
        file.write(line + "\n")


def die(folder: str, where: str) -> None:
    """SIGKILL leaves no time to tidy up: neither for the library, nor for Gloo or the store."""
    with open(os.path.join(folder, "killed-" + where), "w", encoding="utf-8"):
        pass
    say(folder, "killed", where=where)
    os.kill(os.getpid(), signal.SIGKILL)


def is_due(folder: str, where: str) -> bool:
    return not os.path.exists(os.path.join(folder, "killed-" + where))


def train(flags: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import starring.torch

    class Dies(torch.nn.Linear):
        """Ends the process when DDP's constructor looks at its parameters."""

        def named_parameters(self, *arguments: Any, **more: Any) -> Any:
            die(flags.folder, "constructor")
            return super().named_parameters(*arguments, **more)

    torch.set_num_threads(1)
    say(flags.folder, "started")
    timeout = datetime.timedelta(seconds=flags.gloo_s)
    if flags.fresh_store:
        dist.init_process_group("gloo", store=starring.torch.fresh_store(), rank=RANK,
                                world_size=int(os.environ["WORLD_SIZE"]), timeout=timeout)
    else:
        dist.init_process_group("gloo", timeout=timeout)
    say(flags.folder, "connected")

    is_victim = RANK == flags.victim
    dies_now = is_victim and is_due(flags.folder, "constructor")
    torch.manual_seed(1)
    module = (Dies if dies_now and flags.constructor == "ddp" else torch.nn.Linear)(16, 4)
    model = DistributedDataParallel(module)
    say(flags.folder, "wrapped")
    if flags.sync != "ddp":
        dies_in_attach = dies_now and flags.constructor == "attach"
        with mock.patch.object(starring.torch._library, "Group",
                               (lambda settings: die(flags.folder, "constructor")) if dies_in_attach
                               else starring.torch._library.Group):
            starring.torch.attach(model, sync=flags.sync)
    say(flags.folder, "attached")

    checkpoint = os.path.join(flags.folder, "checkpoint.pt")
    begin = 0
    if os.path.exists(checkpoint):
        state = torch.load(checkpoint)
        begin = state["step"]
        module.load_state_dict(state["module"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(begin, STEPS):
        optimizer.zero_grad()
        torch.manual_seed(100 * step + RANK)
        loss = model(torch.randn(8, 16)).square().mean()
        if is_victim and step == begin + KILL_STEPS and is_due(flags.folder, "step"):
            die(flags.folder, "step")
        loss.backward()
        optimizer.step()
        if RANK == 0:
            torch.save({"step": step + 1, "module": module.state_dict()}, checkpoint + ".new")
            os.replace(checkpoint + ".new", checkpoint)
        say(flags.folder, "stepped", step=step)
    say(flags.folder, "done", sum=float(sum(parameter.double().sum() for parameter in module.parameters())))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", required=True)
    parser.add_argument("--sync", choices=("ddp", "star", "ring"), required=True)
    parser.add_argument("--constructor", choices=("ddp", "attach"), required=True)
    parser.add_argument("--victim", type=int, required=True)
    parser.add_argument("--gloo_s", type=float, required=True, help="Gloo's own deadline, by default 30 minutes")
    parser.add_argument("--fresh_store", action="store_true")
    flags = parser.parse_args()
    # torchrun starts each rank in a session of its own. A rank must not outlive it.
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    with open(os.path.join(flags.folder, f"stacks-{ATTEMPT}-{RANK}"), "w", encoding="utf-8") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        try:
            train(flags)
        except BaseException as error:
            say(flags.folder, "failed", error=f"{type(error).__name__}: {error}")
            raise


if __name__ == "__main__":
    main()
