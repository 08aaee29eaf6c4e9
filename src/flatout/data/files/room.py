"""Large host tensors in huge pages, if the kernel has them: touching a normal page first costs as much as copying it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_LARGE_BYTES = 4 << 20  # from this size on NumPy asks for huge pages; torch never does


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """torch.empty on the host. RuntimeError, like torch, if there is no memory."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _LARGE_BYTES:
        return torch.empty(tuple(shape), dtype=dtype)
    try:
        return torch.from_numpy(np.empty(nbytes, np.uint8)).view(dtype).reshape(tuple(shape))
    except MemoryError as error:
        raise RuntimeError(str(error)) from error
