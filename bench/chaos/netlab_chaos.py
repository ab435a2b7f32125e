"""Cuts links between emulated hosts; a job must go on, or end, as computed from the schedule before it runs.

  bazel run //bench:chaos -- --hosts=netlab:4,1gbit --events=200 --log=$PWD/cuts.jsonl             starts a log
  bazel run //bench:chaos -- --hosts=netlab:4,1gbit --events=200 --log=$PWD/cuts.jsonl --continue  goes on

Needs root. Exit code 0: every job ended as computed, with the right digest if it went on; 2: no hosts can be made here.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable

from netlab import Netlab, NetlabError

from bench.chaos.job import JobFailed, Outcome
from bench.chaos.log import Log
from bench.chaos.netlab_job import NetlabJob, Plan, Programs, Result
from bench.chaos.netlab_log import summary
from bench.chaos.netlab_schedule import ELASTIC, RING, TOPOLOGIES, Cut, Setup, make_cuts

EXIT_NO_HOSTS = 2
# Enough steps for some eight cuts. A step of lenet5 between four hosts takes 3 to 10 ms on two cores. An elastic job
# makes steps during most cuts, so it has more and longer ones.
STEPS = {ELASTIC: 5000}
STEPS_DEFAULT = 4000
BATCH = {ELASTIC: 256}
BATCH_DEFAULT = 64
TRAIN_COUNT = 8192
CUTS_PER_JOB_MAX = 8
ELASTIC_SERVERS = 2
ELASTIC_JOIN_DEADLINE_S = 120  # no cut is as long: no member gives up its run


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", allow_abbrev=False, description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hosts", required=True, help="netlab:HOSTS,RATE, for example netlab:4,1gbit")
    parser.add_argument("--topologies", default=",".join(TOPOLOGIES), help="some of %(default)s (default: all)")
    parser.add_argument("--events", type=int, default=200, help="cuts of all topologies (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=None, help="begin no job after this time")
    parser.add_argument("--seed", type=int, default=1, help="seed of all schedules (default: %(default)s)")
    parser.add_argument("--first", type=int, default=None, metavar="N",
                        help="run only the job that begins with cut N of the one topology, to repeat a failure")
    parser.add_argument("--steps", type=int, default=0, help="steps of a job; 0: enough for eight cuts")
    parser.add_argument("--exchange_deadline_s", type=int, default=30, help="(default: %(default)s)")
    parser.add_argument("--join_deadline_s", type=int, default=30,
                        help="of %s always %d (default: %%(default)s)" % (ELASTIC, ELASTIC_JOIN_DEADLINE_S))
    parser.add_argument("--length_max_s", type=float, default=None, help="leave out longer cuts")
    parser.add_argument("--log", default=None, help="file to append cuts and jobs to; default: no log is kept")
    parser.add_argument("--continue", dest="goes_on", action="store_true", help="continue an existing --log")
    parser.add_argument("--outputs", default=None, help="folder for the newest lines of each job's output")
    parser.add_argument("--launch", default=None, help="the launcher (default: the one built with this program)")
    options = parser.parse_args(arguments)
    found = re.fullmatch(r"netlab:(\d+),(\w+)", options.hosts)
    if not found or int(found[1]) < 3:
        parser.error("--hosts=%s: give at least three hosts, and their links' rate: netlab:4,1gbit" % options.hosts)
    options.host_count, options.rate = int(found[1]), found[2]
    options.topologies = options.topologies.split(",")
    for topology in options.topologies:
        if topology not in TOPOLOGIES:
            parser.error("--topologies has %r: between hosts there are %s" % (topology, ", ".join(TOPOLOGIES)))
    if min(options.events, options.exchange_deadline_s, options.join_deadline_s) < 1 or options.steps < 0:
        parser.error("--events and the deadlines must be 1 or more, --steps 0 or more")
    if options.first is not None and len(options.topologies) != 1:
        parser.error("--first=%d: name one topology" % options.first)
    if options.log and os.path.exists(options.log) and not options.goes_on:
        parser.error("%s exists: add --continue to continue it, or name another --log" % options.log)
    return options


def say(text: str) -> None:
    print(text, flush=True)


def find_programs(launch: str) -> Programs:
    """The programs in the folders next to the launcher's."""
    root = os.path.join(os.path.dirname(os.path.abspath(launch)), "..")
    return Programs(launch=os.path.abspath(launch), worker=os.path.normpath(os.path.join(root, "worker/worker")),
                    server=os.path.normpath(os.path.join(root, "server/server")))


