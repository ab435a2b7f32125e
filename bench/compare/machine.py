"""Reads facts of the machine: cores, memory, load, clock, GPUs, and the CPU time of processes."""

from __future__ import annotations

import ctypes
import os
import platform

import results as schema

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _field(path: str, name: str) -> str:
    for line in _read(path).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def cpu_quota(root: str = "") -> float | None:
    """The processor time that this process's control group and those above it grant, in cores; None without a limit.

    `root` is a folder with proc and sys, for tests. common/host/machine_limits.cc reads the same.
    """
    quotas = []
    for line in _read(root + "/proc/self/cgroup").splitlines():
        number, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        # The folders of the hierarchy, each with a link or a name of its own, in version 1.
        folders = [""] if number == "0" else ["cpu", controllers] if "cpu" in controllers.split(",") else []
        parts = path.strip("/").split("/")
        for folder in folders:
            for depth in range(len(parts) + 1):
                group = os.path.join(root + "/sys/fs/cgroup", folder, *parts[:depth])
                text = _read(group + "/cpu.max") if number == "0" else \
                    _read(group + "/cpu.cfs_quota_us") + _read(group + "/cpu.cfs_period_us")
                words = text.split()
                # Without a quota the first is "max" or -1.
                if len(words) == 2 and all(map(str.isdigit, words)) and int(words[1]) > 0:
                    quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def instructions() -> list[str]:
    """What the processor can do, in the system's words: "avx2"."""
    return _field("/proc/cpuinfo", "flags").split()


def load() -> float:
    return os.getloadavg()[0]


def clock_mhz() -> list[float]:
    """The clock of each core; empty if the kernel does not tell."""
    folder = "/sys/devices/system/cpu"
    kilohertz = [_read(f"{folder}/cpu{core}/cpufreq/scaling_cur_freq").strip() for core in cores()]
    if all(kilohertz):
        return [int(value) / 1000 for value in kilohertz]
    return [float(line.partition(":")[2]) for line in _read("/proc/cpuinfo").splitlines() if line.startswith("cpu MHz")]


def describe(gpus: Gpus) -> schema.Machine:
    """The `machine` of results.json. The caller fills in load_after and clock_mhz at the end."""
    memory_kib = float((_field("/proc/meminfo", "MemTotal").split() or ["0"])[0])
    system = f"{_field_of_os('PRETTY_NAME') or platform.system()}, Linux {platform.release()}"
    # MPI and Gloo have it on this host, and we do unless it is BBR (common/network/congestion_control.h).
    if control := _read("/proc/sys/net/ipv4/tcp_congestion_control").strip():
        system += f", on the host TCP with {control}"
    return {"name": platform.node(), "cpu": _field("/proc/cpuinfo", "model name") or platform.processor(),
            "cores": len(cores()), "cpu_quota": cpu_quota(), "memory_gib": round(memory_kib / 2**20, 1),
            "os": system, "gpu": gpus.name(), "load_before": load(),
            "load_after": None, "clock_mhz": {"min": None, "median": None, "max": None}}


def _field_of_os(name: str) -> str:
    for line in _read("/etc/os-release").splitlines():
        if line.startswith(name + "="):
            return line.partition("=")[2].strip('"')
    return ""


def cpu_seconds(pid: int) -> float | None:
    """The user and system time of a process, all threads together; None if the process is gone."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND if len(fields) > 12 else None


def command_line(pid: int) -> list[str]:
    return _read(f"/proc/{pid}/cmdline").split("\0")[:-1]


def descendants(pid: int) -> list[int]:
    """The process and all its descendants, itself first."""
    found = [pid]
    for parent in found:
        try:
            tasks = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        for task in tasks:
            found += [int(child) for child in _read(f"/proc/{parent}/task/{task}/children").split()]
    return found


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Gpus:
    """NVIDIA's GPUs, by NVML, a library of the driver that is loaded when this object is created.

    `visible` is the value of CUDA_VISIBLE_DEVICES, which NVML itself ignores.
    """

    def __init__(self, library: str = "libnvidia-ml.so.1", visible: str | None = None) -> None:
        self._handles: list[ctypes.c_void_p] = []
        try:
            self._nvml = ctypes.CDLL(library)
            if self._nvml.nvmlInit_v2() != 0:
                return
        except (OSError, AttributeError):
            return
        count = ctypes.c_uint()
        if self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return
        words = list(map(str, range(count.value))) if visible is None else visible.split(",")
        for word in map(str.strip, words):
            handle = ctypes.c_void_p()
            code = (self._nvml.nvmlDeviceGetHandleByIndex_v2(int(word), ctypes.byref(handle)) if word.isdigit() else
                    self._nvml.nvmlDeviceGetHandleByUUID(word.encode(), ctypes.byref(handle)))
            if code != 0:
                return  # CUDA, too, ignores all devices after a wrong one
            self._handles.append(handle)

    def count(self) -> int:
        return len(self._handles)

    def name(self) -> str | None:
        """"2 x NVIDIA H200"; None without a GPU."""
        if not self._handles:
            return None
        text = ctypes.create_string_buffer(96)
        if self._nvml.nvmlDeviceGetName(self._handles[0], text, 96) != 0:
            return "unknown"
        name = text.value.decode(errors="replace")
        return name if len(self._handles) == 1 else f"{len(self._handles)} x {name}"

    def sample(self, workers: int) -> tuple[float, int] | None:
        """The GPUs that this number of workers uses: their mean use in percent, and the sum of their memory in bytes.
        None without a GPU."""
        percents, memory = [], 0
        for handle in self._handles[:workers]:
            utilization, used = _Utilization(), _Memory()
            if self._nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(utilization)) == 0:
                percents.append(utilization.gpu)
            if self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(used)) == 0:
                memory += used.used
        return (sum(percents) / len(percents), memory) if percents else None
