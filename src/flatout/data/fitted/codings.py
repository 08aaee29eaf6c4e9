"""How the columns and the label of a table are encoded on the host: text, dates and numbers to float32 and ids.

Plain data with an exact JSON form. Values come from lists and arrays (`PlainValues`, NumPy only) or from Arrow batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from flatout.data.fitted.dates import date_part
from flatout.data.fitted.values import Array, Values
from flatout.data.order.split import hash_strings

HASH_SEED = 0  # saved models depend on it
MISSING, UNKNOWN = -1, -2  # ids of labels
LARGEST = float(np.finfo(np.float32).max)
_TILE_ROWS = 2048


@dataclass(frozen=True)
class Number:
    """A number, minus `shift` if float32 is too coarse for it."""

    name: str
    shift: float = 0.0

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.name,)

    def encode(self, values: Values) -> list[Array]:
        numbers = values.numbers(self.name)
        with np.errstate(over="ignore"):
            narrow = (numbers - self.shift if self.shift else numbers).astype(np.float32)
        infinite = np.isinf(narrow)
        if infinite.any():
            narrow[infinite] = np.nan  # a model never gets infinite values
        return [narrow]


@dataclass(frozen=True)
class Date:
    name: str
    parts: tuple[str, ...]
    format: str | None = None

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(f"{self.name}.{part}" for part in self.parts)

    def encode(self, values: Values) -> list[Array]:
        instants, missing = values.instants(self.name, self.format)
        return [np.where(missing, np.nan, date_part(part, instants)).astype(np.float32) for part in self.parts]


@dataclass(frozen=True)
class Category:
    """Ids from 1 for the known categories, in order, or for hash buckets; 0 is unknown. None is the missing value."""

    name: str
    categories: tuple[str | None, ...] = ()
    buckets: int | None = None

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def cardinality(self) -> int:
        return 1 + (len(self.categories) if self.buckets is None else self.buckets)

    def ids(self, values: Values, unseen: Counter[str] | None = None) -> Array:
        codes, texts = values.texts(self.name)
        ids = self.ids_of(texts)
        if unseen is not None and self.buckets is None:
            strange = (ids == 0) & np.array([text is not None for text in texts], dtype=np.bool_)
            unseen[self.name] += int(strange[codes].sum())
        return ids[codes]

    def ids_of(self, texts: list[str | None]) -> Array:
        if self.buckets is not None:
            return bucket_of(texts, self.buckets)
        return np.array([self._places.get(text, 0) for text in texts], dtype=np.int32)

    @cached_property
    def _places(self) -> dict[str | None, int]:
        return {text: place for place, text in enumerate(self.categories, 1)}


@dataclass(frozen=True)
class TargetEncoding:
    """A category as the mean of the target over its training rows; `means` has one row for each id."""

    name: str
    category: Category
    means: tuple[tuple[float, ...], ...]
    suffixes: tuple[str, ...] = ("",)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(f"{self.name}.target{suffix}" for suffix in self.suffixes)

    @cached_property
    def table(self) -> Array:
        return np.array(self.means, dtype=np.float64)


Coding = Number | Date | Category | TargetEncoding


@dataclass(frozen=True)
class FoldMeans:
    """For training rows only: the means of each target-encoded column over the rows of other folds, [ids, folds, outputs]."""

    tables: Mapping[str, Array]
    folds: Mapping[str, Array] = field(default_factory=dict)

    def of(self, folds: Mapping[str, Array]) -> FoldMeans:
        """The same means, for rows in these folds."""
        return FoldMeans(self.tables, folds)


@dataclass(frozen=True)
class Codings:
    """Raw columns -> `numeric` float32 [rows, n], NaN where missing, and `ids` int32 [rows, m]; one of them may be absent."""

    columns: tuple[Coding, ...]

    @property
    def numeric(self) -> tuple[str, ...]:
        return tuple(name for coding in self.columns if not isinstance(coding, Category) for name in coding.outputs)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(coding.name for coding in self.columns if isinstance(coding, Category))

    def encode(self, values: Values, unseen: Counter[str] | None = None, others: FoldMeans | None = None) -> dict[str, Array]:
        """`unseen` counts the values that are unknown from training, by column; `others` is for training rows."""
        numeric: list[Array] = []
        ids: list[Array] = []
        for coding in self.columns:
            if isinstance(coding, Category):
                ids.append(coding.ids(values, unseen))
            elif isinstance(coding, TargetEncoding):
                places = coding.category.ids(values, unseen)
                means = (
                    coding.table[places] if others is None else others.tables[coding.name][places, others.folds[coding.name]]
                )
                numeric.extend(means.astype(np.float32).T)
            else:
                numeric.extend(coding.encode(values))
        encoded = {}
        if numeric:
            encoded["numeric"] = _side_by_side(numeric, values.rows, np.float32)
        if ids:
            encoded["ids"] = _side_by_side(ids, values.rows, np.int32)
        return encoded

    def to_dict(self) -> dict[str, Any]:
        return {"columns": [{"kind": _NAMES[type(coding)], **asdict(coding)} for coding in self.columns]}

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Codings:
        return cls(tuple(_coding(column) for column in written["columns"]))


@dataclass(frozen=True)
class Label:
    """The label of a table. `classes` are names in the order of their ids; None for a number, which has a `mean` and a
    `deviation` over the training rows."""

    name: str
    classes: tuple[str, ...] | None
    mean: float | None = None
    deviation: float | None = None

    @property
    def class_count(self) -> int | None:
        return None if self.classes is None else len(self.classes)

    @property
    def scale(self) -> tuple[float, float] | None:
        return None if self.mean is None or self.deviation is None else (self.mean, self.deviation)

    def encode(self, values: Values) -> Array:
        """int64 class ids, or MISSING or UNKNOWN; for a number float32, NaN where missing."""
        if self.classes is None:
            return values.numbers(self.name).astype(np.float32)
        codes, texts = values.texts(self.name)
        ids = [MISSING if text is None else self._ids.get(text, UNKNOWN) for text in texts]
        return np.array(ids, dtype=np.int64)[codes]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Label:
        classes = None if written["classes"] is None else tuple(written["classes"])
        return cls(written["name"], classes, written.get("mean"), written.get("deviation"))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.classes or ())}


def bucket_of(texts: list[str | None], buckets: int) -> Array:
    """int32: the hash bucket of each text, from 1; 0 for the missing value."""
    hashed = hash_strings(texts, HASH_SEED) % np.uint64(buckets)
    present = np.array([text is not None for text in texts], dtype=np.bool_)
    return np.where(present, hashed.astype(np.int64) + 1, 0).astype(np.int32)


_NAMES: dict[type, str] = {Number: "number", Date: "date", Category: "category", TargetEncoding: "target"}


def _coding(written: Mapping[str, Any]) -> Coding:
    kind, rest = written["kind"], {name: value for name, value in written.items() if name != "kind"}
    if kind == "number":
        return Number(**rest)
    if kind == "date":
        return Date(**{**rest, "parts": tuple(rest["parts"])})
    if kind == "category":
        return _category(rest)
    means = tuple(tuple(row) for row in rest["means"])
    return TargetEncoding(rest["name"], _category(rest["category"]), means, tuple(rest["suffixes"]))


def _category(written: Mapping[str, Any]) -> Category:
    return Category(written["name"], tuple(written["categories"]), written["buckets"])


def _side_by_side(columns: list[Array], rows: int, dtype: type) -> Array:
    table: Array = np.empty((rows, len(columns)), dtype=dtype)
    for start in range(0, rows, _TILE_ROWS):  # a tile stays in the CPU cache while its columns are filled
        tile = table[start : start + _TILE_ROWS]
        for place, column in enumerate(columns):
            tile[:, place] = column[start : start + _TILE_ROWS]
    return table
