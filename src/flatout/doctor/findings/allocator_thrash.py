"""Memory is given back in every step, to the driver or to the operating system, and asked for again."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor import kinds
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding
from flatout.machine.paging import GLIBC, MIMALLOC, host_allocator

_MANY_PAGES = 256  # a step: one large tensor
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
    why = "torch.cuda.empty_cache() is called" if emptied else "memory is nearly full, and the allocator starts over"
    yield Finding(
        "allocator_thrash",
        spent_ms,
        emptied or case.places.get(kinds.ALLOCATION, ""),
        "Memory goes back to the driver and comes again in every step",
        f"{calls:.3g} calls of the driver, which cost {show_seconds(spent_ms / 1e3)} of each step; "
        f"{memory.retries} retries; {why}",
        "take empty_cache() out of the loop" if emptied else
        "a smaller batch or activation checkpointing; PYTORCH_ALLOC_CONF=expandable_segments:True where sizes change",
        short="no empty_cache" if emptied else "less memory",
    )  # fmt: skip


def _on_host(case: Case) -> Iterator[Finding]:
    """A page that is touched for the first time is made by the operating system, and a large tensor's pages are all new."""
    memory, steps = case.seen.memory, max(case.seen.window_steps, 1)
    faults = memory.page_faults / steps
    keeping = KEEPING.get(host_allocator())
    if faults < _MANY_PAGES or keeping is None:
        return
    taken_s = min(memory.system_s, case.page_s * memory.page_faults)  # the rest is none of theirs
    spent_ms = 1e3 * taken_s / steps / max(1, min(case.seen.threads, case.seen.cores))
    yield Finding(
        "allocator_thrash",
        min(spent_ms, case.train_ms),
        case.places.get(kinds.MEMORY, ""),  # where most of those tensors come from
        "Memory goes back to the operating system and comes again page by page in every step",
        f"{faults:,.0f} page faults a step; the system takes {show_seconds(spent_ms / 1e3)} of each",
        f"{keeping} in front of the command",
        short="kept memory",
    )
