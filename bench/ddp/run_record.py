"""The run record of proto/starring/v1/run_record.proto, as Starring's rank 0 writes it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from typing import Any

import numpy as np
import torch

VERSION = 3  # kRunRecordVersion of worker/report/run_record.h
ALIGNMENT_ELEMENTS = 16  # common/job/layout.h: each tensor starts on a 64-byte boundary


def _in_our_order(name: str, tensor: torch.Tensor, flattened: dict[str, tuple[int, int, int]]) -> np.ndarray:
    array = tensor.detach().to(torch.float32).cpu().numpy()
    if array.ndim in (3, 4):  # channels, height and width, which come last
        return np.moveaxis(array, -3, -1)
    if name in flattened:
        return array.reshape(array.shape[0], *flattened[name]).transpose(0, 2, 3, 1)
    return array


def parameter_vector(model: Any) -> np.ndarray:
    """All trainable tensors in one float32 array, in our memory order, each on a 64-byte boundary, gaps zero."""
    parts = []
    parameters, flattened = dict(model.named_parameters()), model.layer_graph.flattened
    for name in model.layer_graph.tensor_names:
        values = _in_our_order(name, parameters[name], flattened).reshape(-1)
        parts += [values, np.zeros(-len(values) % ALIGNMENT_ELEMENTS, np.float32)]
    return np.concatenate(parts).astype("<f4")


def parameter_sha256(model: Any) -> str:
    return hashlib.sha256(parameter_vector(model).tobytes()).hexdigest()


def step_milliseconds(seconds: list[float]) -> dict[str, float]:
    """Quantiles by nearest rank over the measured steps."""
    ordered = np.sort(np.asarray(seconds)) * 1e3
    if len(ordered) == 0:
        return {"p50": 0.0, "p95": 0.0, "p99": 0.0, "max": 0.0, "mean": 0.0, "steps_measured": 0}

    def quantile(q: float) -> float:
        return float(ordered[max(0, int(np.ceil(q * len(ordered))) - 1)])

    return {"p50": quantile(0.50), "p95": quantile(0.95), "p99": quantile(0.99), "max": float(ordered[-1]),
            "mean": float(ordered.mean()), "steps_measured": len(ordered)}


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def host(cores_per_worker: str, gpu: str, versions: dict[str, str]) -> dict[str, Any]:
    """`gpu` is its name, empty where the CPU trains; `versions` are to be listed besides the ones known here."""
    cpu = _cpu_name()
    return {"name": platform.node(), "cpu": cpu, "cores_per_worker": cores_per_worker, "cores_per_server": "",
            "cpu_quota": 0, "device": gpu or cpu, "engines": {},
            "versions": {"torch": torch.__version__, "python": platform.python_version(),
                         "kernel": platform.release(), **versions}}


def write(path: str, record: dict[str, Any]) -> None:
    """Whole or not at all."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
        file.write("\n")
    os.replace(temporary, path)
