"""torch.compile breaks the graph inside the model and runs the code in between in Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from flatout.doctor import kinds
from flatout.doctor.account import PYTHON
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding

_LEAST = 0.02  # of a step for each break: one more graph to call, and less to fuse


def look(case: Case) -> Iterator[Finding]:
    breaks = case.seen.compiles.breaks
    if not breaks:
        return
    lines = Counter(line for line, _ in breaks if line)
    line = lines.most_common(1)[0][0] if lines else ""
    why = next((reason for place, reason in breaks if place == line), breaks[0][1])
    around_ms = 0.5 * (case.rows[kinds.LAUNCH] + case.rows[PYTHON])
    yield Finding(
        "graph_breaks",
        min(max(around_ms, _LEAST * len(breaks) * case.step_ms), 0.5 * case.step_ms),
        line,
        f"torch.compile: {len(breaks)} graph breaks",
        f"{why} (graph breaks on {len(lines)} lines in total)",
        "move that code out of the compiled part: no print, .item() or NumPy in forward; fullgraph=True reports each break",
        short="one graph",
    )
