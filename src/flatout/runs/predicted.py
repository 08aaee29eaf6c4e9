"""Predictions in the form of the data: a DataFrame for a DataFrame, NumPy arrays for everything else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.data.sources.tables.frames import is_table

__all__ = ["in_form_of", "is_table"]


def in_form_of(given: Any, columns: Mapping[str, Any]) -> Any:
    """`columns` are those of `predict`. A pandas DataFrame keeps its index; what else Arrow can read gives a pyarrow.Table."""
    arrays = {name: _array(column) for name, column in columns.items()}
    if not is_table(given):
        return arrays
    flat = {name: values for whole, column in arrays.items() for name, values in _one_value_a_row(whole, column)}
    library = type(given).__module__.partition(".")[0]
    if library == "pandas":
        return type(given)(flat, index=given.index)
    if library == "polars":
        return type(given)(flat)
    import pyarrow as pa

    return pa.table(flat)


def _array(column: Any) -> Any:
    if isinstance(column, Tensor):
        return (column.float() if column.dtype == torch.bfloat16 else column).numpy()  # NumPy has no bfloat16
    return np.asarray(column)


def _one_value_a_row(name: str, column: Any) -> Iterator[tuple[str, Any]]:
    """Several values in each row, such as those of a model with several outputs, become a column each."""
    if column.ndim < 2:
        yield name, column
    else:
        rows = column.reshape(len(column), -1)
        yield from ((f"{name}_{place}", rows[:, place]) for place in range(rows.shape[1]))
