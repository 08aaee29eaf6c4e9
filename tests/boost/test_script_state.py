"""What a forward goes by beside its model, and a script sets as it likes."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flatout.boost.remedies.script_state import ScriptState

temperature = 1.0
table = {"gate": 1.0}


def gated(x: Tensor) -> Tensor:
    return x * table["gate"]


class Net(nn.Module):
    factor = 1.0

    def __init__(self, closed_over: Callable[[], float]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.cfg, self.scales, self.args = {"beta": 0.0}, [1.0, [2.0]], SimpleNamespace(warm=SimpleNamespace(up=1.0), other=1)
        self.history: list[float] = []
        self.closed_over = closed_over

    def forward(self, x: Tensor) -> Tensor:
        return gated(self.scaled(self.layer(x))) * self.cfg["beta"] / temperature * self.closed_over()

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.scales[0] * self.args.warm.up * self.factor

    def training_step(self, x: Tensor) -> None:
        self.history.append(float(self(x).detach().sum()))
        self.args.other += 1


def set_in(holder: str, key: Any, value: Any) -> Callable[[Net], None]:
    return lambda net: getattr(net, holder).__setitem__(key, value)


CHANGES: dict[str, Callable[[Net], Any]] = {
    "an entry of a table": set_in("cfg", "beta", 0.5),
    "an entry of a list": set_in("scales", 0, 0.5),
    "an attribute of its arguments": lambda net: setattr(net.args.warm, "up", 0.5),
    "an attribute of its class": lambda net: setattr(Net, "factor", 0.5),
    "a global": lambda net: globals().update(temperature=0.5),
    "a table that is global": lambda net: table.update(gate=0.5),
}


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Net:
    monkeypatch.setitem(globals(), "temperature", 1.0)
    monkeypatch.setattr(Net, "factor", 1.0)
    monkeypatch.setitem(table, "gate", 1.0)
    return Net(lambda: 1.0)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_the_forward_goes_by_is_heard(change: Callable[[Net], Any], net: Net) -> None:
    state = ScriptState(net)
    before = state.seen()
    assert state.seen() == before and not state.cannot_tell
    change(net)
    assert state.seen() != before


def test_a_variable_of_the_function_around_it_is_heard() -> None:
    inner = 1.0

    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * inner

    state = ScriptState(nn.Sequential(Inner()))
    before = state.seen()
    inner = 2.0
    assert state.seen() != before


def test_a_forward_with_a_decorator_is_looked_into() -> None:
    class Decorated(Net):
        @torch.amp.autocast("cpu", enabled=False)
        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.cfg["beta"]  # type: ignore[no-any-return]

    net = Decorated(lambda: 1.0)
    state = ScriptState(net)
    before = state.seen()
    net.cfg["beta"] = 0.5
    assert state.seen() != before


def test_what_the_forward_does_not_reach_may_change(net: Net) -> None:
    state = ScriptState(net)
    before = state.seen()
    net.training_step(torch.ones(1, 4))
    assert state.seen() == before


@pytest.mark.parametrize("drawn", [random.Random(0), np.random.default_rng(0), torch.Generator()])
def test_a_generator_of_its_own_can_not_be_told(drawn: Any, net: Net) -> None:
    net.cfg["draws"] = drawn
    assert ScriptState(net).cannot_tell


def test_neither_can_a_large_table(net: Net) -> None:
    net.cfg.update({str(number): 0.0 for number in range(3000)})
    assert ScriptState(net).cannot_tell
