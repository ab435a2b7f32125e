"""Trains LeNet-5 with torchft, as one replica group of one process on the CPU. torchft_job.py starts several of them.

All workers append to one file, --steps_file. A worker writes `ready AT WORKER` before its first step, and for each try
of a step `step` or `failed`, and then AT WORKER STEP QUORUM SHARES. AT is the time of the clock that the processes of a
machine have in common, QUORUM the number of torchft's quorum, and SHARES the number of workers whose samples counted.

Worker w takes samples w * 64 / 3 to (w + 1) * 64 / 3 of each global batch of 64 for three workers, as torchft's own
example and its DistributedSampler do: if it is away, its samples are missing; a fourth worker brings further samples.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

import torch
import torch.distributed
import torchft

SAMPLES = 8192
BEGIN_SECONDS_MAX = 300  # for all workers to have imported PyTorch
PARAMETERS = 61706  # as in worker/model/models/lenet5.textproto

# torchft's time-outs. They are as short as they may be here, where a collective takes about a millisecond.
GLOO_S = 2.0  # for a collective, and for the connections of a new quorum (its example: 5)
OPERATION_S = 5.0  # to fetch the state of another worker (default: 60)
QUORUM_S = 20.0  # then the worker ends. The lighthouse is stopped for up to 7.5 s (default: 60)
QUORUM_RETRIES = 199  # it asks a lost lighthouse again after QUORUM_S / (QUORUM_RETRIES + 1) = 0.1 s (default: 0)
CONNECT_S = 20.0  # it includes the start of the lighthouse (default: 60)


def seconds(count: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=count)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, required=True, help="0 to the number of workers - 1")
    parser.add_argument("--workers", type=int, required=True, help="how many share the global batch")
    parser.add_argument("--lighthouse", required=True, help="http://HOST:PORT")
    parser.add_argument("--folder", required=True, help="of the files begin, checkpoint and record.NUMBER")
    parser.add_argument("--steps_file", required=True)
    parser.add_argument("--model", choices=["lenet5"], required=True)
    parser.add_argument("--global_batch", type=int, required=True)
    parser.add_argument("--max_steps", type=int, required=True)
    parser.add_argument("--checkpoint_every_steps", type=int, required=True)
    parser.add_argument("--gradients", choices=["allreduce", "ddp"], required=True,
                        help="averaged by one Manager.allreduce, or by torchft's DistributedDataParallel, whose "
                        "worker ends when it loses another one during a collective")
    return parser.parse_args()


def make_model() -> torch.nn.Module:
    nn = torch.nn
    model = nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
                          nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
                          nn.Linear(84, 10))
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS
    return model


class Worker:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._steps_file = os.open(options.steps_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._leaves = False
        signal.signal(signal.SIGTERM, self._on_sigterm)
        torch.set_num_threads(1)
        torch.manual_seed(1)  # all workers begin with equal parameters and data
        self._model = make_model()
        self._images, self._labels = torch.rand(SAMPLES, 1, 28, 28), torch.randint(10, (SAMPLES,))
        self._sgd = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(timeout=seconds(GLOO_S)), load_state_dict=self._load, state_dict=self._state,
            min_replica_size=1, timeout=seconds(OPERATION_S), quorum_timeout=seconds(QUORUM_S),
            connect_timeout=seconds(CONNECT_S), quorum_retries=QUORUM_RETRIES, rank=0, world_size=1,
            store_addr="127.0.0.1", store_port=self._store.port, lighthouse_addr=options.lighthouse,
            replica_id="worker_%d" % options.number, hostname="127.0.0.1", init_sync=False)
        if os.path.exists(self._path("checkpoint")):
            saved = torch.load(self._path("checkpoint"))
            self._load(saved["state"])
            self._manager.load_state_dict(saved["manager"])
        self._optimizer = torchft.Optimizer(self._manager, self._sgd)

    def _path(self, name: str) -> str:
        return os.path.join(self._options.folder, name)

    def _on_sigterm(self, *_: object) -> None:
        self._leaves = True

    def _state(self) -> dict[str, object]:
        return {"model": self._model.state_dict(), "sgd": self._sgd.state_dict()}

    def _load(self, state: dict[str, dict[str, object]]) -> None:
        self._model.load_state_dict(state["model"])
        self._sgd.load_state_dict(state["sgd"])

    def _report(self, what: str, *numbers: int) -> None:
        line = " ".join([what, "%.4f" % time.monotonic(), *map(str, (self._options.number, *numbers))])
        os.write(self._steps_file, (line + "\n").encode())

    def _average(self) -> None:
        parameters = list(self._model.parameters())
        flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
        self._manager.allreduce(flat).wait()  # after an error the step will not be committed
        for parameter, part in zip(parameters, flat.split([parameter.numel() for parameter in parameters])):
            parameter.grad.copy_(part.view_as(parameter))

    def run(self) -> None:
        options, manager = self._options, self._manager
        ddp = options.gradients == "ddp"
        model = torchft.DistributedDataParallel(manager, self._model) if ddp else self._model
        begin, end = (options.global_batch * i // options.workers for i in (options.number, options.number + 1))
        self._report("ready")
        give_up = time.monotonic() + BEGIN_SECONDS_MAX
        while not os.path.exists(self._path("begin")):
            if time.monotonic() > give_up:
                sys.exit("nobody has let this worker begin within %d s" % BEGIN_SECONDS_MAX)
            time.sleep(0.01)  # a file has no event to wait for
        while manager.current_step() < options.max_steps and not self._leaves:
            index = (torch.arange(begin, end) + manager.current_step() * options.global_batch) % SAMPLES
            self._optimizer.zero_grad()  # asks for a quorum
            torch.nn.functional.cross_entropy(model(self._images[index]), self._labels[index]).backward()
            if not ddp:
                self._average()
            shares = manager.num_participants()  # waits for the quorum, which may bring a worker to a later step
            step = manager.current_step()
            self._optimizer.step()
            done = manager.current_step() > step
            self._report("step" if done else "failed", step, manager._quorum_id, shares)
            if done and (step + 1) % options.checkpoint_every_steps == 0 and manager.participating_rank() == 0:
                self._write("checkpoint", lambda path: torch.save(
                    {"state": self._state(), "manager": manager.state_dict()}, path))
        if not self._leaves:
            self._write("record.%d" % options.number, self._record)

    def _write(self, name: str, write: Callable[[str], object]) -> None:
        path = self._path("%s.part%d" % (name, self._options.number))
        write(path)
        os.replace(path, self._path(name))

    def _record(self, path: str) -> None:
        content = b"".join(parameter.detach().numpy().tobytes() for parameter in self._model.parameters())
        with open(path, "w") as file:
            json.dump({"parameter_sha256": hashlib.sha256(content).hexdigest(),
                       "shares": self._manager.batches_committed()}, file)


if __name__ == "__main__":
    OPTIONS = parse()
    try:
        Worker(OPTIONS).run()
        os._exit(0)  # at once, without waiting for torchft's threads
    except Exception:
        traceback.print_exc()
        os._exit(1)
