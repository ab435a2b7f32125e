"""The learning rates of common/arithmetic/optimizer.h in Python. Steps count from 0 over the whole run."""

from __future__ import annotations

import argparse
import math


def learning_rate_at(flags: argparse.Namespace, cosine_steps: int, step: int) -> float:
    if step < flags.warmup_steps:
        return flags.learning_rate * (step + 1) / flags.warmup_steps
    if flags.schedule == "step":
        return flags.learning_rate * flags.decay_gamma ** (step // flags.decay_steps)
    if flags.schedule == "cosine":
        if step >= cosine_steps:
            return 0.0
        progress = (step - flags.warmup_steps) / (cosine_steps - flags.warmup_steps)
        return flags.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
    return flags.learning_rate
