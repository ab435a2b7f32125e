"""One rank's training: its data, its model, the loop over steps and epochs, and the run record.

On a GPU no step waits for the GPU: losses and times are read when the epoch is over.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
import time
from typing import Any, Dict, Iterable, Iterator, List, Sequence, Tuple, Union

import data as data_files
import models  # first: it finds the package starring
import numpy as np
import options
import philox
import philox_dropout
import quality
import run_record
import safetensors_file
import step_graph
import torch
from batches import DataLoaderBatches, GpuBatches, Normalization, RamBatches, Sampler
from device import Device
from learning_rate import learning_rate_at
from processor_use import ProcessorUse
from state_file import StateFile
from step_clock import GpuClock, HostClock, StepTime

EVALUATION_BATCH = 1000
PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "worker", "python")  # starring
WARMUP_STEPS_MAX = 10  # not timed; the same number as in worker/train/trainer.cc


def make_optimizer(flags: argparse.Namespace, parameters: Iterable[torch.nn.Parameter],
                   captured: bool) -> torch.optim.Optimizer:
    # Unset flags are not passed: older versions do not know all of them, and the default depends on the version.
    more: Dict[str, Any] = {name: True for name in ("foreach", "fused") if getattr(flags, name)}
    if flags.optimizer == "adamw":
        if captured:
            more["capturable"] = True
        return torch.optim.AdamW(parameters, lr=flags.learning_rate, weight_decay=flags.weight_decay, **more)
    return torch.optim.SGD(parameters, lr=flags.learning_rate, momentum=flags.momentum, nesterov=flags.nesterov,
                           weight_decay=flags.weight_decay, **more)


class Data:
    """The data set, this rank's batches and its part of the test set."""
    batches: Union[DataLoaderBatches, GpuBatches, RamBatches]

    def __init__(self, flags: argparse.Namespace, rank: int, device: Device) -> None:
        world_size = device.world_size
        self.dataset = data_files.load(flags)
        self.sampler = Sampler(len(self.dataset.train_labels), flags.global_batch, rank, world_size, flags.seed)
        if flags.data == "dataloader":
            self.batches = DataLoaderBatches(self.dataset, self.sampler, flags.augment, flags.loader_workers,
                                             device.torch)
        elif device.is_gpu:
            self.batches = GpuBatches(self.dataset, self.sampler, flags.augment, device.torch)
        else:
            self.batches = RamBatches(self.dataset, self.sampler, flags.augment)
        count = len(self.dataset.test_labels)
        begin, end = count * rank // world_size, count * (rank + 1) // world_size
        pixels = torch.from_numpy(np.array(self.dataset.test_images[begin:end])).to(device.torch)
        self.test_images = Normalization(self.dataset, device.torch)(pixels)
        self.test_labels = torch.from_numpy(self.dataset.test_labels[begin:end]).to(device.torch)


