"""The PyTorch peer: trains the shipped models in one process or under DistributedDataParallel with Gloo.

    python3 train.py --model=lenet5 --dataset=fashion-mnist --epochs=2 --world_size=2 --record=ddp.json
    torchrun --nproc_per_node=2 train.py ...

Flags have the names and meaning of the worker's; the run record has the same schema. Data, order of the samples,
augmentation, first weights, mean over the global batch, optimizer and schedule are Starring's; the rest is PyTorch as
it comes, unless a flag of options.py tunes it. With --data=ram (the default) the normalised data set lies in RAM and a
batch costs one gather; --data=dataloader is what people write.
"""

import json
import os
import sys
import tempfile
import time

import data as data_files
import models
import options
import philox
import philox_dropout
import run_record
import safetensors_file
import torch
import torch.distributed as dist
from batches import DataLoaderBatches, RamBatches, Sampler, normalized
from learning_rate import learning_rate_at
from processor_use import ProcessorUse
from torch.nn import functional as F

EVALUATION_BATCH = 1000
WARMUP_STEPS_MAX = 10  # no timing counts them; as worker/trainer.cc
TIMED_STEPS_EVERY = 5  # DDP clocks its allreduce in one step of so many


def make_optimizer(flags, parameters):
    foreach = {"foreach": True} if flags.foreach else {}
    if flags.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=flags.learning_rate, weight_decay=flags.weight_decay, **foreach)
    return torch.optim.SGD(parameters, lr=flags.learning_rate, momentum=flags.momentum, nesterov=flags.nesterov,
                           weight_decay=flags.weight_decay, **foreach)


def sum_over_ranks(values, world_size):
    total = torch.tensor(values, dtype=torch.float64)
    if world_size > 1:
        dist.all_reduce(total)
    return total.tolist()


class Data:
    """The data set, this rank's batches of it and its part of the test set."""

    def __init__(self, flags, rank, world_size):
        self.dataset = data_files.load(flags.dataset, flags.data_dir, flags.seed)
        self.sampler = Sampler(len(self.dataset.train_labels), flags.global_batch, rank, world_size, flags.seed)
        if flags.data == "ram":
            self.batches = RamBatches(self.dataset, self.sampler, flags.augment)
        else:
            self.batches = DataLoaderBatches(self.dataset, self.sampler, flags.augment, flags.loader_workers)
        count = len(self.dataset.test_labels)
        begin, end = count * rank // world_size, count * (rank + 1) // world_size
        self.test_images = normalized(self.dataset.test_images[begin:end], *self.dataset.normalization())
        self.test_labels = torch.from_numpy(self.dataset.test_labels[begin:end])


