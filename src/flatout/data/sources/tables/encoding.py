"""Record batches of a table to encoded rows: checked, encoded with what was fitted on the training rows, and gathered."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flatout.base.errors import DataError
from flatout.base.units import show_bytes
from flatout.data.data import PARTS
from flatout.data.files.allowance import allowed_bytes
from flatout.data.files.bad import Bad, OnBad
from flatout.data.fitted.carried import CarriedColumns
from flatout.data.fitted.codings import LARGEST, UNKNOWN, Date, FoldMeans, Number
from flatout.data.fitted.derived.derivation import RowsNote
from flatout.data.fitted.table_rows import TableHost
from flatout.data.fitted.values import not_a_date, parse_instants
from flatout.data.source import ArraySource, Source
from flatout.data.sources.tables.arrow import ArrowValues, Where, is_number
from flatout.data.sources.tables.kept_rows import KeptRows
from flatout.data.sources.tables.row_files import RowFiles, RowWriter, kept_rows
from flatout.data.sources.tables.scan import Scan, check_column, scan

Array = np.ndarray[Any, Any]

MEMORY_BYTES = 2 << 30
"""Encoded rows of one part that take more are kept on disk. Raw rows that take more are read again in each pass."""

BLOCK_ROWS = 1 << 16
_KEEP_BYTES = 1 << 30  # of other rows, read once to know their types; they are encoded at once after that
_MOST_BLOCK_BYTES = 2_000_000_000  # Arrow holds at most 2 GB of text in one column
_SMALL_BLOCK_BYTES = 4 << 20  # fits into memory everywhere


class UsableRows:
    """The rows of a scan that can be used. Bad rows are reported to `bad`, which raises, or counts them and leaves them out.

    Every pass gives the same rows in the same order. Batches are kept for the next pass while they take less than `keep_bytes`.
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
        self._kept: list[tuple[Any, Where]] | None = None
        self._counted, self._all_good = False, True
        self.count: int | None = None

    def batches(self) -> Iterator[tuple[Any, Where]]:
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
            said = [why for why in (self._bad.summary(), self._scan.left_out()) if why]
            raise DataError("; ".join(["no row is left to use", *said]))

    def blocks(self, training: Any = None) -> Iterator[Any]:
        """Record batches of exactly BLOCK_ROWS rows (the last may be shorter), independent of files and batches.

        `training` gives a mask of the rows to take, from a batch and the number of its first row.
        """
        import pyarrow as pa

        waiting: list[Any] = []
        rows, held, start = BLOCK_ROWS, 0, 0
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
                _check_block(waiting, held)
        if waiting:
            yield _joined(pa, waiting)

    def _usable(self, batch: Any, where: Where) -> tuple[Any, Where]:
        if self._counted and self._all_good:
            return batch, where
        wrong = np.zeros(batch.num_rows, dtype=np.bool_)
        for bad, why in self._checks(batch):
            if bad.any():
                for row in np.flatnonzero(bad & ~wrong).tolist():
                    if not self._counted:
                        self._bad.found(where.of(row), why(row))
                wrong |= bad
        if not wrong.any():
            return batch, where
        self._all_good = False
        return _filtered(batch, ~wrong), where.only(~wrong)

    def _checks(self, batch: Any) -> Iterator[tuple[Array, Any]]:
        """Masks of bad rows, each with a function from a row to the reason."""
        values = ArrowValues(batch)
        if self._label is not None:
            yield _bad_labels(batch, self._label)
        for name in self._numbers:
            column = batch.column(batch.schema.names.index(name))
            if str(column.type) in ("float", "double"):
                numbers = values.numbers(name)
                yield (
                    np.abs(numbers) > LARGEST,
                    lambda row, name=name, numbers=numbers: f"column {name!r} is {numbers[row]:g}, too large for float32",
                )
        for name, form in self._dates.items():
            codes, texts = values.texts(name)
            yield (
                parse_instants(texts, form)[2][codes],
                lambda row, name=name, codes=codes, texts=texts, form=form: not_a_date(name, texts[codes[row]], form),
            )


