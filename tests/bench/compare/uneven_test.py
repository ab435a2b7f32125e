"""Tests the section of uneven and failing workers: what counts, shares, command lines, and the sentences."""

import gzip
import struct
import tempfile
import unittest
import unittest.mock
from typing import NamedTuple

import analysis
import counted
import half_speed
import jobs
import machine
import made_results
import options
import programs
import results as schema
import small_test_set
import uneven as uneven_part
import uneven_job
import uneven_plans
import uneven_shares
import uneven_verdict
from counted import Page

PAGE = """# HELP starring_steps_total steps of this process whose loss is known
# TYPE starring_steps_total counter
starring_steps_total 12
starring_step 41
starring_step_seconds_total{part="forward"} 1.5
starring_step_seconds_total{part="backward"} 2.5e+00
starring_step_seconds_total{part="exposed_exchange"} 9
"""
LOG = """run { name: "launch-1-0" leaves: 16 shards: 2 job: "ab" first_step: 0 }
commit { generation: 1 first_step: 0 snapshot_every: 2 workers: [5, 6] leaf_owners: [%s] }
commit { counted { generation: 1 from: 0 to: 96 } generation: 12 first_step: 96 snapshot_every: 2 workers: [5, 6] \
leaf_owners: [%s] }
""" % (", ".join("0000000011111111"), ", ".join("1111111111000001"))


class CountedTest(unittest.TestCase):
    def test_reads_a_page(self):
        self.assertEqual(counted.page(PAGE), Page(position=42, steps=12, compute_s=4.0))

    def test_a_process_without_a_step_is_nowhere(self):
        # Its gauge is 0, which would look like the first step of the run.
        self.assertIsNone(counted.page("starring_steps_total 0\nstarring_step 0\n").position)
        self.assertIsNone(counted.page("").position)

    def test_reads_the_lines_of_a_job(self):
        self.assertEqual(counted.metrics_address("w1 | worker 1: metrics at http://127.0.0.1:9/metrics\n"),
                         (1, "http://127.0.0.1:9/metrics"))
        self.assertEqual(counted.generation("s0 | server 0: generation 4 from step 120 with 3 workers"), (4, 120))
        self.assertEqual(counted.generation("s0 | server 0: generation 1 from step 0 with 1 worker (the run begins)"),
                         (1, 0))
        for line in ("server 0: generation 4 is cut short at step 163: worker (process 4 on h) is gone", "", "epoch 1"):
            self.assertIsNone(counted.generation(line))
            self.assertIsNone(counted.metrics_address(line))
            self.assertFalse(counted.deals_shares(line))
        self.assertTrue(counted.deals_shares("generation 2 ends at its next snapshot: other shares are faster"))
        self.assertFalse(counted.deals_shares("generation 2 ends at its next snapshot: worker (process 7 on h) joins"))

    def test_the_last_batch_of_an_epoch_is_smaller(self):
        self.assertEqual([counted.samples(step, 1000, 300) for step in (0, 1, 3, 4, 5, 8)],
                         [0, 300, 900, 1000, 1300, 2000])
        self.assertEqual(counted.samples(2, 600, 300), 600)

    def test_what_counted(self):
        self.assertEqual(counted.rate(3, 5, 2.0, 1000, 300), 200)
        # A run that was killed before it came to where it had been.
        self.assertEqual(counted.rate(5, 3, 2.0, 1000, 300), 0)

    def test_periods_of_checkpoints(self):
        self.assertEqual(counted.periods(0.1, (0.3, 1.0, 3.0)), [3, 10, 30])
        self.assertEqual(counted.periods(2.0, (0.3, 1.0, 3.0)), [1, 2])


