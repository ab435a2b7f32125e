"""An elastic job: it is never started again as a whole, and workers join and leave while it runs.

Kinds of events (their times follow from schedule.py):
  kill, kill-two    SIGKILL of a worker, a server, or shard 0, which has the coordinator; of two at once.
  stop-short        Up to 3.75 s, which changes nothing.
  stop-long         6 to 7.5 s, so that the process is given up after 5 s (--member_silent_s). A worker then wakes up
                    during a later generation and joins the next one. A launcher ends a server before it wakes up, and
                    starts it again.
  join, leave       One more worker, by a `launch --join` of its own; SIGTERM to a worker, if there is another one.
                    There are 1 to 6 workers; at these limits one event becomes the other.
  cut, shut-long    Workers that have joined reach the coordinator through a proxy. It resets one or all of these
                    connections, which changes nothing, or refuses them for 1.8 to 2.5 s. Then these workers are given
                    up (--member_gone_s, 1 s) and join again. If there are none, a worker joins.
  stuck-long        For 12 to 14 s only the training thread of a worker is stopped (ptrace), while it computes if that
                    comes within 2 s. The worker goes on to report, and is given up after 10 s (--member_stuck_s). A
                    worker that was stopped while it waited is not: the run goes on when the event ends.
  report-error      A worker's device reports an error in its next forward (tests/e2e/stopping_worker.cc fails so after
                    SIGUSR2). The worker leaves, and its launcher starts it again.
  blocked-shard     For 5.5 to 8 s a proxy before the last shard lets no new connection through, and a worker joins.
                    The others train on, and the worker comes in later.
  memory-squeeze    Every third job has servers with memory for five contributions to a bucket (--memory_limit_gb), and
                    the model mlp. Workers join until there are six. Those without room are spares.
  disk-full         For 1 to 2 s the servers cannot write snapshots (RLIMIT_FSIZE), but the log.
After three kills in ten the next event comes 0 to 1.5 s after the kill, during the change. Else an event waits until
all workers are back. A worker whose network was down as the run ended cannot know that it has ended: chaos ends it, and
says so.
"""

from __future__ import annotations

import dataclasses
import http.client
import os
import re
import resource
import signal
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable

from bench.chaos import processes
from bench.chaos.job import LEFT_SECONDS_MAX, RESTARTS, TICK_S, Done, Job, JobFailed, JobPlan, Outcome, Position
from bench.chaos.job import check_log, newest_step
from bench.chaos.processes import Process
from bench.chaos.proxy import Proxy
from bench.chaos.schedule import SQUEEZED_CONTRIBUTIONS, WORKERS_MAX, Event
from bench.chaos.timeline import Measures, Timeline

# Between two looks at a worker's numbers, which cost the job processor time: while an event is measured, and else.
PAGE_TICK_S = (0.02, 0.2)
# Within this all pages are read once that are read in a hurry: an event waits for it, or a step that was made before it
# and seen only then would be its next step.
SEEN_S = 2 * PAGE_TICK_S[0]
PAGE_SECONDS_MAX = 0.5  # for an answer: a process that is stopped gives none
SETTLED_TICK_S = 0.1
# With a full disk a server cannot write a longer file: no snapshot of lenet5, but its log.
FULL_DISK_BYTES = 100_000

# The parameters of mlp, and those bytes of a server that do not grow with the number of contributions: copies of the
# parameters and of the momentum, and as many of snapshots (server/README.md, Limits). The rest of a contribution's
# bytes is left for what is counted besides.
_MLP_PARAMETERS = 1_863_690
_COPIES, _SNAPSHOT_COPIES = 4 + 1, 8 * 2

_ENDED = re.compile(r"^launch: (\w+ (?:was ended by signal (\d+)|failed with exit code).*)")


class Page:
    """Reads a worker's live numbers again and again, in a thread, until the worker has ended."""

    def __init__(self, url: str, on_step: Callable[[float, int], None], hurry: threading.Event,
                 over: threading.Event) -> None:
        self.makes_steps = False  # so it takes part in a generation
        self._address = urllib.parse.urlsplit(url)
        self._on_step = on_step
        self._hurry = hurry
        self._over = over
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                step = self._read()
            except ConnectionRefusedError:
                break
            except (OSError, http.client.HTTPException, ValueError):
                step = -1
            self.makes_steps = step >= 0
            if self.makes_steps:
                self._on_step(time.monotonic(), step)
            # Before an event the longer pause ends, so that steps before the event are not taken for later ones.
            if self._hurry.is_set():
                self._over.wait(PAGE_TICK_S[0])
            else:
                self._hurry.wait(PAGE_TICK_S[1])
        self.makes_steps = False

    def _read(self) -> int:
        connection = http.client.HTTPConnection(self._address.hostname or "", self._address.port,
                                                timeout=PAGE_SECONDS_MAX)
        try:
            connection.request("GET", self._address.path)
            return newest_step(connection.getresponse().read().decode())
        finally:
            connection.close()


