"""The peer's command line: flags with the names and meaning of the worker's, and what PyTorch can be tuned by."""

import argparse

import models


def boolean(text):
    if text.lower() in ("true", "1", "yes"):
        return True
    if text.lower() in ("false", "0", "no"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is not true or false")


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def core_lists(text):
    """"0,1;2,3" to [[0, 1], [2, 3]]."""
    return [[int(core) for core in cores.split(",")] for cores in text.split(";")] if text else []


def _add_training(add):
    add("--model", default="lenet5", choices=sorted(models.MODELS))
    add("--dataset", default="fashion-mnist", choices=["mnist", "fashion-mnist", "cifar10", "synthetic"])
    add("--data_dir", default="")
    add("--epochs", type=positive, default=5)
    add("--max_steps", type=int, default=0, help="0: no limit")
    add("--global_batch", type=positive, default=64)
    add("--optimizer", default="sgd", choices=["sgd", "adamw"])
    add("--learning_rate", type=float, default=0.05)
    add("--momentum", type=float, default=0.9)
    add("--nesterov", type=boolean, nargs="?", const=True, default=False)
    add("--weight_decay", type=float, default=0.0)
    add("--schedule", default="constant", choices=["constant", "step", "cosine"])
    add("--warmup_steps", type=int, default=0)
    add("--decay_steps", type=int, default=0)
    add("--decay_gamma", type=float, default=0.1)
    add("--total_steps", type=int, default=0, help="schedule cosine: step of rate 0; 0: the end of --epochs")
    add("--augment", default="none", choices=["none", "crop_flip"])
    add("--seed", type=int, default=1)


def _add_process(add):
    add("--device", default="auto", choices=["auto", "cpu", "cuda"], help="auto: cuda where PyTorch sees a GPU")
    add("--math", default="fp32", choices=["fp32", "tf32", "bf16"], help="on a GPU; bf16 is autocast")
    add("--share_gpus", type=boolean, nargs="?", const=True, default=False, help="workers may share a GPU")
    add("--threads", type=positive, default=1, help="compute threads per process")
    add("--world_size", type=positive, default=1, help="processes to start; under torchrun its own number counts")
    add("--pin", type=boolean, nargs="?", const=True, default=True, help="spread the processes over the allowed cores")
    add("--cores", type=core_lists, default="", help="instead: the cores of each process, \"0;1\"")
    add("--deadline_s", type=positive, default=60, help="for a peer to answer")
    add("--record", default="")
    add("--record_losses", type=boolean, nargs="?", const=True, default=False, help="the record has every step's loss")


def _add_comparison(add):
    add("--initial_weights", default="", help="a safetensors file of a checkpoint; empty: computed, the same numbers")
    add("--dropout", default="torch", choices=["torch", "starring"],
        help="starring: drops what Starring drops, slowly: to compare losses")
    add("--precision", default="single", choices=["single", "double"],
        help="double: as exactly as PyTorch can, slowly: to compare losses")
    add("--data", default="ram", choices=["ram", "dataloader"])
    add("--loader_workers", type=int, default=2, help="with --data=dataloader: its worker processes")
    add("--set_to_none", type=boolean, default=None, help="of zero_grad; not given: the version's default")
    add("--bucket_cap_mb", type=float, default=25, help="DDP's buckets")
    add("--gradient_as_bucket_view", type=boolean, nargs="?", const=True, default=False)
    add("--static_graph", type=boolean, nargs="?", const=True, default=False)
    add("--channels_last", type=boolean, nargs="?", const=True, default=False)
    add("--foreach", type=boolean, nargs="?", const=True, default=False, help="the optimizer's multi-tensor version")
    add("--fused", type=boolean, nargs="?", const=True, default=False, help="the optimizer as one kernel, on a GPU")
    add("--cuda_graph", type=boolean, nargs="?", const=True, default=False,
        help="capture a step and launch it as a whole, where version, device and backend allow")
    add("--graph_failure", default="", help=argparse.SUPPRESS)  # why the last try of --cuda_graph ended
    add("--cudnn_benchmark", type=boolean, nargs="?", const=True, default=False,
        help="cuDNN tries its algorithms out first")
    add("--deterministic", type=boolean, nargs="?", const=True, default=False, help="the same bits on every run")
    add("--compile", type=boolean, nargs="?", const=True, default=False, help="torch.compile, from PyTorch 2")
    add("--sweep", default="", help="train nothing: try the settings above for a short time each, write the best here")


def parse(arguments=None):
    parser = argparse.ArgumentParser(description="The PyTorch peer.", allow_abbrev=False)
    for add_group in (_add_training, _add_process, _add_comparison):
        add_group(parser.add_argument)
    flags = parser.parse_args(arguments)
    if flags.schedule == "step" and flags.decay_steps < 1:
        parser.error("--schedule=step needs --decay_steps of at least 1")
    if flags.nesterov and flags.momentum <= 0:
        parser.error("--nesterov needs --momentum above 0")
    if flags.device == "cpu" and flags.math != "fp32":
        parser.error(f"--device=cpu computes in fp32, not in {flags.math}: drop one of the two")
    if flags.cores and len(flags.cores) < flags.world_size:
        parser.error(f"--cores has {len(flags.cores)} lists for {flags.world_size} processes")
    return flags


def config(flags, dataset, device, steps_total, cuda_graph):
    """RunConfig of the run record."""
    world_size = device.world_size
    return {
        "sync": "ddp" if world_size > 1 else "local", "world_size": world_size, "server_count": 0,
        "model": flags.model, "dataset": flags.dataset, "data_dir": flags.data_dir, "augment": flags.augment,
        "train_count": len(dataset.train_labels), "test_count": len(dataset.test_labels), "epochs": flags.epochs,
        "max_steps": flags.max_steps, "global_batch": flags.global_batch, "seed": str(flags.seed),
        "optimizer": flags.optimizer, "learning_rate": flags.learning_rate, "momentum": flags.momentum,
        "nesterov": flags.nesterov, "weight_decay": flags.weight_decay, "beta1": 0.9, "beta2": 0.999,
        "epsilon": 1e-8, "schedule": flags.schedule, "warmup_steps": flags.warmup_steps,
        "decay_steps": flags.decay_steps, "decay_gamma": flags.decay_gamma, "total_steps": steps_total,
        "device": device.torch.type, "math": "fp64" if flags.precision == "double" else device.math,
        "cuda_graph": cuda_graph, "cuda_aware_mpi": "", "threads": flags.threads, "isa": "", "conv": "",
        "data_on_gpu": ("on" if flags.data == "ram" else "off") if device.is_gpu else "",
        "loader_threads": flags.loader_workers if flags.data == "dataloader" else 0,
        "bucket_bytes": int(flags.bucket_cap_mb * 1024 * 1024) if world_size > 1 else 0, "lanes": 0, "same_host": "",
        "security": "", "servers": [], "checkpoint_dir": "", "checkpoint_every_epochs": 0,
        "checkpoint_every_steps": 0, "checkpoint_deadline_s": 0, "resume": False, "record": flags.record,
        "trace": "", "tensorboard_dir": "", "tensorboard_every_steps": 0, "metrics_port": -1, "metrics_address": "",
        "share_gpus": flags.share_gpus,
        "join_deadline_s": flags.deadline_s, "exchange_deadline_s": flags.deadline_s, "stall_report_s": 0,
    }
