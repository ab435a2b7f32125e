"""Cuts between emulated hosts, and how a job must end after each: both follow from a seed, before the job runs.

A *cut* loses packets for a while: between two hosts (`firewall`), of one host, or of the server on one host (`shard`),
in one direction or in both. Each host has a worker. In a star each has a server as well, in an elastic one the first
two.

A cut that is shorter than the job's deadlines changes nothing. A longer one ends a job whose members are fixed; every
process must then say why, in a sentence that names what is beyond the cut. An elastic job goes on. No length is near a
deadline, where both would be right.
"""

from __future__ import annotations

import dataclasses
import random
import re

from blocks import Flow, between

STAR, ELASTIC, RING = "star", "star-elastic", "ring-tcp"
TOPOLOGIES = (STAR, ELASTIC, RING)
KINDS = {STAR: ("firewall", "host", "shard"), ELASTIC: ("firewall", "host", "shard"), RING: ("firewall", "host")}
DIRECTIONS = ("both", "to", "from")

# How many of ten cuts have a length between these limits, in seconds.
LENGTHS = ((5, 1.0, 5.0), (4, 5.0, 60.0), (1, 60.0, 90.0))
# The parts of a deadline between which no cut's length is.
NEAR = (0.8, 1.2)
DELAY_S = (0.1, 0.8)  # between the steps before a cut and the cut
AT_START = 0.15  # the fraction of cuts that are there before a job begins; not of ELASTIC, where workers join meanwhile
JOIN = 0.4  # the fraction of cuts of ELASTIC during which a worker joins
JOIN_AT = (0.0, 0.8)  # fractions of the cut

# Times of the programs that no flag sets (common/base/limits.h, common/transport, server/elastic).
DIAL_PART = 0.9  # of the join deadline; then a rank that cannot connect with another one ends the meeting
MEMBER_SILENT_S = 5.0  # a member of an elastic run is given up
VERDICT_S = 4.0  # the grace of a deadline: another process may have a better reason, and the roll is called
SILENCE_S = 20.0  # a connection on which nothing is acknowledged is lost
KEEPALIVE_S = 5.0  # a connection without traffic is probed after this time and then as often
LAST_ANSWERS_S = 5.0  # how long a server waits for its workers to take their last answers
# A process needs so long to get to its first connection, and to end, on a machine that also compiles.
START_S, LOAD_S = 3.0, 8.0

EXIT_PEER_MISSING = 3

_WITHIN = r"within (%ds|%d s|[\d.]+ s)"
_MISSING = r"(ranks? [\d, ]+|server \d+).* (does|do) not answer"
# Workers join at one server after the other. One that they never came to, or that waits for all of them after they have
# ended because of another one, cannot know why.
_LEFT_ALONE = r"no worker has joined within |rank \d+ is gone: it has opened no connection to shard \d+ within "


@dataclasses.dataclass(frozen=True)
class Setup:
    """The facts of a job on which its cuts depend."""
    topology: str
    hosts: int
    servers: int  # on the first hosts, one on each
    exchange_deadline_s: int
    join_deadline_s: int
    server_port: int = 7077


@dataclasses.dataclass(frozen=True)
class Cut:
    """An event: packets of `host` are lost."""
    kind: str
    direction: str  # those to `host`, from it, or both
    host: int
    other: int | None  # of a firewall: the host at its other side
    duration_s: float
    delay_s: float
    at_start: bool  # it is there before the job's processes
    join_at_s: float | None  # when, after its begin, a worker joins ...
    join_host: int  # ... and where

    def __str__(self) -> str:
        what = "shard %d" % self.host if self.kind == "shard" else "host %d" % self.host
        if self.other is not None:
            what += " and host %d" % self.other
        text = "%s %s: %s for %.2f s" % (self.kind, self.direction, what, self.duration_s)
        if self.join_at_s is not None:
            text += ", a worker joins on host %d after %.2f s" % (self.join_host, self.join_at_s)
        return text + (" at the start" if self.at_start else " after %.2f s" % self.delay_s)

    def flows(self, setup: Setup) -> list[Flow]:
        """The packets that are lost."""
        if self.other is not None:
            to, back = between(self.other, self.host)
        elif self.kind == "host":
            to, back = Flow(target=self.host), Flow(source=self.host)
        else:
            to = Flow(target=self.host, target_port=setup.server_port)
            back = Flow(source=self.host, source_port=setup.server_port)
        return {"both": [to, back], "to": [to], "from": [back]}[self.direction]


@dataclasses.dataclass(frozen=True)
class Ending:
    """How each process of a job must end."""
    after_s: float  # not before, since the cut's begin or the start of the job
    workers_within_s: float
    servers_within_s: float
    reasons: tuple[str, ...]  # regular expressions: the beginnings of sentences


