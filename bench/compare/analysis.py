"""What the results mean: medians and ties, efficiency, bottlenecks, and the verdict. Pure functions of the results.

analyse(results) -> {"verdict": [three sentences], "calls_winner": bool, "groups": [{"model", "workers", "scaling",
"section", "calls_winner", "rows": [{"id", "sync", "accounting", "samples_per_second": {"median", "min", "max",
"spread"}, "step_ms_p50", "ratio_to_best", "tie_with": [ids], "best", "bottleneck": {"name", "why"}, "efficiency"}]}]}

Words. The *spread* of a configuration is (largest - smallest) / median of its runs. Two configurations *tie* when their
medians differ by less than the wider of their two ranges, largest - smallest. The *efficiency* of N workers is their
rate over N times the rate of one: of the same code in one process (`local` for star, ring and mpi), and for a star of
the accounting equal-cores, N counts the servers too.
"""

import statistics

import bottleneck
import verdict

REPEATS_MIN = 2  # one run has no spread, so that any difference would look like one


def group_key(configuration):
    return (configuration.get("section", "machine"), configuration["model"],
            configuration.get("group_workers") or _budget(configuration), configuration["scaling"])


def _budget(configuration):
    servers = configuration["servers"] if configuration["accounting"] == "equal-cores" else 0
    return configuration["workers"] + servers


def rates(configuration):
    """Of its runs, or None without any."""
    values = [run["samples_per_second"] for run in configuration["runs"]]
    if not values:
        return None
    median = statistics.median(values)
    return {"median": median, "min": min(values), "max": max(values), "spread": (max(values) - min(values)) / median}


def tie(one, other):
    """Of two results of `rates`."""
    return abs(one["median"] - other["median"]) < max(one["max"] - one["min"], other["max"] - other["min"])


def disagreements(results, model=None):
    """The entries of `agreement` that failed, of one model or of all."""
    return [entry for entry in results["agreement"]
            if not entry["agrees"] and (model is None or entry["model"] == model)]


def _baseline(results, configuration):
    """The rate of one worker of the same code: in the same section if it was measured there, on the machine else."""
    wanted = configuration["sync"] if configuration["sync"].startswith("ddp") else "local"
    per_worker = configuration["global_batch"] / configuration["workers"]
    found = None
    for other in results["configurations"]:
        identity = (other["workers"], other["sync"], other["model"])
        if identity != (1, wanted, configuration["model"]) or not other["runs"]:
            continue
        section = other.get("section", "machine")
        if section not in ("machine", configuration.get("section", "machine")):
            continue
        wanted_batch = per_worker if configuration["scaling"] == "weak" else configuration["global_batch"]
        # Of the same batch, if there is one: an efficiency of other batches compares two things at once.
        if other["global_batch"] == wanted_batch:
            found = rates(other)["median"]
    return found


def _efficiency(results, configuration, rate):
    # On a lab's shared cores the ideal is not there to be reached.
    if configuration.get("section", "machine") != "machine":
        return None
    baseline = _baseline(results, configuration)
    return rate["median"] / (_budget(configuration) * baseline) if baseline else None


def _group(results, key, configurations):
    section, model, workers, scaling = key
    measured = [(configuration, rates(configuration)) for configuration in configurations]
    measured.sort(key=lambda pair: -pair[1]["median"])
    best_rate = measured[0][1]
    calls_winner = (not disagreements(results, model) and len(measured) > 1 and
                    all(len(configuration["runs"]) >= REPEATS_MIN for configuration in configurations))
    peers = [configuration for configuration, _ in measured]
    rows = []
    for configuration, rate in measured:
        ties = [other["id"] for other, other_rate in measured if other is not configuration and tie(rate, other_rate)]
        rows.append({
            "id": configuration["id"], "sync": configuration["sync"], "accounting": configuration["accounting"],
            "samples_per_second": rate,
            "step_ms_p50": statistics.median(run["step_ms"]["p50"] for run in configuration["runs"]),
            "ratio_to_best": rate["median"] / best_rate["median"], "tie_with": ties,
            "best": calls_winner and rate is best_rate, "bottleneck": bottleneck.find(configuration, peers),
            "efficiency": _efficiency(results, configuration, rate)})
    return {"model": model, "workers": workers, "scaling": scaling, "section": section, "calls_winner": calls_winner,
            "rows": rows}


def analyse(results):
    members = {}
    for configuration in results["configurations"]:
        if configuration["runs"]:
            members.setdefault(group_key(configuration), []).append(configuration)
    groups = [_group(results, key, configurations) for key, configurations in members.items()]
    return {"verdict": verdict.sentences(results, groups, disagreements(results)),
            "calls_winner": any(group["calls_winner"] for group in groups) and not disagreements(results),
            "groups": groups}
