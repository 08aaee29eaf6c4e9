"""Memory that was freed is kept for the next tensor, instead of being handed back and fetched page by page again.

glibc gives every large tensor pages of its own, and returns them when it goes: a small convolutional network on a CPU pays for
thousands of page faults a step. GPUs have torch's caching allocator, hosts have not.
"""

from __future__ import annotations

import ctypes
from typing import Any

from flatout.boost.hooks import Hooks
from flatout.boost.remedies.remedy import Offer, Remedy, predicted
from flatout.doctor.diagnosis import Diagnosis
from flatout.machine.paging import GLIBC, host_allocator

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # of malloc.h
_NEVER, _AT_ONCE = 2**31 - 1, 64 * 2**20


class KeepMemory(Remedy):
    name = "keep_memory"
    steadies = True  # how much is handed back depends on what happens to lie at the heap's end

    def offers(self, diagnosis: Diagnosis) -> list[Offer]:
        if diagnosis.case.on_device or _mallopt() is None:
            return []
        return [Offer(self.name, "on", "off", predicted(diagnosis, "allocator_thrash"))]

    def apply(self, value: Any, hooks: Hooks) -> None:
        if (mallopt := _mallopt()) is not None:
            for option, to in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER), (_TOP_PAD, _AT_ONCE)):
                mallopt(option, to)


def _mallopt() -> Any:
    """None where tensors come from another allocator: mimalloc reads its environment before any of this runs."""
    return ctypes.CDLL(None).mallopt if host_allocator() == GLIBC else None
