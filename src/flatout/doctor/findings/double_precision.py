"""Weights in float64: twice the memory, and half the rate or less."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from flatout.base.units import show_seconds
from flatout.doctor import kinds
from flatout.doctor.account import OPTIMIZER
from flatout.doctor.case import Case
from flatout.doctor.finding import Finding

_SIZE = 384


def look(case: Case) -> Iterator[Finding]:
    calls = [call for call in case.training_calls if call.parameter_dtype == "float64"]
    if not calls:
        return
    faster = _faster(case.device)
    products_ms = sum(case.rows[row] for row in (kinds.MATMUL, kinds.CONVOLUTION, kinds.ATTENTION))
    moved_ms = case.rows[kinds.MEMORY] + case.rows[OPTIMIZER]
    call = max(calls, key=lambda one: one.seconds)
    yield Finding(
        "double_precision",
        products_ms * (1 - 1 / faster) + moved_ms / 2,
        call.where,
        "The model computes in float64",
        f"{show_seconds((products_ms + moved_ms) / 1e3)} per step; products in float32, measured here: {faster:.3g}x",
        "convert data and model to float32: x.float(), model.float(). NumPy's arrays are float64 unless told otherwise",
        short="float32",
    )


def _faster(device: torch.device) -> float:
    """How much faster a product in float32 is; 2 if that can't be measured."""

    def passed(dtype: torch.dtype) -> float:
        one = torch.ones(_SIZE, _SIZE, dtype=dtype, device=device)
        (one @ one).sum().item()
        began_s = time.perf_counter()
        (one @ one).sum().item()
        return time.perf_counter() - began_s

    try:
        with torch.no_grad():
            wide, narrow = (min(passed(dtype) for _ in range(5)) for dtype in (torch.float64, torch.float32))
        return min(max(wide / narrow, 1.2), 64.0)
    except RuntimeError:  # the script may leave torch in a mode that forbids this, or no memory
        return 2.0
