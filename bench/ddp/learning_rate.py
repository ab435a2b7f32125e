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
        if step >= config["total_steps"]:
            return 0.0
        return base * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (config["total_steps"] - warmup)))
    return base
