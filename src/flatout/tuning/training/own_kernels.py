"""Whether a device can run the stack's own Triton kernels."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import nn


@cache
def why_no_kernels(device: torch.device) -> str:
    """In words; empty: it can. They are compiled here, by tools that may be missing or broken."""
    if device.type != "cuda":
        return "not a CUDA device"
    if find_spec("triton") is None:
        return "Triton is not installed"
    try:
        from flatout.tuning.training.dropout_kernel import dropped
        from flatout.tuning.training.pool_kernel import pool_by_kernel

        nothing = torch.zeros((), device=device)
        dropped(nothing[None], nothing.long(), nothing)
        pool = nn.MaxPool2d(2)
        pool_by_kernel(pool)
        pool(torch.zeros(1, 2, 2, device=device))
    except Exception as error:
        return f"{type(error).__name__}: " + str(error).strip().partition("\n")[0]
    return ""