class SharesTest(unittest.TestCase):
    def test_leaves_from_the_log(self):
        self.assertEqual(uneven_shares.leaves_by_rank(LOG, 1), [8, 8])
        self.assertEqual(uneven_shares.leaves_by_rank(LOG, 12), [5, 11])
        self.assertEqual(uneven_shares.leaves_by_rank(LOG, 2), [])

    def test_the_best_split(self):
        self.assertEqual(uneven_shares.best_split([0.01, 0.02], 16), ([11, 5], 0.11))
        self.assertEqual(uneven_shares.best_split([0.02, 0.01], 16)[0], [5, 11])
        self.assertEqual(uneven_shares.best_split([0.01, 0.01], 16), ([8, 8], 0.08))
        self.assertEqual(uneven_shares.best_split([0.01, 9.0], 16)[0], [15, 1])  # each has one at least

    def test_ranks_are_assigned_by_speed(self):
        # Worker 0 is the fast one, and rank 1.
        self.assertEqual(uneven_shares.assign([5, 11], [0.11, 0.10], [0.01, 0.02]), [11, 5])
        self.assertEqual(uneven_shares.assign([5, 11], [0.10, 0.11], [0.02, 0.01]), [5, 11])

    def test_times_of_steps(self):
        losses = [{"step": step, "seconds": seconds} for step, seconds in enumerate((1.0, 1.5, 2.0, 2.25, 5.0))]
        self.assertEqual(uneven_shares.step_seconds(losses, 1, 4), [0.5, 0.25])
        self.assertEqual(uneven_shares.step_seconds(losses, 1, 1), [])

    @staticmethod
    def watch(**changes):
        equal = ({0: Page(1, 10, 1.0), 1: Page(1, 10, 2.0)}, {0: Page(1, 20, 1.8), 1: Page(1, 20, 3.6)})
        dealt = ({0: Page(1, 30, 5.0), 1: Page(1, 30, 5.0)}, {0: Page(1, 50, 7.2), 1: Page(1, 50, 7.0)})
        return uneven_shares.Watch(**{"generation": 12, "equal": equal, "dealt": dealt, "steps": (100, 103), **changes})

    def test_describes_a_run(self):
        losses = [{"step": step, "seconds": 0.121 * step} for step in range(200)]
        found = uneven_shares.describe(self.watch(), LOG, losses, 16)
        self.assertEqual((found["leaves"], found["best_leaves"]), ([11, 5], [11, 5]))
        for expected, seconds in zip((0.01, 0.02), found["seconds_per_leaf"]):
            self.assertAlmostEqual(seconds, expected)
        self.assertAlmostEqual(found["best_ms"], 110)
        self.assertAlmostEqual(found["step_ms_p50"], 121)

    def test_says_nothing_from_half_of_the_readings(self):
        losses = [{"step": step, "seconds": 0.121 * step} for step in range(200)]
        empty = ({}, {})
        for watch, log, kept in ((self.watch(generation=2), LOG, losses), (self.watch(equal=empty), LOG, losses),
                                 (self.watch(dealt=empty), LOG, losses), (self.watch(), "", losses),
                                 (self.watch(), LOG, [])):
            self.assertIsNone(uneven_shares.describe(watch, log, kept, 16))


class HalfSpeedTest(unittest.TestCase):
    def test_version_2_and_the_groups_above(self):
        found = half_speed.parents("29 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
                                   "0::/system.slice/ssh.service\n")
        self.assertEqual([folder for folder, _ in found],
                         ["/sys/fs/cgroup/system.slice/ssh.service", "/sys/fs/cgroup/system.slice", "/sys/fs/cgroup"])
        self.assertEqual(found[0][1], {"cpu.max": "10000 20000"})

    def test_version_1(self):
        found = half_speed.parents("32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
                                   "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
                                   "4:memory:/a\n1:cpu,cpuacct:/\n0::/\n")
        self.assertEqual(found, [("/sys/fs/cgroup/cpu", {"cpu.cfs_period_us": "20000", "cpu.cfs_quota_us": "10000"})])

    def test_a_container_sees_a_part_of_the_groups(self):
        found = half_speed.parents("9 8 0:26 /docker/1 /sys/fs/cgroup ro - cgroup2 cgroup ro\n", "0::/docker/1/x\n")
        self.assertEqual(found[0][0], "/sys/fs/cgroup/x")

    def test_no_group_where_none_is_mounted(self):
        self.assertEqual(half_speed.parents("1 0 0:1 / / rw - ext4 /dev/vda rw\n", "0::/\n"), [])


