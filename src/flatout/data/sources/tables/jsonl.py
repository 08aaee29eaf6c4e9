"""JSON lines: one object a line, one column for each key."""

from __future__ import annotations

import io
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flatout.base.errors import DataError
from flatout.data.files.bad import Bad
from flatout.data.files.damage import in_words, reading
from flatout.data.files.json_objects import parse_object
from flatout.data.files.lines import read_line
from flatout.data.files.places import FilePlace, open_plain
from flatout.data.sources.tables.arrow import Where
from flatout.data.sources.tables.schema import Types, told, wider

_BLOCK_BYTES = 4 << 20


class JsonPart:
    """One file of JSON lines. It is read once when it is opened, to find the types of columns and the bad lines."""

    def __init__(self, place: FilePlace, bad: Bad) -> None:
        self.name = place.name
        self._place, self._bad = place, bad
        self.types: Types = {}
        self._bad_lines = array("q")  # in order: every pass leaves out the same lines, whichever columns are read
        rows = 0
        for block, first_line in self._blocks_of_lines():
            rows += self._survey(block, first_line)
        if not rows:
            left_out = bad.summary()
            raise DataError(f"{self.name} has no rows" if left_out is None else f"{self.name} has no good row: {left_out}")
        self.rows: int | None = rows

    def batches(self, types: Types, rows_at_once: int) -> Iterator[tuple[Any, Where]]:
        rows = 0
        for block, first_line in self._blocks_of_lines():
            table, lines = self._read({name: self.types[name] for name in types}, block, first_line)
            for batch in table.to_batches(max_chunksize=rows_at_once):
                yield batch, Where(self.name, 0, lines[: batch.num_rows], int)
                lines = lines[batch.num_rows :]
                rows += batch.num_rows
        if rows != self.rows:
            raise DataError(f"{self.name} had {self.rows} rows at first and now has {rows}: it was changed while it was read")

    def blocks(self) -> tuple[int, ...] | None:
        return None if self.rows is None else (self.rows,)

    def fingerprint(self) -> str:
        return self._place.fingerprint()

    def _survey(self, block: bytes, first_line: int) -> int:
        """Widens the types by a block; returns the number of good rows."""
        lines = _numbered(block, first_line)
        if self._widened_by(block, len(lines)):
            return len(lines)
        faults = {line: why for line, content in lines.items() if (why := self._fault(content)) is not None}
        good = [line for line in lines if line not in faults]
        faults |= self._refused(lines, good)
        for line in sorted(faults):
            self._bad.found(f"{self.name}, line {line}", faults[line])
            self._bad_lines.append(line)
        return len(lines) - len(faults)

    def _widened_by(self, block: bytes, rows: int) -> bool:
        """Widens the types by a block if all of its lines are good rows; else False."""
        import pyarrow as pa
        from pyarrow import json as arrow_json

        try:
            table = arrow_json.read_json(io.BytesIO(block), _reading(block))
            table.validate(full=True)
            types = {**self.types, **{field.name: _both(self.types.get(field.name), field.type) for field in table.schema}}
        except (pa.ArrowException, ValueError):
            return False
        if None in types.values() or table.num_rows != rows:
            return False
        self.types = types
        return True

    def _fault(self, content: bytes) -> str | None:
        """Why a line is bad; a good line widens the types."""
        import pyarrow as pa

        try:
            values = parse_object(content, numbers=True)
            types = dict(self.types)
            for name, value in values.items():
                kind, known = _kind(value), types.get(name, pa.null())
                if pa.types.is_timestamp(known) and isinstance(value, str):
                    try:
                        pa.array([value]).cast(known)
                        continue
                    except pa.ArrowException:
                        pass
                both = _both(known, kind)
                if both is None:
                    return f"column {name!r} is {told(known)}, this row has {_shortened(value)}"
                types[name] = both
        except (ValueError, pa.ArrowException) as error:  # half of a surrogate pair, lists of mixed types
            return in_words(error)
        self.types = types
        return None

    def _refused(self, lines: Mapping[int, bytes], good: Sequence[int]) -> dict[int, str]:
        """Lines that look right but that Arrow refuses, found by halves, with its messages."""
        import pyarrow as pa
        from pyarrow import json as arrow_json

        if not good:
            return {}
        content = b"\n".join(lines[line] for line in good)
        try:
            table = arrow_json.read_json(io.BytesIO(content), _reading(content), _as(self.types))
            table.validate(full=True)
            if table.num_rows == len(good):
                return {}
            why = "it does not hold one object"
        except (pa.ArrowException, ValueError) as error:
            why = in_words(error)
        if len(good) == 1:
            return {good[0]: why}
        half = len(good) // 2
        return self._refused(lines, good[:half]) | self._refused(lines, good[half:])

    def _read(self, types: Types, block: bytes, first_line: int) -> tuple[Any, np.ndarray[Any, Any]]:
        import pyarrow as pa
        from pyarrow import json as arrow_json

        lines = _numbered(block, first_line)
        left_out = self._bad_lines[bisect_left(self._bad_lines, first_line) :]
        if left_out and next(reversed(lines), 0) >= left_out[0]:
            for line in left_out:
                lines.pop(line, None)
            block = b"\n".join(lines.values())
        schema = pa.schema(list(types.items()))
        if not lines:
            return schema.empty_table(), np.empty(0, np.int64)
        with reading(self.name, "as JSON lines"):
            table = arrow_json.read_json(io.BytesIO(block), _reading(block), _as(types)).select(list(types))
            table.validate(full=True)
        if table.num_rows != len(lines):
            raise DataError(f"{self.name} has other lines than at first: it was changed while it was read")
        return table, np.fromiter(lines, np.int64, len(lines))

    def _blocks_of_lines(self) -> Iterator[tuple[bytes, int]]:
        """Blocks of whole lines of some megabytes, and the number of the first line."""
        line = 1
        with open_plain(self._place) as stream:
            while block := stream.read(_BLOCK_BYTES):
                block += read_line(stream, self.name)
                yield block, line
                line += block.count(b"\n")


def _numbered(block: bytes, first_line: int) -> dict[int, bytes]:
    """The lines that are not blank, by number."""
    return {line: content for line, content in enumerate(block.split(b"\n"), first_line) if content.strip()}


def _as(types: Types) -> Any:
    import pyarrow as pa
    from pyarrow import json as arrow_json

    return arrow_json.ParseOptions(explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior="ignore")


def _kind(value: Any) -> Any:
    import pyarrow as pa

    if value is None:
        return pa.null()
    try:
        return pa.array([value]).type
    except OverflowError:  # an integer beyond 64 bits
        return pa.float64()


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _reading(block: bytes) -> Any:
    from pyarrow import json as arrow_json

    return arrow_json.ReadOptions(use_threads=False, block_size=len(block) + 1)


def _both(known: Any, kind: Any) -> Any | None:
    """Both types widened; texts of which only some look like dates are text."""
    import pyarrow as pa

    if known is None:
        return kind
    both = wider(known, kind)
    words = (pa.types.is_string(known) or pa.types.is_timestamp(known)) and (
        pa.types.is_string(kind) or pa.types.is_timestamp(kind)
    )
    return pa.string() if both is None and words else both
