"""Tests the exchange alone and the buckets, with programs that are not there."""

import json
import unittest
import unittest.mock

import alone
import buckets
import machine
import measure
import programs
from made_results import make_lab

CORES = [0, 1]


@unittest.mock.patch.object(machine, "cores", lambda: CORES)
@unittest.mock.patch.object(programs, "binary", lambda name: "/bin/" + name)
class AloneTest(unittest.TestCase):
    """Measures the exchange alone with programs that are not there."""

    def exchanges(self, syncs, pythons=(), failing=(), where=None):
        """The rows, and the commands that ran. `pythons` are the modules that a python3 has."""
        ran = []

        def run(argv, _environment=None, seconds_max=0):
            ran.append(argv)
            name = next((word for word in argv if word.startswith("/bin/bench/")), "")
            if any(word in name for word in failing):
                raise programs.ProgramError(f"{name} ended with 1:\nboom")
            library = next((word.partition("=")[2] for word in argv if word.startswith("--library=")), None)
            asked = next((word.partition("=")[2].split(",") for word in argv if word.startswith("--syncs=")),
                         ["library", "ring", "star-mpi", "mpi"])
            names = ([library] if library else
                     ["star-servers-tcp" if "--transport=tcp" in argv else "star"] if "star_bench" in name else asked)
            return "".join(json.dumps({"sync": sync, "workers": 2, "bytes": 4096, "latency_us": 1.0,
                                       "bus_gb_per_s": 1.0}) + "\n" for sync in names)

        def find_python(modules):
            return "python3" if all(module.partition(".")[0] in pythons for module in modules) else None

        torch = programs.Torch("python3", "1.13") if "torch" in pythons else None
        with unittest.mock.patch.object(programs, "run", run), \
                unittest.mock.patch.object(programs, "find_python", find_python), \
                unittest.mock.patch.object(alone.subprocess, "Popen"):
            found, missing, failures = alone.exchanges(syncs, 2, 0, torch, [4096], where)
        return [row["sync"] for row in found], {row["sync"]: row["reason"] for row in missing}, failures, ran, found

    def test_all(self):
        names, missing, failures, ran, _ = self.exchanges(["star", "star-mpi", "ring", "mpi", "ddp"],
                                                          ["numpy", "mpi4py", "torch", "horovod"])
        self.assertEqual(names, ["star", "ring", "star-mpi", "mpi", "mpi4py", "gloo", "horovod"])
        self.assertEqual((missing, failures), ({}, []))
        self.assertEqual(sum(argv[0] == "mpirun" for argv in ran), 3)

    def test_hooks_are_measured_beside_gloo(self):
        names, missing, failures, ran, _ = self.exchanges(["ddp", "ddp+star", "ddp+ring"], ["torch", "horovod"])
        self.assertEqual(names, ["gloo", "ddp+star", "ddp+ring", "horovod"])
        self.assertEqual((missing, failures), ({}, []))
        self.assertIn("--syncs=gloo,ddp+star,ddp+ring", ran[0])
        self.assertEqual(self.exchanges(["ddp+star"], ["torch", "horovod"])[0], ["gloo", "ddp+star", "horovod"])
        self.assertEqual(set(self.exchanges(["ddp", "ddp+star"], [])[1]), {"gloo", "ddp+star", "horovod"})

    def test_what_was_not_asked_for_is_left_out(self):
        names, missing, _, ran, _ = self.exchanges(["ring"], ["numpy", "mpi4py", "torch", "horovod"])
        self.assertEqual((names, missing, len(ran)), (["ring"], {}, 1))

    def test_what_is_not_here_has_a_reason_and_is_no_failure(self):
        names, missing, failures, _, _ = self.exchanges(["mpi", "ddp"], [])
        self.assertEqual(names, ["mpi"])
        self.assertEqual(set(missing), {"mpi4py", "gloo", "horovod"})
        self.assertIn("apt-get install python3-mpi4py", missing["mpi4py"])
        self.assertIn(programs.HOW_TO_GET_TORCH, missing["gloo"])
        self.assertEqual(failures, [])

    def test_servers_over_tcp_meet_the_workers(self):
        names, missing, _, ran, _ = self.exchanges(["star", "star-servers-tcp"])
        self.assertEqual((names, missing, len(ran)), (["star", "star-servers-tcp"], {}, 2))
        self.assertIn("--transport=tcp", ran[1])

    def test_ranks_over_tcp_meet_at_an_address_that_all_reach(self):
        for where, address in ((None, "127.0.0.1:0"), (make_lab(2), "10.77.0.1:0")):
            names, missing, _, ran, _ = self.exchanges(["ring", "ring-tcp", "star-tcp"], where=where)
            self.assertEqual((names, missing, len(ran)), (["ring", "ring-tcp", "star-tcp"], {}, 1))
            self.assertIn("--syncs=ring,ring-tcp,star-tcp", ran[0])
            self.assertIn("--rendezvous=" + address, ran[0])
        self.assertFalse([word for word in self.exchanges(["ring"])[3][0] if word.startswith("--rendezvous")])

    def test_ranks_share_memory_on_one_machine_only(self):
        names, _, _, ran, _ = self.exchanges(["ring", "star-mpi-shm"])
        self.assertEqual(names, ["ring", "star-mpi-shm"])
        self.assertIn("--syncs=ring,star-mpi-shm", ran[0])
        self.assertEqual(self.exchanges(["ring", "star-mpi-shm"], where=make_lab(2))[0], ["ring"])

    def test_a_failure_leaves_the_other_rows(self):
        names, missing, failures, _, _ = self.exchanges(["star", "ring", "mpi", "ddp"], ["torch"], ["ring_bench"])
        self.assertEqual(names, ["star", "gloo"])
        self.assertEqual(set(missing), {"ring", "mpi", "mpi4py", "horovod"})
        self.assertEqual(missing["ring"], "/bin/bench/ring_bench ended with 1:")
        self.assertEqual(len(failures), 1)

    def test_a_star_on_hosts_of_its_own_is_a_row_of_its_own(self):
        _, _, _, ran, found = self.exchanges(["star", "ring"], where=make_lab(2, 3))
        addresses = [word for argv in ran for word in argv if word.startswith("--addresses=")]
        self.assertEqual(addresses, ["--addresses=10.77.0.1:7077,10.77.0.2:7077",
                                     "--addresses=10.77.0.3:7077,10.77.0.4:7077,10.77.0.5:7077"])
        self.assertEqual([(row["sync"], row["servers"], row["section"]) for row in found],
                         [("star", 2, "netlab:2+3,1gbit"), (alone.OWN_HOSTS, 3, "netlab:2+3,1gbit"),
                          ("ring", 0, "netlab:2+3,1gbit")])
        stars = [argv for argv in ran if "/bin/bench/star_bench" in argv]
        for servers, bucket in ((2, 256 << 10), (3, 384 << 10)):  # as the worker's by default
            self.assertTrue(any({f"--servers={servers}", f"--bucket_bytes={bucket}"} <= set(argv) for argv in stars))