class WorkersTest(unittest.TestCase):
    def test_knows_the_workers_of_each_program(self):
        for words, environment, number in (
                (["/a/worker", "--rank=1"], {}, 1), (["/a/worker"], {"OMPI_COMM_WORLD_RANK": "3"}, 3),
                (["python3", "-u", "/a/train.py", "--model=mlp"], {"RANK": "1"}, 1),
                (["python3", "-m", "torch.distributed.run", "/a/train.py"], {}, None),
                (["/a/server", "--shard=0"], {}, None), (["/a/launch", "--", "--rank=0"], {}, None), ([], {}, None)):
            self.assertEqual(uneven_job.worker_number(words, environment), number, words)


@unittest.mock.patch.object(machine, "cores", lambda: [0, 1])
@unittest.mock.patch.object(programs, "binary", lambda name: "/bin/" + name)
class PlansTest(unittest.TestCase):
    @staticmethod
    def words(sync, *flags, **more):
        parsed = options.parse(["--uneven", "--dataset=mnist", "--data_dir=/data", *flags])
        plans = uneven_plans.Plans(parsed, programs.Torch("python3", "1.13"))
        plan = plans.plan(sync, "/run", **more)
        return plan, plan.command.argv

    def test_undisturbed_programs_save_nothing(self):
        for sync in (uneven_plans.RING, uneven_plans.STAR, uneven_plans.DDP):
            plan, words = self.words(sync)
            text = " ".join(words)
            self.assertTrue(plan.all_restart)
            self.assertEqual([word for word in words if word.startswith("--checkpoint_dir")],
                             [] if sync == uneven_plans.DDP else ["--checkpoint_dir=none"])
            self.assertNotIn("state_file", text)
            for word in ("--global_batch=512", "--model=mnist_cnn", "--data_dir=/data", "--device=cpu"):
                self.assertEqual(words.count(word), 1, text)
            self.assertIn("--max_restarts=0" if sync == uneven_plans.DDP else "--cores_per_worker=1", words)

    def test_programs_with_kills_go_on_from_a_checkpoint(self):
        for sync in (uneven_plans.RING, uneven_plans.STAR):
            _, words = self.words(sync, restarts=True, period=7)
            launch, worker = words[:words.index("--")], words[words.index("--"):]
            self.assertIn("--restarts=1000", launch)
            self.assertIn("--checkpoint_dir=/run/checkpoints", worker)
            self.assertIn("--checkpoint_every_steps=7", worker)
        plan, words = self.words(uneven_plans.DDP, restarts=True, period=7)
        self.assertEqual(plan.position_file, "/run/position")
        for word in ("--max_restarts=1000", "--state_file=/run/state", "--state_every_steps=7", "--cores=0;1",
                     "--data=ram"):
            self.assertIn(word, words)

    def test_the_elastic_star_starts_one_process_again(self):
        plan, words = self.words(uneven_plans.ELASTIC, restarts=True)
        self.assertFalse(plan.all_restart)
        for word in ("--sync=star", "--transport=grpc", "--elastic", "--restart_processes=1000", "--servers=2",
                     "--state_dir=/run/state", "--micro_batches=16"):
            self.assertIn(word, words)
        self.assertNotIn("--record_losses", words)
        self.assertIn("--record_losses", self.words(uneven_plans.ELASTIC)[1])

    def test_one_model(self):
        self.assertEqual(options.parse(["--uneven"]).uneven, "mnist_cnn")
        self.assertEqual(options.parse(["--uneven=lenet5"]).uneven, "lenet5")
        self.assertIsNone(options.parse([]).uneven)
        with unittest.mock.patch("sys.stderr"), self.assertRaises(SystemExit):
            options.parse(["--uneven=lenet5,mlp"])

    def test_flags_without_effect_are_refused(self):
        for flags in (["--uneven="], ["--uneven", "--uneven_syncs="], ["--uneven_repeats=3"], ["--uneven_syncs=ring"],
                      ["--uneven", "--uneven_repeats=0"]):
            with self.subTest(flags), unittest.mock.patch("sys.stderr"), self.assertRaises(SystemExit):
                options.parse(flags)


