"""Columns of the data that predictions keep: ids, file names, labels, or any other, row by row as in the data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from flatout.base.errors import DataError, UsageError, did_you_mean

Array = np.ndarray[Any, Any]


class CarriedColumns:
    """Asked for as "id" or, to give it another name, "new=id"; filled by whoever reads the rows."""

    def __init__(self, asked: str | Sequence[str] = ()) -> None:
        written = asked.split(",") if isinstance(asked, str) else list(asked)
        pairs = [(new.strip(), old.strip()) for new, equals, old in (one.partition("=") for one in written) if new.strip()]
        self.wanted = {new: old or new for new, old in pairs}
        if len(self.wanted) != len(pairs):
            raise UsageError(f"keep: a column is named twice: {', '.join(written)}")
        self._columns: dict[str, Array] = {}

    @property
    def sources(self) -> list[str]:
        """The columns of the data to read, each once."""
        return list(dict.fromkeys(self.wanted.values()))

    def take(self, columns: Mapping[str, Any], rows: int) -> None:
        """From columns in memory."""
        self.check(columns)
        for name in self.sources:
            column = columns[name]
            values = column.detach().cpu().numpy() if isinstance(column, Tensor) else np.asarray(column)
            if values.ndim < 1 or len(values) != rows:
                raise DataError(f"keep: {name!r} has {len(values) if values.ndim else 'no'} rows and the data has {rows}")
            self._columns[name] = values

    def keep_rows(self, kept: Array) -> None:
        """Only the rows of a mask, where others were left out later."""
        self._columns = {name: column[kept] for name, column in self._columns.items()}

    def check(self, known: Iterable[str]) -> None:
        names = [str(name) for name in known]
        for name in self.sources:
            if name not in names:
                hint = did_you_mean(name, names) if names else "it has none that can be kept"
                raise DataError(f"keep: the data has no column {name!r}; {hint}")

    def take_arrow(self, pieces: Sequence[Any], as_written: Sequence[str]) -> None:
        """From record batches. Columns `as_written` in a CSV file become numbers if no value would be written differently."""
        import pyarrow as pa

        table = pa.Table.from_batches(pieces)
        for name in self.sources:
            column = table.column(name)
            self._columns[name] = _as_numpy(_as_numbers(column) if name in as_written else column)

    def joined(self, predicted: Mapping[str, Any]) -> dict[str, Any]:
        """The kept columns first, then the predictions."""
        for new, old in self.wanted.items():
            if new in predicted:
                raise UsageError(f"keep: the predictions have a column {new!r} too: give yours another name, own_{new}={old}")
        return {**{new: self._columns[old] for new, old in self.wanted.items()}, **predicted}


def _as_numbers(column: Any) -> Any:
    """Ids such as 007 and values such as 3.10 stay text: as numbers they would be written differently."""
    import pyarrow as pa

    if not pa.types.is_string(column.type):
        return column
    for kind in (pa.int64(), pa.float64()):
        try:
            numbers = column.cast(kind)
        except pa.ArrowInvalid:
            continue
        if numbers.cast(pa.string()).equals(column):
            return numbers
    return column


def _as_numpy(column: Any) -> Array:
    """A missing value of a whole number or a text is None: NumPy's own types have no place for one."""
    import pyarrow as pa

    if pa.types.is_string(column.type) or (column.null_count and not pa.types.is_floating(column.type)):
        values = np.empty(len(column), dtype=object)
        values[:] = column.to_pylist()
        return values
    found: Array = column.to_numpy()
    return found
