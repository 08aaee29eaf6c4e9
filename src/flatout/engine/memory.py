"""Running out of memory: what it looks like, and how much is in use."""

from __future__ import annotations

import resource

import torch


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # a CPU build raises a plain RuntimeError from its allocator
    text = str(error)
    return isinstance(error, RuntimeError) and ("can't allocate memory" in text or "not enough memory" in text)


def peak_bytes(device: torch.device) -> int:
    """The most that was held at once: by torch's allocator on a GPU, by the whole process on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def start_counting(device: torch.device) -> None:
    """What `peak_bytes` says is about the run that begins here."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def release_cached(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
