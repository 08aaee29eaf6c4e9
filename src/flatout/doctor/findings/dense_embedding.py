"""The gradient of a large embedding is dense, so every row is written and updated, though a step looks up few of them."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.base.units import show_count, show_seconds
from flatout.doctor.account import OPTIMIZER
from flatout.doctor.case import Case
from flatout.doctor.finding import CHANGES, KEEPS, Finding

_ROWS, _FEW = 50_000, 0.05


def look(case: Case) -> Iterator[Finding]:
    optimizer = case.optimizer
    if case.seen.look is None or optimizer is None or not optimizer.elements:
        return
    large = [one for one in case.seen.look.lookups.values() if one.rows >= _ROWS and one.looked_up < _FEW * one.rows]
    if not large:
        return
    spent_ms = case.rows[OPTIMIZER] * min(sum(one.elements for one in large) / optimizer.elements, 1.0)
    backward_ns = sum(span.end - span.start for span in case.trace.host if span.name == "aten::embedding_dense_backward")
    spent_ms += min(case.ms(backward_ns), case.train_ms - case.rows[OPTIMIZER])
    one = max(large, key=lambda found: found.elements)
    plain = optimizer.kind == "SGD" and not optimizer.options.get("momentum") and not optimizer.options.get("weight_decay")
    yield Finding(
        "dense_embedding",
        0.95 * spent_ms,
        one.where,
        f"An embedding of {show_count(one.rows)} rows gets a dense gradient",
        f"a step looks up {show_count(one.looked_up)} indices; writing and updating all rows takes "
        f"{show_seconds(spent_ms / 1e3)} per step",
        "nn.Embedding(..., sparse=True)"
        + (
            ""
            if plain
            else " with SparseAdam, or SGD without momentum, in an optimizer of its own: only rows that were used move"
        ),
        short="sparse embedding",
        about=KEEPS if plain else CHANGES,
    )
