"""Makes a schedule: a list of events, each a process and what is done to it. It depends on a seed alone.

An event waits until the job has recovered from the previous one, and then `delay_s` more. Durations are shorter or
longer than the job's deadlines: a shorter stop must change nothing, a longer one must cause a restart. In an elastic
star, which is not started again, it causes a change: the next generation.
"""

from __future__ import annotations

import dataclasses
import random

import sync_cells as cells

ELASTIC = cells.ELASTIC

# Weights of the kinds of events. Connections over MPI are internal to it, and ranks over TCP find each other's ports
# themselves, so no proxy can cut them.
KINDS = {
    "star": {"kill": 8, "stop-short": 6, "stop-long": 5, "cut": 5, "shut-short": 2, "shut-long": 1, "freeze-short": 2,
             "freeze-long": 1},
    "star-mpi": {"kill": 8, "stop-short": 7, "stop-long": 5},
    "star-tcp": {"kill": 8, "stop-short": 7, "stop-long": 5},
    "star-servers-tcp": {"kill": 8, "stop-short": 7, "stop-long": 5},
    "ring": {"kill": 8, "stop-short": 7, "stop-long": 5},
    "ring-tcp": {"kill": 8, "stop-short": 7, "stop-long": 5},
    ELASTIC: {"kill": 8, "kill-two": 3, "stop-short": 3, "stop-long": 3, "join": 3, "leave": 3, "disk-full": 2,
              "cut": 3, "shut-long": 2, "stuck-long": 1, "report-error": 3, "blocked-shard": 2, "memory-squeeze": 3},
}

# A wait lasts this much longer than its deadline, so that another process can name the culprit: a worker waits for the
# server's message, a ring's rank for rank 0's.
VERDICT_GRACE_S = 2.0
# A lane whose connection was refused pauses up to this long before it dials again (lane.cc). So its outage is longer
# than the network's by this.
REDIAL_PAUSE_S = 1.0

# Fractions of the deadline. None is near 1, where both outcomes are right and the event would test nothing.
SHORT = (0.02, 0.75)
LONG = (1.25, 1.75)

# The fraction of kills that are followed by an event during the restart, before the first step.
AT_START = 0.3
# The fraction of kills and short stops whose victim is the launcher or mpirun.
SUPERVISOR = 0.12

# An elastic star gives up who is silent for so long (--member_silent_s).
MEMBER_SILENT_S = 5.0
MEMBER_LONG = (1.2, 1.5)  # fractions of it
# And a worker that computes without a result for so long (--member_stuck_s).
MEMBER_STUCK_S = 10.0
STUCK_LONG = (1.2, 1.4)  # fractions of it
# And a worker whose connection to the coordinator is down for so long (--member_gone_s). Only those of workers that
# have joined lead through a proxy.
MEMBER_GONE_S = 1.0
GONE_LONG = (1.8, 2.5)  # fractions of it
# What comes during a change comes so long after the event that has caused it.
IN_CHANGE_S = (0.0, 1.5)
DISK_FULL_S = (1.0, 2.0)
WORKERS_MAX = 6  # of an elastic star
# So long nothing new comes through to a shard: longer than a worker looks for it before it joins.
BLOCKED_S = (5.5, 8.0)
# For so many contributions to a bucket the servers of a squeezed job have memory: WORKERS_MAX make one more at least.
SQUEEZED_CONTRIBUTIONS = WORKERS_MAX - 1
# Numbers of workers are drawn from this many and taken modulo the number of those that run, which is 1 to WORKERS_MAX.
WORKER_NUMBERS = 60


@dataclasses.dataclass(frozen=True)
class Setup:
    """The facts of a job on which a schedule depends."""
    topology: str
    workers: int
    servers: int
    exchange_deadline_s: float
    join_deadline_s: float
    squeezed: bool = False  # ELASTIC: its servers have memory for SQUEEZED_CONTRIBUTIONS
    kinds: tuple[str, ...] = ()  # ELASTIC: of events, no others; empty: all


@dataclasses.dataclass(frozen=True)
class Event:
    """One action on one process, or on the connections of one server."""
    kind: str  # a key of KINDS
    at_start: bool  # when the processes of a new attempt have started, ELASTIC: during a change; else between steps
    delay_s: float  # ELASTIC, if at_start: since the event before, or since the start of the job
    # worker, server, mpirun, launch; or proxy: the connections of server `number`, or in ELASTIC to the coordinator.
    role: str
    number: int
    duration_s: float  # how long a stop, shut, freeze or full disk lasts
    other: tuple[str, int] | None = None  # role and number of the second victim of kill-two

    def __str__(self) -> str:
        text = "%s %s%s" % (self.kind, self.role, "" if self.role in ("mpirun", "launch") else " %d" % self.number)
        if self.other is not None:
            text += ", %s %d" % self.other
        if self.duration_s > 0:
            text += " for %.2f s" % self.duration_s
        return text + (" at the start" if self.at_start else "") + " after %.2f s" % self.delay_s


