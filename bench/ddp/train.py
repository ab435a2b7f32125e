"""The PyTorch peer: trains the shipped models in one process or under DistributedDataParallel with Gloo or NCCL.

    python3 train.py --model=lenet5 --dataset=fashion-mnist --epochs=2 --world_size=2 --record=ddp.json
    torchrun --nproc_per_node=2 train.py ...

Flags have the names and meaning of the worker's, and the run record has the same schema. Data, order of the samples,
augmentation, initial weights, mean over the global batch, optimizer and schedule are Starring's. The rest is PyTorch's
default, unless a flag of options.py tunes it. With --data=ram (the default) the normalised data set is in RAM or in the
GPU's memory, and a batch is one gather. --data=dataloader is the usual code, a DataLoader.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import sys
import tempfile
from typing import Any

import data as data_files
import device as devices
import options
import quality
import run_record
import step_graph
import sweep
import torch
import torch.distributed as dist
from trainer import Data, Trainer


def print_summary(record: dict[str, Any]) -> None:
    step, parts = record["step_ms"], record["breakdown_ms"]
    test = record["test"]
    print(f"{record['config']['sync']}: {record['steps']} steps, {record['epochs'][-1]['samples_per_second']:.0f} "
          f"samples/s, test {quality.score(test['loss'], test['mean_loss'], test['accuracy'])}\n"
          f"step ms   p50 {step['p50']:.3f}  p95 {step['p95']:.3f}  p99 {step['p99']:.3f}  max {step['max']:.3f}\n"
          f"parts ms  " + "  ".join(f"{part} {ms:.3f}" for part, ms in parts.items()) +
          f"\nparameter digest {record['parameter_sha256']}", flush=True)


def pin(rank: int, world_size: int, cores: list[list[int]]) -> None:
    """Pins this process to its list of `cores`; without any, to a contiguous part of the allowed cores."""
    allowed = sorted(os.sched_getaffinity(0))
    begin = rank * len(allowed) // world_size
    end = max(begin + 1, (rank + 1) * len(allowed) // world_size)
    os.sched_setaffinity(0, cores[rank] if cores else allowed[begin:end])


def train(rank: int, flags: argparse.Namespace, world_size: int, local_size: int, init_method: str) -> None:
    if flags.pin or flags.cores:
        pin(rank, world_size, flags.cores)
    torch.set_num_threads(flags.threads)
    device = devices.choose(flags, world_size, rank % local_size, local_size)
    device.set_up(flags)
    if world_size > 1:
        device.join(rank, init_method, flags.deadline_s)
    _work(flags, rank, device)
    if world_size > 1:
        # Gloo's threads end with the last object that refers to the group. DDP is such an object, and only the garbage
        # collector frees it. A thread that outlives the interpreter ends the process with SIGABRT (pytorch/pytorch pull
        # request 179291).
        gc.collect()
        dist.destroy_process_group()


def _work(flags: argparse.Namespace, rank: int, device: devices.Device) -> None:
    data = Data(flags, rank, device)
    if flags.sweep:
        best = sweep.find_best(flags, rank, device, data)
        if rank == 0:
            with open(flags.sweep, "w", encoding="utf-8") as file:
                json.dump(best, file)
    else:
        trainer = Trainer(flags, rank, device, data)
        if rank == 0 and flags.cuda_graph and trainer.no_graph:
            print(f"note: no CUDA graph: {trainer.no_graph}; steps are launched one kernel after the other")
        record = trainer.run()
        trainer.close()
        if rank == 0:
            if flags.record:
                run_record.write(flags.record, record)
            print_summary(record)


def spawn(flags: argparse.Namespace) -> None:
    devices.choose(flags, flags.world_size, 0, flags.world_size)  # else each child refuses, with a traceback
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # OpenMP in the children reads this before torch.set_num_threads could take effect.
    os.environ.setdefault("OMP_NUM_THREADS", str(flags.threads))
    with tempfile.TemporaryDirectory() as folder:
        arguments = (flags, flags.world_size, flags.world_size, f"file://{folder}/rendezvous")
        try:
            torch.multiprocessing.spawn(train, arguments, flags.world_size)
        except torch.multiprocessing.ProcessRaisedException as error:
            capture = re.search(r"CaptureError: (.*)", str(error))
            if capture is None:
                raise
            raise step_graph.CaptureError(capture[1]) from error


def start(flags: argparse.Namespace) -> None:
    if "RANK" in os.environ and "MASTER_ADDR" in os.environ:  # torchrun
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        train(int(os.environ["RANK"]), flags, int(os.environ["WORLD_SIZE"]), local_size, "env://")
    elif flags.world_size > 1:
        spawn(flags)
    else:
        train(0, flags, 1, 1, "")


def main() -> None:
    flags = options.parse()
    if flags.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if flags.cuda_graph or flags.sweep:
        # With this handling, older versions cannot capture NCCL (PyTorch's notes on CUDA graphs).
        for name in ("NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"):
            os.environ.setdefault(name, "0")
    try:
        start(flags)
    except step_graph.CaptureError as error:
        if flags.graph_failure or "RANK" in os.environ:
            raise
        # Starts over, in processes without the failed capture.
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.argv, f"--graph_failure=PyTorch could not capture it: {error}"])
    except devices.DeviceError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except data_files.DataError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
