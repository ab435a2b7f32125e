"""The peer's command line: flags with the names and meaning of the worker's, and what PyTorch can be tuned by."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any, Callable, Dict, TYPE_CHECKING

import models

if TYPE_CHECKING:
    from data import Dataset
    from device import Device


def boolean(text: str) -> bool:
    if text.lower() in ("true", "1", "yes"):
        return True
    if text.lower() in ("false", "0", "no"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is not true or false")


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def _model(text: str) -> str:
    try:
        return models.known(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def core_lists(text: str) -> list[list[int]]:
    """"0,1;2,3" to [[0, 1], [2, 3]]."""
    return [[int(core) for core in cores.split(",")] for cores in text.split(";")] if text else []


def _worker_flags() -> Dict[str, Dict[str, Any]]:
    """What the worker's declaration says about each flag; written by bazel run //worker/options:flag_pages."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker_flags.json"), encoding="utf-8") as file:
        return json.load(file)


def _switch(add: Callable[..., argparse.Action], name: str, default: bool | None,
            text: str | None) -> None:
    """A flag that is written --name, --name=true or --name=false."""
    add(name, type=boolean, nargs="?", const=True, default=default, help=text)


def _whole_number(name: str, flag: Dict[str, Any]) -> Callable[[str], int]:
    def convert(text: str) -> int:
        value = int(text)
        if not flag["least"] <= value <= flag["most"]:
            raise argparse.ArgumentTypeError(f"{text} is not from {flag['least']} to {flag['most']}")
        return value

    convert.__name__ = name  # argparse has it in its message if `text` is no number
    return convert


def _add_shared(add: Callable[..., argparse.Action]) -> None:
    """The flags that the worker's declaration gives to the peer too, with the same defaults and limits."""
    for name, flag in _worker_flags().items():
        if not flag["peer"]:
            continue
        text = flag["meaning"].replace("%", "%%")
        if flag["type"] == "bool":
            _switch(add, "--" + name, flag["default"], text)
        elif flag["type"] == "int":
            add("--" + name, type=_whole_number(name, flag), default=int(flag["default"]), help=text)
        elif flag["type"] == "float":
            add("--" + name, type=float, default=float(flag["default"]), help=text)
        elif name == "model":
            add("--model", type=_model, default=flag["default"], help=text)
        else:
            add("--" + name, default=flag["default"], choices=flag.get("choices"), help=text)


def _add_process(add: Callable[..., argparse.Action]) -> None:
    add("--world_size", type=positive, default=1, help="processes to start; under torchrun its own number counts")
    _switch(add, "--pin", True, "spread the processes over the allowed cores")
    add("--cores", type=core_lists, default="", help="instead: the cores of each process, \"0;1\"")
    add("--deadline_s", type=positive, default=60, help="for a peer to answer")


def _add_restarts(add: Callable[..., argparse.Action]) -> None:
    add("--state_file", default="",
        help="rank 0 saves the run to this file; training goes on from it if it exists; empty: nothing is saved")
    add("--state_every_steps", type=positive, default=100, help="steps of the run between two states")
    add("--position_file", default="", help="rank 0 writes the number of finished steps to this file after each step")


def _add_comparison(add: Callable[..., argparse.Action]) -> None:
    add("--initial_weights", default="", help="a safetensors file of a checkpoint; empty: computed, the same numbers")
    add("--dropout", default="torch", choices=["torch", "starring"],
        help="starring: drops the same values as Starring, slowly: to compare losses")
    add("--precision", default="single", choices=["single", "double"],
        help="double: as exactly as PyTorch can, slowly: to compare losses")
    add("--data", default="ram", choices=["ram", "dataloader"])
    add("--loader_workers", type=int, default=2, help="with --data=dataloader: its worker processes")
    add("--set_to_none", type=boolean, default=None, help="of zero_grad; not given: the version's default")
    add("--bucket_cap_mb", type=float, default=25, help="DDP's buckets")
    add("--hook", default="none", choices=["none", "star", "ring"],
        help="star, ring: starring.torch exchanges DDP's buckets, instead of the backend")
    _switch(add, "--gradient_as_bucket_view", False, None)
    _switch(add, "--static_graph", False, None)
    _switch(add, "--channels_last", False, None)
    _switch(add, "--foreach", False, "the optimizer's multi-tensor version")
    _switch(add, "--fused", False, "the optimizer as one kernel, on a GPU")
    _switch(add, "--cuda_graph", False,
            "capture a step and launch it as a whole, where version, device and backend allow")
    add("--graph_failure", default="", help=argparse.SUPPRESS)  # why the last try of --cuda_graph ended
    _switch(add, "--cudnn_benchmark", False, "cuDNN tries its algorithms out first")
    _switch(add, "--deterministic", False, "the same bits on every run")
    _switch(add, "--compile", False, "torch.compile, from PyTorch 2")
    add("--sweep", default="", help="train nothing: try the settings above for a short time each, write the best here")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The PyTorch peer.", allow_abbrev=False)
    for add_group in (_add_shared, _add_process, _add_restarts, _add_comparison):
        add_group(parser.add_argument)
    flags = parser.parse_args(arguments)
    if flags.schedule == "step" and flags.decay_steps < 1:
        parser.error("--schedule=step needs --decay_steps of at least 1")
    if flags.nesterov and flags.momentum <= 0:
        parser.error("--nesterov needs --momentum above 0")
    if flags.device == "cpu" and flags.math != "fp32":
        parser.error(f"--device=cpu computes in fp32, not in {flags.math}: drop one of the two")
    if flags.hook != "none" and flags.precision == "double":
        parser.error(f"--hook={flags.hook} sums float32, and --precision=double is not: drop one of the two")
    if flags.cores and len(flags.cores) < flags.world_size:
        parser.error(f"--cores has {len(flags.cores)} lists for {flags.world_size} processes")
    return flags


def _nothing(flag):
    """The value of a flag that the peer does not have: empty, false, 0, or -1 where that is the worker's "none"."""
    if isinstance(flag["default"], list):
        return []
    return {"bool": False, "int": min(0, flag.get("least", 0)), "float": 0.0, "str": ""}[flag["type"]]


def _sync(flags: argparse.Namespace, world_size: int) -> str:
    if world_size == 1:
        return "local"
    return "ddp" if flags.hook == "none" else "ddp+" + flags.hook


def config(flags: argparse.Namespace, dataset: Dataset, device: Device, steps_total: int,
           cuda_graph: bool) -> Dict[str, Any]:
    """`config` of the run record: every flag that the worker's record has, and what the peer itself has to say."""
    world_size = device.world_size
    values = {name: getattr(flags, name) if flag["peer"] else _nothing(flag) for name, flag in _worker_flags().items()}
    values.update({
        "sync": _sync(flags, world_size), "world_size": world_size, "server_count": 0, "security": "",
        "chunk_bytes": 0, "deterministic": flags.deterministic,
        "train_count": len(dataset.train_labels), "test_count": len(dataset.test_labels), "seed": str(flags.seed),
        "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "total_steps": steps_total, "device": device.torch.type,
        "math": "fp64" if flags.precision == "double" else device.math, "cuda_graph": cuda_graph,
        "data_on_gpu": ("on" if flags.data == "ram" else "off") if device.is_gpu else "",
        "loader_threads": flags.loader_workers if flags.data == "dataloader" else 0,
        "bucket_bytes": int(flags.bucket_cap_mb * 1024 * 1024) if world_size > 1 else 0,
        "join_deadline_s": flags.deadline_s, "exchange_deadline_s": flags.deadline_s,
    })
    return values
