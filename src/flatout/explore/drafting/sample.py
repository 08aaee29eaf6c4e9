"""The first rows of a table, whatever its format, and what had to be told to the reader of its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flatout.base.errors import DataError
from flatout.data.files.places import FilePlace, find
from flatout.data.files.unpacking import open_plain
from flatout.data.sources.tables.cells import with_commas
from flatout.data.sources.tables.scan import SUFFIXES, scan
from flatout.explore.drafting.columns import WORDS, SampledColumn, missing_marks, seen
from flatout.explore.drafting.dialect import FileStart, dialect_of
from flatout.explore.drafting.kinds import Given

_MOST_ROWS, _MOST_BYTES = 200_000, 256 << 20
_UNPACK_BYTES = 128 << 20
_BINARY = (".parquet", ".pq", ".parq", ".arrow", ".feather", ".ipc", ".arrows")


@dataclass(frozen=True)
class TableSample:
    """The first rows of a table. `rows` counts all of its rows, as far as is known: `exact` says how far."""

    columns: dict[str, SampledColumn]
    rows: int
    exact: bool
    options: dict[str, Any] = field(default_factory=dict)
    seen: dict[str, str] = field(default_factory=dict)
    bad: str | None = None

    @property
    def whole(self) -> bool:
        """Whether the sample is all there is."""
        return self.exact and next(iter(self.columns.values())).rows == self.rows


def sample_of(given: Sequence[Given], label: str | None = None) -> TableSample:
    """DataError where the files can't be read as a table at all.

    A strange word in the column `label`, once that is known, is a bad label; in other columns of numbers it means "missing".
    """
    places = find([one.typed for one in given], None, "table", SUFFIXES)
    with open_plain(places[0]) as file:
        start = file.read(64).lstrip()
    if start.startswith((b"PAR1", b"ARROW1")) or places[0].name.lower().endswith(_BINARY):
        return _binary(given)
    return _lines(places) if start[:1] in (b"{", b"[") else _csv(places, label)


def _binary(given: Sequence[Given]) -> TableSample:
    """Parquet and Arrow say themselves what they hold."""
    found = scan([one.typed for one in given])
    columns = {name: seen(name, values) for name, values in _read(found).items()}
    return TableSample(columns, found.rows or 0, True)


def _lines(places: Sequence[FilePlace]) -> TableSample:
    head = FileStart.of(places[0])
    with head.on_disk() as path:
        found = scan(path.name, base_folder=path.parent, format="jsonl", on_bad="skip")
        columns = {name: seen(name, values) for name, values in _read(found).items()}
        return TableSample(columns, *_all_rows(places, head, found.rows or 0), bad=found.bad.summary())


def _csv(places: Sequence[FilePlace], label: str | None) -> TableSample:
    head = FileStart.of(places[0])
    dialect = dialect_of(head)
    with head.on_disk() as path:
        told = {"format": "csv", "on_bad": "skip", "base_folder": path.parent, **dialect.options}
        found = scan(path.name, text=dialect.columns, **told)
        cells = _read(found)
    options, words = dict(dialect.options), dict(dialect.seen)
    if commas := [name for name, column in cells.items() if with_commas(column) is not None]:
        _take_commas(commas, cells, options, words)
    marks = sorted({mark for column in cells.values() for mark in missing_marks(column)})
    if label in cells:
        marks = [mark for mark in marks if mark not in seen(label, cells[label], marks).marks]
    columns = {name: seen(name, values, None if name in options.get("text", ()) else marks) for name, values in cells.items()}
    if marks:
        options["na"], words["na"] = marks, "what stands for a missing value"
    if zeros := [name for name, column in columns.items() if column.zeros]:
        options["text"], words["text"] = (
            [*options.get("text", ()), *zeros],
            "digits with zeros in front: taken as text, not as numbers",
        )
    misfits = [
        f"{column.bad} {'cell' if column.bad == 1 else 'cells'} of {name!r} not {WORDS[column.kind]}: {column.stray}"
        for name, column in columns.items()
        if column.bad
    ]
    bad = "; ".join(filter(None, [found.bad.summary(), *misfits]))
    return TableSample(columns, *_all_rows(places, head, found.rows or 0), options, words, bad or None)


def _take_commas(names: Sequence[str], cells: dict[str, Any], options: dict[str, Any], words: dict[str, str]) -> None:
    """1,5 is one and a half where columns are parted by something else; where they are not, it parts thousands."""
    import pyarrow.compute as pc

    if options.get("delimiter", ",") == ",":
        options["text"] = list(names)
        words["text"] = "numbers with commas in them, such as 1,234, are text: write them without, for numbers"
        return
    options["decimal"], words["decimal"] = ",", "1,5 is one and a half"
    cells.update({name: pc.replace_substring(cells[name], ",", ".") for name in names})


def _read(found: Any) -> dict[str, Any]:
    """Up to so many rows, a whole Arrow array a column."""
    import pyarrow as pa

    pieces, rows, held_bytes = [], 0, 0
    for batch, _ in found.batches():
        pieces.append(batch)
        rows, held_bytes = rows + batch.num_rows, held_bytes + batch.nbytes
        if rows >= _MOST_ROWS or held_bytes >= _MOST_BYTES:
            break
    if not pieces:
        raise DataError("the table has no rows")
    whole = pa.Table.from_batches(pieces).combine_chunks()
    return {name: _one(whole.column(name)) for name in whole.column_names}


def _one(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _all_rows(places: Sequence[FilePlace], head: FileStart, rows: int) -> tuple[int, bool]:
    """How many rows all files have, by the bytes that the first ones take; exact where the head is everything."""
    if head.whole and len(places) == 1:
        return rows, True
    return max(rows, round(rows * sum(map(plain_bytes, places)) / max(1, len(head.content)))), False


def plain_bytes(place: FilePlace) -> int:
    """Unpacked. A large packed file is not read to its end: three times its size is as good a guess as any."""
    with place.open() as raw, open_plain(place) as plain:
        if raw.read(64) == plain.peek(64)[:64]:
            return place.size
        if place.size > _UNPACK_BYTES:
            return 3 * place.size
        return sum(len(piece) for piece in iter(lambda: plain.read(1 << 20), b""))
