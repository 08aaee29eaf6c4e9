"""Data to train on: a training source, a validation source, and the transforms of their rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from flatout.base.errors import DataError, UsageError, did_you_mean
from flatout.data.files.bad import Bad
from flatout.data.fitted.array_rows import ArrayHost
from flatout.data.fitted.device import DevicePart
from flatout.data.fitted.fitted import Fitted
from flatout.data.fitted.host import HostPart
from flatout.data.order.draws import Balanced, Weighted, check_weights
from flatout.data.order.keyed import Order, Sampler
from flatout.data.source import Column, Source, Transform, describe_all, hash_tensors

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
    host: HostPart | None = None  # raw values to rows; None: columns of numbers
    reading: Mapping[str, Any] = field(default_factory=dict)  # how files are read, for other files
    raw: Callable[[int], Any] | None = None  # the first n rows before the host part, held-out ones if there are any
    notes: tuple[str, ...] = ()  # sentences for the user about how the data was read
    bad: tuple[Bad, ...] = ()  # samples left out while reading; sources that read later have their own
    draw: str | Tensor = "shuffle"
    classes: int | None = None
    vocabulary: int | None = None
    labels: tuple[str, ...] | None = None
    alphabet: str | None = None
    target_scale: tuple[float, float] | None = None  # mean and deviation of a numeric y over the training rows

    def __post_init__(self) -> None:
        self.schema()  # raises here if transforms don't fit the data, not in the first step
        _check_draw(self)

    def schema(self) -> dict[str, Column]:
        """The columns of a training batch that the model gets."""
        return describe_all(self.transforms(), self.train.schema)

    def transforms(self) -> tuple[Transform, ...]:
        """The transforms of a training batch."""
        return (*self.prepare, *self.augment) if self.training is None else self.training

    def parts(self) -> dict[str, Source]:
        """The parts that exist, by name."""
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: source for name, source in given.items() if source is not None}

    def shapes_x(self) -> tuple[int, ...]:
        schema = self.schema()
        if "x" not in schema:
            found = ", ".join(map(repr, schema))
            raise UsageError(
                f"a sample has {found}: say which one the model gets, as columns={{'x': {next(iter(schema))!r}, 'y': ...}}, "
                "with the names in your samples"
            )
        return schema["x"].shape

    def target(self) -> Column | None:
        return self.schema().get("y")

    @property
    def epoch_rows(self) -> int | None:
        """Rows in an epoch; None for a stream of unknown length."""
        return self.train.epoch_rows

    @property
    def row_bytes(self) -> int:
        """The bytes of one stored training row."""
        return sum(column.row_bytes for column in self.train.schema.values())

    def typical_batch(self, batch: int) -> tuple[int, dict[str, Column]]:
        """Rows and columns of an average training batch, after transforms."""
        rows, columns = self.train.typical_batch(batch)
        return rows, describe_all(self.transforms(), columns)

    @property
    def tokens_per_row(self) -> float:
        return self.train.tokens_per_row

    def sampler(self, seed: int) -> Sampler:
        """The order of training rows."""
        if isinstance(self.draw, Tensor):
            return Weighted(seed, self.draw)
        if self.draw == "shuffle":
            return Order(seed, self.train.blocks())
        if self.draw == "balanced":
            return Balanced(seed, self._column("y"))
        return Weighted(seed, self._column(self.draw))

    def left_out(self) -> tuple[int, str | None]:
        """The number of samples left out so far because they could not be read, and a summary; None if there are none."""
        every = [*self.bad, *(source.bad for source in self.parts().values() if source.bad is not None)]
        distinct = list({id(bad): bad for bad in every}.values())
        words = [said for bad in distinct if (said := bad.summary())]
        return sum(bad.count for bad in distinct), "; ".join(words) or None

    @cached_property
    def fitted(self) -> Fitted:
        """The fitted part of this data: prepares other rows in the same way, without these rows."""
        schema = self.train.schema
        host = self.host
        if host is None:
            columns = {name: (str(column.dtype).removeprefix("torch."), column.shape) for name, column in schema.items()}
            host = ArrayHost(columns, self.reading.get("layout"), self.labels, self.vocabulary)
        return Fitted(host, DevicePart(self.prepare), schema, self.reading)

    def fingerprint(self) -> str:
        """A hash in hex of everything here that changes what a model learns."""
        return self._fingerprint

    def describe(self) -> dict[str, Any]:
        """As JSON, also shown to people."""
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
        raise DataError("tokens= makes batches of rows of similar length: leave out draw or tokens")
    if isinstance(data.draw, Tensor):
        rows = len(data.train)
        if len(check_weights(data.draw)) != rows:
            raise DataError(f"draw: got {len(data.draw)} weights for {rows} training rows; give one weight a row")
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
