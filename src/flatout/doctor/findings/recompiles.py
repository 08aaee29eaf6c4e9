"""torch.compile compiles the same code repeatedly because its inputs change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding


def look(case: Case) -> Iterator[Finding]:
    again = case.seen.compiles.recompiles
    if not again:
        return
    line = Counter(place for place, _, _ in again).most_common(1)[0][0]
    spent_s = sum(seconds for _, _, seconds in again)
    yield Finding(
        "recompiles",
        min(1e3 * spent_s / max(case.seen.steps, 1), 10 * case.step_ms),
        line or next((call.where for call in case.training_calls if call.compiled), ""),
        f"torch.compile: the same code was recompiled {len(again)} times",
        f"{show_seconds(spent_s)} in {case.seen.steps} steps; the last reason: {again[-1][1]}",
        "use the same shapes each time (drop_last=True, padding to a few lengths), or torch.compile(model, dynamic=True)",
        short="fixed shapes",
    )
