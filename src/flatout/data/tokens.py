"""Files to a stream of token ids: characters, bytes, or ids that were written to files before."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError
from flatout.data.files import Array
from flatout.data.modules import module_files

TOKEN_TYPES = ("uint8", "uint16", "int32", "uint32", "int64")
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_CODE_POINTS = 0x110000


def find_files(paths: Paths) -> list[Path]:
    """Every file meant, in order; DataError names what matches nothing."""
    found: list[Path] = []
    for written in [paths] if isinstance(paths, str | os.PathLike) else paths:
        name = os.fspath(written)
        if name.startswith("module:"):
            found += module_files(name.removeprefix("module:"))
        elif Path(name).is_file():
            found.append(Path(name))
        else:
            matches = [Path(match) for match in sorted(glob.glob(name, recursive=True)) if os.path.isfile(match)]
            if not matches:
                what = "is a folder: write a glob such as 'folder/*.txt'" if Path(name).is_dir() else "matches no file"
                raise DataError(f"text: {name} {what}")
            found += matches
    if not found:
        raise DataError("text: no files were given")
    return found


def read_codes(files: Sequence[Path], encoding: str, dtype: str) -> Array:
    """The files end to end as numbers: code points, bytes or token ids."""
    if encoding == "tokens":
        if dtype not in TOKEN_TYPES:
            raise DataError(f"dtype of token files is one of {', '.join(TOKEN_TYPES)}, got {dtype!r}")
        return np.concatenate([_token_file(path, np.dtype(dtype)) for path in files])
    if encoding == "bytes":
        return np.frombuffer(b"".join(path.read_bytes() for path in files), np.uint8)
    return np.frombuffer("".join(_decoded(path) for path in files).encode("utf-32-le"), np.uint32)


def _decoded(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        remedy = "use encoding='bytes', or 'tokens' for token ids"
        raise DataError(f"{path} is not UTF-8 text (byte {error.start}): {remedy}") from error


def _token_file(path: Path, kind: np.dtype[Any]) -> Array:
    if path.suffix == ".npy":
        tokens = np.load(path, allow_pickle=False)
        if tokens.ndim != 1 or tokens.dtype.kind not in "ui":
            raise DataError(f"{path}: expected a flat array of token ids, got {tokens.dtype} of shape {list(tokens.shape)}")
        return np.asarray(tokens)
    size = path.stat().st_size
    if size % kind.itemsize:
        raise DataError(f"{path} has {size} bytes, not a whole number of {kind} tokens: set dtype to the type of its tokens")
    return np.fromfile(path, kind)


def by_alphabet(train: Array, held: Array | None) -> tuple[str, Array, Array | None]:
    """Code points to places in the sorted alphabet of all the text."""
    present = np.zeros(_CODE_POINTS, dtype=bool)
    for codes in (train, held):
        if codes is not None:
            present[codes] = True
    letters = present.nonzero()[0]
    place = np.zeros(_CODE_POINTS, dtype=np.int32)
    place[letters] = np.arange(len(letters))
    return "".join(map(chr, letters)), place[train], None if held is None else place[held]


def check_vocabulary(parts: Sequence[Array], told: int | None) -> int:
    """As told, if every token is below it, or one more than the largest token."""
    smallest = min((int(part.min()) for part in parts if len(part)), default=0)
    largest = max((int(part.max()) for part in parts if len(part)), default=0)
    vocabulary = largest + 1 if told is None else told
    if smallest < 0 or largest >= vocabulary:
        bad = smallest if smallest < 0 else largest
        raise DataError(f"token ids must be 0 to {vocabulary - 1}, found {bad}: check vocabulary and dtype against the files")
    return vocabulary


def narrow(codes: Array, vocabulary: int) -> Tensor:
    """In as few bytes as the vocabulary allows; two bytes are int16 with the bits of uint16, which torch can't always index."""
    if vocabulary <= 1 << 8:
        return torch.from_numpy(codes.astype(np.uint8))
    if vocabulary <= 1 << 16:
        return torch.from_numpy(codes.astype(np.uint16).view(np.int16))
    return torch.from_numpy(codes.astype(np.int32))
