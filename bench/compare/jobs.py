"""The matrix: which jobs there are, on which cores, and the command lines that start them.

Words. The *budget* of a group of jobs is the number of workers of the jobs in it. A star of the accounting
equal-workers has as many workers as the others and its servers besides; one of equal-cores has fewer workers, so that
workers and servers together have as many cores as the others' workers.
"""

import dataclasses
import shlex
from typing import Dict, List

import device_choice
import machine
import programs

OURS = ("local", "star", "ring", "mpi")
PEERS = ("ddp", "ddp-tuned")
CPU = device_choice.Device()


def tuned(device):
    """What ddp-tuned is, unless the sweep finds it slower."""
    settings = {"data": "ram", "set_to_none": "true", "gradient_as_bucket_view": "true", "static_graph": "true"}
    return settings if device.kind == "cpu" else {**settings, "cudnn_benchmark": "true", "cuda_graph": "true"}


@dataclasses.dataclass
class Command:
    argv: List[str]
    environment: Dict[str, str] = dataclasses.field(default_factory=dict)

    def text(self):
        return [*(f"{name}={value}" for name, value in self.environment.items()), *self.argv]


@dataclasses.dataclass
class Job:
    """`configuration` is one of results.py, its runs to be filled in."""
    configuration: dict
    budget: int
    shared_flags: List[str]  # of worker and peer
    torch: programs.Torch
    settings: Dict[str, str]  # of the peer
    threads: int = 1
    lab: object = None  # a bench.netlab.Netlab
    device: device_choice.Device = CPU
    launch_flags: List[str] = dataclasses.field(default_factory=list)

    @property
    def group(self):
        configuration = self.configuration
        return (configuration["section"], configuration["model"], self.budget, configuration["scaling"])

    def flags(self, record, steps, more=()):
        limit = [f"--max_steps={steps}", "--epochs=100000"] if steps else []
        device = self.device.flags(self.configuration["workers"])
        return [*self.shared_flags, *device, f"--model={self.configuration['model']}", f"--threads={self.threads}",
                f"--global_batch={self.configuration['global_batch']}", *limit, f"--record={record}", *more]

    def commands(self, record, steps, more=()):
        """What is to be started, all at once; the last of them ends when the job does."""
        flags = self.flags(record, steps, more)
        if self.lab is not None:
            return self._lab_commands(flags)
        if self.configuration["sync"] in PEERS:
            cores = ";".join(expand(text) for text in self.configuration["cores"]["worker"])
            return [Command([*self._peer(flags), f"--world_size={self.configuration['workers']}", "--cores=" + cores],
                            programs.ONE_THREAD if self.threads == 1 else {})]
        return [Command([*self._launch(), "--", *flags, *OURS_ONLY])]

    def _peer(self, flags):
        settings = [f"--{name}={value}" for name, value in self.settings.items()]
        return [self.torch.python, programs.peer("train"), *flags, *settings]

    def _launch(self):
        configuration = self.configuration
        argv = [programs.binary("deploy/launch"), "--sync=" + configuration["sync"],
                f"--workers={configuration['workers']}", f"--cores_per_worker={self.threads}"]
        if configuration["servers"]:
            argv += [f"--servers={configuration['servers']}", "--cores_per_server=1"]
        return argv + self.launch_flags

    def _lab_commands(self, flags):
        sync, workers = self.configuration["sync"], self.configuration["workers"]
        worker = [programs.binary("worker/worker"), *flags, *OURS_ONLY]
        if sync == "star":
            secret = self.lab.make_secret(programs.binary("deploy/launch"))
            servers, ranks = self.lab.star_commands([programs.binary("server/server")], worker, secret,
                                                    self.configuration["servers"], workers)
            return [Command(argv) for argv in [*servers, *ranks]]
        if sync in ("ring", "mpi"):
            return [Command(self.lab.mpirun([*worker, "--sync=" + sync], workers), self.lab.environment())]
        places = {"MASTER_ADDR": self.lab.addresses[0], "MASTER_PORT": "7078", "WORLD_SIZE": str(workers),
                  "GLOO_SOCKET_IFNAME": "eth0", **programs.ONE_THREAD}
        return [Command(self.lab.command(rank, self._peer([*flags, "--pin=false"])), {**places, "RANK": str(rank)})
                for rank in range(workers)]


