"""Runs one job under `deploy/launch --restarts`, reads its live numbers, and applies the events of a schedule to it."""

from __future__ import annotations

import collections
import dataclasses
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable
from typing import IO

import sync_cells as cells
from bench.chaos import processes
from bench.chaos.proxy import Proxy, cut_some
from bench.chaos.schedule import Event, Setup
from bench.chaos.timeline import Measures

# The time between two looks at a job, and so the precision of a time to the next step.
TICK_S = 0.01
# How long processes may outlive their launcher: Open MPI's own daemons need a few seconds to end.
LEFT_SECONDS_MAX = 20.0
# A schedule ends when this part of the job is done, because each event is measured by the next step.
LAST_EVENT_FRACTION = 0.85
RESTARTS = 1000
KEPT_LINES = 1000

Position = tuple[int, int]  # an attempt's number, and the newest step that it made; -1 before its first step

NO_PROCESS = processes.Process(pid=0, started="", role="proxy", number=0)


class JobFailed(Exception):
    """The job failed. `outcome` is one of Outcome.FAILURES."""

    def __init__(self, outcome: str, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


class Outcome:
    """How a job ended."""
    OK = "ok"
    WRONG_DIGEST = "wrong digest"
    HANG = "hang"
    ERROR = "error"  # it ended with another exit code than 0
    LEFT_BEHIND = "left behind"  # processes outlived the launcher
    NOT_ONCE = "not exactly once"  # the log of an elastic run does not prove that each leaf of each step counted once
    FAILURES = (WRONG_DIGEST, HANG, ERROR, LEFT_BEHIND, NOT_ONCE)


@dataclasses.dataclass(frozen=True)
class JobPlan:
    """How a job is started. Everything that decides the digest is in `worker_flags`."""
    launch: str
    setup: Setup
    worker_flags: tuple[str, ...]
    steps: int
    limit_s: float  # for the whole job
    event_limit_s: float  # from the end of an event to the next step
    worker: str = ""  # of an elastic job: one that fails when it is told to
    server: str = ""  # of an elastic job


@dataclasses.dataclass
class Done:
    """An event that took place."""
    event: Event
    at_s: float  # since the start of the job
    wall: float  # seconds since 1970
    begin: float  # on the monotonic clock
    victim_pid: int  # 0: the victims were connections
    start: int  # how often all processes had been started
    attempt: int  # how often rank 0 had printed the address of its numbers
    step_before: int
    after: Position | None = None  # at the end of the event
    next_step_s: float | None = None  # since the event's begin; None: the job ended first
    restarted: bool = False  # an elastic job: another generation began
    # The rest is measured in elastic jobs alone (timeline.Measures).
    end: float = 0.0  # on the monotonic clock
    in_change: bool = False  # it came before the job had recovered from the one before, or the next one did
    detection_s: float | None = None
    start_s: float = 0.0
    again_steps: int = 0

    def take(self, measures: Measures) -> None:
        self.next_step_s, self.restarted = measures.next_step_s, measures.changed
        self.detection_s, self.start_s = measures.detection_s, measures.start_s
        self.again_steps = measures.again_steps


def _is_next(now: Position, before: Position) -> bool:
    """Whether a step began after `before` was seen. The very next step does not count: it may have begun earlier."""
    return now[0] > before[0] or before[1] < 0 or now[1] >= before[1] + 2


def newest_step(page: str) -> int:
    """The newest step on a worker's page of live numbers; -1 before its first one."""
    values = dict(re.findall(r"^(starring_steps?(?:_total)?)(?:\{[^}]*\})? ([0-9.e+]+)$", page, re.MULTILINE))
    return int(float(values["starring_step"])) if float(values.get("starring_steps_total", 0)) >= 1 else -1


def check_log(server: str, state_dir: str, seconds_max: float) -> None:
    """JobFailed if the log of an elastic run does not prove that each leaf of each step counted once."""
    checked = subprocess.run([server, "--print_log", "--state_dir=" + state_dir], stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True, check=False, timeout=seconds_max)
    if checked.returncode != 0:
        raise JobFailed(Outcome.NOT_ONCE, checked.stderr.strip())


class Job:
    """One job, from its start to its end. As a context manager, it leaves no process and no folder behind."""

    def __init__(self, plan: JobPlan, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self._mark = uuid.uuid4().hex
        self._folder = tempfile.mkdtemp(prefix="chaos.")
        self._launcher_process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []
        self._lines: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
        self._attempts: list[str] = []  # the address of rank 0's numbers in each attempt so far
        self._start_count = 0  # how often the launcher has started all processes
        self._starts_seen = 0  # the value of _start_count when the last event took place
        self._begin = time.monotonic()
        self._proxies = [Proxy() for _ in range(plan.setup.servers)] if plan.setup.topology == "star" else []

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def _launcher(self) -> subprocess.Popen[str]:
        assert self._launcher_process is not None, "start() comes first"
        return self._launcher_process

    @property
    def output(self) -> str:
        """The newest lines of the launcher's output."""
        return "\n".join(list(self._lines))

    def start(self) -> None:
        """Starts the launcher, also again after it was killed."""
        self._launcher_process = self._launch(self._command())
        self._start_count += 1

    def _command(self) -> list[str]:
        setup = self._plan.setup
        command = [self._plan.launch, *cells.flags_of(setup.topology), "--workers=%d" % setup.workers,
                   "--restarts=%d" % RESTARTS, "--metrics_port=0", "--log_time=none"]
        if cells.has_servers(setup.topology):
            command.append("--servers=%d" % setup.servers)
        if self._proxies:
            command.append("--through_proxy=" + ",".join(proxy.address for proxy in self._proxies))
        command += ["--", *self._plan.worker_flags, "--resume", "--progress=plain", "--share_gpus",
                    "--checkpoint_dir=" + os.path.join(self._folder, "checkpoints"),
                    "--record=" + self._record,
                    "--exchange_deadline_s=%d" % setup.exchange_deadline_s,
                    "--join_deadline_s=%d" % setup.join_deadline_s]
        return command

    def _launch(self, command: list[str], joined: int = 0) -> subprocess.Popen[str]:
        """Starts a launcher. `joined` tells those that add workers to the job from the first one."""
        environment = dict(os.environ, TMPDIR=self._folder, **{processes.MARK: self._mark})
        launcher = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", start_new_session=True)
        reader = threading.Thread(target=self._read, args=(launcher.stdout, joined), daemon=True)
        reader.start()
        self._readers.append(reader)
        return launcher

    @property
    def _record(self) -> str:
        return os.path.join(self._folder, "record.json")

    def _read(self, stream: IO[str], joined: int) -> None:
        for line in stream:
            line = line.rstrip("\n")
            at = time.monotonic()
            self._lines.append("%8.3f %s%s" % (at - self._begin, "joined %d: " % joined if joined else "", line))
            self._on_line(at, line, joined)
        stream.close()

    def _on_line(self, at: float, line: str, joined: int) -> None:
        """A reader's thread has read a line of a launcher."""
        del at, joined
        if found := re.search(r"launch: s(\d+) listens at ([^,\s]+)", line):
            self._proxies[int(found[1])].set_target(found[2])
        elif re.search(r"launch: restart \d+ of", line):
            self._start_count += 1
            for proxy in self._proxies:
                proxy.set_target(None)
        elif found := re.search(r"worker 0: metrics at (\S+)", line):
            self._attempts.append(found[1])

    def _position(self) -> Position:
        """The job's position, from rank 0's metrics."""
        attempt = len(self._attempts)
        if attempt == 0:
            return 0, -1
        try:
            with urllib.request.urlopen(self._attempts[attempt - 1], timeout=0.5) as answer:
                text = answer.read().decode()
        except (OSError, http.client.HTTPException, ValueError):
            return attempt, -1
        return attempt, newest_step(text)

    def _check(self, since: float, limit_s: float, what: str) -> None:
        now = time.monotonic()
        if now - since > limit_s:
            raise JobFailed(Outcome.HANG, "%s after %.0f s" % (what, limit_s))
        if now - self._begin > self._plan.limit_s:
            raise JobFailed(Outcome.HANG, "the job has not ended after %.0f s: %s" % (self._plan.limit_s, what))

    def run(self, events: list[Event], on_event: Callable[[Done], None], until: float | None = None) -> str:
        """Applies the events one after the other and returns the digest at the job's end.

        `on_event` gets a Done for each event, once the job's next step is known. No event begins after `until`."""
        self.start()
        pending: list[Done] = []
        try:
            self._do_all(events, pending, on_event, until)
        except JobFailed:
            for done in pending:
                on_event(done)
            raise
        return self._finish()

    def _do_all(self, events: list[Event], pending: list[Done], on_event: Callable[[Done], None],
                until: float | None) -> None:
        """`pending` gets the events that took place since a step was seen."""
        base: Position | None = (0, -1)
        restart_needed = True
        for event in events:
            if not event.at_start:
                assert base is not None  # else the loop has ended below
                base = self._recover(base, restart_needed, pending, on_event)
                restart_needed = False
                if base is None or base[1] >= LAST_EVENT_FRACTION * self._plan.steps:
                    break
            if until is not None and time.monotonic() > until:
                break
            assert base is not None
            done = self._do(event, base)
            if done is None:
                continue
            pending.append(done)
            restart_needed = restart_needed or event.kind == "kill"
            if not event.at_start:
                base = (done.attempt, done.step_before)
        self._recover(base or (0, -1), restart_needed, pending, on_event)

    def _recover(self, base: Position, restart_needed: bool, pending: list[Done],
                 on_event: Callable[[Done], None]) -> Position | None:
        """Waits for a step that began after `base` was seen and after the pending events, and reports it to on_event.

        Returns the job's position; None if the job has ended."""
        since = time.monotonic()
        now: Position | None = None
        floor = max([done.after for done in pending if done.after], default=(0, -1))
        while self._launcher.poll() is None:
            now = self._position()
            # After a kill only a step of a further attempt counts: the attempt that lost a process may still finish
            # one.
            is_new = now[0] > base[0] if restart_needed else _is_next(now, base)
            if now[1] >= 0 and is_new and _is_next(now, floor):
                break
            now = None
            self._check(since, self._plan.event_limit_s, "no step after step %d" % base[1])
            time.sleep(TICK_S)
        for done in pending:
            if now is not None:
                done.next_step_s = time.monotonic() - done.begin
                done.restarted = self._start_count > done.start
            on_event(done)
        pending.clear()
        return now

    def _find(self, event: Event, start_count: int) -> processes.Process | None:
        """Waits for the event's victim, a process of a start after `start_count`; None if the job ends first.

        NO_PROCESS if the victims are connections."""
        since = time.monotonic()
        while True:
            ended = self._launcher.poll() is not None
            if self._start_count > start_count:
                if event.role == "proxy":
                    return None if ended else NO_PROCESS
                for process in processes.find(self._mark):
                    if process.role == event.role and process.number == event.number:
                        return process
            if ended:
                return None
            self._check(since, self._plan.event_limit_s, "no %s %d" % (event.role, event.number))
            time.sleep(TICK_S)

    def _do(self, event: Event, base: Position) -> Done | None:
        """Applies the event; None if its victim ended before."""
        victim = self._find(event, self._starts_seen if event.at_start else 0)
        if victim is None:
            return None
        time.sleep(event.delay_s)
        attempt, step = base
        if not event.at_start:
            attempt, step = max(base, self._position())
        self._starts_seen = self._start_count
        begin = time.monotonic()
        done = Done(event=event, begin=begin, at_s=begin - self._begin, wall=time.time(), victim_pid=victim.pid,
                    start=self._start_count, attempt=attempt, step_before=step)
        if event.role == "proxy":
            self._disturb(event)
        elif not processes.send(victim, signal.SIGKILL if event.kind == "kill" else signal.SIGSTOP):
            return None
        elif event.kind != "kill":
            time.sleep(event.duration_s)
            processes.send(victim, signal.SIGCONT)
        elif event.role == "launch":
            self._launcher.wait(timeout=LEFT_SECONDS_MAX)
            self._await_nothing_left()
            self.start()
        if event.kind != "kill":  # steps that ended while the event lasted are no next steps
            done.after = max((attempt, step), self._position())
        self._say("%8.2f s  step %6d  %s" % (done.at_s, step, event))
        return done

    def _disturb(self, event: Event) -> None:
        proxy = self._proxies[event.number]
        if event.kind == "cut":
            cut_some(proxy, event.delay_s)  # a random number that the schedule has drawn: a seed
            return
        (proxy.shut if event.kind.startswith("shut") else proxy.freeze)()
        time.sleep(event.duration_s)
        proxy.open()

    def _await_nothing_left(self) -> None:
        since = time.monotonic()
        while left := processes.find(self._mark):
            if time.monotonic() - since > LEFT_SECONDS_MAX:
                raise JobFailed(Outcome.LEFT_BEHIND, "%.0f s after the launcher ended there are still %s" %
                                (LEFT_SECONDS_MAX, ", ".join("%s %d (%d)" % (p.role, p.number, p.pid) for p in left)))
            time.sleep(TICK_S)

    def _finish(self) -> str:
        since = time.monotonic()
        while self._launcher.poll() is None:
            self._check(since, self._plan.limit_s, "no end")
            time.sleep(TICK_S)
        for reader in self._readers:
            reader.join(timeout=5)
        if self._launcher.returncode != 0:
            raise JobFailed(Outcome.ERROR, "the launcher ended with exit code %d" % self._launcher.returncode)
        self._await_nothing_left()
        with open(self._record) as file:
            return json.load(file)["parameter_sha256"]

    def _end(self) -> None:
        processes.kill_all(self._mark)
        if self._launcher_process is not None:
            self._launcher_process.wait()
        processes.kill_all(self._mark)  # the launcher may have started further processes meanwhile
        for proxy in self._proxies:
            proxy.close()
        shutil.rmtree(self._folder, ignore_errors=True)
