"""Names what limits a configuration: data, compute, exchange, straggler or server CPU, and the numbers that show it."""

from __future__ import annotations

import statistics

import results as schema
import sync_cells as cells

STRAGGLER_RATIO = 1.15  # slowest worker's compute time / the median worker's
SERVER_BUSY_PERCENT = 85.0  # for a server that has a core to itself
SERVER_SHARE_MIN = 0.05  # the servers' part of the time of the workers' cores, where both share cores
SHARE_MIN = 0.10  # part of a step: a shorter wait is no bottleneck
# The use of all cores, where servers share the workers' cores. Below it, no process waits for a core.
CORES_BUSY_PERCENT = 75.0
SLOWED_MIN = 1.10  # compute time with servers on the same cores / compute time without


def shares(configuration: schema.Configuration) -> dict[str, float]:
    """Milliseconds of a step and of its kinds, as means over the runs."""
    def mean(*parts: str) -> float:
        return statistics.mean(sum(run["breakdown_ms"].get(part, 0.0) for part in parts)
                               for run in configuration["runs"])
    step = statistics.mean(run["step_ms"]["mean"] for run in configuration["runs"])
    return {"step": step, "data": mean("data_wait", "h2d"), "compute": mean("forward", "backward", "optimizer"),
            "exchange": mean("exposed_exchange")}


def server_percents(configuration: schema.Configuration) -> list[float]:
    """The mean CPU use of each server over the runs."""
    names = {name for run in configuration["runs"] for name in run["cpu_percent"] if name.startswith("server")}
    return [statistics.mean(run["cpu_percent"].get(name, 0.0) for run in configuration["runs"])
            for name in sorted(names)]


def _cores(configuration: schema.Configuration, role: str) -> set[str]:
    return {core for text in configuration["cores"].get(role, []) for core in text.split(",")}


def _cores_percent(configuration: schema.Configuration) -> float:
    """The mean use of the job's cores by all its processes."""
    cores = _cores(configuration, "worker") | _cores(configuration, "server")
    return statistics.mean(sum(run["cpu_percent"].values()) for run in configuration["runs"]) / max(1, len(cores))


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %"


def _of_step(share: dict[str, float], kind: str, step: float) -> str:
    return f"{share[kind]:.2f} of {step:.2f} ms a step ({_percent(share[kind], step)})"


def _server(configuration: schema.Configuration, share: dict[str, float],
            group: list[schema.Configuration]) -> str | None:
    """Why the servers' CPU time limits the job; None if it does not."""
    percents = server_percents(configuration)
    waits = share["exchange"] / share["step"]
    if not percents:
        return None
    shared = _cores(configuration, "worker") & _cores(configuration, "server")
    if not shared:
        if max(percents) < SERVER_BUSY_PERCENT or waits < SHARE_MIN:
            return None
        return (f"the busiest server uses {max(percents):.0f} % of its core, and the workers wait for the exchange for "
                f"{_of_step(share, 'exchange', share['step'])}")
    used = _cores_percent(configuration)
    if used < CORES_BUSY_PERCENT:
        return None
    taken = sum(percents) / (100 * len(_cores(configuration, "worker")))
    others = [shares(other)["compute"] for other in group
              if other["sync"] in cells.WITHOUT_SERVERS and other["workers"] == configuration["workers"]]
    slowed = share["compute"] / min(others) if others else 1.0
    if taken < SERVER_SHARE_MIN or (waits < SHARE_MIN and slowed < SLOWED_MIN):
        return None
    against = (f"; compute takes {share['compute']:.2f} ms, {slowed:.2f} times as long as without servers" if others
               else "")
    return (f"the servers use {sum(percents):.0f} % of a core and share the workers' "
            f"{len(_cores(configuration, 'worker'))} cores, which are {used:.0f} % busy; the exchange is exposed for "
            f"{_of_step(share, 'exchange', share['step'])}{against}")


def find(configuration: schema.Configuration, group: list[schema.Configuration]) -> dict[str, str]:
    """{"name", "why"}. `group` has all configurations that are compared, this one among them."""
    share = shares(configuration)
    step = share["step"]
    ratio = configuration.get("slowest_worker_ratio")
    why = _server(configuration, share, group)
    if why:
        return {"name": "server CPU", "why": why}
    if ratio and ratio >= STRAGGLER_RATIO and share["exchange"] / step >= SHARE_MIN:
        return {"name": "straggler", "why": f"the slowest worker computes {ratio:.2f} times as long as the median one, "
                                            f"and the others wait for it for {_of_step(share, 'exchange', step)}"}
    kind = max(("data", "exchange"), key=lambda name: share[name])
    if share[kind] / step < SHARE_MIN:
        return {"name": "compute", "why": f"forward, backward and optimizer take {_of_step(share, 'compute', step)}, "
                                          f"and the exchange is exposed for {share['exchange']:.2f} ms"}
    if kind == "data":
        return {"name": "data", "why": f"the worker waits for the next batch for {_of_step(share, 'data', step)}, "
                                       f"longer than for the exchange ({share['exchange']:.2f} ms)"}
    sent = statistics.mean(run["exchange_bytes_per_step"]["sent"] for run in configuration["runs"])
    return {"name": "exchange", "why": f"the exchange of {sent / 1e6:.2f} MB is exposed for "
                                       f"{_of_step(share, 'exchange', step)}"}
