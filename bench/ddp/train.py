"""The PyTorch peer: trains the shipped models in one process or under DistributedDataParallel with Gloo.

    python3 train.py --model=lenet5 --dataset=fashion-mnist --epochs=2 --world_size=2 --record=ddp.json
    torchrun --nproc_per_node=2 train.py ...

Flags have the names and meaning of the worker's; the run record has the same schema. Data, order of the samples,
augmentation, first weights, mean over the global batch and optimizer are Starring's; the rest is PyTorch as it comes:
eager, DDP's defaults. With --data=ram (the default) the normalised data set lies in RAM and a batch costs one gather:
the kinder setting for PyTorch.
"""

import argparse
import os
import sys
import tempfile
import time

import data as data_files
import models
import philox
import run_record
import torch
import torch.distributed as dist
from batches import DataLoaderBatches, RamBatches, Sampler, normalized
from learning_rate import learning_rate_at
from torch.nn import functional as F

EVALUATION_BATCH = 1000
WARMUP_STEPS_MAX = 10  # no timing counts them; as worker/trainer.cc
TIMED_STEPS_EVERY = 5  # DDP clocks its allreduce in one step of so many


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


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    add = parser.add_argument
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
    add("--threads", type=positive, default=1, help="compute threads per process")
    add("--world_size", type=positive, default=1, help="processes to start; under torchrun its own number counts")
    add("--pin", type=boolean, nargs="?", const=True, default=True, help="spread the processes over the allowed cores")
    add("--data", default="ram", choices=["ram", "dataloader"])
    add("--loader_workers", type=int, default=2, help="with --data=dataloader: its worker processes")
    add("--deadline_s", type=positive, default=60, help="for a peer to answer")
    add("--record", default="")
    flags = parser.parse_args()
    if flags.schedule == "step" and flags.decay_steps < 1:
        parser.error("--schedule=step needs --decay_steps of at least 1")
    if flags.nesterov and flags.momentum <= 0:
        parser.error("--nesterov needs --momentum above 0")
    return flags


def make_optimizer(flags, parameters):
    if flags.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=flags.learning_rate, weight_decay=flags.weight_decay)
    return torch.optim.SGD(parameters, lr=flags.learning_rate, momentum=flags.momentum, nesterov=flags.nesterov,
                           weight_decay=flags.weight_decay)


def make_config(flags, dataset, world_size, steps_total):
    return {
        "sync": "ddp" if world_size > 1 else "local", "world_size": world_size, "server_count": 0,
        "model": flags.model, "dataset": flags.dataset, "data_dir": flags.data_dir, "augment": flags.augment,
        "train_count": len(dataset.train_labels), "test_count": len(dataset.test_labels), "epochs": flags.epochs,
        "max_steps": flags.max_steps, "global_batch": flags.global_batch, "seed": str(flags.seed),
        "optimizer": flags.optimizer, "learning_rate": flags.learning_rate, "momentum": flags.momentum,
        "nesterov": flags.nesterov, "weight_decay": flags.weight_decay, "beta1": 0.9, "beta2": 0.999,
        "epsilon": 1e-8, "schedule": flags.schedule, "warmup_steps": flags.warmup_steps,
        "decay_steps": flags.decay_steps, "decay_gamma": flags.decay_gamma, "total_steps": steps_total,
        "device": "cpu", "math": "fp32", "cuda_graph": False, "threads": flags.threads,
        "loader_threads": flags.loader_workers if flags.data == "dataloader" else 0,
        "bucket_bytes": 25 * 1024 * 1024 if world_size > 1 else 0, "lanes": 0, "same_host": "", "servers": [],
        "checkpoint_dir": "", "checkpoint_every_epochs": 0, "resume": False, "record": flags.record,
        "join_deadline_s": flags.deadline_s, "exchange_deadline_s": flags.deadline_s,
    }


def sum_over_ranks(values, world_size):
    total = torch.tensor(values, dtype=torch.float64)
    if world_size > 1:
        dist.all_reduce(total)
    return total.tolist()


