"""Searches the settings that make PyTorch fastest at this job: tries each for some steps, on top of the best so far."""

from __future__ import annotations

import argparse
import statistics
from typing import Any, Dict, Iterator, List

import step_graph
import torch
import trainer
from device import Device

STEPS = 30  # of each attempt; the first ones are warm-up
BUCKETS_MB = (1, 4, 25)
GAIN_MIN = 0.02  # a smaller gain is noise
SETTINGS = ("bucket_cap_mb", "channels_last", "foreach", "fused", "compile", "cuda_graph")


def _step_seconds(flags: argparse.Namespace, rank: int, device: Device, data: trainer.Data) -> float:
    """The median step of the slowest rank. All ranks get the same number, so that they choose the same settings."""
    tried = trainer.Trainer(flags, rank, device, data)
    tried.train_epoch(0)
    tried.close()
    return device.max_over_ranks([statistics.median(tried.step_seconds)])[0]


def _candidates(flags: argparse.Namespace, device: Device) -> Iterator[dict[str, Any]]:
    if device.world_size > 1:
        yield from ({"bucket_cap_mb": megabytes} for megabytes in BUCKETS_MB if megabytes != flags.bucket_cap_mb)
    if flags.hook != "none":
        return  # the rest does not depend on the exchange: it is taken from the sweep without a hook
    yield {"channels_last": True}
    yield {"foreach": True}
    if device.is_gpu:
        yield {"fused": True, "foreach": False}
    if hasattr(torch, "compile"):
        yield {"compile": True}
    if device.is_gpu:
        yield {"cuda_graph": True}  # last, because a process may be unusable after a failed capture


def find_best(flags: argparse.Namespace, rank: int, device: Device, data: trainer.Data) -> dict[str, Any]:
    """{"settings": {flag: value}, "step_ms": their time, "tried": [...]}."""
    best = argparse.Namespace(**dict(vars(flags), max_steps=STEPS, record_losses=False, cuda_graph=False))
    _step_seconds(best, rank, device, data)  # the first steps of a process are slow
    best_seconds = _step_seconds(best, rank, device, data)
    tried: List[Dict[str, Any]] = [{"settings": {}, "step_ms": 1e3 * best_seconds}]
    for candidate in _candidates(flags, device):
        attempt = argparse.Namespace(**dict(vars(best), **candidate))
        try:
            obstacle = step_graph.obstacle(attempt, device)
            if attempt.cuda_graph and obstacle:
                raise step_graph.CaptureError(obstacle)
            seconds = _step_seconds(attempt, rank, device, data)
        except Exception as error:  # for example a missing compiler, or a combination that this version refuses
            tried.append({"settings": candidate, "error": str(error).split("\n")[0]})
            continue
        tried.append({"settings": candidate, "step_ms": 1e3 * seconds})
        if seconds < best_seconds * (1 - GAIN_MIN):
            best, best_seconds = attempt, seconds
    return {"settings": {name: getattr(best, name) for name in SETTINGS}, "step_ms": 1e3 * best_seconds, "tried": tried}
