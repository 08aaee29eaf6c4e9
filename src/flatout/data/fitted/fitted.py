"""What was fitted on data: a host part (raw values to tensors) and a device part (tensors to a batch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError, UsageError
from flatout.data.fitted.device import DevicePart
from flatout.data.fitted.host import HostPart, Signature
from flatout.data.source import Batch, Column, Schema, describe_all

VERSION = 1
Words = np.ndarray[Any, np.dtype[np.str_]]


@dataclass(frozen=True)
class Fitted:
    """`schema` has the columns that `rows` makes, and the target; `reading` says how files were read."""

    host: HostPart
    device: DevicePart
    schema: Schema
    reading: Mapping[str, Any] = field(default_factory=dict)

    @property
    def signature(self) -> Signature:
        columns = {name: column for name, column in self.columns().items() if name != "y"}
        return Signature(self.host.inputs, columns, self.host.class_names)

    def rows(self, raw: Any) -> Batch:
        return self.host.rows(raw)

    def columns(self) -> dict[str, Column]:
        """The columns of a batch after the device part."""
        return describe_all(self.device.steps, self.schema)

    def check_columns(self, other: Schema, wanted: Sequence[str], name: str) -> None:
        """DataError if other rows lack a column that the model takes, or have it in another shape. `name` is for messages."""
        here, there = describe_all(self.device.steps, other), self.columns()
        for column in wanted:
            if column not in here:
                raise DataError(f"{name} has no column {column!r}, which the model takes; it has {', '.join(here)}")
            if here[column].shape != there[column].shape:
                raise DataError(
                    f"a row of {column} is {list(here[column].shape)} in {name}, and {list(there[column].shape)} "
                    "in what the model was trained on"
                )

    def name_outputs(
        self, columns: Mapping[str, Tensor], objective: str, *, each_class: bool = False
    ) -> dict[str, Tensor | Words]:
        """The columns of a prediction, and in `class` the names of the predicted classes, if classes have names.

        `each_class`: a column probability_NAME for each class instead of `probabilities`.
        """
        names = self.host.class_names
        if each_class:
            columns = by_class(columns, names, objective)
        if names is None or "prediction" not in columns or objective not in ("classify", "binary"):
            return dict(columns)
        words = np.array([*names, ""])  # the last one is for a model with more outputs than classes
        numbers = columns["prediction"].numpy()
        named: dict[str, Tensor | Words] = {
            "prediction": columns["prediction"],
            "class": words[np.minimum(numbers, len(names))],
        }
        return {**named, **columns}

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "kind": self.host.kind,
            "host": self.host.to_json(),
            "device": self.device.to_json(),
            "columns": {name: column.written() for name, column in self.schema.items()},
            "reading": dict(self.reading),
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Fitted:
        """UsageError if a step of the device part was a Python object of the user, which JSON can't hold."""
        if written.get("version") != VERSION:
            raise DataError(f"the fitted data has version {written.get('version')!r}; this flatout reads version {VERSION}")
        return cls(
            host_from_json(written["kind"], written["host"]),
            DevicePart.from_json(written["device"]),
            {name: column_from_json(column) for name, column in written["columns"].items()},
            dict(written["reading"]),
        )


def by_class(columns: Mapping[str, Tensor], names: Sequence[str] | None, objective: str) -> dict[str, Tensor]:
    """UsageError if the model has no probabilities of classes for a row."""
    odds = columns.get("probabilities")
    if odds is None and objective == "binary" and "probability" in columns:
        # a package of an older version: its `probability` is that of the second class
        odds = torch.stack((1 - columns["probability"], columns["probability"]), 1)
    if odds is None or odds.dim() != 2:
        has = "one for each pixel" if odds is not None else "none"
        raise UsageError(f"probabilities of each class need one class for each row; objective {objective} has {has} here")
    known = [*names] if names is not None and objective != "multilabel" else []
    labels = [known[place] if place < len(known) else str(place) for place in range(odds.shape[1])]
    each = {f"probability_{label}": odds[:, place] for place, label in enumerate(labels)}
    return {**{name: column for name, column in columns.items() if name != "probabilities"}, **each}


def host_from_json(kind: str, written: Mapping[str, Any]) -> HostPart:
    """Each kind loads only if used."""
    if kind == "table":
        from flatout.data.fitted.table_rows import TableHost

        return TableHost.from_json(written)
    if kind == "photos":
        from flatout.data.fitted.photo_rows import PhotoHost

        return PhotoHost.from_json(written)
    if kind == "text":
        from flatout.data.fitted.token_rows import TextHost

        return TextHost.from_json(written)
    if kind == "sequences":
        from flatout.data.fitted.token_rows import SequenceHost

        return SequenceHost.from_json(written)
    if kind == "arrays":
        from flatout.data.fitted.array_rows import ArrayHost

        return ArrayHost.from_json(written)
    raise DataError(f"the fitted data is of the kind {kind!r}, which this flatout does not know")


def column_from_json(written: Mapping[str, Any]) -> Column:
    return Column(getattr(torch, written["dtype"]), tuple(written["shape"]), written.get("ragged"))
