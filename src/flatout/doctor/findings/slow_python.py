"""Plain Python between the operators: while it runs, nothing computes."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor.account import PYTHON
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding

_WORTH = 0.08  # giving memory back to the system shows as a gap, too, and that is nobody's code


def look(case: Case) -> Iterator[Finding]:
    spent_ms = case.rows[PYTHON]
    lines = sorted(((spent, line) for (row, line), spent in case.account.lines.items() if row == PYTHON and line), reverse=True)
    if not lines or case.share(spent_ms) < _WORTH:
        return
    share = lines[0][0] / sum(spent for spent, _ in lines)
    yield Finding(
        "slow_python",
        0.95 * spent_ms,
        lines[0][1],
        "Python between the operators keeps everything waiting",
        f"{show_seconds(spent_ms / 1e3)} a step, {share:.0%} of it on this line",
        "do it for the whole batch with tensors, move it out of the loop, or into the DataLoader's workers",
        short="that line in tensors",
    )