def _bad_labels(batch: Any, name: str) -> tuple[Array, Callable[[int], str]]:
    """Labels that can't be used, whatever the classes are."""
    column = batch.column(batch.schema.names.index(name))
    missing = np.asarray(column.is_null().to_numpy(zero_copy_only=False))
    if not is_number(column.type):
        return missing, lambda row: f"the label {name!r} is missing"
    numbers = ArrowValues(batch).numbers(name)
    with np.errstate(invalid="ignore"):
        bad = missing | ~(np.abs(numbers) <= LARGEST)

    def why(row: int) -> str:
        if missing[row]:
            return f"the label {name!r} is missing"
        return (
            f"the label {name!r} is {numbers[row]:g}, {'too large for float32' if np.isfinite(numbers[row]) else 'not finite'}"
        )

    return bad, why


@dataclass(frozen=True)
class TableEncoder:
    """Encodes rows of any files with what was fitted on the training rows."""

    host: TableHost

    def read(self, rows: Scan, targets: bool = True, *, on_bad: str = "error", carried: CarriedColumns | None = None) -> Source:
        """All rows, encoded; with the label as y if `targets`. `carried` gets its columns of the same rows."""
        return self.read_noted(rows, targets, bad=Bad(OnBad(on_bad)), carried=carried)[0]

    def read_noted(
        self,
        rows: Scan,
        targets: bool = True,
        *,
        folder: Path | None = None,
        bad: Bad,
        part: str = "",
        carried: CarriedColumns | None = None,
    ) -> tuple[Source, tuple[str, ...]]:
        """`read`, and notes about the rows for the user. `part` ("validation") names them in the notes."""
        unseen = Counter[str]()
        also = carried.sources if carried is not None else []
        rows, kept_rows = self.kept(rows) if targets else (rows, None)
        usable = self.rows(rows, bad, targets, keep_bytes=0, also=also)
        outside = 0 if not targets and self._knows_conditions else None
        kept: list[Any] = []
        gathering = Gathering(folder, rows.rows)
        try:
            for batch, where in usable.batches():
                gathering.add(self.encoded(batch, where, targets, unseen))
                if outside is not None and self.host.derived is not None:
                    outside += int((~self.host.derived.values(ArrowValues(batch)).passing()).sum())
                if also:
                    kept.append(batch.select(also))
            source = gathering.finish()
        finally:
            gathering.discard()
        assert source is not None
        if carried is not None and also:
            carried.take_arrow(kept, as_written=rows.as_written)
        said = [kept_rows.note(part) if kept_rows is not None else self._condition_note(outside, targets), bad.summary()]
        return source, tuple([*unseen_notes(unseen, part), *(note for note in said if note)])

    def kept(self, rows: Scan) -> tuple[Scan, KeptRows | None]:
        """The rows that `where` keeps, with a derived label."""
        if self.host.derived is None:
            return rows, None
        kept = KeptRows(self.host.derived, self.host.label.name)
        return rows.changed_by(kept), kept

    @property
    def _knows_conditions(self) -> bool:
        """Whether the columns of `where` are among those that are read for predictions."""
        derived = self.host.derived
        return derived is not None and bool(derived.where) and set(derived.condition_columns) <= set(self.host.needed(False))

    def _condition_note(self, outside: int | None, targets: bool) -> str | None:
        """For predictions, which are made for every row."""
        derived = self.host.derived
        if targets or derived is None or not derived.where:
            return None
        conditions = " and ".join(derived.where)
        if outside is None:
            beyond = ", ".join(name for name in derived.condition_columns if name not in self.host.needed(False))
            return f"where {conditions}: every row is predicted; without {beyond}, rows unlike training are not counted"
        if not outside:
            return None
        return f"where {conditions} does not hold in {outside:,} rows: training left such rows out, and they are predicted too"

    def scan(self, paths: Any, targets: bool = True, *, also: Sequence[str] = (), **options: Any) -> Scan:
        """The columns needed of other files. Columns that were text in training are read as text: "007" stays "007".

        The columns `also` are read too; those that the model does not use as they are written.
        """
        columns = list(dict.fromkeys([*self.host.needed(targets), *also]))
        unused = [name for name in also if name not in self.host.needed(targets)]
        text = [name for name in self.host.needed(targets=False) if self.host.types[name] == "string"]
        as_text = sorted({*options.get("text", ()), *text} & {*columns})
        return scan(paths, keep_bytes=_KEEP_BYTES, as_written=unused, **{**options, "columns": columns, "text": as_text})

    def rows(self, found: Scan, bad: Bad, targets: bool, keep_bytes: int, also: Sequence[str] = ()) -> UsableRows:
        codings = self.host.codings.columns
        names = [*self.host.needed(targets=False), *([self.host.label.name] if targets else [])]
        for name in names:
            check_column(name, found.columns, "the model was trained with a column that is missing here")
        for name in also:
            check_column(name, found.columns, "keep")
        names = list(dict.fromkeys([*names, *also]))
        numbers = [coding.name for coding in codings if isinstance(coding, Number) and coding.name in names]
        dates = {coding.name: coding.format for coding in codings if isinstance(coding, Date) and coding.name in names}
        label = self.host.label.name if targets else None
        return UsableRows(found, bad, keep_bytes, columns=names, label=label, numbers=numbers, dates=dates)

    def encoded(
        self, batch: Any, where: Where, targets: bool, unseen: Counter[str] | None = None, others: FoldMeans | None = None
    ) -> dict[str, Array]:
        """One record batch; `others` is for training rows of target-encoded columns."""
        raw = ArrowValues(batch)
        host = self.host
        columns = host.codings.encode(raw if host.derived is None else host.values(raw, unseen), unseen, others)
        if targets:
            columns["y"] = self.host.label.encode(raw)
            self._check_known(batch, columns["y"], where)
        return columns

    def _check_known(self, batch: Any, y: Array, where: Where) -> None:
        label = self.host.label
        if label.classes is not None and (y == UNKNOWN).any():
            row = int((y == UNKNOWN).argmax())
            value = batch.column(batch.schema.names.index(label.name))[row].as_py()
            known = ", ".join(label.classes[:8])
            raise DataError(f"{where.of(row)}: label {label.name!r} is {value!r}, which no training row has (known: {known})")


