"""Runs every example of worker/python/learn with 2 or 3 processes, and checks what it prints."""

import ast
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

LEARN = os.path.abspath("worker/python/learn")
PACKAGES = os.path.abspath("worker/python")  # the folder of the package starring, and of libstarring.so
LAUNCH = os.path.abspath("deploy/launch")
LINES_MAX = 30
SECONDS_MAX = 120  # for one example, on a loaded machine

SEND_RECV = ["rank 0 received 6.0", "rank 1 received 1.0 2.0 3.0"]
COLLECTIVES = [f"rank {rank} {text}" for rank in range(3)
               for text in ("after", "all_reduce 6.0", "before", "broadcast 7.0")]
PARAMETER_SERVER = [f"worker {worker} step {step} w {w}" for worker in (1, 2) for step, w in enumerate((9.25, 8.5))]
RING = [f"rank {rank} has 6.0 60.0 600.0" for rank in range(3)]
DDP = [f"rank {rank} step {step} gradient 1.5 w {w}" for rank in (0, 1) for step, w in enumerate((9.25, 8.5))]

# Processes and sorted lines of output, by file. starring_programs.py has a test of its own.
EXAMPLES = {
    "sockets_send_recv.py": (2, SEND_RECV), "sockets_collectives.py": (3, COLLECTIVES),
    "sockets_parameter_server.py": (3, PARAMETER_SERVER), "sockets_ring.py": (3, RING),
    "mpi_send_recv.py": (2, SEND_RECV), "mpi_collectives.py": (3, COLLECTIVES),
    "mpi_parameter_server.py": (3, PARAMETER_SERVER), "mpi_ring.py": (3, RING),
    "gloo_send_recv.py": (2, SEND_RECV), "gloo_collectives.py": (3, COLLECTIVES),
    "gloo_parameter_server.py": (3, PARAMETER_SERVER), "gloo_ring.py": (3, RING), "gloo_ddp.py": (2, DDP),
    "starring_collectives.py": (3, COLLECTIVES), "starring_ring.py": (3, RING), "starring_ddp.py": (2, DDP),
}
NEEDS = {"sockets": [], "mpi": ["mpi4py", "numpy"], "gloo": ["torch"], "starring": ["torch"]}


def read(name):
    with open(os.path.join(LEARN, name), encoding="utf-8") as file:
        return file.read()


def family(name):
    return name.partition("_")[0]


class LearnTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def need(self, name):
        missing = [package for package in NEEDS[family(name)] if importlib.util.find_spec(package) is None]
        if family(name) == "mpi" and shutil.which("mpirun") is None:
            missing.append("mpirun")
        if missing:
            self.skipTest(f"{name} needs {' and '.join(missing)}")

    def run_to_end(self, name, *command):
        """The lines that a command prints. It must end with 0, in time; what it leaves behind is ended."""
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
        # One thread a process: the machine may have fewer cores than there are processes.
        environment.update(PYTHONPATH=PACKAGES, OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
        with tempfile.TemporaryFile("w+", dir=self.folder) as errors:
            process = subprocess.Popen(command, env=environment, cwd=self.folder, text=True, stdout=subprocess.PIPE,
                                       stderr=errors, start_new_session=True)
            try:
                output, _ = process.communicate(timeout=SECONDS_MAX)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
            errors.seek(0)
            self.assertEqual(process.returncode, 0, f"{name}:\n{output}{errors.read()}")
        return output.splitlines()

    def run_example(self, name, path=None):
        count, expected = EXAMPLES[name]
        path = path or os.path.join(LEARN, name)
        start = {"sockets": [sys.executable], "mpi": ["mpirun", "--oversubscribe", "-np", str(count), sys.executable],
                 "gloo": [sys.executable, os.path.join(LEARN, "start.py"), str(count)]}
        lines = self.run_to_end(name, *start.get(family(name), start["gloo"]), path)
        self.assertEqual(sorted(lines), expected)
        if expected == COLLECTIVES and family(name) != "mpi":  # mpirun mixes the ranks' lines as it likes
            last_before = max(i for i, line in enumerate(lines) if line.endswith("before"))
            self.assertLess(last_before, min(i for i, line in enumerate(lines) if line.endswith("after")), lines)

    def test_examples(self):
        for name in EXAMPLES:
            with self.subTest(name):
                self.need(name)
                self.run_example(name)

    def test_a_word_makes_a_ring_of_the_star(self):
        self.need("starring_ddp.py")
        self.assertIn('sync="star"', read("starring_ddp.py"))
        path = os.path.join(self.folder, "ring.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(read("starring_ddp.py").replace('sync="star"', 'sync="ring"'))
        self.run_example("starring_ddp.py", path)

    def test_servers_make_the_star_one_with_parameter_servers(self):
        self.need("starring_ddp.py")
        lines = self.run_to_end("starring_ddp.py", sys.executable, "-m", "starring.servers", "--servers=1", "--",
                                sys.executable, os.path.join(LEARN, "start.py"), "2",
                                os.path.join(LEARN, "starring_ddp.py"))
        self.assertEqual(sorted(lines), DDP)

    def test_two_lines_make_a_star_of_ddp(self):
        def code(name):
            return read(name).split('"""\n', maxsplit=1)[1].splitlines()

        added = [line for line in code("starring_ddp.py") if line not in code("gloo_ddp.py")]
        self.assertEqual(added, ["import starring.torch", 'starring.torch.attach(model, sync="star")'])
        self.assertEqual([line for line in code("starring_ddp.py") if line not in added], code("gloo_ddp.py"))

    def test_programs(self):
        lines = self.run_to_end("starring_programs.py", sys.executable, os.path.join(LEARN, "starring_programs.py"),
                                LAUNCH)
        self.assertEqual([line.split()[0] for line in lines], ["--sync=star", "--sync=ring"])
        self.assertRegex(lines[0], r" [0-9a-f]{64}$")
        self.assertEqual(lines[0].split()[1], lines[1].split()[1])

    def test_start_ends_the_others_when_one_fails(self):
        path = os.path.join(self.folder, "fails.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write("import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(3600)\n")
        done = subprocess.run([sys.executable, os.path.join(LEARN, "start.py"), "2", path], timeout=SECONDS_MAX,
                              check=False)
        self.assertEqual(done.returncode, 7)
        with open(path, "w", encoding="utf-8") as file:
            file.write("import os, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\ntime.sleep(3600)\n")
        done = subprocess.run([sys.executable, os.path.join(LEARN, "start.py"), "2", path], timeout=SECONDS_MAX,
                              check=False)
        self.assertEqual(done.returncode, 128 + 9)

    def test_every_example_is_short_and_on_the_page(self):
        names = {name for name in os.listdir(LEARN) if name.endswith(".py")}
        self.assertEqual(names, {*EXAMPLES, "start.py", "starring_programs.py"})
        page = read("README.md")
        for name in names:
            text = read(name)
            self.assertLessEqual(len(text.splitlines()), LINES_MAX, name)
            self.assertIn(f"({name})", page)
            doc = ast.get_docstring(ast.parse(text)) or ""
            if name != "start.py":
                self.assertIn("Check by hand: ", doc.replace("Check\nby hand", "Check by hand"), name)
            start = re.search(r"^Start: (.*)$", doc, re.MULTILINE)
            if name in EXAMPLES and start is not None:
                self.assertIn(f" {EXAMPLES[name][0]} ", start[1], name)
                self.assertTrue(start[1].endswith(f" {name}"), name)


if __name__ == "__main__":
    unittest.main()
