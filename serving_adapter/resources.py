"""What this machine has and how busy its processors are; None where there is nothing to read."""

from __future__ import annotations

import importlib
import math
import os
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import psutil


class CpuTimes(NamedTuple):
    """Core-seconds since boot, summed over all cores."""

    busy_s: float
    available_s: float


def cores() -> int:
    """How many cores this process may use: no more than its container's quota, rounded up."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, _quota_cores())))


def _quota_cores(root: Path = Path("/sys/fs/cgroup"), of: Path = Path("/proc/self/cgroup")) -> float:
    """The least quota of this process' control groups (v1, v2) and of those around; infinite for none."""
    least = math.inf
    for group in _control_groups("cpu", root, of):
        with suppress(OSError, ValueError):  # ValueError: "max"
            quota, period = (group / "cpu.max").read_text().split()
            least = min(least, int(quota) / int(period))
        with suppress(OSError, ValueError):
            quota_us = int((group / "cpu.cfs_quota_us").read_text())
            if quota_us > 0:  # -1 is none
                least = min(least, quota_us / int((group / "cpu.cfs_period_us").read_text()))
    return least


def _control_groups(controller: str, root: Path, of: Path) -> list[Path]:
    """The folders that may limit this process: its groups of v2 and v1, and those around them.

    A container may see its own group as the root, though its path is the one outside.
    """
    folders: list[Path] = []
    with suppress(OSError):
        for line in of.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            for mount in (root / controllers, root / (controller if controllers else "unified")):
                folder = mount / path.lstrip("/")
                folders += [folder, *folder.parents]
    return folders


def memory_bytes() -> int:
    """The memory that this process may use: no more than its container's limit."""
    return int(min(psutil.virtual_memory().total, _limit_bytes()))


def _limit_bytes(root: Path = Path("/sys/fs/cgroup"), of: Path = Path("/proc/self/cgroup")) -> float:
    """The least memory limit of these control groups and of those around; infinite for none."""
    least = math.inf
    for group in _control_groups("memory", root, of):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # ValueError: "max"
                least = min(least, int((group / name).read_text()))
    return least


def allow_descriptors(wanted: int) -> int:
    """Raises this process' limit on open descriptors, as far as it may, and returns it."""
    import resource  # of Unix only

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)


def cpu_times() -> CpuTimes:
    times = psutil.cpu_times()._asdict()
    idle_s = times.pop("idle") + times.pop("iowait", 0.0)
    # Linux counts guest time in user and nice already. Summed, not taken from the total: a sum of
    # counters that only grow never falls, a difference does in its last digit.
    busy_s = sum(seconds for name, seconds in times.items() if name not in ("guest", "guest_nice"))
    return CpuTimes(busy_s, busy_s + idle_s)


class Gpus:
    """Reads all GPUs through NVML; without it there are none, and a card that fails a call is left out."""

    def __init__(self, nvml: ModuleType | None = None) -> None:
        self._nvml = nvml
        self._handles: list[object] = []
        try:
            self._nvml = nvml or importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            self._handles = [
                self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._nvml.nvmlDeviceGetCount())
            ]
        except Exception:  # no library, no driver, no permission: NVML's errors have no common cause to tell
            self._nvml = None

    def utilisation(self) -> float | None:
        """Mean over the cards, 0 .. 1: the share of the last sample period in which a kernel ran."""
        if self._nvml is None:
            return None
        shares = []
        for handle in self._handles:
            try:
                shares.append(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0)
            except self._nvml.NVMLError:
                continue
        return sum(shares) / len(shares) if shares else None

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None
