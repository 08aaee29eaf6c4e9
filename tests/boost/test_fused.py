"""The fused kernel is for torch's own optimizers alone, and stays when a checkpoint is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flatout.boost.hooks import Hooks
from flatout.boost.remedies.fused import Fused


@pytest.fixture(autouse=True)
def fused() -> Iterator[None]:
    hooks = Hooks()
    Fused().apply("on", hooks)
    yield
    hooks.patches.restore()


class Signs(torch.optim.SGD):
    """An update of the script's own."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                weight -= group["lr"] * weight.grad


def test_an_optimizer_of_the_scripts_own_updates_what_a_scaler_has_scaled_back() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer, scaler = Signs([weight], lr=0.1), torch.amp.GradScaler("cpu")
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    assert torch.allclose(weight, torch.full((3,), 0.9))


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_a_plain_checkpoint_is_gone_on_with(kind: Any) -> None:
    def grown(weight: Tensor) -> None:
        weight.grad = torch.ones_like(weight)

    weight, other = (nn.Parameter(torch.ones(3)) for _ in range(2))
    plain, boosted = kind([weight], lr=0.1, foreach=True), kind(iter([{"params": iter([other])}]), lr=0.1)
    assert boosted.defaults["fused"] and not plain.defaults["fused"]
    for _ in range(2):
        grown(weight)
        plain.step()
    other.data.copy_(weight)
    boosted.load_state_dict(deepcopy(plain.state_dict()))
    assert boosted.param_groups[0]["fused"]
    for one, optimizer in ((weight, plain), (other, boosted)):
        grown(one)
        optimizer.step()
    assert torch.allclose(weight, other)


def test_complex_weights_are_left_to_the_plain_update() -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert not optimizer.param_groups[0]["fused"] and weight.abs().max() < 1
