"""Which process is hit when, and how: a list of events that follows from a seed alone.

An event waits until the job has recovered from the one before, then `delay_s` more. Durations lie on both sides of each
deadline of the job: a stop that is shorter must change nothing, a stop that is longer must end in a restart.
"""

import dataclasses
import random

# How often each kind of event is drawn, per topology. Connections of a ring are MPI's own: nothing can cut them.
KINDS = {
    "star": {"kill": 8, "stop-short": 6, "stop-long": 5, "cut": 5, "shut-short": 2, "shut-long": 1, "freeze-short": 2,
             "freeze-long": 1},
    "ring": {"kill": 8, "stop-short": 7, "stop-long": 5},
}

# A wait goes on so long after its deadline, for others to name the culprit: a worker for the server, a ring's sum
# for rank 0.
VERDICT_GRACE_S = 2.0
# A lane that was refused dials again after a pause of up to this (lane.cc), so it needs so much more than the outage.
REDIAL_PAUSE_S = 1.0

# Fractions of the deadline. Nothing is drawn near 1, where either outcome is right and neither is tested.
SHORT = (0.02, 0.75)
LONG = (1.25, 1.75)

# The share of kills after which the next event meets the job while it starts again, before its first step.
AT_START = 0.3
# The share of kills and short stops that hit the launcher itself, or mpirun.
SUPERVISOR = 0.12


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a schedule needs to know about a job."""
    topology: str
    workers: int
    servers: int
    exchange_deadline_s: float
    join_deadline_s: float


@dataclasses.dataclass(frozen=True)
class Event:
    """One thing that is done to one process, or to the connections of one server."""
    kind: str  # a key of KINDS
    at_start: bool  # as soon as the processes of a new attempt are there; else while steps are being made
    delay_s: float
    role: str  # worker, server, mpirun, launch, or proxy: the connections of server `number`
    number: int
    duration_s: float  # of a stop, shut or freeze

    def __str__(self):
        text = "%s %s%s" % (self.kind, self.role, "" if self.role in ("mpirun", "launch") else " %d" % self.number)
        if self.duration_s > 0:
            text += " for %.2f s" % self.duration_s
        return text + (" at the start" if self.at_start else "") + " after %.2f s" % self.delay_s


def job_seed(seed, job):
    """The seed of job number `job`, of which a failing job can be repeated alone."""
    return seed * 1_000_003 + job


def make_schedule(seed, setup, count):
    """`count` events; equal for equal arguments."""
    rng = random.Random(seed)
    events = []
    for _ in range(count):
        at_start = bool(events) and events[-1].kind == "kill" and rng.random() < AT_START
        if not events:
            at_start = rng.random() < AT_START
        events.append(_draw(rng, setup, at_start))
    return events


def _draw(rng, setup, at_start):
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


def _victim(rng, setup, kind):
    star = setup.topology == "star"
    if not kind.startswith(("kill", "stop")):
        return "proxy", rng.randrange(setup.servers)
    if kind != "stop-long" and rng.random() < SUPERVISOR:  # a stopped supervisor has no deadline to miss
        return ("launch" if star else rng.choice(["launch", "mpirun"])), 0
    if star and rng.random() < 0.5:
        return "server", rng.randrange(setup.servers)
    return "worker", rng.randrange(setup.workers)
