"""A finished run's time ledger as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.base.tree import Doc
from flatout.measure.ledger import Ledger


def ledger_doc(result: Mapping[str, Any]) -> Doc:
    ledger = Ledger()
    ledger.add(result["ledger"])
    return ledger.doc()
