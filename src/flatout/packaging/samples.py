"""Rows that a package carries with the run's own outputs: every runtime is compared with them before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError, FlatoutError
from flatout.base.files import json_bytes, parse_json
from flatout.data.data import Data
from flatout.data.fitted import Fitted
from flatout.data.fitted.token_rows import TextHost
from flatout.data.source import Batch, Source
from flatout.packaging.answering import Preparation

ROWS = 256
PHOTOS = 8  # whole files, so that decoding is checked too


@dataclass(frozen=True)
class Samples:
    """`rows` are inputs of the program, `outputs` those of the run; `raw` are the same rows (of photos: the first few) as
    users give them, None if they can't be written. `origin` says where the rows come from."""

    rows: Batch
    outputs: dict[str, Tensor]
    origin: str
    raw: Any = None
    photos: tuple[bytes, ...] = field(default=(), repr=False)

    def __len__(self) -> int:
        return len(next(iter(self.rows.values())))

    def first(self, rows: int) -> Samples:
        """The first rows, without the raw ones."""
        inputs, outputs = ({name: column[:rows] for name, column in some.items()} for some in (self.rows, self.outputs))
        return Samples(inputs, outputs, self.origin)

    def tensors(self) -> dict[str, Tensor]:
        named = {f"row.{name}": column for name, column in self.rows.items()}
        named |= {f"output.{name}": column for name, column in self.outputs.items()}
        files = {f"photo.{place}": torch.frombuffer(bytearray(one), dtype=torch.uint8) for place, one in enumerate(self.photos)}
        return {name: column.contiguous() for name, column in (named | files).items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], origin: str, raw: Any) -> Samples:
        def under(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

        photos = under("photo.")
        files = tuple(photos[str(place)].numpy().tobytes() for place in range(len(photos)))
        return cls(under("row."), under("output."), origin, raw, files)


@dataclass(frozen=True)
class SampleRows:
    """Samples before the run's outputs are known."""

    rows: Batch
    origin: str
    raw: Any = None
    photos: tuple[bytes, ...] = ()


def rows_of_data(data: Data, most: int = ROWS) -> SampleRows:
    """Held-out rows if the data has any."""
    fitted, preparation = data.fitted, Preparation(data.fitted)
    part = next(name for name in ("test", "validation", "train") if name in data.parts())
    if fitted.host.kind == "table" and data.raw is not None:
        raw = data.raw(most)
        try:
            rows = fitted.rows(raw)
            return SampleRows(rows, f"the first rows of the {part} data", _as_json(fitted, raw, rows))
        except DataError:
            pass  # a row that training skipped as bad
    rows = _read(data.parts()[part], most)
    prepared = {name: column for name, column in preparation.before(rows).items() if name in preparation.columns}
    origin = f"the first rows of the {part} part"
    if fitted.host.kind == "photos":
        return SampleRows(prepared, origin, photos=_photos(data, fitted, preparation, prepared))
    return SampleRows(prepared, origin, _as_text(fitted, prepared))


def made_up_rows(fitted: Fitted, most: int = ROWS) -> SampleRows:
    """Random rows of the right shapes and types, for a run whose data is gone."""
    drawn = torch.Generator().manual_seed(0)
    vocabulary = _vocabulary(fitted)
    rows: Batch = {}
    for name, column in Preparation(fitted).columns.items():
        shape = (most, *column.shape)
        if column.dtype.is_floating_point:
            rows[name] = torch.randn(shape, generator=drawn, dtype=torch.float32).to(column.dtype)
        else:
            rows[name] = torch.randint(0, vocabulary.get(name, 2), shape, generator=drawn).to(column.dtype)
    if fitted.host.kind == "sequences":
        rows["length"] = torch.full((most,), rows["x"].shape[1], dtype=torch.int64)
    return SampleRows(rows, "made up at random, because the run's data can't be read")


def _vocabulary(fitted: Fitted) -> dict[str, int]:
    """How many values whole numbers of a column may have."""
    written = fitted.host.to_json()
    if fitted.host.kind in ("text", "sequences"):
        return {"x": int(written["code"]["vocabulary"])}
    return {"x": int(written.get("vocabulary") or 256)}


def _read(source: Source, most: int) -> Batch:
    if source.shapes_vary:  # a stream has no row numbers
        raise DataError("rows of a stream can't be read again")
    return source.read(torch.arange(min(most, len(source))))


def _photos(data: Data, fitted: Fitted, preparation: Preparation, prepared: Batch) -> tuple[bytes, ...]:
    """The first files, if decoding them again gives the same pixels."""
    if data.raw is None:
        return ()
    try:
        files = data.raw(PHOTOS)
        again = preparation.before(fitted.rows(files))["x"]
    except (FlatoutError, OSError):
        return ()
    return tuple(files) if torch.equal(again, prepared["x"][: len(files)]) else ()


def same_values(left: Tensor, right: Tensor) -> bool:
    """To the bit; missing numbers, which are NaN, are equal."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return bool(((left == right) | ((left != left) & (right != right))).all())


def _as_json(fitted: Fitted, raw: Any, rows: Batch) -> Any:
    """The raw rows as JSON gives them back; None if they are then prepared differently, such as bytes."""
    try:
        written = parse_json(json_bytes(raw))
        again = fitted.rows(written)
    except (FlatoutError, TypeError, ValueError):
        return None
    return written if all(same_values(again[name], column) for name, column in rows.items()) else None


def _as_text(fitted: Fitted, rows: Batch) -> Any:
    """Texts that encode to these rows, where there are any."""
    host = fitted.host
    if not isinstance(host, TextHost) or not host.code.takes_text or set(rows) != {"x"}:
        return None
    if host.code.alphabet is not None:
        letters = np.array(list(host.code.alphabet))
        texts = ["".join(letters[row]) for row in rows["x"].numpy()]
    elif host.code.in_bytes:
        try:
            texts = [bytes(row.tolist()).decode() for row in rows["x"].to(torch.uint8)]
        except UnicodeDecodeError:
            return None  # a window may begin inside of a character
    else:
        return None
    same = torch.equal(fitted.rows(texts)["x"], rows["x"])
    return {"text": texts} if same else None
