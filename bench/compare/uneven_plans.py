"""The command lines of the section of uneven and failing workers."""

from __future__ import annotations

import argparse
import os
import socket

import jobs
import machine
import programs
import sync_cells as cells
from uneven_job import Plan

RING, STAR, ELASTIC, DDP = "ring", "star", cells.ELASTIC, "ddp-tuned"
WORKERS = 2
GLOBAL_BATCH = 512
MICRO_BATCHES = 16
RESTARTS = 1000  # more than any run needs
# In the folder of the run.
RECORD = "record.json"
STATE_DIR = "state"
# An elastic run records the losses of so many steps at most; a run of this section, of five minutes, has fewer.
RECORDED_STEPS_MAX = 2_000_000
# A version of torchrun looks at its workers only every 5 s unless told otherwise.
MONITOR_SECONDS = 0.1
# The output of a rank that does not exist. PyTorch 1.13 under Python 3.11 fails with the default, "0", whose meaning it
# looks up among the members of a flag: since 3.11 zero is none of them.
NO_REDIRECTION = f"{WORKERS}:1"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Plans:
    """Makes the plan of each program."""

    def __init__(self, options: argparse.Namespace, torch: programs.Torch | None) -> None:
        self.torch, self.model = torch, options.uneven
        self.servers = options.servers or WORKERS
        self.data_dir: str = options.data_dir
        flags = jobs.Matrix(options, torch, lambda model, sync, workers: {}).shared_flags
        self._shared = [flag for flag in flags if not flag.startswith("--data_dir=")]

    def plan(self, sync: str, folder: str, restarts: bool = False, period: int | None = None) -> Plan:
        """`folder` is the run's. `restarts`: workers will be killed. `period`: steps between two checkpoints; only with
        `restarts`, and not for the elastic star."""
        flags = [*self._shared, *([f"--data_dir={self.data_dir}"] if self.data_dir else []), f"--model={self.model}",
                 *jobs.CPU.flags(WORKERS), "--threads=1", f"--global_batch={GLOBAL_BATCH}", "--epochs=100000"]
        if sync == DDP:
            return self._peer(flags, folder, period if restarts else None)
        launch = [programs.binary("deploy/launch"), *cells.flags_of(STAR if sync == ELASTIC else sync),
                  f"--workers={WORKERS}", "--cores_per_worker=1", "--metrics_port=0"]
        if sync in (STAR, ELASTIC):
            launch.append(f"--servers={self.servers}")
        saves = restarts and sync != ELASTIC
        flags += [flag for flag in jobs.OURS_ONLY if not (saves and flag.startswith("--checkpoint_dir="))]
        flags += cells.WORKER_FLAGS.get(sync, [])
        if sync == ELASTIC:
            launch += ["--elastic", f"--restart_processes={RESTARTS if restarts else 0}",
                       "--state_dir=" + os.path.join(folder, STATE_DIR)]
            flags.append(f"--micro_batches={MICRO_BATCHES}")
            if not restarts:  # the losses tell the time of each step
                flags += ["--record_losses", f"--max_steps={RECORDED_STEPS_MAX}",
                          "--record=" + os.path.join(folder, RECORD)]
        elif restarts:
            launch.append(f"--restarts={RESTARTS}")
            flags += ["--checkpoint_dir=" + os.path.join(folder, "checkpoints"), f"--checkpoint_every_steps={period}",
                      "--checkpoint_every_epochs=1000000"]
        return Plan(jobs.Command([*launch, "--", *flags]), all_restart=sync != ELASTIC)

    def _peer(self, flags: list[str], folder: str, period: int | None) -> Plan:
        assert self.torch is not None, "the peer is measured only where there is a PyTorch"
        position = os.path.join(folder, "position")
        cores = ";".join(jobs.place(machine.cores(), WORKERS, 0, 1)["worker"])
        argv = [self.torch.python, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc_per_node={WORKERS}",
                "--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{_free_port()}",
                f"--max_restarts={0 if period is None else RESTARTS}", f"--monitor_interval={MONITOR_SECONDS}",
                f"--redirects={NO_REDIRECTION}", f"--tee={NO_REDIRECTION}", programs.peer("train"), *flags,
                "--cores=" + cores, *(f"--{name}={value}" for name, value in jobs.tuned(jobs.CPU).items()),
                "--position_file=" + position]
        if period is not None:
            argv += ["--state_file=" + os.path.join(folder, "state"), f"--state_every_steps={period}"]
        return Plan(jobs.Command(argv, {**programs.ONE_THREAD, "GLOO_SOCKET_IFNAME": "lo"}), position)