class FakeJob:
    """A job with two workers that makes a step in 0.2 s, with a slow worker in 0.4 s, and saves nothing. Its time is
    the test's."""
    now = 0.0
    jobs = []
    failing = ""  # a program that ends at once

    def __init__(self, plan):
        self.plan, self.sync = plan, plan.sync
        self.begin, self.slowed, self.kills, self.deals, self.generations = FakeJob.now, None, [], 0, [(1, 0)]
        self.dealt = None
        self.jobs.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self.end = FakeJob.now

    def failure(self, what):
        return programs.ProgramError(f"{self.sync} {what}:\n")

    def workers(self):
        return {0: 10, 1: 11}

    def pages(self):
        return {}

    def slow_down(self):
        self.slowed = FakeJob.now

    def kill(self, number):
        self.kills.append((round(FakeJob.now - self.begin, 3), number))
        return len(self.kills) != 3 or self.sync != "star"

    def await_position(self):
        if self.sync == self.failing:
            raise self.failure("ended with 1")
        slow = FakeJob.now - self.slowed if self.slowed is not None else 0.0
        return 1 + int((FakeJob.now - self.begin - slow) / 0.2 + slow / 0.4 + 1e-6)

    def wait(self, condition, seconds_max):
        end = FakeJob.now + seconds_max
        while not condition() and FakeJob.now < end:
            FakeJob.now += 0.5
            if self.deals == 0 and self.slowed is not None and FakeJob.now - self.slowed >= 6:
                self.deals, self.dealt = 1, FakeJob.now
            if self.dealt is not None and FakeJob.now - self.dealt >= 1 and len(self.generations) == 1:
                self.generations.append((2, 50))
        return condition()

    def wait_until(self, moment):
        FakeJob.now = max(FakeJob.now, moment)


class FakePlan(NamedTuple):
    sync: str
    restarts: bool
    period: int | None
    command = jobs.Command(["a", "command"])


class FakePlans:
    def plan(self, sync, _folder, restarts=False, period=None):
        return FakePlan(sync, restarts, period)