def unseen_notes(unseen: Counter[str], part: str) -> Iterator[str]:
    for name, count in unseen.items():
        if count:
            words = name if isinstance(name, RowsNote) else f"{name!r} has a value unknown from training"
            yield f"{part + ': ' if part else ''}{words} in {count:,} rows"


@dataclass(frozen=True)
class EncodedParts:
    """The sources of PARTS, the weights of the training rows, and the number of unknown values in the other parts by column."""

    sources: list[Source | None]
    weights: Array | None
    unseen: Counter[str]


def encode_parts(
    rows: UsableRows,
    encoder: TableEncoder,
    part_of: Callable[[Any, int], Array],
    folders: Mapping[str, Path],
    training_rows: int,
    weights_of: Callable[[Any, Where], Array] | None,
    others_of: Callable[[Any], FoldMeans | None],
) -> EncodedParts:
    """`part_of` gives the part of each row, a place in PARTS, from a batch and the number of its first row."""
    counts = (training_rows, (rows.count or 0) - training_rows, 0)
    gathering = [Gathering(folders.get(part), count) for part, count in zip(PARTS, counts, strict=True)]
    kept = {PARTS.index(part): kept_rows(folder) for part, folder in folders.items()}
    ready = {part: source for part, source in kept.items() if source is not None}
    weights: list[Array] = []
    unseen: Counter[str] = Counter()
    start = 0
    try:
        for batch, where in rows.batches():
            parts = part_of(batch, start)
            start += batch.num_rows
            for part in np.unique(parts).tolist():
                mask, training = parts == part, part == 0
                mine, here = _filtered(batch, mask), where if mask.all() else where.only(mask)
                if part not in ready:
                    others = others_of(mine) if training else None
                    gathering[part].add(encoder.encoded(mine, here, True, None if training else unseen, others))
                if training and weights_of is not None:
                    weights.append(weights_of(mine, here))
        sources = [ready.get(part) or one.finish() for part, one in enumerate(gathering)]
        return EncodedParts(sources, np.concatenate(weights) if weights else None, unseen)
    finally:
        for one in gathering:
            one.discard()


