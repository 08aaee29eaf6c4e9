"""Which rows of a table are for training, validation and test: by a share to hold out, or by a column; and their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flatout.base.errors import DataError
from flatout.data.data import PARTS
from flatout.data.order.keyed import keyed
from flatout.data.order.split import hash_batch, held_out, held_out_groups, held_out_latest
from flatout.data.sources.tables.arrow import ArrowValues, Where, is_number
from flatout.data.sources.tables.encoding import UsableRows

Array = np.ndarray[Any, Any]

_NAMES = {"train": 0, "training": 0, "validation": 1, "valid": 1, "val": 1, "dev": 1, "test": 2, "testing": 2}
_NO_PART = 255

PartOf = Callable[[Any, int], Array]
"""From a batch and the number of its first row: the part of each row, a place in PARTS."""


def parts_by_share(rows: UsableRows, holdout: float, seed: int, columns: Sequence[str]) -> PartOf:
    key = keyed(seed, "holdout")
    hashes = np.concatenate([hash_batch(batch, key, columns) for batch, _ in rows.batches()])
    held = held_out(hashes, holdout).astype(np.uint8)
    return lambda batch, start: held[start : start + batch.num_rows]


def parts_by_group(rows: UsableRows, holdout: float, seed: int, columns: Sequence[str]) -> PartOf:
    """Rows that agree in these columns (one user, one photo) are in one part."""
    key = keyed(seed, "holdout")
    hashes = np.concatenate([hash_batch(batch, key, columns) for batch, _ in rows.batches()])
    held = held_out_groups(hashes, holdout).astype(np.uint8)
    return lambda batch, start: held[start : start + batch.num_rows]


def parts_by_time(rows: UsableRows, holdout: float, column: str, format: str | None) -> PartOf:
    """The latest rows are held out."""
    pieces = []
    for batch, where in rows.batches():
        moments, missing = _moments(batch, column, format)
        if missing.any():
            raise DataError(
                f"{where.of(int(missing.argmax()))}: holdout_latest needs a time in every row; {column!r} is missing"
            )
        pieces.append(moments)
    held = held_out_latest(np.concatenate(pieces), holdout).astype(np.uint8)
    return lambda batch, start: held[start : start + batch.num_rows]


def _moments(batch: Any, column: str, format: str | None) -> tuple[Array, Array]:
    """Dates as microseconds; numbers (a year, seconds since 1970) as they are."""
    values = ArrowValues(batch)
    if is_number(batch.schema.field(column).type):
        numbers = values.numbers(column)
        return numbers, np.isnan(numbers)
    return values.instants(column, format)


def parts_by_column(rows: UsableRows, split: str) -> PartOf:
    for batch, where in rows.batches():
        wrong = _by_column(batch, split) == _NO_PART
        if wrong.any():
            row = int(wrong.argmax())
            value = batch.column(batch.schema.names.index(split))[row].as_py()
            raise DataError(f"{where.of(row)}: column {split!r} is {value!r}; expected {', '.join(PARTS[:2])} or {PARTS[2]}")
    return lambda batch, start: _by_column(batch, split)


def _by_column(batch: Any, split: str) -> Array:
    codes, texts = ArrowValues(batch).texts(split)
    return np.array([_NAMES.get((text or "").strip().lower(), _NO_PART) for text in texts], dtype=np.uint8)[codes]


def row_weights(batch: Any, name: str, where: Where) -> Array:
    weights = ArrowValues(batch).numbers(name)
    with np.errstate(invalid="ignore"):
        wrong = ~((weights >= 0) & (weights < np.inf))
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(f"{where.of(row)}: column {name!r} holds weights, 0 or more; this row has {weights[row]:g}")
    return weights
