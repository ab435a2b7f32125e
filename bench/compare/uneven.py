"""Measures the ring, the star, the elastic star and DDP with uneven and with failing workers.

Three cases: undisturbed; with one of the workers at half speed (half_speed.py); and with a worker killed by SIGKILL at
regular intervals, the workers in turns. Ring, star and DDP then start again, all processes, from their last checkpoint;
the elastic star starts the one process again. Samples/s are those that counted (counted.py) over wall time, with
everything that the programs do meanwhile. All workers are pinned to a core each.

How often to save is chosen for each program by short runs with kills (Times.checkpoints).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any, cast

import counted
import half_speed
import machine
import measure
import programs
import results as schema
import small_test_set
import uneven_shares
from uneven_job import RunningJob
from uneven_plans import DDP, ELASTIC, GENERATIONS_LOG, GLOBAL_BATCH, MICRO_BATCHES, RECORD, WORKERS, Plans
from uneven_verdict import EVEN, HALF_SPEED, KILLS

CASES = (EVEN, HALF_SPEED, KILLS)
SLOW_WORKER = 1
WINDOWS_MAX = 3
TRAIN_COUNTS = {"synthetic": 60000, "cifar10": 50000}  # of those that have no small test set


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds."""
    settle: float = 5.0  # from the first step to the first reading
    window: float = 20.0  # without kills
    kill_every: float = 10.0
    kills: int = 6  # the kills of a run
    kills_tried: int = 3  # the kills of a short run
    shares: float = 150.0  # within which the shares of the elastic star are dealt anew
    watch: float = 200.0  # in one run, how long it is watched whether they are dealt again and again
    checkpoints: tuple[float, ...] = (0.3, 1.0, 3.0)  # between two checkpoints


QUICK = Times(settle=1.0, window=2.0, kill_every=6.0, kills=1, shares=0.0, watch=0.0, checkpoints=(0.5,))


@dataclasses.dataclass(frozen=True)
class _Window:
    """Two readings of a run."""
    begin: int  # positions
    end: int
    seconds: float


