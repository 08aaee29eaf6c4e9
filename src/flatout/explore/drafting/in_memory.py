"""A recipe for data in memory: a DataFrame, arrays or a Dataset, drafted like one for files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader

from flatout.base.errors import UsageError
from flatout.base.units import show_count
from flatout.data.data import Data
from flatout.data.fitted.array_rows import as_words
from flatout.data.given import as_data, is_pair, joined, kind_of
from flatout.data.sources.datasets.dataset import is_iterable
from flatout.data.sources.tables.frames import arrow_table, is_table
from flatout.data.sources.tables.given import scan_table
from flatout.explore.drafting.arrays import Columns, draft_columns
from flatout.explore.drafting.columns import seen
from flatout.explore.drafting.draft import Draft
from flatout.explore.drafting.kinds import Given
from flatout.explore.drafting.new import draft
from flatout.explore.drafting.sample import TableSample
from flatout.explore.drafting.sizes import DraftTraining, device_kind, for_images, for_table
from flatout.explore.drafting.tables import draft_table
from flatout.explore.drafting.writing import DraftLine

_MOST_ROWS = 200_000  # of a table, to look at
_COLOURS = (1, 3, 4)
_SHARE = 0.2


def draft_given(given: Any, label: str | None, options: Mapping[str, Any]) -> Draft:
    """`options` are those that the user gave for the data: they replace drafted ones."""
    try:
        drafted = _drafted(given, label, dict(options))
    except UsageError as error:  # written for the command line
        words = re.sub(r"--label ([^\s:,]+)", r"label='\1'", str(error))
        raise UsageError(words.replace("--label", "label")) from error
    options = _with_drafted(options, drafted)
    replaced = {*options, *(("holdout",) if options.get("validation") is not None else ())}
    data = [line for line in drafted.data if line.key not in replaced]
    label = next((line.value for line in data if line.key == "label"), None)
    parts = {name: joined(value, label)[0] if label and is_pair(value) else value for name, value in options.items()}
    data += [DraftLine(name, value, "given") for name, value in parts.items()]
    return Draft(drafted.headline, drafted.facts, tuple(data), drafted.objective, drafted.training)


def _with_drafted(options: Mapping[str, Any], drafted: Draft) -> dict[str, Any]:
    """Columns to drop and steps are given in addition to those that were drafted for other columns."""
    asked, lines = dict(options), {line.key: line.value for line in drafted.data if not line.off}
    if asked.get("drop") is not None and "drop" in lines:
        names = [asked["drop"]] if isinstance(asked["drop"], str) else list(asked["drop"])
        asked["drop"] = [*(name for name in lines["drop"] if name not in names), *names]
    if isinstance(asked.get("steps"), Mapping) and isinstance(lines.get("steps"), Mapping):
        asked["steps"] = {**lines["steps"], **asked["steps"]}
    return asked


def _drafted(given: Any, label: str | None, options: dict[str, Any]) -> Draft:
    if isinstance(given, str | Path):
        return draft([str(given)], label, Path.cwd())
    kind = "dataset" if isinstance(given, Data) else kind_of(given)
    if kind == "table":
        whole, label = joined(given, label) if is_pair(given) else (given, label)
        return _table(whole, label, options)
    if kind == "arrays":
        x, y = (given.get("x"), given.get("y")) if isinstance(given, Mapping) else given if is_pair(given) else (given, None)
        if y is None:
            raise UsageError("there is no y to learn from x: give (x, y), or a whole fo.Recipe")
        columns = {"x": x, "y": y} if not isinstance(given, Mapping) else dict(given)
        return draft_columns(Columns(_array(x), _array(y), columns), None)
    made = as_data(given, **({} if label is None else {"label": label}), **_held(given, options))
    return _dataset(given, made, label, options)


def _table(given: Any, label: str | None, options: Mapping[str, Any]) -> Draft:
    table = arrow_table(given) if is_table(given) else _of_columns(given, label)
    dropped = options.get("drop") or ()
    seen_names = [name for name in table.column_names if name not in ([dropped] if isinstance(dropped, str) else dropped)]
    some = table.select(seen_names).slice(0, _MOST_ROWS).combine_chunks()
    columns = {name: seen(name, some.column(name).combine_chunks()) for name in some.column_names}
    sample = TableSample(columns, table.num_rows, True)
    asked = None if label is None else str(label)
    return draft_table(
        [Given(type(given).__name__, "table", ())], asked, Path(), sample, held_in=table, guard=options.get("guard")
    )


def _of_columns(given: Mapping[str, Any], label: str | None) -> Any:
    import pyarrow as pa

    found = scan_table(given, str(label) if label is not None else str(next(iter(given))))
    return pa.Table.from_batches([batch for batch, _ in found.batches()])


def _held(given: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options, and a share to evaluate on if nothing else is and the rows can be split."""
    if isinstance(given, Data):
        return {}
    chosen = any(options.get(name) is not None for name in ("validation", "holdout"))
    rows = given.dataset if isinstance(given, DataLoader) else given
    return dict(options) if chosen or is_iterable(rows) else {**options, "holdout": _SHARE}


def _dataset(given: Any, made: Data, label: str | None, options: dict[str, Any]) -> Draft:
    rows = made.epoch_rows
    x, y = made.shapes_x(), made.target()
    entries = [DraftLine("dataset", given)] + ([DraftLine("label", label)] if label is not None else [])
    if (
        not isinstance(given, Data)
        and not options.get("holdout")
        and made.validation is not None
        and "validation" not in options
    ):
        entries.append(DraftLine("holdout", _SHARE, "this share of the samples is only evaluated on; or validation="))
    if y is None:
        objective = "next_token" if made.vocabulary is not None else "regress"
    elif y.dtype.is_floating_point:
        objective = "regress"
    elif y.shape:
        objective = "multilabel"
    else:
        objective = "binary" if made.classes == 2 else "classify"
    many = rows if rows is not None else 10_000
    words = "samples in their own order" if rows is None else f"{rows:,} samples to train on"
    shape = " x ".join(map(str, x)) or "one number"
    facts = (("x", shape), ("y", "none" if y is None else f"{objective}: {_classes(made)}"))
    return Draft(f"{type(given).__name__}: {words}", facts, tuple(entries), objective, _size(x, many, rows is None))


def _classes(made: Data) -> str:
    return "numbers" if made.classes is None else f"{show_count(made.classes)} classes"


def _size(x: tuple[int, ...], rows: int, endless: bool) -> DraftTraining:
    is_image = len(x) == 3 and x[0] in _COLOURS and min(x[1:]) >= 8
    size = for_images(rows, min(x[1:]), device_kind()) if is_image else for_table(rows, rows)
    return replace(size, budget="1000 steps", evaluate="200 steps") if endless else size


def _array(given: Any) -> np.ndarray[Any, Any]:
    found = as_words(given)
    return found.detach().cpu().numpy() if isinstance(found, Tensor) else found
