"""Makes results for tests, with runs of given rates, and labs whose commands can be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netlab import Netlab


def make_run(rate: float, batch: int = 128, repeat: int = 0, exchange: float = 0.1, data: float = 0.01,
             compute: float | None = None) -> dict[str, Any]:
    """A run of one rate; the rest of its step is compute."""
    mean = 1e3 * batch / rate
    compute = mean - exchange - data if compute is None else compute
    return {"repeat": repeat, "samples_per_second": rate, "seconds_per_epoch": 60000 / rate, "steps_measured": 90,
            "warmup_steps": 10, "step_ms": {"p50": mean, "p95": mean, "p99": mean, "mean": mean, "max": mean},
            "breakdown_ms": {"data_wait": data, "h2d": 0.0, "forward": compute / 2, "backward": compute / 2,
                             "exposed_exchange": exchange, "optimizer": 0.0, "other": 0.0},
            "exchange_bytes_per_step": {"sent": 1e6, "received": 1e6}, "gpu": None, "load": 0.1, "clock_mhz": None,
            "cpu_percent": {"worker 0": 99.0}, "parameter_sha256": "d", "deterministic": True}


def make_configuration(sync: str, rates: Sequence[float], workers: int = 2, servers: int = 0,
                       accounting: str = "equal-workers", scaling: str = "weak", model: str = "lenet5",
                       section: str = "machine", **more: Any) -> dict[str, Any]:
    """A configuration with one run for each of `rates`; `more` goes to make_run."""
    batch = 64 * workers if scaling == "weak" else 64
    where = "" if section == "machine" else "@" + section
    return {"id": f"{model}/{sync}/{workers}w/{accounting}/{scaling}{where}", "sync": sync, "model": model,
            "dataset": "fashion-mnist", "section": section, "workers": workers, "servers": servers,
            "accounting": accounting, "scaling": scaling, "global_batch": batch,
            "cores": {"worker": [str(i) for i in range(workers)], "server": [str(i) for i in range(servers)]},
            "oversubscribed": workers + servers > 2, "command": [], "trace": None, "slowest_worker_ratio": 1.0,
            "runs": [make_run(rate, batch, i, **more) for i, rate in enumerate(rates)]}


def make_gpu_cells() -> dict[str, Any]:
    """As bench/gpu_exchange.py records it, with three repeats."""
    def job(name: str, p50s: Sequence[float], digest: str, waits: float = 0.0,
            gpu: float | None = None) -> dict[str, Any]:
        return {"model": "mlp", "job": name, "samples": [
            {"p50_ms": p50, "waits_ms": waits, "gpu_ms": gpu, "digests": [digest * 32]} for p50 in p50s]}
    jobs = [job("one process", [0.3], "1a"), job("control", [0.5, 0.6, 0.7], "2b"),
            job("ring:tcp:--same_host=gpu_memory", [0.6, 0.8, 1.1], "3c", 0.31, 0.25),
            job("ddp", [6.4, 6.6, 6.9], "4d", 5.5)]
    failures = [{"model": "mlp", "job": "nccl:tcp", "why": "exit status 2: no NCCL"}]
    return {"device": "cuda:0 (a GPU)", "batch": 512, "problems": [], "jobs": jobs, "failures": failures}


def make_lab(hosts: int = 4, server_hosts: int = 0) -> Netlab:
    """A lab that is not there: its commands can be made, but not run."""
    made: Any = Netlab(hosts, "1gbit", server_hosts)
    made._processes = [1000 + host for host in range(hosts + server_hosts)]
    made.make_secret = lambda launch: "SECRET"
    return made


def host_of(argv: Sequence[str]) -> int:
    """The host of a command of make_lab()."""
    return int(argv[1].partition("=")[2]) - 1000
