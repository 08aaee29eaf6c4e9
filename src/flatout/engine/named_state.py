"""An optimizer's state by the names of its parameters: a number means another parameter wherever only some of them are.

A tied weight has its state under each of its names, since a process that has a part of the model may know it by one of them
alone. Its tensors are kept once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from flatout.engine.update import trained_by

_MARK = "by_name"


def by_name(optimizer: Any, model: nn.Module) -> dict[str, Any]:
    """As `state_dict`, for a checkpoint."""
    saved: dict[str, Any] = optimizer.state_dict()
    names = _names(optimizer, model)
    groups = [{key: value for key, value in group.items() if key != "params"} for group in saved["param_groups"]]
    states = {name: state for number, state in saved["state"].items() for name in names[number]}
    return {_MARK: states, "param_groups": groups}


def by_number(kept: dict[str, Any], optimizer: Any, model: nn.Module) -> dict[str, Any]:
    """What `load_state_dict` takes, of what `by_name` made in any process that had these parameters."""
    if _MARK not in kept:
        return kept
    here: dict[str, Any] = optimizer.state_dict()
    names, states = _names(optimizer, model), kept[_MARK]  # of what was never trained there is none
    groups = [{**group, **_like(group, kept["param_groups"])} for group in here["param_groups"]]
    known = {number: next((name for name in own if name in states), None) for number, own in enumerate(names)}
    state = {number: states[name] for number, name in known.items() if name is not None}
    return {"state": state, "param_groups": groups}


def _like(group: dict[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Processes that had other parameters may have had other groups, or these in another order: not their places tell."""
    alike = (other for other in groups if all(other.get(key) == group.get(key) for key in ("weight_decay", "factor")))
    return next(alike, {})


@torch.no_grad()
def make_state(optimizer: Optimizer) -> bool:
    """Of an optimizer that makes its state in its first step: as that step makes it. Weights stay as they are.

    A checkpoint is read into tensors that are there already, laid out as the weights are. Returns whether there was none.
    """
    parameters = trained_by(optimizer)
    if optimizer.state or not parameters:
        return False
    before = [parameter.detach().clone() for parameter in parameters]
    gradients = [parameter.grad for parameter in parameters]
    rates = [group["lr"] for group in optimizer.param_groups]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for parameter, gradient, kept in zip(parameters, gradients, before, strict=True):
        parameter.grad = gradient
        parameter.copy_(kept)
    return True


def _names(optimizer: Any, model: nn.Module) -> list[list[str]]:
    """All names of each, in the order that the optimizer counts them in."""
    known: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        known.setdefault(id(parameter), []).append(name)
    return [known.get(id(parameter), [f"parameter {number}"]) for number, parameter in enumerate(trained_by(optimizer))]
