#!/usr/bin/env python3
"""Times training steps of PyTorch on one GPU, eager or captured in a CUDA graph; prints one JSON line.

    python3 torch_steps.py --model=lenet5 --batch=64 --mode=captured

The settings favour PyTorch: the normalised data set and the order of samples are in the GPU's memory, a batch is one
gather, cuDNN tries its algorithms first, the optimizer is fused if this PyTorch can, and no step waits for its loss.
After --warmup_s seconds, blocks of steps are timed, each between two synchronisations. The time of a block divided by
its steps is one value, and the median of all blocks is the result. Model, loss and optimizer (SGD with momentum) are
those of train.py. --math: fp32 is exact, tf32 is PyTorch's own switch, bf16 is autocast. --channels_last: the memory
order of images and of convolutions' weights. --device=cpu only shows that the script works.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from typing import Any, Callable, Dict, List

import models
import step_graph
import torch

SAMPLES = 8192  # in the data set; the larger images exceed a GPU's cache


def parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0], allow_abbrev=False)
    parser.add_argument("--model", type=models.known, default="lenet5", help="a name, or the path of a layer file")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--mode", default="eager", choices=["eager", "captured"])
    parser.add_argument("--math", default="fp32", choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--channels_last", action="store_true")
    parser.add_argument("--warmup_s", type=float, default=1, help="seconds of steps before the first block")
    parser.add_argument("--steps", type=int, default=5000, help="least number of timed steps")
    parser.add_argument("--seconds", type=float, default=2, help="least time of the timed steps")
    flags = parser.parse_args()
    if flags.device == "cpu" and (flags.mode, flags.math) != ("eager", "fp32"):
        parser.error("--device=cpu runs --mode=eager --math=fp32 only")
    return flags


def make_optimizer(model: torch.nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """SGD with momentum, in one kernel if this PyTorch has it."""
    settings: Dict[str, Any] = {"lr": 0.05, "momentum": 0.9}
    if device.type == "cuda":
        with contextlib.suppress(TypeError, RuntimeError):  # before PyTorch 2.3
            return torch.optim.SGD(model.parameters(), **{**settings, "fused": True})
    return torch.optim.SGD(model.parameters(), **settings)


class Job:
    """A model, its data and its optimizer on the device."""

    def __init__(self, flags: argparse.Namespace) -> None:
        self.flags = flags
        self.device = torch.device(flags.device)
        torch.manual_seed(1)
        channels, size = (3, 32) if flags.model == "resnet20" else (1, 28)
        self.model: Any = models.create(flags.model, channels, size, size, 10).to(self.device)
        self.mean_loss = models.loss(flags.model, "mean")
        has_classes = models.loss_kind(flags.model) == "softmax"
        layout: Any = torch.channels_last if flags.channels_last else torch.contiguous_format
        self.model = self.model.to(memory_format=layout)
        self.optimizer = make_optimizer(self.model, self.device)
        self.images = torch.randn(SAMPLES, channels, size, size, device=self.device).to(memory_format=layout)
        # Bits, which are numbers, too.
        self.labels = (torch.randint(10, (SAMPLES,), device=self.device) if has_classes else
                       torch.randint(2, (SAMPLES, 10), device=self.device).float())
        self.order = torch.randperm(SAMPLES, device=self.device)
        self.batch_images = torch.empty(flags.batch, channels, size, size, device=self.device, memory_format=layout)
        self.batch_labels = torch.empty_like(self.labels[:flags.batch])
        self.loss = torch.zeros((), device=self.device)
        self.next_sample = 0

    def feed(self) -> None:
        if self.next_sample + self.flags.batch > SAMPLES:
            self.next_sample = 0
        samples = self.order[self.next_sample:self.next_sample + self.flags.batch]
        torch.index_select(self.images, 0, samples, out=self.batch_images)
        torch.index_select(self.labels, 0, samples, out=self.batch_labels)
        self.next_sample += self.flags.batch

    def train(self) -> None:
        """Forward, loss, backward and optimizer: the part that a graph captures."""
        self.optimizer.zero_grad(set_to_none=True)
        # PyTorch looks for a GPU as soon as autocast is made.
        bf16 = self.flags.math == "bf16"
        precision: Any = torch.autocast("cuda", dtype=torch.bfloat16) if bf16 else contextlib.nullcontext()
        with precision:
            loss = self.mean_loss(self.model(self.batch_images), self.batch_labels)
        loss.backward()
        self.optimizer.step()
        self.loss.copy_(loss.detach())

    def capture(self) -> Callable[[], Any]:
        """Follows PyTorch's notes on CUDA graphs: warm-up on another stream, gradients made inside the graph."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(5):
                self.feed()
                self.train()
        torch.cuda.current_stream().wait_stream(side)
        return step_graph.capture(self.train)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def measure(flags: argparse.Namespace) -> dict[str, Any]:
    job = Job(flags)
    train = job.capture() if flags.mode == "captured" else job.train

    def run(steps: int) -> float:
        job.synchronize()
        started = time.perf_counter()
        for _ in range(steps):
            job.feed()
            train()
        job.synchronize()
        return 1e3 * (time.perf_counter() - started) / steps

    # Blocks take some hundredths of a second: much longer than a synchronisation, but short enough for many blocks.
    end = time.perf_counter() + flags.warmup_s
    steps_ms = run(10)
    while time.perf_counter() < end:
        steps_ms = run(max(1, int(30 / steps_ms)))
    block = max(1, min(flags.steps, int(30 / steps_ms)))
    blocks: List[float] = []
    begin = time.perf_counter()
    while len(blocks) * block < flags.steps or time.perf_counter() - begin < flags.seconds:
        blocks.append(run(block))
    if not torch.isfinite(job.loss):
        sys.exit(f"the loss is {job.loss.item()}: nothing was trained")
    name = torch.cuda.get_device_name() if flags.device == "cuda" else "cpu"
    return {"step_ms": statistics.median(blocks), "device": name, "torch": torch.__version__, "blocks_ms": blocks,
            "steps": block * len(blocks)}


def main() -> None:
    flags = parse_flags()
    if flags.device == "cuda":
        if not torch.cuda.is_available():
            sys.exit(f"torch {torch.__version__} sees no GPU")
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = flags.math == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = flags.math == "tf32"
    print(json.dumps(measure(flags)))


if __name__ == "__main__":
    main()
