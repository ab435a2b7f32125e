"""Tests the schema, the agreement of losses, the matrix of jobs, and the runs made from run records."""

import json
import os
import tempfile
import unittest
import unittest.mock

import agreement
import alone
import device_choice
import jobs
import machine
import measure
import netlab
import options
import peer_settings
import programs
import ratios
import results as schema
import sync_cells as cells
import training
from made_results import host_of, make_lab

CORES = [0, 1]


def parse(*flags):
    return options.parse(list(flags))


def matrix(*flags, torch=True):
    peer = programs.Torch("python3", "1.13", "gloo, cpu") if torch else None
    return jobs.Matrix(parse(*flags), peer, lambda model, sync, workers: {"data": "ram"})


def record(steps=100, batch=128, train_count=60000, mean=2.0):
    config = {"train_count": train_count, "global_batch": batch, "device": "cpu", "deterministic": True}
    return {"version": 3, "config": config, "steps": steps,
            "step_ms": {"p50": mean, "p95": mean, "p99": mean, "max": mean, "mean": mean, "steps_measured": steps - 10},
            "breakdown_ms": {part: 0.0 for part in schema.BREAKDOWN_PARTS},
            "exchange": {"bytes_sent": 1e6, "bytes_received": 2e6}, "parameter_sha256": "d",
            "epochs": [{"epoch": 0, "train_loss": 1.0, "test_loss": 0.81, "test_accuracy": 0.5, "seconds": 2.0},
                       {"epoch": 1, "train_loss": 0.5, "test_loss": 0.25, "test_accuracy": 0.8, "seconds": 2.0}],
            "test": {"loss": "softmax"},
            "workers": [{"compute_ms": 1.0, "cpu_percent": 99.0}, {"compute_ms": 1.5, "cpu_percent": 98.0}]}


@unittest.mock.patch.object(machine, "cores", lambda: CORES)
@unittest.mock.patch.object(programs, "binary", lambda name: "/bin/" + name)
class ResultsTest(unittest.TestCase):
    def test_what_is_written_is_read(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "results.json")
            results = schema.empty(["a"], "now", {})
            results["something later"] = 1
            schema.write(path, results)
            self.assertEqual(schema.read(path), results)
            self.assertEqual(os.listdir(folder), ["results.json"])

    def test_refuses_what_it_does_not_know(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "results.json")
            for text in ("{", "[]", '{"schema": 2}'):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                with self.assertRaises(schema.ResultsError):
                    schema.read(path)

    def test_refuses_the_record_of_another_version(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "record.json")
            for text, version in (("{}", 0), ('{"version": 2}', 2)):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                with self.assertRaisesRegex(programs.ProgramError, f"of version {version}, .* reads version 3: build"):
                    measure.read_record(path)
            with open(path, "w", encoding="utf-8") as file:
                json.dump(record(), file)
            self.assertEqual(measure.read_record(path), record())

    def test_a_run_says_whether_flags_and_seed_decide_its_bits(self):
        sampler = unittest.mock.Mock(server_seconds={}, gpu_samples=[], clocks=[])
        for deterministic in (True, False):
            trained = record()
            trained["config"]["deterministic"] = deterministic
            self.assertIs(measure.make_run(0, trained, sampler, 0.5)["deterministic"], deterministic)

    def test_a_row_for_each_run(self):
        results = schema.empty([], "", {})
        sampler = unittest.mock.Mock(server_seconds={"server 0": 1.0}, gpu_samples=[], clocks=[])
        job = matrix("--syncs=star,ring", "--workers=2").of_group("lenet5", 2, "weak")[0]
        job.configuration["runs"] = [measure.make_run(i, record(), sampler, 0.5) for i in range(3)]
        results["configurations"] = [job.configuration]
        with tempfile.TemporaryDirectory() as folder:
            schema.write_runs_csv(os.path.join(folder, "runs.csv"), results)
            with open(os.path.join(folder, "runs.csv"), encoding="utf-8") as file:
                lines = file.read().splitlines()
        self.assertEqual(len(lines), 4)
        row = dict(zip(lines[0].split(","), lines[1].split(",")))
        self.assertEqual((row["id"], row["warmup_steps"], row["cpu_percent_servers"]),
                         ("lenet5/star/2w/equal-workers/weak", "10", "25.0"))

    def test_a_run_has_the_use_of_its_gpu_while_it_trained(self):
        samples = [(1.0, 2.0, 7), (6.0, 80.0, 9), (9.0, 90.0, 9)]
        sampler = unittest.mock.Mock(server_seconds={}, gpu_samples=samples, clocks=[])
        trained = record()  # for 4 s
        self.assertIsNone(measure.make_run(0, trained, sampler, 0.5)["gpu"])
        trained["config"]["device"] = "cuda"
        self.assertEqual(measure.make_run(0, trained, sampler, 0.5)["gpu"], {"percent": 85.0, "memory_bytes": 9})