def job_seed(seed: int, job: int) -> int:
    """The seed of job number `job`. Each job has its own, so that a failing job can be repeated alone."""
    return seed * 1_000_003 + job


def make_schedule(seed: int, setup: Setup, count: int) -> list[Event]:
    """`count` events; equal for equal arguments."""
    rng = random.Random(seed)
    draw = _draw_elastic if setup.topology == ELASTIC else _draw
    events: list[Event] = []
    for _ in range(count):
        at_start = bool(events) and events[-1].kind in ("kill", "kill-two") and rng.random() < AT_START
        if not events:
            at_start = rng.random() < AT_START
        events.append(draw(rng, setup, at_start))
    return events


def _draw(rng: random.Random, setup: Setup, at_start: bool) -> Event:
    kinds = KINDS[setup.topology]
    kind = rng.choices(list(kinds), weights=list(kinds.values()))[0]
    deadline_s = setup.join_deadline_s if at_start else setup.exchange_deadline_s
    role, number = _victim(rng, setup, kind)
    duration_s = 0.0
    if kind.endswith("-short"):
        duration_s = rng.uniform(*SHORT) * (deadline_s - REDIAL_PAUSE_S * (kind == "shut-short"))
    elif kind.endswith("-long"):
        duration_s = rng.uniform(*LONG) * deadline_s + VERDICT_GRACE_S
    delay_s = rng.uniform(0.0, 0.4) if at_start else rng.uniform(0.1, 0.8)
    return Event(kind=kind, at_start=at_start, delay_s=delay_s, role=role, number=number, duration_s=duration_s)


def _draw_elastic(rng: random.Random, setup: Setup, in_change: bool) -> Event:
    kinds = {kind: weight for kind, weight in KINDS[ELASTIC].items()
             if (setup.squeezed or kind != "memory-squeeze") and kind in (setup.kinds or KINDS[ELASTIC])}
    kind = rng.choices(list(kinds), weights=list(kinds.values()))[0]
    role, number = _elastic_victim(rng, setup)
    other = _elastic_victim(rng, setup) if kind == "kill-two" else None
    if kind in ("join", "leave", "stuck-long", "report-error", "memory-squeeze"):
        role, number = "worker", rng.randrange(WORKER_NUMBERS)
    duration_s = 0.0
    if kind.startswith("stop"):
        duration_s = rng.uniform(*(SHORT if kind == "stop-short" else MEMBER_LONG)) * MEMBER_SILENT_S
    elif kind == "stuck-long":
        duration_s = rng.uniform(*STUCK_LONG) * MEMBER_STUCK_S
    elif kind == "blocked-shard":
        role, number, duration_s = "server", setup.servers - 1, rng.uniform(*BLOCKED_S)
    elif kind == "disk-full":
        role, number, duration_s = "server", 0, rng.uniform(*DISK_FULL_S)
    elif kind in ("cut", "shut-long"):
        role, number = "proxy", 0
        duration_s = 0.0 if kind == "cut" else rng.uniform(*GONE_LONG) * MEMBER_GONE_S
    delay_s = rng.uniform(*IN_CHANGE_S) if in_change else rng.uniform(0.1, 0.8)
    return Event(kind=kind, at_start=in_change, delay_s=delay_s, role=role, number=number, duration_s=duration_s,
                 other=other)


def _elastic_victim(rng: random.Random, setup: Setup) -> tuple[str, int]:
    if rng.random() < 0.5:
        return "server", rng.randrange(setup.servers)
    return "worker", rng.randrange(WORKER_NUMBERS)


def _victim(rng: random.Random, setup: Setup, kind: str) -> tuple[str, int]:
    if not kind.startswith(("kill", "stop")):
        return "proxy", rng.randrange(setup.servers)
    if kind != "stop-long" and rng.random() < SUPERVISOR:  # a supervisor has no deadline that a long stop could exceed
        return (rng.choice(["launch", "mpirun"]) if setup.topology in cells.BY_MPIRUN else "launch"), 0
    if cells.has_servers(setup.topology) and rng.random() < 0.5:
        return "server", rng.randrange(setup.servers)
    return "worker", rng.randrange(setup.workers)
