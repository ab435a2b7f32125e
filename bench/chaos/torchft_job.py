"""A job of torchft under the schedule of an elastic star, so that the two can be compared."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any

from bench.chaos.job import LEFT_SECONDS_MAX, TICK_S, Done, Job, JobFailed, JobPlan, Outcome, Position
from bench.chaos.schedule import LIGHTHOUSE, TORCHFT, WORKERS_MAX, Event
from bench.chaos.timeline import CAUSE_CHANGE, Measures, Start, covered
from bench.chaos.torchft_steps import Steps

WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torchft_worker.py")
# The defaults: 100, 60000 and 5000 ms. A worker sends a heartbeat every 100 ms.
LIGHTHOUSE_FLAGS = ("--min_replicas=1", "--quorum_tick_ms=10", "--join_timeout_ms=1000", "--heartbeat_timeout_ms=1000")
ENVIRONMENT = ("RUST_LOG=error", "GLOO_SOCKET_IFNAME=lo", "OMP_NUM_THREADS=1")

Victim = tuple[str, int]  # role and number


def refusal(topologies: list[str], python: str | None) -> str:
    """Why there can be no job of torchft; empty if none is wanted, or there can be one."""
    if TORCHFT not in topologies or python and os.access(python, os.X_OK):
        return ""
    return ("--topologies has %s, and --torchft_python is %s, which is no program: give a Python that has "
            "torchft 0.2.0 and numpy, and PyTorch 2.9.1: torchft cannot use Gloo with 2.7.1" % (TORCHFT, python))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class TorchftJob(Job):
    """One job of torchft, from its start to its end. plan.launch is the Python that has torchft.

    There is no launcher: this object starts a process that has ended again, at once."""

    def __init__(self, plan: JobPlan, say: Callable[[str], None]) -> None:
        super().__init__(plan, say)
        self._steps = Steps()
        self._port = free_port()  # the lighthouse has the same one when it is started again
        self._processes: dict[Victim, subprocess.Popen[str]] = {}
        self._leaving: set[Victim] = set()
        self._starts: list[Start] = []  # of the job, of lighthouses, and of workers that joined
        self._kills: list[tuple[float, int]] = []  # when a worker was killed, and which
        self._ends: list[str] = []  # of processes that chaos has not killed
        self._finished = False  # a worker has made all steps
        self._digests: set[str] = set()
        self._previous: Done | None = None
        with open(self._path("steps"), "w"):
            pass
        self._stream = open(self._path("steps"))
        self._tail = ""  # of a line that was not yet written completely

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def start(self) -> None:
        self._starts.append(Start("job", time.monotonic()))
        self._start_process((LIGHTHOUSE, 0))
        for number in range(self._plan.setup.workers):
            self._start_process(("worker", number))

    def _start_process(self, victim: Victim) -> None:
        python, (role, number) = self._plan.launch, victim
        if role == LIGHTHOUSE:
            self._starts.append(Start(LIGHTHOUSE, time.monotonic()))
            command = [os.path.join(os.path.dirname(python), "torchft_lighthouse"),
                       "--bind=127.0.0.1:%d" % self._port, *LIGHTHOUSE_FLAGS]
        else:
            self._read_steps()
            self._steps.newest.pop(number, None)
            command = [WORKER, "--number=%d" % number, "--workers=%d" % self._plan.setup.workers,
                       "--lighthouse=http://127.0.0.1:%d" % self._port, "--folder=" + self._folder,
                       "--steps_file=" + self._path("steps"), *self._plan.worker_flags]
        self._processes[victim] = self._launch(["env", *ENVIRONMENT, python, *command], joined=number + 1)

    def _on_line(self, at: float, line: str, joined: int) -> None:
        pass  # the job is seen in the file of steps alone

    def _read_steps(self) -> None:
        *lines, self._tail = (self._tail + self._stream.read()).split("\n")
        for line in lines:
            self._steps.add(line)

    def _workers(self) -> list[Victim]:
        """Those that run and stay."""
        return sorted(one for one in self._processes if one[0] == "worker" and one not in self._leaving)

    def _tick(self) -> None:
        """Reads what the workers have written, and starts processes again that have ended."""
        self._read_steps()
        for victim, process in list(self._processes.items()):
            code = process.poll()
            if code is None:
                continue
            del self._processes[victim]
            self._finished = self._finished or code == 0 and victim not in self._leaving
            if code not in (0, -signal.SIGKILL):
                self._ends.append("%s %d: exit code %d" % (*victim, code))
            if victim not in self._leaving and not self._finished:
                self._start_process(victim)
            self._leaving.discard(victim)
        for start in self._starts:
            if start.end is None and self._has_started(start):
                start.end = time.monotonic()

    def _has_started(self, start: Start) -> bool:
        if start.name == LIGHTHOUSE:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=TICK_S).close()
            except OSError:
                return False
            return True
        if start.name != "job":
            return any(at > start.begin for at in self._steps.ready.get(int(start.name), []))
        if all(number in self._steps.ready for number in range(self._plan.setup.workers)):
            with open(self._path("begin"), "w"):
                return True
        return False

    def _pause(self, duration_s: float) -> None:
        end = time.monotonic() + duration_s
        while time.monotonic() < end:
            self._tick()
            time.sleep(TICK_S)

    def _position(self) -> Position:
        return max(0, self._steps.quorum), self._steps.step

    def _has_settled(self) -> bool:
        """Whether all workers are back, and in the quorum."""
        workers = self._workers()
        newest = [self._steps.newest.get(number) for _, number in workers]
        return not self._leaving and (LIGHTHOUSE, 0) in self._processes and all(
            one is not None and one.committed and (one.quorum, one.shares) == (self._steps.quorum, len(workers))
            for one in newest)

    def _recover(self, base: Position, restart_needed: bool, pending: list[Done],
                 on_event: Callable[[Done], None]) -> Position | None:
        """As that of an elastic job."""
        del restart_needed
        since = time.monotonic()
        after = max([done.end for done in pending], default=0.0)
        recovered = False
        while not self._finished:
            self._tick()
            recovered = recovered or self._steps.has_step_after(after) and all(
                self._measure(done).next_step_s is not None for done in pending)
            if recovered and self._has_settled():
                break
            self._check(since, self._plan.event_limit_s,
                        "not all workers are in the quorum" if recovered else "no step after step %d" % base[1])
            time.sleep(TICK_S)
        for done in pending:
            done.take(self._measure(done))
            on_event(done)
        pending.clear()
        return None if self._finished else self._position()

    def _measure(self, done: Done) -> Measures:
        end, event = done.end, done.event
        kills_lighthouse = event.kind in CAUSE_CHANGE and LIGHTHOUSE in (event.role, event.other and event.other[0])
        if kills_lighthouse:  # the number of the next quorum may be the same
            start = next((one for one in self._starts if one.name == LIGHTHOUSE and one.begin > done.begin), None)
            end = float("inf") if start is None or start.end is None else start.end
        found = self._steps.measure(done.begin, end, event.kind in CAUSE_CHANGE and not kills_lighthouse)
        if found.next_step_s is None:
            return found
        names = ["job", LIGHTHOUSE, *([str(event.number)] if event.kind == "join" else [])]
        until = done.begin + found.next_step_s
        return dataclasses.replace(found, start_s=covered(
            [(max(one.begin, done.begin), min(one.end or until, until)) for one in self._starts
             if one.name in names and one.begin < until and (one.end is None or one.end > done.begin)]))

    def _do(self, event: Event, base: Position) -> Done | None:
        before = self._previous if event.at_start else None
        since = time.monotonic()
        if event.at_start:
            since = self._begin if before is None else before.begin
        self._pause(since + event.delay_s - time.monotonic())
        self._tick()
        if self._finished:
            return None
        event, victims = self._choose(event)
        begin = time.monotonic()
        quorum, step = self._position()
        done = Done(event=event, begin=begin, at_s=begin - self._begin, wall=time.time(), victim_pid=0, start=0,
                    attempt=quorum, step_before=step, in_change=event.at_start)
        if before is not None:
            before.in_change = True
        self._apply(event, victims)
        done.end = time.monotonic()
        self._previous = done
        self._say("%8.2f s  step %6d  %s" % (done.at_s, step, event))
        return done

    def _choose(self, event: Event) -> tuple[Event, list[Victim]]:
        """The event with the numbers of its victims, and these, by the rules of an elastic job."""
        workers = self._workers()
        if event.kind in ("join", "leave"):
            may_leave = [one for one in workers if one[1] in self._steps.newest]
            if may_leave and (len(workers) >= WORKERS_MAX if event.kind == "join" else len(workers) > 1):
                victim = may_leave[event.number % len(may_leave)]
                return dataclasses.replace(event, kind="leave", number=victim[1]), [victim]
            number = min(set(range(WORKERS_MAX + 1)) - {number for role, number in self._processes if role == "worker"})
            return dataclasses.replace(event, kind="join", number=number), [("worker", number)]
        chosen: list[Victim] = []
        for role, number in [(event.role, event.number), *([event.other] if event.other else [])]:
            left = [one for one in (workers if role == "worker" else [(LIGHTHOUSE, 0)]) if one not in chosen]
            if left:
                chosen.append(left[number % len(left)])
        kind = "kill" if event.kind == "kill-two" and len(chosen) < 2 else event.kind
        return dataclasses.replace(event, kind=kind, role=chosen[0][0], number=chosen[0][1],
                                   other=chosen[1] if len(chosen) > 1 else None), chosen

    def _apply(self, event: Event, victims: list[Victim]) -> None:
        """Returns when the event is over."""
        if event.kind == "join":
            self._starts.append(Start(str(event.number), time.monotonic()))
            self._start_process(victims[0])
        elif event.kind == "leave":
            self._leaving.add(victims[0])
            self._processes[victims[0]].send_signal(signal.SIGTERM)
        elif event.kind.startswith("stop"):
            process = self._processes[victims[0]]
            process.send_signal(signal.SIGSTOP)
            self._pause(event.duration_s)
            process.send_signal(signal.SIGCONT)
        else:
            for victim in victims:
                self._processes[victim].kill()
                if victim[0] == "worker":
                    self._kills.append((time.monotonic(), victim[1]))

    def _finish(self) -> str:
        since = time.monotonic()
        while not self._finished:
            self._tick()
            self._check(since, self._plan.limit_s, "no end")
            time.sleep(TICK_S)
        since = time.monotonic()
        while self._workers() and time.monotonic() - since < LEFT_SECONDS_MAX:
            self._tick()
            time.sleep(TICK_S)
        self._read_steps()
        records = []
        for number in range(WORKERS_MAX + 1):
            if os.path.exists(self._path("record.%d" % number)):
                with open(self._path("record.%d" % number)) as file:
                    records.append(json.load(file)["parameter_sha256"])
        self._digests = set(records)
        if not records:
            raise JobFailed(Outcome.ERROR, "no worker has written a record")
        return records[0]

    @property
    def facts(self) -> dict[str, Any]:
        """What the log keeps of the job."""
        workers, shares = self._plan.setup.workers, self._steps.shares.values()
        backs = [(self._steps.back(worker, at), at) for at, worker in self._kills]
        return {"shares_due": workers * len(shares), "shares_missing": sum(max(0, workers - one) for one in shares),
                "shares_extra": sum(max(0, one - workers) for one in shares), "ends": self._ends,
                "digests": len(self._digests), "back_s": [back - at for back, at in backs if back is not None]}

    def _end(self) -> None:
        super()._end()
        for process in self._processes.values():
            process.wait()
        self._stream.close()
