"""What a run folder keeps of its data: enough to rebuild the model and prepare other rows, without the training rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.data import Data
from flatout.data.fitted.fitted import Fitted
from flatout.data.source import Batch, Column, Source
from flatout.data.transforms import parse_transforms


class Described(Source):
    """Stands for training rows that are not available: their number and columns."""

    def __init__(self, rows: int | None, schema: Mapping[str, Column], tokens_per_row: float, fingerprint: str) -> None:
        self._rows, self._schema, self._tokens, self._fingerprint = rows, dict(schema), tokens_per_row, fingerprint

    @property
    def schema(self) -> dict[str, Column]:
        return self._schema

    def __len__(self) -> int:
        if self._rows is None:
            raise DataError("the run was trained on an iterable of unknown length")
        return self._rows

    @property
    def epoch_rows(self) -> int | None:
        return self._rows

    @property
    def tokens_per_row(self) -> float:
        return self._tokens

    def read(self, rows: Tensor) -> Batch:
        raise DataError("a run folder does not keep the training rows: name the data to read with --data")

    def fingerprint(self) -> str:
        return self._fingerprint


def remember(data: Data) -> dict[str, Any]:
    """As JSON."""
    return {
        **data.describe(),
        "inputs": list(data.inputs),
        "cardinalities": list(data.cardinalities),
        "fingerprint": data.fingerprint(),
        "fitted": data.fitted.to_json(),
        "notes": list(data.notes),
    }


def recall(kept: Mapping[str, Any], asked: Any = None, folder: Path = Path()) -> Data:
    """Data without rows. UsageError if a transform was a Python object of the user, which JSON can't hold.

    `asked` is the data of the recipe, with paths relative to `folder`; folders of earlier versions need it.
    """
    if "fitted" in kept:
        fitted = Fitted.from_json(kept["fitted"])
    else:
        from flatout.data.earlier import fitted_of_earlier_run

        fitted = fitted_of_earlier_run(kept, asked, folder)
    return Data(
        train=Described(kept["train_rows"], fitted.schema, kept["tokens_per_row"], kept["fingerprint"]),
        prepare=fitted.device.steps,
        training=None if kept["training"] is None else parse_transforms(kept["training"]),
        target_scale=tuple(kept["target_scale"]) if "target_scale" in kept else None,
        inputs=tuple(kept["inputs"]),
        cardinalities=tuple(kept["cardinalities"]),
        host=fitted.host,
        reading=fitted.reading,
        notes=tuple(kept["notes"]),
        classes=kept["classes"],
        vocabulary=kept["vocabulary"],
        labels=None if kept["labels"] is None else tuple(kept["labels"]),
        alphabet=kept["alphabet"],
    )
