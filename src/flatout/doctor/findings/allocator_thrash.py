"""Memory is freed to the driver or the operating system and allocated again in every step."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor import kinds
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding
from flatout.machine.paging import GLIBC, MIMALLOC, host_allocator

_MANY_PAGES = 256  # per step: the pages of one large tensor
KEEPING = {
    GLIBC: "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=2147483647 MALLOC_TOP_PAD_=67108864",
    MIMALLOC: "MIMALLOC_PURGE_DELAY=-1",
}


def look(case: Case) -> Iterator[Finding]:
    yield from _on_device(case) if case.on_device else _on_host(case)


def _on_device(case: Case) -> Iterator[Finding]:
    memory = case.seen.memory
    calls = case.per_step(sum(1 for span in case.trace.host if kinds.is_driver_memory(span.name)))
    if not (memory.retries or memory.cache_emptied or calls >= 1):
        return
    spent_ms = case.rows[kinds.ALLOCATION]
    emptied = max(memory.cache_emptied, key=lambda name: memory.cache_emptied[name]) if memory.cache_emptied else ""
    why = (
        "torch.cuda.empty_cache() is called" if emptied else "memory is nearly full: the allocator frees its cache and retries"
    )
    yield Finding(
        "allocator_thrash",
        spent_ms,
        emptied or case.places.get(kinds.ALLOCATION, ""),
        "GPU memory is freed to the driver and allocated again in every step",
        f"{calls:.3g} driver calls take {show_seconds(spent_ms / 1e3)} per step; "
        f"{memory.retries} retries; {why}",
        "remove empty_cache() from the loop" if emptied else
        "use a smaller batch or activation checkpointing; if shapes vary, set PYTORCH_ALLOC_CONF=expandable_segments:True",
        short="no empty_cache" if emptied else "less memory",
    )  # fmt: skip


def _on_host(case: Case) -> Iterator[Finding]:
    """The operating system creates each page at its first use; all pages of a newly allocated large tensor are new."""
    memory, steps = case.seen.memory, max(case.seen.window_steps, 1)
    faults = memory.page_faults / steps
    keeping = KEEPING.get(host_allocator())
    if faults < _MANY_PAGES or keeping is None:
        return
    taken_s = min(memory.system_s, case.page_s * memory.page_faults)  # other system time has other causes
    spent_ms = 1e3 * taken_s / steps / max(1, min(case.seen.threads, case.seen.cores))
    yield Finding(
        "allocator_thrash",
        min(spent_ms, case.train_ms),
        case.places.get(kinds.MEMORY, ""),  # where most of those tensors come from
        "Memory is freed to the operating system and allocated again in every step",
        f"{faults:,.0f} page faults per step; the operating system takes {show_seconds(spent_ms / 1e3)} per step for them",
        f"put {keeping} before the command",
        short="keep memory",
    )