class AgreementTest(unittest.TestCase):
    def test_small_differences_agree(self):
        entry = agreement.compare("lenet5", "ddp", 2, [2.0, 1.0], [2.0, 1.00009])
        self.assertTrue(entry["agrees"])
        self.assertEqual(entry["worst_step"], 1)

    def test_what_does_not_agree(self):
        for theirs in ([2.0, 1.00011], [2.0, float("nan")], [2.0], []):
            entry = agreement.compare("lenet5", "ddp", 2, [2.0, 1.0], theirs)
            self.assertFalse(entry["agrees"], theirs)
            json.dumps(entry["worst_relative_difference"], allow_nan=False)

    def test_the_rate_is_small(self):
        self.assertEqual(agreement.rate(["--seed=1"]), agreement.RATE)
        self.assertEqual(agreement.rate(["--learning_rate=0.001", "--seed=1"]), 0.001)
        self.assertEqual(agreement.rate(["--learning_rate=0.1"]), agreement.RATE)

    def test_double_precision_decides_where_single_does_not_agree(self):
        def against(theirs):
            return agreement.compare("mlp", "ddp", 2, [2.0, 1.0], theirs)

        self.assertEqual(agreement.settle(against([2.0, 1.0]), self.fail)["peer_precision"], "single")
        settled = agreement.settle(against([2.0, 1.25]), lambda: against([2.0, 1.00001]))
        self.assertTrue(settled["agrees"])
        self.assertEqual((settled["peer_precision"], settled["single_difference"]), ("double", 0.25))
        self.assertFalse(agreement.settle(against([2.0, 1.25]), lambda: against([2.0, 1.2]))["agrees"])

    def test_a_hook_is_checked_in_single_precision_alone(self):
        ran = []

        def losses(job, _gpus, more=()):
            ran.append((job.configuration["sync"], [word for word in more if word.startswith("--precision")]))
            return [2.0, 1.0] if "--precision=double" in more or not more else [2.0, 1.5]

        made = [unittest.mock.Mock(configuration={"model": "mlp", "workers": 2, "sync": sync}, shared_flags=[])
                for sync in ("ring", "ddp", "ddp+star")]
        with unittest.mock.patch.object(agreement, "write_first_weights", return_value="weights"), \
                unittest.mock.patch.object(agreement, "_losses", losses):
            found = agreement.check(made[0], made[1:], None)
        self.assertEqual([(entry["peer"], entry["agrees"]) for entry in found], [("ddp", True), ("ddp+star", False)])
        self.assertEqual(ran[1:], [("ddp", ["--precision=single"]), ("ddp", ["--precision=double"]),
                                   ("ddp+star", ["--precision=single"])])