class BucketsTest(unittest.TestCase):
    def test_ours_are_full_but_the_first(self):
        self.assertEqual(buckets.of_vector(1000, 256), [232, 256, 256, 256])
        self.assertEqual(buckets.of_vector(1024, 256), [256] * 4)
        self.assertEqual(buckets.of_vector(100, 256), [100])
        self.assertEqual(buckets.of_vector(0, 256), [])

    def test_rows_from_two_records(self):
        configurations = [{"sync": sync, "model": "mlp", "workers": 2} for sync in ("ring", "ddp")]
        ours = {"config": {"bucket_bytes": 524288}}  # rounded up from the 256 KiB that were asked for
        theirs = {"host": {"versions": {"buckets": "4239400,3215360", "parameter_bytes": "1200000"}}}
        one, other = buckets.entries(configurations, ours, theirs)
        self.assertEqual((one["sync"], one["sizes"]), ("ring", [151424, 524288, 524288]))
        self.assertEqual((other["sync"], other["sizes"]), ("ddp", [4239400, 3215360]))
        self.assertEqual({one["asked_bytes"], other["asked_bytes"]}, {buckets.ASKED_BYTES})
        # DDP's own limit for the first bucket is 1 MiB: only below it can that be seen.
        self.assertLess(buckets.ASKED_BYTES, 1 << 20)

    def test_a_version_that_tells_nothing_makes_no_rows(self):
        self.assertEqual(buckets.entries([{}, {}], {"config": {"bucket_bytes": 1}}, {"host": {"versions": {}}}), [])

    def test_both_are_asked_for_the_same(self):
        asked = []

        def run_job(job, steps, _gpus, more):
            asked.append((job, steps, more))
            return {"config": {"bucket_bytes": 1}, "host": {"versions": {}}}, None

        with unittest.mock.patch.object(measure, "run_job", run_job):
            ours, theirs = unittest.mock.Mock(), unittest.mock.Mock()
            self.assertEqual(buckets.ask(ours, theirs, None), [])
        self.assertEqual([one[2] for one in asked], [["--bucket_bytes=262144"], ["--bucket_cap_mb=0.25"]])
        self.assertEqual([one[0] for one in asked], [ours, theirs])


if __name__ == "__main__":
    unittest.main()
