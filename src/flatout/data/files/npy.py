"""Reads .npy files and .npz archives.

NumPy evaluates the header as Python source and allocates what it asks for. Here the header must be a line of three known
entries, and its size is checked against the file and against free memory first.
"""

from __future__ import annotations

import math
import re
import zipfile
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from flatout.base.errors import DataError
from flatout.data.files.allowance import check_fits

Array = np.ndarray[Any, Any]
_MAGIC = b"\x93NUMPY"
_MOST_HEADER_BYTES = 64 << 10
_MOST_DIMENSIONS = 32
_AT_ONCE = 8 << 20
_TYPE = re.compile(r"""['"]descr['"]\s*:\s*(?:['"]([<>|=]?[?a-zA-Z]\d{0,9}(?:\[\w+\])?)['"]|(\[))""")
_FORTRAN = re.compile(r"""['"]fortran_order['"]\s*:\s*(True|False)""")
_SHAPE = re.compile(r"""['"]shape['"]\s*:\s*\(([\dL,\s]*)\)""")


@dataclass(frozen=True)
class NpyHeader:
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    header_bytes: int
    """Where the values start."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: BinaryIO) -> NpyHeader:
    """Leaves the file at the first value. ValueError says what is wrong."""
    start = _exactly(file, 8)
    if start[:6] != _MAGIC:
        raise ValueError(f"it does not start like a .npy file, but with the bytes {start[:6].hex(' ')}")
    if start[6] not in (1, 2, 3):
        raise ValueError(f"its format has version {start[6]}.{start[7]}; 1, 2 and 3 are known")
    size = 2 if start[6] == 1 else 4
    length = int.from_bytes(_exactly(file, size), "little")
    if length > _MOST_HEADER_BYTES:
        raise ValueError(f"its header says that it is {length} bytes long, where some hundred are usual")
    text = _exactly(file, length).decode("utf-8" if start[6] == 3 else "latin-1")
    found = _TYPE.search(text), _FORTRAN.search(text), _SHAPE.search(text)
    kind, fortran, shape = found
    if kind is None or fortran is None or shape is None:
        raise ValueError(f"its header is {text.strip()[:80]!r}; expected descr, fortran_order and shape")
    return NpyHeader(_dtype(kind), _sizes(shape[1]), fortran[1] == "True", 8 + size + length)


def read_values(file: BinaryIO, header: NpyHeader, there: int, name: str) -> Array:
    """The array, if `there` bytes follow the header in the file."""
    if there != header.nbytes:
        state = "it is cut off" if there < header.nbytes else "it is damaged, or holds more than one array"
        raise ValueError(
            f"its header declares {list(header.shape)} values of {header.dtype}, {header.nbytes} bytes, and {there} are there: "
            f"{state}"
        )
    check_fits(header.nbytes, name, "its array is")
    values = np.empty(header.nbytes, np.uint8)
    into = memoryview(values.data)
    done = 0
    while done < header.nbytes:
        piece = file.read(min(_AT_ONCE, header.nbytes - done))
        if not piece:
            raise EOFError(f"{done} of {header.nbytes} bytes of values are there: it is cut off")
        into[done : done + len(piece)] = piece
        done += len(piece)
    return values.view(header.dtype).reshape(header.shape, order="F" if header.fortran else "C")


def read_archive(file: BinaryIO, name: str) -> dict[str, Array]:
    """The arrays of a .npz file, by their names."""
    arrays: dict[str, Array] = {}
    with zipfile.ZipFile(file) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
        if not members:
            raise ValueError("there is no array in it")
        check_fits(sum(member.file_size for member in members), name, "its arrays are, unpacked,")
        for member in members:
            column = member.filename.removesuffix(".npy")
            if member.flag_bits & 1:
                raise DataError(f"{name} is encrypted ({member.filename}): unpack it with its password, and save it without")
            if column == member.filename:
                raise ValueError(f"it holds {member.filename!r}, which is no array; arrays are called x.npy")
            if column in arrays:
                raise ValueError(f"it holds {member.filename!r} twice")
            with archive.open(member) as content:
                header = read_header(content)  # type: ignore[arg-type]
                arrays[column] = read_values(content, header, member.file_size - header.header_bytes, f"{name} ({column})")  # type: ignore[arg-type]
                if content.read(1):  # the checksum is compared only here
                    raise ValueError(f"{member.filename!r} is longer than the archive says")
    return arrays


def _dtype(found: re.Match[str]) -> np.dtype[Any]:
    if found[2] is not None:
        raise ValueError("it holds records of several fields: save each field as an array of its own")
    if "O" in found[1]:
        raise ValueError("it holds Python objects (pickled)")
    try:
        kind = np.dtype(found[1])
    except (TypeError, ValueError) as error:
        raise ValueError(f"its header has the type {found[1]!r}, which NumPy does not know") from error
    if kind.itemsize == 0:
        raise ValueError(f"its header has the type {found[1]!r}, values of no bytes")
    return kind


def _sizes(written: str) -> tuple[int, ...]:
    sizes = [size.strip().removesuffix("L") for size in written.split(",")]
    if sizes and not sizes[-1]:
        sizes.pop()  # (3,) and ()
    if not all(size.isdigit() and len(size) < 20 for size in sizes) or len(sizes) > _MOST_DIMENSIONS:
        raise ValueError(f"its header has the shape ({written[:80]})")
    shape = tuple(int(size) for size in sizes)
    if math.prod(max(size, 1) for size in shape) >= 1 << 62:  # NumPy counts in 64 bits, also for empty arrays
        raise ValueError(f"its header has the shape ({written[:80]}), more than any machine holds")
    return shape


def _exactly(file: BinaryIO, count: int) -> bytes:
    content = file.read(count)
    if len(content) < count:
        raise EOFError("it ends within its header")
    return content