@unittest.mock.patch.object(machine, "cores", lambda: CORES)
@unittest.mock.patch.object(programs, "binary", lambda name: "/bin/" + name)
class MatrixTest(unittest.TestCase):
    def test_one_worker_is_one_process(self):
        found = matrix("--syncs=star,ring,mpi,ddp").of_group("lenet5", 1, "weak")
        self.assertEqual([job.configuration["sync"] for job in found], ["local", "ddp", "ddp-tuned"])

    def test_two_workers(self):
        found = {job.configuration["id"]: job for job in matrix("--syncs=star,ring,ddp").of_group("mlp", 2, "weak")}
        self.assertEqual(list(found), ["mlp/star/2w/equal-workers/weak", "mlp/ring/2w/equal-workers/weak",
                                       "mlp/star/1w/equal-cores/weak", "mlp/ddp/2w/equal-workers/weak",
                                       "mlp/ddp-tuned/2w/equal-workers/weak"])
        star = found["mlp/star/2w/equal-workers/weak"].configuration
        self.assertTrue(star["oversubscribed"])
        self.assertEqual(star["cores"], {"worker": ["0", "1"], "server": ["1", "0"]})
        fewer = found["mlp/star/1w/equal-cores/weak"].configuration
        self.assertFalse(fewer["oversubscribed"])
        self.assertEqual((fewer["cores"], fewer["global_batch"]), ({"worker": ["0"], "server": ["1"]}, 64))
        self.assertFalse(found["mlp/ddp/2w/equal-workers/weak"].configuration["oversubscribed"])
        self.assertIn("--cores=0;1", found["mlp/ddp/2w/equal-workers/weak"].configuration["command"])

    def test_strong_scaling_keeps_the_global_batch_and_measures_one_worker_once(self):
        groups = matrix("--syncs=ring,mpi", "--workers=1,2").groups()
        self.assertEqual([group[0].group[2:] for group in groups], [(1, "weak"), (2, "weak"), (2, "strong")])
        self.assertEqual(groups[1][0].configuration["global_batch"], 128)
        self.assertEqual(groups[2][0].configuration["global_batch"], 64)

    def test_a_star_without_servers_is_a_sync_of_its_own(self):
        shared, = matrix("--syncs=star-mpi-shm", torch=False).of_group("lenet5", 2, "weak")
        command = shared.commands("RECORD", 10)[0].argv
        self.assertGreater(command.index("--same_host=shared_memory"), command.index("--"))
        self.assertLess(command.index("--transport=mpi"), command.index("--"))
        found = matrix("--syncs=star-mpi,ring", torch=False).of_group("lenet5", 2, "weak")
        self.assertEqual([job.configuration["id"] for job in found],
                         ["lenet5/star-mpi/2w/equal-workers/weak", "lenet5/ring/2w/equal-workers/weak"])
        command = found[0].configuration["command"]
        self.assertEqual(command[1:3], ["--sync=star", "--transport=mpi"])
        self.assertFalse([word for word in command if word.startswith("--servers")])

    def test_every_cell_has_its_flags(self):
        found = matrix("--syncs=" + ",".join(cells.SYNCS), torch=False).of_group("lenet5", 2, "weak")
        flags = {job.configuration["sync"]: job.configuration["command"][1:job.configuration["command"].index("--")]
                 for job in found if job.configuration["accounting"] == "equal-workers"}
        self.assertEqual(set(flags), set(cells.SYNCS))
        for cell in cells.CELLS:
            self.assertEqual(flags[cell.sync][:2], [f"--sync={cell.topology}", f"--transport={cell.transport}"])
            self.assertEqual("--servers=2" in flags[cell.sync], cell.has_servers, cell.sync)
        # One worker and one server have as many cores as two workers.
        self.assertEqual([job.configuration["id"] for job in found if job.configuration["workers"] == 1],
                         ["lenet5/star-servers-tcp/1w/equal-cores/weak", "lenet5/star/1w/equal-cores/weak"])

    def test_a_hook_is_a_row_where_something_is_exchanged(self):
        built = matrix("--syncs=ddp,ddp+star,ddp+ring")
        found = {job.configuration["sync"]: job.configuration["command"] for job in built.of_group("mlp", 2, "weak")}
        self.assertEqual(list(found), ["ddp", "ddp-tuned", "ddp+star", "ddp+ring"])
        for sync, command in found.items():
            self.assertEqual("STARRING_LIBRARY=/bin/worker/python/libstarring.so" in command, sync in jobs.HOOKS, sync)
        self.assertEqual([job.configuration["sync"] for job in built.of_group("mlp", 1, "weak")], ["ddp", "ddp-tuned"])
        lab = make_lab(2)
        star = next(job for job in built.of_group("mlp", 2, "weak", lab) if job.configuration["sync"] == "ddp+star")
        self.assertEqual([command.environment["STARRING_LIBRARY"] for command in star.commands("RECORD", 10)],
                         ["/bin/worker/python/libstarring.so"] * 2)

    def test_without_torch_there_is_no_column_of_it(self):
        found = matrix("--syncs=ring,mpi,ddp", torch=False).of_group("lenet5", 2, "weak")
        self.assertEqual([job.configuration["sync"] for job in found], ["ring", "mpi"])


