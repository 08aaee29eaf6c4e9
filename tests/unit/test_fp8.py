"""fp8 is torchao's: which layers it gets, and what is said where it can't be had."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from flatout.base.errors import UsageError
from flatout.engine.fp8 import layers_to_turn, to_fp8
from flatout.engine.precision import autocast

CUDA = torch.device("cuda")


class Special(nn.Linear):
    """Has a forward of its own, which another layer in its place would lose."""


class Net(nn.Module):
    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.tokens = nn.Embedding(64, 32)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(2))
        self.special = Special(32, 32)
        self.odd = nn.Linear(32, 20)
        self.tied = nn.Linear(32, 64)
        if tied:
            self.tied.weight = self.tokens.weight
        self.head = nn.Linear(32, 64)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    capability = [8, 9]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: tuple(capability))
    return capability


@pytest.fixture
def torchao(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    turned: list[str] = []

    def convert(model: nn.Module, *, config: Any, module_filter_fn: Any) -> nn.Module:
        assert config.pad_inner_dim
        turned.extend(name for name, module in model.named_modules() if module_filter_fn(module, name))
        return model

    float8 = SimpleNamespace(convert_to_float8_training=convert, Float8LinearConfig=lambda **given: SimpleNamespace(**given))
    monkeypatch.setitem(sys.modules, "torchao", SimpleNamespace(float8=float8))
    monkeypatch.setitem(sys.modules, "torchao.float8", float8)
    return turned


def test_layers_that_fit_are_turned_and_the_head_is_not(device: Any, torchao: list[str]) -> None:
    within = {"blocks.0.0", "blocks.0.2", "blocks.1.0", "blocks.1.2"}
    assert to_fp8(Net(), CUDA) == 4
    assert set(torchao) == within == layers_to_turn(Net())
    assert layers_to_turn(Net(tied=False)) == within | {"tied"}


def test_a_model_without_such_layers_is_refused(device: Any, torchao: list[str]) -> None:
    with pytest.raises(UsageError, match=r"multiples of 16.*precision=bf16"):
        to_fp8(nn.Sequential(nn.Linear(30, 16), nn.Linear(16, 16)), CUDA)


def test_without_torchao_it_is_said_how_to_get_it(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(UsageError, match="pip install torchao"):
        to_fp8(Net(), CUDA)


def test_an_older_device_and_another_one_are_refused(device: Any, torchao: list[str]) -> None:
    device[:] = 8, 0
    with pytest.raises(UsageError, match=r"capability 8\.9 .* 8\.0"):
        to_fp8(Net(), CUDA)
    with pytest.raises(UsageError, match=r"needs a CUDA device.* cpu"):
        to_fp8(Net(), torch.device("cpu"))


def test_what_is_left_is_computed_in_bf16() -> None:
    with autocast("fp8", torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
