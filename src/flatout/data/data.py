"""What to train on: a source for training, one to validate on, and what happens to their rows on the way to the model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from flatout.base.errors import DataError, did_you_mean
from flatout.data.files.bad import Bad
from flatout.data.fitted.array_rows import ArrayHost
from flatout.data.fitted.device import DevicePart
from flatout.data.fitted.fitted import Fitted
from flatout.data.fitted.host import HostPart
from flatout.data.order.draws import Balanced, Weighted, check_weights
from flatout.data.order.order import Order, Sampler
from flatout.data.source import Column, Source, hash_tensors
from flatout.data.transforms import Transform, describe_all

PARTS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Data:
    """`draw` is "shuffle", "balanced", the name of a column of weights, or a tensor of weights, one for each training row.

    A training row goes through `prepare` and `augment`, or, where training needs other steps than evaluation from the start
    (a random crop instead of one from the middle), through `training` alone. `inputs` names the columns that the model gets.
    """

    train: Source
    validation: Source | None = None
    test: Source | None = None
    prepare: tuple[Transform, ...] = ()
    augment: tuple[Transform, ...] = ()
    training: tuple[Transform, ...] | None = None
    inputs: tuple[str, ...] = ("x",)
    cardinalities: tuple[int, ...] = ()  # of the columns of `categories`, for embeddings
    host: HostPart | None = None  # raw values to rows, as it was fitted; None: columns of numbers
    reading: Mapping[str, Any] = field(default_factory=dict)  # how its files are read, for other files like them
    notes: tuple[str, ...] = ()  # what a person should know of how the data was read
    bad: tuple[Bad, ...] = ()  # what was left out as it was read; sources that read later have one of their own
    draw: str | Tensor = "shuffle"
    classes: int | None = None
    vocabulary: int | None = None
    labels: tuple[str, ...] | None = None
    alphabet: str | None = None
    target_scale: tuple[float, float] | None = None  # mean and deviation of a y that is a number, over the training rows

    def __post_init__(self) -> None:
        self.schema()  # transforms that don't fit the data are said here, not in the first step
        _check_draw(self)

    def schema(self) -> dict[str, Column]:
        """The columns of a training batch, as the model gets them."""
        return describe_all(self.transforms(), self.train.schema)

    def transforms(self) -> tuple[Transform, ...]:
        """What a training batch goes through."""
        return (*self.prepare, *self.augment) if self.training is None else self.training

    def parts(self) -> dict[str, Source]:
        """Those of PARTS that there are."""
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: source for name, source in given.items() if source is not None}

    def shapes_x(self) -> tuple[int, ...]:
        return self.schema()["x"].shape

    def target(self) -> Column | None:
        return self.schema().get("y")

    @property
    def epoch_rows(self) -> int | None:
        """Rows in an epoch; None for a stream whose end nobody knows."""
        return self.train.epoch_rows

    @property
    def row_bytes(self) -> int:
        """One training row as it is stored."""
        return sum(column.row_bytes for column in self.train.schema.values())

    def typical_batch(self, batch: int) -> tuple[int, dict[str, Column]]:
        """Rows and columns of a training batch of middling size, as the model gets them."""
        rows, columns = self.train.typical_batch(batch)
        return rows, describe_all(self.transforms(), columns)

    @property
    def tokens_per_row(self) -> float:
        return self.train.tokens_per_row

    def sampler(self, seed: int) -> Sampler:
        """Which training row comes when."""
        if isinstance(self.draw, Tensor):
            return Weighted(seed, self.draw)
        if self.draw == "shuffle":
            return Order(seed, self.train.blocks())
        if self.draw == "balanced":
            return Balanced(seed, self._column("y"))
        return Weighted(seed, self._column(self.draw))

    def left_out(self) -> tuple[int, str | None]:
        """How many samples were left out so far because they could not be read, and in words which; None where none was."""
        every = [*self.bad, *(source.bad for source in self.parts().values() if source.bad is not None)]
        distinct = list({id(bad): bad for bad in every}.values())
        words = [said for bad in distinct if (said := bad.summary())]
        return sum(bad.count for bad in distinct), "; ".join(words) or None

    @cached_property
    def fitted(self) -> Fitted:
        """All that prepares other rows as these are prepared, without these."""
        schema = self.train.schema
        host = self.host
        if host is None:
            columns = {name: (str(column.dtype).removeprefix("torch."), column.shape) for name, column in schema.items()}
            host = ArrayHost(columns, self.reading.get("layout"), self.labels, self.vocabulary)
        return Fitted(host, DevicePart(self.prepare), schema, self.reading)

    def fingerprint(self) -> str:
        """A hash of everything here that changes what a model learns, in hex."""
        return self._fingerprint

    def describe(self) -> dict[str, Any]:
        """For people and JSON."""
        return {
            "train_rows": self.epoch_rows,
            "validation_rows": None if self.validation is None else len(self.validation),
            "columns": {name: column.written() for name, column in self.train.schema.items()},
            "row_bytes": self.row_bytes,
            "tokens_per_row": self.tokens_per_row,
            "prepare": [transform.written() for transform in self.prepare],
            "augment": [transform.written() for transform in self.augment],
            "training": None if self.training is None else [transform.written() for transform in self.training],
            "draw": "weights" if isinstance(self.draw, Tensor) else self.draw,
            "classes": self.classes,
            "vocabulary": self.vocabulary,
            "labels": None if self.labels is None else list(self.labels),
            "alphabet": self.alphabet,
            **({} if self.target_scale is None else {"target_scale": list(self.target_scale)}),
        }

    @cached_property
    def _fingerprint(self) -> str:
        sources = [self.train.fingerprint(), None if self.validation is None else self.validation.fingerprint()]
        weights = hash_tensors({"draw": self.draw}) if isinstance(self.draw, Tensor) else None
        content = json.dumps([sources, weights, self.describe()], sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    def _column(self, name: str) -> Tensor:
        return self.train.column(name)


def _check_draw(data: Data) -> None:
    schema = data.train.schema
    if data.train.shapes_vary and (isinstance(data.draw, Tensor) or data.draw != "shuffle"):
        raise DataError("a budget of tokens makes batches of rows of like length: leave draw out, or leave tokens out")
    if isinstance(data.draw, Tensor):
        rows = len(data.train)
        if len(check_weights(data.draw)) != rows:
            raise DataError(f"draw: {len(data.draw)} weights came for {rows} training rows; give one weight a row")
    elif data.draw == "balanced":
        y = schema.get("y")
        if y is None or y.shape != () or y.dtype.is_floating_point:
            raise DataError("draw='balanced' needs a y of class labels, one integer a row; use 'shuffle' or weights here")
    elif data.draw != "shuffle":
        column = schema.get(data.draw)
        if column is None:
            known = ["shuffle", "balanced", *(name for name in schema if name not in ("x", "y"))]
            near = did_you_mean(data.draw, known)
            raise DataError(f"draw={data.draw!r} is neither a way to draw nor a column of weights; {near}")
        if column.shape != ():
            raise DataError(f"draw: column {data.draw!r} is not one weight a row, its rows are {list(column.shape)}")
