"""New memory on this host: the cost of one page, and the allocator that torch uses."""

from __future__ import annotations

import ctypes
import mmap
import resource
import time
from functools import cache
from pathlib import Path

import numpy as np
import torch

GLIBC, MIMALLOC = "glibc", "mimalloc"
_BYTES, _TIMES = 16 << 20, 3


@cache
def host_allocator() -> str:
    """Name of the allocator of torch's host tensors; empty if unknown."""
    linked = Path(torch.__file__).parent / "lib" / "libc10.so"
    if linked.exists() and b"mimalloc: warning" in linked.read_bytes():  # torch's ARM builds
        return MIMALLOC
    return GLIBC if hasattr(ctypes.CDLL(None), "gnu_get_libc_version") else ""


def page_seconds() -> float:
    """Seconds that the operating system takes for the first access to a page."""
    return min(_touched() for _ in range(_TIMES))  # the minimum, to exclude load of other processes


def _touched() -> float:
    with mmap.mmap(-1, _BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        first = np.frombuffer(pages, dtype=np.uint8)[:: mmap.PAGESIZE]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        began_s = time.perf_counter()
        first[:] = 1
        fresh_s = time.perf_counter() - began_s
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        began_s = time.perf_counter()
        first[:] = 2
        again_s = time.perf_counter() - began_s
        del first
    return max(fresh_s - again_s, 0.0) / max(faults, 1)