@unittest.mock.patch.object(machine, "cores", lambda: CORES)
@unittest.mock.patch.object(programs, "binary", lambda name: "/bin/" + name)
class HostsTest(unittest.TestCase):
    def jobs(self, syncs, where):
        return {job.configuration["id"].partition("@")[0]: job
                for job in matrix("--syncs=" + syncs).of_group("mlp", where.hosts, "weak", where)}

    def test_servers_on_hosts_of_their_own(self):
        found = self.jobs("star,ring,ddp", make_lab(4, 2))
        self.assertEqual(list(found), ["mlp/star/4w/equal-workers/weak", "mlp/star/4w/own-hosts/weak",
                                       "mlp/ring/4w/equal-workers/weak", "mlp/ddp/4w/equal-workers/weak",
                                       "mlp/ddp-tuned/4w/equal-workers/weak"])
        self.assertEqual({job.configuration["section"] for job in found.values()}, {"netlab:4+2,1gbit"})
        self.assertEqual({job.group for job in found.values()}, {("netlab:4+2,1gbit", "mlp", 4, "weak")})
        placed = {}
        for name, servers in (("equal-workers", 4), ("own-hosts", 2)):
            job = found[f"mlp/star/4w/{name}/weak"]
            self.assertEqual(job.configuration["servers"], servers)
            commands = [command.argv for command in job.commands("RECORD", 10)]
            placed[name] = [host_of(argv) for argv in commands]
            listening = [word for argv in commands for word in argv if word.startswith("--listen=")]
            addresses = next(word for word in commands[-1] if word.startswith("--servers="))
            self.assertEqual(addresses, "--servers=" + ",".join(word.partition("=")[2] for word in listening))
        self.assertEqual(placed, {"equal-workers": [0, 1, 2, 3, 0, 1, 2, 3], "own-hosts": [4, 5, 0, 1, 2, 3]})

    def test_all_others_stay_on_the_workers_hosts(self):
        found = self.jobs("star-mpi,ring,mpi,ddp,ring-tcp", make_lab(3, 2))
        for job in found.values():
            self.assertEqual(job.configuration["servers"], 0)
            for command in job.commands("RECORD", 10):
                self.assertLess(host_of(command.argv), 3)
        ring = found["mlp/ring/3w/equal-workers/weak"].commands("RECORD", 10)[0].argv
        self.assertEqual(ring[ring.index("--host") + 1], "host0:1,host1:1,host2:1")
        more = make_lab(3, 2).mpirun(["worker"], ranks=5)
        self.assertEqual(more[more.index("--host") + 1], "host0:2,host1:2,host2:1")

    def test_ranks_of_several_hosts_share_no_memory(self):
        self.assertEqual(list(self.jobs("ring,star-mpi-shm", make_lab(3))), ["mlp/ring/3w/equal-workers/weak"])

    def test_without_further_hosts_there_is_one_star(self):
        where = make_lab(4)
        found = self.jobs("star", where)
        self.assertEqual(list(found), ["mlp/star/4w/equal-workers/weak"])
        self.assertEqual(where.section, "netlab:4,1gbit")
        with self.assertRaises(netlab.NetlabError):
            where.star_commands([], [], "SECRET", own_hosts=True)

    def test_more_servers_than_hosts_share_them(self):
        starts, _ = make_lab(2, 2).star_commands(["server"], ["worker"], "SECRET", servers=5, own_hosts=True)
        self.assertEqual([host_of(argv) for argv in starts], [2, 3, 2, 3, 2])
        listening = [word for argv in starts for word in argv if word.startswith("--listen=")]
        self.assertEqual(len(set(listening)), 5)
        self.assertEqual(listening[2], "--listen=10.77.0.3:7078")

    def test_ranks_without_mpirun(self):
        job = self.jobs("ring-tcp,star-tcp", make_lab(3))["mlp/star-tcp/3w/equal-workers/weak"]
        for rank, command in enumerate(job.commands("RECORD", 10)):
            self.assertEqual(host_of(command.argv), rank)
            for flag in ("--sync=star", "--transport=tcp", "--rendezvous=10.77.0.1:7079", f"--rank={rank}",
                         "--world_size=3", "--job_secret=SECRET"):
                self.assertIn(flag, command.argv)

    def test_a_lab_has_at_most_200_hosts(self):
        for hosts, server_hosts in ((0, 4), (150, 51), (4, -1)):
            with self.assertRaises(netlab.NetlabError):
                netlab.Netlab(hosts, "1gbit", server_hosts)
        self.assertEqual(len(netlab.Netlab(150, "1gbit", 50).addresses), 200)


