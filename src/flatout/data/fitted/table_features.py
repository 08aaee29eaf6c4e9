"""The device part of a table: encoded columns to the inputs of a model, for a whole batch at once.

`numeric` and `ids` become `x` (filled, clipped, logged, standardised or bucketed numbers, flags, one-hot columns) and, for
categories with many values, `categories` for embeddings.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from flatout.base.errors import DataError
from flatout.data.source import Batch, Column, Schema


@dataclass(frozen=True)
class NumberFeatures:
    """The features of one column of `numeric`. `value`: (v - mean) / std; `period`: sine and cosine; `edges`: the bucket of v,
    as one number from 0 to 1 (`rank`) or one-hot.
    """

    name: str
    fill: float = 0.0
    flag: str | None = None
    low: float | None = None
    high: float | None = None
    log: bool = False
    mean: float = 0.0
    std: float = 1.0
    value: bool = True
    period: float | None = None
    edges: tuple[float, ...] = ()
    rank: bool = False


@dataclass(frozen=True)
class CategoryFeatures:
    """The features of one column of `ids`: one-hot columns for `onehot`, or an id below `cardinality`."""

    name: str
    cardinality: int
    onehot: tuple[str, ...] = ()


class TableFeatures(nn.Module):
    """A transform of batches, and a module of two tensors: `forward(numeric, ids)` -> x, or (x, categories)."""

    fill: Tensor
    low: Tensor
    high: Tensor
    logged: Tensor
    mean: Tensor
    scale: Tensor
    plain: Tensor
    cyclic: Tensor
    turn: Tensor
    flagged: Tensor
    bucketed: Tensor
    edges: Tensor
    ranked: Tensor
    rank_scale: Tensor
    bucket_of: Tensor
    bucket_is: Tensor
    onehot_of: Tensor
    onehot_is: Tensor
    embedded: Tensor

    def __init__(self, numeric: Sequence[Any] = (), ids: Sequence[Any] = ()) -> None:
        """Columns as `NumberFeatures` and `CategoryFeatures`, or as the JSON of `written`."""
        super().__init__()
        self.numbers = tuple(_made(NumberFeatures, column) for column in numeric)
        self.categories = tuple(_made(CategoryFeatures, column) for column in ids)
        numbers = self.numbers
        self._constant("fill", [column.fill for column in numbers])
        self._clips = any(column.low is not None or column.high is not None for column in numbers)
        self._constant("low", [-math.inf if column.low is None else column.low for column in numbers])
        self._constant("high", [math.inf if column.high is None else column.high for column in numbers])
        self._logs = any(column.log for column in numbers)
        self._constant("logged", [column.log for column in numbers], torch.bool)
        self._constant("mean", [column.mean for column in numbers])
        self._constant("scale", [1 / column.std for column in numbers])
        self._pick("plain", [column.value for column in numbers])
        self._pick("cyclic", [column.period is not None for column in numbers])
        self._constant("turn", [2 * math.pi / column.period for column in numbers if column.period is not None])
        self._pick("flagged", [column.flag is not None for column in numbers])
        bucketed = [column for column in numbers if column.edges]
        longest = max((len(column.edges) for column in bucketed), default=0)
        self._pick("bucketed", [bool(column.edges) for column in numbers])
        self._constant("edges", [[*column.edges, *[math.inf] * (longest - len(column.edges))] for column in bucketed])
        self._pick("ranked", [column.rank for column in bucketed])
        self._constant("rank_scale", [1 / len(column.edges) for column in bucketed if column.rank])
        spread = [(place, bucket) for place, c in enumerate(bucketed) if not c.rank for bucket in range(len(c.edges) + 1)]
        self._pairs("bucket", spread)
        self._pairs("onehot", [(p, 1 + value) for p, c in enumerate(self.categories) for value in range(len(c.onehot))])
        self._pick("embedded", [not column.onehot for column in self.categories])
        self._copies: dict[torch.device, TableFeatures] = {}

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the columns of x."""
        names = [column.name for column in self.numbers if column.value]
        names += [f"{column.name}.{wave}" for wave in ("sin", "cos") for column in self.numbers if column.period is not None]
        names += [column.flag for column in self.numbers if column.flag is not None]
        bucketed = [column for column in self.numbers if column.edges]
        names += [f"{column.name}.rank" for column in bucketed if column.rank]
        names += [f"{c.name}[{bucket}]" for c in bucketed if not c.rank for bucket in range(len(c.edges) + 1)]
        return (*names, *(f"{column.name}={value}" for column in self.categories for value in column.onehot))

    @property
    def embedded_names(self) -> tuple[str, ...]:
        """The names of the columns of `categories`."""
        return tuple(column.name for column in self.categories if not column.onehot)

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """The number of ids of each column of `categories`, including 0 for unknown."""
        return tuple(column.cardinality for column in self.categories if not column.onehot)

    def forward(self, numeric: Tensor, ids: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """float32 [B, n] and ids [B, m]; [B, 0] for a kind that the table does not have."""
        pieces = []
        if self.numbers:
            missing = torch.isnan(numeric)
            values = torch.where(missing, self.fill, numeric)
            if self._clips:
                values = values.clamp(self.low, self.high)
            pieces.append(self._values(values))
            if len(self.cyclic):
                angles = values.index_select(1, self.cyclic) * self.turn
                pieces += [angles.sin(), angles.cos()]
            if len(self.flagged):
                pieces.append(missing.index_select(1, self.flagged).to(torch.float32))
            if len(self.bucketed):
                pieces += self._buckets(values)
        if len(self.onehot_of):
            pieces.append((ids.index_select(1, self.onehot_of) == self.onehot_is).to(torch.float32))
        x = torch.cat(pieces, 1) if pieces else numeric.new_zeros((ids.shape[0], 0))
        return (x, ids.index_select(1, self.embedded).to(torch.int64)) if len(self.embedded) else x

    def _values(self, values: Tensor) -> Tensor:
        if self._logs:
            values = torch.where(self.logged, values.sign() * values.abs().log1p(), values)
        scaled = (values - self.mean) * self.scale
        return scaled if len(self.plain) == len(self.numbers) else scaled.index_select(1, self.plain)

    def _buckets(self, values: Tensor) -> list[Tensor]:
        # compare with every edge: the lists are short, and every exporter supports it
        buckets = (values.index_select(1, self.bucketed).unsqueeze(-1) >= self.edges).sum(-1)
        ranks = buckets.index_select(1, self.ranked).to(torch.float32) * self.rank_scale
        return [ranks, (buckets.index_select(1, self.bucket_of) == self.bucket_is).to(torch.float32)]

    def __call__(self, batch: Any, keys: Any = None) -> Any:
        """A batch and its keys, like every transform; or the two tensors of `forward`."""
        if not isinstance(batch, dict):
            return super().__call__(batch, keys)
        return self._transformed(batch)

    def _transformed(self, batch: Batch) -> Batch:
        at_hand = next(batch[name] for name in ("numeric", "ids") if name in batch)
        numeric = batch["numeric"] if self.numbers else at_hand.new_zeros((at_hand.shape[0], 0), dtype=torch.float32)
        ids = batch["ids"] if self.categories else at_hand.new_zeros((at_hand.shape[0], 0), dtype=torch.int32)
        made = self._on(at_hand.device).forward(numeric, ids)
        rest = {name: column for name, column in batch.items() if name not in ("numeric", "ids")}
        return {"x": made, **rest} if isinstance(made, Tensor) else {"x": made[0], "categories": made[1], **rest}

    def describe(self, schema: Schema) -> dict[str, Column]:
        for name, columns in (("numeric", self.numbers), ("ids", self.categories)):
            if columns and (name not in schema or schema[name].shape != (len(columns),)):
                came = f"rows of {list(schema[name].shape)}" if name in schema else "no such column"
                raise DataError(f"the table was prepared with {len(columns)} columns of {name!r}, and the data has {came}")
        rest = {name: column for name, column in schema.items() if name not in ("numeric", "ids")}
        made = {"x": Column(torch.float32, (len(self.feature_names),))}
        if self.cardinalities:
            made["categories"] = Column(torch.int64, (len(self.cardinalities),))
        return {**made, **rest}

    def written(self) -> Any:
        return {"table": {"numeric": [_written(c) for c in self.numbers], "ids": [_written(c) for c in self.categories]}}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TableFeatures) and (self.numbers, self.categories) == (other.numbers, other.categories)

    def __hash__(self) -> int:
        return hash((self.numbers, self.categories))

    def _on(self, device: torch.device) -> TableFeatures:
        """This module, or its copy on `device`, made once: an upload during a step would make the host wait."""
        if self.fill.device == device:
            return self
        if device not in self._copies:
            self._copies[device] = copy.deepcopy(self).to(device)
        return self._copies[device]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_copies": {}}

    def _constant(self, name: str, values: Sequence[Any], dtype: torch.dtype = torch.float32) -> None:
        self.register_buffer(name, torch.tensor(values, dtype=torch.float64).to(dtype), persistent=False)

    def _pick(self, name: str, chosen: Sequence[bool]) -> None:
        self._constant(name, [place for place, take in enumerate(chosen) if take], torch.int64)

    def _pairs(self, name: str, pairs: Sequence[tuple[int, int]]) -> None:
        """`name_of` is the column that a feature looks at, `name_is` the value that it stands for."""
        self._constant(f"{name}_of", [place for place, _ in pairs], torch.int64)
        self._constant(f"{name}_is", [value for _, value in pairs], torch.int64)


def _made(kind: Any, column: Any) -> Any:
    if not isinstance(column, Mapping):
        return column
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in column.items()})


def _written(column: Any) -> dict[str, Any]:
    """The fields that differ from their defaults, as JSON."""
    written = {}
    for item in fields(column):
        value = getattr(column, item.name)
        if item.default is MISSING or value != item.default:
            written[item.name] = list(value) if isinstance(value, tuple) else value
    return written
