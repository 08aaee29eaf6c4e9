"""How much memory is in use, and how the allocator of the device goes about it."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


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


def allocator_settings(device: torch.device) -> str:
    """Of the device's memory, as the environment or whoever came before has them; empty: torch's own."""
    if device.type != "cuda":
        return ""
    read = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
    if read is not None:
        return str(read())
    torch.cuda.init()
    snapshot: Any = torch.cuda.memory._snapshot(device)  # all that torch 2.11 tells it by
    return str(snapshot.get("allocator_settings", {}).get("PYTORCH_CUDA_ALLOC_CONF", ""))


@contextmanager
def allocator(kind: str, device: torch.device) -> Iterator[None]:
    """expandable: segments that grow from here on, so that batches of many shapes leave no holes. Put back afterwards."""
    if kind == "default" or device.type != "cuda":
        yield
        return
    before = allocator_settings(device)
    _set_allocator(_with_expandable(before, True))
    try:
        yield
    finally:
        _set_allocator(before or _with_expandable("", False))  # an empty text would change nothing


def _with_expandable(settings: str, on: bool) -> str:
    others = [part for part in settings.split(",") if part and not part.strip().startswith("expandable_segments")]
    return ",".join([*others, f"expandable_segments:{on}"])


def _set_allocator(settings: str) -> None:
    set_settings: Any = torch._C._accelerator_setAllocatorSettings  # type: ignore[attr-defined]
    set_settings(settings)
