"""Keeps oneDNN, torch's library of CPU kernels, on.

On a CPU without bf16 instructions a bf16 product fails in oneDNN. torch then prints a C++ stack trace and turns oneDNN off for
the whole process: all later products round differently than in a process that tried no bf16.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def onednn_kept(*dtypes: torch.dtype) -> Iterator[None]:
    """Off inside, if it would fail on a CPU for one of these dtypes; afterwards as before."""
    before: bool = torch._C._get_mkldnn_enabled()  # not torch.backends.mkldnn.flags: it changes more than this, and warns
    if not all(map(_supports, dtypes)):
        torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def _supports(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return True  # there is nothing to fail
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return True
