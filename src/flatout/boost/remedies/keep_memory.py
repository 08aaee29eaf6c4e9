"""Keeps freed memory for the next tensor instead of returning it to the operating system.

glibc allocates new pages for every large tensor and returns them when it is freed: a small convolutional network on a CPU has
thousands of page faults per step. torch has a caching allocator for GPUs, but not for the host.
"""

from __future__ import annotations

import ctypes
from typing import Any

from flatout.boost.hooks import Hooks
from flatout.boost.remedies.remedy import Offer, Remedy, predicted
from flatout.doctor.diagnosis import Diagnosis
from flatout.machine.paging import GLIBC, host_allocator

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # from malloc.h
_NEVER, _AT_ONCE = 2**31 - 1, 64 * 2**20
_FEW_PAGES = 10  # per step: fewer neither take time nor make processes differ


class KeepMemory(Remedy):
    name = "keep_memory"
    computes_the_same = True
    steadies = True  # how much is returned depends on what is at the end of the heap

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        case = diagnosis.case
        pages = case.seen.memory.page_faults / max(case.seen.window_steps, 1)
        if case.on_device or pages < _FEW_PAGES or _mallopt() is None:
            return []
        return [Offer(self.name, "on", "off", predicted(diagnosis, "allocator_thrash"))]

    def apply(self, value: Any, hooks: Hooks) -> None:
        if (mallopt := _mallopt()) is not None:
            for option, to in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER), (_TOP_PAD, _AT_ONCE)):
                mallopt(option, to)


def _mallopt() -> Any:
    """None with another allocator: mimalloc reads its environment before this can run."""
    return ctypes.CDLL(None).mallopt if host_allocator() == GLIBC else None
