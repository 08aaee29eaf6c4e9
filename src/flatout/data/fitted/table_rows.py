"""The host part of a table: raw values to float32 and ids. Uses NumPy only: no pyarrow, no files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from flatout.base.errors import DataError, did_you_mean
from flatout.data.fitted.codings import LARGEST, Category, Coding, Codings, Date, Label, Number, TargetEncoding
from flatout.data.fitted.derived.derivation import Derivation
from flatout.data.fitted.derived.derived_values import DATE, NUMBER
from flatout.data.fitted.host import RawInput
from flatout.data.fitted.values import Array, PlainValues, Values
from flatout.data.source import Batch

VERSION = 1
_KINDS: dict[type[Coding], str] = {Number: "number", Date: "date", Category: "category", TargetEncoding: "category"}


@dataclass(frozen=True)
class TableHost:
    """`types` has the type of each raw column in training; `notes` are sentences about the fit for the user."""

    codings: Codings
    label: Label
    types: Mapping[str, str]
    notes: tuple[str, ...] = ()
    derived: Derivation | None = None

    kind: ClassVar[str] = "table"

    @property
    def inputs(self) -> tuple[RawInput, ...]:
        kinds = {coding.name: _KINDS[type(coding)] for coding in self.codings.columns}
        return tuple(RawInput(name, kinds.get(name) or self._kind(name)) for name in self.needed(targets=False))

    @property
    def class_names(self) -> tuple[str, ...] | None:
        classes = self.label.classes
        numbered = classes is not None and list(classes) == [str(place) for place in range(len(classes))]
        return None if numbered else classes

    def needed(self, targets: bool) -> list[str]:
        """The raw columns to read. With `targets` also the label, or what it is made of, and the columns of `where`."""
        names = [coding.name for coding in self.codings.columns]
        if self.derived is None:
            return names + ([self.label.name] if targets else [])
        wanted = self.derived.raw_columns([*names, *([self.label.name] if targets else [])])
        return list(dict.fromkeys([*wanted, *(self.derived.condition_columns if targets else [])]))

    def values(self, raw: Values, unseen: Counter[str] | None = None) -> Values:
        """The raw columns together with those that are derived from them. `unseen` counts values that training never saw."""
        return raw if self.derived is None else self.derived.values(raw, unseen)

    def rows(self, raw: Any) -> Batch:
        """{"age": [39, 50], ...}, or [{"age": 39, ...}, {"age": 50, ...}]; other columns are ignored."""
        columns = self._columns(raw)
        values = PlainValues(columns)
        if not values.rows:
            raise DataError("the data has columns and no rows")
        for coding in self.codings.columns:
            if isinstance(coding, Number) and coding.name in columns:
                _check_range(coding.name, values.numbers(coding.name))
        return {name: torch.from_numpy(column) for name, column in self.codings.encode(self.values(values)).items()}

    def encode(self, columns: Mapping[str, Any], unseen: Counter[str] | None = None) -> dict[str, Array]:
        """Columns as lists or arrays to NumPy arrays. A number too large for float32 becomes missing; `rows` raises for it."""
        names = [name for name in self.needed(targets=False) if name in columns]
        return self.codings.encode(self.values(PlainValues({name: columns[name] for name in names}), unseen), unseen)

    def _columns(self, raw: Any) -> dict[str, Any]:
        names = self.needed(targets=False)
        if isinstance(raw, Mapping):
            for name in names:
                if name not in raw:
                    raise DataError(f"no column {name!r}, which the model was trained with; {did_you_mean(name, raw)}")
            return {name: raw[name] for name in names}
        if not isinstance(raw, Sequence) or not all(isinstance(row, Mapping) for row in raw):
            form = f"{{{names[0]!r}: [...], ...}}"
            raise DataError(f"expected columns by name, as {form}, or a list of rows as dicts; got {type(raw).__name__}")
        for number, row in enumerate(raw):
            for name in names:
                if name not in row:
                    near = did_you_mean(name, row)
                    raise DataError(f"row {number} has no {name!r}, which the model was trained with (None: missing); {near}")
        return {name: [row[name] for row in raw] for name in names}

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "host": self.codings.to_dict(),
            "label": self.label.to_dict(),
            "schema": dict(self.types),
            "notes": list(self.notes),
            **({} if self.derived is None else {"derived": self.derived.to_json()}),
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> TableHost:
        if written.get("version") != VERSION:
            raise DataError(f"the fitted table has version {written.get('version')!r}; this flatout reads version {VERSION}")
        label = Label.from_dict(written["label"])
        derived = Derivation.from_json(written["derived"]) if "derived" in written else None
        return cls(Codings.from_dict(written["host"]), label, dict(written["schema"]), tuple(written["notes"]), derived)

    def _kind(self, name: str) -> str:
        """Of a raw column that only derived columns use."""
        assert self.derived is not None
        return {NUMBER: "number", DATE: "date"}.get(self.derived.kinds[name], "category")


def _check_range(name: str, numbers: Array) -> None:
    beyond = np.abs(numbers) > LARGEST
    if beyond.any():
        row = int(beyond.argmax())
        raise DataError(f"row {row}: column {name!r} is {numbers[row]:g}, too large for float32; use None for a missing value")
