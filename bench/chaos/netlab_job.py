"""Runs one job on emulated hosts and cuts links between them by a schedule."""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence

from netlab import STAR_PORT, Netlab

from bench.chaos import processes
from bench.chaos.elastic_job import Page
from bench.chaos.job import TICK_S, JobFailed, Outcome, check_log
from bench.chaos.netlab_schedule import ELASTIC, RING, STAR, Cut, Setup, expected_end, faults_of_end, pause_s
from bench.chaos.timeline import Timeline

# The time after a cut within which a job must go on, beyond as long again as the cut was: TCP pauses so long at most.
GOES_ON_S = 40.0
# A job that was not cut must end so soon after its last step.
END_S = 60.0
# A worker of an elastic run whose network was down as the run ended looks for the coordinator for its join deadline. It
# is told after this time, as an operator would do.
TELL_S = 5.0
# Within this all steps are seen that were made before a cut.
SEEN_S = 0.1
# Further cuts come only while this part of the steps is not done, so that the job has steps left after the last one.
LAST_CUT_FRACTION = 0.85
ELASTIC_WORKERS_MAX = 6
KEPT_LINES = 400
STALL_REPORT_S = 4  # the default. An error names who keeps the others waiting only if a stall comes before it

_CLONE_NEWNET = 0x40000000


class HostPage(Page):
    """Reads the live numbers of a worker on a host of the lab, which serves them on that host's loopback."""

    def __init__(self, pid: int, url: str, on_step: Callable[[float, int], None], hurry: threading.Event,
                 over: threading.Event) -> None:
        self._pid = pid  # a process on the host
        super().__init__(url, on_step, hurry, over)

    def _run(self) -> None:
        # It applies to this thread alone.
        with open("/proc/%d/ns/net" % self._pid) as place:
            if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "cannot enter a host of the lab")
        super()._run()


@dataclasses.dataclass(frozen=True)
class Programs:
    launch: str
    worker: str
    server: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a job is started. Everything that decides the digest is in `worker_flags` and `steps`."""
    setup: Setup
    programs: Programs
    worker_flags: tuple[str, ...]
    steps: int


@dataclasses.dataclass
class Result:
    """A cut that took place."""
    cut: Cut
    wall: float  # seconds since 1970
    load: float  # of the machine, in processes
    expects_end: bool
    faults: list[str] = dataclasses.field(default_factory=list)  # empty: as computed
    next_step_s: float | None = None  # since its begin
    ends_s: list[float] = dataclasses.field(default_factory=list)  # of the processes, since its begin
    reason: str = ""  # of the process that ended first


class HostProcess:
    """A process on a host of the lab."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str],
                 on_line: Callable[[HostProcess, str], None]) -> None:
        self.name = name  # "rank 1" or "server 0"
        self.is_worker = name.startswith("rank")
        self.told = False  # to end
        self.lines: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
        self.ended_at: float | None = None
        self.popen = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True, errors="replace")
        self._on_line = on_line
        self._begin = time.monotonic()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            line = line.rstrip("\n")
            self.lines.append("%8.3f %s | %s" % (time.monotonic() - self._begin, self.name, line))
            self._on_line(self, line)

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        code = self.popen.poll()
        if code is not None and self.ended_at is None:
            self.ended_at = time.monotonic()
            self._reader.join(timeout=5)
        return code

    @property
    def last_line(self) -> str:
        """The error with which it ended, or its last line."""
        texts = [line.partition(" | ")[2] for line in self.lines]
        return next((text for text in reversed(texts) if ": error: " in text), texts[-1] if texts else "")


