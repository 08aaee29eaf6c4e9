"""Copies of training rows among the rows that a model is judged by: it can look them up instead of learning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatout.data.order.split import hash_batch
from flatout.explore.drafting.columns import SampledColumn
from flatout.explore.guard.finding import GuardFinding
from flatout.explore.guard.look import HeldFile, TableLook, coded

Array = np.ndarray[Any, Any]

_LEAST_SHARE, _LEAST_ROWS = 0.01, 3
_LEAST_SHARE_CHANGED, _MANY_COLUMNS = 0.02, 6  # of copies with one value changed
_TIMES_THE_SECOND = 4
_LEAST_SHARE_EQUAL = 0.05  # without an id, two rows may be equal and no copies
_BY_CHANCE = 1e-4  # rows expected to agree in all values by chance: few values in few columns make equal rows


def find_duplicates(look: TableLook, ids: Sequence[str], almost: bool = True) -> Iterator[GuardFinding]:
    """`ids` are columns that differ between copies. Not `almost`: rows of one file that differ in one value are no copies,
    as those of one sensor at two times or of one user."""
    columns = [column for column in look.inputs if column.name not in ids]
    if not columns:
        return
    rows = RowHashes.of([*columns, look.label])
    for file in look.held:
        yield from _across(look, file, rows, [column.name for column in columns])
    if look.random_holdout and not look.held:
        yield from _within(look, columns, rows, bool(ids), almost)


def _across(look: TableLook, file: HeldFile, rows: RowHashes, names: Sequence[str]) -> Iterator[GuardFinding]:
    wanted = [*names, look.label.name]
    if any(name not in file.columns or file.columns[name].kind != look.columns[name].kind for name in wanted):
        return
    other = RowHashes.of([file.columns[name] for name in wanted])
    copies = np.isin(other.whole, rows.whole[rows.telling()])
    count, changed = int(copies.sum()), ""
    if count < max(_LEAST_ROWS, _LEAST_SHARE * other.count):
        counts = {name: int(np.isin(other.without(name), rows.without(name)[rows.telling(name)]).sum()) for name in names}
        found = _changed(counts, other.count)
        if found is None:
            return
        changed, count = found, counts[found]
    yield GuardFinding(
        "duplicate", file.name, count / other.count,
        f"{count:,} of its {other.count:,} rows ({count / other.count:.1%}) are also training rows"
        + (f", but for {changed}" if changed else ""),
        f"remove them from one of the files: scores on {file.name} are too good",
    )  # fmt: skip


def _within(
    look: TableLook, columns: Sequence[SampledColumn], rows: RowHashes, ids: bool, almost: bool
) -> Iterator[GuardFinding]:
    """Copies in one file. The split, by the hash of whole rows, keeps those together that agree in everything."""
    exact = _copies(rows.whole, rows.telling())
    if exact >= max(_LEAST_ROWS, (_LEAST_SHARE if ids else _LEAST_SHARE_EQUAL) * look.rows):
        yield _copied(look, exact, " that differs only in an id" if ids else "", [one.name for one in columns] if ids else [])
        return
    if not almost or len(columns) < _MANY_COLUMNS:
        return
    counts = {one.name: _copies(rows.without(one.name), rows.telling(one.name)) for one in columns}
    changed = _changed(counts, look.rows)
    if changed is not None:
        others = [one.name for one in columns if one.name != changed]
        yield _copied(look, counts[changed], f" that differs only in {changed}", others)


def _changed(counts: Mapping[str, int], rows: int) -> str | None:
    """The column that was changed in copies: of rows that are alike by nature, many agree without any one column."""
    if len(counts) < _MANY_COLUMNS:
        return None
    second, most = sorted(counts.values())[-2:]
    if most < max(_LEAST_ROWS, _LEAST_SHARE_CHANGED * rows) or most < _TIMES_THE_SECOND * second:
        return None
    return max(counts, key=lambda name: counts[name])


def _copies(hashes: Array, telling: Array) -> int:
    _, place, rows = np.unique(hashes, return_inverse=True, return_counts=True)
    return int(((rows[place.reshape(-1)] > 1) & telling).sum())


def _copied(look: TableLook, count: int, how: str, group: Sequence[str]) -> GuardFinding:
    figure = f"{count:,} of {look.rows:,} ({count / look.rows:.1%}) have a copy{how}"
    if not group:
        return GuardFinding(
            "duplicate", "rows", count / look.rows, figure,
            "equal rows are on one side of the split; remove copies if they are not as many as there should be",
        )  # fmt: skip
    return GuardFinding(
        "duplicate", "rows", count / look.rows, figure, "keep copies on one side with holdout_group",
        {"holdout_group": list(group)}, "copies stay on one side of the split",
    )  # fmt: skip


@dataclass(frozen=True)
class RowHashes:
    """Hashes of all columns but any one: the hash of a row is the sum of the hashes of its cells."""

    whole: Array
    cells: Mapping[str, Array]
    frequency: Mapping[str, Array]  # logarithm of how frequent the value of each row is

    @classmethod
    def of(cls, columns: Sequence[SampledColumn]) -> RowHashes:
        cells = {column.name: _hashes(column) for column in columns}
        with np.errstate(over="ignore"):
            whole: Array = np.asarray(np.sum(list(cells.values()), axis=0, dtype=np.uint64))
        return cls(whole, cells, {column.name: _frequency(column) for column in columns})

    @property
    def count(self) -> int:
        return len(self.whole)

    def without(self, name: str) -> Array:
        return self.whole - self.cells[name]

    def telling(self, but: str = "") -> Array:
        """bool [rows]: whether so many of its values are rare that no other row would have all of them by chance."""
        expected = np.log(self.count) + sum(one for name, one in self.frequency.items() if name != but)
        rare: Array = expected < np.log(_BY_CHANCE)
        return rare


def _hashes(column: SampledColumn) -> Array:
    import pyarrow as pa

    return hash_batch(pa.table({column.name: column.values}), 0)


def _frequency(column: SampledColumn) -> Array:
    codes = coded(column)
    found: Array = np.log(np.maximum(1, np.bincount(codes)) / len(codes))[codes]
    return found