class ElasticJob(Job):
    """One elastic job, from its start to its end.

    A kill needs no restart of the job: the launcher starts the process again, and the others go on."""

    def __init__(self, plan: JobPlan, say: Callable[[str], None]) -> None:
        super().__init__(plan, say)
        self._secret = os.path.join(self._folder, "secret")
        self._state_dir = os.path.join(self._folder, "state")
        self._timeline = Timeline()
        self._joined: list[subprocess.Popen[str]] = []  # the launchers that have added workers
        self._coordinator = ""  # its address, once it is known
        self._proxies = [Proxy()]  # between the coordinator and the workers that join
        self._shard_proxy = Proxy()  # between all workers and the last shard
        self._failing: set[tuple[int, str]] = set()  # launchers and names of workers that were told to fail
        self._pages: dict[tuple[int, int], Page] = {}  # by the launcher's number (0: the first) and the worker's
        self._ends: list[str] = []  # of processes that chaos has not killed
        self._cut_off: set[int] = set()  # launchers that joined, and have a worker that looks for the coordinator
        self._told: set[int] = set()  # of these, those that were told that the run has ended
        self._hurry, self._over = threading.Event(), threading.Event()
        self._previous: Done | None = None

    def start(self) -> None:
        subprocess.run([self._plan.launch, "--make_secret=" + self._secret], check=True, stdout=subprocess.DEVNULL,
                       timeout=self._plan.event_limit_s)
        super().start()

    def _command(self) -> list[str]:
        setup = self._plan.setup
        return [self._plan.launch, "--elastic", "--workers=%d" % setup.workers, "--servers=%d" % setup.servers,
                "--restarts=0", "--state_dir=" + self._state_dir, "--server_binary=" + self._make_server(),
                *self._shared_words()]

    def _make_server(self) -> str:
        """A program that starts the server with flags that the launcher does not know."""
        setup, flags = self._plan.setup, ""
        if setup.squeezed:
            copies = _COPIES + _SNAPSHOT_COPIES + SQUEEZED_CONTRIBUTIONS + 0.5
            flags = "--memory_limit_gb=%.6f" % (1e-9 * 4 * _MLP_PARAMETERS / setup.servers * copies)
        path = os.path.join(self._folder, "server")
        with open(path, "w") as file:
            file.write("""#!/bin/sh
case " $* " in *" --shard=%d "*) set -- "$@" --announce=%s;; esac
exec "%s" "$@" %s
""" % (setup.servers - 1, self._shard_proxy.address, self._plan.server, flags))
        os.chmod(path, 0o700)
        return path

    def _shared_words(self) -> list[str]:
        """What the launchers of the job and of workers that join have alike."""
        return ["--restart_processes=%d" % RESTARTS, "--log_time=none", "--job_secret=" + self._secret,
                "--metrics_port=0", "--worker_binary=" + self._plan.worker, "--",
                *self._plan.worker_flags, "--progress=none", "--checkpoint_dir=none", "--record=" + self._record]

    def _on_line(self, at: float, line: str, joined: int) -> None:
        if found := re.match(r"w(\d+) \| worker \d+: metrics at (\S+)", line):
            self._pages[joined, int(found[1])] = Page(found[2], self._timeline.on_step, self._hurry, self._over)
        elif (found := _ENDED.match(line)) and found[2] != str(int(signal.SIGKILL)):
            name = found[1].split()[0]
            if joined not in self._told and (joined, name) not in self._failing:
                self._ends.append(found[1])
            self._failing.discard((joined, name))
        elif joined > 0 and "the coordinator" in line and "cannot be reached" in line:
            self._cut_off.add(joined)
        elif joined > 0 and "the job goes on after" in line:
            self._cut_off.discard(joined)
        elif found := re.match(r"launch: the coordinator listens at (\S+)", line):
            self._coordinator = found[1]
            self._proxies[0].set_target(found[1])
        elif found := re.match(r"s%d \| listening on (\S+)" % (self._plan.setup.servers - 1), line):
            self._shard_proxy.set_target(found[1])
        if joined == 0:
            self._timeline.on_line(at, line)

    def _position(self) -> Position:
        generation = self._timeline.generation
        return (0 if generation is None else generation.number), self._timeline.step

    def _running(self, role: str) -> list[Process]:
        """The processes of a role, in an order that does not depend on their process ids."""
        found = [process for process in processes.find(self._mark) if process.role == role]
        return sorted(found, key=lambda process: (self._launcher_of(process), process.number))

    def _launcher_of(self, process: Process) -> int:
        """0: the first one; i: the i-th that has added workers."""
        pids = [self._launcher.pid, *(launcher.pid for launcher in self._joined)]
        return pids.index(process.parent) if process.parent in pids else -1

    def _has_settled(self) -> bool:
        """Whether all processes are back, and all workers in the generation."""
        generation, workers = self._timeline.generation, len(self._running("worker"))
        if generation is None or len(self._running("server")) != self._plan.setup.servers:
            return False
        # A squeezed job has spares.
        return generation.workers == workers or (self._plan.setup.squeezed and 0 < generation.workers < workers)

    def _recover(self, base: Position, restart_needed: bool, pending: list[Done],
                 on_event: Callable[[Done], None]) -> Position | None:
        """Waits until each pending event has its next step, steps go on after the last of them, and all are back."""
        since = last_look = time.monotonic()
        after = max([done.end for done in pending], default=0.0)
        recovered = False
        while self._launcher.poll() is None:
            recovered = recovered or self._timeline.has_step_after(after) and all(
                self._measure(done).next_step_s is not None for done in pending)
            if recovered:
                self._hurry.clear()
                if time.monotonic() - last_look > SETTLED_TICK_S:
                    if self._has_settled():
                        break
                    last_look = time.monotonic()
            self._check(since, self._plan.event_limit_s,
                        "not all workers are in the generation" if recovered else "no step after step %d" % base[1])
            time.sleep(TICK_S)
        for done in pending:
            done.take(self._measure(done))
            on_event(done)
        pending.clear()
        return self._position() if self._launcher.poll() is None else None

    def _measure(self, done: Done) -> Measures:
        kind = done.event.kind
        if kind == "join" and self._plan.setup.squeezed:
            kind = "memory-squeeze"  # it may become a spare, which changes nothing
        return self._timeline.measure(kind, done.begin, done.end)

    def _do(self, event: Event, base: Position) -> Done | None:
        before = self._previous if event.at_start else None
        since = time.monotonic()
        if event.at_start:
            since = self._begin if before is None else before.begin
        time.sleep(max(0.0, since + event.delay_s - time.monotonic()))
        victims = self._choose(event)
        if victims is None:
            return None
        event, chosen = victims
        self._hurry.set()
        time.sleep(SEEN_S)
        begin = time.monotonic()
        generation, step = self._position()
        done = Done(event=event, begin=begin, at_s=begin - self._begin, wall=time.time(),
                    victim_pid=chosen[0].pid if chosen else 0, start=0, attempt=generation, step_before=step,
                    in_change=event.at_start)
        if before is not None:
            before.in_change = True
        if not self._apply(event, chosen):
            return None
        done.end = time.monotonic()
        self._previous = done
        self._say("%8.2f s  step %6d  %s" % (done.at_s, step, event))
        return done

    def _choose(self, event: Event) -> tuple[Event, list[Process]] | None:
        """The event with the numbers of its victims, and these; None if the job has ended.

        A worker joins instead of leaving if it would be the last one, and leaves instead of joining if there are
        enough. One joins if there is no connection through the proxy to disturb."""
        since = time.monotonic()
        while self._launcher.poll() is None:
            workers, servers = self._running("worker"), self._running("server")
            if event.role == "proxy":
                if any(self._launcher_of(one) > 0 and self._may_leave(one) for one in workers):
                    return event, []
                event = dataclasses.replace(event, kind="join", role="worker", duration_s=0.0)
            if event.kind == "report-error":
                # The last worker would be missed for as long as it takes to start it again. A launcher that has only
                # joined starts none again.
                failing = [one for one in workers if self._launcher_of(one) == 0 and self._may_leave(one)]
                if len(workers) > 1 and failing:
                    victim = failing[event.number % len(failing)]
                    return dataclasses.replace(event, number=victim.number), [victim]
                event = dataclasses.replace(event, kind="join")
            if event.kind in ("blocked-shard", "memory-squeeze"):
                if self._coordinator and len(workers) < WORKERS_MAX:
                    return event, []
                event = dataclasses.replace(event, kind="leave", role="worker", duration_s=0.0)
            if event.kind in ("join", "leave"):
                leaving = [one for one in workers if self._may_leave(one)]
                leaves = len(workers) >= WORKERS_MAX if event.kind == "join" else len(workers) > 1
                if leaves and leaving:
                    victim = leaving[event.number % len(leaving)]
                    return dataclasses.replace(event, kind="leave", number=victim.number), [victim]
                if self._coordinator:
                    return dataclasses.replace(event, kind="join", number=len(self._joined) + 1), []
            elif event.kind == "disk-full" and servers:
                return event, servers
            else:
                chosen: list[Process] = []
                for role, number in [(event.role, event.number), *([event.other] if event.other else [])]:
                    # The end of a spare changes nothing.
                    if self._plan.setup.squeezed:
                        workers = [one for one in workers if self._may_leave(one)] or workers
                    left = [one for one in (workers if role == "worker" else servers) if one not in chosen]
                    # The last worker stays alone for as long as nobody joins: a server goes with it.
                    left = left or [one for one in servers if chosen and one not in chosen]
                    if left:
                        chosen.append(left[number % len(left)])
                if len(chosen) == (1 if event.other is None else 2):
                    other = (chosen[1].role, chosen[1].number) if event.other else None
                    return dataclasses.replace(event, number=chosen[0].number, other=other), chosen
            self._check(since, self._plan.event_limit_s, "no victim for %s" % event)
            time.sleep(TICK_S)
        return None

    def _may_leave(self, worker: Process) -> bool:
        """It takes part, so that SIGTERM finds its handler."""
        page = self._pages.get((self._launcher_of(worker), worker.number))
        return page is not None and page.makes_steps

    def _apply(self, event: Event, victims: list[Process]) -> bool:
        """Returns when the event is over; False if its victims had ended before."""
        if event.kind == "join":
            self._join(1)
        elif event.kind == "memory-squeeze":
            self._join(WORKERS_MAX - len(self._running("worker")))
        elif event.kind == "blocked-shard":
            self._shard_proxy.block()
            self._join(1)
            time.sleep(event.duration_s)
            self._shard_proxy.open()
        elif event.kind == "report-error":
            self._failing.add((0, "w%d" % victims[0].number))
            return processes.send(victims[0], signal.SIGUSR2)
        elif event.role == "proxy":
            self._disturb(event)
        elif event.kind == "disk-full":
            self._limit_files(victims, FULL_DISK_BYTES)
            time.sleep(event.duration_s)
            self._limit_files(victims, None)
        elif event.kind == "stuck-long":
            return processes.hold_first_thread(victims[0], event.duration_s)
        elif event.kind.startswith("stop"):
            if not processes.send(victims[0], signal.SIGSTOP):
                return False
            time.sleep(event.duration_s)
            processes.send(victims[0], signal.SIGCONT)
        else:
            number = signal.SIGTERM if event.kind == "leave" else signal.SIGKILL
            return any([processes.send(victim, number) for victim in victims])
        return True

    def _join(self, workers: int) -> None:
        command = [self._plan.launch, "--join=" + self._proxies[0].address, "--workers=%d" % max(1, workers),
                   *self._shared_words()]
        self._joined.append(self._launch(command, joined=len(self._joined) + 1))

    @staticmethod
    def _limit_files(servers: list[Process], bytes_max: int | None) -> None:
        for server in servers:
            try:
                _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
                resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard if bytes_max is None else bytes_max, hard))
            except ProcessLookupError:
                pass  # it has ended meanwhile

    def _await_nothing_left(self) -> None:
        """A worker whose network was down as the run ended looks for the coordinator until its deadline of a minute: it
        cannot know, so it is told, as an operator would do."""
        since = time.monotonic()
        while processes.find(self._mark) and time.monotonic() - since < LEFT_SECONDS_MAX / 2:
            time.sleep(TICK_S)
        for number in sorted(self._cut_off):  # lines may still come
            launcher = self._joined[number - 1]
            if launcher.poll() is None:
                self._told.add(number)
                launcher.terminate()
                self._say("            launcher %d, cut off as the run ended, was told so" % number)
        super()._await_nothing_left()

    def _finish(self) -> str:
        digest = super()._finish()
        for number, launcher in enumerate(self._joined, 1):
            if launcher.wait(timeout=LEFT_SECONDS_MAX) != 0 and number not in self._told:
                raise JobFailed(Outcome.ERROR, "launcher %d of those that joined ended with exit code %d" % (
                    number, launcher.returncode))
        if self._ends:
            raise JobFailed(Outcome.ERROR, "processes ended that were not killed: " + "; ".join(self._ends))
        check_log(self._plan.server, self._state_dir, self._plan.event_limit_s)
        return digest

    def _end(self) -> None:
        self._over.set()
        self._hurry.set()
        super()._end()
        self._shard_proxy.close()
        for launcher in self._joined:
            launcher.wait()