def deadlines(cut: Cut, setup: Setup) -> list[tuple[float, float]]:
    """What the length of a cut must not be near: deadlines, each with the time that may pass before it counts."""
    if setup.topology == ELASTIC:
        return [(MEMBER_SILENT_S, 0.0), (setup.exchange_deadline_s, 0.0), (setup.join_deadline_s, 0.0)]
    if not cut.at_start:
        return [(setup.exchange_deadline_s, 0.0)]
    return [(_start_deadline_s(cut, setup), START_S)]


def is_idle(cut: Cut, setup: Setup) -> bool:
    """Whether a ring sends nothing there, neither gradients nor sums. It may be done before it misses the link."""
    return (setup.topology == RING and cut.other is not None and 0 not in (cut.host, cut.other)
            and (cut.host - cut.other) % setup.hosts not in (1, setup.hosts - 1))


def _start_deadline_s(cut: Cut, setup: Setup) -> float:
    # All ranks find rank 0 first, and try again until the deadline. Then they dial each other, for a part of it.
    if setup.topology == RING and cut.kind == "firewall" and 0 not in (cut.host, cut.other):
        return DIAL_PART * setup.join_deadline_s
    return setup.join_deadline_s


def pause_s(before: Cut, cut: Cut, setup: Setup) -> float:
    """How long a job has to run between two cuts. A ring's connection for notices, which has no traffic, must be probed
    between them: else it is silent during both, and the schedule knows the second alone."""
    silence_s = max(SILENCE_S, setup.exchange_deadline_s)
    both_s = before.duration_s + KEEPALIVE_S + cut.duration_s
    return KEEPALIVE_S + 1.0 if setup.topology == RING and both_s > NEAR[0] * silence_s else 0.0


def is_near(cut: Cut, setup: Setup) -> bool:
    """Whether the schedule does not say how the job ends."""
    return any(NEAR[0] * deadline_s < cut.duration_s < NEAR[1] * (deadline_s + late_s)
               for deadline_s, late_s in deadlines(cut, setup))


def expected_end(cut: Cut, setup: Setup) -> Ending | None:
    """How the job ends because of the cut; None: it goes on, and ends with the digest of an undisturbed one."""
    if setup.topology == ELASTIC:
        return None
    (deadline_s, late_s), = deadlines(cut, setup)
    if cut.duration_s <= NEAR[1] * (deadline_s + late_s):
        return None
    exchange_s, workers_s = setup.exchange_deadline_s, deadline_s + late_s + VERDICT_S + LOAD_S
    # A server that nobody tells waits for the lost connections, and for their deadline.
    servers_s = deadline_s + SILENCE_S + exchange_s + LAST_ANSWERS_S + LOAD_S
    return Ending(after_s=NEAR[0] * deadline_s, workers_within_s=workers_s, servers_within_s=max(workers_s, servers_s),
                  reasons=_reasons(cut, setup))


def _reasons(cut: Cut, setup: Setup) -> tuple[str, ...]:
    deadline_s = setup.join_deadline_s if cut.at_start else setup.exchange_deadline_s
    within = _WITHIN % (deadline_s, deadline_s)
    if setup.topology == STAR and cut.at_start:
        return (r"server \S+ \(shard \d+\) (cannot be reached|does not answer) " + within,
                r"(server \S+ \(shard \d+\): )?ranks? [\d, ]+ of \d+ ha(s|ve) not joined( %s)?" % within,
                _LEFT_ALONE)
    if setup.topology == STAR:
        return (r"server \S+ \(shard \d+\) cannot be reached for %d s, .* is not answered: " % deadline_s,
                r"server \S+ \(shard \d+\) has not answered .* " + within,
                r"ranks? [\d, ]+ ha(s|ve) not (contributed bucket|joined in sum) .* " + within,
                r"rank \d+ is gone: it has had no connection to shard \d+ for %d s" % deadline_s)
    if cut.at_start:
        return (r"rank \d+ did not find rank 0 at \S+ %s: rank 0 .* cannot be reached" % within,
                r"ranks? [\d, ]+ of \d+ ha(s|ve) not joined at \S+ " + within,
                r"rank \d+ cannot connect with rank \d+ at \S+: connection timed out")
    late = r"(%ds|%ds)" % (deadline_s, deadline_s + 2)  # a sum's is longer except at rank 0
    return (r"step \d+, bucket \d+ did not come within %ds \(.*\): %s" % (deadline_s, _MISSING),
            r"a sum over all ranks did not end within %s: %s" % (late, _MISSING),
            # The second is the kernel's word for a neighbour that does not say where it is.
            r"rank \d+ \(\S+\) cannot be reached any more, (connection timed out|no route to host)")


# The beginnings of a line, in their order: the process itself, a server that was told, a rank that was told.
_SAYS = re.compile(r"^(worker|server) \d+: error: "
                   r"(server \S+: (?=rank)|rank \d+ gave up: |rank \d+ \(\S+\) says: )*")
