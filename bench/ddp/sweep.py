"""Which settings make PyTorch fastest at this job: each tried for some steps, on top of the best so far."""

import argparse
import statistics

import torch
import torch.distributed as dist
import train

STEPS = 30  # of each try; the first 10 are warm-up
BUCKETS_MB = (1, 4, 25)
GAIN_MIN = 0.02  # less is noise


def _step_seconds(flags, rank, world_size, data):
    """Median step of the slowest rank: the same number on every rank, so that all choose alike."""
    trainer = train.Trainer(flags, rank, world_size, data)
    trainer.train_epoch(0)
    seconds = torch.tensor([statistics.median(trainer.step_seconds)], dtype=torch.float64)
    if world_size > 1:
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item()


def _candidates(flags, world_size):
    if world_size > 1:
        yield from ({"bucket_cap_mb": megabytes} for megabytes in BUCKETS_MB if megabytes != flags.bucket_cap_mb)
    yield {"channels_last": True}
    yield {"foreach": True}
    if hasattr(torch, "compile"):
        yield {"compile": True}


def find_best(flags, rank, world_size, data):
    """{"settings": {flag: value}, "step_ms": of them, "tried": [...]}."""
    best = argparse.Namespace(**dict(vars(flags), max_steps=STEPS, record_losses=False))
    _step_seconds(best, rank, world_size, data)  # everything is slow the first time
    best_seconds = _step_seconds(best, rank, world_size, data)
    tried = [{"settings": {}, "step_ms": 1e3 * best_seconds}]
    for candidate in _candidates(flags, world_size):
        attempt = argparse.Namespace(**dict(vars(best), **candidate))
        try:
            seconds = _step_seconds(attempt, rank, world_size, data)
        except Exception as error:  # a compiler that is not there, a combination that this version refuses
            tried.append({"settings": candidate, "error": str(error).split("\n")[0]})
            continue
        tried.append({"settings": candidate, "step_ms": 1e3 * seconds})
        if seconds < best_seconds * (1 - GAIN_MIN):
            best, best_seconds = attempt, seconds
    names = ("bucket_cap_mb", "channels_last", "foreach", "compile")
    return {"settings": {name: getattr(best, name) for name in names}, "step_ms": 1e3 * best_seconds, "tried": tried}
