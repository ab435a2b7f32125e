"""Settings of the peer's columns: `ddp`, PyTorch's defaults; `ddp-tuned`, the best of a short sweep; `ddp+star` and
`ddp+ring`, those of ddp-tuned with our exchange and the size of buckets that suits it best.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from typing import Any

import device_choice
import jobs
import machine
import programs


class PeerSettings:
    """Answers calls with (model, sync, workers). Each is swept once."""

    def __init__(self, options: argparse.Namespace, torch: programs.Torch | None, device: device_choice.Device,
                 say: Callable[[str], None]) -> None:
        self.options, self.torch, self.device, self.say = options, torch, device, say
        self.notes: list[str] = []
        self.failures: list[str] = []
        self._tuned: dict[tuple[str, str, int], dict[str, str]] = {}

    def __call__(self, model: str, sync: str, workers: int) -> dict[str, str]:
        if sync == "ddp":
            # DataLoader's default is 0 worker processes. Further processes would share the core of their trainer.
            return {"data": "dataloader", "loader_workers": "0"}
        key = (model, sync, workers)
        if key not in self._tuned:
            first = jobs.tuned(self.device)
            if sync in jobs.HOOKS:
                first = {**self(model, "ddp-tuned", workers), "hook": jobs.HOOKS[sync]}
                first.pop("cuda_graph", None)  # our exchange runs on the host
            self._tuned[key] = self._sweep(model, sync, workers, first) if self.options.sweep else first
        return self._tuned[key]

    def _sweep(self, model: str, sync: str, workers: int, first: dict[str, str]) -> dict[str, str]:
        """The best settings that differ from `first` in what bench/ddp/sweep.py tries."""
        assert self.torch is not None, "the peer has settings only where there is a PyTorch"
        of = f"{model}, {workers} worker{'s' * (workers > 1)}, {sync}"
        self.say(f"{of}: searching for PyTorch's best settings")
        with tempfile.TemporaryDirectory() as folder:
            found = os.path.join(folder, "sweep.json")
            options = self.options
            cores = jobs.place(machine.cores(), workers, 0, options.threads)["worker"]
            flags = [f"--model={model}", f"--dataset={options.dataset}", f"--augment={options.augment}",
                     f"--global_batch={options.batch_per_worker * workers}", f"--threads={options.threads}",
                     *self.device.flags(workers), "--math=" + options.math,
                     f"--world_size={workers}", "--cores=" + ";".join(cores), "--sweep=" + found]
            if options.data_dir:
                flags.append("--data_dir=" + options.data_dir)
            tuned = [f"--{name}={value}" for name, value in first.items()]
            try:
                environment = {**(programs.ONE_THREAD if options.threads == 1 else {}),
                               **(programs.starring_library() if sync in jobs.HOOKS else {})}
                programs.run([self.torch.python, programs.peer("train"), *flags, *tuned], environment)
                with open(found, encoding="utf-8") as file:
                    best = json.load(file)
            except programs.ProgramError as error:
                self.failures.append(f"no sweep of PyTorch's settings for {of}: {str(error).splitlines()[0]}")
                return first
        tried = ", ".join(f"{_text(attempt['settings'])} {_result(attempt)}" for attempt in best["tried"])
        self.notes.append(f"{of}: settings tried, each added to those that had helped before: {tried}.")
        settings = {**first, **best["settings"]}
        return {name: str(value).lower() for name, value in settings.items() if value is not False}


def _text(settings: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items()) or "defaults"


def _result(attempt: dict[str, Any]) -> str:
    return f"{attempt['step_ms']:.2f} ms" if "step_ms" in attempt else f"failed ({attempt['error']})"