_NAMED = re.compile(r"(rank)s? (\d+(?:, \d+)*)|server \S+ \(shard (\d+)\)|server (\d+)")
# The process that keeps the others waiting, in a sentence that also lists those that wait.
_ROOT = re.compile(r"(?:ranks? \d+(?:, \d+)*|server \d+)(?= (?:does|do) not answer| ha(?:s|ve) no connection)")
_SELF = re.compile(r"^rank \d+ (cannot connect with|did not find) ")


def reason_of(line: str) -> str:
    """The sentence of a process's last line, without those who have passed it on; empty if it is no error."""
    found = _SAYS.match(line)
    return line[found.end():] if found else ""


def blamed(reason: str) -> set[str]:
    """Who keeps the others waiting, as the sentence says: {"rank 0", "rank 2"} or {"server 1"}."""
    texts = _ROOT.findall(reason) or [_SELF.sub("", reason)]
    named = set()
    for found in filter(None, map(_NAMED.search, texts)):
        role, numbers = ("rank", found[2]) if found[1] else ("server", found[3] or found[4])
        named |= {"%s %s" % (role, number) for number in numbers.split(", ")}
    return named


def sides(cut: Cut, setup: Setup) -> tuple[set[str], set[str]]:
    """The processes at the two sides of the cut. A process of neither reaches all."""
    def on(host: int) -> set[str]:
        return {"rank %d" % host, *(["server %d" % host] if host < setup.servers else [])}
    others = [host for host in range(setup.hosts) if host != cut.host]
    if cut.other is not None:
        return on(cut.host), on(cut.other)
    if cut.kind == "host":
        return on(cut.host), set().union(*map(on, others))
    return {"server %d" % cut.host}, {"rank %d" % host for host in others}


def faults_of_end(name: str, code: int | None, ended_s: float, last_line: str, cut: Cut, setup: Setup) -> list[str]:
    """What is wrong with the end of process `name`, "rank 1" or "server 0", in a job that had to end by this cut."""
    ending = expected_end(cut, setup)
    assert ending is not None
    within_s = ending.servers_within_s if name.startswith("server") else ending.workers_within_s
    if code is None:
        return ["%s has not ended within %.0f s" % (name, within_s)]
    faults = []
    if code != EXIT_PEER_MISSING:
        faults.append("%s ended with exit code %d, not %d" % (name, code, EXIT_PEER_MISSING))
    if not ending.after_s <= ended_s <= within_s:
        faults.append("%s ended after %.1f s, not between %.0f and %.0f s" % (name, ended_s, ending.after_s, within_s))
    reason = reason_of(last_line)
    if not any(re.match(one, reason) for one in ending.reasons):
        faults.append("%s gives another reason: %s" % (name, last_line or "none"))
        return faults
    if name.startswith("server") and re.match(_LEFT_ALONE, reason):
        return faults
    named, (near, far) = blamed(reason), sides(cut, setup)
    # Where nothing passes in either direction, what is beyond the cut can be named, and nothing else.
    if cut.kind == "host" and cut.direction == "both":
        near, far = (far, far) if name in near else (near, near)
    if not named or not (named <= near or named <= far):
        faults.append("%s names %s: %s" % (name, ", ".join(sorted(named)) or "nobody", last_line))
    return faults


def make_cuts(seed: int, setup: Setup, count: int) -> list[Cut]:
    """`count` cuts; equal for equal arguments. A shorter list is the beginning of a longer one."""
    rng = random.Random("%d %s" % (seed, setup.topology))
    cuts: list[Cut] = []
    lengths: list[tuple[float, float]] = []
    while len(cuts) < count:
        if not lengths:
            lengths = [(least, most) for number, least, most in LENGTHS for _ in range(number)]
            rng.shuffle(lengths)
        cuts.append(_draw(rng, setup, lengths.pop()))
    return cuts


def _draw(rng: random.Random, setup: Setup, limits: tuple[float, float]) -> Cut:
    kind = rng.choice(KINDS[setup.topology])
    host = rng.randrange(setup.servers if kind == "shard" else setup.hosts)
    other = rng.choice([one for one in range(setup.hosts) if one != host]) if kind == "firewall" else None
    cut = Cut(kind=kind, direction=rng.choice(DIRECTIONS), host=host, other=other, duration_s=0.0,
              delay_s=rng.uniform(*DELAY_S), at_start=setup.topology != ELASTIC and rng.random() < AT_START,
              join_at_s=None, join_host=rng.randrange(setup.hosts))
    while True:
        cut = dataclasses.replace(cut, duration_s=rng.uniform(*limits))
        if is_idle(cut, setup) and expected_end(cut, setup) is not None:
            cut = dataclasses.replace(cut, other=0)
        if not is_near(cut, setup):
            break
    if setup.topology == ELASTIC and rng.random() < JOIN:
        cut = dataclasses.replace(cut, join_at_s=cut.duration_s * rng.uniform(*JOIN_AT))
    return cut
