"""Fits both parts of a table on training rows that stream by once, in blocks; a label that encodes a column goes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatout.base.errors import DataError
from flatout.data.fitted.codings import Codings, FoldMeans
from flatout.data.fitted.label import Label
from flatout.data.fitted.table_features import TableFeatures
from flatout.data.order.keyed import keyed
from flatout.data.order.split import hash_batch
from flatout.data.sources.tables.arrow import ArrowValues
from flatout.data.sources.tables.column_fits import FITS, Context, Dropped, FittedColumn
from flatout.data.sources.tables.kinds import ColumnPlan
from flatout.data.sources.tables.label import LabelFit
from flatout.data.sources.tables.statistics import HashSample
from flatout.data.sources.tables.targets import target_matrix

Array = np.ndarray[Any, Any]
Blocks = Callable[[], Iterator[Any]]


@dataclass(frozen=True)
class TableFit:
    """`others` holds what target-encoded training rows get instead of the host part's means."""

    codings: Codings
    features: TableFeatures
    label: Label
    others: FoldMeans
    notes: tuple[str, ...]
    rows: int


@dataclass(frozen=True)
class FitOptions:
    target: str = "auto"
    classes: int | None = None
    hash_buckets: int | None = None
    seed: int = 0


def fit(blocks: Blocks, columns: Sequence[ColumnPlan], label: str, label_type: Any, options: FitOptions) -> TableFit:
    """`blocks` gives the training rows anew at each call, as record batches of even size."""
    notes: list[str] = []
    known: Label | None = None
    if any(column.kind == "category" and column.steps.category.target for column in columns):
        first = LabelFit(label, label_type, options.target)
        for block in blocks():
            first.add(block)
        known = first.done(options.classes, notes)
    labels = LabelFit(label, label_type, options.target)
    context = Context(known, options.hash_buckets)
    fits = [FITS[column.kind](column, context) for column in columns]
    sampled = [column.name for column in columns if column.kind == "number" and column.steps.number.need_quantiles]
    sample, folds_of = HashSample(sampled), Folds(columns, options.seed).of
    rows = 0
    for block in blocks():
        values = ArrowValues(block)
        rows += values.rows
        if known is None:
            labels.add(block)
        folds = folds_of(block)
        y = target_matrix(known.encode(values), known.class_count) if known is not None else None
        for column_fit in fits:
            column_fit.add(values, folds, y)
        if sampled:
            sample.add(hash_batch(block, keyed(options.seed, "sample")), [values.numbers(name) for name in sampled])
    known = labels.done(options.classes, notes) if known is None else known
    return _assembled(fits, sample, known, notes, rows)


class Folds:
    """The fold of each row, by the hash of its inputs: for each way of folding (their number) that some column asks for."""

    def __init__(self, columns: Sequence[ColumnPlan], seed: int) -> None:
        targets = {c.name: c.steps.category.target for c in columns if c.kind == "category"}
        self._counts = {name: target.folds for name, target in targets.items() if target is not None}
        self._inputs = [column.name for column in columns]
        self._seed = keyed(seed, "folds")

    def of(self, batch: Any) -> dict[str, Array]:
        if not self._counts:
            return {}
        hashes = hash_batch(batch, self._seed, self._inputs)
        return {name: (hashes % np.uint64(count)).astype(np.int64) for name, count in self._counts.items()}


def _assembled(fits: Sequence[Any], sample: HashSample, label: Label, notes: list[str], rows: int) -> TableFit:
    dropped = Dropped()
    done: list[FittedColumn] = [found for column in fits if (found := column.done(sample, dropped)) is not None]
    notes = [*notes, *dropped.notes()]
    if not done:
        raise DataError("no column is left to learn from: " + ("; ".join(notes) or "the table has none beside the label"))
    codings = Codings(tuple(column.coding for column in done))
    features = TableFeatures([f for column in done for f in column.numbers], [f for column in done for f in column.categories])
    others = {column.coding.name: column.others for column in done if column.others is not None}
    return TableFit(codings, features, label, FoldMeans(others), tuple(notes), rows)
