#!/usr/bin/env python3
"""Compares star, ring, mpi and PyTorch DDP side by side and writes a report.

    bazel run //bench:compare -- --syncs=star,star-mpi,ring,mpi,ddp --workers=1,2 --model=lenet5 --out=report

Writes index.html, summary.md, results.json and runs.csv to the folder --out. Exit status 0: the report is complete,
1: a part failed (the report says which), 2: the command line was refused.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

_HERE = os.path.dirname(os.path.realpath(__file__))
# Started as a script, this file finds its siblings by itself. Imported as bench.compare.main, it does not.
sys.path[:0] = [_HERE, *(os.path.join(_HERE, room) for room in ("measured", "judgement", "../netlab"))]

import agreement
import alone
import analysis
import buckets
import device_choice
import gpu_cells
import jobs
import machine
import measure
import netlab
import options as command_line
import peer_settings
import predictions
import programs
import results as schema
import sync_cells as cells
import timeline
import training
import uneven

PAGE_MODULES = ("numpy", "matplotlib", "jinja2")
TRACE_STEPS = 40


def use_python_with(modules: Sequence[str]) -> str | None:
    """Restarts this program under a python3 that has `modules`. Returns a note if there is none."""
    try:
        for module in modules:
            __import__(module)
        return None
    except ImportError:
        pass
    python = programs.find_python(modules)
    if python is None or "STARRING_BINARIES" in os.environ:
        return ("no python3 with matplotlib and jinja2 was found, so the report has results.json and runs.csv but no "
                "page: apt-get install python3-matplotlib python3-jinja2")
    os.environ["STARRING_BINARIES"] = os.getcwd()
    sys.stdout.flush()
    os.execv(python, [python, os.path.realpath(__file__), *sys.argv[1:]])
    return None


class Comparison:
    """Runs all parts of a comparison and collects their results."""

    def __init__(self, options: argparse.Namespace, notes: list[str]) -> None:
        self.options, self.started = options, time.monotonic()
        self.gpus = machine.Gpus(visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
        has_peers = any(sync in jobs.PEERS for sync in options.syncs)
        self.device, self.torch = device_choice.choose(
            options.device, self.gpus.count(), programs.Torch.find_all() if has_peers else [], has_peers)
        self.device.check(options.syncs, options.workers)
        if self.torch is not None and any(sync in jobs.HOOKS for sync in options.syncs):
            programs.starring_library()  # refuses now, not after the first jobs
        self.out = os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd()), options.out)
        os.makedirs(self.out, exist_ok=True)
        self.results = schema.empty(["bazel", "run", "//bench:compare", "--", *sys.argv[1:]],
                                    datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
                                    machine.describe(self.gpus))
        self.notes = self.results["notes"]
        self.notes += notes
        self.failed = False
        self.peer_settings = peer_settings.PeerSettings(options, self.torch, self.device, self.say)
        self.laboratory = measure.Laboratory(options, self.gpus, self.say)
        self._describe_versions()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.started:6.0f} s] {text}", flush=True)

    def note(self, text: str) -> None:
        self.say(text)
        self.notes.append(text)

    def _describe_versions(self) -> None:
        self.results["versions"].update(programs.library_versions())
        if self.device.note:
            self.note(self.device.note)
        if self.torch is not None:
            self._help_openblas(self.torch)
            self.results["versions"].update({"torch": self.torch.version, "torch_backend": self.device.backend(
                self.torch, self.options.workers)})
        elif any(sync in jobs.PEERS for sync in self.options.syncs):
            self.note("no python3 with PyTorch was found, so there is no DDP column. To get one: "
                      f"{programs.HOW_TO_GET_TORCH}, or pip install torch for the python3 on PATH")

    def _help_openblas(self, torch: programs.Torch) -> None:
        """All of PyTorch's processes inherit what is set here."""
        core = programs.known_blas_core(torch.blas_core, machine.instructions())
        if core is not None and "OPENBLAS_CORETYPE" not in os.environ:
            os.environ["OPENBLAS_CORETYPE"] = core
            self.note(f"OpenBLAS takes this processor for a {torch.blas_core}, and would be several times slower: all "
                      f"of PyTorch's jobs run with OPENBLAS_CORETYPE={core}.")

    def part(self, name: str, work: Callable[[], None]) -> None:
        """Runs one part. If it fails, the others go on."""
        self.say(name)
        try:
            work()
        except programs.ProgramError as error:
            self.failed = True
            self.say(str(error))
            self.notes.append(f"{name}: failed: {str(error).splitlines()[0]}")
        self.save()

    def save(self) -> None:
        self.results["seconds"] = time.monotonic() - self.started
        schema.write(os.path.join(self.out, "results.json"), self.results)

    def run(self) -> int:
        options = self.options
        matrix = jobs.Matrix(options, self.torch, self.peer_settings, self.device)
        if self.torch is not None:
            for model in options.models:
                for workers in options.workers:
                    self.part(f"agreement of the first {agreement.STEPS} losses: {model}, {workers} workers",
                              functools.partial(self._check_agreement, matrix, model, workers))
        groups = matrix.groups()
        rest = self._rest(matrix, groups)
        self.say(f"{self.laboratory.expect(groups)} runs to make" +
                 (f", and then: {'; '.join(name for name, _ in rest)}" if rest else ""))
        for group in groups:
            self.part("measuring " + " ".join(map(str, group[0].group)), functools.partial(self._measure, group))
        for name, work in rest:
            self.part(name, work)
        return self._finish()

    def _rest(self, matrix: jobs.Matrix, groups: list[list[jobs.Job]]) -> list[tuple[str, Callable[[], None]]]:
        """The parts after the groups were measured."""
        options = self.options
        found: list[tuple[str, Callable[[], None]]] = []
        if options.train_epochs:
            found.append((f"{options.train_epochs} epochs of each sync", lambda: self._train(groups)))
        if options.loaders:
            found.append(("loaders alone", lambda: self.results["loaders"].extend(alone.loaders(self.torch))))
        if max(options.workers) > 1:
            found.append(("exchange alone", lambda: self._exchanges(max(options.workers))))
        if options.hosts and self.device.kind == "cuda":
            self.note("no section of several hosts: the emulated hosts share this machine's GPUs; for that section "
                      "give --device=cpu")
        elif options.hosts:
            found.append(("hosts: netlab:%d+%d,%s" % options.hosts, lambda: self._hosts(matrix)))
        if self.torch is not None and max(options.workers) > 1:
            found += [(f"buckets: {model}", functools.partial(self._buckets, groups, model))
                      for model in options.models]
        if self.device.kind == "cuda" and max(options.workers) > 1:
            found.append(("two workers on one GPU", self._gpu_cells))
        if options.trace:
            found.append(("timeline", lambda: self._trace(groups)))
        if options.uneven:
            found.append((f"uneven and failing workers: {options.uneven}", self._uneven))
        return found

    def _check_agreement(self, matrix: jobs.Matrix, model: str, workers: int) -> None:
        """Checks the settings that will be timed: each number of workers has its own."""
        members = matrix.of_group(model, workers, "weak")
        peers = [job for job in members if job.configuration["sync"] in jobs.PEERS]
        ours = [job for job in members if job not in peers and job.configuration["accounting"] == "equal-workers"]
        found = agreement.check(ours[0] if ours else matrix.job(model, "local", 1, "weak"), peers, self.gpus,
                                self.device.tolerance(self.options.math))
        for entry in found:
            self.say(f"{model} {entry['peer']}, {workers} workers: largest relative difference "
                     f"{entry['worst_relative_difference']:.1e} "
                     f"at step {entry['worst_step']} ({entry['peer_precision']} precision of PyTorch): "
                     f"{'agrees' if entry['agrees'] else 'DISAGREES'}")
        self.results["agreement"] += found

    def _measure(self, group: list[jobs.Job]) -> None:
        measured = self.laboratory.measure(group)
        self.results["configurations"] += [job.configuration for job in measured]
        if len(measured) < len(group):
            self.failed = True

    def _train(self, groups: list[list[jobs.Job]]) -> None:
        workers = max(self.options.workers)
        entries: list[schema.Training] = []
        for group in groups:
            for job in group:
                configuration = job.configuration
                if (configuration["workers"], configuration["accounting"], configuration["scaling"]) != (
                        workers, "equal-workers", self.options.scaling[0]) or not configuration["runs"]:
                    continue
                self.part(f"{self.options.train_epochs} epochs: {configuration['id']}",
                          functools.partial(self._train_one, job, entries))
        training.set_targets(entries, self.options.target_accuracy)
        self.results["training"] += entries

    def _train_one(self, job: jobs.Job, entries: list[schema.Training]) -> None:
        entries.append(training.run(job, self.options.train_epochs, self.gpus))

    def _exchanges(self, workers: int, lab: netlab.Netlab | None = None) -> None:
        sizes = self.options.exchange_bytes or alone.BYTES
        times, missing, failures = alone.exchanges(self.options.syncs, workers, self.options.servers, self.torch, sizes,
                                                   lab)
        self.results["exchanges"] += times
        self.results["missing_exchanges"] += missing
        if failures:
            raise failures[0]

    def _hosts(self, matrix: jobs.Matrix) -> None:
        hosts = self.options.hosts
        try:
            with netlab.Netlab(hosts=hosts.workers, rate=hosts.rate, server_hosts=hosts.servers) as lab:
                for model in self.options.hosts_models:
                    group = matrix.of_group(model, hosts.workers, "weak", lab)
                    self.laboratory.expect([group])
                    self.part(f"measuring {model} between hosts", functools.partial(self._measure, group))
                self.part("exchange alone between hosts", lambda: self._exchanges(hosts.workers, lab))
        except netlab.NetlabError as error:
            self.note(f"no section of several hosts: {error}")

    def _buckets(self, groups: list[list[jobs.Job]], model: str) -> None:
        """Asks one of our cells and DDP for the same buckets, and keeps those that they make."""
        ran = [job for group in groups for job in group if job.configuration["runs"] and
               job.configuration["model"] == model and job.configuration["workers"] == max(self.options.workers)]
        wanted = next((job for job in ran if job.configuration["sync"] in cells.SYNCS), None)
        peer = next((job for job in ran if job.configuration["sync"] == "ddp"), None)
        if wanted is not None and peer is not None:
            self.results["buckets"] += buckets.ask(wanted, peer, self.gpus)

    def _gpu_cells(self) -> None:
        options = self.options
        found = gpu_cells.measure(options.models, options.repeats, 2 * options.batch_per_worker, options.syncs,
                                  self.torch)
        self.results["gpu_cells"] = found
        self.notes += found["problems"]
        self.failed = self.failed or bool(found["problems"])
        self.notes += [f"{one['model']} {one['job']} on one GPU: {one['why']}" for one in found["failures"]]

    def _trace(self, groups: list[list[jobs.Job]]) -> None:
        """Runs each cell briefly with a timeline. Tracing costs time, so the timed runs have none."""
        workers = max(self.options.workers)
        traced = [job for group in groups for job in group if job.configuration["runs"] and
                  job.configuration["sync"] in cells.SYNCS and job.configuration["workers"] == workers and
                  job.configuration["model"] == self.options.models[0] and job.configuration["scaling"] == "weak"]
        for job in traced:
            configuration = job.configuration
            name = f"trace-{configuration['accounting']}-{configuration['sync']}.json"
            with tempfile.TemporaryDirectory() as folder:
                each = os.path.join(folder, "trace.json")
                measure.run_job(dataclasses.replace(job, launch_flags=["--trace=" + each]), TRACE_STEPS, self.gpus)
                timeline.merge_files(timeline.files_of(each), os.path.join(self.out, name))
            configuration["trace"] = name
            self.results["trace"] = self.results["trace"] or name

    def _uneven(self) -> None:
        # The device of this part is the CPU, so any PyTorch will do.
        torch = self.torch or next(iter(programs.Torch.find_all()), None)
        if torch is not None:
            self.results["versions"].setdefault("torch", torch.version)

        def save(found: schema.Uneven) -> None:
            self.results["uneven"] = found
            self.save()

        part = uneven.UnevenPart(self.options, torch, self.say, save)
        part.measure()
        self.notes += part.notes
        self.failed = self.failed or part.failed

    def _finish(self) -> int:
        results = self.results
        self.notes += self.laboratory.failures + self.peer_settings.failures
        results["peer_notes"] += self.peer_settings.notes
        results["versions"].update({name: version for name, version in self.laboratory.versions.items()
                                    if name not in results["versions"]})
        if any(sync in jobs.PEERS for sync in self.options.syncs) and self.torch is not None:
            results["peer_notes"].append(
                "While losses are compared, PyTorch drops the same values as Starring; while it is timed, it uses "
                "its own dropout, which is faster.")
        if self.options.quick:
            self.notes.append("--quick is a smoke test of the comparison itself: its timings are meaningless")
        clocks = self.laboratory.clocks
        if clocks:
            results["machine"]["clock_mhz"] = {"min": min(clocks), "median": statistics.median(clocks),
                                               "max": max(clocks)}
        results["machine"]["load_after"] = machine.load()
        self.save()
        schema.write_runs_csv(os.path.join(self.out, "runs.csv"), results)
        found = analysis.analyse(results)
        self._write_page(found)
        print()
        print("\n".join(found["verdict"]))
        print(f"\n{self.out}: {', '.join(sorted(os.listdir(self.out)))} after {results['seconds']:.0f} s")
        return 1 if self.failed else 0

    def _write_page(self, found: analysis.Analysis) -> None:
        try:
            from report.write import write_report
        except ImportError as error:
            self.say(f"no page: {error}")
            return
        write_report(self.results, found, self.out)


def main() -> int:
    options = command_line.parse()
    note = use_python_with(PAGE_MODULES)
    try:
        planned = [one for path in options.plans for one in predictions.read(path)]
        comparison = Comparison(options, [note] if note else [])
        comparison.results["predictions"] += planned
    except (programs.ProgramError, predictions.PredictionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return comparison.run()


if __name__ == "__main__":
    sys.exit(main())
