"""Turns a sample of a Dataset into named tensors: (x, y), mappings, arrays, numbers, images. Other types are errors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError, did_you_mean
from flatout.data.fitted.tensors import to_tensor
from flatout.data.source import Batch, Column, Schema
from flatout.data.workers.arena import WorkerMemory
from flatout.data.workers.failures import Unusable

Columns = Mapping[str, str | int] | Sequence[str | None]
_INPUTS = ("image", "img", "pixel_values", "input", "inputs", "features", "data")
_TARGETS = ("label", "labels", "target", "targets", "fine_label")
_SCALARS: dict[type, torch.dtype] = {int: torch.int64, float: torch.float32}
_NUMPY_HAS = {torch.float64, torch.float32, torch.float16, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}
_LARGE = 1 << 62


@dataclass(frozen=True)
class Form:
    """How samples become rows. `picks`: where each column is in a sample; None until the first sample was read."""

    columns: Columns | None = None
    collate: Callable[[list[Any]], Any] | None = None
    picks: tuple[tuple[str, str | int], ...] | None = None

    def settled(self, sample: Any) -> Form:
        """With `picks` from this first sample. DataError if `columns` does not match it."""
        return replace(self, picks=_picks(_fields(self._collated(sample)), self.columns))

    def row(self, sample: Any) -> Batch:
        """The columns of one sample, in types that training uses."""
        assert self.picks is not None, "settled() comes first"
        fields = _fields(self._collated(sample))
        row = {name: as_tensor(_pick(fields, key), name, key) for name, key in self.picks}
        return row if self.collate is None else {name: _only_row(column, name) for name, column in row.items()}

    def _collated(self, sample: Any) -> Any:
        return sample if self.collate is None else self.collate([sample])


def schema_of(row: Mapping[str, Tensor]) -> dict[str, Column]:
    return {name: Column(tensor.dtype, tuple(tensor.shape)) for name, tensor in row.items()}


def put(sample: Any, form: Form, schema: Schema, first: str, memory: WorkerMemory, place: int) -> None:
    """Store a sample in row `place` of the memory. The fast path is for samples that match the schema."""
    if form.collate is None and type(sample) in (tuple, dict):
        for name, key in form.picks or ():
            try:
                value = sample[key]
            except (KeyError, IndexError):
                break
            if not _put_directly(value, name, schema[name], memory, place):
                break
        else:
            return
    put_row(form.row(sample), schema, first, memory.columns, place)


def _put_directly(value: Any, name: str, column: Column, memory: WorkerMemory, place: int) -> bool:
    """Store the value if that takes no checks beyond type and shape. False: use `put_row`."""
    kind = type(value)
    if kind is Tensor:
        if not value.is_cpu or value.layout is not torch.strided or value.requires_grad or value.shape != column.shape:
            return False
        if value.dtype is column.dtype:
            memory.rows[name][place].copy_(value)  # half of the time that columns[name][place] = value takes
            return True
        if value.dtype not in _NUMPY_HAS or value.is_neg():
            return False
        value = value.numpy()
    elif kind is not np.ndarray and not isinstance(value, np.generic):
        if column.shape != () or _SCALARS.get(kind) is not column.dtype or abs(value) >= _LARGE:
            return False
        memory.arrays[name][place] = value
        return True
    array = memory.arrays.get(name)
    if array is None or value.shape != column.shape or not _keeps_values(value.dtype, array.dtype):
        return False
    array[place] = value
    return True


@lru_cache(maxsize=64)
def _keeps_values(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether the conversion is lossless, or float64 to float32, which is done everywhere."""
    return given == wanted or (given == np.float64 and wanted == np.float32) or np.can_cast(given, wanted, "safe")


def put_row(row: Mapping[str, Tensor], schema: Schema, first: str, columns: Batch, place: int) -> None:
    """Store one row in a batch; `first` names the sample that the schema comes from."""
    for name, column in schema.items():
        value = row[name]
        if value.shape != column.shape:
            raise Unusable(
                f"{name} has shape {list(value.shape)}, in {first} it was {list(column.shape)}; all samples need one shape: "
                "crop or pad in the dataset, or give collate=, a function that takes a list of one sample and pads it"
            )
        if value.dtype != column.dtype and not torch.equal(value, value.to(column.dtype).to(value.dtype)):
            was, came = _short(column.dtype), _short(value.dtype)
            raise Unusable(f"{name} is {came}, in {first} it was {was}, which can't hold it: return one type for all samples")
        columns[name][place] = value


