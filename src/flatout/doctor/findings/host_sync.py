"""The host reads a value from the device and waits for it; meanwhile it launches no kernels."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor import kinds
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding


def look(case: Case) -> Iterator[Finding]:
    reads = case.seen.reads
    if not case.on_device or not reads:
        return
    lines = {line: spent for (row, line), spent in case.account.lines.items() if row == kinds.SYNC and line}
    line = max(lines, key=lambda name: lines[name]) if lines else max(reads, key=lambda name: reads[name])
    cost = case.rows[kinds.SYNC]
    yield Finding(
        "host_sync",
        cost,
        line,
        "The script reads values from the device during training, and the device becomes idle",
        f"{case.per_step(sum(reads.values())):.3g} reads per step (.item(), .cpu(), print, if on a tensor); "
        f"the device is idle for {show_seconds(cost / 1e3)} per step",
        "keep running sums on the device and read them every 20 steps or more; use torch.where instead of if",
        short="log every 20 steps",
    )
