"""Build an Objective from a recipe: a built-in name, `package.module:function`, a callable, or an Objective."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from flatout.base.errors import UsageError, did_you_mean
from flatout.base.specs import Spec, import_named, pick
from flatout.objectives.binary import Binary
from flatout.objectives.classify import Classify
from flatout.objectives.custom import Custom
from flatout.objectives.inputs import Inputs
from flatout.objectives.multilabel import Multilabel
from flatout.objectives.next_token import NextToken
from flatout.objectives.objective import LossFunction, Objective
from flatout.objectives.regress import Regress

Written = Spec | str | Mapping[str, Any] | LossFunction | Objective

OBJECTIVES: Mapping[str, Callable[..., Objective]] = {
    objective.name: objective for objective in (Classify, Binary, Multilabel, Regress, NextToken)
}


def build(objective: Written, inputs: object = "x") -> Objective:
    """An Objective keeps its own inputs; anything else gets `inputs`."""
    if isinstance(objective, Objective):
        return objective
    columns = Inputs.parse(inputs)
    if callable(objective):
        return Custom(columns, function=objective)
    spec = Spec.parse(objective)
    if ":" not in spec.name:
        maker = pick(OBJECTIVES, spec.name, "objective")
        made: Objective = spec.fitted_to(maker, given=("inputs",)).call(maker, inputs=columns)
        return made
    return _imported(spec, columns)


def describe(objective: Written) -> Any:
    """For JSON and people: the spec as written, or the location of the code."""
    if isinstance(objective, Custom):
        return describe(objective.function)
    if isinstance(objective, Objective):
        chosen = {option.name: getattr(objective, option.name) for option in fields(objective)[1:] if option.init}
        defaults = {option.name: option.default for option in fields(objective)}
        return Spec(objective.name, {name: value for name, value in chosen.items() if value != defaults[name]}).written()
    if not callable(objective):
        return Spec.parse(objective).written()
    while isinstance(objective, functools.partial):
        objective = objective.func
    named: Any = objective if inspect.isroutine(objective) else type(objective)
    return f"{named.__module__}:{named.__qualname__}"


def _imported(spec: Spec, inputs: Inputs) -> Objective:
    found = import_named(spec.name, "objective")
    if isinstance(found, Objective):
        return found
    if isinstance(found, type) and issubclass(found, Objective):
        made: Objective = spec.call(found, inputs=inputs)
        return made
    if not callable(found):
        came = type(found).__name__
        raise UsageError(f"objective {spec.name!r} must be a function (model, batch) -> (loss_sum, weight), got {came}")
    if spec.value is not None:
        raise UsageError(f"objective {spec.name!r} takes options by name, such as {{alpha: 0.5}}, got {spec.value!r}")
    own = list(inspect.signature(found).parameters)[2:]
    for name in spec.options:
        if name not in own:
            raise UsageError(f"objective {spec.name!r} has no option {name!r}; {did_you_mean(name, own)}")
    return Custom(inputs, function=functools.partial(found, **spec.options) if spec.options else found)
