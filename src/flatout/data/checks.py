"""Checks of columns in memory. Messages name the column and the first bad row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from flatout.base.errors import DataError

_CHECK_ROWS_BYTES = 16 << 20


def check_lengths(columns: Mapping[str, Tensor], part: str) -> None:
    for name, tensor in columns.items():
        if tensor.dim() == 0:
            raise DataError(f"{part}column {name!r} is one number; expected an array with a row for each sample")
    lengths = {name: len(tensor) for name, tensor in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} has {rows} rows" for name, rows in lengths.items())
        raise DataError(f"{part}columns differ in length: {listed}")
    if columns["x"].numel() == 0:
        raise DataError(f"{part}data is empty: x has shape {list(columns['x'].shape)}")


def check_finite(tensor: Tensor, name: str) -> None:
    if not tensor.is_floating_point():
        return
    at_once = max(1, _CHECK_ROWS_BYTES // max(1, tensor[0].numel() * tensor.element_size()))
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    first, count = None, 0
    for start in range(0, len(tensor), at_once):
        part = tensor[start : start + at_once]
        if part.sum(dtype=wide).isfinite():  # ten times as fast as looking at each value, and never if one is not finite
            continue
        bad = ~torch.isfinite(part).flatten(1 if tensor.dim() > 1 else 0)
        if bad.any():
            rows = bad.any(1) if bad.dim() > 1 else bad
            first = start + int(rows.nonzero()[0]) if first is None else first
            count += int(rows.sum())
    if first is not None:
        raise DataError(
            f"column {name!r} has NaN or infinite values in {count} of {len(tensor)} rows, first in row {first}: "
            "drop those rows or fill them in before training"
        )


def check_labels(
    train: Mapping[str, Tensor], held: Mapping[str, Tensor] | None, classes: int | None, names: Sequence[str]
) -> int | None:
    """The number of classes: as given, by the names of labels, or the largest label plus one; None for other targets."""
    parts = [(part, columns["y"]) for part, columns in (("", train), ("validation ", held)) if columns and "y" in columns]
    if not parts or parts[0][1].is_floating_point() or parts[0][1].dim() != 1:
        if classes is not None:
            raise DataError(f"classes={classes} needs a y of class labels, one integer a row")
        return None
    if classes is None:
        classes = len(names) or int(max(y.max() for _, y in parts)) + 1
    wanted = f"0 to {classes - 1} (classes={classes})" if classes > 0 else "0 or more"
    for part, y in parts:
        bad = ((y < 0) | (y >= max(classes, 1))).nonzero()
        if len(bad):
            row, few = int(bad[0]), f"{len(bad)} of {len(y)} rows are outside"
            raise DataError(f"{part}labels must be {wanted}; row {row} has {int(y[row])}, and {few}")
    return classes


def check_alike(train: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> None:
    for name, column in train.items():
        if name in held and held[name].shape[1:] != column.shape[1:]:
            ours, theirs = list(column.shape[1:]), list(held[name].shape[1:])
            raise DataError(f"a row of {name} is {ours} in the training data and {theirs} in validation")
    missing = [name for name in ("x", "y") if name in train and name not in held]
    if missing:
        raise DataError(f"validation has no column {missing[0]!r}, which the training data has")
