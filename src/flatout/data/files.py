"""Arrays from files: .npy, .npz, .safetensors, and idx (the format of MNIST), gzipped or not. Nothing is ever unpickled."""

from __future__ import annotations

import gzip
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError

Array = np.ndarray[Any, Any]
Read = TypeVar("Read")
_IDX_NAME = re.compile(r"(\.idx\d?|idx\d-[a-z]+)(\.gz)?$")
_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_PLAIN_TYPES = {
    torch.float64: torch.float32, torch.bool: torch.uint8,
    torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64,
}  # fmt: skip
FORMATS = ".npy, .npz, .safetensors, .idx or idx.gz (such as train-images-idx3-ubyte.gz)"


def file_format(path: Path) -> str | None:
    """ "npy", "npz", "safetensors" or "idx" by name; None when the name says nothing known."""
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz", ".safetensors"):
        return suffix[1:]
    return "idx" if _IDX_NAME.search(path.name.lower()) else None


def read_columns(path: Path) -> Mapping[str, Array | Tensor]:
    """The named arrays of a .npz or .safetensors file."""
    kind = _checked_format(path)
    if kind == "npz":
        return _reading(path, _read_npz)
    if kind == "safetensors":
        return _reading(path, _read_safetensors)
    raise DataError(f"{path} holds one array, not named columns: give x and y each a file, or one .npz with both")


def read_array(path: Path, column: str) -> Array | Tensor:
    """The one array of a file; of a file with several, the one called `column`."""
    kind = _checked_format(path)
    if kind in ("npz", "safetensors"):
        columns = read_columns(path)
        if len(columns) == 1:
            return next(iter(columns.values()))
        if column not in columns:
            raise DataError(f"{path} has no {column!r} among its arrays: {', '.join(sorted(columns))}")
        return columns[column]
    return _reading(path, _read_npy if kind == "npy" else _read_idx)


def _checked_format(path: Path) -> str:
    if not path.exists():
        raise DataError(f"no file at {path}")
    if path.is_dir():
        raise DataError(f"{path} is a folder; expected a file: {FORMATS}")
    kind = file_format(path)
    if kind is None:
        raise DataError(f"{path} has no known format; arrays are read from {FORMATS}")
    return kind


def _reading(path: Path, reader: Callable[[Path], Read]) -> Read:
    try:
        return reader(path)
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        if "pickle" in str(error).lower():
            raise DataError(
                f"{path} holds Python objects (pickled), which could run code on loading: save it again as plain numbers, "
                "for example numpy.savez(path, x=x.astype('float32'))"
            ) from error
        raise DataError(f"{path} can't be read as {file_format(path)}: {error}") from error


def _read_npy(path: Path) -> Array:
    with path.open("rb") as file:
        return np.asarray(np.load(file, allow_pickle=False))


def _read_npz(path: Path) -> dict[str, Array]:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def _read_idx(path: Path) -> Array:
    with path.open("rb") as plain:
        zipped = plain.read(2) == b"\x1f\x8b"
    content = gzip.decompress(path.read_bytes()) if zipped else path.read_bytes()
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_TYPES:
        raise ValueError("the first four bytes are not those of an idx file")
    dims = content[3]
    start = 4 + 4 * dims
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], ">i4"))
    kind = np.dtype(_IDX_TYPES[content[2]])
    expected = start + math.prod(shape) * kind.itemsize
    if len(shape) != dims or len(content) != expected:
        raise ValueError(f"its header asks for {expected} bytes, and {len(content)} are there: the file is cut off or damaged")
    return np.frombuffer(content, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))


def to_tensor(array: Any, column: str) -> Tensor:
    """Any array of numbers as a tensor of a type that training uses: float64 narrows to float32, unsigned widen."""
    if isinstance(array, Tensor):
        tensor = array.detach().cpu()
    else:
        try:
            host = np.asarray(array)
        except ValueError as error:
            raise DataError(f"column {column!r} is not an array: {error}") from error
        if host.dtype.kind not in "buif":
            raise DataError(f"column {column!r} must hold numbers, its type is {host.dtype}")
        host = host.astype(host.dtype.newbyteorder("="), order="C", copy=False)
        tensor = torch.from_numpy(host if host.flags.writeable else host.copy())
    if tensor.is_complex():
        raise DataError(f"column {column!r} holds complex numbers; give their parts as two columns")
    return tensor.to(_PLAIN_TYPES.get(tensor.dtype, tensor.dtype))
