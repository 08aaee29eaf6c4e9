"""Write columns of tensors and arrays as a Parquet, CSV or NumPy file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.base.errors import StoreError, UsageError

_SUFFIXES = (".parquet", ".csv", ".npz")
_JOINED = 1000  # numbers of a row that are joined column by column


def check_table_path(path: Path) -> None:
    if path.suffix not in _SUFFIXES:
        raise UsageError(f"--out must be a {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]} file, got {path.name}")
    if not path.resolve().parent.is_dir():
        raise UsageError(f"--out: folder not found: {path.resolve().parent}")


def write_table(path: Path, columns: Mapping[str, Any]) -> None:
    """Writes the complete file or nothing. A column with more than one dimension becomes a column of lists."""
    aside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        _write(aside, columns)
        os.replace(aside, path)
    except OSError as error:
        raise StoreError(f"can't write {path}: {os.strerror(error.errno) if error.errno else error}") from error
    finally:
        with suppress(OSError):
            aside.unlink()


def _write(path: Path, columns: Mapping[str, Any]) -> None:
    import numpy as np

    arrays: dict[str, Any] = {name: np.asarray(column) for name, column in columns.items()}
    if path.suffix == ".npz":  # which has no missing text, and would hold Python objects as a pickle
        arrays = {name: array.astype(str) if array.dtype == object else array for name, array in _filled(arrays).items()}
        np.savez_compressed(path, **arrays)
        return
    import pyarrow as pa

    if path.suffix == ".parquet":
        import pyarrow.parquet as parquet

        parquet.write_table(pa.table({name: _listed(array) for name, array in arrays.items()}), path)
    else:
        import pyarrow.csv as csv

        csv.write_csv(pa.table({name: _in_one_cell(array) for name, array in arrays.items()}), path)


def _filled(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Missing values of Python objects as empty text."""
    import numpy as np

    return {
        name: np.array(["" if value is None else value for value in array], dtype=object) if array.dtype == object else array
        for name, array in arrays.items()
    }


def _in_one_cell(array: Any) -> Any:
    """A column as it is; a row of several numbers as the text of a list, such as [0.25, 0.75]."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if array.ndim == 1:
        return array
    if array.ndim > 2 or array.dtype.kind not in "fiu" or not 0 < array.shape[1] <= _JOINED:
        return [str(row) for row in array.tolist()]
    texts = [pa.array(array[:, place]).cast(pa.string()) for place in range(array.shape[1])]
    return pc.binary_join_element_wise("[", pc.binary_join_element_wise(*texts, ", "), "]", "")


def _listed(array: Any) -> Any:
    """Rows of an array as Arrow lists of its type, without creating a Python object per number."""
    import pyarrow as pa

    if array.ndim == 1:
        return array
    listed = pa.array(array.reshape(-1))
    for length in array.shape[:0:-1]:
        listed = pa.FixedSizeListArray.from_arrays(listed, length)
    return listed
