"""Builds the matrix of jobs: which jobs there are, on which cores, and the command lines that start them.

Words. The *budget* of a group is the number of workers of the jobs in it. A star with the accounting equal-workers has
as many workers as the others, and servers in addition. A star with equal-cores has fewer workers, so that its workers
and servers together have as many cores as the others' workers. A star with own-hosts has as many workers as the others,
and its servers are on hosts of their own, of which the others have none.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import device_choice
import machine
import programs
import results as schema
import sync_cells as cells

if TYPE_CHECKING:  # bench/netlab is imported only for a comparison between hosts
    from netlab import Netlab

OURS = (*cells.SYNCS, *cells.CONTROLS)
# DDP with the settings of ddp-tuned, whose communication hook is starring.torch's: only the exchange is another.
HOOKS = {"ddp+star": "star", "ddp+ring": "ring"}
PEERS = ("ddp", "ddp-tuned", *HOOKS)
CPU = device_choice.Device()


def tuned(device: device_choice.Device) -> dict[str, str]:
    """The settings of ddp-tuned that the sweep begins with."""
    settings = {"data": "ram", "set_to_none": "true", "gradient_as_bucket_view": "true", "static_graph": "true"}
    return settings if device.kind == "cpu" else {**settings, "cudnn_benchmark": "true", "cuda_graph": "true"}


@dataclasses.dataclass
class Command:
    argv: list[str]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)

    def text(self) -> list[str]:
        return [*(f"{name}={value}" for name, value in self.environment.items()), *self.argv]


@dataclasses.dataclass
class Job:
    """One job of the matrix. measure.py fills in the runs of `configuration`."""
    configuration: schema.Configuration
    budget: int
    shared_flags: list[str]  # for worker and peer
    torch: programs.Torch | None
    settings: dict[str, str]  # for the peer
    threads: int = 1
    lab: Netlab | None = None
    device: device_choice.Device = CPU
    launch_flags: list[str] = dataclasses.field(default_factory=list)

    @property
    def group(self) -> tuple[str, str, int, str]:
        configuration = self.configuration
        return (configuration["section"], configuration["model"], self.budget, configuration["scaling"])

    def flags(self, record: str, steps: int | str, more: Sequence[str] = ()) -> list[str]:
        limit = [f"--max_steps={steps}", "--epochs=100000"] if steps else []
        device = self.device.flags(self.configuration["workers"])
        return [*self.shared_flags, *device, f"--model={self.configuration['model']}", f"--threads={self.threads}",
                f"--global_batch={self.configuration['global_batch']}", *limit, f"--record={record}", *more]

    def commands(self, record: str, steps: int | str, more: Sequence[str] = ()) -> list[Command]:
        """The commands to start, all at once. The last of them ends when the job ends."""
        flags = self.flags(record, steps, more)
        if self.lab is not None:
            return self._lab_commands(self.lab, flags)
        if self.configuration["sync"] in PEERS:
            cores = ";".join(expand(text) for text in self.configuration["cores"]["worker"])
            return [Command([*self._peer(flags), f"--world_size={self.configuration['workers']}", "--cores=" + cores],
                            {**(programs.ONE_THREAD if self.threads == 1 else {}), **self._library()})]
        own = cells.WORKER_FLAGS.get(self.configuration["sync"], [])
        by_nccl = self.configuration["sync"] == "nccl"
        environment = self.device.environment(self.configuration["workers"]) if by_nccl else {}
        return [Command([*self._launch(), "--", *flags, *own, *OURS_ONLY], environment)]

    def _peer(self, flags: list[str]) -> list[str]:
        settings = [f"--{name}={value}" for name, value in self.settings.items()]
        assert self.torch is not None, "jobs of the peer exist only where there is a PyTorch"
        return [self.torch.python, programs.peer("train"), *flags, *settings]

    def _library(self) -> dict[str, str]:
        return programs.starring_library() if self.configuration["sync"] in HOOKS else {}

    def _launch(self) -> list[str]:
        configuration = self.configuration
        argv = [programs.binary("deploy/launch"), *cells.flags_of(configuration["sync"]),
                f"--workers={configuration['workers']}", f"--cores_per_worker={self.threads}"]
        if configuration["servers"]:
            argv += [f"--servers={configuration['servers']}", "--cores_per_server=1"]
        return argv + self.launch_flags

    def _lab_commands(self, lab: Netlab, flags: list[str]) -> list[Command]:
        sync, workers = self.configuration["sync"], self.configuration["workers"]
        worker = [programs.binary("worker/worker"), *flags, *OURS_ONLY]
        if cells.has_servers(sync):
            secret = lab.make_secret(programs.binary("deploy/launch"))
            servers, ranks = lab.star_commands([programs.binary("server/server")], worker, secret,
                                               self.configuration["servers"], workers,
                                               self.configuration["accounting"] == cells.ACCOUNTING_OWN_HOSTS,
                                               cells.BY_SYNC[sync].transport)
            return [Command(argv) for argv in [*servers, *ranks]]
        if sync in cells.BY_MPIRUN:
            own = cells.WORKER_FLAGS.get(sync, [])
            return [Command(lab.mpirun([*worker, *cells.flags_of(sync), *own], workers), lab.environment())]
        if sync in cells.BY_RENDEZVOUS:
            secret = lab.make_secret(programs.binary("deploy/launch"))
            return [Command(argv) for argv in lab.rank_commands([*worker, *cells.flags_of(sync)], secret, workers)]
        places = {"MASTER_ADDR": lab.addresses[0], "MASTER_PORT": "7078", "WORLD_SIZE": str(workers),
                  "GLOO_SOCKET_IFNAME": "eth0", **programs.ONE_THREAD, **self._library()}
        return [Command(lab.command(rank, self._peer([*flags, "--pin=false"])), {**places, "RANK": str(rank)})
                for rank in range(workers)]


OURS_ONLY = ("--progress=none", "--checkpoint_dir=none")


def expand(text: str) -> str:
    """"0-2,5" to "0,1,2,5"."""
    cores: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return ",".join(map(str, cores))


def _take(cores: list[int], first: int, count: int) -> str:
    return ",".join(map(str, sorted({cores[(first + i) % len(cores)] for i in range(count)})))


def place(cores: list[int], workers: int, servers: int, threads: int) -> dict[str, list[str]]:
    """The cores of every worker and server, as deploy/launch assigns them: workers from the front, servers from the
    back."""
    backwards = cores[::-1]
    return {"worker": [_take(cores, rank * threads, threads) for rank in range(workers)],
            "server": [_take(backwards, shard, 1) for shard in range(servers)]}


def identity(model: str, sync: str, workers: int, accounting: str, scaling: str, section: str) -> str:
    where = "" if section == "machine" else "@" + section
    return f"{model}/{sync}/{workers}w/{accounting}/{scaling}{where}"


class Matrix:
    """Builds jobs from the options of the command line."""

    def __init__(self, options: argparse.Namespace, torch: programs.Torch | None,
                 peer_settings: Callable[[str, str, int], dict[str, str]], device: device_choice.Device = CPU) -> None:
        self.options, self.torch, self.peer_settings, self.device = options, torch, peer_settings, device
        self.cores = machine.cores()
        train_flags = shlex.split(options.train_flags)
        self.shared_flags = [f"--dataset={options.dataset}", f"--augment={options.augment}", f"--seed={options.seed}",
                             *train_flags]
        if not any(flag.startswith("--schedule=") for flag in train_flags):
            # A rate that changes in every step would rule out ddp-tuned's captured step.
            self.shared_flags.append("--schedule=constant")
        if options.data_dir:
            self.shared_flags.append(f"--data_dir={options.data_dir}")

    def job(self, model: str, sync: str, workers: int, scaling: str, servers: int = 0,
            accounting: str = "equal-workers", budget: int | None = None, lab: Netlab | None = None) -> Job:
        options = self.options
        section = "machine" if lab is None else lab.section
        batch = options.batch_per_worker * workers if scaling == "weak" else options.global_batch
        busy = workers * options.threads + servers
        everywhere = ",".join(map(str, self.cores))
        cores = place(self.cores, workers, servers, options.threads) if lab is None else {
            "worker": [everywhere] * workers, "server": [everywhere] * servers}
        settings = self.peer_settings(model, sync, workers) if sync in PEERS else {}
        configuration: schema.Configuration = {
            "id": identity(model, sync, workers, accounting, scaling, section), "sync": sync, "model": model,
            "dataset": options.dataset, "section": section, "workers": workers, "servers": servers,
            "accounting": accounting, "scaling": scaling, "global_batch": batch, "cores": cores,
            "oversubscribed": busy > len(self.cores) or self.device.shared(workers),
            "command": [], "trace": None, "runs": [],
            "slowest_worker_ratio": None, "settings": dict(settings), "group_workers": budget or workers}
        job = Job(configuration, budget or workers, self.shared_flags, self.torch, settings, options.threads, lab,
                  self.device)
        words = [word for command in job.commands("RECORD", "STEPS") for word in [*command.text(), "&"]][:-1]
        configuration["command"] = words
        return job

    def of_group(self, model: str, workers: int, scaling: str, lab: Netlab | None = None) -> list[Job]:
        """All jobs of one group, in the order in which they take turns."""
        options = self.options
        jobs = []
        if workers == 1:
            # One worker has no peer to exchange with, so one process represents all of ours.
            if any(sync in OURS for sync in options.syncs):
                jobs.append(self.job(model, "local", 1, scaling, lab=lab))
        else:
            for sync in options.syncs:
                if sync in OURS and sync != "local":
                    jobs += self._with_its_servers(model, sync, workers, scaling, lab)
            if scaling == "weak" and lab is None:
                servers = max(1, workers // 4)
                jobs += [self.job(model, sync, workers - servers, scaling, servers, "equal-cores", workers)
                         for sync in options.syncs if sync in cells.BY_SYNC and cells.BY_SYNC[sync].has_servers]
        if self.torch is not None:
            # One worker exchanges nothing, so a hook would change nothing.
            jobs += [self.job(model, sync, workers, scaling, lab=lab) for sync in options.syncs
                     if sync in PEERS and (workers > 1 or sync not in HOOKS)]
        return jobs

    def _with_its_servers(self, model: str, sync: str, workers: int, scaling: str, lab: Netlab | None) -> list[Job]:
        """The jobs of a sync of ours: one, or two where a lab has hosts for the servers alone."""
        if sync in cells.SYNCS_IN_MEMORY and lab is not None:
            return []  # the lab's hosts are one machine, and its ranks would share memory
        if not cells.has_servers(sync):
            return [self.job(model, sync, workers, scaling, lab=lab)]
        servers = self.options.servers or workers
        jobs = [self.job(model, sync, workers, scaling, servers, lab=lab)]
        if lab is not None and lab.server_hosts:
            jobs.append(self.job(model, sync, workers, scaling, self.options.servers or lab.server_hosts,
                                 cells.ACCOUNTING_OWN_HOSTS, lab=lab))
        return jobs

    def groups(self) -> list[list[Job]]:
        """The groups of the section `machine`, each a list of jobs."""
        found = []
        for model in self.options.models:
            for workers in self.options.workers:
                for scaling in self.options.scaling:
                    # With one worker, strong scaling is the same job as weak scaling if the batches are equal.
                    same = workers == 1 and self.options.global_batch == self.options.batch_per_worker
                    if scaling == "strong" and same and "weak" in self.options.scaling:
                        continue
                    found.append(self.of_group(model, workers, scaling))
        return [group for group in found if group]
