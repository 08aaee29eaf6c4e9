"""Answers of /predict: JSON rows, or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from flatout.serving.front.model_view import CLASS, ModelView

_NUMPY = orjson.OPT_SERIALIZE_NUMPY  # NaN becomes null


def one_in_json(view: ModelView, outputs: Mapping[str, Any], named: bool) -> bytes:
    if named or view.half:
        columns = outputs if named else view.columns(outputs)
        return orjson.dumps({name: _plain(column[0]) for name, column in columns.items()}, option=_NUMPY)
    row: dict[str, Any] = {}
    classes = view.classes
    for name in view.outputs:
        if name == CLASS and classes is not None:
            number = row["prediction"] if "prediction" in row else outputs["prediction"][0]
            row[CLASS] = classes[min(int(number), len(classes) - 1)]
        else:
            row[name] = _plain(outputs[name][0])
    return orjson.dumps(row, option=_NUMPY)


def many_in_json(view: ModelView, outputs: Mapping[str, Any], named: bool) -> bytes:
    columns = outputs if named else view.columns(outputs)
    names = list(columns)
    rows = [
        {name: _plain(value) for name, value in zip(names, values, strict=True)}
        for values in zip(*columns.values(), strict=True)
    ]
    return orjson.dumps({"predictions": rows}, option=_NUMPY)


def in_csv(view: ModelView, outputs: Mapping[str, Any], named: bool) -> bytes:
    """A column of vectors becomes a column for each place: probabilities_0, probabilities_1, ..."""
    columns: dict[str, Any] = {}
    for name, column in (outputs if named else view.columns(outputs)).items():
        if isinstance(column, list) or column.ndim == 1:
            columns[name] = column
        else:
            flat = column.reshape(len(column), -1)
            columns.update({f"{name}_{place}": flat[:, place] for place in range(flat.shape[1])})
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns)
    lines.writerows(zip(*(_texts(column) for column in columns.values()), strict=True))
    return text.getvalue().encode()


def _texts(column: Any) -> list[str]:
    if isinstance(column, list):
        return column
    return ["" if value != value else str(value) for value in column]


def _plain(value: Any) -> Any:
    """orjson takes arrays that lie in one piece."""
    return np.ascontiguousarray(value) if isinstance(value, np.ndarray) and not value.flags.c_contiguous else value