class BlasTest(unittest.TestCase):
    def test_openblas_is_told_what_it_does_not_know(self):
        skylake = ["sse", "avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"]
        self.assertEqual(programs.known_blas_core("Prescott", skylake), "SkylakeX")
        self.assertEqual(programs.known_blas_core("Generic", ["avx2", "fma", "avx512f"]), "Haswell")
        self.assertIsNone(programs.known_blas_core("Prescott", ["sse3"]))
        for known in ("", "Haswell", "Zen", "Cooperlake"):
            self.assertIsNone(programs.known_blas_core(known, skylake))


@unittest.mock.patch.object(machine, "cores", lambda: CORES)
@unittest.mock.patch.object(programs, "binary", lambda name: "/bin/" + name)
class PeerSettingsTest(unittest.TestCase):
    """The sweep with a program that is not there, which finds what the test says."""

    def settings(self, syncs, *flags, best=None, gpu=False):
        self.ran = []

        def run(argv, environment=None, seconds_max=0):
            self.ran.append((argv, environment))
            if best is None:
                raise programs.ProgramError("train ended with 1:\nboom")
            path = next(word.partition("=")[2] for word in argv if word.startswith("--sweep="))
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"settings": best, "step_ms": 1.0, "tried": [{"settings": best, "step_ms": 1.0}]}, file)
            return ""

        device = device_choice.Device("cuda", 2) if gpu else jobs.CPU
        torch = programs.Torch("python3", "2.1")
        self.peer = peer_settings.PeerSettings(parse(*flags), torch, device, lambda text: None)
        with unittest.mock.patch.object(programs, "run", run):
            return [self.peer("mlp", sync, 2) for sync in syncs]

    def test_a_hook_has_the_settings_of_the_tuned_one_and_its_own_buckets(self):
        tuned, star, again = self.settings(["ddp-tuned", "ddp+star", "ddp+star"], best={"bucket_cap_mb": 4.0})
        self.assertEqual(star, {**tuned, "hook": "star"})
        self.assertIs(star, again)
        self.assertEqual(len(self.ran), 2)
        argv, environment = self.ran[1]
        self.assertIn("--hook=star", argv)
        self.assertIn("--bucket_cap_mb=4.0", argv)  # where its sweep begins
        self.assertIn("STARRING_LIBRARY", environment)
        self.assertNotIn("STARRING_LIBRARY", self.ran[0][1])
        self.assertTrue(self.peer.notes[1].startswith("mlp, 2 workers, ddp+star: settings tried"), self.peer.notes)

    def test_without_a_sweep(self):
        star, ring = self.settings(["ddp+star", "ddp+ring"], "--sweep=false")
        self.assertEqual((star.pop("hook"), ring.pop("hook")), ("star", "ring"))
        self.assertEqual((star, ring), (jobs.tuned(jobs.CPU),) * 2)
        self.assertEqual(self.ran, [])

    def test_a_sweep_that_fails_is_noted(self):
        star, = self.settings(["ddp+star"])
        self.assertEqual(star, {**jobs.tuned(jobs.CPU), "hook": "star"})
        self.assertEqual([failure.partition(": ")[0] for failure in self.peer.failures],
                         ["no sweep of PyTorch's settings for mlp, 2 workers, ddp-tuned",
                          "no sweep of PyTorch's settings for mlp, 2 workers, ddp+star"])

    def test_a_hook_captures_no_graph(self):
        star, = self.settings(["ddp+star"], "--sweep=false", gpu=True)
        self.assertNotIn("cuda_graph", star)
        self.assertIn("cudnn_benchmark", star)