class NetlabChaos:
    """Runs jobs in a lab until there are enough cuts."""

    def __init__(self, options: argparse.Namespace, programs: Programs, lab: Netlab) -> None:
        self._options, self._programs, self._lab = options, programs, lab
        self._folder = tempfile.TemporaryDirectory(prefix="chaos.log.")
        self._log = Log(options.log or os.path.join(self._folder.name, "log"))
        self._digests: dict[str, str] = {}
        self.failures = 0

    def run(self) -> None:
        options = self._options
        until = time.monotonic() + options.seconds if options.seconds else None
        self._log.add("run", wall=time.time(), machine="%s, %d cores" % (platform.platform(), os.cpu_count() or 0),
                      command=sys.argv[1:])
        shares = [options.events // len(options.topologies) + (i < options.events % len(options.topologies))
                  for i in range(len(options.topologies))]
        due = dict(zip(options.topologies, shares))
        if options.first is not None:
            self._job(options.topologies[0], options.first, CUTS_PER_JOB_MAX)
            due.clear()
        while due and (until is None or time.monotonic() < until):
            for topology, count in list(due.items()):
                done = len(self._log.of("event", topology=topology, seed=options.seed))
                if done >= count:
                    del due[topology]
                else:
                    self._job(topology, done, count - done)
        say("")
        say(summary(self._log))

    def _plan(self, topology: str) -> Plan:
        options, is_elastic = self._options, topology == ELASTIC
        servers = 0 if topology == RING else ELASTIC_SERVERS if is_elastic else options.host_count
        setup = Setup(topology=topology, hosts=options.host_count, servers=servers,
                      exchange_deadline_s=options.exchange_deadline_s,
                      join_deadline_s=ELASTIC_JOIN_DEADLINE_S if is_elastic else options.join_deadline_s)
        steps = options.steps or STEPS.get(topology, STEPS_DEFAULT)
        batch = BATCH.get(topology, BATCH_DEFAULT)
        flags = ("--model=lenet5", "--dataset=synthetic", "--synthetic_test_count=64", "--seed=1", "--device=cpu",
                 "--learning_rate=0.01", "--synthetic_train_count=%d" % TRAIN_COUNT, "--global_batch=%d" % batch,
                 "--epochs=%d" % -(-steps * batch // TRAIN_COUNT), "--max_steps=%d" % steps,
                 *(["--micro_batches=8"] if is_elastic else []))
        return Plan(setup=setup, programs=self._programs, worker_flags=flags, steps=steps)

    def cuts(self, topology: str, first: int) -> list[Cut]:
        """The schedule from cut `first` on, for one job."""
        longest = self._options.length_max_s or float("inf")
        setup = self._plan(topology).setup
        count = first + CUTS_PER_JOB_MAX
        while True:
            found = [cut for cut in make_cuts(self._options.seed, setup, count) if cut.duration_s <= longest]
            if len(found) >= first + CUTS_PER_JOB_MAX:
                return found[first:first + CUTS_PER_JOB_MAX]
            count *= 2

    def _digest(self, plan: Plan) -> str:
        """That of the undisturbed job. An elastic one must have the digest of one process."""
        topology = plan.setup.topology
        if topology not in self._digests:
            begin = time.monotonic()
            with NetlabJob(plan, self._lab, say) as job:
                try:
                    self._digests[topology] = job.run_alone() if topology == ELASTIC else job.run([], lambda _: None)
                except JobFailed as failure:
                    sys.exit("chaos: the undisturbed job failed: %s\n%s" % (failure, job.output))
            say("undisturbed %s: digest %s, %d steps in %.1f s" % (
                topology, self._digests[topology][:12], plan.steps, time.monotonic() - begin))
        return self._digests[topology]

    def _job(self, topology: str, first: int, count: int) -> None:
        options, plan = self._options, self._plan(topology)
        number = self._log.next_job(options.seed)
        say("job %d, %s, seed %d, from cut %d" % (number, topology, options.seed, first))
        began = time.time()
        done: list[Result] = []
        digest = ""
        with NetlabJob(plan, self._lab, say) as job:
            try:
                digest = job.run(self.cuts(topology, first)[:count], self._on_result(topology, number, first, done))
                outcome, text = Outcome.OK, ""
            except JobFailed as failure:
                outcome, text = failure.outcome, str(failure)
            output = job.output
        if outcome == Outcome.OK and digest and digest != self._digest(plan):
            outcome, text = Outcome.WRONG_DIGEST, "digest %s, undisturbed %s" % (digest, self._digest(plan))
        if options.outputs:
            with open(os.path.join(options.outputs, "%s.%d.%d" % (topology, options.seed, number)), "w") as file:
                file.write(output)
        self._log.add("job", topology=topology, seed=options.seed, job=number, first=first, wall=began,
                      events=len(done), seconds=time.time() - began, outcome=outcome, text=text)
        say("job %d: %s, %d cuts, %.1f s" % (number, outcome, len(done), time.time() - began))
        if outcome != Outcome.OK:
            self.failures += 1
            say("chaos: job %d failed: %s" % (number, text))
            say("\n".join("  | " + line for line in output.splitlines()))
            arguments = [word for word in sys.argv[1:] if not word.startswith(("--topol", "--log", "--cont", "--sec"))]
            say("repeat it: bench/chaos %s --topologies=%s --first=%d" % (" ".join(arguments), topology, first))

    def _on_result(self, topology: str, number: int, first: int, done: list[Result]) -> Callable[[Result], None]:
        def note(result: Result) -> None:
            cut = result.cut
            self._log.add("event", topology=topology, seed=self._options.seed, job=number, cut=first + len(done),
                          kind=cut.kind, direction=cut.direction, host=cut.host, other=cut.other,
                          duration_s=cut.duration_s, at_start=cut.at_start, join_at_s=cut.join_at_s, wall=result.wall,
                          load=result.load, expects_end=result.expects_end, next_step_s=result.next_step_s,
                          ends_s=result.ends_s, reason=result.reason, faults=result.faults)
            done.append(result)
            if result.expects_end:
                text = "ended after %.1f to %.1f s: %s" % (min(result.ends_s), max(result.ends_s), result.reason)
            else:
                text = ("no next step" if result.next_step_s is None else
                        "next step %.2f s after its begin" % result.next_step_s)
            say("            " + text + ("; NOT AS COMPUTED: " + "; ".join(result.faults) if result.faults else ""))
        return note


def main(arguments: list[str], find_launcher: Callable[[], str]) -> int:
    """The other programs are in folders next to the launcher's."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # SystemExit ends all processes, and the lab
    try:
        with Netlab(options.host_count, options.rate) as lab:
            chaos = NetlabChaos(options, find_programs(options.launch or find_launcher()), lab)
            chaos.run()
    except NetlabError as error:
        print("chaos: no hosts can be made here: %s" % error, file=sys.stderr)
        return EXIT_NO_HOSTS
    return 1 if chaos.failures else 0
