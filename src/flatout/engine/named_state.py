"""An optimizer's state by the names of its parameters: a number means another parameter wherever only some of them are."""

from __future__ import annotations

from typing import Any

from torch import nn

from flatout.engine.offload import trained_by

_MARK = "by_name"


def by_name(optimizer: Any, model: nn.Module) -> dict[str, Any]:
    """As `state_dict`, for a checkpoint."""
    saved: dict[str, Any] = optimizer.state_dict()
    names = _names(optimizer, model)
    groups = [{key: value for key, value in group.items() if key != "params"} for group in saved["param_groups"]]
    return {_MARK: {names[number]: state for number, state in saved["state"].items()}, "param_groups": groups}


def by_number(kept: dict[str, Any], optimizer: Any, model: nn.Module) -> dict[str, Any]:
    """What `load_state_dict` takes, of what `by_name` made in any process that had these parameters."""
    if _MARK not in kept:
        return kept
    here: dict[str, Any] = optimizer.state_dict()
    names, states = _names(optimizer, model), kept[_MARK]  # of what was never trained there is none
    groups = kept["param_groups"]
    if len(groups) != len(here["param_groups"]):  # of processes that had other parameters
        groups = [{} for _ in here["param_groups"]]
    state = {number: states[name] for number, name in enumerate(names) if name in states}
    return {"state": state, "param_groups": [{**a, **b} for a, b in zip(here["param_groups"], groups, strict=True)]}


def _names(optimizer: Any, model: nn.Module) -> list[str]:
    """In the order that the optimizer counts them in."""
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    return [known.get(id(parameter), f"parameter {number}") for number, parameter in enumerate(trained_by(optimizer))]
