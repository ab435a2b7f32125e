"""Tests --trace: every process writes its own file, and the merged files are consistent on one clock."""

import collections
import json
import unittest

from bench.compare import timeline
from tests.e2e.jobs import JobTest, LAUNCH, SERVER, SMALL_JOB, WORKER

REFUSED = 2

# Several buckets, each of several reduction blocks.
FLAGS = [*SMALL_JOB, "--epochs=1", "--model=mlp", "--bucket_bytes=3000000"]
FLAGS.remove("--epochs=2")
STEPS = 7

WORKER_SPANS = {"step", "data wait", "load", "loss", "submit", "wait", "evaluate",
                *(f"{way} fc{i}" for way in ("forward", "backward") for i in (1, 2, 3))}
# Times are whole nanoseconds written in microseconds, so sums of them are rounded by this much.
ROUNDING_US = 0.002


def label(event, name):
    return event["args"].get(name)


class Merged:
    """A merged trace, sorted by tracks."""

    def __init__(self, merged):
        self.processes = {}
        self.tracks = {}
        self.spans = []
        self.flights = []
        self.arrows = collections.defaultdict(dict)
        open_flights = {}
        for event in merged["traceEvents"]:
            if event["name"] == "process_name":
                self.processes[event["pid"]] = event["args"]["name"]
            elif event["name"] == "thread_name":
                self.tracks[event["pid"], event["tid"]] = event["args"]["name"]
            elif event["ph"] == "X":
                self.spans.append(dict(event, end=event["ts"] + event["dur"]))
            elif event["ph"] == "b":
                assert event["id"] not in open_flights, event
                open_flights[event["id"]] = event
            elif event["ph"] == "e":
                begin = open_flights.pop(event["id"])
                self.flights.append(dict(begin, end=event["ts"]))
            elif event["ph"] in "sf":
                self.arrows[event["name"], event["id"]][event["ph"]] = event["ts"]
        assert not open_flights, open_flights

    def of(self, process, name, events=None, **labels):
        return [event for event in (self.spans if events is None else events)
                if self.processes[event["pid"]] == process and event["name"] == name
                and all(label(event, key) == value for key, value in labels.items())]


class TraceTest(JobTest):

    def trace(self, sync, processes, **kwargs):
        path = self.path("trace.json")
        self.train(sync, workers=2, flags=FLAGS, launch_flags=["--trace=" + path], **kwargs)
        files = timeline.files_of(path)
        self.assertEqual(len(files), len(processes), files)
        for name in files:
            with open(name) as file:
                json.load(file)
        out = self.path("merged.json.gz")
        merged = timeline.merge_files(files, out)
        self.assertEqual(merged["otherData"]["dropped_events"], 0)
        seen = Merged(merged)
        self.assertEqual(sorted(seen.processes.values()), processes)
        self.check_nesting(seen)
        times = [event["ts"] for event in merged["traceEvents"] if "ts" in event]
        self.assertEqual(times, sorted(times))
        self.assertEqual(times[0], 0)
        return seen

    def check_nesting(self, seen):
        """On each track, a span is either inside the previous one or begins after its end."""
        open_spans = collections.defaultdict(list)
        for span in sorted(seen.spans, key=lambda span: (span["ts"], -span["dur"])):
            self.assertGreaterEqual(span["dur"], 0)
            stack = open_spans[span["pid"], span["tid"]]
            while stack and stack[-1]["end"] <= span["ts"] + ROUNDING_US:
                stack.pop()
            if stack:
                self.assertLessEqual(span["end"], stack[-1]["end"] + ROUNDING_US, f"{span} in {stack[-1]}")
            stack.append(span)

    def check_order(self, *events):
        """Each of the lists must have one event, which begins no earlier than the one before it."""
        for event in events:
            self.assertEqual(len(event), 1, event)
        times = [event[0]["ts"] for event in events]
        self.assertEqual(times, sorted(times), events)

    def check_worker(self, seen, worker):
        names = {span["name"] for span in seen.spans if seen.processes[span["pid"]] == worker}
        self.assertLessEqual(WORKER_SPANS, names)
        self.assertEqual([label(span, "step") for span in seen.of(worker, "step")], list(range(STEPS)))
        buckets = {label(span, "bucket") for span in seen.of(worker, "submit")}
        self.assertGreater(len(buckets), 1)
        for step in range(STEPS):
            self.assertEqual([label(span, "bucket") for span in seen.of(worker, "submit", step=step)], sorted(buckets))
            for bucket in buckets:
                labels = {"step": step, "bucket": bucket}
                submit, wait = (seen.of(worker, name, **labels) for name in ("submit", "wait"))
                self.check_order(submit, wait)
                exchanges = seen.of(worker, "exchange", seen.flights, **labels)
                self.assertTrue(exchanges)
                for exchange in exchanges:
                    self.assertGreaterEqual(exchange["ts"], submit[0]["ts"])
                    self.assertLessEqual(exchange["end"], wait[0]["end"])
        return buckets

    def check_star(self, seen):
        for rank in (0, 1):
            worker = f"worker {rank}"
            for bucket in self.check_worker(seen, worker):
                for step in range(STEPS):
                    for shard in (0, 1):
                        server, labels = f"server {shard}", {"step": step, "bucket": bucket}
                        self.check_order(
                            seen.of(worker, "submit", **labels),
                            seen.of(worker, "send", shard=shard, **labels),
                            seen.of(server, "receive", rank=rank, **labels),
                            seen.of(server, "sum + apply", **labels),
                            seen.of(server, "send", rank=rank, **labels),
                            seen.of(worker, "receive", shard=shard, **labels))
                        self.assertTrue(seen.of(server, "wait for the last worker", seen.flights, **labels))
        # Every gradient and every answer has an arrow with both ends, forward in time.
        sends = [span for span in seen.spans if span["name"] == "send"]
        self.assertEqual(len(seen.arrows), len(sends))
        for ends in seen.arrows.values():
            self.assertLessEqual(ends["s"], ends["f"])

    def test_star(self):
        processes = ["server 0", "server 1", "worker 0", "worker 1"]
        self.check_star(self.trace("star", processes, servers=2))

    def test_ring(self):
        self.check_ranks(self.trace("ring", ["worker 0", "worker 1"]))

    def test_star_without_servers(self):
        self.check_ranks(self.trace("star/mpi", ["worker 0", "worker 1"]))

    def check_ranks(self, seen):
        for rank in (0, 1):
            worker = f"worker {rank}"
            for bucket in self.check_worker(seen, worker):
                for step in range(STEPS):
                    labels = {"step": step, "bucket": bucket}
                    exchange = seen.of(worker, "exchange", seen.flights, **labels)
                    self.assertEqual(len(exchange), 1)
                    applies = seen.of(worker, "apply", **labels)
                    self.assertTrue(applies)
                    for event in applies + seen.of(worker, "receive", seen.flights, **labels):
                        self.assertGreaterEqual(event["ts"], exchange[0]["ts"])
                        self.assertLessEqual(event["end"], exchange[0]["end"])
                    self.assertTrue(seen.of(worker, "send", seen.flights, rank=1 - rank, **labels))
                    self.assertTrue(seen.of(worker, "receive", seen.flights, rank=1 - rank, **labels))
        self.assertTrue({"exchange", "compute", "loader 0"} <= set(seen.tracks.values()))

    def test_a_file_that_cannot_be_written_is_refused(self):
        open(self.path("nowhere"), "w").close()  # no folder of this name can be made
        wrong = "--trace=" + self.path("nowhere/trace.json")
        for command in ([WORKER, *SMALL_JOB, wrong], [SERVER, "--listen=127.0.0.1:0", wrong],
                        [LAUNCH, "--sync=local", wrong, "--", *SMALL_JOB]):
            done = self.run_to_end(command, deadline_s=60)
            self.assertEqual(done.returncode, REFUSED, done.output)
            for word in ("--trace", self.path("nowhere"), "folder that can be written"):
                self.assertIn(word, done.output)
        done = self.run_to_end([LAUNCH, "--sync=local", wrong, "--", *SMALL_JOB, wrong], deadline_s=60)
        self.assertEqual(done.returncode, REFUSED, done.output)
        self.assertIn("after -- too", done.output)


