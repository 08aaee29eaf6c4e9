"""A CPU without bf16 instructions: its slowness is reported, without a C++ stack on the terminal."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flatout.base.units import show_gain
from flatout.cli.places import quiet_torch
from flatout.machine import rates
from flatout.plan.knobs import precision
from flatout.plan.plan import RejectedSetting

WARNING = "mkldnn_matmul failed, switching to BLAS gemm:mkldnn_matmul bf16 path needs a cpu with bf16 support\nframe #0"


def rejected(bf16: float) -> str:
    rate = {name: SimpleNamespace(value=value) for name, value in (("fp32", 290.0), ("bf16", bf16))}
    s: Any = SimpleNamespace(device=torch.device("cpu"), ceilings=SimpleNamespace(matmul_flops=rate))
    return next(one.why for one in precision.default(s, {}) if isinstance(one, RejectedSetting))


def test_a_slow_format_is_so_many_times_slower() -> None:
    assert rejected(1.0) == "measured: matrix products 290 times slower than in fp32"
    assert rejected(145.0).endswith(" 2 times slower than in fp32")
    assert rejected(580.0).startswith("measured: matrix products 2x as fast as in fp32; not proven for a whole step")


def test_gains_never_read_as_zero() -> None:
    assert [show_gain(one) for one in (1.2, 0.5, 0.00347, 0.0)] == ["1.20x", "0.50x", "288 times slower", "no progress"]


def test_torchs_stack_is_not_shown_by_a_command() -> None:
    with warnings.catch_warnings():
        quiet_torch()
        warnings.warn(WARNING, stacklevel=1)
        with pytest.raises(UserWarning, match="something else"):
            warnings.warn("something else", stacklevel=1)


def test_nor_by_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_product", lambda dtype, size, device: lambda: warnings.warn(WARNING, stacklevel=1))
    monkeypatch.setattr(rates, "_BEARABLE_S", 0.0)
    found, size = rates.matmul_flops_per_s("bf16", torch.device("cpu"), 0.01, 256)
    assert found and size == "64 x 64"  # the smallest, since no time was left for more
