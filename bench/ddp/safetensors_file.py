"""Sets a model's parameters from the safetensors file of a checkpoint."""

from __future__ import annotations

import torch
from starring import weights


def load_into(model: torch.nn.Module, path: str) -> None:
    """Sets all parameters of `model` from the file. Running statistics keep their initial values."""
    tensors = weights.load(path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in tensors or tensors[name].shape != parameter.shape:
                found = tuple(tensors[name].shape) if name in tensors else "none"
                raise ValueError(f"{path}: tensor {name} of shape {tuple(parameter.shape)} is needed, found {found}: "
                                 "is the file from another --model?")
            parameter.copy_(tensors[name])
