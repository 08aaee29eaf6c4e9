"""What the guards see of a table: its columns in a sample of the rows, the label, and how rows are held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from flatout.explore.drafting.columns import SampledColumn

Array = np.ndarray[Any, Any]

FEW_ROWS = 20
"""Fewer rows show nothing about a column."""
_SPREAD_ROWS = 20_000


@dataclass(frozen=True)
class HeldFile:
    """Another file, for validation or test, with the columns of the table."""

    name: str
    columns: Mapping[str, SampledColumn]


@dataclass(frozen=True)
class TableLook:
    """`columns` are all columns of the sample, with the label. `whole`: the sample has all rows.

    `random_holdout`: rows are held out by their hash, without regard to time or groups.
    """

    columns: Mapping[str, SampledColumn]
    label: SampledColumn
    target: str
    whole: bool = True
    random_holdout: bool = True
    held: Sequence[HeldFile] = ()

    @property
    def rows(self) -> int:
        return self.label.rows

    @cached_property
    def inputs(self) -> list[SampledColumn]:
        return [column for column in self.columns.values() if column.name != self.label.name and column.kind != "nested"]

    @cached_property
    def spread(self) -> Array:
        """Rows with a label, spread evenly over the sample, in an order that does not follow the file."""
        labelled = np.flatnonzero(np.asarray(self.label.values.is_valid().to_numpy(zero_copy_only=False)))
        count = min(len(labelled), _SPREAD_ROWS)
        places = labelled[np.arange(count) * len(labelled) // max(1, count)]
        return np.random.default_rng(0).permutation(places)

    def without(self, names: Sequence[str]) -> TableLook:
        """The same look without these columns."""
        kept = {name: column for name, column in self.columns.items() if name not in names}
        return TableLook(kept, self.label, self.target, self.whole, self.random_holdout, self.held)


def coded(column: SampledColumn) -> Array:
    """int64 [rows]: a number for each value; missing is a value too."""
    encoded = column.values.dictionary_encode()
    missing = len(encoded.dictionary)
    return np.asarray(encoded.indices.fill_null(missing).to_numpy(zero_copy_only=False)).astype(np.int64)


def numbers_of(column: SampledColumn) -> Array:
    """float64 [rows], NaN where missing."""
    import pyarrow as pa

    values = column.values.cast(pa.float64(), safe=False)
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64)


def is_numeric(column: SampledColumn) -> bool:
    return column.kind in ("whole", "number")


def is_whole(column: SampledColumn) -> bool:
    """Whether it has whole numbers alone, also if they are kept as 17.0."""
    if not is_numeric(column):
        return False
    numbers = column.numbers[~np.isnan(column.numbers)]
    return bool(np.isfinite(numbers).all()) and not (numbers % 1).any()


def has_gaps(column: SampledColumn) -> bool:
    """Whether values are missing."""
    return column.values.null_count > 0 or (is_numeric(column) and bool(np.isnan(column.numbers).any()))
