"""Kills and stops processes of a job and cuts its connections; the digest must stay that of an undisturbed job.

  bazel run //bench:chaos -- --events=150 --log=$PWD/chaos.jsonl             starts a log
  bazel run //bench:chaos -- --events=150 --log=$PWD/chaos.jsonl --continue  continues it until it has 150 events
  bazel run //bench:chaos -- --hosts=netlab:4,1gbit                          cuts links between hosts: --help has more

Exit code 0: every job ended in time with the right digest and left no process behind.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import signal
import sys
import tempfile
import time

from bench.chaos import netlab_chaos
from bench.chaos.elastic_job import ElasticJob
from bench.chaos.job import Done, Job, JobFailed, JobPlan, Outcome
from bench.chaos.log import Log, summary
from bench.chaos.schedule import ELASTIC, KINDS, Event, Setup, job_seed, make_schedule

# Steps of a job, enough for some ten events. A step takes 0.1 to 1 ms, of an elastic job a few, so most of the time
# goes into restarts and changes.
STEPS = {("star", "logreg"): 12000, ("star", "lenet5"): 8000, ("star-mpi", "logreg"): 30000,
         ("star-mpi", "lenet5"): 12000, ("star-tcp", "logreg"): 30000, ("star-tcp", "lenet5"): 12000,
         ("star-servers-tcp", "logreg"): 20000, ("star-servers-tcp", "lenet5"): 10000,
         ("ring", "logreg"): 30000, ("ring", "lenet5"): 12000, ("ring-tcp", "logreg"): 30000,
         ("ring-tcp", "lenet5"): 12000, (ELASTIC, "lenet5"): 12000, (ELASTIC, "mlp"): 2000}
MODELS = ("logreg", "lenet5")
SYNTHETIC = ("--dataset=synthetic", "--synthetic_test_count=64", "--seed=1", "--device=cpu", "--learning_rate=0.01")
# Samples of an epoch and of a step. The snapshots of an elastic job have its past epochs, so its epochs are longer.
SAMPLES = (1024, 32)
ELASTIC_SAMPLES = (8192, 64)
EVENTS_PER_JOB_MAX = 60


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", allow_abbrev=False, description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--topologies", default="star,ring",
                        help="some of %s (default: %%(default)s)" % ", ".join(KINDS))
    parser.add_argument("--events", type=int, default=150, help="events of each topology (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=None, help="end after this time, with fewer events")
    parser.add_argument("--seed", type=int, default=1, help="seed of all schedules (default: %(default)s)")
    parser.add_argument("--job", type=int, default=None, help="run only this job of the seed, to repeat a failure")
    parser.add_argument("--kinds", default="", help="kinds of events of %s, separated by commas; empty: all" % ELASTIC)
    parser.add_argument("--workers", type=int, default=0, help="0: 2, of %s 3 (default: %%(default)s)" % ELASTIC)
    parser.add_argument("--servers", type=int, default=2, help="servers of a star (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=0, help="steps of a job; 0: enough for ten events")
    parser.add_argument("--checkpoint_every_steps", type=int, default=100, help="(default: %(default)s)")
    parser.add_argument("--exchange_deadline_s", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--join_deadline_s", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument("--job_limit_s", type=float, default=600, help="a longer job hangs (default: %(default)s)")
    parser.add_argument("--event_limit_s", type=float, default=60,
                        help="a job that makes no step for so long after an event hangs (default: %(default)s)")
    parser.add_argument("--log", default=None, help="file to append events and jobs to; default: no log is kept")
    parser.add_argument("--continue", dest="goes_on", action="store_true", help="continue an existing --log")
    parser.add_argument("--outputs", default=None, help="folder for the newest lines of each job's output")
    parser.add_argument("--launch", default=None, help="the launcher (default: the one built with this program)")
    options = parser.parse_args(arguments)
    if min(options.events, options.servers, options.checkpoint_every_steps, options.exchange_deadline_s,
           options.join_deadline_s) < 1 or min(options.workers, options.steps, options.job or 0) < 0:
        parser.error("--events, --servers, --checkpoint_every_steps and the deadlines must be 1 or more, --workers, "
                     "--steps and --job 0 or more")
    if options.launch and not os.access(options.launch, os.X_OK):
        parser.error("--launch=%s is no program" % options.launch)
    if options.log and os.path.exists(options.log) and not options.goes_on:
        parser.error("%s exists: add --continue to continue it, or name another --log" % options.log)
    for kind in options.kinds.split(","):
        if kind and kind not in KINDS[ELASTIC]:
            parser.error("--kinds has %r: each must be one of %s" % (kind, ", ".join(KINDS[ELASTIC])))
    for topology in options.topologies.split(","):
        if topology not in KINDS:
            parser.error("--topologies has %r: each must be one of %s" % (topology, ", ".join(KINDS)))
    return options


def say(text: str) -> None:
    print(text, flush=True)


def find_launcher() -> str:
    """The launcher in Bazel's runfiles, or in bazel-bin of a source tree."""
    here = os.path.dirname(os.path.abspath(__file__))
    for root in (os.getcwd(), os.path.join(here, "../.."), os.path.join(here, "../../bazel-bin")):
        path = os.path.join(root, "deploy/launch")
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.abspath(path)
    sys.exit("chaos: no deploy/launch: bazel build //deploy:launch, or give --launch")