class MergeTest(JobTest):

    def write(self, name, role, number, boot_id, wall_minus_monotonic_us, ts):
        path = self.path(f"{name}.{role}-{number}.json")
        span = {"ph": "X", "name": "send" if role == "worker" else "receive", "pid": 7, "tid": 1, "ts": ts, "dur": 1.0,
                "args": {"step": 0, "bucket": 0, "shard" if role == "worker" else "rank": 0}}
        name = {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": f"{role} {number}"}}
        with open(path, "w") as file:
            json.dump({"traceEvents": [span, name],
                       "otherData": {"role": role, "number": number, "host": boot_id, "boot_id": boot_id,
                                     "wall_minus_monotonic_us": wall_minus_monotonic_us}}, file)
        return path

    def test_machines_meet_on_the_wall_clock(self):
        # Machine b was booted 5 s after a: 100 us on its clock are 5000100 us on a's clock.
        files = [self.write("t", "server", 0, "b", 6_000_000, 150.0),
                 self.write("t", "worker", 0, "a", 1_000_000, 5_000_100.0)]
        seen = Merged(timeline.merge(files))
        self.assertEqual([(seen.processes[span["pid"]], span["ts"]) for span in seen.spans],
                         [("worker 0 on a", 0), ("server 0 on b", 50.0)])
        self.assertEqual(seen.arrows["gradient", "w0.0.0.0"], {"s": 0, "f": 50.0})

    def test_files_of_one_job_are_found(self):
        files = [self.write("t", "worker", number, "a", 0, 0) for number in (0, 10)]
        self.write("other", "worker", 0, "a", 0, 0)
        self.assertEqual(timeline.files_of(self.path("t.json")), sorted(files))

    def test_what_is_no_trace_is_refused(self):
        path = self.path("record.json")
        with open(path, "w") as file:
            file.write("{}")
        with self.assertRaisesRegex(timeline.TraceError, "record.json is no trace"):
            timeline.merge([path])
        with self.assertRaisesRegex(timeline.TraceError, "nowhere.json: No such file"):
            timeline.merge([self.path("nowhere.json")])
        with self.assertRaisesRegex(timeline.TraceError, "--trace"):
            timeline.merge([])


if __name__ == "__main__":
    unittest.main()
