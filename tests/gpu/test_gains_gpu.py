"""Gains are measured on the device, are numbers, and are kept."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flatout.machine import probe as probing
from flatout.machine.ceilings import Ceilings
from flatout.machine.comparisons import channels_last, fused_update, in_bfloat16
from flatout.machine.gains import GainComparison, Way
from flatout.machine.probe import probe
from flatout.measure.counts import count_step
from flatout.measure.groups import CONVOLUTIONS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def convolutions_on(device: torch.device, dtype: torch.dtype) -> list[Any]:
    def step() -> None:
        weight = torch.randn(128, 64, 3, 3, device=device, dtype=dtype, requires_grad=True)
        F.conv2d(torch.randn(64, 64, 56, 56, device=device, dtype=dtype), weight, padding=1).sum().backward()

    return [one for one in count_step(step).operations if one.group == CONVOLUTIONS]


def comparisons(device: torch.device) -> list[GainComparison]:
    def make(weights: list[nn.Parameter], fused: bool) -> Way:
        return torch.optim.AdamW(weights, fused=fused).step

    half, single = (convolutions_on(device, dtype) for dtype in (torch.bfloat16, torch.float32))
    made = (
        channels_last(device, half),
        fused_update(device, "AdamW", [768, 768 * 768] * 50, torch.float32, make),
        in_bfloat16(device, single, "highest"),
    )
    return [one for one in made if one is not None]


def test_gains_are_measured_finite_and_kept(device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "measure_ceilings", lambda *given, **named: Ceilings(str(device), {}))
    asked = comparisons(device)
    assert len(asked) == 3
    first = probe(device, tmp_path, quick=True, comparisons=lambda ceilings: asked).ceilings.gains
    assert set(first) == {one.key for one in asked}
    for key, factor in first.items():
        assert factor is not None and math.isfinite(factor) and 0.1 < factor < 100, key
    again = probe(device, tmp_path, quick=True)
    assert again.cached and dict(again.ceilings.gains) == dict(first)
