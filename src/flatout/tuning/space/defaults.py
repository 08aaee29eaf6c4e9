"""The space of a search for which nobody gave one: learning rate, weight decay and schedule, around the recipe's own values."""

from __future__ import annotations

from flatout.engine.optimizers import SHAPES, parse_schedule
from flatout.recipe.schema import Recipe
from flatout.tuning.space.domains import Choices, Range
from flatout.tuning.space.making import make_choices, make_mixture, make_range
from flatout.tuning.space.parameter import Parameter
from flatout.tuning.space.space import Space

_EACH_WAY = 10**0.75  # of the learning rate: a decade and a half in all
_USUAL_RATE = 1e-3  # where the recipe leaves the rate to `lr: auto`
_KINDS = ("cosine", "linear", "warmup_stable_decay", "constant")
_WARMUP = 0.15  # share of the budget, at most


def default_space(recipe: Recipe) -> Space:
    """Each range holds the recipe's own value, so that the recipe itself can be the first trial."""
    rate = _USUAL_RATE if recipe.searches_rate else float(recipe.lr)
    parameters = [Parameter("lr", make_range(_short(rate / _EACH_WAY), _short(rate * _EACH_WAY), log=True))]
    if not callable(recipe.optimizer):  # one of the user's own may decay nothing
        own = float(recipe.weight_decay)
        low, high = min(own, 1e-5) if own > 0 else 1e-5, max(own, 1e-1)
        parameters.append(Parameter("weight_decay", make_mixture([Choices((0,)), Range(low, high, log=True)])))
    schedule = parse_schedule(recipe.schedule)
    kind = schedule.written if isinstance(schedule.written, str) else None
    if kind in _KINDS:  # with options of its own the kind stays as it is written
        parameters.append(Parameter("schedule", make_choices([kind, *(other for other in _KINDS if other != kind)])))
    name = kind or next(iter(schedule.written)) if isinstance(schedule.written, dict | str) else ""
    if name in SHAPES and name != "one_cycle" and schedule.warmup < 1:
        parameters.append(Parameter("schedule.warmup", make_range(0.0, max(_WARMUP, schedule.warmup), log=False)))
    return Space(tuple(parameters))


def _short(value: float) -> float:
    return float(f"{value:.3g}")
