"""Measures the ring, the star, the elastic star and DDP with uneven and with failing workers.

Three cases: undisturbed; in the same run with one of the workers at half speed (half_speed.py); and with a worker
killed by SIGKILL at regular intervals, the workers in turns. Ring, star and DDP then start again, all processes, from
their last checkpoint; the elastic star starts the one process again. Samples/s are those that counted (counted.py) over
wall time, with everything that the programs do meanwhile. All workers are pinned to a core each.

The windows of one repeat of four programs take some five minutes (Times), most of it with kills.

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
from uneven_plans import DDP, ELASTIC, GLOBAL_BATCH, MICRO_BATCHES, RECORD, STATE_DIR, WORKERS, Plans
from uneven_verdict import EVEN, HALF_SPEED, KILLS

SLOW_WORKER = 1
WINDOWS_MAX = 3
TRAIN_COUNTS = {"synthetic": 60000, "cifar10": 50000, "cifar100": 50000}  # of those that have no small test set


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds."""
    settle: float = 3.0  # from the first step, or from a change, to the first reading
    window: float = 12.0  # without kills
    saved: float = 5.0  # from the first step to the first kill: by then each program has saved once
    kill_every: float = 10.0
    kills: int = 4  # the kills of a run; as many of each worker
    kills_tried: int = 2  # the kills of a short run
    shares: float = 150.0  # within which the shares of the elastic star are dealt anew
    deal_again: float = 25.0  # then they may be again: the coordinator deals every 20 s at most
    watch: float = 200.0  # in one run, how long it is watched whether this happens again and again
    checkpoints: tuple[float, ...] = (0.3, 1.0, 3.0)  # between two checkpoints


