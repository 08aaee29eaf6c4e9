"""Batches are in pinned memory, but the script waits for each copy to the device."""

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
        "Each step waits until its batch is copied to the device",
        f"{show_bytes(case.per_step(waiting[line]))} in {show_seconds(case.rows[kinds.COPY] / 1e3)} per step (pinned memory)",
        "x.to(device, non_blocking=True), so that the copy runs during the previous step",
        short="non_blocking copies",
    )
