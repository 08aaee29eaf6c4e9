"""A complete ONNX file of a table: each raw column is an input, and the file encodes them as in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from flatout.base.errors import NotExportable
from flatout.data.fitted.codings import Category, Codings, Date, Number, TargetEncoding
from flatout.data.fitted.table_rows import TableHost
from flatout.packaging.onnx_dates import MISSING_INSTANT, date_parts
from flatout.packaging.onnx_front import ML_DOMAIN, FrontGraph, describe, input_names, with_front
from flatout.packaging.onnx_libraries import library
from flatout.packaging.ports import Port

if TYPE_CHECKING:
    import onnx

_DTYPES: dict[str, str] = {"number": "float64", "date": "int64", "category": "string"}
_RULES = {
    "number": "Numbers are float64. NaN is the missing value. "
    "Infinite values, and values too large for float32, count as missing.",
    "date": "Dates are int64 microseconds since 1970-01-01 UTC. A time without a time zone is used as written. "
    f"{MISSING_INSTANT}, the smallest int64, is the missing value.",
    "category": 'Categories are text. A whole number is written without a fraction: 3 and 3.0 are "3". Other numbers are '
    'written as Python does: "0.5". True and false are "true" and "false". Dates are ISO 8601: "2024-01-31T18:30:00". '
    'Empty text "" is the missing value. Categories that were not in the training data count as unknown.',
}


def with_raw_columns(model: onnx.ModelProto, host: TableHost) -> onnx.ModelProto:
    """`model` takes `numeric` and `ids`; the new model takes the raw columns, each [rows], by name.

    NotExportable names a column with hash buckets. With class names there is an output `class` of text.
    """
    library("onnx")
    if host.derived is not None:
        raise NotExportable("derived columns are computed by flatout's host part, which ONNX does not have: use another format")
    columns = host.codings.columns
    names = input_names([coding.name for coding in columns], model)
    front = FrontGraph()
    made = _encoded(front, host.codings, names)
    kinds = {raw.name: raw.kind for raw in host.inputs}
    ports = [Port(names[name], _DTYPES[kind], (None,)) for name, kind in kinds.items()]
    whole = with_front(model, front, ports, made, host.class_names)
    inputs = [{"column": name, "kind": kind, **port.to_json()} for (name, kind), port in zip(kinds.items(), ports, strict=True)]
    describe(whole, _rules(host.codings, names, set(kinds.values())), inputs, host.class_names)
    return whole


def _encoded(front: FrontGraph, codings: Codings, names: dict[str, str]) -> dict[str, str]:
    """`numeric` and `ids` by name -> their values. Columns of one kind are encoded together, then put in order."""
    numbers = [coding for coding in codings.columns if isinstance(coding, Number)]
    dates = [coding for coding in codings.columns if isinstance(coding, Date)]
    blocks: list[str] = []
    outputs: list[str] = []  # names of the columns of all blocks
    if numbers:
        blocks.append(_numbers(front, numbers, names))
        outputs += [coding.name for coding in numbers]
    if dates:
        parts = list(dict.fromkeys(part for coding in dates for part in coding.parts))
        blocks += date_parts(front, front.side_by_side([names[coding.name] for coding in dates]), parts)
        outputs += [f"{coding.name}.{part}" for part in parts for coding in dates]
    for coding in codings.columns:
        if isinstance(coding, TargetEncoding):
            means = front.constant(coding.table, np.float32)
            blocks.append(front.call("Gather", means, _ids(front, coding.category, names[coding.name]), axis=0))
            outputs += coding.outputs
    made: dict[str, str] = {}
    if blocks:
        made["numeric"] = _in_order(front, blocks, outputs, codings.numeric)
    categories = [coding for coding in codings.columns if isinstance(coding, Category)]
    if categories:
        ids = [_ids(front, coding, names[coding.name]) for coding in categories]
        made["ids"] = front.call("Cast", front.side_by_side(ids), to=library("onnx").TensorProto.INT32)
    return made


def _numbers(front: FrontGraph, numbers: Sequence[Number], names: dict[str, str]) -> str:
    wide = front.side_by_side([names[coding.name] for coding in numbers])
    if any(coding.shift for coding in numbers):
        wide = front.call("Sub", wide, front.constant([coding.shift for coding in numbers], np.float64))
    narrow = front.call("Cast", wide, to=library("onnx").TensorProto.FLOAT)
    return front.call("Where", front.call("IsInf", narrow), front.constant(np.nan, np.float32), narrow)


def _ids(front: FrontGraph, category: Category, value: str) -> str:
    if category.buckets is not None:
        raise NotExportable(
            f"column {category.name!r} is hashed into {category.buckets} buckets, which ONNX has no operator for: "
            "use another format, or train with a list of categories"
        )
    places = {text: place for place, text in enumerate(category.categories, 1) if text is not None}
    if None in category.categories:
        places.setdefault("", category.categories.index(None) + 1)
    places = places or {"": 0}  # the operator needs one entry
    return front.call(
        "LabelEncoder", value, domain=ML_DOMAIN,
        keys_strings=list(places), values_int64s=list(places.values()), default_int64=0,
    )  # fmt: skip


def _in_order(front: FrontGraph, blocks: Sequence[str], outputs: Sequence[str], wanted: Sequence[str]) -> str:
    together = blocks[0] if len(blocks) == 1 else front.call("Concat", *blocks, axis=1)
    if list(outputs) == list(wanted):
        return together
    return front.call("Gather", together, front.constant([outputs.index(name) for name in wanted], np.int64), axis=1)


def _rules(codings: Codings, names: dict[str, str], kinds: set[str]) -> list[str]:
    rules = ["Each raw column is an input with one value for each row."]
    rules += [sentence for kind, sentence in _RULES.items() if kind in kinds]
    for coding in codings.columns:
        known = coding.category if isinstance(coding, TargetEncoding) else coding
        if isinstance(known, Category) and "" in known.categories:
            rules.append(f'In column {coding.name!r}, "" is a category; a missing value can\'t be given.')
        if names[coding.name] != coding.name:
            rules.append(f"Column {coding.name!r} is the input {names[coding.name]!r}, because an output has its name.")
    return rules
