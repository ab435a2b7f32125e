"""common/learning_rate.h in Python: the rate of a step, counted from 0 over the whole run."""

import math


def learning_rate_at(config, step):
    base = config["learning_rate"]
    warmup = config["warmup_steps"]
    if step < warmup:
        return base * (step + 1) / warmup
    if config["schedule"] == "step":
        return base * config["decay_gamma"] ** (step // config["decay_steps"])
    if config["schedule"] == "cosine":
        span = max(1, config["total_steps"] - warmup)
        return base * 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / span)))
    return base
