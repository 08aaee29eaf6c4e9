"""Optimizers and learning-rate schedules by name.

Weight decay applies to matrices; biases, norms and other vectors do not decay. A schedule is a pure function of the share of
the budget that is done, with a warm-up: `warmup` is a number of steps (an int) or a share of the budget (a float below 1),
`final` is the last rate divided by the peak.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from flatout.base.errors import UsageError, did_you_mean
from flatout.base.option_types import LARGEST, fitted
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
    try:  # torch checks the values
        maker([torch.zeros(1)], lr=1e-3, **{**known, **_typed(spec.options)})
    except (ValueError, TypeError) as error:
        raise UsageError(f"{spec.name}: {error}") from error


def _typed(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(map(float, value)) if name == "betas" else value for name, value in options.items()}


def decay_groups(
    model: nn.Module, weight_decay: float, rates: Mapping[str, float], stages: Mapping[str, int] | None = None
) -> list[dict[str, Any]]:
    """Parameter groups by weight decay and learning rate factor, in the order of the model.

    Parameters on different device meshes get separate groups, because torch's optimizers can't update a mixed group. So do
    those that start to train later: `stages` has the number of their start, and each start counts its own steps.
    """
    groups: dict[tuple[bool, float, int, Any], list[nn.Parameter]] = {}
    stages = stages or {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            mesh = getattr(parameter, "device_mesh", None)
            key = parameter.ndim >= 2, rates.get(name, 1.0), stages.get(name, 0), mesh
            groups.setdefault(key, []).append(parameter)
    if not groups:
        raise UsageError("all parameters of the model are frozen: freeze fewer of them")
    return [
        {
            "params": parameters,
            "weight_decay": weight_decay if decays else 0.0,
            "factor": factor,
            **({"stage": stage} if stages else {}),
        }
        for (decays, factor, stage, _), parameters in groups.items()
    ]


def build_optimizer(
    written: OptimizerLike, groups: list[dict[str, Any]], lr: float, *, fused: bool, graph: bool, device: torch.device
) -> Optimizer:
    """With `graph`, learning rates are tensors on the device, so that a replay reads new values."""
    if not isinstance(written, Spec):
        return written(groups, lr=lr)
    check_optimizer(written)
    maker, defaults = OPTIMIZERS[written.name]
    options: dict[str, Any] = {**defaults, **_typed(written.options)}
    options["fused" if fused else "foreach"] = True
    if graph:
        rates = {group["factor"]: torch.tensor(lr * group["factor"], device=device) for group in groups}
        groups = [{**group, "lr": rates[group["factor"]]} for group in groups]
        if written.name != "sgd":  # SGD has no step count and no such option
            options["capturable"] = True
    return maker(groups, lr=lr, **options)


# ---- schedules ----

Shape = Callable[[float], float]


@dataclass(frozen=True)
class Schedule:
    """`at` gives the factor of the learning rate for the 0-based `step`, when the share `done` of the budget is done."""

    shape: Shape
    warmup: float
    written: object

    def at(self, step: int, done: float, total_steps: int | None) -> float:
        if self.warmup >= 1:  # counted in steps
            warm = self.warmup / total_steps if total_steps else 0.0
            if step < self.warmup:
                return (step + 1) / (self.warmup + 1)
        else:
            warm = self.warmup
            if done < warm:
                first = 1 / total_steps if total_steps else 0.01 * warm  # the first step has a rate above 0
                return min(1.0, (done + first) / (warm + first))
        return self.shape(min(1.0, max(0.0, (done - warm) / (1 - warm))) if warm < 1 else 1.0)


def constant() -> Shape:
    return lambda p: 1.0


def linear(final: float = 0.0) -> Shape:
    return lambda p: 1 + (final - 1) * p


def cosine(final: float = 0.0) -> Shape:
    return lambda p: final + (1 - final) * 0.5 * (1 + math.cos(math.pi * p))


def one_cycle(peak_at: float = 0.3, start: float = 0.04, final: float = 1e-4) -> Shape:
    """Up to the peak and down again, both along a cosine (super-convergence, Smith)."""
    if not 0 < peak_at < 1:
        raise UsageError(f"one_cycle: expected peak_at between 0 and 1, a share of the budget, got {peak_at}")

    def shape(p: float) -> float:
        low, t = (start, p / peak_at) if p < peak_at else (final, (1 - p) / (1 - peak_at))
        return low + (1 - low) * 0.5 * (1 - math.cos(math.pi * t))

    return shape


def warmup_stable_decay(decay: float = 0.2, final: float = 0.0) -> Shape:
    """Flat until the last `decay` share of the budget, then linear down."""
    if not 0 < decay <= 1:
        raise UsageError(f"warmup_stable_decay: expected decay above 0 and at most 1, a share of the budget, got {decay}")
    return lambda p: 1.0 if p < 1 - decay else final + (1 - final) * (1 - p) / decay


SHAPES: dict[str, Callable[..., Shape]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "one_cycle": one_cycle,
    "warmup_stable_decay": warmup_stable_decay,
}
_WARMUP = {"constant": 0.0, "linear": 0.05, "cosine": 0.05, "one_cycle": 0.0, "warmup_stable_decay": 0.05}


def parse_schedule(written: object) -> Schedule:
    spec = Spec.parse(written)
    maker = pick(SHAPES, spec.name, "schedule")
    options = dict(spec.options)
    warmup = options.pop("warmup", _WARMUP[spec.name])
    if isinstance(warmup, bool) or not isinstance(warmup, int | float) or not 0 <= warmup <= LARGEST:
        raise UsageError(f"warmup: expected a number of steps (100) or a share of the budget (0.05), got {warmup!r}")
    return Schedule(Spec(spec.name, options, spec.value).fitted_to(maker).call(maker), float(warmup), spec.written())
