"""The device while a run trains: where the host may wait for it, and how much of its memory is used.

The host waits for the device inside `sync_point()` and nowhere else; a test proves it. There CUDA's sync debugging is off, and
`inside_sync_point()` is true for a test that counts scalar reads on a CPU.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_depth = 0


@contextmanager
def sync_point() -> Iterator[None]:
    global _depth
    strict = torch.cuda.is_initialized() and torch.cuda.get_sync_debug_mode()
    if strict:
        torch.cuda.set_sync_debug_mode(0)
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if strict:
            torch.cuda.set_sync_debug_mode(strict)


def inside_sync_point() -> bool:
    return _depth > 0


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