class OptionsTest(unittest.TestCase):
    def test_ddp_brings_the_tuned_one(self):
        self.assertEqual(parse("--syncs=star,ddp").syncs, ["star", "ddp", "ddp-tuned"])

    def test_several_models_and_hosts(self):
        found = parse("--model=mlp,lenet5", "--hosts=netlab:4,1gbit")
        self.assertEqual((found.models, found.hosts), (["mlp", "lenet5"], (4, 0, "1gbit")))
        self.assertEqual(parse("--hosts=netlab:4+2,200mbit").hosts, options.Hosts(4, 2, "200mbit"))

    def test_the_repeats_are_enough_for_a_verdict(self):
        self.assertEqual(parse().repeats, ratios.REPEATS_MIN)
        self.assertLess(options.QUICK["repeats"], ratios.REPEATS_MIN)

    def test_quick_yields_to_what_is_given(self):
        found = parse("--quick", "--repeats=3")
        self.assertEqual((found.repeats, found.steps), (3, options.QUICK["steps"]))

    def test_refuses_nonsense(self):
        for flag in ("--syncs=moon", "--workers=0", "--workers=x", "--model=vgg", "--hosts=four",
                     "--hosts=netlab:4+,1gbit", "--hosts=netlab:+4,1gbit", "--mod=lenet5"):
            with self.assertRaises(SystemExit) as refused, unittest.mock.patch("sys.stderr"):
                parse(flag)
            self.assertEqual(refused.exception.code, 2, flag)


class RecordTest(unittest.TestCase):
    def test_samples_of_a_step_count_the_last_batch(self):
        self.assertEqual(measure.samples_per_step(record(steps=10, batch=64, train_count=1000)), 64)
        self.assertEqual(measure.samples_per_step(record(steps=32, batch=64, train_count=1000)), 1000 / 16)

    def test_slowest_worker(self):
        self.assertAlmostEqual(measure.slowest_worker_ratio(record()), 1.5)
        self.assertIsNone(measure.slowest_worker_ratio({"workers": [{"compute_ms": 1.0}]}))

    def test_time_to_what_all_reach(self):
        entries = [{"model": "mlp", "epochs": training.epochs_of(record())} for _ in range(2)]
        entries[1]["epochs"][1]["test_accuracy"] = 0.76
        training.set_targets(entries, 0)
        self.assertEqual([entry["target_accuracy"] for entry in entries], [0.76, 0.76])
        self.assertEqual(entries[0]["seconds_to_target"], 4.0)
        training.set_targets(entries, 0.79)
        self.assertEqual([entry["seconds_to_target"] for entry in entries], [4.0, None])

    def test_time_to_an_error_that_all_reach(self):
        of_numbers = record()
        of_numbers["test"] = {"loss": "mse"}
        entries = [{"model": "mlp", "epochs": training.epochs_of(of_numbers)} for _ in range(2)]
        self.assertEqual([epoch["test_rmse"] for epoch in entries[0]["epochs"]], [0.9, 0.5])
        entries[1]["epochs"][0]["test_rmse"], entries[1]["epochs"][1]["test_rmse"] = 0.65432, 0.7
        training.set_targets(entries, 0.79)  # an accuracy
        self.assertEqual([entry["target_rmse"] for entry in entries], [0.655, 0.655])
        self.assertEqual([entry["seconds_to_target"] for entry in entries], [4.0, 2.0])
        for value, rounded in ((0.0, 0.0), (1.0, 1.0), (123.4, 124.0), (0.001234, 0.00124), (float("inf"),) * 2):
            self.assertEqual(training._rounded_up(value), rounded)
        of_numbers["epochs"][1]["test_loss"] = "NaN"
        entries = [{"model": "mlp", "epochs": training.epochs_of(of_numbers)}]
        training.set_targets(entries, 0)
        self.assertEqual(entries[0]["seconds_to_target"], 2.0)

    def test_losses_are_thinned_by_means(self):
        losses = [{"step": i, "seconds": i / 10, "loss": float(i)} for i in range(10)]
        self.assertEqual(training.thinned(losses, 4), [{"step": 2, "seconds": 0.2, "loss": 1.0},
                                                       {"step": 5, "seconds": 0.5, "loss": 4.0},
                                                       {"step": 8, "seconds": 0.8, "loss": 7.0},
                                                       {"step": 9, "seconds": 0.9, "loss": 9.0}])

    def test_rows_of_benchmarks(self):
        self.assertEqual(alone.rows('what bytes\n{"bytes": 1}\n\n{"bytes": 2}\n'), [{"bytes": 1}, {"bytes": 2}])

    def test_the_tightest_quota_of_a_group_and_those_above_it_counts(self):
        with tempfile.TemporaryDirectory() as root:
            def write(path, text):
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)

            self.assertIsNone(machine.cpu_quota(root))
            write("proc/self/cgroup", "4:cpu,cpuacct:/job/step\n2:memory:/job\n0::/slice/job\n")
            write("sys/fs/cgroup/slice/job/cpu.max", "max 100000\n")
            write("sys/fs/cgroup/cpu/job/step/cpu.cfs_quota_us", "-1\n")
            write("sys/fs/cgroup/cpu/job/step/cpu.cfs_period_us", "100000\n")
            self.assertIsNone(machine.cpu_quota(root))
            write("sys/fs/cgroup/slice/cpu.max", "400000 100000\n")
            self.assertEqual(machine.cpu_quota(root), 4.0)
            write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "25000\n")
            write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "50000\n")
            self.assertEqual(machine.cpu_quota(root), 0.5)

    def test_no_driver_is_no_gpu(self):
        gpus = machine.Gpus("libno-such-library.so")
        self.assertEqual((gpus.name(), gpus.sample(1)), (None, None))


