"""Where the programs of a comparison are: ours, and a python3 with PyTorch."""

import json
import os
import re
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
PYTHONS = ("python3", "/usr/bin/python3")
HOW_TO_GET_TORCH = "apt-get install python3-torch libopenblas0-pthread"
# Threads that spin while they wait, or that nobody asked for, would spoil a measurement on pinned cores.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class ProgramError(Exception):
    """A program is missing, or ended badly; the message says which and shows what it printed."""


def binary(name):
    """deploy/launch, bench/ring_bench ...: beside this program as Bazel lays it out, or in bazel-bin."""
    for folder in (os.environ.get("STARRING_BINARIES", ""), os.getcwd(), os.path.join(ROOT, "bazel-bin")):
        path = os.path.join(folder, name)
        if folder and os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.realpath(path)
    raise ProgramError(f"no {name}: bazel build //{name.replace('/', ':')}")


def peer(name):
    return os.path.join(ROOT, "bench/ddp", name + ".py")


def find_python(modules):
    """The first of the usual python3 that has all `modules`, or None."""
    for python in PYTHONS:
        try:
            done = subprocess.run([python, "-c", "import " + ", ".join(modules)], capture_output=True, check=False)
        except OSError:
            continue
        if done.returncode == 0:
            return python
    return None


class Torch:
    """A python3 with PyTorch, and what it is."""

    def __init__(self, python, version, backend):
        self.python, self.version, self.backend = python, version, backend

    @staticmethod
    def find():
        python = find_python(("numpy", "torch.distributed"))
        if python is None:
            return None
        script = ("import torch, json; c = torch.__config__.show(); print(json.dumps([torch.__version__, ' + '.join("
                  "x for x in ('MKL', 'OpenBLAS', 'oneDNN') if x.lower() in c.lower() or "
                  "(x == 'oneDNN' and torch.backends.mkldnn.is_available()))]))")
        version, libraries = json.loads(run([python, "-c", script]))
        return Torch(python, version, "gloo, cpu" + (f" ({libraries})" if libraries else ""))


def library_versions():
    """Of what our programs are linked with, as the system's packages and programs tell; without those that do not."""
    found = {}
    for name, argv, pattern in (("mpi", ["mpirun", "--version"], r"\((.*)\) ([\d.]+)"),
                                ("grpc", ["pkg-config", "--modversion", "grpc++"], r"()([\d.]+)"),
                                ("grpc", ["dpkg-query", "-W", "-f=${Version}", "libgrpc++1.51"], r"()([\d.]+)")):
        try:
            text = run(argv, {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}, seconds_max=20)
        except (OSError, ProgramError):
            continue
        match = re.search(pattern, text)
        if match and name not in found:
            found[name] = f"{match[1]} {match[2]}".strip()
    return found


def run(argv, environment=None, seconds_max=600):
    """Its standard output; ProgramError with both outputs if it fails."""
    try:
        done = subprocess.run(argv, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL, text=True,
                              capture_output=True, timeout=seconds_max, check=False)
    except subprocess.TimeoutExpired as error:
        raise ProgramError(f"{' '.join(argv)} has not ended after {seconds_max} s") from error
    if done.returncode != 0:
        raise ProgramError(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout
