"""Weights of PyTorch as safetensors files, which the worker's checkpoints have.

Eight bytes for the length of a JSON header, that header, and the tensors, with PyTorch's names, shapes and memory order
(https://huggingface.co/docs/safetensors).

    python3 -m starring.weights IN.pt OUT.safetensors     # for worker --warm_start=OUT.safetensors
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import struct
import sys
from typing import Any, Dict, Mapping, Sequence

import torch

_TYPES = {"F32": torch.float32, "I64": torch.int64}
_ALIGNMENT = 64  # of the first tensor


class WeightsError(ValueError):
    """A file is damaged, or belongs to another model. The message names the file, and expected and found."""


def load(path: str) -> Dict[str, torch.Tensor]:
    """The tensors by name."""
    with open(path, "rb") as file:
        content = file.read()
    header_bytes = struct.unpack_from("<Q", content)[0] if len(content) >= 8 else len(content)
    if 8 + header_bytes > len(content):
        raise WeightsError(f"{path}: the file has {len(content)} bytes, its header {header_bytes}: it is no "
                           "safetensors file, or ends early")
    data = memoryview(bytearray(content[8 + header_bytes:]))  # torch warns of memory that cannot be written
    try:
        header = json.loads(content[8:8 + header_bytes])
        return {name: _tensor(path, name, entry, data) for name, entry in header.items() if name != "__metadata__"}
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, WeightsError):
            raise
        raise WeightsError(f"{path}: damaged header: {error}") from error


def _tensor(path: str, name: str, entry: Dict[str, Any], data: memoryview) -> torch.Tensor:
    if entry["dtype"] not in _TYPES:
        raise WeightsError(f"{path}: tensor {name} is {entry['dtype']}, expected F32 or I64")
    dtype, shape, (begin, end) = _TYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    count = 1
    for size in shape:
        count *= size
    bytes_expected = count * (4 if dtype == torch.float32 else 8)
    if not 0 <= begin <= end <= len(data) or end - begin != bytes_expected:
        raise WeightsError(f"{path}: tensor {name} of shape {shape} needs {bytes_expected} bytes, it is in bytes "
                           f"{begin} to {end} of {len(data)}")
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    # A copy, so that one tensor that lives on does not keep the others.
    return torch.frombuffer(data[begin:end], dtype=dtype).clone().reshape(shape)


def save(path: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes the tensors in the order of their names, float32 or int64; whole or not at all."""
    header: Dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts = []
    offset = 0
    for name in sorted(tensors):
        is_whole = not tensors[name].dtype.is_floating_point
        values = tensors[name].detach().to("cpu", torch.int64 if is_whole else torch.float32).contiguous()
        part = values.numpy().tobytes()
        header[name] = {"dtype": "I64" if is_whole else "F32", "shape": list(values.shape),
                        "data_offsets": [offset, offset + len(part)]}
        offset += len(part)
        parts.append(part)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    write_whole(path, struct.pack("<Q", len(text)) + text + b"".join(parts))


def write_whole(path: str, content: bytes) -> None:
    """Writes a file that is never seen half written."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "wb") as file:
        file.write(content)
    os.replace(temporary, path)


def from_torch(path: str) -> Dict[str, torch.Tensor]:
    """The tensors of a file that torch.save has written: a state_dict, or a dictionary that has one under "state_dict",
    "model_state_dict" or "model". A prefix "module.", which DistributedDataParallel puts before names, is left out.

    Reads tensors only, never code (weights_only).
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise WeightsError(f"{path}: cannot be read as a file of tensors alone ({type(error).__name__}): save "
                           "model.state_dict()") from error
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict):
        raise WeightsError(f"{path}: has a {type(content).__name__}, expected a state_dict: save model.state_dict()")
    tensors = {name: tensor for name, tensor in content.items()
               if isinstance(name, str) and isinstance(tensor, torch.Tensor)}
    if not tensors:
        raise WeightsError(f"{path}: has no tensors, but {', '.join(map(str, content)) or 'nothing'}: save "
                           "model.state_dict()")
    prefix = "module."
    if all(name.startswith(prefix) for name in tensors):
        tensors = {name[len(prefix):]: tensor for name, tensor in tensors.items()}
    return tensors


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m starring.weights", formatter_class=argparse.RawTextHelpFormatter,
                                     description="Turns the weights of a PyTorch model into safetensors, from which a "
                                                 "worker begins:\n\n    python3 -m starring.weights IN.pt "
                                                 "OUT.safetensors\n    worker --warm_start=OUT.safetensors ...")
    parser.add_argument("source", metavar="IN", help="a file of torch.save")
    parser.add_argument("out", metavar="OUT", help="the safetensors file")
    flags = parser.parse_args(arguments)
    try:
        tensors = from_torch(flags.source)
        save(flags.out, tensors)
    except (OSError, WeightsError) as error:
        print(f"starring.weights: error: {error}", file=sys.stderr)
        return 2
    print(f"{len(tensors)} tensors in {flags.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
