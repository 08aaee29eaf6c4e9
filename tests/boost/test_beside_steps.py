"""A receipt is of steps: what a script does beside them is said."""

from __future__ import annotations

from typing import Any

import pytest

from flatout.boost.boosting import _beside_steps, _compiled_later


def ledger(**shares: float) -> dict[str, Any]:
    return {"steps": 60, "ledger": [{"row": row, "share": share} for row, share in {"matmul": 0.5, **shares}.items()]}


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({"evaluation": 0.31, "checkpoint": 0.0}, ["evaluations (31% of the time) until step 60"]),
        (
            {"evaluation": 0.2, "checkpoint": 0.05},
            ["evaluations (20% of the time) and checkpoints (5% of the time) until step 60"],
        ),
        ({"evaluation": 0.01, "checkpoint": 0.0}, []),
    ],
)
def test_evaluations_and_checkpoints_are_told(shares: dict[str, float], words: list[str]) -> None:
    told = _beside_steps(ledger(**shares))
    assert len(told) == len(words) and all(word in line for word, line in zip(words, told, strict=True))


def test_what_is_compiled_later_is_told_where_anything_is() -> None:
    (told,) = _compiled_later([("fused_optimizer", "on"), ("compile", "on")])
    assert told.startswith("compile: ")
    assert _compiled_later([("fused_optimizer", "on")]) == []
