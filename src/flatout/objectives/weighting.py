"""Weights of classes and focal factors: losses that count some rows more than others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from flatout.base.errors import UsageError, did_you_mean

_LEAST = 1e-8  # of 1 - p: below it the focal factor has no gradient, which would not be finite for an exponent below 1


class DeviceWeights:
    """One weight for each class. Copied to a device once: a copy in each step would wait for the device."""

    def __init__(self, values: Sequence[float]) -> None:
        self._values = list(values)
        self._on: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self._values)

    def on(self, like: Tensor) -> Tensor:
        if isinstance(like, FakeTensor):  # a trace without data
            return torch.tensor(self._values, dtype=like.dtype, device=like.device)
        place = f"{like.device} {like.dtype}"
        if place not in self._on:
            self._on[place] = torch.tensor(self._values, dtype=like.dtype, device=like.device)
        return self._on[place]


def focal_factor(logits: Tensor, target: Tensor, gamma: float) -> Tensor:
    """(1 - p)^gamma of the true class of each row of logits [rows, classes, ...]."""
    logs = -F.cross_entropy(logits, target, reduction="none")
    factor: Tensor = (-torch.expm1(logs)).clamp_min(_LEAST) ** gamma
    return factor


def focal_factor_of_yes_or_no(logits: Tensor, target: Tensor, gamma: float) -> Tensor:
    """For logits and targets 0 or 1 of the same shape."""
    return (gamma * F.logsigmoid(logits * (1 - 2 * target))).exp()


def check_gamma(name: str, gamma: float | None) -> None:
    if gamma is not None and not gamma > 0:
        raise UsageError(f"{name}: focal must be greater than 0 (2 is usual), got {gamma}")


def check_weights(name: str, key: str, weights: Sequence[float] | None) -> None:
    if weights is not None and not (weights and all(0 < weight < math.inf for weight in weights)):
        raise UsageError(f"{name}: {key} must be greater than 0 and finite, got {list(weights)}")


def check_class_weights(written: Any) -> None:
    """As a recipe writes them: `balanced`, a list in the order of the classes, or {class: weight}."""
    if written is None or written == "balanced":
        return
    if isinstance(written, str):
        raise UsageError(f"expected balanced, a list of weights, or {{class: weight}}; {did_you_mean(written, ['balanced'])}")
    weights = list(written.values()) if isinstance(written, Mapping) else written
    if not isinstance(weights, list | tuple):
        raise UsageError(f"expected balanced, a list of weights, or {{class: weight}}; got {written!r}")
    if not weights or not all(isinstance(w, int | float) and not isinstance(w, bool) and 0 < w < math.inf for w in weights):
        raise UsageError(f"weights must be numbers greater than 0, got {written!r}")


def weights_of(written: Any, classes: int, names: Sequence[str] | None, labels: Tensor | None) -> tuple[float, ...]:
    """One weight for each class. `labels` are those of all training rows, which `balanced` needs."""
    if written == "balanced":
        assert labels is not None
        counts = torch.bincount(labels.flatten().long(), minlength=classes)[:classes].tolist()
        present = sum(count > 0 for count in counts)
        return tuple(sum(counts) / (present * count) if count else 1.0 for count in counts)  # as in scikit-learn
    if isinstance(written, Mapping):
        known = list(names) if names is not None else [str(one) for one in range(classes)]
        for name in written:
            if str(name) not in known:
                raise UsageError(f"class_weights: unknown class {name!r}; {did_you_mean(name, known)}")
        given = {str(name): float(weight) for name, weight in written.items()}
        return tuple(given.get(name, 1.0) for name in known)
    if len(written) != classes:
        raise UsageError(f"class_weights: expected {classes} weights, one for each class, got {len(written)}")
    return tuple(float(weight) for weight in written)
