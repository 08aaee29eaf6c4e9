"""Pinned memory could be copied while the device computes, but the script waits for each copy."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_bytes, show_seconds
from flatout.doctor import kinds
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding


def look(case: Case) -> Iterator[Finding]:
    waiting = {line: sum(sizes) for (line, pinned, waits), sizes in case.seen.copies.items() if pinned and waits}
    if not case.on_device or not waiting or not case.rows[kinds.COPY]:
        return
    line = max(waiting, key=lambda name: waiting[name])
    yield Finding(
        "blocking_copy",
        0.8 * case.rows[kinds.COPY],
        line,
        "The step waits for its batch to be copied",
        f"{show_bytes(case.per_step(waiting[line]))} and {show_seconds(case.rows[kinds.COPY] / 1e3)} a step, though pinned",
        "x.to(device, non_blocking=True): the copy then runs beside the step before",
        short="non_blocking copies",
    )