class PartTest(unittest.TestCase):
    """How often each program runs, for how long, and what is kept of it."""

    def measure(self, *flags, failing=""):
        FakeJob.now, FakeJob.jobs, FakeJob.failing = 0.0, [], failing
        parsed = options.parse(["--uneven", "--dataset=synthetic", *flags])
        part = uneven_part.UnevenPart(parsed, programs.Torch("python3", "1.13"), lambda text: None, lambda found: None)
        clock = unittest.mock.Mock(monotonic=lambda: FakeJob.now)

        def slow_down(running, _stack):
            running.slow_down()

        def add_shares(_watch, _folder, run):
            part.found["shares"].append(run)

        with unittest.mock.patch.object(uneven_part, "RunningJob", FakeJob), \
                unittest.mock.patch.object(uneven_part, "time", clock), \
                unittest.mock.patch.object(machine, "cores", lambda: [0, 1]), \
                unittest.mock.patch.object(part, "_slow_down", slow_down), \
                unittest.mock.patch.object(part, "_add_shares", add_shares):
            part.plans = FakePlans()
            part.measure()
        return part

    def test_each_repeat_has_all_cases(self):
        part = self.measure("--uneven_repeats=2")
        self.assertFalse(part.failed)
        for one in part.found["jobs"]:
            self.assertEqual([(run["repeat"], run["case"]) for run in one["runs"]],
                             [(repeat, case) for repeat in range(2)
                              for case in (uneven_verdict.EVEN, uneven_verdict.HALF_SPEED, uneven_verdict.KILLS)])
            for run in one["runs"]:  # 512 samples in 0.2 s or, with a slow worker, in 0.4 s
                slow = run["case"] == uneven_verdict.HALF_SPEED
                self.assertAlmostEqual(run["samples_per_second"], 1280 if slow else 2560, delta=60)
            self.assertEqual(len(one["tried"]), 0 if one["sync"] == "star-elastic" else 3)
        self.assertEqual([tried["checkpoint_every_steps"] for tried in part.found["jobs"][0]["tried"]],
                         counted.periods(0.2, uneven_part.Times.checkpoints))
        # A window of kills has several, as many of each worker, and begins when a program has saved once.
        long = [job for job in FakeJob.jobs if job.plan.restarts and len(job.kills) > 2]
        self.assertEqual(len(long), 8)
        for one in long:
            times, numbers = zip(*one.kills)
            self.assertGreaterEqual(len(times), 3)
            self.assertEqual(numbers.count(0), numbers.count(1))
            self.assertGreater(times[0], max(uneven_part.Times.checkpoints))
            self.assertEqual({round(later - earlier, 3) for earlier, later in zip(times, times[1:])}, {10.0})
            self.assertAlmostEqual(one.end - one.begin, times[-1] + 10)  # what the last one costs is in the window
        self.assertEqual([note for note in part.notes if "no worker to kill" in note],
                         [f"star had no worker to kill at 1 of 4 times in run {run}" for run in (1, 2)])

    def test_one_run_is_watched_for_minutes(self):
        part = self.measure("--uneven_syncs=star-elastic", "--uneven_repeats=3")
        self.assertEqual([run["deals"] for run in part.found["shares"]], [1, 1, 1])
        watched = [run["watched_seconds"] for run in part.found["shares"]]
        self.assertGreaterEqual(watched[0], 180)
        self.assertLess(max(watched[1:]), 60)

    def test_the_default_takes_about_three_quarters_of_an_hour(self):
        self.measure()
        # Besides these times, each of the jobs starts and ends.
        self.assertLess(FakeJob.now, 48 * 60)
        self.assertLess(len(FakeJob.jobs), 70)

    def test_a_program_that_fails_twice_is_left_out(self):
        part = self.measure("--uneven_repeats=2", failing="ring")
        self.assertTrue(part.failed)
        ring, *others = part.found["jobs"]
        self.assertEqual((ring["sync"], ring["runs"]), ("ring", []))
        self.assertIn("it failed twice: ring ended with 1", ring["reason"])
        self.assertEqual([job.sync for job in FakeJob.jobs].count("ring"), 2)
        for one in others:
            self.assertEqual((len(one["runs"]), one["reason"]), (6, None))


