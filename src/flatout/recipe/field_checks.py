"""Checks of a recipe's fields, and types of its numbers. Each error says what was expected and what was given."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidatorFunctionWrapHandler, WrapValidator
from torch.nn import functional
from torch.nn.modules.loss import _Loss
from torch.optim import Optimizer

from flatout.base.budget import COUNTED, Budget
from flatout.base.errors import FlatoutError, UsageError, did_you_mean
from flatout.base.option_types import options_of
from flatout.base.specs import Spec, pick
from flatout.engine.job import EarlyStop
from flatout.engine.optimizers import check_optimizer as check_known_optimizer
from flatout.engine.parallel.rounds import parse_rounds
from flatout.models.build import BUILDERS
from flatout.models.model_spec import LIBRARIES, ModelSpec
from flatout.objectives.build import OBJECTIVES
from flatout.objectives.build import build as build_objective
from flatout.recipe.slips import objective_for

_FROM_DATA = ("input_shape", "outputs", "vocabulary", "window", "cardinalities")  # a model learns these from the data
_LONGEST_NAME = 200
AUTO = "auto"


def checked(check: Callable[[Any], object]) -> AfterValidator:
    """Turns our errors into pydantic's, so that all mistakes of a recipe are reported together."""

    def validate(value: Any) -> Any:
        try:
            check(value)
        except FlatoutError as error:
            raise ValueError(str(error)) from error
        except (TypeError, ValueError, ArithmeticError, RecursionError, LookupError, AttributeError) as error:
            # a value that no check expects is a mistake in the recipe too, reported with the others
            raise ValueError(f"can't be used ({type(error).__name__}: {error}), got {value!r}") from error
        return value

    return AfterValidator(validate)


def check_model(model: Any) -> None:
    if callable(model):
        return
    asked = ModelSpec.parse(model)
    spec = asked.spec
    if ":" not in spec.name and asked.library is None:
        maker = pick({**BUILDERS, **dict.fromkeys(LIBRARIES)}, spec.name, "model")
        if spec.value is not None:
            raise UsageError(f"{spec.name} takes options by name, such as {{{spec.name}: {{...}}}}, got {spec.value!r}")
        own = [name for name in options_of(maker).names if name not in _FROM_DATA]
        strays = [name for name in spec.options if name not in (*own, *_FROM_DATA)]
        problems = [f"{spec.name} has no option {name!r}; {did_you_mean(name, own)}" for name in strays]
        try:
            Spec(spec.name, {name: value for name, value in spec.options.items() if name not in strays}).fitted_to(maker)
        except UsageError as error:
            problems.append(str(error))
        if problems:
            raise UsageError("; ".join(problems))


def check_objective(objective: Any) -> None:
    if (loss := _loss_name(objective)) is not None and (ours := objective_for(loss)) is not None:
        raise UsageError(f"{loss} is a loss of (output, target); the objective that has it is {ours}")
    if isinstance(objective, _Loss) or (isinstance(objective, type) and issubclass(objective, _Loss)):
        raise UsageError(
            f"{loss} is a loss of (output, target); an objective is a name such as classify, or a function "
            "(model, batch) -> (loss_sum, weight): see docs/extend.md"
        )
    build_objective(objective)


def _loss_name(objective: Any) -> str | None:
    """The name of a loss of another library; None for an objective."""
    if isinstance(objective, str):
        return objective if objective not in OBJECTIVES else None
    if isinstance(objective, _Loss):
        return f"nn.{type(objective).__name__}"
    if isinstance(objective, type):
        return f"nn.{objective.__name__}" if issubclass(objective, _Loss) else None
    return objective.__name__ if inspect.isfunction(objective) and objective.__module__ == functional.__name__ else None


def check_optimizer(optimizer: Any) -> None:
    if isinstance(optimizer, Optimizer):
        name = type(optimizer).__name__
        raise UsageError(
            f"got {name}(...), which is built already: write optimizer: {name.lower()} and lr, "
            "and flatout builds it for the model"
        )
    if not callable(optimizer):
        check_known_optimizer(Spec.parse(optimizer))


