"""State by the names of its weights: for processes that have some of the model, and know a tied weight by one of its names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from flatout.base.errors import StoreError
from flatout.engine.ema import Average
from flatout.engine.optimizers import decay_groups
from flatout.engine.parallel.stages import only
from flatout.engine.state import by_name, by_number, make_state
from flatout.models.gpt import gpt


def trained(model: nn.Module, make: Any) -> torch.optim.Optimizer:
    """A step whose gradients differ from weight to weight."""
    optimizer: torch.optim.Optimizer = make(decay_groups(model, 0.1, {}), lr=0.1)
    for number, parameter in enumerate(model.parameters(), 1):
        parameter.grad = torch.full_like(parameter, float(number))
    optimizer.step()
    return optimizer


def whole() -> nn.Module:
    torch.manual_seed(0)
    return gpt(7, 4, layers=2, heads=2, width=8)


def test_a_last_stage_finds_its_state_in_that_of_the_whole() -> None:
    """Its first weight is one that does not decay, so its groups are in another order; the head is tied to the tokens."""
    model = whole()
    optimizer = trained(model, torch.optim.AdamW)
    kept = by_name(optimizer, model)
    part = only(whole(), {"blocks.1", "norm", "head"})
    here = torch.optim.AdamW(decay_groups(part, 0.1, {}), lr=0.1)
    assert [group["weight_decay"] for group in here.param_groups] == [0.0, 0.1]
    here.load_state_dict(by_number(kept, here, part))
    assert [group["weight_decay"] for group in here.param_groups] == [0.0, 0.1]
    names = {id(parameter): name for name, parameter in part.named_parameters()}
    for parameter, state in here.state.items():
        assert torch.equal(state["exp_avg"], optimizer.state[model.get_parameter(names[id(parameter)])]["exp_avg"])
    assert len(here.state) == len(names)


def test_the_whole_finds_its_state_in_that_of_the_stages() -> None:
    model = whole()
    first, last = only(model, {"tokens", "positions", "blocks.0"}), only(model, {"blocks.1", "norm", "head"})
    kept = by_name(trained(first, torch.optim.RMSprop), first)
    kept["by_name"] |= by_name(trained(last, torch.optim.RMSprop), last)["by_name"]
    other = whole()
    optimizer = torch.optim.RMSprop(decay_groups(other, 0.1, {}), lr=0.1)
    optimizer.load_state_dict(by_number(kept, optimizer, other))
    assert len(optimizer.state) == len(list(other.parameters()))


@pytest.mark.parametrize("make", [torch.optim.RMSprop, torch.optim.AdamW, torch.optim.Adagrad])
def test_state_is_made_ahead_and_leaves_the_weights(make: Any) -> None:
    model = whole()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    optimizer = make(decay_groups(model, 0.1, {}), lr=0.1)
    make_state(optimizer)
    wanted = trained(whole(), make)
    assert [state.keys() for state in optimizer.state.values()] == [state.keys() for state in wanted.state.values()]
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert {group["lr"] for group in optimizer.param_groups} == {0.1} and not make_state(optimizer)


def test_an_average_is_kept_under_each_name_and_read_from_an_older_list() -> None:
    model = whole()
    average = Average(model, 0.5)
    kept = average.by_name()
    assert kept.keys() == model.state_dict().keys() and kept["head.weight"] is kept["tokens.weight"]
    part = only(whole(), {"blocks.1", "norm", "head"})
    of_part = Average(part, 0.5)
    of_part.restore({name: torch.full_like(tensor, 2.0) for name, tensor in kept.items()})
    assert all((tensor == 2.0).all() for tensor in of_part.average)
    average.restore([torch.full_like(tensor, 3.0) for tensor in average.average])
    assert all((tensor == 3.0).all() for tensor in average.average)
    with pytest.raises(StoreError, match=r"no average of norm\.weight"):
        average.restore({name: tensor for name, tensor in kept.items() if name != "norm.weight"})
    with pytest.raises(StoreError, match=r"average of the weights.*--fresh"):
        average.restore(None)
