"""What boost compiles is compiled: torch's own containers, too, which the compiler passes over when they come first."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from flatout.boost.hooks import Hooks
from flatout.boost.remedies.all import REMEDIES


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@contextmanager
def compiling() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    hooks = Hooks()
    REMEDIES["compile"].apply("on", hooks)
    hooks.install()
    try:
        yield
    finally:
        hooks.patches.restore()
        torch._dynamo.reset()


@pytest.mark.parametrize("make", [Own, lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()), lambda: nn.Linear(4, 4)])
def test_a_model_is_compiled_whoever_wrote_it(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # with no code generated: whether there is anything to generate it from is what is looked at
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    model, x = make(), torch.randn(3, 4)
    expected = model(x)
    with compiling():
        output = model(x)
        output.sum().backward()
        assert counters["stats"]["unique_graphs"] == 1
    torch.testing.assert_close(output, expected)
    assert next(model.parameters()).grad is not None
    assert copy.deepcopy(model)(x).shape == output.shape
    assert [name for name in model.state_dict() if "orig_mod" in name] == []


@pytest.mark.parametrize("make", [Own, lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU())])
def test_what_the_patch_says_compiles_it(make: Any) -> None:
    torch._dynamo.reset()
    counters.clear()
    model = make()
    model.forward = torch.compile(model.forward, backend="eager")
    model(torch.randn(3, 4))
    assert counters["stats"]["unique_graphs"] == 1
