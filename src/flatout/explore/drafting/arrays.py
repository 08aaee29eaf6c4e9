"""A recipe for arrays: a file with x and y, or a file for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from flatout.base.errors import UsageError
from flatout.data.files.array_files import file_format, read_array, read_columns
from flatout.explore.drafting.draft import Draft
from flatout.explore.drafting.kinds import Given, relative, split_by_name
from flatout.explore.drafting.sizes import DraftTraining, device_kind, for_images, for_table, scaled_lr
from flatout.explore.drafting.writing import DraftLine

Array = np.ndarray[Any, Any]
_COLOURS = (1, 3, 4)
_TARGET_NAMES = ("label", "target", "y_", "_y", "class")
_EXAMPLE = "numpy.savez('train.npz', x=x, y=y)"


@dataclass(frozen=True)
class Columns:
    """x and y, and the names of their files in a recipe."""

    x: Array
    y: Array
    written: Any


def is_tokens(found: Sequence[Given]) -> bool:
    """A flat .npy of integers is a stream of tokens."""
    if len(found) != 1 or file_format(found[0].files[0]) != "npy":
        return False
    array = _plain(read_array(found[0].files[0], "x"))
    return array.ndim == 1 and array.dtype.kind in "ui"


def draft_arrays(found: Sequence[Given], asked: str | None, folder: Path) -> Draft:
    if asked not in (None, "y"):
        raise UsageError(f"--label {asked}: arrays are learned from their y; save the labels under that name: {_EXAMPLE}")
    training, held = split_by_name(found)
    columns = _columns(training, folder)
    validation = _columns(held, folder) if held else None
    names = [given.name for given in training], [given.name for given in held]
    return draft_columns(columns, validation, *names)


def draft_columns(
    columns: Columns, validation: Columns | None, names: Sequence[str] = (), held_names: Sequence[str] = ()
) -> Draft:
    """`names` and `held_names` are those of the files, if the arrays come from files."""
    x, y = columns.x, columns.y
    layout = _layout(x)
    share = 0.0 if validation else 0.2
    size = _size(x, layout, round(len(x) * (1 - share)))
    entries = [DraftLine("arrays", columns.written, f"x is {_shape(x)}, y is {_shape(y)}")]
    if layout in ("hwc", "chw"):
        entries.append(
            DraftLine("layout", layout, "rows are height x width x colours" if layout == "hwc" else "colours come first")
        )
    if x.dtype.kind in "uif":
        entries.append(DraftLine("normalize", "auto", "mean 0 and deviation 1, fitted on the training rows"))
    if validation is not None:
        entries.append(DraftLine("validation", validation.written, "only evaluated on"))
    else:
        entries.append(DraftLine("holdout", share, "this share of the rows is only evaluated on; or validation: other.npz"))
    objective, words = _objective(y)
    if objective == "regress":
        size = replace(size, lr=scaled_lr(size.lr, float(np.sqrt(np.mean(y.astype(np.float64) ** 2)))))
    facts = [("x", _shape(x) + (", images" if layout else "")), ("y", f"{_shape(y)}: {words}")]
    facts += [("validation", ", ".join(held_names))] if held_names else []
    headline = f"{', '.join(names) + ': ' if names else ''}arrays of {len(x):,} rows"
    return Draft(headline, tuple(facts), tuple(entries), objective, size)


def _columns(given: Sequence[Given], folder: Path) -> Columns:
    if len(given) == 1:
        path = given[0].files[0]
        kind = file_format(path)
        found = read_columns(path) if kind in ("npz", "safetensors") else {path.name: read_array(path, "x")}
        if not {"x", "y"} <= set(found):
            raise UsageError(
                f"{given[0].typed} holds {', '.join(found)}: expected x, the inputs, and y, what to learn, in one file "
                f"({_EXAMPLE}), or a file for each"
            )
        return Columns(_plain(found["x"]), _plain(found["y"]), relative(given[0].typed, folder))
    if len(given) != 2:
        names = ", ".join(one.name for one in given)
        raise UsageError(f"expected one file with x and y ({_EXAMPLE}), or one for each of them; got {names}")
    arrays = {one.typed: _plain(read_array(one.files[0], "x")) for one in given}
    x, y = sorted(given, key=lambda one: (_is_target(one.name), arrays[one.typed].ndim < max(a.ndim for a in arrays.values())))
    files: Mapping[str, str] = {"x": relative(x.typed, folder), "y": relative(y.typed, folder)}
    return Columns(arrays[x.typed], arrays[y.typed], files)


def _is_target(name: str) -> bool:
    return any(word in name.lower() for word in _TARGET_NAMES) or name.lower().startswith("y.")


def _layout(x: Array) -> str | None:
    """The height and width of images; None for rows of numbers."""
    if x.ndim == 3 and x.dtype == np.uint8 and min(x.shape[1:]) >= 8:
        return "hw"
    if x.ndim == 4:
        return "hwc" if x.shape[3] in _COLOURS and x.shape[1] not in _COLOURS else "chw"
    return None


def _size(x: Array, layout: str | None, rows: int) -> DraftTraining:
    if layout is None:
        return for_table(len(x), rows)
    sides = x.shape[1:3] if layout in ("hw", "hwc") else x.shape[2:]
    return for_images(rows, min(sides), device_kind())


def _objective(y: Array) -> tuple[str, str]:
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        bad = int((~np.isfinite(y.reshape(len(y), -1))).any(1).argmax())
        raise UsageError(f"y is missing or infinite, first in row {bad}: leave those rows out")
    if y.ndim == 2 and y.shape[1] > 1 and y.dtype.kind in "fiu" and _is_one_hot(y):
        raise UsageError(f"y is one-hot, {y.shape[0]} x {y.shape[1]}: give the classes as numbers, y.argmax(1)")
    if y.dtype.kind == "f":
        return "regress", f"numbers, {y.min():.4g} to {y.max():.4g}"
    if y.ndim > 1:
        return ("multilabel", "0 and 1") if set(np.unique(y).tolist()) <= {0, 1} else ("regress", "numbers")
    values = np.unique(y)
    if len(values) < 2:
        raise UsageError(f"y is {values[0]} in all {len(y)} rows: there is nothing to learn")
    classes = len(values) if y.dtype.kind in "US" else int(values.max()) + 1
    return "binary" if classes == 2 else "classify", f"{classes} classes"


def _is_one_hot(y: Array) -> bool:
    return bool(((y == 0) | (y == 1)).all() and (y.sum(1) == 1).all())


def _plain(array: Array | Tensor) -> Array:
    return array.numpy() if isinstance(array, Tensor) else array


def _shape(array: Array) -> str:
    return f"{' x '.join(map(str, array.shape))} {array.dtype.name if array.dtype.kind not in 'US' else 'words'}"
