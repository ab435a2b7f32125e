"""The command line of the comparison."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ratios
import sync_cells as cells

SYNCS = (*cells.CONTROLS, *cells.SYNCS, "ddp", "ddp-tuned", "ddp+star", "ddp+ring")
UNEVEN_SYNCS = ("ring", "star", cells.ELASTIC, "ddp-tuned")
MODELS = ("logreg", "mlp", "tabular_mlp", "lenet5", "mnist_cnn", "resnet18", "resnet20", "mobilenet_v2")
MATHS = ("fp32", "tf32", "bf16")
QUICK: dict[str, Any] = {"repeats": 2, "uneven_repeats": 1, "steps": 24, "train_epochs": 0, "sweep": False,
                         "loaders": False, "scaling": ["weak"], "exchange_bytes": [4096, 1 << 20]}


def names(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        found = [name for name in text.split(",") if name]
        for name in found:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(allowed)}")
        return list(dict.fromkeys(found))
    return parse


def numbers(text: str) -> list[int]:
    try:
        found = sorted({int(word) for word in text.split(",")})
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers") from error
    if found[0] < 1:
        raise argparse.ArgumentTypeError(f"{found[0]} is below 1")
    return found


def positive(text: str) -> int:
    return numbers(text)[0]


def _models(text: str) -> list[str]:
    """Shipped models by name, and layer files by paths, which have a '/' or a '.'."""
    found = [user_path(name) if "/" in name or "." in name else name for name in text.split(",") if name]
    for name in found:
        if name not in MODELS and not os.path.isfile(name):
            raise argparse.ArgumentTypeError(f"{name!r} is neither one of {', '.join(MODELS)} nor a layer file")
    return list(dict.fromkeys(found))


class Hosts(NamedTuple):
    """The hosts of --hosts."""
    workers: int
    servers: int  # hosts that only servers use
    rate: str


def _hosts(text: str) -> Hosts:
    match = re.fullmatch(r"netlab:(\d+)(?:\+(\d+))?,(\w+)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not like netlab:4,1gbit or, with 4 more hosts for servers, "
                                         "netlab:4+4,1gbit")
    return Hosts(int(match[1]), int(match[2] or 0), match[3])


def user_path(text: str) -> str:
    """`bazel run` starts us in another folder. The user's paths are relative to the folder where the user called it."""
    return os.path.abspath(os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", "."), text))


def _paths(text: str) -> list[str]:
    return [user_path(name) for name in text.split(",") if name]


def _switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is not true or false")
    return text == "true"


def _add_matrix(add: Callable[..., argparse.Action]) -> None:
    known = "; ".join(f"{cell.sync}: {cell.topology} over {cell.transport}, owners {cell.placement}"
                      for cell in cells.CELLS)
    shared = ", ".join(f"{cell.sync} ({cell.topology} over {cell.transport}, owners {cell.placement}, in shared memory)"
                       for cell in cells.IN_MEMORY)
    add("--syncs", type=names(SYNCS), default=["star", "star-mpi", "ring", "mpi", "ddp", "ddp+star", "ddp+ring"],
        help=f"what to compare: the cells ({known}), {shared}, "
             "the controls mpi (MPI_Allreduce), nccl (ncclAllReduce, on GPUs) and ddp, which adds ddp-tuned, "
             "and ddp+star and ddp+ring, which are ddp-tuned with starring.torch's exchange")
    add("--workers", type=numbers, default=[1, 2], help="numbers of workers, separated by commas")
    add("--model", "--models", dest="models", type=_models, default=["lenet5"],
        help="one or several, separated by commas: names, or paths of layer files")
    add("--dataset", default="fashion-mnist", help="a name that the worker's --dataset takes")
    add("--data_dir", default="", help="the folder with the data set")
    add("--augment", default="none", choices=["none", "crop_flip"])
    add("--scaling", type=names(("weak", "strong")), default=["weak", "strong"])
    add("--batch_per_worker", type=positive, default=64, help="for weak scaling")
    add("--global_batch", type=positive, default=64, help="for strong scaling")
    add("--servers", type=int, default=0,
        help="servers of a star; 0: as many as workers, or as --hosts has hosts for them")
    add("--device", default="auto", choices=["auto", "cpu", "cuda"],
        help="device of all jobs; auto: GPUs if worker and PyTorch can use them")
    add("--threads", type=positive, default=1, help="compute threads per worker")
    add("--seed", type=int, default=1)
    add("--train_flags", default="", help="more flags for worker and peer, such as --learning_rate=0.01 --momentum=0.9")


def _add_uneven(add: Callable[..., argparse.Action]) -> None:
    add("--uneven", type=_models, nargs="?", const=["mnist_cnn"], default=None, metavar="MODEL",
        help="also measure ring, star, elastic star and ddp-tuned with one of two workers at half speed, and with a "
             "worker killed every 10 s; without a value the model is mnist_cnn; takes some 50 minutes")
    add("--uneven_repeats", type=positive, default=ratios.REPEATS_MIN,
        help=f"runs of each job of --uneven, in turns; with fewer than {ratios.REPEATS_MIN} nothing is decided")
    add("--uneven_syncs", type=names(UNEVEN_SYNCS), default=list(UNEVEN_SYNCS),
        help=f"what --uneven compares (default: {','.join(UNEVEN_SYNCS)})")


def _add_measuring(add: Callable[..., argparse.Action]) -> None:
    add("--repeats", type=positive, default=ratios.REPEATS_MIN,
        help=f"runs of each job, in turns; with fewer than {ratios.REPEATS_MIN} no winner is called")
    add("--seconds", type=float, default=2.0, help="about how long the fastest job of a group runs")
    add("--steps", type=int, default=0, help="steps of each run; 0: chosen by --seconds")
    add("--train_epochs", type=int, default=3,
        help="epochs of the runs for accuracy, or RMSE, over time; 0: no such runs")
    add("--target_accuracy", type=float, default=0.0,
        help="0: the accuracy that all reach in --train_epochs; a model of numbers has the RMSE that all reach")
    add("--hosts", type=_hosts, default=None,
        help="netlab:4,1gbit: also compare 4 emulated hosts with 1 Gbit/s links; netlab:4+4,1gbit: with 4 more hosts, "
             "for servers alone")
    add("--hosts_models", type=_models, default=None, help="models for --hosts; default: those of --models")
    add("--sweep", type=_switch, default=True, help="search for the best settings of ddp-tuned")
    add("--loaders", type=_switch, default=True, help="measure the loaders alone")
    add("--exchange_bytes", type=numbers, default=None, help="sizes for the exchange alone; default: 4 KB to 64 MB")
    add("--plans", type=_paths, default=[],
        help="files of bench:plan --out, separated by commas: the verdict also says what they predict")
    add("--trace", type=_switch, default=True, help="one more short run of star and ring, with a timeline")
    add("--quick", action="store_true", help="one model, few steps: a smoke test whose timings are meaningless")
    add("--out", default="report", help="the report's folder")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="compare", allow_abbrev=False,
                                     description="Trains the same models by star, ring and PyTorch DDP, measures them "
                                                 "in turns and writes a report.")
    _add_matrix(parser.add_argument)
    _add_measuring(parser.add_argument)
    _add_uneven(parser.add_argument)
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(arguments)
    if "ddp" in options.syncs and "ddp-tuned" not in options.syncs:
        options.syncs.insert(options.syncs.index("ddp") + 1, "ddp-tuned")
    if options.quick:
        given = {word.partition("=")[0].lstrip("-") for word in arguments}
        for name, value in QUICK.items():
            if name not in given:
                setattr(options, name, value)
        options.models = options.models[:1]
    options.math = next((word.partition("=")[2] for word in reversed(shlex.split(options.train_flags))
                         if word.startswith("--math=")), "fp32")
    if options.math not in MATHS:
        parser.error(f"--math={options.math} of --train_flags is not one of {', '.join(MATHS)}")
    options.hosts_models = options.hosts_models or options.models
    if options.uneven is not None:
        if len(options.uneven) != 1:
            parser.error(f"--uneven={','.join(options.uneven)}: give one model")
        if not options.uneven_syncs:
            parser.error("--uneven_syncs names nothing that --uneven could measure")
        options.uneven = options.uneven[0]
    elif any(word.startswith("--uneven_") for word in arguments):
        parser.error("--uneven_repeats and --uneven_syncs are for --uneven: give it, too")
    if options.data_dir:
        options.data_dir = user_path(options.data_dir)
    return options
