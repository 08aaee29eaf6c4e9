"""Who convolves faster on this CPU: oneDNN and NNPACK, which torch asks where it has them, or torch itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
import torch.nn.functional as F

_TIMES = 5


@contextmanager
def own_convolutions() -> Iterator[None]:
    """Neither of the two: pictures are laid out as matrices, and multiplied."""
    onednn, nnpack = torch.backends.mkldnn.enabled, torch.backends.nnpack.set_flags(False)[0]
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = onednn
        torch.backends.nnpack.set_flags(nnpack)


@cache
def own_gain(channels_last: bool) -> float:
    """How many times as fast torch's own are, forward and back, on pictures of a middling size; 1 where none else is asked."""
    if not torch.backends.mkldnn.enabled:
        return 1.0
    draw = torch.Generator().manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.randn(16, 32, 26, 26, generator=draw).contiguous(memory_format=layout).requires_grad_()
    weight = torch.randn(64, 32, 3, 3, generator=draw).contiguous(memory_format=layout).requires_grad_()
    theirs_s, own_s = [], []
    for _ in range(_TIMES):  # by turns: whatever else runs takes from both
        theirs_s.append(_seconds(x, weight))
        with own_convolutions():
            own_s.append(_seconds(x, weight))
    return min(theirs_s) / min(own_s)


def _seconds(x: torch.Tensor, weight: torch.Tensor) -> float:
    began_s = time.perf_counter()
    with torch.enable_grad():
        torch.autograd.grad(F.conv2d(x, weight).sum(), (x, weight))
    return time.perf_counter() - began_s
