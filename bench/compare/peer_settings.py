"""What the two columns of the peer are: `ddp`, PyTorch as it comes, and `ddp-tuned`, the best of a short sweep."""

import json
import os
import tempfile

import jobs
import programs


class PeerSettings:
    """Called with (model, sync, workers); finds out once for each and remembers. `options` are main.py's."""

    def __init__(self, options, torch, device, say):
        self.options, self.torch, self.device, self.say = options, torch, device, say
        self.notes, self.failures = [], []
        self._tuned = {}

    def __call__(self, model, sync, workers):
        if sync == "ddp":
            # DataLoader's default is 0 worker processes. More of them would share the one core of their trainer.
            return {"data": "dataloader", "loader_workers": "0"}
        if (model, workers) not in self._tuned:
            self._tuned[model, workers] = (self._sweep(model, workers) if self.options.sweep else
                                           jobs.tuned(self.device))
        return self._tuned[model, workers]

    def _sweep(self, model, workers):
        self.say(f"{model}, {workers} worker{'s' * (workers > 1)}: looking for PyTorch's best settings")
        with tempfile.TemporaryDirectory() as folder:
            found = os.path.join(folder, "sweep.json")
            options = self.options
            cores = jobs.place(jobs.machine.cores(), workers, 0, options.threads)["worker"]
            flags = [f"--model={model}", f"--dataset={options.dataset}", f"--augment={options.augment}",
                     f"--global_batch={options.batch_per_worker * workers}", f"--threads={options.threads}",
                     *self.device.flags(workers), "--math=" + options.math,
                     f"--world_size={workers}", "--cores=" + ";".join(cores), "--sweep=" + found]
            if options.data_dir:
                flags.append("--data_dir=" + options.data_dir)
            tuned = [f"--{name}={value}" for name, value in jobs.tuned(self.device).items()]
            environment = programs.ONE_THREAD if options.threads == 1 else {}
            try:
                programs.run([self.torch.python, programs.peer("train"), *flags, *tuned], environment)
                with open(found, encoding="utf-8") as file:
                    best = json.load(file)
            except programs.ProgramError as error:
                self.failures.append(f"no sweep of PyTorch's settings for {model}, {workers} workers: "
                                     f"{str(error).splitlines()[0]}")
                return jobs.tuned(self.device)
        tried = ", ".join(f"{_text(attempt['settings'])} {_result(attempt)}" for attempt in best["tried"])
        of = f"{model}, {workers} worker{'s' * (workers > 1)}"
        self.notes.append(f"{of}, tried one upon the other: {tried}.")
        settings = {**jobs.tuned(self.device), **best["settings"]}
        return {name: str(value).lower() for name, value in settings.items() if value is not False}


def _text(settings):
    return " ".join(f"{name}={value}" for name, value in settings.items()) or "defaults"


def _result(attempt):
    return f"{attempt['step_ms']:.2f} ms" if "step_ms" in attempt else f"failed ({attempt['error']})"