class NetlabJob:
    """One job, from its start to its end. As a context manager, it leaves no process and no folder behind."""

    def __init__(self, plan: Plan, lab: Netlab, say: Callable[[str], None]) -> None:
        self._plan, self._lab, self._say = plan, lab, say
        self._mark = uuid.uuid4().hex
        self._folder = tempfile.mkdtemp(prefix="chaos.netlab.")
        self._secret = lab.make_secret(plan.programs.launch)
        self._processes: list[HostProcess] = []
        self._joined: list[HostProcess] = []
        self._timeline = Timeline()
        self._hurry, self._over = threading.Event(), threading.Event()
        self._begin = time.monotonic()
        self._cut_end = self._begin  # of the last cut

    def __enter__(self) -> NetlabJob:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._hurry.set()
        processes.kill_all(self._mark)
        for process in self._processes:
            process.popen.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def output(self) -> str:
        """The newest lines of all processes."""
        return "\n".join(line for process in self._processes for line in list(process.lines))

    @property
    def _record(self) -> str:
        return os.path.join(self._folder, "record.json")

    @property
    def _worker(self) -> list[str]:
        """The beginning of a worker's command."""
        setup = self._plan.setup
        return [self._plan.programs.worker, *self._plan.worker_flags, "--progress=none", "--checkpoint_dir=none",
                "--log_time=none",
                "--metrics_port=0", "--record=" + self._record, "--exchange_deadline_s=%d" % setup.exchange_deadline_s,
                "--join_deadline_s=%d" % setup.join_deadline_s,
                "--stall_report_s=%d" % min(STALL_REPORT_S, max(1, setup.exchange_deadline_s // 4))]

    def _commands(self) -> dict[str, list[str]]:
        """The commands of the job's processes, by their names."""
        setup, lab, worker = self._plan.setup, self._lab, self._worker
        server = [self._plan.programs.server, "--log_time=none",
                  "--join_deadline_s=%d" % setup.join_deadline_s]
        if setup.topology == STAR:
            servers, workers = lab.star_commands(server, worker, self._secret, setup.servers, setup.hosts)
        elif setup.topology == RING:
            servers, workers = [], lab.rank_commands([*worker, "--sync=ring", "--transport=tcp"], self._secret)
        else:
            servers = [lab.command(shard, [*server, "--elastic", "--shard=%d" % shard, "--job_secret=" + self._secret,
                                           "--shard_count=%d" % setup.servers, "--state_dir=" + self._state_dir,
                                           "--listen=%s:%d" % (lab.addresses[shard], STAR_PORT),
                                           *(["--first_workers=%d" % setup.hosts] if shard == 0 else
                                             ["--coordinator=" + self._coordinator])])
                       for shard in range(setup.servers)]
            workers = [self._elastic_worker(host) for host in range(setup.hosts)]
        named = {"server %d" % shard: command for shard, command in enumerate(servers)}
        return {**named, **{"rank %d" % rank: command for rank, command in enumerate(workers)}}

    def _elastic_worker(self, host: int) -> list[str]:
        return self._lab.command(host, [*self._worker, "--elastic", "--coordinator=" + self._coordinator,
                                        "--job_secret=" + self._secret, "--same_host=socket"])

    @property
    def _state_dir(self) -> str:
        return os.path.join(self._folder, "state")

    @property
    def _coordinator(self) -> str:
        return "%s:%d" % (self._lab.addresses[0], STAR_PORT)

    def start(self) -> None:
        """Starts all processes of the job."""
        self._begin = time.monotonic()
        for name, command in self._commands().items():
            self._start_one(name, command)

    def _start_one(self, name: str, command: list[str]) -> HostProcess:
        environment = dict(os.environ, TMPDIR=self._folder, **{processes.MARK: self._mark})
        process = HostProcess(name, command, environment, self._on_line)
        self._processes.append(process)
        return process

    def _on_line(self, process: HostProcess, line: str) -> None:
        if found := re.match(r"worker \d+: metrics at (\S+)", line):
            # Without coordinator all workers are at one step.
            if process.name == "rank 0" or self._plan.setup.topology == ELASTIC:
                HostPage(process.popen.pid, found[1], self._timeline.on_step, self._hurry, self._over)
        elif process.name == "server 0":
            self._timeline.on_line(time.monotonic(), "s0 | " + line)

    def run(self, cuts: Sequence[Cut], on_result: Callable[[Result], None]) -> str:
        """Applies cuts, one after the other, as long as the job has steps. Returns the digest; empty if it had to end
        by a cut, and did. Raises JobFailed if it ended otherwise, after on_result of the cut before."""
        for number, cut in enumerate(cuts):
            if number == 0 and not cut.at_start:
                self.start()
            if not cut.at_start:
                self._await_steps(-1, time.monotonic(), END_S)
                pause_over = self._cut_end + pause_s(cuts[number - 1], cut, self._plan.setup) if number > 0 else 0.0
                time.sleep(max(cut.delay_s, pause_over - time.monotonic()))
            if number > 0 and (cut.at_start or not self._has_room(cut)):
                break
            if not cut.at_start and self._has_ended():
                raise JobFailed(Outcome.ERROR, "the job had ended before its first cut: give more --steps")
            result = self._apply(cut)
            on_result(result)
            if result.faults:
                raise JobFailed(Outcome.ERROR, "; ".join(result.faults))
            if result.expects_end:
                return ""
        if not cuts:
            self.start()
        return self._finish()

    def run_alone(self) -> str:
        """Runs one process with the job's flags instead. Returns the digest."""
        process = self._start_one("rank 0", [*self._worker, "--sync=local"])
        while process.poll() is None:
            time.sleep(TICK_S)
        if faults := self._early_ends():
            raise JobFailed(Outcome.ERROR, "; ".join(faults))
        return self._digest()

    def _digest(self) -> str:
        with open(self._record) as file:
            return str(json.load(file)["parameter_sha256"])

    def _has_room(self, cut: Cut) -> bool:
        if self._timeline.step >= LAST_CUT_FRACTION * self._plan.steps:
            return False
        # An elastic job goes on during the cut.
        spent = max(time.monotonic() - self._begin, 1.0)
        left_s = (self._plan.steps - self._timeline.step) * spent / max(self._timeline.step, 1)
        return self._plan.setup.topology != ELASTIC or left_s > 2 * cut.duration_s

    def _apply(self, cut: Cut) -> Result:
        expects_end = expected_end(cut, self._plan.setup) is not None
        result = Result(cut=cut, wall=time.time(), load=os.getloadavg()[0], expects_end=expects_end)
        self._hurry.set()
        time.sleep(SEEN_S)
        begin = time.monotonic()
        self._say("%8.2f s  step %6d  %s, which %s" % (begin - self._begin, self._timeline.step, cut,
                                                       "must end the job" if expects_end else "changes nothing"))
        with self._lab.block(cut.flows(self._plan.setup)):
            if cut.at_start:
                self.start()
                begin = self._begin
            if expects_end:
                self._await_end(cut, begin, result)
            else:
                self._hold(cut, begin, result)
        self._cut_end = time.monotonic()
        if not expects_end and not result.faults:
            self._recover(cut, begin, result)
        self._hurry.clear()
        return result

    def _await_end(self, cut: Cut, begin: float, result: Result) -> None:
        ending = expected_end(cut, self._plan.setup)
        assert ending is not None
        limit = begin + max(ending.workers_within_s, ending.servers_within_s)
        while time.monotonic() < limit and any([process.poll() is None for process in self._processes]):
            time.sleep(TICK_S)
        for process in self._processes:
            code, ended_s = process.poll(), (process.ended_at or limit) - begin
            result.ends_s.append(ended_s)
            result.faults += faults_of_end(process.name, code, ended_s, process.last_line, cut, self._plan.setup)
        first = min(self._processes, key=lambda process: process.ended_at or limit)
        result.reason = first.last_line

    def _hold(self, cut: Cut, begin: float, result: Result) -> None:
        """Returns when the cut is over."""
        time.sleep(SEEN_S)
        base = self._timeline.step
        joins = cut.join_at_s is not None and len(self._alive_workers()) < ELASTIC_WORKERS_MAX
        while (now := time.monotonic() - begin) < cut.duration_s:
            self._note_step(base, begin, result)
            if joins and cut.join_at_s is not None and now >= cut.join_at_s:
                joins = False
                self._join(cut.join_host)
            if self._has_ended():
                break
            time.sleep(TICK_S)
        self._note_step(base, begin, result)
        result.faults += self._early_ends()

    def _note_step(self, base: int, begin: float, result: Result) -> None:
        """The step under way as the cut began may have been over."""
        if result.next_step_s is None and self._timeline.step >= base + 2:
            result.next_step_s = time.monotonic() - begin

    def _join(self, host: int) -> None:
        name = "rank %d" % (self._plan.setup.hosts + len(self._joined))
        self._joined.append(self._start_one(name, self._elastic_worker(host)))

    def _alive_workers(self) -> list[HostProcess]:
        return [process for process in self._processes if process.is_worker and process.poll() is None]

    def _has_ended(self) -> bool:
        first = "server 0" if self._plan.setup.servers > 0 else "rank 0"
        return any([process.poll() is not None for process in self._processes if process.name == first])

    def _early_ends(self) -> list[str]:
        """What is wrong with processes that have ended although the job goes on."""
        return ["%s ended with exit code %s: %s" % (process.name, process.poll(), process.last_line)
                for process in self._processes if process.poll() not in (None, 0)]

    def _recover(self, cut: Cut, begin: float, result: Result) -> None:
        """Waits until steps are made after the cut, and until all workers are in the generation."""
        base, since = self._timeline.step, time.monotonic()
        limit = since + cut.duration_s + GOES_ON_S
        while not self._has_ended() and not (self._timeline.step >= base + 2 and self._has_settled()):
            if faults := self._early_ends():
                result.faults += faults
                return
            if time.monotonic() > limit:
                result.faults.append("no step after step %d within %.0f s after the cut" % (base, limit - since)
                                     if self._timeline.step < base + 2 else
                                     "not all workers are in the generation %.0f s after the cut" % (limit - since))
                return
            self._note_step(base, begin, result)
            time.sleep(TICK_S)
        self._note_step(base, begin, result)
        if len(self._alive_workers()) >= ELASTIC_WORKERS_MAX:
            self._let_one_leave(result)

    def _has_settled(self) -> bool:
        generation = self._timeline.generation
        return self._plan.setup.topology != ELASTIC or (
            generation is not None and generation.workers == len(self._alive_workers()))

    def _let_one_leave(self, result: Result) -> None:
        worker = next(process for process in self._joined if process.poll() is None)
        worker.told = True
        worker.popen.send_signal(signal.SIGTERM)
        limit = time.monotonic() + END_S
        while worker.poll() is None and time.monotonic() < limit:
            time.sleep(TICK_S)
        if worker.poll() != 0:
            result.faults.append("%s, told to leave, has not ended well: %s" % (worker.name, worker.last_line))

    def _await_steps(self, base: int, since: float, limit_s: float) -> None:
        """Waits for a step after `base` and after the time `since`."""
        while not (self._timeline.step > base and self._timeline.has_step_after(since)):
            if faults := self._early_ends():
                raise JobFailed(Outcome.ERROR, "; ".join(faults))
            if self._has_ended():
                return
            if time.monotonic() > since + limit_s:
                raise JobFailed(Outcome.HANG, "no step after step %d within %.0f s" % (self._timeline.step, limit_s))
            time.sleep(TICK_S)

    def _finish(self) -> str:
        """Waits for the job's end; the digest."""
        last_step, since = self._timeline.step, time.monotonic()
        while not self._has_ended():
            if faults := self._early_ends():
                raise JobFailed(Outcome.ERROR, "; ".join(faults))
            if self._timeline.step > last_step:
                last_step, since = self._timeline.step, time.monotonic()
            if time.monotonic() > since + END_S:
                raise JobFailed(Outcome.HANG, "no step after step %d, and no end, within %.0f s" % (last_step, END_S))
            time.sleep(TICK_S)
        self._await_all_ends()
        return self._digest()

    def _await_all_ends(self) -> None:
        since = time.monotonic()
        while left := [process for process in self._processes if process.poll() is None]:
            waited = time.monotonic() - since
            if waited > END_S:
                raise JobFailed(Outcome.LEFT_BEHIND, "%s did not end with the job" %
                                ", ".join(process.name for process in left))
            for process in left:
                if waited > TELL_S and process in self._alive_workers() and not process.told:
                    process.told = True
                    process.popen.send_signal(signal.SIGTERM)
                    self._say("            %s, cut off as the run ended, was told so" % process.name)
            time.sleep(TICK_S)
        if faults := self._early_ends():
            raise JobFailed(Outcome.ERROR, "; ".join(faults))
        if self._plan.setup.topology == ELASTIC:
            check_log(self._plan.programs.server, self._state_dir, END_S)