class Trainer:
    """Trains one rank and writes its run record."""

    def __init__(self, flags: argparse.Namespace, rank: int, device: Device, data: Data) -> None:
        self.flags, self.rank, self.device, self.data = flags, rank, device, data
        self.world_size = device.world_size
        dataset = data.dataset
        channels, height, width = dataset.train_images.shape[1:]
        self.model = models.create(flags.model, channels, height, width, dataset.outputs)
        self.loss_kind = models.loss_kind(flags.model)
        self.loss_sum = models.loss(flags.model, "sum")  # of training and of the test, as the worker's
        if flags.initial_weights:
            safetensors_file.load_into(self.model, flags.initial_weights)
        else:
            philox.initialize(self.model, flags.seed)
        torch.manual_seed(flags.seed * 7919 + rank)  # PyTorch's own dropout differs between ranks
        self.dropouts = philox_dropout.install(self.model, flags.seed) if flags.dropout == "starring" else []
        if flags.precision == "double":
            self.model.double().register_forward_pre_hook(lambda _, inputs: tuple(part.double() for part in inputs))
        self.format = torch.channels_last if flags.channels_last else torch.contiguous_format
        self.model = self.model.to(device.torch, memory_format=self.format)
        self.no_graph = step_graph.obstacle(flags, device) if flags.cuda_graph else "not asked for"
        self.stream = None if self.no_graph else torch.cuda.Stream()
        self.clock = GpuClock() if device.is_gpu else HostClock()
        with self._off_the_default_stream():
            self.replica = self._replicated()
        if flags.compile:
            self.replica = torch.compile(self.replica)
        self.attachment = self._attached()
        self.optimizer = make_optimizer(flags, self.model.parameters(), captured=not self.no_graph)
        self.graph = None if self.no_graph else step_graph.GraphedStep(
            functools.partial(self._compute, flags.global_batch))
        self.state_file = StateFile(flags, rank)
        self.step = self.state_file.restore(self.model, self.optimizer, device.torch)
        if self.step > 0:
            # Otherwise the next steps would drop the values that the run's first steps dropped.
            torch.manual_seed((flags.seed * 7919 + rank) * 1_000_003 + self.step)
        self.steps_total = data.sampler.steps_per_epoch() * flags.epochs
        self.cosine_steps = flags.total_steps or self.steps_total
        if flags.max_steps > 0:
            self.steps_total = min(self.steps_total, flags.max_steps)
        if self.step >= self.steps_total:
            raise data_files.DataError(f"{flags.state_file} has all {self.steps_total} steps of the run: give another "
                                       "file, or more --epochs")
        # The capture step is not timed either.
        self.warmup_steps = self.step + min(step_graph.EAGER_STEPS + 1 if self.graph else WARMUP_STEPS_MAX,
                                            (self.steps_total - self.step) // 2)
        self.config = options.config(flags, dataset, device, self.steps_total, self.graph is not None)
        self.first_step = self.step
        self.step_seconds: List[float] = []
        self.parts = dict.fromkeys(("data_wait", "h2d", "forward", "backward", "exposed_exchange", "optimizer"), 0.0)
        self.epochs: List[Dict[str, Any]] = []
        self.losses: List[Tuple[int, float, float]] = []  # step, seconds, this rank's part of the loss
        self.seconds_before_epoch = 0.0
        self.processor_use = ProcessorUse()

    def _replicated(self) -> torch.nn.Module:
        if self.world_size == 1:
            return self.model
        flags = self.flags
        replica = torch.nn.parallel.DistributedDataParallel(
            self.model, device_ids=[self.device.torch] if self.device.is_gpu else None,
            bucket_cap_mb=flags.bucket_cap_mb, gradient_as_bucket_view=flags.gradient_as_bucket_view,
            static_graph=flags.static_graph)
        # Backward ends with the gradient of the layer file's first tensor. The rest of the time is exchange.
        # The hook must not refer to self: DDP and the hook would form a cycle that the garbage collector cannot see.
        clock = self.clock
        first = dict(self.model.named_parameters())[self.model.layer_graph.tensor_names[0]]
        first.register_hook(lambda gradient: clock.done("backward"))
        return replica

    def _attached(self) -> Any:
        """The exchange of --hook, or None. Only who asks for it needs the package and its library."""
        if self.flags.hook == "none" or self.world_size == 1:
            return None
        sys.path.append(PACKAGE)
        import starring.torch
        return starring.torch.attach(self.replica, sync=self.flags.hook, join_deadline_s=self.flags.deadline_s,
                                     exchange_deadline_s=self.flags.deadline_s)

    def close(self) -> None:
        """Ends the exchange of --hook. All ranks call it after the same step."""
        if self.attachment is not None:
            self.attachment.close()

    @contextlib.contextmanager
    def _off_the_default_stream(self) -> Iterator[None]:
        """Runs a block on the stream for captures. Without captures it does nothing."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield
        torch.cuda.current_stream().wait_stream(self.stream)

    def _loss(self, images: torch.Tensor, labels: torch.Tensor, global_count: int) -> tuple[torch.Tensor, torch.Tensor]:
        # DDP divides the summed gradients by the world size, but the loss is a mean over the global batch.
        with self.device.autocast():
            loss_sum = self.loss_sum(self.replica(images), labels)
        return loss_sum, loss_sum * (self.world_size / global_count)

    def _zero_grad(self) -> None:
        if self.flags.set_to_none is None:
            self.optimizer.zero_grad()
        else:
            self.optimizer.zero_grad(set_to_none=self.flags.set_to_none)

    def _train_step(self, global_count: int, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns this rank's summed loss, on the device."""
        for dropout in self.dropouts:
            dropout.prepare(self.step, global_count * self.rank // self.world_size)
        rate = learning_rate_at(self.flags, self.cosine_steps, self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.graph is None or global_count < self.flags.global_batch:
            return self._compute(global_count, *tensors)
        loss_sum = self.graph(rate, tensors)
        self.clock.done("backward")  # the parts of a graph cannot be timed
        return loss_sum

    def _compute(self, global_count: int, *tensors: torch.Tensor) -> torch.Tensor:
        """The part of a step that runs on the device and that a graph captures."""
        batches: Any = self.data.batches
        images, labels = batches.load(*tensors)
        self.clock.done(self.data.batches.load_part)
        if self.flags.channels_last:
            images = images.contiguous(memory_format=self.format)
        self._zero_grad()
        loss_sum, loss = self._loss(images, labels, global_count)
        self.clock.done("forward")
        loss.backward()
        self.clock.done("exposed_exchange" if self.world_size > 1 else "backward")
        if self.flags.clip_norm > 0:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.flags.clip_norm)
        self.optimizer.step()
        self.clock.done("optimizer")
        return loss_sum.detach()

    def train_epoch(self, epoch: int) -> tuple[float, int, float]:
        """Returns this rank's summed loss, the samples of the global batches, and the seconds."""
        batches = self.data.batches.epoch(epoch, self.step % self.data.sampler.steps_per_epoch())
        losses: List[torch.Tensor] = []
        counts: List[int] = []
        samples = 0
        with self._off_the_default_stream():
            started = time.perf_counter()
            self.clock.start_step()
            for global_count, tensors in batches:
                if self.step >= self.warmup_steps:
                    self.processor_use.resume()
                self.clock.done("data_wait")
                losses.append(self._train_step(global_count, tensors))
                counts.append(global_count)
                samples += global_count
                self.step += 1
                self.state_file.after_step(self.step, self.model, self.optimizer)
                self._show_progress(epoch, samples, started)
                if self.step >= self.steps_total:
                    break
                self.clock.start_step()
            times = self.clock.read()
        self.processor_use.pause()
        seconds = time.perf_counter() - started
        values = torch.stack(losses).tolist()
        self._keep(times, values, counts)
        self.seconds_before_epoch += seconds
        return sum(values), samples, seconds

    def _keep(self, times: List[StepTime], losses: List[float], counts: List[int]) -> None:
        for step, (time_of, loss, count) in enumerate(zip(times, losses, counts), self.step - len(losses)):
            if step >= self.warmup_steps:
                self.step_seconds.append(time_of.end - time_of.begin)
                for part, seconds in time_of.parts.items():
                    self.parts[part] += seconds
            if self.flags.record_losses:
                self.losses.append((step, self.seconds_before_epoch + time_of.end, loss / count))

    def _show_progress(self, epoch: int, samples: int, started: float) -> None:
        if self.rank == 0 and self.step % 50 == 0 and sys.stdout.isatty():
            rate = samples / (time.perf_counter() - started)
            print(f"\repoch {epoch}  step {self.step}/{self.steps_total}  {rate:.0f} samples/s ", end="", flush=True)

    def _evaluate(self) -> tuple[list[float], torch.Tensor]:
        """Correct answers, summed loss and samples of this rank's part of the test set, and the model's outputs."""
        correct, loss_sum = 0, 0.0
        outputs = [torch.empty(0, self.data.dataset.outputs)]
        images_of, labels_of = self.data.test_images, self.data.test_labels
        self.model.eval()
        with torch.no_grad():
            for begin in range(0, len(labels_of), EVALUATION_BATCH):
                labels = labels_of[begin:begin + EVALUATION_BATCH]
                with self.device.autocast():
                    logits = self.model(images_of[begin:begin + EVALUATION_BATCH])
                    loss_sum += self.loss_sum(logits, labels).item()
                correct += int(quality.right(self.loss_kind, logits, labels).sum())
                outputs.append(logits.float().cpu())
        self.model.train()
        return [correct, loss_sum, len(labels_of)], torch.cat(outputs)

    def run(self) -> dict[str, Any]:
        while self.step < self.steps_total:
            epoch = self.step // self.data.sampler.steps_per_epoch()
            loss_sum, samples, seconds = self.train_epoch(epoch)
            evaluated, outputs = self._evaluate()
            totals = self.device.sum_over_ranks([loss_sum] + evaluated)
            result = {"epoch": epoch, "train_loss": totals[0] / samples, "test_accuracy": totals[1] / totals[3],
                      "seconds": seconds, "samples_per_second": samples / seconds, "test_loss": totals[2] / totals[3]}
            self.epochs.append(result)
            if self.rank == 0:
                score = quality.score(self.loss_kind, result["test_loss"], result["test_accuracy"])
                print(f"{chr(13) if sys.stdout.isatty() else ''}epoch {epoch}  loss {result['train_loss']:.4f}  test "
                      f"{score}  {result['samples_per_second']:.0f} samples/s", flush=True)
        test = quality.measure(outputs.numpy(), self.data.dataset.test_labels,
                               {"loss": self.loss_kind, "mean_loss": result["test_loss"],
                                "accuracy": result["test_accuracy"]}, self.rank, self.device)
        return self._record(run_record.parameter_sha256(self.model), test)

    def _worker_uses(self, compute_ms: float) -> list[dict[str, float]]:
        """WorkerUse of every rank, on every rank: each rank adds its numbers to zeros of the others."""
        mine = [0.0] * (2 * self.world_size)
        mine[2 * self.rank:2 * self.rank + 2] = [compute_ms, self.processor_use.percent()]
        values = self.device.sum_over_ranks(mine)
        return [{"compute_ms": values[i], "cpu_percent": values[i + 1]} for i in range(0, len(values), 2)]

    def _versions(self) -> dict[str, str]:
        refused = {"cuda_graph": "none: " + self.no_graph} if self.flags.cuda_graph and self.no_graph else {}
        return {**self.device.versions(), **refused, **self._buckets()}

    def _buckets(self) -> dict[str, str]:
        """The bytes of DDP's buckets in the order of backward, and of the whole vector. Empty if DDP does not tell."""
        replica = getattr(self.replica, "_orig_mod", self.replica)  # of torch.compile
        if self.world_size == 1 or not hasattr(replica, "_get_ddp_logging_data"):
            return {}
        told = replica._get_ddp_logging_data()
        sizes = told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes", "")
        return {"buckets": sizes.replace(" ", ""),
                "parameter_bytes": str(run_record.parameter_vector(self.model).nbytes)}

    def _step_losses(self) -> list[dict[str, float]]:
        losses = self.device.sum_over_ranks([loss for _, _, loss in self.losses]) if self.losses else []
        return [{"step": step, "seconds": seconds, "loss": loss}
                for (step, seconds, _), loss in zip(self.losses, losses)]

    def _record(self, sha256: str, test: dict[str, Any]) -> dict[str, Any]:
        measured = max(1, len(self.step_seconds))
        breakdown = {part: 1e3 * seconds / measured for part, seconds in self.parts.items()}
        step_ms = run_record.step_milliseconds(self.step_seconds)
        breakdown["other"] = max(0.0, step_ms["mean"] - sum(breakdown.values()))
        # In a ring allreduce every rank sends and receives 2 (N - 1) / N of the gradients in every step.
        parameter_bytes = 4 * sum(p.numel() for p in self.model.parameters())
        bytes_per_step = parameter_bytes * 2 * (self.world_size - 1) / self.world_size
        steps = self.step - self.first_step
        exchanged = float(round(bytes_per_step * steps))
        cores = ";".join(",".join(map(str, cores)) for cores in self.flags.cores[:self.world_size])
        cores = cores or ",".join(map(str, sorted(os.sched_getaffinity(0))))
        return {
            "version": run_record.VERSION, "config": self.config,
            "host": run_record.host(cores, self.device.name(), self._versions()),
            "epochs": self.epochs, "test": test, "steps": steps, "step_ms": step_ms, "breakdown_ms": breakdown,
            "exchange": {"bytes_sent": exchanged, "bytes_received": exchanged, "shared_memory": False,
                         "not_shared": "", "gpu_transfer": ""},
            "parameter_sha256": sha256,
            "workers": self._worker_uses(breakdown["forward"] + breakdown["backward"]),
            "stragglers": [],
            "tried_buckets": [],
            "resumed_from_step": self.first_step,
            "resume_notes": [],
            "stopped_after_epochs": 0,  # the peer has no --early_stop
            "facts": {},
            "losses": self._step_losses(),
        }