class Trainer:
    def __init__(self, flags, rank, world_size, data):
        self.flags, self.rank, self.world_size, self.data = flags, rank, world_size, data
        dataset = data.dataset
        self.model = models.create(flags.model, *dataset.train_images.shape[1:], dataset.classes)
        if flags.initial_weights:
            safetensors_file.load_into(self.model, flags.initial_weights)
        else:
            philox.initialize(self.model, flags.seed)
        torch.manual_seed(flags.seed * 7919 + rank)  # PyTorch's own dropout differs between ranks
        self.dropouts = philox_dropout.install(self.model, flags.seed) if flags.dropout == "starring" else []
        if flags.precision == "double":
            self.model.double().register_forward_pre_hook(lambda _, inputs: tuple(part.double() for part in inputs))
        self.format = torch.channels_last if flags.channels_last else torch.contiguous_format
        self.model = self.model.to(memory_format=self.format)
        self.replica = self.ddp = self._replicated()
        if flags.compile:
            self.replica = torch.compile(self.replica)
        self.optimizer = make_optimizer(flags, self.model.parameters())
        self.steps_total = data.sampler.steps_per_epoch() * flags.epochs
        self.cosine_steps = flags.total_steps or self.steps_total
        if flags.max_steps > 0:
            self.steps_total = min(self.steps_total, flags.max_steps)
        self.warmup_steps = min(WARMUP_STEPS_MAX, self.steps_total // 2)
        self.config = options.config(flags, dataset, world_size, self.steps_total)
        self.step = 0
        self.step_seconds = []
        self.parts = {"data_wait": 0.0, "forward": 0.0, "backward": 0.0, "optimizer": 0.0}
        self.epochs = []
        self.losses = []  # (step, seconds, loss): this rank's part until the end of the epoch
        self.seconds_before_epoch = 0.0
        self.processor_use = ProcessorUse()

    def _replicated(self):
        if self.world_size == 1:
            return self.model
        flags = self.flags
        ddp = torch.nn.parallel.DistributedDataParallel(
            self.model, bucket_cap_mb=flags.bucket_cap_mb, gradient_as_bucket_view=flags.gradient_as_bucket_view,
            static_graph=flags.static_graph)
        ddp._set_ddp_runtime_logging_sample_rate(TIMED_STEPS_EVERY)
        return ddp

    def _loss(self, network, images, labels, global_count):
        # DDP divides the summed gradients by the world size; the loss is a mean over the global batch.
        loss_sum = F.cross_entropy(network(images), labels, reduction="sum")
        return loss_sum, loss_sum * (self.world_size / global_count)

    def _zero_grad(self):
        if self.flags.set_to_none is None:
            self.optimizer.zero_grad()
        else:
            self.optimizer.zero_grad(set_to_none=self.flags.set_to_none)

    def _train_step(self, global_count, images, labels):
        """Returns this rank's summed loss and the seconds of forward, backward and optimizer."""
        started = time.perf_counter()
        if self.flags.channels_last:
            images = images.contiguous(memory_format=self.format)
        for dropout in self.dropouts:
            dropout.step, dropout.first_sample = self.step, global_count * self.rank // self.world_size
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(self.flags, self.cosine_steps, self.step)
        self._zero_grad()
        loss_sum, loss = self._loss(self.replica, images, labels, global_count)
        after_forward = time.perf_counter()
        loss.backward()
        after_backward = time.perf_counter()
        self.optimizer.step()
        done = time.perf_counter()
        return loss_sum.item(), after_forward - started, after_backward - after_forward, done - after_backward

    def train_epoch(self, epoch):
        """Returns (summed loss of this rank, samples of the global batches, seconds)."""
        loss_sum, samples = 0.0, 0
        batches = self.data.batches.epoch(epoch)
        started = step_started = time.perf_counter()
        for global_count, images, labels in batches:
            if self.step >= self.warmup_steps:
                self.processor_use.resume()
            data_wait = time.perf_counter() - step_started
            step_loss, forward, backward, optimizer = self._train_step(global_count, images, labels)
            loss_sum += step_loss
            samples += global_count
            if self.step >= self.warmup_steps:
                for part, seconds in zip(self.parts, (data_wait, forward, backward, optimizer)):
                    self.parts[part] += seconds
                self.step_seconds.append(time.perf_counter() - step_started)
            if self.flags.record_losses:
                elapsed = self.seconds_before_epoch + time.perf_counter() - started
                self.losses.append((self.step, elapsed, step_loss / global_count))
            self.step += 1
            self._show_progress(epoch, samples, started)
            if self.step >= self.steps_total:
                break
            step_started = time.perf_counter()
        self.processor_use.pause()
        seconds = time.perf_counter() - started
        self.seconds_before_epoch += seconds
        return loss_sum, samples, seconds

    def _show_progress(self, epoch, samples, started):
        if self.rank == 0 and self.step % 50 == 0 and sys.stdout.isatty():
            rate = samples / (time.perf_counter() - started)
            print(f"\repoch {epoch}  step {self.step}/{self.steps_total}  {rate:.0f} samples/s ", end="", flush=True)

    def _evaluate(self):
        """(correct, summed loss, samples) of this rank's part of the test set."""
        correct, loss_sum = 0, 0.0
        images_of, labels_of = self.data.test_images, self.data.test_labels
        self.model.eval()
        with torch.no_grad():
            for begin in range(0, len(labels_of), EVALUATION_BATCH):
                logits = self.model(images_of[begin:begin + EVALUATION_BATCH])
                labels = labels_of[begin:begin + EVALUATION_BATCH]
                correct += int((logits.argmax(1) == labels).sum())
                loss_sum += F.cross_entropy(logits, labels, reduction="sum").item()
        self.model.train()
        return [correct, loss_sum, len(labels_of)]

    def run(self):
        epoch = 0
        while self.step < self.steps_total:
            loss_sum, samples, seconds = self.train_epoch(epoch)
            totals = sum_over_ranks([loss_sum] + self._evaluate(), self.world_size)
            result = {"epoch": epoch, "train_loss": totals[0] / samples, "test_accuracy": totals[1] / totals[3],
                      "seconds": seconds, "samples_per_second": samples / seconds, "test_loss": totals[2] / totals[3]}
            self.epochs.append(result)
            if self.rank == 0:
                print(f"{chr(13) if sys.stdout.isatty() else ''}epoch {epoch}  loss {result['train_loss']:.4f}  test "
                      f"accuracy {100 * result['test_accuracy']:.2f} %  {result['samples_per_second']:.0f} samples/s",
                      flush=True)
            epoch += 1
        return self._record(run_record.parameter_sha256(self.model), self.exposed_exchange_seconds())

    def exposed_exchange_seconds(self):
        """Mean per step: from the last gradient of backward to the end of the last allreduce, by DDP's own clock."""
        if self.world_size == 1:
            return 0.0
        nanoseconds = self.ddp._get_ddp_logging_data()
        return 1e-9 * (nanoseconds.get("avg_backward_comm_time", 0) -
                       nanoseconds.get("avg_backward_compute_comm_overlap_time", 0))

    def _worker_uses(self, compute_ms):
        """WorkerUse of every rank, on every rank: a sum in which each has places of its own."""
        mine = [0.0] * (2 * self.world_size)
        mine[2 * self.rank:2 * self.rank + 2] = [compute_ms, self.processor_use.percent()]
        values = sum_over_ranks(mine, self.world_size)
        return [{"compute_ms": values[i], "cpu_percent": values[i + 1]} for i in range(0, len(values), 2)]

    def _step_losses(self):
        losses = sum_over_ranks([loss for _, _, loss in self.losses], self.world_size) if self.losses else []
        return [{"step": step, "seconds": seconds, "loss": loss}
                for (step, seconds, _), loss in zip(self.losses, losses)]

    def _record(self, sha256, exposed):
        measured = max(1, len(self.step_seconds))
        breakdown = {part: 1e3 * seconds / measured for part, seconds in self.parts.items()}
        exposed_ms = min(1e3 * max(0.0, exposed), breakdown["backward"])
        breakdown["backward"] -= exposed_ms
        step_ms = run_record.step_milliseconds(self.step_seconds)
        breakdown["other"] = max(0.0, step_ms["mean"] - sum(breakdown.values()) - exposed_ms)
        # A ring allreduce: every rank sends and receives 2 (N - 1) / N of the gradients in every step.
        parameter_bytes = 4 * sum(p.numel() for p in self.model.parameters())
        bytes_per_step = parameter_bytes * 2 * (self.world_size - 1) / self.world_size
        exchanged = float(round(bytes_per_step * self.step))
        cores = ";".join(",".join(map(str, cores)) for cores in self.flags.cores[:self.world_size])
        cores = cores or ",".join(map(str, sorted(os.sched_getaffinity(0))))
        return {
            "config": self.config, "host": run_record.host(cores), "epochs": self.epochs, "steps": self.step,
            "step_ms": step_ms,
            "breakdown_ms": {"data_wait": breakdown["data_wait"], "h2d": 0.0, "forward": breakdown["forward"],
                             "backward": breakdown["backward"], "exposed_exchange": exposed_ms,
                             "optimizer": breakdown["optimizer"], "other": breakdown["other"]},
            "exchange": {"bytes_sent": exchanged, "bytes_received": exchanged, "shared_memory": False,
                         "gpu_transfer": ""},
            "parameter_sha256": sha256,
            "workers": self._worker_uses(breakdown["forward"] + breakdown["backward"]),
            "losses": self._step_losses(),
        }


def print_summary(record):
    step, parts = record["step_ms"], record["breakdown_ms"]
    accuracy = record["epochs"][-1]["test_accuracy"]
    print(f"{record['config']['sync']}: {record['steps']} steps, {record['epochs'][-1]['samples_per_second']:.0f} "
          f"samples/s, test accuracy {100 * accuracy:.2f} %\n"
          f"step ms   p50 {step['p50']:.3f}  p95 {step['p95']:.3f}  p99 {step['p99']:.3f}  max {step['max']:.3f}\n"
          f"parts ms  " + "  ".join(f"{part} {ms:.3f}" for part, ms in parts.items()) +
          f"\nparameter digest {record['parameter_sha256']}", flush=True)


def pin(rank, world_size, cores):
    """To its list of `cores`; without any, to a contiguous share of the allowed ones, one at least."""
    allowed = sorted(os.sched_getaffinity(0))
    begin = rank * len(allowed) // world_size
    end = max(begin + 1, (rank + 1) * len(allowed) // world_size)
    os.sched_setaffinity(0, cores[rank] if cores else allowed[begin:end])


def train(rank, flags, world_size, init_method):
    if flags.pin or flags.cores:
        pin(rank, world_size, flags.cores)
    torch.set_num_threads(flags.threads)
    if world_size > 1:
        import datetime
        dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size,
                                timeout=datetime.timedelta(seconds=flags.deadline_s))
    data = Data(flags, rank, world_size)
    if flags.sweep:
        import sweep
        best = sweep.find_best(flags, rank, world_size, data)
        if rank == 0:
            with open(flags.sweep, "w", encoding="utf-8") as file:
                json.dump(best, file)
    else:
        record = Trainer(flags, rank, world_size, data).run()
        if rank == 0:
            if flags.record:
                run_record.write(flags.record, record)
            print_summary(record)
    if world_size > 1:
        dist.destroy_process_group()


def spawn(flags):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # The children read it before torch's own setting can take effect.
    os.environ.setdefault("OMP_NUM_THREADS", str(flags.threads))
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, (flags, flags.world_size, f"file://{folder}/rendezvous"), flags.world_size)


def main():
    flags = options.parse()
    try:
        if "RANK" in os.environ and "MASTER_ADDR" in os.environ:  # torchrun
            train(int(os.environ["RANK"]), flags, int(os.environ["WORLD_SIZE"]), "env://")
        elif flags.world_size > 1:
            spawn(flags)
        else:
            train(0, flags, 1, "")
    except data_files.DataError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
