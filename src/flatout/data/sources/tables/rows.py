"""Rows of a table on their way through: checked, kept in memory between passes where they fit, and cut into even blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flatout.base.errors import DataError
from flatout.base.units import show_bytes
from flatout.data.files.allowance import allowed_bytes
from flatout.data.files.bad import Bad
from flatout.data.fitted.codings import LARGEST
from flatout.data.fitted.values import not_a_date, parse_instants
from flatout.data.sources.tables.arrow import ArrowValues, is_number
from flatout.data.sources.tables.label import bad_labels
from flatout.data.sources.tables.scan import Scan, Where

Array = np.ndarray[Any, Any]

BLOCK_ROWS = 1 << 16
_MOST_BLOCK_BYTES = 2_000_000_000  # of a column of text Arrow holds 2 GB in one piece


class UsableRows:
    """A scan without the rows that can't be used: those raise, or are left out and counted, by `bad`.

    The same rows in the same order in every pass. What was read is kept while it takes less than `keep_bytes`.
    """

    def __init__(
        self,
        scan: Scan,
        bad: Bad,
        keep_bytes: int,
        *,
        columns: Sequence[str],
        label: str | None,
        numbers: Sequence[str],
        dates: dict[str, str | None],
    ) -> None:
        self._scan, self._bad, self._keep_bytes = scan, bad, keep_bytes
        self._columns, self._label = list(columns), label
        self._numbers = [name for name in numbers if is_number(scan.columns[name])]
        self._dates = {name: form for name, form in dates.items() if str(scan.columns[name]) in ("string", "large_string")}
        self._kept: list[tuple[Any, RowPlace]] | None = None
        self._counted, self._all_good = False, True
        self.count: int | None = None

    def batches(self) -> Iterator[tuple[Any, RowPlace]]:
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[Any] | None = []
        held, rows = 0, 0
        for batch, where in self._scan.batches(self._columns):
            usable, place = self._usable(batch, where)
            rows += usable.num_rows
            if kept is not None:
                kept.append((usable, place))
                held += usable.nbytes
                if held > self._keep_bytes:
                    kept = None
            yield usable, place
        self._kept, self._counted, self.count = kept, True, rows
        if not rows:
            raise DataError(f"no row is left to use{'; ' + said if (said := self._bad.summary()) else ''}")

    def blocks(self, training: Any = None) -> Iterator[Any]:
        """Record batches of exactly BLOCK_ROWS rows (the last may be short), wherever files and batches end.

        `training` says of a batch, and the number of its first row, which rows to take.
        """
        import pyarrow as pa

        waiting: list[Any] = []
        rows, held, start = BLOCK_ROWS, 0, 0
        most_bytes = min(_MOST_BLOCK_BYTES, allowed_bytes() // 3)
        for batch, _ in self.batches():
            taken = batch if training is None else _filtered(batch, training(batch, start))
            start += batch.num_rows
            while held + taken.num_rows >= rows:
                waiting.append(taken.slice(0, rows - held))
                yield _joined(pa, waiting)
                taken = taken.slice(rows - held)
                waiting, held = [], 0
            if taken.num_rows:
                waiting.append(taken)
                held += taken.num_rows
                held_bytes = sum(one.nbytes for one in waiting)
                if held_bytes > most_bytes:
                    raise _too_wide(held, held_bytes, most_bytes)
        if waiting:
            yield _joined(pa, waiting)

    def _usable(self, batch: Any, where: Where) -> tuple[Any, RowPlace]:
        if self._counted and self._all_good:
            return batch, RowPlace(where)
        wrong = np.zeros(batch.num_rows, dtype=np.bool_)
        for bad, why in self._checks(batch):
            if bad.any():
                for row in np.flatnonzero(bad & ~wrong).tolist():
                    if not self._counted:
                        self._bad.found(where.of(row), why(row))
                wrong |= bad
        if not wrong.any():
            return batch, RowPlace(where)
        self._all_good = False
        return _filtered(batch, ~wrong), RowPlace(where, np.flatnonzero(~wrong))

    def _checks(self, batch: Any) -> Iterator[tuple[Array, Any]]:
        values = ArrowValues(batch)
        if self._label is not None:
            yield bad_labels(batch, self._label)
        for name in self._numbers:
            column = batch.column(batch.schema.names.index(name))
            if str(column.type) in ("float", "double"):
                numbers = values.numbers(name)
                yield (
                    np.abs(numbers) > LARGEST,
                    lambda row, name=name, numbers=numbers: f"column {name!r} is {numbers[row]:g}, which float32 can't hold",
                )
        for name, form in self._dates.items():
            codes, texts = values.texts(name)
            yield (
                parse_instants(texts, form)[2][codes],
                lambda row, name=name, codes=codes, texts=texts, form=form: not_a_date(name, texts[codes[row]], form),
            )


class RowPlace:
    """Where the rows of a batch stand, some of which may have been left out."""

    def __init__(self, where: Where, rows: Array | None = None) -> None:
        self._where, self._rows = where, rows

    def of(self, row: int) -> str:
        return self._where.of(row if self._rows is None else int(self._rows[row]))

    def among(self, mask: Array) -> RowPlace:
        """Of the rows that `mask` takes."""
        taken = np.flatnonzero(mask)
        return RowPlace(self._where, taken if self._rows is None else self._rows[taken])


def _filtered(batch: Any, mask: Array) -> Any:
    import pyarrow as pa

    return batch if mask.all() else batch.filter(pa.array(mask))


def _joined(pa: Any, batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _too_wide(rows: int, nbytes: int, most: int) -> DataError:
    return DataError(
        f"{rows:,} rows of the table take {show_bytes(nbytes)}, and {BLOCK_ROWS:,} are looked at together, for which there is "
        f"room for {show_bytes(most)}: leave out the column with the long values (drop)"
    )