class Trainer:
    def __init__(self, flags, rank, world_size):
        self.flags, self.rank, self.world_size = flags, rank, world_size
        self.dataset = data_files.load(flags.dataset, flags.data_dir, flags.seed)
        self.sampler = Sampler(len(self.dataset.train_labels), flags.global_batch, rank, world_size, flags.seed)
        if flags.data == "ram":
            self.batches = RamBatches(self.dataset, self.sampler, flags.augment)
        else:
            self.batches = DataLoaderBatches(self.dataset, self.sampler, flags.augment, flags.loader_workers)
        self._prepare_test_images()
        self.model = models.create(flags.model, *self.dataset.train_images.shape[1:], self.dataset.classes)
        philox.initialize(self.model, flags.seed)
        torch.manual_seed(flags.seed * 7919 + rank)  # dropout differs between ranks
        self.replica = self.model
        if world_size > 1:
            self.replica = torch.nn.parallel.DistributedDataParallel(self.model)
            self.replica._set_ddp_runtime_logging_sample_rate(TIMED_STEPS_EVERY)
        self.optimizer = make_optimizer(flags, self.model.parameters())
        self.steps_total = self.sampler.steps_per_epoch() * flags.epochs
        self.cosine_steps = flags.total_steps or self.steps_total
        if flags.max_steps > 0:
            self.steps_total = min(self.steps_total, flags.max_steps)
        self.warmup_steps = min(WARMUP_STEPS_MAX, self.steps_total // 2)
        self.config = make_config(flags, self.dataset, world_size, self.steps_total)
        self.step = 0
        self.step_seconds = []
        self.parts = {"data_wait": 0.0, "forward": 0.0, "backward": 0.0, "optimizer": 0.0}
        self.epochs = []

    def _prepare_test_images(self):
        count = len(self.dataset.test_labels)
        begin, end = count * self.rank // self.world_size, count * (self.rank + 1) // self.world_size
        self.test_images = normalized(self.dataset.test_images[begin:end], *self.dataset.normalization())
        self.test_labels = torch.from_numpy(self.dataset.test_labels[begin:end])

    def _loss(self, network, images, labels, global_count):
        # DDP divides the summed gradients by the world size; the loss is a mean over the global batch.
        loss_sum = F.cross_entropy(network(images), labels, reduction="sum")
        return loss_sum, loss_sum * (self.world_size / global_count)

    def _train_step(self, global_count, images, labels):
        """Returns this rank's summed loss and the seconds of forward, backward and optimizer."""
        started = time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(self.flags, self.cosine_steps, self.step)
        self.optimizer.zero_grad(set_to_none=True)
        loss_sum, loss = self._loss(self.replica, images, labels, global_count)
        after_forward = time.perf_counter()
        loss.backward()
        after_backward = time.perf_counter()
        self.optimizer.step()
        done = time.perf_counter()
        return loss_sum.item(), after_forward - started, after_backward - after_forward, done - after_backward

    def _train_epoch(self, epoch):
        """Returns (summed loss of this rank, samples of the global batches, seconds)."""
        loss_sum, samples = 0.0, 0
        batches = self.batches.epoch(epoch)
        started = step_started = time.perf_counter()
        for global_count, images, labels in batches:
            data_wait = time.perf_counter() - step_started
            step_loss, forward, backward, optimizer = self._train_step(global_count, images, labels)
            loss_sum += step_loss
            samples += global_count
            if self.step >= self.warmup_steps:
                for part, seconds in zip(self.parts, (data_wait, forward, backward, optimizer)):
                    self.parts[part] += seconds
                self.step_seconds.append(time.perf_counter() - step_started)
            self.step += 1
            if self.rank == 0 and sys.stdout.isatty() and self.step % 50 == 0:
                rate = samples / (time.perf_counter() - started)
                print(f"\repoch {epoch}  step {self.step}/{self.steps_total}  {rate:.0f} samples/s ",
                      end="", flush=True)
            if self.step >= self.steps_total:
                break
            step_started = time.perf_counter()
        return loss_sum, samples, time.perf_counter() - started

    def _evaluate(self):
        """(correct, summed loss, samples) of this rank's part of the test set."""
        correct, loss_sum = 0, 0.0
        self.model.eval()
        with torch.no_grad():
            for begin in range(0, len(self.test_labels), EVALUATION_BATCH):
                logits = self.model(self.test_images[begin:begin + EVALUATION_BATCH])
                labels = self.test_labels[begin:begin + EVALUATION_BATCH]
                correct += int((logits.argmax(1) == labels).sum())
                loss_sum += F.cross_entropy(logits, labels, reduction="sum").item()
        self.model.train()
        return [correct, loss_sum, len(self.test_labels)]

    def run(self):
        epoch = 0
        while self.step < self.steps_total:
            loss_sum, samples, seconds = self._train_epoch(epoch)
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
        nanoseconds = self.replica._get_ddp_logging_data()
        return 1e-9 * (nanoseconds["avg_backward_comm_time"] - nanoseconds["avg_backward_compute_comm_overlap_time"])

    def _record(self, sha256, exposed):
        measured = max(1, len(self.step_seconds))
        breakdown = {part: 1e3 * seconds / measured for part, seconds in self.parts.items()}
        exposed_ms = min(1e3 * exposed, breakdown["backward"])
        breakdown["backward"] -= exposed_ms
        step_ms = run_record.step_milliseconds(self.step_seconds)
        breakdown["other"] = max(0.0, step_ms["mean"] - sum(breakdown.values()) - exposed_ms)
        # A ring allreduce: every rank sends and receives 2 (N - 1) / N of the gradients in every step.
        parameter_bytes = 4 * sum(p.numel() for p in self.model.parameters())
        bytes_per_step = parameter_bytes * 2 * (self.world_size - 1) / self.world_size
        exchanged = float(round(bytes_per_step * self.step))
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        return {
            "config": self.config, "host": run_record.host(cores), "epochs": self.epochs, "steps": self.step,
            "step_ms": step_ms,
            "breakdown_ms": {"data_wait": breakdown["data_wait"], "h2d": 0.0, "forward": breakdown["forward"],
                             "backward": breakdown["backward"], "exposed_exchange": exposed_ms,
                             "optimizer": breakdown["optimizer"], "other": breakdown["other"]},
            "exchange": {"bytes_sent": exchanged, "bytes_received": exchanged, "shared_memory": False,
                         "gpu_transfer": ""},
            "parameter_sha256": sha256,
        }


def print_summary(record):
    step, parts = record["step_ms"], record["breakdown_ms"]
    accuracy = record["epochs"][-1]["test_accuracy"]
    print(f"{record['config']['sync']}: {record['steps']} steps, {record['epochs'][-1]['samples_per_second']:.0f} "
          f"samples/s, test accuracy {100 * accuracy:.2f} %\n"
          f"step ms   p50 {step['p50']:.3f}  p95 {step['p95']:.3f}  p99 {step['p99']:.3f}  max {step['max']:.3f}\n"
          f"parts ms  " + "  ".join(f"{part} {ms:.3f}" for part, ms in parts.items()) +
          f"\nparameter digest {record['parameter_sha256']}", flush=True)


def pin(rank, world_size):
    """A contiguous share of the allowed cores, one core at least."""
    allowed = sorted(os.sched_getaffinity(0))
    begin = rank * len(allowed) // world_size
    end = max(begin + 1, (rank + 1) * len(allowed) // world_size)
    os.sched_setaffinity(0, allowed[begin:end])


def train(rank, flags, world_size, init_method):
    if flags.pin:
        pin(rank, world_size)
    torch.set_num_threads(flags.threads)
    if world_size > 1:
        import datetime
        dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size,
                                timeout=datetime.timedelta(seconds=flags.deadline_s))
    record = Trainer(flags, rank, world_size).run()
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
    flags = parse_flags()
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