class UnevenPart:
    """Runs the programs in turns. `say` shows progress."""

    def __init__(self, options: argparse.Namespace, torch: programs.Torch | None, say: Callable[[str], None],
                 save: Callable[[schema.Uneven], None]) -> None:
        self.options, self.say, self.save = options, say, save
        self.times = QUICK if options.quick else Times()
        self.plans = Plans(options, torch)
        self.failed = False
        self.notes: list[str] = []  # for people: what could not be said
        self.train_count = TRAIN_COUNTS.get(options.dataset, 0)
        self.found: schema.Uneven = {
            "model": options.uneven, "dataset": options.dataset, "workers": WORKERS, "servers": self.plans.servers,
            "global_batch": GLOBAL_BATCH, "micro_batches": MICRO_BATCHES, "slowed_by": None,
            "kill_every_seconds": self.times.kill_every, "shares": [], "jobs": [
                {"sync": sync, "command": [], "checkpoint_every_steps": None, "tried": [], "runs": [], "reason": None}
                for sync in options.uneven_syncs]}
        if torch is None and DDP in options.uneven_syncs:
            self._job(DDP)["reason"] = f"no python3 here has PyTorch: {programs.HOW_TO_GET_TORCH}"

    def _job(self, sync: str) -> schema.UnevenJob:
        return next(job for job in self.found["jobs"] if job["sync"] == sync)

    def measure(self) -> None:
        """Calls `save` whenever there is more. ProgramError if nothing can be measured."""
        if len(machine.cores()) < WORKERS:
            raise programs.ProgramError(f"uneven workers need {WORKERS} cores, and this machine has fewer")
        with tempfile.TemporaryDirectory() as folder:
            if self.options.dataset not in TRAIN_COUNTS:
                self.train_count = small_test_set.make(self.options.data_dir or small_test_set.FASHION_MNIST, folder)
                self.plans.data_dir = folder
            for repeat in range(self.options.uneven_repeats):
                for case in CASES:
                    if case == KILLS and repeat == 0:
                        self._choose_periods()
                    for job in measure.turns(self._working(), repeat):
                        self._measure(job, case, repeat)
                        self.save(self.found)

    def _working(self) -> list[schema.UnevenJob]:
        return [job for job in self.found["jobs"] if job["reason"] is None]

    def _measure(self, job: schema.UnevenJob, case: str, repeat: int) -> None:
        def run() -> schema.UnevenRun:
            if case == KILLS:
                return self._run_with_kills(job, self.times.kills, job["checkpoint_every_steps"], repeat)
            return self._run_with_shares(repeat) if (case, job["sync"]) == (HALF_SPEED, ELASTIC) else self._run(
                job["sync"], case, repeat)

        made = self._try_twice(job, run)
        if made is not None:
            job["runs"].append(made)
            self.say(f"uneven: {job['sync']}, {case}, run {repeat + 1}/{self.options.uneven_repeats}: "
                     f"{made['samples_per_second']:.0f} samples/s")

    def _try_twice(self, job: schema.UnevenJob, run: Callable[[], schema.UnevenRun]) -> schema.UnevenRun | None:
        for _ in range(2):
            try:
                return run()
            except programs.ProgramError as error:
                self.say(str(error))
                reason = str(error).splitlines()[0]
        self.failed = True
        job["reason"] = f"it failed twice: {reason[-measure.SAID_MAX:]}"
        return None

    def _choose_periods(self) -> None:
        """For the jobs that have checkpoints."""
        for job in self._working():
            if job["sync"] == ELASTIC:
                continue
            even = next(run["samples_per_second"] for run in job["runs"] if run["case"] == EVEN)
            found = counted.periods(GLOBAL_BATCH / even, self.times.checkpoints)
            job["checkpoint_every_steps"] = found[0]
            for period in found if len(found) > 1 else []:
                made = self._try_twice(job, functools.partial(self._run_with_kills, job, self.times.kills_tried, period,
                                                              0))
                if made is None:
                    break
                job["tried"].append({"checkpoint_every_steps": period,
                                     "samples_per_second": made["samples_per_second"]})
                self.say(f"uneven: {job['sync']}, a checkpoint every {period} steps: "
                         f"{made['samples_per_second']:.0f} samples/s")
            if job["tried"]:
                best = max(job["tried"], key=lambda one: one["samples_per_second"])
                job["checkpoint_every_steps"] = best["checkpoint_every_steps"]

    def _rate(self, window: _Window) -> float:
        return counted.rate(window.begin, window.end, window.seconds, self.train_count, GLOBAL_BATCH)

    def _made(self, window: _Window, case: str, repeat: int, kills: int = 0) -> schema.UnevenRun:
        return {"repeat": repeat, "case": case, "samples_per_second": self._rate(window), "seconds": window.seconds,
                "kills": kills}

    def _watch(self, running: RunningJob) -> _Window:
        begin, start = running.await_position(), time.monotonic()
        running.wait_until(start + self.times.window)
        return _Window(begin, running.await_position(), time.monotonic() - start)

    def _slow_down(self, running: RunningJob, stack: contextlib.ExitStack) -> None:
        """Until `stack` ends."""
        pid = running.workers().get(SLOW_WORKER)
        if pid is None:
            raise running.failure(f"has no worker {SLOW_WORKER}")
        self.found["slowed_by"] = stack.enter_context(half_speed.halved(pid))
        stack.callback(running.stop)  # first: a group with a process in it cannot be removed

    def _run(self, sync: str, case: str, repeat: int) -> schema.UnevenRun:
        with tempfile.TemporaryDirectory() as folder, RunningJob(self.plans.plan(sync, folder)) as running, \
                contextlib.ExitStack() as stack:
            running.await_position()
            if case == HALF_SPEED:
                self._slow_down(running, stack)
            running.wait_until(time.monotonic() + self.times.settle)
            window = self._watch(running)
        return self._made(window, case, repeat)

    def _run_with_kills(self, job: schema.UnevenJob, kills: int, period: int | None, repeat: int) -> schema.UnevenRun:
        every = self.times.kill_every
        with tempfile.TemporaryDirectory() as folder:
            plan = self.plans.plan(job["sync"], folder, restarts=True, period=period)
            job["command"] = plan.command.text()
            with RunningJob(plan) as running:
                running.await_position()
                running.wait_until(time.monotonic() + self.times.settle)
                begin, start = running.await_position(), time.monotonic()
                done = 0
                for kill in range(kills):
                    running.wait_until(start + kill * every)
                    done += running.kill(kill % WORKERS)
                running.wait_until(start + kills * every)
                # Where all start again slowly, the first step may come later. The run is then where it starts.
                return self._made(_Window(begin, running.await_position(), kills * every), KILLS, repeat, done)

    def _run_with_shares(self, repeat: int) -> schema.UnevenRun:
        """The elastic star with a slow worker: waits until the shares have been dealt anew."""
        with tempfile.TemporaryDirectory() as folder, RunningJob(self.plans.plan(ELASTIC, folder)) as running, \
                contextlib.ExitStack() as stack:
            running.await_position()
            start = time.monotonic()
            self._slow_down(running, stack)
            running.wait_until(time.monotonic() + self.times.settle)
            equal = running.pages()
            running.wait(lambda: running.deals > 0, self.times.shares)
            until_dealt = running.pages()  # the generation goes on to its next snapshot
            running.wait(lambda: len(running.generations) > running.deals, self.times.settle)
            for _ in range(WINDOWS_MAX):  # the last, should shares be dealt anew in each
                generation, _first = running.generations[-1]
                running.wait_until(time.monotonic() + self.times.settle)
                dealt = running.pages()
                window = self._watch(running)
                watch = uneven_shares.Watch(generation, (equal, until_dealt), (dealt, running.pages()),
                                            (window.begin, window.end))
                if running.generations[-1][0] == generation:
                    break
            if repeat == 0 and running.deals > 0:
                running.wait_until(time.monotonic() + self.times.watch)
            watched = time.monotonic() - start
            running.stop()  # it writes its record
            if running.deals > 0:
                self._add_shares(watch, folder, {"repeat": repeat, "deals": running.deals, "watched_seconds": watched})
            elif self.times.shares > 0:
                self.notes.append(f"run {repeat + 1} of the elastic star with a slow worker: shares were not dealt "
                                  f"anew within {self.times.shares:.0f} s")
        return self._made(window, HALF_SPEED, repeat)

    def _add_shares(self, watch: uneven_shares.Watch, folder: str, run: dict[str, Any]) -> None:
        with open(os.path.join(folder, GENERATIONS_LOG), encoding="utf-8") as file:
            log = file.read()
        losses = []
        with contextlib.suppress(FileNotFoundError):
            with open(os.path.join(folder, RECORD), encoding="utf-8") as file:
                losses = json.load(file)["losses"]
        found = uneven_shares.describe(watch, log, losses, MICRO_BATCHES)
        if found is None:
            self.notes.append(f"run {run['repeat'] + 1} of the elastic star with a slow worker: its shares cannot be "
                              "judged, because a page, the log or the record is missing")
        else:
            self.found["shares"].append(cast(schema.Shares, {**run, **found}))
