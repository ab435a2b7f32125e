"""Reads the safetensors files of Starring's checkpoints: eight bytes for the length of a JSON header, that header, and
the tensors."""

from __future__ import annotations

import json
import struct

import numpy as np
import torch


def load(path: str) -> dict[str, torch.Tensor]:
    """The float32 tensors by name."""
    with open(path, "rb") as file:
        content = file.read()
    header_bytes = struct.unpack_from("<Q", content)[0] if len(content) >= 8 else 0
    header = json.loads(content[8:8 + header_bytes]) if header_bytes else {}
    tensors = {}
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        if tensor["dtype"] != "F32":
            raise ValueError(f"{path}: tensor {name} is {tensor['dtype']}, expected F32")
        begin, end = (8 + header_bytes + offset for offset in tensor["data_offsets"])
        values = np.frombuffer(content[begin:end], "<f4").reshape(tensor["shape"])
        tensors[name] = torch.from_numpy(values.copy())
    return tensors


def load_into(model: torch.nn.Module, path: str) -> None:
    """Sets all parameters of `model` from the file. Running statistics keep their initial values."""
    tensors = load(path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in tensors or tensors[name].shape != parameter.shape:
                found = tuple(tensors[name].shape) if name in tensors else "none"
                raise ValueError(f"{path}: tensor {name} of shape {tuple(parameter.shape)} is needed, found {found}: "
                                 "is the file from another --model?")
            parameter.copy_(tensors[name])
