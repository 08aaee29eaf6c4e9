"""Code compiled under one autocast dtype is never reused under another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatout.engine.precision import autocast
from flatout.machine import autocasting


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 8))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


def kept_by_whether_autocast_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compile cache behaves as in torch before 2.13."""
    if not autocasting._IS_TOLD_APART:
        return
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCacheDetails

    noted = AOTAutogradCacheDetails._record_runtime_state

    def note(details: Any, *given: Any) -> None:
        noted(details, *given)
        details.autocast_state = {}

    monkeypatch.setattr(AOTAutogradCacheDetails, "_record_runtime_state", note)
    monkeypatch.setattr(autocasting, "_IS_TOLD_APART", False)


def test_what_was_compiled_for_fp16_is_not_run_for_bf16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept_by_whether_autocast_is_on(monkeypatch)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    found = []
    for precision in ("fp16", "bf16"):
        torch._dynamo.reset()
        model = Product()
        model.compile()
        with autocast(precision, torch.device("cpu")):
            output = model(torch.ones(2, 8))
        output.float().sum().backward()  # torch keeps the code of both ways together
        found.append(output.dtype)
    assert found == [torch.float16, torch.bfloat16]
    assert torch.compiler.config.cache_key_tag == ""