QUICK = Times(settle=1.0, window=2.0, saved=1.0, kill_every=6.0, kills=1, shares=0.0, deal_again=0.0, watch=0.0,
              checkpoints=(0.5,))


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
        self.has_watched = False  # the shares, for long
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
                self._measure_all(repeat, self._run)
                if repeat == 0:
                    self._choose_periods()
                self._measure_all(repeat, self._run_with_kills)

    def _working(self) -> list[schema.UnevenJob]:
        return [job for job in self.found["jobs"] if job["reason"] is None]

    def _measure_all(self, repeat: int, run: Callable[[schema.UnevenJob, int], list[schema.UnevenRun]]) -> None:
        for job in measure.turns(self._working(), repeat):
            for made in self._try_twice(job, functools.partial(run, job, repeat)):
                job["runs"].append(made)
                self.say(f"uneven: {job['sync']}, {made['case']}, run {repeat + 1}/{self.options.uneven_repeats}: "
                         f"{made['samples_per_second']:.0f} samples/s")
            self.save(self.found)

    def _try_twice(self, job: schema.UnevenJob, run: Callable[[], list[schema.UnevenRun]]) -> list[schema.UnevenRun]:
        """Nothing if it fails twice: the others go on."""
        for _ in range(2):
            try:
                return run()
            except (programs.ProgramError, OSError) as error:  # OSError: a process ended while it was looked at
                self.say(str(error))
                reason = str(error).splitlines()[0]
        self.failed = True
        job["reason"] = f"it failed twice: {reason[-measure.SAID_MAX:]}"
        return []

    def _choose_periods(self) -> None:
        """For the jobs that have checkpoints."""
        for job in self._working():
            if job["sync"] == ELASTIC:
                continue
            even = next(run["samples_per_second"] for run in job["runs"] if run["case"] == EVEN)
            found = counted.periods(GLOBAL_BATCH / even, self.times.checkpoints)
            job["checkpoint_every_steps"] = found[0]
            for period in found if len(found) > 1 else []:
                made = self._try_twice(job, functools.partial(self._run_with_kills, job, 0, period))
                if not made:
                    break
                rate = made[0]["samples_per_second"]
                job["tried"].append({"checkpoint_every_steps": period, "samples_per_second": rate})
                self.say(f"uneven: {job['sync']}, a checkpoint every {period} steps: {rate:.0f} samples/s")
            if job["tried"]:
                best = max(job["tried"], key=lambda one: one["samples_per_second"])
                job["checkpoint_every_steps"] = best["checkpoint_every_steps"]

    def _rate(self, window: _Window) -> float:
        return counted.rate(window.begin, window.end, window.seconds, self.train_count, GLOBAL_BATCH)

    def _made(self, window: _Window, case: str, repeat: int, kills: int = 0) -> schema.UnevenRun:
        return {"repeat": repeat, "case": case, "samples_per_second": self._rate(window), "seconds": window.seconds,
                "kills": kills}

    def _settle(self, running: RunningJob) -> None:
        running.wait_until(time.monotonic() + self.times.settle)

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

    def _run(self, job: schema.UnevenJob, repeat: int) -> list[schema.UnevenRun]:
        """Undisturbed, and then with a slow worker."""
        sync = job["sync"]
        with tempfile.TemporaryDirectory() as folder, RunningJob(self.plans.plan(sync, folder)) as running, \
                contextlib.ExitStack() as stack:
            running.await_position()
            self._settle(running)
            even = self._watch(running)
            if even.end <= even.begin:
                raise running.failure(f"has made no step in {even.seconds:.0f} s although nothing disturbed it")
            self._slow_down(running, stack)
            if sync == ELASTIC:
                slow = self._watch_shares(running, folder, repeat)
            else:
                self._settle(running)
                slow = self._watch(running)
        return [self._made(even, EVEN, repeat), self._made(slow, HALF_SPEED, repeat)]

    def _run_with_kills(self, job: schema.UnevenJob, repeat: int, tried: int | None = None) -> list[schema.UnevenRun]:
        """`tried`: a short run that saves every so many steps."""
        every = self.times.kill_every
        kills, period = ((self.times.kills, job["checkpoint_every_steps"]) if tried is None else
                         (self.times.kills_tried, tried))
        with tempfile.TemporaryDirectory() as folder:
            plan = self.plans.plan(job["sync"], folder, restarts=True, period=period)
            job["command"] = plan.command.text()
            with RunningJob(plan) as running:
                running.await_position()
                running.wait_until(time.monotonic() + self.times.saved)
                begin, start = running.await_position(), time.monotonic()
                done = 0
                for kill in range(kills):
                    running.wait_until(start + kill * every)
                    done += running.kill(kill % WORKERS)
                running.wait_until(start + kills * every)
                # Where all start again slowly, the first step may come later. The run is then where it starts.
                window = _Window(begin, running.await_position(), kills * every)
        if done < kills:
            self.notes.append(f"{job['sync']} had no worker to kill at {kills - done} of {kills} times in "
                              f"{'a short run' if tried is not None else f'run {repeat + 1}'}")
        return [self._made(window, KILLS, repeat, done)]

    def _watch_shares(self, running: RunningJob, folder: str, repeat: int) -> _Window:
        """The elastic star has had a slow worker since a moment: waits until the shares have been dealt anew."""
        start, before, equal = time.monotonic(), running.deals, running.pages()
        running.wait(lambda: running.deals > before, self.times.shares)
        until_dealt = running.pages()  # the generation goes on to its next snapshot
        running.wait(lambda: len(running.generations) > running.deals, self.times.settle)
        if running.deals > before:  # the first shares may rest on the step in which the worker became slow
            running.wait(lambda: running.deals > before + 1, self.times.deal_again)
            running.wait(lambda: len(running.generations) > running.deals, self.times.settle)
        for _ in range(WINDOWS_MAX):  # the last, should shares be dealt anew in each
            generation, _first = running.generations[-1]
            self._settle(running)
            dealt = running.pages()
            window = self._watch(running)
            watch = uneven_shares.Watch(generation, (equal, until_dealt), (dealt, running.pages()),
                                        (window.begin, window.end))
            if running.generations[-1][0] == generation:
                break
        else:
            self.notes.append(f"run {repeat + 1} of the elastic star with a slow worker: no generation lasted for "
                              f"{self.times.window:.0f} s")
        is_judged = before == 0 and running.deals > 0
        if is_judged and not self.has_watched:
            running.wait_until(start + self.times.watch)
            self.has_watched = True
        run = {"repeat": repeat, "deals": running.deals - before, "watched_seconds": time.monotonic() - start}
        running.stop()  # it writes its record
        if is_judged:
            self._add_shares(watch, folder, run)
        elif self.times.shares > 0:
            self.notes.append(f"run {repeat + 1} of the elastic star with a slow worker: shares were dealt anew "
                              f"{before} times before, and {run['deals']} times within {run['watched_seconds']:.0f} s")
        return window

    def _add_shares(self, watch: uneven_shares.Watch, folder: str, run: dict[str, Any]) -> None:
        log = programs.run([programs.binary("server/server"), "--print_log",
                            "--state_dir=" + os.path.join(folder, STATE_DIR)])
        losses = []
        with contextlib.suppress(FileNotFoundError, ValueError):
            with open(os.path.join(folder, RECORD), encoding="utf-8") as file:
                losses = json.load(file)["losses"]
        found = uneven_shares.describe(watch, log, losses, MICRO_BATCHES)
        if found is None:
            self.notes.append(f"run {run['repeat'] + 1} of the elastic star with a slow worker: its shares cannot be "
                              "judged, because a page, the log or the record is missing")
        else:
            self.found["shares"].append(cast(schema.Shares, {**run, **found}))
