"""Python code between operators: nothing computes while it runs."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_seconds
from flatout.doctor.account import PYTHON
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding

_WORTH = 0.08  # below this, the gap may be freed memory and not Python code


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
        "Python code between operators: nothing computes while it runs",
        f"{show_seconds(spent_ms / 1e3)} per step, {share:.0%} of it on this line",
        "use tensor operations on the whole batch, move the code out of the loop, or into the DataLoader's workers",
        short="tensors instead of Python",
    )
