"""Recognises out-of-memory errors."""

from __future__ import annotations

import torch

# the first two are host allocators (glibc, mimalloc), the last is used by devices, drivers and compilers
_WORDS = ("can't allocate memory", "not enough memory", "out of memory")


def is_out_of_memory(error: BaseException | None) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)
