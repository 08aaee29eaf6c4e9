"""Other data than a run's own, read as its own was: one reader for each kind of data that something can be fitted on."""

from __future__ import annotations

from typing import Any

from flatout.data.fitted.fitted import Fitted
from flatout.data.source import Source


def other_rows(fitted: Fitted, given: Any, targets: bool) -> Source:
    """`targets`: y is needed, and means what it meant in training."""
    from flatout.data.tables.others import other_table

    return other_table(fitted, given, targets)
