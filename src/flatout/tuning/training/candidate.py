"""A trial as it is trained: its recipe, and which of its values may differ from those of others in one stack."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import nn

from flatout.base.specs import Spec
from flatout.engine.optimizers import OPTIMIZERS, OptimizerLike, Schedule, parse_schedule
from flatout.models.model_spec import ModelSpec
from flatout.recipe.schema import Recipe

_OWN_KEYS = ("lr", "weight_decay", "clip", "schedule", "seed", "name")
_OWN_OPTIONS = ("betas", "eps", "momentum")  # of an optimizer
_ONLY_DROPOUT_LAYERS = ("mlp", "convnet")  # built-in models that use their rate nowhere else, as gpt's attention does


@dataclass(frozen=True)
class OwnValues:
    """Numbers that only scale gradients and updates, so that trials of one stack can each have their own."""

    lr: float
    weight_decay: float
    clip: float | None
    schedule: Schedule
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, recipe: Recipe) -> OwnValues:
        return cls(
            float(recipe.lr), float(recipe.weight_decay), recipe.clip, parse_schedule(recipe.schedule), own_options(recipe)
        )


@dataclass(frozen=True)
class TrialCandidate:
    """`number` is unique in a study. `seed` decides its first weights and the order of its rows."""

    number: int
    recipe: Recipe

    @property
    def seed(self) -> int:
        return int(self.recipe.seed)

    @cached_property
    def own(self) -> OwnValues:
        return OwnValues.of(self.recipe)

    @cached_property
    def group(self) -> str:
        """Trials whose groups are equal have the same shapes, data and steps: they can be trained as one stack."""
        written = {name: value for name, value in self.recipe.written().items() if name not in _OWN_KEYS}
        if not callable(self.recipe.optimizer):
            spec = Spec.parse(self.recipe.optimizer)
            written["optimizer"] = [spec.name, {name: spec.options[name] for name in spec.options if name not in _OWN_OPTIONS}]
        if self.dropout is not None:
            written["model"] = _without_dropout(written["model"])
        return json.dumps(written, sort_keys=True, default=repr)

    @property
    def optimizer(self) -> OptimizerLike:
        written = self.recipe.optimizer
        return written if callable(written) else Spec.parse(written)

    @cached_property
    def dropout(self) -> float | None:
        """The rate that the recipe gives a built-in model whose dropout layers can be replaced. Without dropout there is no
        layer for it, so 0 is none."""
        options = _built_in_options(self.recipe.model)
        rate = options.get("dropout")
        return float(rate) if isinstance(rate, int | float) and not isinstance(rate, bool) and rate > 0 else None


def _built_in_options(model: Any) -> Mapping[str, Any]:
    if callable(model) or isinstance(model, nn.Module):
        return {}
    asked = ModelSpec.parse(model)
    return asked.spec.options if asked.spec.name in _ONLY_DROPOUT_LAYERS else {}


def _without_dropout(model: Any) -> Any:
    ((name, options),) = model.items()
    return {name: {key: value for key, value in options.items() if key != "dropout"}, "dropout": True}


def own_options(recipe: Recipe) -> dict[str, Any]:
    """The numbers of a built-in optimizer, defaults included."""
    if callable(recipe.optimizer):
        return {}
    spec = Spec.parse(recipe.optimizer)
    known = OPTIMIZERS[spec.name][1]
    return {name: spec.options.get(name, known[name]) for name in known if name in _OWN_OPTIONS}
