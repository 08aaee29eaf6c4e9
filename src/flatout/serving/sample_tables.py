"""Sampled requests as Arrow tables. A model has one schema, whatever its clients send, so that all files are one table.

A value that its column can't hold, and columns that the model does not have, go to `input_extra` and `answer_extra` as JSON.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from math import prod
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from flatout.base.errors import DataError
from flatout.data.fitted.values import to_text
from flatout.serving.front.datatypes import bfloat16_numbers
from flatout.serving.front.model_view import ModelView, TensorSpec
from flatout.serving.front.sampling_desk import SampledRequest

_ABOUT = {
    "request_time": pa.timestamp("us", "UTC"),
    "request_ms": pa.float64(),
    "request_id": pa.string(),
    "request_row": pa.int32(),
}
_INPUT_EXTRA, _ANSWER_EXTRA = "input_extra", "answer_extra"
_JSON = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
_DOES_NOT_FIT = (ValueError, TypeError, OverflowError, DataError, pa.ArrowException)
Value = Callable[[Any], Any]


class SampleTable:
    """Of one model: its schema, and record batches of it."""

    def __init__(self, view: ModelView) -> None:
        prepared = {} if view.coincide else view.prepared
        answers = {f"answer_{name}": _column_type(spec) for name, spec in view.outputs.items()}
        tensors = {f"prepared_{name}": _column_type(spec) for name, spec in prepared.items()}
        taken = {*_ABOUT, *answers, *tensors, _INPUT_EXTRA, _ANSWER_EXTRA}
        self._raw = {name: f"input_{name}" if name in taken else name for name in view.raw_specs}
        self._prepared = {name: f"prepared_{name}" for name in prepared} or self._raw
        self._answers = {name: f"answer_{name}" for name in view.outputs}
        photos = {raw.name for raw in view.raw if raw.kind == "photo"}
        raw_types = {
            self._raw[name]: pa.binary() if name in photos else _column_type(spec) for name, spec in view.raw_specs.items()
        }
        self.schema = pa.schema(
            {**_ABOUT, **raw_types, **tensors, _INPUT_EXTRA: pa.string(), **answers, _ANSWER_EXTRA: pa.string()}
        )
        self._bits = {self._prepared[name] for name, spec in view.prepared.items() if spec.datatype == "BF16"}

    def batch(self, samples: Sequence[SampledRequest]) -> pa.RecordBatch:
        """Rows of several requests."""
        pieces = [self._pieces(sample) for sample in samples]
        arrays = []
        for name, wanted in zip(self.schema.names, self.schema.types, strict=True):
            if pa.types.is_list(wanted):
                rows = zip(pieces, samples, strict=True)
                arrays.append(pa.concat_arrays([found.get(name) or pa.nulls(one.rows, wanted) for found, one in rows]))
                continue
            values: list[Any] = []
            for found, one in zip(pieces, samples, strict=True):
                values.extend(found.get(name) or repeat(None, one.rows))
            arrays.append(pa.array(values, wanted))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _pieces(self, sample: SampledRequest) -> dict[str, Any]:
        """Of each column that this request has: a list of values, or an Arrow array of lists."""
        rows = sample.rows
        found: dict[str, Any] = {
            "request_time": [round(sample.time_s * 1e6)] * rows,
            "request_ms": [sample.duration_s * 1e3] * rows,
            "request_id": [sample.id] * rows,
            "request_row": range(rows),
        }
        names = self._prepared if sample.is_prepared else self._raw
        for given, places, extra in ((sample.inputs, names, _INPUT_EXTRA), (sample.answers, self._answers, _ANSWER_EXTRA)):
            rest: list[dict[str, Any]] = []
            for name, column in given.items():
                has_rows = isinstance(column, list | tuple | np.ndarray) and len(column) == rows
                place = places.get(name)
                is_bits = sample.is_prepared and place in self._bits
                piece = self._piece(place, bfloat16_numbers(column) if is_bits else column) if place and has_rows else None
                if place is not None and piece is not None:
                    found[place] = piece
                    continue
                rest = rest or [{} for _ in range(rows)]
                for row, value in zip(rest, column if has_rows else repeat(column, rows), strict=True):
                    row[str(name)] = value
            if rest:
                found[extra] = [orjson.dumps(row, default=_in_words, option=_JSON).decode() for row in rest]
        return found

    def _piece(self, place: str, column: Any) -> Any:
        """None if the column of the schema can't hold it."""
        wanted = self.schema.field(place).type
        try:
            if wanted in _VALUES and not _is_numbers(column):
                value_of = _VALUES[wanted]
                return [value_of(value) for value in (column.tolist() if isinstance(column, np.ndarray) else column)]
            if wanted == pa.string():  # a category that came as numbers
                return [_text(value) for value in column.tolist()]
            return _numbers(column, wanted)
        except _DOES_NOT_FIT:
            return None


def _column_type(spec: TensorSpec) -> pa.DataType:
    """Numbers in as many lists as a row has dimensions."""
    if spec.dtype is None:
        return pa.string()
    found = pa.float32() if spec.datatype in ("BF16", "FP16") else pa.from_numpy_dtype(spec.dtype)
    for _ in spec.shape:
        found = pa.list_(found)
    return found


def _is_numbers(column: Any) -> bool:
    return isinstance(column, np.ndarray) and column.dtype.kind in "biuf"


def _numbers(column: Any, wanted: pa.DataType) -> Any:
    """ValueError for numbers of another kind, or in rows of another shape."""
    depth, inner = 0, wanted
    while pa.types.is_list(inner):
        depth, inner = depth + 1, inner.value_type
    if depth and len({np.shape(row) for row in column}) > 1:  # rows of tokens differ in length
        return pa.array([np.asarray(row).tolist() for row in column], wanted)
    array, dtype = np.asarray(column), np.dtype(inner.to_pandas_dtype())
    made_of = {"f": "iuf", "i": "iu", "u": "iu", "b": "b"}[dtype.kind]
    if array.ndim != depth + 1 or array.dtype.kind not in made_of:
        raise ValueError
    given, array = array, np.ascontiguousarray(array, dtype)
    if dtype.kind != "f" and not np.array_equal(array, given):
        raise ValueError
    if not depth:
        return array.tolist()
    made = pa.array(array.reshape(-1))
    for axis in range(depth, 0, -1):
        lists, size = prod(array.shape[:axis]), array.shape[axis]
        made = pa.ListArray.from_arrays(pa.array(np.arange(lists + 1, dtype=np.int32) * size, pa.int32()), made)
    return made


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, int | float | np.number):
        return float(value)
    raise TypeError


def _text(value: Any) -> str | None:
    text = value.decode() if isinstance(value, bytes) else to_text(value, "")
    if text is not None:
        text.encode()  # half a surrogate pair is no text that a file can hold
    return text


def _photo(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    raise TypeError


def _in_words(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


_VALUES: Mapping[pa.DataType, Value] = {pa.float64(): _number, pa.string(): _text, pa.binary(): _photo}
