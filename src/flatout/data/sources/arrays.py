"""Data from arrays: NumPy, torch, or files of them. Checked before training starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.checks import check_alike, check_finite, check_labels, check_lengths
from flatout.data.data import Data
from flatout.data.files.array_files import file_format, read_array, read_columns
from flatout.data.fitted.array_rows import arrange, as_words, targets_of
from flatout.data.fitted.tensors import to_tensor
from flatout.data.order.keyed import keyed
from flatout.data.order.split import hash_records, held_out
from flatout.data.source import ArraySource, Transform
from flatout.data.transforms import Normalize, parse_transforms


def arrays(
    x: Any,
    y: Any = None,
    *,
    holdout: float = 0.0,
    validation: Any = None,
    classes: int | None = None,
    layout: str | None = None,
    normalize: str | Mapping[str, Any] | Transform | None = None,
    augment: Sequence[Any] = (),
    draw: str | Any = "shuffle",
    seed: int = 0,
    **columns: Any,
) -> Data:
    """x and y (and any other columns) as arrays or paths; or as x alone a mapping of columns, or a file that holds them.

    `holdout` sets a share of the rows aside for validation, by the hash of their content and the seed: no order matters.
    `validation` is other data, in any form that x takes, or a pair (x, y). `normalize="auto"` is fitted on the training rows.
    """
    if holdout and validation is not None:
        raise DataError("holdout and validation are two ways to get validation rows: give one of them")
    names: list[str] = []
    train = _load(x, {"y": y, **columns}, layout, names, "")
    held: dict[str, Tensor] | None = None
    if validation is not None:
        x_held, rest = _as_columns(validation)
        held = _load(x_held, rest, layout, names, "validation ")
        check_alike(train, held)
    classes = check_labels(train, held, classes, names)
    weights = draw if isinstance(draw, str) else to_tensor(draw, "draw")
    if holdout:
        kept, set_aside = _split(train, holdout, seed)
        train, held = _select(train, kept), _select(train, set_aside)
        if isinstance(weights, Tensor) and len(weights) == len(kept) + len(set_aside):
            weights = weights.index_select(0, kept)
    source = ArraySource(train)
    return Data(
        train=source,
        validation=None if held is None else ArraySource(held),
        prepare=_normalizer(normalize, source),
        augment=parse_transforms(augment),
        draw=weights,
        classes=classes,
        labels=tuple(names) or None,
        reading={} if layout is None else {"layout": layout},
    )


def _as_columns(given: Any) -> tuple[Any, dict[str, Any]]:
    if isinstance(given, tuple | list) and len(given) == 2:
        return given[0], {"y": given[1]}
    return given, {}


def _load(x: Any, rest: Mapping[str, Any], layout: str | None, names: list[str], part: str) -> dict[str, Tensor]:
    """All columns as tensors of equal length, checked. `names` collects the class names of labels that are words."""
    written = columns_in_files(x, rest)
    if "x" not in written:
        raise DataError(f"{part}data needs a column 'x' for the inputs, got {', '.join(sorted(written)) or 'nothing'}")
    columns = {name: _targets(array, names, part) if name == "y" else to_tensor(array, name) for name, array in written.items()}
    columns["x"] = arrange(columns["x"], layout)
    check_lengths(columns, part)
    for name, tensor in columns.items():
        check_finite(tensor, part + name)
    return columns


def columns_in_files(x: Any, rest: Mapping[str, Any]) -> dict[str, Any]:
    """Columns by name, from arrays and files."""
    written = dict(x) if isinstance(x, Mapping) else _read_file_of_columns(x, rest)
    written.update({name: column for name, column in rest.items() if column is not None})
    paths = {name: Path(column) for name, column in written.items() if isinstance(column, str | os.PathLike)}
    return {**written, **{name: read_array(path, name) for name, path in paths.items()}}


def _read_file_of_columns(x: Any, rest: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(x, str | os.PathLike) and rest.get("y") is None and file_format(Path(x)) in ("npz", "safetensors"):
        columns = read_columns(Path(x))
        return dict(columns) if len(columns) > 1 else {"x": next(iter(columns.values()))}
    return {"x": x}


def _targets(array: Any, names: list[str], part: str) -> Tensor:
    """Integers as int64; words as their place among the sorted words, which `names` collects."""
    words = as_words(array)
    if isinstance(words, np.ndarray) and words.dtype.kind in "US" and not names:
        names.extend(str(name) for name in np.unique(words.astype(str)))
    return targets_of(words, names, part)


def _split(columns: Mapping[str, Tensor], share: float, seed: int) -> tuple[Tensor, Tensor]:
    """The rows to train on and those to validate on, in order. The content of a row decides, not its place."""
    if not 0 < share < 1:
        raise DataError(f"holdout is the share of rows to validate on, between 0 and 1, got {share}")
    rows = len(columns["x"])
    if rows < 2:
        raise DataError(f"holdout={share} needs 2 rows or more to split, got {rows}")
    records = {
        name: column.view(torch.uint8).numpy() if column.dtype == torch.bfloat16 else column.numpy()
        for name, column in columns.items()
    }
    aside = torch.from_numpy(held_out(hash_records(records, keyed(seed, "holdout")), share))
    return (~aside).nonzero().squeeze(1), aside.nonzero().squeeze(1)


def _select(columns: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    return {name: tensor.index_select(0, rows) for name, tensor in columns.items()}


def _normalizer(normalize: str | Mapping[str, Any] | Transform | None, source: ArraySource) -> tuple[Transform, ...]:
    if normalize is None:
        return ()
    if normalize == "auto":
        return (Normalize.fit(source),)
    if isinstance(normalize, Mapping):
        return parse_transforms([{"normalize": normalize}])
    if isinstance(normalize, str | bool | int | float | list | tuple):
        raise DataError(f"normalize is 'auto', or scale, mean and std; got {normalize!r}")
    return (normalize,)
