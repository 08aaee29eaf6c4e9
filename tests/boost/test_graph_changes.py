"""A graph does what the model did when it was captured: whatever a script changes since has to be noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from flatout.boost.remedies.cuda_graphs import _Model
from flatout.boost.remedies.graph_capture import flat_weights
from flatout.boost.remedies.model_state import Changes, state_of
from flatout.doctor.patches import Patches


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.named = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
        self.row = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1))
        self.norm = nn.BatchNorm1d(4)
        self.act, self.sizes, self.factor = F.relu, (1, 2), 1.0
        self.state, self.kept = (torch.zeros(1), torch.zeros(1)), [0.0]


@pytest.fixture
def changes() -> Iterator[Changes]:
    patches = Patches()
    yield Changes(patches)
    patches.restore()


def frozen(net: Net) -> None:
    net.layers[0].requires_grad_(False)


def weights_elsewhere(net: Net) -> None:
    net.norm.weight.data = net.norm.weight.data.clone()


def buffer_elsewhere(net: Net) -> None:
    net.norm.running_mean.data = net.norm.running_mean.clone()  # type: ignore[union-attr]


def loaded_in_place_of_the_old(net: Net) -> None:
    net.load_state_dict({name: tensor.clone() for name, tensor in net.state_dict().items()}, assign=True)


def other_dropout(net: Net) -> None:
    net.row[1].p = 0.2


def another(name: str, value: Any) -> Callable[[Net], None]:
    return lambda net: setattr(net, name, value)


CHANGES: dict[str, Callable[[Net], Any]] = {
    "evaluation": lambda net: net.eval(),
    "frozen": frozen,
    "weights elsewhere": weights_elsewhere,
    "buffer elsewhere": buffer_elsewhere,
    "other weights": loaded_in_place_of_the_old,
    "dropout": other_dropout,
    "function": another("act", F.gelu),
    "tuple": another("sizes", (1, 3)),
    "state in a tuple": another("state", (torch.zeros(1), torch.ones(1))),
    "number": another("factor", 2.0),
    "layer": another("norm", nn.BatchNorm1d(4)),
    "layer of a list": lambda net: net.layers.insert(1, nn.Linear(4, 4)),
    "layer of a row": lambda net: net.row.insert(1, nn.Linear(4, 4)),
    "layer more": lambda net: net.layers.append(nn.Linear(4, 4)),
    "layer less": lambda net: net.named.pop("a"),
    "no layers": lambda net: net.named.clear(),
    "hook": lambda net: net.register_forward_hook(lambda *_: None),
    "dtype": lambda net: net.double(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed(change: str, changes: Changes) -> None:
    net, model = Net(), _Model(changes)
    model._look_at(net)
    model.captures = {"a call": object()}  # type: ignore[dict-item]
    net.train()  # as it was
    model._look_at(net)
    assert model.captures  # nothing has changed
    CHANGES[change](net)
    model._look_at(net)
    assert not model.captures


def test_weights_that_are_lent_for_one_call_are_noticed(changes: Changes) -> None:
    net, model = nn.Sequential(nn.Linear(4, 4)), _Model(changes)
    model._look_at(net)
    seen = []

    def forward(x: torch.Tensor) -> torch.Tensor:
        model.captures = {"a call": object()}  # type: ignore[dict-item]
        model._look_at(net)
        seen.append(bool(model.captures))
        return x

    net.forward = forward  # type: ignore[method-assign]
    model._look_at(net)
    teacher = {name: weight.detach() + 1 for name, weight in net.named_parameters()}
    net(torch.ones(2, 4))
    torch.func.functional_call(net, teacher, torch.ones(2, 4))
    assert seen == [True, False]


def test_what_a_forward_adds_to_a_list_shows_in_its_state() -> None:
    """Between two calls of one that is to be captured: then it is not."""
    net = Net()
    before = state_of(net)
    assert state_of(net) == before
    net.kept.append(1.0)
    longer = state_of(net)
    net.kept[0] = 2.0
    assert len({before, longer, state_of(net)}) == 3


def test_a_recurrent_layer_takes_what_stands_in_for_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 8, num_layers=2))
    weights, x = dict(model.named_parameters()), torch.randn(5, 3, 4)
    plain = torch.autograd.grad(model(x)[0].sum(), list(weights.values()))
    stand_ins: dict[str, Tensor] = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    own = model[1]._flat_weights
    refs, moved = model[1]._flat_weight_refs, []
    monkeypatch.setattr(nn.LSTM, "flatten_parameters", lambda layer: moved.append(layer))  # cuDNN's copies them elsewhere
    with flat_weights(model, weights, stand_ins):
        output = functional_call(model, stand_ins, (x,))[0]
    found = torch.autograd.grad(output.sum(), list(stand_ins.values()))
    for a, b in zip(plain, found, strict=True):
        assert torch.equal(a, b)
    assert model[1]._flat_weights is own and model[1]._flat_weight_refs is refs
    model(x)
    assert not moved and "flatten_parameters" not in vars(model[1])
