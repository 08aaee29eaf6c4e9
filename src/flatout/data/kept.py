"""What a run keeps of its data: enough to build the model again and to prepare other rows, without the training rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.data import Data
from flatout.data.source import Batch, Column, Source
from flatout.data.transforms import parse_transforms


class Described(Source):
    """Training rows that are not here: how many there were, and their columns."""

    def __init__(self, rows: int, schema: Mapping[str, Column], tokens_per_row: float, fingerprint: str) -> None:
        self._rows, self._schema, self._tokens, self._fingerprint = rows, dict(schema), tokens_per_row, fingerprint

    @property
    def schema(self) -> dict[str, Column]:
        return self._schema

    def __len__(self) -> int:
        return self._rows

    @property
    def tokens_per_row(self) -> float:
        return self._tokens

    def read(self, rows: Tensor) -> Batch:
        raise DataError("the run keeps what its training rows looked like, not the rows: say what to read with --data")

    def fingerprint(self) -> str:
        return self._fingerprint


def remember(data: Data) -> dict[str, Any]:
    """As JSON."""
    return {
        **data.describe(),
        "inputs": list(data.inputs),
        "cardinalities": list(data.cardinalities),
        "fingerprint": data.fingerprint(),
        "preparation": None if data.preparation is None else data.preparation.to_dict(),
        "reading": dict(data.reading),
        "notes": list(data.notes),
    }


def recall(kept: Mapping[str, Any]) -> Data:
    """Data without rows. UsageError where a transform was an object of the user's own, which no file can hold."""
    schema = {name: _column(column) for name, column in kept["columns"].items()}
    preparation = None
    if kept["preparation"] is not None:
        from flatout.data.tables.preparation import Preparation

        preparation = Preparation.from_dict(kept["preparation"])
    return Data(
        train=Described(kept["train_rows"], schema, kept["tokens_per_row"], kept["fingerprint"]),
        prepare=parse_transforms(kept["prepare"]) if preparation is None else (preparation.device,),
        training=None if kept["training"] is None else parse_transforms(kept["training"]),
        target_scale=None if preparation is None else preparation.label.scale,
        inputs=tuple(kept["inputs"]),
        cardinalities=tuple(kept["cardinalities"]),
        preparation=preparation,
        reading=kept["reading"],
        notes=tuple(kept["notes"]),
        classes=kept["classes"],
        vocabulary=kept["vocabulary"],
        labels=None if kept["labels"] is None else tuple(kept["labels"]),
        alphabet=kept["alphabet"],
    )


def _column(written: Mapping[str, Any]) -> Column:
    return Column(getattr(torch, written["dtype"]), tuple(written["shape"]), written.get("ragged"))
