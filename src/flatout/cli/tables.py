"""Columns of tensors as a Parquet, CSV or NumPy file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.base.errors import StoreError, UsageError

_SUFFIXES = (".parquet", ".csv", ".npz")


def check_table_path(path: Path) -> None:
    if path.suffix not in _SUFFIXES:
        raise UsageError(f"--out is a {', '.join(_SUFFIXES)} file, got {path.name}")
    if not path.resolve().parent.is_dir():
        raise UsageError(f"--out: there is no folder {path.resolve().parent}")


def write_table(path: Path, columns: Mapping[str, Any]) -> None:
    """A tensor of more than one dimension becomes a column of lists."""
    try:
        if path.suffix == ".npz":
            import numpy as np

            np.savez_compressed(path, **{name: column.numpy() for name, column in columns.items()})
            return
        import pyarrow as pa

        table = pa.table({name: column.numpy() if column.ndim == 1 else column.tolist() for name, column in columns.items()})
        if path.suffix == ".parquet":
            import pyarrow.parquet as parquet

            parquet.write_table(table, path)
        else:
            import pyarrow.csv as csv

            flat = {
                name: column.numpy() if column.ndim == 1 else [str(row) for row in column.tolist()]
                for name, column in columns.items()
            }
            csv.write_csv(pa.table(flat), path)
    except OSError as error:
        raise StoreError(f"can't write {path}: {error}") from error
