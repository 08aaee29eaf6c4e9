"""Optimizers with weight-decay groups that make sense: matrices decay; biases, norms and other vectors do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from flatout.base.errors import UsageError, did_you_mean
from flatout.base.option_types import fitted
from flatout.base.specs import Spec, pick

_ADAM = {"betas": (0.9, 0.999), "eps": 1e-8}
OPTIMIZERS: dict[str, tuple[Callable[..., Optimizer], dict[str, Any]]] = {
    "adamw": (AdamW, _ADAM),
    "adam": (Adam, _ADAM),
    "sgd": (SGD, {"momentum": 0.9, "nesterov": False}),
}
_HINTS: dict[type, Any] = {tuple: tuple[float, float], float: float, bool: bool}
OptimizerLike = Spec | Callable[..., Optimizer]  # a callable gets (groups, lr=...)


def check_optimizer(spec: Spec) -> None:
    maker, known = pick(OPTIMIZERS, spec.name, "optimizer")
    if spec.value is not None:
        raise UsageError(
            f"{spec.name} takes options by name, such as {{{spec.name}: {{{next(iter(known))}: ...}}}}, got {spec.value!r}"
        )
    problems = [
        f"{spec.name} has no option {name!r}; {did_you_mean(name, known)}" for name in spec.options if name not in known
    ]
    for name in known.keys() & spec.options.keys():
        try:
            fitted(spec.options[name], _HINTS[type(known[name])])
        except UsageError as error:
            problems.append(f"{spec.name}.{name}: {error}")
    if problems:
        raise UsageError("; ".join(problems))
    try:  # torch knows which values go together
        maker([torch.zeros(1)], lr=1e-3, **{**known, **_typed(spec.options)})
    except (ValueError, TypeError) as error:
        raise UsageError(f"{spec.name}: {error}") from error


def _typed(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(map(float, value)) if name == "betas" else value for name, value in options.items()}


def decay_groups(model: nn.Module, weight_decay: float, rates: Mapping[str, float]) -> list[dict[str, Any]]:
    """Parameters by (decays, rate factor), in the model's own order; `factor` scales the group's learning rate.

    Those that are spread over other processes, or over none, are in groups of their own: torch's optimizers update a whole
    group at once, and can't where it is mixed.
    """
    groups: dict[tuple[bool, float, Any], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            mesh = getattr(parameter, "device_mesh", None)
            groups.setdefault((parameter.ndim >= 2, rates.get(name, 1.0), mesh), []).append(parameter)
    if not groups:
        raise UsageError("no parameter of the model is left to train: freeze fewer of them")
    return [
        {"params": parameters, "weight_decay": weight_decay if decays else 0.0, "factor": factor}
        for (decays, factor, _), parameters in groups.items()
    ]


def build_optimizer(
    written: OptimizerLike, groups: list[dict[str, Any]], lr: float, *, fused: bool, graph: bool, device: torch.device
) -> Optimizer:
    """For a graph the rates are tensors on the device, so that a replay can read new ones."""
    if not isinstance(written, Spec):
        return written(groups, lr=lr)
    check_optimizer(written)
    maker, defaults = OPTIMIZERS[written.name]
    options: dict[str, Any] = {**defaults, **_typed(written.options)}
    options["fused" if fused else "foreach"] = True
    if graph:
        rates = {group["factor"]: torch.tensor(lr * group["factor"], device=device) for group in groups}
        groups = [{**group, "lr": rates[group["factor"]]} for group in groups]
        if written.name != "sgd":  # SGD keeps no step count, so it needs no such mode
            options["capturable"] = True
    return maker(groups, lr=lr, **options)
