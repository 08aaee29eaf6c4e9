"""What running out of memory looks like."""

from __future__ import annotations

import torch

# from the allocators of host memory: glibc's and mimalloc in builds for a CPU, and the one for memory that a GPU copies from
_WORDS = ("can't allocate memory", "not enough memory", "CUDA error: out of memory", "CUDA out of memory")


def is_out_of_memory(error: BaseException | None) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)
