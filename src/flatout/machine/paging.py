"""Fresh memory on this host: what a page of it costs, and which allocator hands it to torch."""

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
    """Of torch's tensors on the host; empty where it is neither."""
    linked = Path(torch.__file__).parent / "lib" / "libc10.so"
    if linked.exists() and b"mimalloc: warning" in linked.read_bytes():  # its builds for ARM
        return MIMALLOC
    return GLIBC if hasattr(ctypes.CDLL(None), "gnu_get_libc_version") else ""


def page_seconds() -> float:
    """What the operating system takes for one page that is touched for the first time."""
    return min(_touched() for _ in range(_TIMES))  # what others take from the machine meanwhile is no part of it


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
