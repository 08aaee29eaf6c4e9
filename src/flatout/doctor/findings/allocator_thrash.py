"""Memory is given back to the driver and asked for again in every step."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding

_CALLS = ("cudaMalloc", "cudaFree", "hipMalloc", "hipFree", "cudaMallocAsync", "cudaFreeAsync")


def look(case: Case) -> Iterator[Finding]:
    memory = case.seen.memory
    calls = [span for span in case.trace.host if span.name in _CALLS]
    if not case.on_device or not (memory.retries or memory.cache_emptied or case.per_step(len(calls)) >= 1):
        return
    spent_ms = case.ms(sum(span.end - span.start for span in calls))
    line = max(memory.cache_emptied, key=lambda name: memory.cache_emptied[name]) if memory.cache_emptied else ""
    why = "torch.cuda.empty_cache() is called" if line else "memory is nearly full, and the allocator starts over"
    yield Finding(
        "allocator_thrash",
        spent_ms,
        line,
        "Memory goes back to the driver and comes again in every step",
        f"{case.per_step(len(calls)):.3g} calls of the driver and {show_seconds(spent_ms / 1e3)} a step; "
        f"{memory.retries} retries; {why}",
        "take empty_cache() out of the loop" if line else
        "a smaller batch or activation checkpointing; PYTORCH_ALLOC_CONF=expandable_segments:True where sizes change",
        short="no empty_cache" if line else "less memory",
    )  # fmt: skip