def _fields(sample: Any) -> Any:
    """A mapping or a tuple; a sample that is a single value becomes a tuple of one."""
    if isinstance(sample, tuple) and hasattr(sample, "_asdict"):
        return sample._asdict()
    if isinstance(sample, list):
        numbers = len(sample) > 2 and all(isinstance(value, int | float | np.number) for value in sample)
        return (sample,) if numbers else tuple(sample)
    return sample if isinstance(sample, Mapping | tuple) else (sample,)


def _picks(fields: Any, columns: Columns | None) -> tuple[tuple[str, str | int], ...]:
    if isinstance(columns, str):
        raise DataError(f"columns is a list of names, or a mapping such as {{'x': 'image'}}; got {columns!r}")
    known = list(fields) if isinstance(fields, Mapping) else list(range(len(fields)))
    if isinstance(columns, Mapping):
        for key in columns.values():
            if key not in known:
                near = did_you_mean(str(key), map(str, known))
                raise DataError(f"columns: samples have no {key!r}; {near}")
        picks = tuple(columns.items())
    elif isinstance(fields, Mapping):
        picks = _picks_of_mapping(known, columns)
    else:
        names = tuple(columns) if columns is not None else ("x", "y")[: len(known)]
        if len(names) != len(known):
            give = "columns=('x', 'y', 'weight'), one name for each part, None for parts that are not needed"
            raise DataError(f"a sample has {len(known)} parts, but there are {len(names)} names: give {give}")
        picks = tuple((name, place) for place, name in enumerate(names) if name is not None)
    if not picks:
        raise DataError("a sample has no columns" if columns is None else f"columns={columns!r} selects nothing")
    return picks


def _picks_of_mapping(known: list[Any], columns: Sequence[str | None] | None) -> tuple[tuple[str, str | int], ...]:
    if columns is not None:
        for name in columns:
            if name not in known:
                raise DataError(f"columns: samples have no {name!r}; {did_you_mean(str(name), map(str, known))}")
        return tuple((name, name) for name in columns if name is not None)
    names = {key: str(key) for key in known}
    if "x" not in known:  # usual names of inputs and targets, if exactly one matches
        for ours, theirs in (("x", _INPUTS), ("y", _TARGETS)):
            found = [key for key in known if key in theirs]
            if len(found) == 1 and ours not in known:
                names[found[0]] = ours
    return tuple((name, key) for key, name in names.items())


def _pick(fields: Any, key: str | int) -> Any:
    try:
        return fields[key]
    except (KeyError, IndexError, TypeError):
        there = ", ".join(map(repr, fields)) if isinstance(fields, Mapping) else f"{len(fields)} parts"
        raise Unusable(f"it has no {key!r}, which the samples before it had; it has {there}") from None


def as_tensor(value: Any, name: str, key: str | int) -> Tensor:
    """The value at `key` of a sample, in a type that training uses."""
    if isinstance(value, str | bytes | bytearray) or value is None:
        kind = "None" if value is None else f"text ({value[:40]!r})"
        raise Unusable(
            f"column {name!r} is {kind}, but models need numbers: convert it in the dataset, "
            f"or name only the columns you need: columns={{'x': ..., 'y': ...}}"
        )
    pictures = sys.modules.get("PIL.Image")
    if pictures is not None and isinstance(value, pictures.Image):
        value = _pixels(value)
    if isinstance(value, Tensor) and (value.layout != torch.strided or value.is_nested):
        raise Unusable(f"column {name!r} is a {value.layout} tensor: call .to_dense()")
    try:
        tensor = to_tensor(value, name)
    except (DataError, TypeError) as error:
        raise Unusable(f"{error}; it is a {type(value).__name__} at {key!r} of the sample") from None
    return tensor.to(torch.int64) if name == "y" and not tensor.is_floating_point() else tensor


def _pixels(picture: Any) -> Any:
    """Channels first. Palettes, CMYK and one-bit images are converted to RGB or grey."""
    if picture.mode == "1":
        picture = picture.convert("L")
    elif picture.mode not in ("L", "RGB", "RGBA", "F") and not picture.mode.startswith("I"):
        picture = picture.convert("RGB")
    pixels = np.asarray(picture)
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def _only_row(column: Tensor, name: str) -> Tensor:
    if column.dim() == 0 or len(column) != 1:
        shape = list(column.shape)
        raise Unusable(f"collate got a list of one sample and returned {name} of shape {shape}; the first dimension must be 1")
    return column[0]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
