"""JSON lines: one object a line, one column a name."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from flatout.base.errors import DataError
from flatout.data.bad import Bad
from flatout.data.places import Place
from flatout.data.tables.compressed import open_plain
from flatout.data.tables.schema import Types, Where, told, wider

_BLOCK_BYTES = 4 << 20


class JsonPart:
    """One file of JSON lines. It is read through once when it is opened: what its columns hold, and which lines are bad."""

    def __init__(self, place: Place, bad: Bad) -> None:
        self.name = place.name
        self._place, self._bad = place, bad
        self.types: Types = {}
        rows = 0
        for block, first_line in self._blocks_of_lines():
            rows += self._survey(block, first_line)
        if not rows:
            raise DataError(f"{self.name} has no rows")
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
            raise DataError(f"{self.name} had {self.rows} rows at first and now has {rows}: it was changed meanwhile")

    def blocks(self) -> tuple[int, ...] | None:
        return None if self.rows is None else (self.rows,)

    def fingerprint(self) -> str:
        return self._place.fingerprint()

    def _survey(self, block: bytes, first_line: int) -> int:
        """Widens the types by a block; how many good rows it has."""
        import pyarrow as pa
        from pyarrow import json as arrow_json

        try:
            found = arrow_json.read_json(io.BytesIO(block), _reading(block)).schema
            types = {**self.types, **{field.name: _both(self.types.get(field.name), field.type) for field in found}}
            if None not in types.values():
                self.types = types
                return len([line for line in block.splitlines() if line.strip()])
        except pa.ArrowException:
            pass
        good = 0
        for line, content in enumerate(block.splitlines(), first_line):
            if content.strip():
                why = self._fault(content)
                good += why is None
                if why is not None:
                    self._bad.found(f"{self.name}, line {line}", why)
        return good

    def _fault(self, content: bytes, widen: bool = True) -> str | None:
        """Why a line is bad; a good one widens the types."""
        import pyarrow as pa

        try:
            values = json.loads(content)
        except ValueError as error:
            return f"not JSON: {error}"
        if not isinstance(values, dict):
            return f"expected an object with a value for each column, got {type(values).__name__}"
        types = dict(self.types)
        for name, value in values.items():
            kind = pa.array([value]).type if value is not None else pa.null()
            known = types.get(name, pa.null())
            if pa.types.is_timestamp(known) and isinstance(value, str):
                try:
                    pa.array([value]).cast(known)
                    continue
                except pa.ArrowException:
                    pass
            both = _both(known, kind)
            if both is None or (not widen and both != known):
                return f"column {name!r} is {told(known)}, and here it is {value!r}"
            types[name] = both
        if widen:
            self.types = types
        return None

    def _read(self, types: Types, block: bytes, first_line: int) -> tuple[Any, np.ndarray[Any, Any]]:
        import pyarrow as pa
        from pyarrow import json as arrow_json

        options = arrow_json.ParseOptions(explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior="ignore")
        lines = {line: content for line, content in enumerate(block.splitlines(), first_line) if content.strip()}
        try:
            table = arrow_json.read_json(io.BytesIO(block), _reading(block), options)
            if table.num_rows != len(lines):
                raise pa.ArrowInvalid("rows and lines differ")
        except pa.ArrowException:
            lines = {line: content for line, content in lines.items() if self._fault(content, widen=False) is None}
            table = arrow_json.read_json(io.BytesIO(b"\n".join(lines.values())), _reading(block), options) if lines else None
        if table is None:
            table = pa.schema(list(types.items())).empty_table()
        return table.select(list(types)), np.fromiter(lines, np.int64, len(lines))

    def _blocks_of_lines(self) -> Iterator[tuple[bytes, int]]:
        """Whole lines, some megabytes at a time, and the number of the first."""
        line = 1
        with open_plain(self._place) as stream:
            while block := stream.read(_BLOCK_BYTES):
                block += stream.readline()
                yield block, line
                line += block.count(b"\n")


def _reading(block: bytes) -> Any:
    from pyarrow import json as arrow_json

    return arrow_json.ReadOptions(use_threads=False, block_size=len(block) + 1)


def _both(known: Any, kind: Any) -> Any | None:
    """Words that look like a date in one place and not in another are words."""
    import pyarrow as pa

    if known is None:
        return kind
    both = wider(known, kind)
    words = (pa.types.is_string(known) or pa.types.is_timestamp(known)) and (
        pa.types.is_string(kind) or pa.types.is_timestamp(kind)
    )
    return pa.string() if both is None and words else both