class LaboratoryTest(unittest.TestCase):
    """Measures with jobs that fail in the given calls of run_job, counted from 0 for each job."""

    def measure(self, failing):
        calls, said = {}, []

        def run_job(job, _steps, _gpus):
            call = calls[job.name] = calls.get(job.name, -1) + 1
            if call in failing.get(job.name, ()):
                raise programs.ProgramError(f"{job.name} ended with [1]:\ndetails")
            versions = {"host": {"versions": {}, "device": "cpu"}}
            return {**record(), **versions}, unittest.mock.Mock(server_seconds={}, gpu_samples=[], clocks=[])

        jobs_of_group = [unittest.mock.Mock(configuration={"id": name, "runs": []}) for name in ("star", "ddp")]
        for job in jobs_of_group:
            job.name = job.configuration["id"]
        laboratory = measure.Laboratory(parse("--repeats=3"), None, said.append)
        self.assertEqual(laboratory.expect([jobs_of_group]), 8)
        with unittest.mock.patch.object(measure, "run_job", run_job):
            measured = laboratory.measure(jobs_of_group)
        # Each line says how many runs are left; none are in the end, whatever has failed.
        left = [int(line.rpartition("runs left: ")[2]) for line in said if "runs left: " in line]
        self.assertEqual(left, sorted(left, reverse=True))
        self.assertEqual(left[-1], 0)
        for job in jobs_of_group:
            self.assertEqual(bool(job.configuration["runs"]), job in measured, job.name)
        return {job.name: [run["repeat"] for run in job.configuration["runs"]] for job in measured}, laboratory.failures

    def test_all_well(self):
        self.assertEqual(self.measure({}), ({"star": [0, 1, 2], "ddp": [0, 1, 2]}, []))

    def test_jobs_take_turns_and_every_second_repeat_is_reversed(self):
        ran = []

        def run_job(job, _steps, _gpus):
            ran.append(job.configuration["id"])
            return ({**record(), "host": {"versions": {}, "device": "cpu"}},
                    unittest.mock.Mock(server_seconds={}, gpu_samples=[], clocks=[]))

        group = [unittest.mock.Mock(configuration={"id": name, "runs": []}) for name in "abc"]
        with unittest.mock.patch.object(measure, "run_job", run_job):
            measure.Laboratory(parse("--repeats=4", "--steps=10"), None, lambda _: None).measure(group)
        self.assertEqual("".join(ran), "abc" + "abc" + "cba" + "abc" + "cba")  # the first three calibrate
        for job in group:
            self.assertEqual([run["repeat"] for run in job.configuration["runs"]], [0, 1, 2, 3])

    def test_one_failure_is_noted_and_the_run_repeated(self):
        runs, failures = self.measure({"ddp": [0, 3]})
        self.assertEqual(runs, {"star": [0, 1, 2], "ddp": [0, 1, 2]})
        self.assertEqual(failures, ["ddp ended with [1]: it was run again (details)"] * 2)

    def test_a_job_that_fails_twice_takes_no_other_with_it(self):
        for failing in ([0, 1], [2, 3]):
            runs, failures = self.measure({"ddp": failing})
            self.assertEqual(runs, {"star": [0, 1, 2]})
            self.assertEqual(failures[-1], "ddp ended with [1]: it failed twice and is left out (details)")


if __name__ == "__main__":
    unittest.main()
