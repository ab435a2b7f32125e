"""Which settings make PyTorch fastest at this job: each tried for some steps, on top of the best so far."""

import argparse
import statistics

import step_graph
import torch
import trainer

STEPS = 30  # of each try; the first of them are warm-up
BUCKETS_MB = (1, 4, 25)
GAIN_MIN = 0.02  # less is noise
SETTINGS = ("bucket_cap_mb", "channels_last", "foreach", "fused", "compile", "cuda_graph")


def _step_seconds(flags, rank, device, data):
    """Median step of the slowest rank: the same number on every rank, so that all choose alike."""
    tried = trainer.Trainer(flags, rank, device, data)
    tried.train_epoch(0)
    return device.max_over_ranks([statistics.median(tried.step_seconds)])[0]


def _candidates(flags, device):
    if device.world_size > 1:
        yield from ({"bucket_cap_mb": megabytes} for megabytes in BUCKETS_MB if megabytes != flags.bucket_cap_mb)
    yield {"channels_last": True}
    yield {"foreach": True}
    if device.is_gpu:
        yield {"fused": True, "foreach": False}
    if hasattr(torch, "compile"):
        yield {"compile": True}
    if device.is_gpu:
        yield {"cuda_graph": True}  # last: a capture that fails may leave a process that computes no more


def find_best(flags, rank, device, data):
    """{"settings": {flag: value}, "step_ms": of them, "tried": [...]}."""
    best = argparse.Namespace(**dict(vars(flags), max_steps=STEPS, record_losses=False, cuda_graph=False))
    _step_seconds(best, rank, device, data)  # everything is slow the first time
    best_seconds = _step_seconds(best, rank, device, data)
    tried = [{"settings": {}, "step_ms": 1e3 * best_seconds}]
    for candidate in _candidates(flags, device):
        attempt = argparse.Namespace(**dict(vars(best), **candidate))
        try:
            obstacle = step_graph.obstacle(attempt, device)
            if attempt.cuda_graph and obstacle:
                raise step_graph.CaptureError(obstacle)
            seconds = _step_seconds(attempt, rank, device, data)
        except Exception as error:  # a compiler that is not there, a combination that this version refuses
            tried.append({"settings": candidate, "error": str(error).split("\n")[0]})
            continue
        tried.append({"settings": candidate, "step_ms": 1e3 * seconds})
        if seconds < best_seconds * (1 - GAIN_MIN):
            best, best_seconds = attempt, seconds
    return {"settings": {name: getattr(best, name) for name in SETTINGS}, "step_ms": 1e3 * best_seconds, "tried": tried}