class Gathering:
    """Collects encoded rows in memory. If they take more than MEMORY_BYTES, all of them go to files in `folder`.

    Without a folder the files are temporary: they are removed with the source.
    """

    def __init__(self, folder: Path | None = None, rows: int | None = None) -> None:
        """`rows` is the expected number of rows, exact or a guess."""
        self._folder = folder
        self._columns: dict[str, Array] = {}
        self._room = rows or BLOCK_ROWS
        self._rows = 0
        self._writer: RowWriter | None = None

    def add(self, piece: Mapping[str, Array]) -> None:
        count = len(next(iter(piece.values())))
        if self._writer is None and not self._has_room(piece, self._rows + count):
            self._writer = RowWriter(self._folder or Path(tempfile.mkdtemp(prefix="flatout-rows-")) / "rows")
            if self._rows:
                self._writer.add({name: column[: self._rows] for name, column in self._columns.items()})
            self._columns = {}
        if self._writer is not None:
            self._writer.add(piece)
        else:
            for name, column in piece.items():
                self._columns[name][self._rows : self._rows + count] = column
        self._rows += count

    def finish(self) -> Source | None:
        """None if there was no row."""
        if self._writer is not None:
            self._writer.finish()
            return RowFiles(self._writer.folder, passing=self._folder is None)
        columns = {name: torch.from_numpy(column[: self._rows]) for name, column in self._columns.items()}
        return ArraySource(columns) if self._rows else None

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()

    def _has_room(self, piece: Mapping[str, Array], rows: int) -> bool:
        """Makes room in memory; False if that would take more than MEMORY_BYTES."""
        grows = bool(self._columns) and rows > self._room
        room = max(rows, 2 * self._room) if grows else max(rows, self._room)
        row_bytes = sum(column.dtype.itemsize * math.prod(column.shape[1:]) for column in piece.values())
        if room * row_bytes > MEMORY_BYTES:
            room = rows  # the guess may be too high
        if room * row_bytes > MEMORY_BYTES:
            return False
        if not self._columns or grows:
            self._room = room
            larger = {name: np.empty((room, *column.shape[1:]), dtype=column.dtype) for name, column in piece.items()}
            for name, column in self._columns.items():
                larger[name][: self._rows] = column[: self._rows]
            self._columns = larger
        return True


def _filtered(batch: Any, mask: Array) -> Any:
    import pyarrow as pa

    return batch if mask.all() else batch.filter(pa.array(mask))


def _joined(pa: Any, batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _check_block(batches: list[Any], rows: int) -> None:
    """DataError if the rows of a block take too much memory."""
    nbytes = sum(batch.nbytes for batch in batches)
    if nbytes <= _SMALL_BLOCK_BYTES:
        return
    most = min(_MOST_BLOCK_BYTES, allowed_bytes() // 3)
    if nbytes > most:
        raise DataError(
            f"{rows:,} rows of the table take {show_bytes(nbytes)}; {BLOCK_ROWS:,} rows are read at a time, and may take "
            f"{show_bytes(most)}: leave out the column with the long values (drop)"
        )