class SmallTestSetTest(unittest.TestCase):
    def test_keeps_the_training_files_and_the_first_test_images(self):
        count = small_test_set.TEST_COUNT + 1
        with tempfile.TemporaryDirectory() as source, tempfile.TemporaryDirectory() as folder:
            for prefix, images in (("train", 5), ("t10k", count)):
                with gzip.open(f"{source}/{prefix}-images-idx3-ubyte.gz", "wb") as file:
                    file.write(struct.pack(">4I", 0x803, images, 1, 2) + bytes(i % 251 for i in range(2 * images)))
                with open(f"{source}/{prefix}-labels-idx1-ubyte", "wb") as file:
                    file.write(struct.pack(">2I", 0x801, images) + bytes(i % 10 for i in range(images)))
            self.assertEqual(small_test_set.make(source, folder), 5)
            with gzip.open(f"{folder}/train-images-idx3-ubyte.gz", "rb") as file:
                self.assertEqual(len(file.read()), 16 + 10)
            with open(f"{folder}/t10k-images-idx3-ubyte", "rb") as file:
                images = file.read()
            with open(f"{folder}/t10k-labels-idx1-ubyte", "rb") as file:
                labels = file.read()
        self.assertEqual(images, struct.pack(">4I", 0x803, count - 1, 1, 2) +
                         bytes(i % 251 for i in range(2 * count - 2)))
        self.assertEqual(labels, struct.pack(">2I", 0x801, count - 1) + bytes(i % 10 for i in range(count - 1)))

    def test_a_missing_file_is_named(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(programs.ProgramError, "--data_dir"):
            small_test_set.make(folder, folder)


def job(sync, even=(), half=(), kills=(), period=None, reason=None):
    runs = [{"repeat": repeat, "case": case, "samples_per_second": float(rate), "seconds": 20.0,
             "kills": 6 * (case == uneven_verdict.KILLS)}
            for case, rates in ((uneven_verdict.EVEN, even), (uneven_verdict.HALF_SPEED, half),
                                (uneven_verdict.KILLS, kills)) for repeat, rate in enumerate(rates)]
    return {"sync": sync, "command": [], "checkpoint_every_steps": period, "tried": [], "runs": runs, "reason": reason}


def uneven(*jobs, shares=()):
    return {"model": "mnist_cnn", "dataset": "mnist", "workers": 2, "servers": 2, "global_batch": 512,
            "micro_batches": 16, "slowed_by": "x", "kill_every_seconds": 10.0, "jobs": list(jobs),
            "shares": list(shares)}


RING = job("ring", (3000, 3100, 2900) * 3, (1500, 1560, 1450) * 3, (1200, 1100, 1250) * 3, period=6)
ELASTIC = job("star-elastic", (2800, 2900, 2700) * 3, (2100, 2170, 2030) * 3, (2400, 2450, 2300) * 3)


class VerdictTest(unittest.TestCase):
    def test_says_when_it_decides(self):
        found = uneven_verdict.analyse(uneven(RING, ELASTIC))
        self.assertRegex(found["verdict"], r"undisturbed the ring is the fastest at 3,000 samples/s, with one of 2 "
                         r"workers at half speed the elastic star is 1\.397 \[1\.39\d, 1\.40\d\] times as fast as the "
                         r"ring, and with a worker killed every 10 s the elastic star is 2\.02 \[1\.\d+, 2\.\d+\] "
                         r"times as fast as the ring")
        self.assertTrue(found["verdict"].endswith(
            "That decides for the elastic star where one of 2 workers at half speed or a worker killed every 10 s is "
            "to be expected."), found["verdict"])

    def test_nothing_is_decided_where_the_fastest_stays_so(self):
        slow = job("star", (2000, 2000), (1000, 1000), (500, 510))
        found = uneven_verdict.analyse(uneven(RING, slow))
        self.assertIn("the ring stays the fastest, 1.5", found["verdict"])
        self.assertIn("decides nothing here", found["verdict"])

    def test_few_runs_prove_nothing(self):
        for runs in (1, 6):
            ring = job("ring", (3000,) * runs, (1500,) * runs, (1200,) * runs)
            elastic = job("star-elastic", (2800,) * runs, (2100,) * runs, (2400,) * runs)
            self.assertIn("decides nothing here", uneven_verdict.analyse(uneven(ring, elastic))["verdict"])

    def test_a_program_that_never_gets_on(self):
        stuck = job("ring", (3000,) * 7, (1500,) * 7, (0,) * 7)
        found = uneven_verdict.analyse(uneven(stuck, ELASTIC))
        self.assertIn("the elastic star gets on, and the ring does not. ", found["verdict"])
        self.assertIn("the elastic star where one of 2 workers at half speed or a worker killed every 10 s is to be",
                      found["verdict"])
        # Pairs count, not the runs of the better one.
        few = uneven_verdict.analyse(uneven(job("ring", (3000,) * 6, (2900,) * 6, (0,) * 6), ELASTIC))
        self.assertIn("decides nothing here", few["verdict"])
        elastic = job("star-elastic", (2800,) * 6, (1400,) * 6, (2400,) * 6)
        stuck = job("ring", (3000,) * 6, (1500,) * 6, (0,) * 6)
        self.assertIn("decides nothing here", uneven_verdict.analyse(uneven(stuck, elastic))["verdict"])
        self.assertEqual(found["rows"][0]["rates"][uneven_verdict.KILLS], {"median": 0, "spread": 0, "left": 0})
        for one in (ELASTIC, job("star", (10, 10), (10, 10), (0, 0))):
            uneven_verdict.analyse(uneven(one, stuck))

    def test_a_program_that_sometimes_does_not_get_on(self):
        ring = job("ring", (3000,) * 7, (2900,) * 7, (0, 900, 900, 900, 900, 900, 900))
        found = uneven_verdict.analyse(uneven(ring, ELASTIC))["verdict"]
        self.assertIn("the elastic star gets on, and the ring does not in 1 of 7 runs. That decides for", found)
        # One pair that the ring wins: nothing is proven.
        ring = job("ring", (3000,) * 7, (2900,) * 7, (0, 9000, 900, 900, 900, 900, 900))
        self.assertIn("decides nothing here", uneven_verdict.analyse(uneven(ring, ELASTIC))["verdict"])
        elastic = job("star-elastic", (2800,) * 7, (2100,) * 7, (0, 2400, 2400, 2400, 2400, 2400, 2400))
        ring = job("ring", (3000,) * 7, (2900,) * 7, (900,) * 7)
        found = uneven_verdict.analyse(uneven(ring, elastic))["verdict"]
        self.assertIn("the elastic star is the fastest, and does not get on in 1 of 7 runs. No program", found)

    def test_what_is_left(self):
        keeps = "the elastic star keeps %d %% of its undisturbed samples/s, the ring %d %%."
        self.assertEqual(uneven_verdict.analyse(uneven(RING, ELASTIC))["sentences"],
                         ["With one of 2 workers at half speed, " + keeps % (75, 50),
                          "With a worker killed every 10 s, " + keeps % (86, 40)])

    def test_what_is_said_of_the_shares(self):
        shares = [{"repeat": repeat, "leaves": [11, 5], "seconds_per_leaf": [0.01, 0.02], "best_leaves": [11, 5],
                   "best_ms": 110.0, "step_ms_p50": p50, "deals": deals, "watched_seconds": watched}
                  for repeat, (p50, watched, deals) in enumerate(((121.0, 290.0, 1), (118.8, 90.0, 1),
                                                                  (150.0, 90.0, 1)))]
        elastic = job("star-elastic", (2800,) * 3, (2100,) * 3, (2400,) * 3)
        sentence = uneven_verdict.analyse(uneven(RING, elastic, shares=shares))["sentences"][1]
        self.assertIn("gives the workers 11 and 5 of its 16 micro-batches; by their measured speeds 11 and 5 are best",
                      sentence)
        self.assertIn("takes 1.10 times", sentence)
        self.assertTrue(sentence.endswith("Within 290 s shares were dealt anew once."), sentence)
        # Neither a short run in which they were dealt again and again nor one without shares is left out.
        shares[1]["deals"] = 4
        sentence = uneven_verdict.analyse(uneven(RING, elastic, shares=shares[:2]))["sentences"][1]
        self.assertIn("dealt anew once, and in a run that was watched for less time 4 times. This is of 2 of 3 runs",
                      sentence)

    def test_what_is_missing_has_its_reason(self):
        missing = job("ddp-tuned", reason="no python3 here has PyTorch: x")
        found = uneven_verdict.analyse(uneven(RING, missing))
        self.assertEqual(found["rows"][1]["rates"], {})
        self.assertEqual(found["rows"][1]["reason"], "no python3 here has PyTorch: x")
        self.assertIsNone(found["verdict"])

    def test_the_verdict_of_the_report_has_it(self):
        results = schema.empty([], "", {})
        self.assertIsNone(analysis.analyse(results)["uneven"])
        results["uneven"] = uneven(RING, ELASTIC)
        found = analysis.analyse(results)
        self.assertEqual(found["verdict"], [found["uneven"]["verdict"]])
        results["configurations"] = [made_results.make_configuration("ring", [90, 100]),
                                     made_results.make_configuration("star", [80, 90], servers=2)]
        self.assertEqual(analysis.analyse(results)["verdict"][3:], [found["uneven"]["verdict"]])
        results["agreement"] = [{"model": "lenet5", "peer": "ddp", "workers": 2, "steps": 20, "tolerance": 1e-4,
                                 "ours": [1.0], "worst_relative_difference": 0.5, "worst_step": 4, "theirs": [1.5],
                                 "agrees": False}]
        self.assertNotIn("Uneven", " ".join(analysis.analyse(results)["verdict"]))


if __name__ == "__main__":
    unittest.main()
