"""Batches are in pageable memory: the driver copies them twice while the host waits."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_bytes, show_seconds
from flatout.doctor import kinds
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding
from flatout.machine.gains import Gain
from flatout.machine.optimisations import PINNED_COPIES


def look(case: Case) -> Iterator[Finding]:
    pageable = {line: sum(sizes) for (line, pinned, _), sizes in case.seen.copies.items() if not pinned}
    if not case.on_device or not pageable or not case.rows[kinds.COPY]:
        return
    line = max(pageable, key=lambda name: pageable[name])
    ceilings = None if case.probe is None else case.probe.ceilings
    fast = None if ceilings is None else ceilings.host_to_device_pinned_bytes_per_s
    slow = None if ceilings is None else ceilings.host_to_device_pageable_bytes_per_s
    usual = PINNED_COPIES.usual_gain(case.device.type)
    if fast is not None and slow is not None:
        gain = Gain(fast.value / slow.value, measured=True)
    elif usual is not None:
        gain = Gain(usual, measured=False)
    else:
        return
    yield Finding(
        PINNED_COPIES.finding,
        case.rows[kinds.COPY] * (1 - 1 / max(gain.factor, 1.1)),
        line,
        "Batches are copied to the device from pageable memory",
        f"{show_bytes(case.per_step(pageable[line]))} in {show_seconds(case.rows[kinds.COPY] / 1e3)} per step; pinned "
        f"memory, {gain.words}",
        "DataLoader(..., pin_memory=True) and x.to(device, non_blocking=True)",
        short=PINNED_COPIES.words,
        estimate=not gain.measured,
    )
