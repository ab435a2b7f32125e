"""Ties what the planner knows of our programs to their sources: texts, limits, and how vectors are cut."""

import os
import re
import unittest
import unittest.mock

import growth_runs
import plan
import planning
import programs
import sync_cells as cells
import workload


def read(path):
    with open(os.path.join(programs.ROOT, path), encoding="utf-8") as file:
        return file.read()


def constant(path, name):
    """The value of `constexpr int name = 4 << 10;`."""
    (number, shift), = re.findall(rf"constexpr \w+ {name} = (\d+)(?: << (\d+))?;", read(path))
    return int(number) << int(shift or 0)


class SourcesTest(unittest.TestCase):
    def test_the_worker_says_how_many_parameters_a_model_has(self):
        main = read("worker/main.cc")
        line, = re.findall(r'printf\("(.*%lld parameters.*)\\n"', main)
        self.assertEqual(re.search(plan.PARAMETERS, line.replace("%lld", "42"))[1], "42")
        # It goes to standard output, which programs.run returns, but not with --progress=none.
        self.assertTrue(f'std::printf("{line}' in main)
        self.assertTrue("if (style != Progress::Style::kNone) PrintHead(" in main)
        with unittest.mock.patch.object(programs, "run", side_effect=programs.ProgramError) as run, \
                unittest.mock.patch.object(programs, "binary", lambda name: name), \
                self.assertRaises(programs.ProgramError):
            plan.model_facts("mlp", "fashion-mnist", 64, 1)
        style, = re.findall(r"--progress=(\w+)", " ".join(run.call_args[0][0]))
        self.assertTrue(f'{{"{style}", ProgressStyle::k{style.capitalize()}}}' in
                        read("worker/options/worker_options.h"))
        self.assertNotEqual(style, "none")

    def test_limits(self):
        self.assertEqual(planning.SERVERS_MAX, constant("common/base/limits.h", "kShardCountMax"))
        self.assertEqual(planning.RANKS_MAX, constant("common/base/limits.h", "kWorldSizeMax"))

    def test_blocks(self):
        order = "common/arithmetic/reduction_order.h"
        self.assertEqual(workload.MESSAGE_BYTES, constant(order, "kChunkBytesMax"))
        self.assertEqual(workload.CHUNK_BYTES_MIN, constant(order, "kChunkBytesMin"))
        self.assertIn(f"if (world_size <= {workload.SMALL_WORLD}) return kChunkBytesMax;", read(order))
        self.assertEqual(workload.SLICE_BYTES_MIN, constant("common/reduce/owner_map.h", "kSliceBytesMin"))

    def test_default_buckets(self):
        options = read("worker/options/worker_options.cc")
        found = re.search(r"return shares \? (\d+) << 20 : (\d+) << 20;", options)
        self.assertEqual([workload.SHARED_BUCKET_BYTES, workload.BUCKET_BYTES],
                         [int(one) << 20 for one in found.groups()])
        found = re.search(r"std::min<int64_t>\(int64_t\{options.ServerCount\(\)\} << (\d+), 1 << (\d+)\);", options)
        self.assertEqual([cells.bucket_bytes_between_hosts(1), cells.bucket_bytes_between_hosts(256)],
                         [1 << int(one) for one in found.groups()])

    def test_stars_without_servers_are_measured_as_they_are_by_default(self):
        self.assertTrue("has_servers ? SameHost::kSharedMemory : SameHost::kSocket" in
                        read("worker/options/worker_options.cc"))
        with unittest.mock.patch.object(programs, "binary", lambda name: name):
            command = growth_runs.Run(("star-mpi",), "memory", 2, 0, (4096,)).command()
        self.assertIn("--syncs=star-mpi", command)


if __name__ == "__main__":
    unittest.main()
