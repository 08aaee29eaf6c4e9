"""Memory for large host tensors in huge pages, where the kernel grants them: the first touch of a plain page costs as much as
copying it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_LARGE_BYTES = 4 << 20  # from here on NumPy asks for huge pages; torch never does


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """torch.empty on the host. RuntimeError, torch's own, when there is no memory."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _LARGE_BYTES:
        return torch.empty(tuple(shape), dtype=dtype)
    try:
        return torch.from_numpy(np.empty(nbytes, np.uint8)).view(dtype).reshape(tuple(shape))
    except MemoryError as error:
        raise RuntimeError(str(error)) from error
