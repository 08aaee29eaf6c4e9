"""How the training rows of a package are distributed, column by column, so that what is served can be compared with them.

Numbers are counted in bins that held equally many training rows, with missing ones apart; whole numbers, such as the ids of
categories, by their value. Rows with many numbers, such as photos and embeddings, are counted by their mean, their spread and a
few fixed random directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import FlatoutError
from flatout.data.data import Data
from flatout.data.fitted import Fitted
from flatout.data.fitted.table_features import TableFeatures
from flatout.packaging.answering import Preparation

Array = np.ndarray[Any, Any]

STATISTICS = "statistics.json"
ROWS = 20_000
_BINS, _VALUES, _EACH, _DIRECTIONS = 10, 16, 64, 8


@dataclass(frozen=True)
class ColumnStatistics:
    """One figure of every row. `port` and `place` say where it is in the prepared rows; with a `direction` it is a sum over all
    of the row: -1 the mean, -2 the spread, others numbers of random directions. `cuts` are edges of bins of numbers, or
    `values` are those that are counted each. The last share is that of what is missing, or of all other values."""

    name: str
    port: str
    place: int = 0
    direction: int = 0
    cuts: tuple[float, ...] = ()
    values: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()

    @property
    def is_ordered(self) -> bool:
        return bool(self.cuts)

    def figure(self, rows: Array) -> Array:
        flat = rows.reshape(len(rows), -1)
        if not self.direction:
            return flat[:, self.place]
        flat = flat.astype(np.float64)
        if self.direction == -1:
            return np.asarray(flat.mean(1))
        if self.direction == -2:
            return np.asarray(flat.std(1))
        turned = np.random.default_rng(self.direction).standard_normal(flat.shape[1]) / np.sqrt(flat.shape[1])
        return np.asarray(flat @ turned)

    def counts(self, rows: Array) -> Array:
        """How many rows lie in each bin."""
        figure = self.figure(rows)
        if self.is_ordered:
            figure = figure.astype(np.float64)
            places = np.where(np.isnan(figure), len(self.cuts) + 1, np.searchsorted(np.array(self.cuts), figure))
        else:
            order = np.argsort(self.values)
            values = np.array(self.values)[order]
            near = np.minimum(np.searchsorted(values, figure), len(values) - 1)
            places = np.where(values[near] == figure, order[near], len(values))
        return np.bincount(places, minlength=len(self.shares))


@dataclass(frozen=True)
class RowStatistics:
    """`rows` is how many training rows were counted."""

    rows: int
    columns: tuple[ColumnStatistics, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> RowStatistics:
        lists = ("cuts", "values", "shares")
        columns = []
        for one in written["columns"]:
            given: dict[str, Any] = {str(key): tuple(value) if key in lists else value for key, value in one.items()}
            columns.append(ColumnStatistics(**given))
        return cls(int(written["rows"]), tuple(columns))


def statistics_of(data: Data, most: int = ROWS) -> RowStatistics | None:
    """Of training rows from all of the data; None if they can't be read a second time."""
    source = data.train
    try:
        if source.shapes_vary:
            return None
        places = torch.linspace(0, len(source) - 1, min(most, len(source))).round().long()
        rows = source.read(places)
    except (FlatoutError, OSError, TypeError):
        return None
    prepared = {name: column for name, column in Preparation(data.fitted).before(rows).items()}
    columns = {name: prepared[name] for name in Preparation(data.fitted).columns if name in prepared}
    return statistics_of_rows(columns, data.fitted)


def statistics_of_rows(columns: Mapping[str, Tensor], fitted: Fitted) -> RowStatistics:
    """Of prepared rows, as the program takes them."""
    made: list[ColumnStatistics] = []
    for port, tensor in columns.items():
        rows = tensor.float().numpy() if tensor.is_floating_point() else tensor.numpy()
        width = prod(tensor.shape[1:])
        names = _names(port, width, fitted)
        if width > _EACH and (rows.dtype.kind == "f" or rows.dtype == np.uint8):  # not ids of tokens
            sums = [("mean", -1), ("spread", -2), *((f"direction {one}", one) for one in range(1, _DIRECTIONS + 1))]
            made += [ColumnStatistics(f"{port}: {name}", port, direction=direction) for name, direction in sums]
        else:
            made += [ColumnStatistics(name, port, place) for place, name in enumerate(names[:_EACH])]
    found = [_counted(one, columns[one.port]) for one in made]
    rows_counted = len(next(iter(columns.values()))) if columns else 0
    return RowStatistics(rows_counted, tuple(one for one in found if one is not None))


def _counted(column: ColumnStatistics, tensor: Tensor) -> ColumnStatistics | None:
    rows = tensor.float().numpy() if tensor.is_floating_point() else tensor.numpy()
    figure = column.figure(rows)
    cuts: tuple[float, ...] = ()
    values: tuple[int, ...] = ()
    if figure.dtype.kind == "f":
        known = figure[~np.isnan(figure)]
        if not len(known):
            return None
        edges = np.unique(np.quantile(known.astype(np.float64), np.linspace(0, 1, _BINS + 1)[1:-1]))
        cuts = tuple(float(edge) for edge in edges)
    else:
        found, counts = np.unique(figure, return_counts=True)
        values = tuple(int(value) for value in found[np.argsort(-counts, kind="stable")][:_VALUES])
    bins = (len(cuts) + 2) if cuts else len(values) + 1
    cut = ColumnStatistics(column.name, column.port, column.place, column.direction, cuts, values, (0.0,) * bins)
    shares = cut.counts(rows) / len(rows)
    return ColumnStatistics(**{**vars(cut), "shares": tuple(float(share) for share in shares)})


def _names(port: str, width: int, fitted: Fitted) -> Sequence[str]:
    """Those of a table's columns; places of an array."""
    for step in fitted.device.steps:
        if isinstance(step, TableFeatures):
            known = {"numeric": [one.name for one in step.numbers], "ids": [one.name for one in step.categories]}.get(port)
            if known is not None and len(known) == width:
                return known
    return [port] if width == 1 else [f"{port}[{place}]" for place in range(width)]
