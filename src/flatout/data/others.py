"""Data other than that of a run, prepared with what the run fitted, without its training data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from flatout.base.errors import DataError, UsageError
from flatout.data.data import Data
from flatout.data.files.places import located
from flatout.data.fitted.carried import CarriedColumns
from flatout.data.fitted.fitted import Fitted
from flatout.data.fitted.table_rows import TableHost
from flatout.data.fitted.tensors import check_ids
from flatout.data.given import as_data, is_pair, is_samples, joined
from flatout.data.source import ArraySource, Batch, Source
from flatout.data.sources.arrays import columns_in_files
from flatout.data.sources.tables.frames import is_lazy

_CHECK_ROWS = 4096


def other_rows(
    fitted: Fitted,
    given: Any,
    *,
    targets: bool,
    cache: Path | None = None,
    carried: CarriedColumns | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Source:
    """From files (a path), from memory, or as Data. `targets`: y is needed, with the meaning it had in training.

    `carried` gets the columns that it asks for, of the same rows; `say` gets notes about the rows of a table: values that
    training never saw.
    """
    kind = fitted.host.kind
    given = _in_known_form(fitted, given)
    carried = carried or CarriedColumns()
    if carried.wanted and (isinstance(given, Data) or kind == "text" or kind == "sequences"):
        what = "data in memory as fo.data" if isinstance(given, Data) else f"a run on {kind}"
        raise UsageError(f"keep needs rows with named columns or files, and this is {what}: leave keep out")
    if isinstance(given, Data):
        return _padded(fitted, given.train)
    if kind == "table":
        from flatout.data.sources.tables.others import other_table  # kinds of data load when they are used

        return other_table(fitted, given, targets, carried, say)
    path = located(str(given), Path.cwd()) if isinstance(given, str | Path) else None
    if kind == "photos" and path is not None:
        from flatout.data.sources.photos.images import other_images

        photos = other_images(fitted, path, targets)
        if carried.wanted:
            carried.take({"file": photos.names}, len(photos))
        return photos
    if kind == "text" and path is not None:
        from flatout.data.sources.texts.text import other_text

        return other_text(fitted, path, cache)
    if kind == "sequences" and not isinstance(given, Mapping):
        from flatout.data.sources.texts.sequences import other_sequences

        return other_sequences(fitted, given if path is None else path, targets)
    if kind == "photos":
        from flatout.data.sources.photos.held import HeldPhotos

        carried.check(())
        return HeldPhotos(fitted.rows(given))
    return _held(fitted, given if path is None else path, targets, carried)


def _in_known_form(fitted: Fitted, given: Any) -> Any:
    """(x, y), a Dataset or a DataLoader in a form that the run's kind of data has."""
    if is_lazy(given):
        raise UsageError(f"the data is a {type(given).__name__}, a query that has not run: call its collect() first")
    if isinstance(fitted.host, TableHost):
        return joined(given, fitted.host.label.name)[0] if is_pair(given) else given
    if fitted.host.kind == "arrays" and is_pair(given):
        return {"x": given[0], "y": given[1]}
    return as_data(given) if is_samples(given) else given


def own_rows(
    source: Source, columns: Mapping[str, torch.Tensor], carried: CarriedColumns, say: Callable[[str], None]
) -> dict[str, torch.Tensor]:
    """Predictions without rows whose photo could not be decoded, where another one was read; `carried` loses them too."""
    stand_ins = source.stand_ins(torch.arange(len(source))) if source.stream is None else None
    if stand_ins is None or not stand_ins.any():
        return dict(columns)
    kept = ~stand_ins
    carried.keep_rows(kept.numpy())
    if source.bad is not None and (note := source.bad.summary()):
        say(note)
    return {name: column[kept] for name, column in columns.items()}


def other_batch(fitted: Fitted, given: Any) -> Batch:
    """One batch of raw rows in memory, before the device part. A table may be a pyarrow.Table or a DataFrame."""
    if fitted.host.kind != "table":
        return fitted.rows(given)
    rows = other_rows(fitted, given, targets=False)
    return rows.read(torch.arange(len(rows)))


def _held(fitted: Fitted, given: Any, targets: bool, carried: CarriedColumns) -> ArraySource:
    """Columns in memory, or in files of arrays."""
    if not isinstance(given, str | Mapping):
        carried.check(())
        return ArraySource(fitted.rows(given))
    columns = columns_in_files(given, {})
    if carried.wanted:
        carried.take(columns, len(columns[next(iter(columns))]))
    if not targets:
        columns.pop("y", None)  # its content does not matter
    try:
        return ArraySource(fitted.rows(columns))
    except DataError as error:
        raise DataError(f"{given}: {error}" if isinstance(given, str) else str(error)) from error


def _padded(fitted: Fitted, source: Source) -> Source:
    """Rows of tokens, padded to the length that the model was trained with."""
    return source.padded_to(fitted.schema["x"].shape[0]) if fitted.host.kind == "sequences" else source


def check_tokens(given: Data, vocabulary: int) -> None:
    """DataError if other data has tokens outside of the model's vocabulary."""
    rows = given.train
    if (given.vocabulary is not None and given.vocabulary <= vocabulary) or not rows.in_memory or "x" not in rows.schema:
        return
    for start in range(0, len(rows), _CHECK_ROWS):
        some = torch.arange(start, min(start + _CHECK_ROWS, len(rows)))
        check_ids(rows.read(some)["x"], vocabulary, "x", first_row=start)