def check_every(text: str | None) -> None:
    if text is not None and Budget.parse(text).unit not in COUNTED:
        raise UsageError(f"expected epochs, steps, samples or tokens, got {text!r}")


def check_unfreeze(written: Mapping[str, str]) -> None:
    for part, when in written.items():
        try:
            check_every(when)
        except UsageError as error:
            raise UsageError(f"{part}: {error}") from error


def check_early_stop(written: Any) -> None:
    if written is not None:
        early_stop_of(written, "loss")


def check_best(written: Any) -> None:
    if written is not None:
        chosen_best(written)


def check_exchange(written: Any) -> None:
    if written is not None:
        parse_rounds(written)


def check_init(written: Any) -> None:
    if written is None or isinstance(written, str | Path):
        return
    fits = isinstance(written, Mapping) and "path" in written and not set(written) - {"path", "skip"}
    if fits:
        skip = written.get("skip", ())
        fits = isinstance(written["path"], str | Path) and isinstance(skip, list | tuple)
        fits = fits and all(isinstance(pattern, str) for pattern in skip)
    if not fits:
        raise UsageError(f"init_from is a path, or {{path: ..., skip: [patterns]}}; got {written!r}")


def check_name(name: str | None) -> None:
    if name is None:
        return
    if (
        not name.strip()
        or len(name.encode()) > _LONGEST_NAME
        or not name.isprintable()
        or set(name) & set("/\\")
        or name[0] == "."
    ):
        raise UsageError(
            f"it names the run's folder: expected 1 to {_LONGEST_NAME} bytes, no slash, no dot in front; got {name!r}"
        )


def check_seed(seed: int) -> None:
    if not -(2**63) <= seed < 2**63:
        raise UsageError(f"expected a 64-bit whole number, got {seed}")


def _not_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got {value}")
    return value


def _whole(value: Any) -> Any:
    """YAML reads 1e3 as text."""
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return value
        return int(number) if math.isfinite(number) and number.is_integer() else value
    return _not_bool(value)


def _with_unit(value: Any) -> Any:
    if isinstance(value, int | float):
        raise ValueError(f"expected a number with a unit, such as '{value} epochs', got {value}")
    return value


def _or_auto(value: Any, number: ValidatorFunctionWrapHandler) -> Any:
    if not isinstance(value, str) or value == AUTO:
        return value if value == AUTO else number(value)
    try:
        float(value)
    except ValueError:
        raise ValueError(f"expected a number such as 1e-3, or auto, got {value!r}") from None
    return number(value)


Number = Annotated[float, BeforeValidator(_not_bool), Field(allow_inf_nan=False)]
Rate = Annotated[Number, Field(gt=0), WrapValidator(_or_auto)]  # a number, or "auto"
Whole = Annotated[int, BeforeValidator(_whole)]
Amount = Annotated[str, BeforeValidator(_with_unit)]


def early_stop_of(written: Any, metric: str) -> EarlyStop:
    if isinstance(written, int) and not isinstance(written, bool) and written > 0:
        return EarlyStop(metric, written)
    if isinstance(written, Mapping) and not set(written) - {"metric", "patience"}:
        patience, name = written.get("patience", 3), written.get("metric", metric)
        if isinstance(patience, int) and not isinstance(patience, bool) and patience > 0 and isinstance(name, str):
            return EarlyStop(name, patience)
    raise UsageError(f"early_stop is a number of evaluations, or {{metric: loss, patience: 3}}; got {written!r}")


def chosen_best(written: Any) -> tuple[str, Literal["max", "min"] | None]:
    """The metric that decides which weights are best, and whether more or less of it is better, if that is written."""
    if isinstance(written, str) and written:
        return written, None
    if isinstance(written, Mapping) and set(written) == {"metric", "better"} and isinstance(written["metric"], str):
        if written["better"] == "max":
            return written["metric"], "max"
        if written["better"] == "min":
            return written["metric"], "min"
    raise UsageError(f"best is the name of a metric, or {{metric: name, better: max}} (or min); got {written!r}")
