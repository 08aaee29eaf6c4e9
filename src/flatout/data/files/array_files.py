"""Arrays from .npy, .npz, .safetensors and idx files (the format of MNIST), gzipped or not. Nothing is unpickled."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.files import npy
from flatout.data.files.allowance import check_fits
from flatout.data.files.damage import reading
from flatout.data.files.places import LocalFile, open_plain, open_regular, special_kind

Array = np.ndarray[Any, Any]
Read = TypeVar("Read")
_IDX_NAME = re.compile(r"(\.idx\d?|idx\d-[a-z]+)(\.gz)?$")
_MOST_DIMENSIONS = 32
_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
FORMATS = ".npy, .npz, .safetensors, .idx or idx.gz (such as train-images-idx3-ubyte.gz)"


def file_format(path: Path) -> str | None:
    """ "npy", "npz", "safetensors" or "idx" by the name of the file; None if the name is unknown."""
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz", ".safetensors"):
        return suffix[1:]
    return "idx" if _IDX_NAME.search(path.name.lower()) else None


def read_columns(path: Path) -> Mapping[str, Array | Tensor]:
    """The named arrays of a .npz or .safetensors file."""
    kind = _checked_format(path)
    if kind == "npz":
        return _read(path, npy.read_archive)
    if kind == "safetensors":
        return _read(path, _read_safetensors)
    raise DataError(f"{path} holds one array, not named columns: give x and y each a file, or one .npz with both")


def read_array(path: Path, column: str) -> Array | Tensor:
    """The array of a file; if there are several, the one called `column`."""
    kind = _checked_format(path)
    if kind in ("npz", "safetensors"):
        columns = read_columns(path)
        if len(columns) == 1:
            return next(iter(columns.values()))
        if column not in columns:
            raise DataError(f"{path} has no {column!r} among its arrays: {', '.join(sorted(columns))}")
        return columns[column]
    return _read(path, _read_npy if kind == "npy" else _read_idx)


def _checked_format(path: Path) -> str:
    if not os.path.exists(path):
        raise DataError(f"no file at {path}")
    if os.path.isdir(path):
        raise DataError(f"{path} is a folder; expected a file: {FORMATS}")
    special = special_kind(path)
    if special is not None:
        raise DataError(f"{path} is {special}; expected a file: {FORMATS}")
    kind = file_format(path)
    if kind is None:
        raise DataError(f"{path} has no known format; arrays are read from {FORMATS}")
    return kind


def _read(path: Path, reader: Callable[[BinaryIO, str], Read]) -> Read:
    try:
        with open_regular(path) as file, reading(str(path), f"as {file_format(path)}"):
            return reader(file, str(path))
    except OSError as error:
        raise DataError(f"{path} can't be opened: {error.strerror or error}") from error
    except DataError as error:
        if "pickled" in str(error):
            raise DataError(
                f"{path} holds Python objects (pickled), which could run code on loading: save it again as plain numbers, "
                "for example numpy.savez(path, x=x.astype('float32'))"
            ) from error
        raise


def _read_npy(file: BinaryIO, name: str) -> Array:
    header = npy.read_header(file)
    return npy.read_values(file, header, os.fstat(file.fileno()).st_size - header.header_bytes, name)


def _read_safetensors(file: BinaryIO, name: str) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    check_fits(os.fstat(file.fileno()).st_size, name)
    return load_file(name)


def _read_idx(file: BinaryIO, name: str) -> Array:
    """The file must have exactly the bytes that its header declares."""
    with open_plain(LocalFile(Path(name))) as content:
        start = content.read(4)
        if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in _IDX_TYPES:
            raise ValueError("the first four bytes are not those of an idx file")
        shape = tuple(int(size) for size in np.frombuffer(content.read(4 * start[3]), ">u4"))
        kind = np.dtype(_IDX_TYPES[start[2]])
        if len(shape) != start[3] or len(shape) > _MOST_DIMENSIONS:
            raise ValueError(f"its header declares {start[3]} dimensions: the file is cut off or damaged")
        expected = math.prod(shape) * kind.itemsize
        check_fits(expected, name, "its header asks for")
        values = np.empty(expected, np.uint8)
        count = content.readinto(values.data)
        if count < expected or content.read(1):
            came = f"{count} are there" if count < expected else "more are there"
            raise ValueError(f"its header declares {expected} bytes of values, {came}: the file is cut off or damaged")
    array = values.view(kind)
    return (array if kind.isnative else array.byteswap(inplace=True).view(kind.newbyteorder("="))).reshape(shape)
