"""Classes with few rows: finds a split that leaves some rows of every class for training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flatout.base.errors import DataError
from flatout.data.specs import parse_data
from flatout.explore.drafting.columns import SampledColumn
from flatout.explore.drafting.writing import DraftLine

_FEW = 6  # rows of a class: with more, a split practically never takes all of them
_TRIES = 8


def holdout(share: float, label: SampledColumn, target: str, others: Sequence[DraftLine], folder: Path) -> list[DraftLine]:
    """The share to hold out, with a seed if one is needed; commented out if no split leaves all classes for training."""
    usual = DraftLine("holdout", share, "this share of the rows is only evaluated on; or validation: other.csv")
    rare = [name for name, count in label.counts if count <= _FEW] if target == "class" else []
    if not rare:
        return [usual]
    written = {entry.key: entry.value for entry in others if not entry.off}
    for seed in range(_TRIES):
        try:
            parse_data({**written, "holdout": share, "seed": seed}, folder)
        except DataError as error:
            if "which no training row has" not in str(error):
                raise
        else:
            return [
                usual,
                *(
                    [DraftLine("seed", seed, f"a split that leaves every class to train on, {rare[-1]} among them")]
                    if seed
                    else []
                ),
            ]
    shown = ", ".join(rare[:4]) + (f" and {len(rare) - 4} more" if len(rare) > 4 else "")
    note = f"not used, since classes have too few rows to split: {shown}; merge or remove them"
    return [DraftLine("holdout", share, note, off=True)]
