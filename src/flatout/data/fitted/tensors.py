"""Arrays as tensors of the types that training uses, and checks of token ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.base.errors import DataError

_PLAIN_TYPES = {
    torch.float64: torch.float32, torch.bool: torch.uint8,
    torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64,
}  # fmt: skip


def to_tensor(array: Any, column: str) -> Tensor:
    """An array of numbers as a tensor: float64 becomes float32, unsigned types become wider signed ones."""
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
    return plain_type(tensor)


def plain_type(tensor: Tensor) -> Tensor:
    return tensor.to(_PLAIN_TYPES.get(tensor.dtype, tensor.dtype))


def check_ids(ids: Tensor, vocabulary: int, column: str, first_row: int = 0) -> None:
    """DataError names the first row with a token id outside of the vocabulary."""
    if ids.is_floating_point():
        came = str(ids.dtype).removeprefix("torch.")
        raise DataError(f"column {column!r} holds token ids, whole numbers from 0 to {vocabulary - 1}; got {came}")
    outside = ((ids < 0) | (ids >= vocabulary)).nonzero()
    if len(outside):
        place = outside[0].tolist()
        within = f", token {place[-1]}" if len(place) > 1 else ""
        found = int(ids[tuple(place)])
        raise DataError(
            f"column {column!r}: token ids are 0 to {vocabulary - 1}; row {first_row + place[0]}{within} has {found}"
        )
