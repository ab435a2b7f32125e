"""What a configuration waits for: data, compute, exchange, straggler or server CPU, with the numbers that say so."""

import statistics

STRAGGLER_RATIO = 1.15  # slowest worker's compute time / the median worker's
SERVER_BUSY_PERCENT = 85.0  # of a server that has a core to itself
SERVER_SHARE_MIN = 0.05  # of the workers' cores, that servers on the same cores take
SHARE_MIN = 0.10  # of a step: below, waiting is no bottleneck
CORES_BUSY_PERCENT = 75.0  # of all cores, where servers share the workers': below, nobody waits for a core
SLOWED_MIN = 1.10  # compute beside servers / compute of the same model without


def shares(configuration):
    """Means over the runs: milliseconds of a step, and of what kind."""
    def mean(*parts):
        return statistics.mean(sum(run["breakdown_ms"].get(part, 0.0) for part in parts)
                               for run in configuration["runs"])
    step = statistics.mean(run["step_ms"]["mean"] for run in configuration["runs"])
    return {"step": step, "data": mean("data_wait", "h2d"), "compute": mean("forward", "backward", "optimizer"),
            "exchange": mean("exposed_exchange")}


def server_percents(configuration):
    """Mean CPU use of each server over the runs."""
    names = {name for run in configuration["runs"] for name in run["cpu_percent"] if name.startswith("server")}
    return [statistics.mean(run["cpu_percent"].get(name, 0.0) for run in configuration["runs"])
            for name in sorted(names)]


def _cores(configuration, role):
    return {core for text in configuration["cores"].get(role, []) for core in text.split(",")}


def _cores_percent(configuration):
    """Mean use of the job's cores by all its processes."""
    cores = _cores(configuration, "worker") | _cores(configuration, "server")
    return statistics.mean(sum(run["cpu_percent"].values()) for run in configuration["runs"]) / max(1, len(cores))


def _percent(part, whole):
    return f"{100 * part / whole:.0f} %"


def _of_step(share, kind, step):
    return f"{share[kind]:.2f} of {step:.2f} ms a step ({_percent(share[kind], step)})"


def _server(configuration, share, group):
    """Why, if the servers' CPU time holds the job up."""
    percents = server_percents(configuration)
    waits = share["exchange"] / share["step"]
    if not percents:
        return None
    shared = _cores(configuration, "worker") & _cores(configuration, "server")
    if not shared:
        if max(percents) < SERVER_BUSY_PERCENT or waits < SHARE_MIN:
            return None
        return (f"the busiest server uses {max(percents):.0f} % of its core, and the workers wait for the exchange "
                f"{_of_step(share, 'exchange', share['step'])}")
    used = _cores_percent(configuration)
    if used < CORES_BUSY_PERCENT:
        return None
    taken = sum(percents) / (100 * len(_cores(configuration, "worker")))
    others = [shares(other)["compute"] for other in group
              if other["sync"] in ("ring", "mpi") and other["workers"] == configuration["workers"]]
    slowed = share["compute"] / min(others) if others else 1.0
    if taken < SERVER_SHARE_MIN or (waits < SHARE_MIN and slowed < SLOWED_MIN):
        return None
    against = f"; compute takes {share['compute']:.2f} ms, {slowed:.2f} times the ring's" if others else ""
    return (f"the servers use {sum(percents):.0f} % of a core of the workers' {len(_cores(configuration, 'worker'))}, "
            f"which are {used:.0f} % busy; the exchange is exposed for {_of_step(share, 'exchange', share['step'])}"
            f"{against}")


def find(configuration, group):
    """{"name", "why"}; `group` are the configurations it is compared with, itself among them."""
    share = shares(configuration)
    step = share["step"]
    ratio = configuration.get("slowest_worker_ratio")
    why = _server(configuration, share, group)
    if why:
        return {"name": "server CPU", "why": why}
    if ratio and ratio >= STRAGGLER_RATIO and share["exchange"] / step >= SHARE_MIN:
        return {"name": "straggler", "why": f"the slowest worker computes {ratio:.2f} times as long as the median one, "
                                            f"and the others wait {_of_step(share, 'exchange', step)}"}
    kind = max(("data", "exchange"), key=lambda name: share[name])
    if share[kind] / step < SHARE_MIN:
        return {"name": "compute", "why": f"forward, backward and optimizer take {_of_step(share, 'compute', step)}, "
                                          f"the exchange is exposed for {share['exchange']:.2f} ms"}
    if kind == "data":
        return {"name": "data", "why": f"the next batch is waited for {_of_step(share, 'data', step)}, longer than the "
                                       f"exchange with {share['exchange']:.2f} ms"}
    sent = statistics.mean(run["exchange_bytes_per_step"]["sent"] for run in configuration["runs"])
    return {"name": "exchange", "why": f"the exchange of {sent / 1e6:.2f} MB is exposed for "
                                       f"{_of_step(share, 'exchange', step)}"}
