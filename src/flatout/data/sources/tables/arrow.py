"""Record batches of a table: their values as NumPy arrays, and the places of their rows in the file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flatout.base.errors import DataError, did_you_mean
from flatout.data.fitted.values import Array, Texts, not_a_date, parse_instants, to_text


class ArrowValues:
    """The `Values` of a record batch, equal to those of `PlainValues`, without a Python object for each row."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self.rows: int = batch.num_rows

    def numbers(self, name: str) -> Array:
        import pyarrow as pa

        column = self._column(name)
        if pa.types.is_null(column.type):
            return np.full(self.rows, np.nan)
        if not is_number(column.type) and not pa.types.is_boolean(column.type):
            raise DataError(f"column {name!r} was numeric in training and is {column.type} here")
        if column.null_count:
            if pa.types.is_boolean(column.type):
                column = column.cast(pa.uint8())
            column = column.cast(pa.float64(), safe=False)
        with np.errstate(invalid="ignore"):  # a float16 that is NaN
            return np.asarray(column.to_numpy(zero_copy_only=False)).astype(np.float64, copy=False)

    def instants(self, name: str, format: str | None) -> tuple[Array, Array]:
        import pyarrow as pa

        column = self._column(name)
        kind = column.type
        if pa.types.is_null(kind):
            return np.zeros(self.rows, dtype=np.int64), np.ones(self.rows, dtype=np.bool_)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            codes, texts = self.texts(name)
            instants, missing, bad = parse_instants(texts, format)
            if bad[codes].any():
                row = int(bad[codes].argmax())
                raise DataError(f"row {row}: {not_a_date(name, texts[codes[row]], format)}")
            return instants[codes], missing[codes]
        if pa.types.is_time(kind):
            column = column.cast(pa.time64("us"), safe=False).cast(pa.int64())
        elif is_date(kind):
            column = _microseconds(column).cast(pa.int64())
        else:
            raise DataError(f"column {name!r} held dates in training and is {kind} here")
        missing = np.asarray(column.is_null().to_numpy(zero_copy_only=False))
        return np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False)), missing

    def texts(self, name: str) -> Texts:
        import pyarrow as pa

        column = self._column(name)
        if pa.types.is_null(column.type):
            return np.zeros(self.rows, dtype=np.int64), [None]
        if is_nested(column.type):
            raise DataError(
                f"column {name!r} is {column.type}, and a table needs one value a row: leave the column out with drop"
            )
        encoded = (_microseconds(column) if pa.types.is_timestamp(column.type) else column).dictionary_encode()
        texts = encoded.dictionary.to_pylist()
        if not pa.types.is_string(column.type):
            texts = [to_text(value, name) for value in texts]
        codes = np.asarray(encoded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)).astype(np.int64)
        return codes, [*texts, None]

    def _column(self, name: str) -> Any:
        import pyarrow as pa

        names = self._batch.schema.names
        if name not in names:
            raise DataError(f"no column {name!r}, which the model was trained with; {did_you_mean(name, names)}")
        column = self._batch.column(names.index(name))
        return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


class Where:
    """The places of the rows of one batch in `file`, for messages: numbers from `first` on, or those in `rows`, from 0.

    `line` gives the line of a row in a text file; without it, messages count rows from 1.
    """

    def __init__(self, file: str, first: int = 0, rows: Any = None, line: Callable[[int], int] | None = None) -> None:
        self.file = file
        self._first = first
        self._rows = rows
        self._line = line

    def of(self, i: int) -> str:
        """The place of row `i` of the batch: "clicks/part-3.csv, line 17"."""
        row = self._first + i if self._rows is None else int(self._rows[i])
        return f"{self.file}, row {row + 1}" if self._line is None else f"{self.file}, line {self._line(row)}"

    def part(self, start: int, stop: int) -> Where:
        """The places of rows `start` to `stop`."""
        rows = None if self._rows is None else self._rows[start:stop]
        return Where(self.file, self._first + start, rows, self._line)

    def only(self, kept: np.ndarray[Any, Any]) -> Where:
        """The places of the rows that a bool mask keeps."""
        rows = np.arange(self._first, self._first + len(kept)) if self._rows is None else np.asarray(self._rows)
        return Where(self.file, 0, rows[kept], self._line)


def is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def is_date(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def is_nested(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _microseconds(column: Any) -> Any:
    """Without a time zone: a time with a zone is stored in UTC."""
    import pyarrow as pa

    zone = getattr(column.type, "tz", None)
    return (
        column.cast(pa.timestamp("us", tz=zone), safe=False)
        .cast(pa.int64() if zone else pa.timestamp("us"))
        .cast(pa.timestamp("us"))
    )
