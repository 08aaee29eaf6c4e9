"""The host, as the operating system reports it: CPU name, cores and memory that this process may use, limits."""

from __future__ import annotations

import math
import os
import platform
import sys
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    named: dict[str, str] = {}
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            named.setdefault(key.strip().lower(), value.strip())
    return named.get("model name") or named.get("hardware") or platform.processor() or platform.machine()


def affinity_cores() -> int:
    """Cores that the scheduler lets this process use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_cores(root: Path = _CGROUP) -> float | None:
    """The container's CPU quota in cores; None: no quota."""
    quota, period = _words(root / "cpu.max", 2)
    if quota is None:  # cgroup v1
        (quota,), (period,) = _words(root / "cpu/cpu.cfs_quota_us", 1), _words(root / "cpu/cpu.cfs_period_us", 1)
    if quota is None or period is None or quota <= 0 or period <= 0:
        return None
    return quota / period


def usable_cores() -> int:
    """Cores that this process can use at once: those of the scheduler, within the container's quota."""
    return max(1, int(min(affinity_cores(), cgroup_cores() or math.inf)))


def cgroup_memory_bytes(root: Path = _CGROUP) -> int | None:
    """The container's memory limit; None: no limit."""
    (limit,) = _words(root / "memory.max", 1)
    if limit is None:
        (limit,) = _words(root / "memory/memory.limit_in_bytes", 1)
    # cgroup v1 writes "no limit" as a number near 2**63
    return int(limit) if limit is not None and limit < psutil.virtual_memory().total else None


def free_host_bytes(root: Path = _CGROUP) -> int:
    """Memory available without swapping, within the container's limit if there is one."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = int((root / "memory.max").read_text())
        used = int((root / "memory.current").read_text())
        cached = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
        return min(free, limit - used + int(cached.get("inactive_file", 0)))
    except (OSError, ValueError):  # "max", or no such file: no limit
        return free


def shm_bytes(folder: Path = Path("/dev/shm")) -> int | None:
    """Size of the shared-memory file system; None if the platform has none."""
    if not folder.is_dir():
        return None
    status = os.statvfs(folder)
    return status.f_blocks * status.f_frsize


def open_files_limit() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def _words(path: Path, count: int) -> list[float | None]:
    """The first `count` numbers of a control file; None for a word that is not a number ("max") and for a missing file."""
    try:
        words = path.read_text().split()
    except OSError:
        return [None] * count
    return [_number(word) for word in words[:count]] + [None] * (count - len(words))


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
