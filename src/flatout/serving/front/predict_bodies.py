"""Bodies that people send to /predict as raw columns: JSON, CSV, photos, forms, plain text."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from flatout.base.errors import did_you_mean
from flatout.serving.front.forms import files_of_form
from flatout.serving.front.model_view import ModelView
from flatout.serving.front.photo_bytes import photo_of_text
from flatout.serving.front.refusals import Refusal

_UNTOLD = (b"", b"application/x-www-form-urlencoded", b"application/octet-stream", b"*/*")  # curl -d says the second
_MORE_COLUMNS = 1000
_NESTED = (list, dict)  # a union of types would be built for each value
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF")


class PeoplesRows(NamedTuple):
    """`columns` by name; or one `row` of a table. `one`: the answer is one row, not a list."""

    columns: Mapping[str, Any] | None
    row: Mapping[str, Any] | None = None
    one: bool = False


def rows_of_body(view: ModelView, body: bytes, content_type: bytes) -> PeoplesRows:
    if content_type == b"application/json" and body:
        return _from_json(view, body)
    kind = content_type.partition(b";")[0].strip().lower()
    if not body:
        raise Refusal(400, f"the body is empty; expected {_expected(view)}")
    if kind == b"application/json" or kind.endswith(b"+json"):
        return _from_json(view, body)
    if kind == b"text/csv":
        return _from_csv(view, body)
    if view.kind == "photos":
        if kind == b"multipart/form-data":
            photos = files_of_form(body, content_type)
            return PeoplesRows({"photo": photos}, one=len(photos) == 1)
        if kind.startswith(b"image/") or (kind in _UNTOLD and (kind == _UNTOLD[2] or body.startswith(_IMAGES))):
            return PeoplesRows({"photo": [body]}, one=True)
    if kind == b"text/plain" and "text" in view.raw_specs:
        return PeoplesRows({"text": [_utf8(body)]}, one=True)
    if kind in _UNTOLD or (kind == b"text/plain" and body[:1] in b"{["):
        return _from_json(view, body)
    came = kind[:60].decode("latin-1")
    raise Refusal(415, f"the model {view.name} takes {_expected(view)}; got a body of the type {came!r}")


def _expected(view: ModelView) -> str:
    names = list(view.raw_specs)
    row = ", ".join(f'"{name}": ...' for name in names[:2]) + (", ..." if len(names) > 2 else "")
    as_json = f"application/json such as {{{row}}}"
    if view.kind == "photos":
        return f"image/jpeg, image/png or image/webp, multipart/form-data with such files, or {as_json}"
    if view.kind == "table":
        return f"{as_json}, or text/csv with a line of names"
    return f"{as_json}, or text/plain" if "text" in view.raw_specs else as_json


def _from_json(view: ModelView, body: bytes) -> PeoplesRows:
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, f"the body is no valid JSON: {error}; expected {_expected(view)}") from None
    if isinstance(given, dict):
        _check_width(view, given)
        if view.kind == "table":
            row = _one_row_of_table(given)
            if row is not None:
                return row
        if "rows" in given and "rows" not in view.raw_specs:
            rows = given["rows"]
            if not isinstance(rows, list):
                raise Refusal(400, f"expected 'rows' as a list, got {type(rows).__name__}")
            return PeoplesRows(_columns(view, rows))
        return _by_name(view, given)
    if isinstance(given, list) and given and all(isinstance(row, dict) for row in given):
        return PeoplesRows(_columns(view, given))
    if len(view.raw) == 1 and view.kind != "table" and isinstance(given, list | str):
        return _by_name(view, {view.raw[0].name: given})
    raise Refusal(400, f"expected {_expected(view)}, or a list of such rows; got {_shown(given)}")


def _one_row_of_table(given: dict[str, Any]) -> PeoplesRows | None:
    for value in given.values():
        if type(value) in _NESTED:
            return None
    return PeoplesRows(None, given, one=True)


def _by_name(view: ModelView, given: Mapping[str, Any]) -> PeoplesRows:
    """Columns, or one row: told apart by how deep the values of the first input are nested."""
    known = {name: given[name] for name in view.raw_specs if name in given}
    extra = {"x": given["x"]} if not known and "x" in given and view.kind in ("text", "sequences") else {}  # ids for text
    if not known and not extra:
        name = view.raw[0].name
        raise Refusal(400, f"expected {_expected(view)}; no {name!r} came, {did_you_mean(name, map(str, given))}")
    if view.kind == "table":
        scalars = [name for name, value in known.items() if not isinstance(value, list)]
        if scalars:
            raise Refusal(400, f"expected a list for every column, or one value for each; {scalars[0]!r} is no list")
        return PeoplesRows(given)
    known = known or extra
    first = next(iter(known))
    deep = 1 if extra else len(view.raw_specs[first].shape)
    one = _depth(known[first]) <= deep
    columns = {name: [value] if one else value for name, value in known.items()}
    if "photo" in columns:
        columns["photo"] = [_photo(value) for value in columns["photo"]]
    return PeoplesRows(columns, one=one)


def _columns(view: ModelView, rows: list[Any]) -> Mapping[str, Any]:
    if not rows:
        raise Refusal(400, "the list has no rows; expected 1 or more")
    if len(view.raw) == 1 and view.kind != "table" and not isinstance(rows[0], dict):
        name = view.raw[0].name
        return {name: [_photo(row) for row in rows] if name == "photo" else rows}
    columns: dict[str, list[Any]] = {name: [] for name in view.raw_specs}
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise Refusal(400, f"row {number}: expected {_expected(view)}; got {_shown(row)}")
        _check_width(view, row)
        for name, column in columns.items():
            if name not in row:
                near = did_you_mean(name, row)
                raise Refusal(400, f"row {number} has no {name!r}, which the model was trained with (null: missing); {near}")
            column.append(_photo(row[name]) if name == "photo" and view.kind == "photos" else row[name])
    return columns


def _check_width(view: ModelView, row: dict[str, Any]) -> None:
    """Names are compared with each other to say which one is near: that takes time."""
    if len(row) > len(view.raw_specs) + _MORE_COLUMNS:
        raise Refusal(400, f"the model {view.name} takes {len(view.raw_specs)} columns, got {len(row):,}")


def _photo(value: Any) -> bytes:
    if not isinstance(value, str):
        raise Refusal(400, f"a photo in JSON is the base64 text of its file, got {_shown(value)}")
    return photo_of_text(value)


def _from_csv(view: ModelView, body: bytes) -> PeoplesRows:
    if view.kind != "table":
        raise Refusal(415, f"text/csv is for tables; the model {view.name} takes {_expected(view)}")
    lines = csv.reader(io.StringIO(_utf8(body), newline=""))
    try:
        names = [name.strip().removeprefix("\ufeff") for name in next(lines)]
        rows = [line for line in lines if line]
    except (csv.Error, StopIteration) as error:
        raise Refusal(400, f"the body is no valid CSV with a line of names: {error}") from None
    for number, line in enumerate(rows):
        if len(line) != len(names):
            raise Refusal(400, f"row {number} of the CSV has {len(line)} values, the line of names has {len(names)}")
    if not rows:
        raise Refusal(400, "the CSV has a line of names and no rows")
    _check_width(view, dict.fromkeys(names))
    kinds = {raw.name: raw.kind for raw in view.raw}
    reading = view.model.package.fitted.reading
    strip, missing = reading.get("strip"), {"", *(reading.get("na") or ())}  # as the training files were read
    columns: dict[str, list[Any]] = {}
    for place, name in enumerate(names):
        if name in kinds:
            texts = [line[place].strip(strip) if strip else line[place] for line in rows]
            columns[name] = [_csv_value(text, kinds[name], name, row, missing) for row, text in enumerate(texts)]
    for name in kinds:
        if name not in columns:
            raise Refusal(400, f"the CSV has no column {name!r}, which the model was trained with; {did_you_mean(name, names)}")
    return PeoplesRows(columns)


def _csv_value(text: str, kind: str, name: str, row: int, missing: set[str]) -> Any:
    if text in missing:
        return None
    if kind != "number":
        return text
    try:
        return float(text)
    except ValueError:
        raise Refusal(400, f"row {row}: column {name!r} holds numbers, got {text[:60]!r}; empty is missing") from None


def _utf8(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise Refusal(400, f"expected text in UTF-8: {error}") from None


def _depth(value: Any) -> int:
    deep = 0
    while isinstance(value, list):
        deep += 1
        value = value[0] if value else None
    return deep


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
