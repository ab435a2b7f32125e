"""Finds and runs the programs of a comparison: ours, and a python3 with PyTorch."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
from collections.abc import Sequence

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
PYTHONS = ("python3", "/usr/bin/python3")
HOW_TO_GET_TORCH = "apt-get install python3-torch libopenblas0-pthread"
# By default these libraries start one thread per core and spin while they wait, which spoils times on pinned cores.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# Root may call mpirun, and ranks may be more than cores.
MPI_ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                   "OMPI_MCA_rmaps_base_oversubscribe": "1"}


class ProgramError(Exception):
    """A program is missing or failed. The message names it and has its output."""


def binary(name: str) -> str:
    """The path of deploy/launch, bench/ring_bench ...: in the runfiles of `bazel run`, or in bazel-bin."""
    for folder in (os.environ.get("STARRING_BINARIES", ""), os.getcwd(), os.path.join(ROOT, "bazel-bin")):
        path = os.path.join(folder, name)
        if folder and os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.realpath(path)
    raise ProgramError(f"no {name}: bazel build //{os.path.dirname(name)}:{os.path.basename(name)}")


def starring_library() -> dict[str, str]:
    """The environment in which starring.torch finds libstarring.so."""
    return {"STARRING_LIBRARY": binary("worker/python/libstarring.so")}


def peer(name: str) -> str:
    return os.path.join(ROOT, "bench/ddp", name + ".py")


def find_pythons(modules: Sequence[str]) -> list[str]:
    """The interpreters among PYTHONS that have all `modules`."""
    found = []
    for python in PYTHONS:
        try:
            done = subprocess.run([python, "-c", "import " + ", ".join(modules)], capture_output=True, check=False)
        except OSError:
            continue
        if done.returncode == 0:
            found.append(python)
    return found


def find_python(modules: Sequence[str]) -> str | None:
    """The first interpreter that has all `modules`, or None."""
    return next(iter(find_pythons(modules)), None)


_ASK_TORCH = """
import ctypes, json, torch
with open("/proc/self/maps") as f:
    loaded = f.read()  # Debian's torch uses the BLAS that is installed
core = ""
for path in {line.split()[-1] for line in loaded.splitlines() if "openblas" in line}:
    name = getattr(ctypes.CDLL(path), "openblas_get_corename", None)
    if name is not None:
        name.restype = ctypes.c_char_p
        core = name().decode()
libraries = [x for x, found in (("MKL", torch.backends.mkl.is_available()), ("OpenBLAS", "openblas" in loaded),
                                ("oneDNN", torch.backends.mkldnn.is_available())) if found]
gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
nccl = ".".join(map(str, torch.cuda.nccl.version())) if gpus and torch.distributed.is_nccl_available() else ""
print(json.dumps({"version": torch.__version__, "libraries": " + ".join(libraries), "gpus": gpus, "nccl": nccl,
                  "cuda": torch.version.cuda or "", "blas_core": core}))
"""

# The processors that OpenBLAS takes for the machine's if it knows nothing better.
_OLD_CORES = ("Generic", "Katmai", "Coppermine", "Northwood", "Prescott", "Banias", "Core2")
# By OpenBLAS' name, the instructions that its code for this processor needs.
_BLAS_CORES = (("SkylakeX", ("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma")), ("Haswell", ("avx2", "fma")))


def known_blas_core(taken: str, instructions: Sequence[str]) -> str | None:
    """The processor that OpenBLAS should be told to compute for, if it takes the machine's for the old one `taken`.

    A release of OpenBLAS that is older than the processor multiplies matrices at a sixth of the speed. A comparison
    must not gain from that.
    """
    if taken not in _OLD_CORES:
        return None
    return next((core for core, needed in _BLAS_CORES if set(needed) <= set(instructions)), None)


@dataclasses.dataclass(frozen=True)
class Torch:
    """A python3 with PyTorch, and its abilities."""
    python: str
    version: str
    libraries: str = ""  # for the CPU
    gpus: int = 0  # the number that it can use
    nccl: str = ""  # its version; empty if there is none
    cuda: str = ""
    blas_core: str = ""  # the processor that OpenBLAS computes for; empty without OpenBLAS

    @staticmethod
    def find_all() -> list[Torch]:
        return [Torch(python, **json.loads(run([python, "-c", _ASK_TORCH]).splitlines()[-1]))
                for python in find_pythons(("numpy", "torch.distributed"))]


def library_versions() -> dict[str, str]:
    """Versions of the libraries of our programs, as the system's packages and programs report them."""
    found = {}
    for name, argv, pattern in (("mpi", ["mpirun", "--version"], r"\((.*)\) ([\d.]+)"),
                                ("grpc", ["pkg-config", "--modversion", "grpc++"], r"()([\d.]+)"),
                                ("grpc", ["dpkg-query", "-W", "-f=${Version}", "libgrpc++1.51"], r"()([\d.]+)")):
        try:
            text = run(argv, MPI_ENVIRONMENT, seconds_max=20)
        except (OSError, ProgramError):
            continue
        match = re.search(pattern, text)
        if match and name not in found:
            found[name] = f"{match[1]} {match[2]}".strip()
    return found


def commit() -> str:
    """The commit of the source tree, "-dirty" with changes; empty if there is no git."""
    done = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True,
                          check=False)
    return done.stdout.strip()


def run(argv: list[str], environment: dict[str, str] | None = None, seconds_max: float = 600) -> str:
    """Runs a program and returns its standard output. ProgramError, with all its output, if it fails."""
    try:
        done = subprocess.run(argv, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL, text=True,
                              capture_output=True, timeout=seconds_max, check=False)
    except subprocess.TimeoutExpired as error:
        raise ProgramError(f"{' '.join(argv)} has not ended after {seconds_max} s") from error
    if done.returncode != 0:
        raise ProgramError(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout
