"""Copies of training rows among the rows that a model is judged by: it can look them up instead of learning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flatout.data.order.split import hash_batch
from flatout.explore.drafting.columns import SampledColumn
from flatout.explore.guard.finding import GuardFinding
from flatout.explore.guard.look import HeldFile, TableLook, coded

Array = np.ndarray[Any, Any]

_LEAST_SHARE, _LEAST_ROWS = 0.01, 3
_BY_CHANCE = 1e-4  # rows expected to agree in all values by chance: few values in few columns make equal rows


def find_duplicates(look: TableLook, ids: Sequence[str]) -> Iterator[GuardFinding]:
    """`ids` are columns that differ between copies."""
    columns = [column for column in look.inputs if column.name not in ids]
    if not columns:
        return
    names = [column.name for column in (*columns, look.label)]
    hashes = _hashes(look.columns, names)
    for file in look.held:
        yield from _across(look, file, names, hashes)
    if look.random_holdout and not look.held and ids:
        yield from _within(look, columns, hashes)


def _across(look: TableLook, file: HeldFile, names: Sequence[str], hashes: Array) -> Iterator[GuardFinding]:
    if any(name not in file.columns or _type(file.columns[name]) != _type(look.columns[name]) for name in names):
        return
    other = _hashes(file.columns, names)
    copies = np.isin(other, hashes[_distinct_rows([look.columns[name] for name in names])])
    count = int(copies.sum())
    if count < max(_LEAST_ROWS, _LEAST_SHARE * len(other)):
        return
    yield GuardFinding(
        "duplicate", file.name, count / len(other),
        f"{count:,} of its {len(other):,} rows ({count / len(other):.1%}) are also training rows",
        f"remove them from one of the files: scores on {file.name} are too good",
    )  # fmt: skip


def _within(look: TableLook, columns: Sequence[SampledColumn], hashes: Array) -> Iterator[GuardFinding]:
    """Rows that differ only in an id: the split, by the hash of whole rows, would put copies on both sides."""
    _, place, rows = np.unique(hashes, return_inverse=True, return_counts=True)
    copies = (rows[place.reshape(-1)] > 1) & _distinct_rows([*columns, look.label])
    count = int(copies.sum())
    if count < max(_LEAST_ROWS, _LEAST_SHARE * look.rows):
        return
    yield GuardFinding(
        "duplicate", "rows", count / look.rows,
        f"{count:,} of {look.rows:,} ({count / look.rows:.1%}) have a copy that differs only in an id",
        "keep copies on one side with holdout_group",
        {"holdout_group": [column.name for column in columns]},
        "copies stay on one side of the split",
    )  # fmt: skip


def _hashes(columns: Mapping[str, SampledColumn], names: Sequence[str]) -> Array:
    import pyarrow as pa

    return hash_batch(pa.table({name: columns[name].values for name in names}), 0)


def _distinct_rows(columns: Sequence[SampledColumn]) -> Array:
    """bool [rows]: whether so many of its values are rare that no other row would have all of them by chance."""
    expected = np.full(columns[0].rows, np.log(columns[0].rows))
    for column in columns:
        codes = coded(column)
        expected += np.log(np.maximum(1, np.bincount(codes)) / len(codes))[codes]
    rare: Array = expected < np.log(_BY_CHANCE)
    return rare


def _type(column: SampledColumn) -> str:
    return column.kind