OURS_ONLY = ("--progress=none",)


def expand(text):
    """"0-2,5" to "0,1,2,5"."""
    cores = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return ",".join(map(str, cores))


def _take(cores, first, count):
    return ",".join(map(str, sorted({cores[(first + i) % len(cores)] for i in range(count)})))


def place(cores, workers, servers, threads):
    """Cores of every worker and server, as deploy/launch gives them: workers from the front, servers from the back."""
    backwards = cores[::-1]
    return {"worker": [_take(cores, rank * threads, threads) for rank in range(workers)],
            "server": [_take(backwards, shard, 1) for shard in range(servers)]}


def identity(model, sync, workers, accounting, scaling, section):
    where = "" if section == "machine" else "@" + section
    return f"{model}/{sync}/{workers}w/{accounting}/{scaling}{where}"


class Matrix:
    """Builds the jobs from the options of main.py."""

    def __init__(self, options, torch, peer_settings, device=CPU):
        self.options, self.torch, self.peer_settings, self.device = options, torch, peer_settings, device
        self.cores = machine.cores()
        self.shared_flags = [f"--dataset={options.dataset}", f"--augment={options.augment}", f"--seed={options.seed}",
                             *shlex.split(options.train_flags)]
        if options.data_dir:
            self.shared_flags.append(f"--data_dir={options.data_dir}")

    def job(self, model, sync, workers, scaling, servers=0, accounting="equal-workers", budget=None, lab=None):
        options = self.options
        section = "machine" if lab is None else f"netlab:{lab.hosts},{lab.rate}"
        batch = options.batch_per_worker * workers if scaling == "weak" else options.global_batch
        busy = workers * options.threads + servers
        everywhere = ",".join(map(str, self.cores))
        cores = place(self.cores, workers, servers, options.threads) if lab is None else {
            "worker": [everywhere] * workers, "server": [everywhere] * servers}
        settings = self.peer_settings(model, sync, workers) if sync in PEERS else {}
        configuration = {
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

    def of_group(self, model, workers, scaling, lab=None):
        """Every job of one group, in the order in which they take turns."""
        options = self.options
        jobs = []
        if workers == 1:
            # One worker has nobody to exchange with: one process stands for all of ours.
            if any(sync in OURS for sync in options.syncs):
                jobs.append(self.job(model, "local", 1, scaling, lab=lab))
        else:
            for sync in options.syncs:
                if sync in OURS and sync != "local":
                    servers = (options.servers or workers) if sync == "star" else 0
                    jobs.append(self.job(model, sync, workers, scaling, servers, lab=lab))
            if "star" in options.syncs and scaling == "weak" and lab is None:
                servers = max(1, workers // 4)
                jobs.append(self.job(model, "star", workers - servers, scaling, servers, "equal-cores", workers))
        if self.torch is not None:
            jobs += [self.job(model, sync, workers, scaling, lab=lab) for sync in options.syncs if sync in PEERS]
        return jobs

    def groups(self):
        """[[job of one group] ...] of the section `machine`."""
        found = []
        for model in self.options.models:
            for workers in self.options.workers:
                for scaling in self.options.scaling:
                    # With one worker, a fixed global batch of one worker's size is the same job.
                    same = workers == 1 and self.options.global_batch == self.options.batch_per_worker
                    if scaling == "strong" and same and "weak" in self.options.scaling:
                        continue
                    found.append(self.of_group(model, workers, scaling))
        return [group for group in found if group]