def find_beside(launch: str, program: str) -> str:
    """`program` of the tree in which the launcher is deploy/launch; empty if it was not built."""
    path = os.path.normpath(os.path.join(os.path.dirname(launch), "..", program))
    return path if os.access(path, os.X_OK) else ""


def job_class(plan: JobPlan) -> type[Job]:
    return ElasticJob if plan.setup.topology == ELASTIC else Job


class Chaos:
    """Runs jobs until there are enough events."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._launch = os.path.abspath(options.launch) if options.launch else find_launcher()
        self._worker = find_beside(self._launch, "tests/e2e/stopping_worker")
        self._server = find_beside(self._launch, "server/server")
        if ELASTIC in options.topologies.split(","):
            if not self._worker or not self._server:
                sys.exit("chaos: an elastic job needs more programs: bazel build //tests/e2e:stopping_worker //server")
        self._folder = tempfile.TemporaryDirectory(prefix="chaos.log.")
        self._log = Log(options.log or os.path.join(self._folder.name, "log"))
        self._until = time.monotonic() + options.seconds if options.seconds else None
        self._digests: dict[tuple[str, str], str] = {}
        self.failures = 0

    def run(self) -> None:
        options = self._options
        self._log.add("run", wall=time.time(), machine="%s, %d cores" % (platform.platform(), os.cpu_count() or 0),
                      command=sys.argv[1:])
        topologies = options.topologies.split(",")
        if options.job is not None:
            self._job(topologies[options.job % len(topologies)], options.job)
        else:
            job = self._log.next_job(options.seed)
            while not self._over(topologies):
                topology = topologies[job % len(topologies)]
                if self._missing(topology) > 0:
                    self._job(topology, job)
                job += 1
        say("")
        say(summary(self._log))

    def _missing(self, topology: str) -> int:
        return self._options.events - len(self._log.of("event", topology=topology))

    def _over(self, topologies: list[str]) -> bool:
        if self._until is not None and time.monotonic() > self._until:
            return True
        return all(self._missing(topology) <= 0 for topology in topologies)

    def _worker_flags(self, topology: str, job: int) -> tuple[int, tuple[str, ...]]:
        options, is_elastic = self._options, topology == ELASTIC
        model = "lenet5" if is_elastic else MODELS[job // 4 % 2]
        if self._is_squeezed(topology, job):
            model = "mlp"  # its parameters are most of what its servers hold
        steps = options.steps or STEPS[topology, model]
        # Every other pair of jobs shares memory.
        same_host = ("--same_host=" + ("shared_memory", "socket")[job // 2 % 2],)
        train_count, batch = ELASTIC_SAMPLES if is_elastic else SAMPLES
        more = "--micro_batches=8" if is_elastic else "--checkpoint_every_steps=%d" % options.checkpoint_every_steps
        return steps, ("--model=" + model, *same_host, *SYNTHETIC, "--synthetic_train_count=%d" % train_count,
                       "--global_batch=%d" % batch, "--epochs=%d" % -(-steps * batch // train_count),
                       "--max_steps=%d" % steps, more)

    @staticmethod
    def _is_squeezed(topology: str, job: int) -> bool:
        return topology == ELASTIC and job % 3 == 2

    def _plan(self, topology: str, job: int) -> JobPlan:
        options = self._options
        setup = Setup(topology=topology, workers=options.workers or (3 if topology == ELASTIC else 2),
                      servers=options.servers, exchange_deadline_s=options.exchange_deadline_s,
                      join_deadline_s=options.join_deadline_s, squeezed=self._is_squeezed(topology, job),
                      kinds=tuple(kind for kind in options.kinds.split(",") if kind))
        steps, flags = self._worker_flags(topology, job)
        return JobPlan(launch=self._launch, setup=setup, worker_flags=flags, steps=steps,
                       limit_s=options.job_limit_s, event_limit_s=options.event_limit_s, worker=self._worker,
                       server=self._server)

    def _digest(self, plan: JobPlan) -> str:
        """The digest of the undisturbed job. It depends on the model alone; that topology, servers and transport do not
        change it is tested elsewhere. One run per model and topology also shows that the undisturbed job works. An
        elastic one must have the digest of one process."""
        key = (plan.setup.topology, plan.worker_flags[0])
        if key not in self._digests:
            self._digests[key] = self._undisturbed(plan)
            if plan.setup.topology == ELASTIC:
                flags = tuple(flag for flag in plan.worker_flags if not flag.startswith("--same_host="))
                setup = dataclasses.replace(plan.setup, topology="local", workers=1)
                local = self._undisturbed(dataclasses.replace(plan, setup=setup, worker_flags=flags))
                if local != self._digests[key]:
                    sys.exit("chaos: the undisturbed job has digest %s, one process %s" % (self._digests[key], local))
        return self._digests[key]

    def _undisturbed(self, plan: JobPlan) -> str:
        begin = time.monotonic()
        with job_class(plan)(plan, say) as job:
            try:
                digest = job.run([], lambda done: None)
            except JobFailed as failure:
                sys.exit("chaos: the undisturbed job failed: %s\n%s" % (failure, job.output))
        say("undisturbed %s %s: digest %s, %d steps in %.1f s" % (
            plan.setup.topology, plan.worker_flags[0], digest[:12], plan.steps, time.monotonic() - begin))
        return digest

    def _job(self, topology: str, number: int) -> None:
        options = self._options
        plan = self._plan(topology, number)
        expected = self._digest(plan)
        seed = job_seed(options.seed, number)
        events = make_schedule(seed, plan.setup, EVENTS_PER_JOB_MAX)
        say("job %d, %s, seed %d, %s" % (number, topology, options.seed, " ".join(plan.worker_flags[:2])))
        began, count = time.time(), 0

        def on_event(done: Done) -> None:
            nonlocal count
            count += 1
            self._log.add("event", topology=topology, seed=options.seed, job=number, kind=done.event.kind,
                          role=done.event.role, number=done.event.number, duration_s=done.event.duration_s,
                          at_start=done.event.at_start, wall=done.wall, at_s=done.at_s, step=done.step_before,
                          next_step_s=done.next_step_s, restarted=done.restarted, in_change=done.in_change,
                          detection_s=done.detection_s, start_s=done.start_s, again_steps=done.again_steps)
            say("            " + describe(done, topology))

        with job_class(plan)(plan, say) as job:
            try:
                digest = job.run(events[:max(1, self._missing(topology))] if options.job is None else events,
                                 on_event, self._until)
                outcome, text = (Outcome.OK, "") if digest == expected else (
                    Outcome.WRONG_DIGEST, "digest %s, undisturbed %s" % (digest, expected))
            except JobFailed as failure:
                outcome, text = failure.outcome, str(failure)
            output = job.output
        if options.outputs:
            with open(os.path.join(options.outputs, "job.%d.%d" % (options.seed, number)), "w") as file:
                file.write(output)
        self._log.add("job", topology=topology, seed=options.seed, job=number, wall=began, events=count,
                      seconds=time.time() - began, outcome=outcome, text=text)
        say("job %d: %s, %d events, %.1f s" % (number, outcome, count, time.time() - began))
        if outcome != Outcome.OK:
            self.failures += 1
            self._explain(number, events[:count + 1], text, output)

    def _explain(self, number: int, events: list[Event], text: str, output: str) -> None:
        say("chaos: job %d failed: %s" % (number, text))
        say("\n".join("  | " + line for line in output.splitlines()))
        say("its schedule:\n" + "\n".join("  %s" % event for event in events))
        arguments = [word for word in sys.argv[1:] if not word.startswith(("--job=", "--log", "--continue", "--sec"))]
        say("repeat it: bench/chaos %s --job=%d" % (" ".join(arguments), number))


def describe(done: Done, topology: str) -> str:
    """What an event has caused, in a line."""
    text = "next step never: the job ended" if done.next_step_s is None else "next step after %.2f s" % done.next_step_s
    if topology != ELASTIC:
        return text + ", restarted" * done.restarted
    if done.start_s > 0:
        text += " (%.2f s of it for starting processes)" % done.start_s
    if done.detection_s is not None:
        text += ", detected after %.2f s" % done.detection_s
    return text + (", %d steps again" % done.again_steps if done.restarted else ", no change")


def main(arguments: list[str]) -> int:
    if any(argument.startswith("--hosts=") for argument in arguments):
        return netlab_chaos.main(arguments, find_launcher)
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # SystemExit runs Job.__exit__, which ends all processes
    chaos = Chaos(options)
    chaos.run()
    return 1 if chaos.failures else 0


if __name__ == "__main__":
    if directory := os.environ.get("BUILD_WORKING_DIRECTORY"):
        LAUNCHER_HERE = find_launcher()
        os.chdir(directory)
        sys.argv += ["--launch=" + LAUNCHER_HERE] if not any(a.startswith("--launch") for a in sys.argv) else []
    sys.exit(main(sys.argv[1:]))
