"""What is asked: data, model, objective, batch, optimizer, budget. Frozen; written in Python, or in YAML for built-in parts.

A bad recipe reports all its mistakes at once. How it is carried out on a machine is not asked here, except for what the user
pins under `settings`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError
from torch import nn

from flatout.base.budget import COUNTED, Budget
from flatout.base.errors import DataError, FlatoutError, RecipeError, UsageError, did_you_mean
from flatout.base.option_types import LARGEST
from flatout.base.specs import Spec, import_named, pick
from flatout.data.data import Data
from flatout.data.specs import check_data, parse_data
from flatout.engine.job import EarlyStop
from flatout.engine.optimizers import check_optimizer, parse_schedule
from flatout.engine.parallel.rounds import parse_rounds
from flatout.engine.settings import Settings, is_setting, parse_pins
from flatout.models.build import BUILDERS
from flatout.models.build import describe as describe_model
from flatout.objectives.build import build as build_objective
from flatout.objectives.build import describe as describe_objective
from flatout.objectives.inputs import Inputs

_FROM_DATA = ("input_shape", "outputs", "vocabulary", "window", "cardinalities")  # what a model is told about the data
FOLDER: ContextVar[Path] = ContextVar("folder", default=Path())  # of the file that makes recipes just now
_KNOB = ("name", "off", "lossy", "risky", "meets", "default", "candidates", "turn")
SPECS = ("model", "objective", "optimizer", "schedule")  # written as a name, or as a name with options
_LONGEST_NAME = 200
_EXAMPLES = {"data": "digits", "model": "mlp", "batch": "64", "lr": "1e-3", "budget": "3 epochs"}


def _checked(check: Callable[[Any], object]) -> AfterValidator:
    """Our own errors as pydantic's, so that all mistakes of a recipe come together."""

    def validate(value: Any) -> Any:
        try:
            check(value)
        except FlatoutError as error:
            raise ValueError(str(error)) from error
        except (TypeError, ValueError, ArithmeticError, RecursionError, LookupError, AttributeError) as error:
            # of a value that no check has thought of: still a mistake in the recipe, to be said with the others
            raise ValueError(f"can't be used ({type(error).__name__}: {error}), got {value!r}") from error
        return value

    return AfterValidator(validate)


def _check_model(model: Any) -> None:
    if callable(model):
        return
    spec = Spec.parse(model)
    if ":" not in spec.name:
        maker = pick(BUILDERS, spec.name, "model")
        if spec.value is not None:
            raise UsageError(f"{spec.name} takes options by name, such as {{{spec.name}: {{...}}}}, got {spec.value!r}")
        own = [name for name in inspect.signature(maker).parameters if name not in _FROM_DATA]
        strays = [name for name in spec.options if name not in (*own, *_FROM_DATA)]
        problems = [f"{spec.name} has no option {name!r}; {did_you_mean(name, own)}" for name in strays]
        try:
            Spec(spec.name, {name: value for name, value in spec.options.items() if name not in strays}).fitted_to(maker)
        except UsageError as error:
            problems.append(str(error))
        if problems:
            raise UsageError("; ".join(problems))


def _check_optimizer(optimizer: Any) -> None:
    if not callable(optimizer):
        check_optimizer(Spec.parse(optimizer))


def _check_every(text: str | None) -> None:
    if text is not None and Budget.parse(text).unit not in COUNTED:
        raise UsageError(f"evaluation is asked for in epochs, steps, samples or tokens, got {text!r}")


def _check_early_stop(written: Any) -> None:
    if written is not None:
        _early_stop(written, "loss")


def _check_exchange(written: Any) -> None:
    if written is not None:
        parse_rounds(written)


def _check_init(written: Any) -> None:
    if written is None or isinstance(written, str | Path):
        return
    fits = isinstance(written, Mapping) and "path" in written and not set(written) - {"path", "skip"}
    if fits:
        skip = written.get("skip", ())
        fits = isinstance(written["path"], str | Path) and isinstance(skip, list | tuple)
        fits = fits and all(isinstance(pattern, str) for pattern in skip)
    if not fits:
        raise UsageError(f"init_from is a path, or {{path: ..., skip: [patterns]}}; got {written!r}")


def _check_name(name: str | None) -> None:
    """A run's folder is called after it."""
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
            f"a run's folder is called after it: 1 to {_LONGEST_NAME} bytes, no slash, not a dot in front; got {name!r}"
        )


def _check_seed(seed: int) -> None:
    if not -(2**63) <= seed < 2**63:
        raise UsageError(f"expected a whole number of 64 bits, got {seed}")


def _not_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got {value}")
    return value


def _whole(value: Any) -> Any:
    """YAML reads 1e3 as text; it is meant as a number."""
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return value
        return int(number) if math.isfinite(number) and number.is_integer() else value
    return _not_bool(value)


def _with_unit(value: Any) -> Any:
    if isinstance(value, int | float):
        raise ValueError(f"expected an amount and what it counts, such as '{value} epochs', got {value}")
    return value


Number = Annotated[float, BeforeValidator(_not_bool), Field(allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(_whole)]
Amount = Annotated[str, BeforeValidator(_with_unit)]


class Recipe(BaseModel):
    """One experiment. `fo.run(recipe)` plans and trains it; `flatout run recipe.yaml` does the same for a file."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())

    data: Any
    model: Annotated[Any, _checked(_check_model)]
    objective: Annotated[Any, _checked(build_objective)] = "classify"
    inputs: Annotated[Any, _checked(Inputs.parse)] = "x"
    batch: Annotated[Whole, Field(gt=0, le=LARGEST)]
    lr: Annotated[Number, Field(gt=0)]
    budget: Annotated[Amount, _checked(Budget.parse)]
    optimizer: Annotated[Any, _checked(_check_optimizer)] = "adamw"
    weight_decay: Annotated[Number, Field(ge=0)] = 0.01
    schedule: Annotated[Any, _checked(parse_schedule)] = "cosine"
    clip: Annotated[Number, Field(gt=0)] | None = None
    ema: Annotated[Number, Field(gt=0, lt=1)] | None = None
    exchange: Annotated[Any, _checked(_check_exchange)] = None
    tensor_plan: dict[str, str] | None = None
    evaluate: Annotated[Amount | None, _checked(_check_every)] = "1 epoch"
    early_stop: Annotated[Any, _checked(_check_early_stop)] = None
    init_from: Annotated[Any, _checked(_check_init)] = None
    freeze: tuple[str, ...] = ()
    rates: dict[str, Number] = Field(default_factory=dict)
    price_per_hour: Annotated[Number, Field(gt=0)] | None = None
    seed: Annotated[Whole, _checked(_check_seed)] = 0
    settings: dict[str, Any] = Field(default_factory=dict)
    knobs: tuple[Any, ...] = ()
    name: Annotated[str | None, _checked(_check_name)] = None

    _folder: Path = PrivateAttr(default_factory=Path)
    _source: Path | None = PrivateAttr(default=None)
    _loaded: Data | None = PrivateAttr(default=None)
    _pins: tuple[dict[str, Any], dict[str, Any]] = PrivateAttr(default=({}, {}))  # as written, typed
    _given: tuple[tuple[str, ...], dict[str, Any]] = PrivateAttr(default=((), {}))

    def __init__(self, /, **given: Any) -> None:
        _validate(self, given)

    # ---- parts ----

    @property
    def pins(self) -> Mapping[str, Any]:
        """`settings` as values of their types: `on` is True, `1e3` is 1000. Typed once, as long as nobody changes that dict."""
        written, typed = self._pins
        if written != self.settings:
            problems: list[str] = []
            typed = _typed_pins(self.settings, _own_names(self.knobs, problems), problems)
            if problems:
                raise RecipeError(problems)
            self._pins = dict(self.settings), typed
        return typed

    @property
    def own_knobs(self) -> tuple[Any, ...]:
        """Knobs that it brings along: `package.module:Name` is imported, a class is called."""
        return tuple(_own_knob(knob) for knob in self.knobs)

    def load_data(self, cache: Path | None = None) -> Data:
        """Read once; everything that is wrong with the data is said here. `cache` keeps what takes long to make."""
        if self._loaded is None:
            try:
                self._loaded = self.data if isinstance(self.data, Data) else parse_data(self.data, self._folder, cache)
            except OSError as error:  # a path that the system refuses, or a disk that can't be read
                raise DataError(f"data: {error.filename or 'it'} can't be read: {error.strerror or error}") from error
        return self._loaded

    def early_stopping(self, metric: str) -> EarlyStop | None:
        return None if self.early_stop is None else _early_stop(self.early_stop, metric)

    def init_weights(self) -> tuple[Path, tuple[str, ...]] | None:
        if self.init_from is None:
            return None
        if isinstance(self.init_from, Mapping):
            return self._folder / str(self.init_from["path"]), tuple(self.init_from.get("skip", ()))
        return self._folder / str(self.init_from), ()

    @property
    def stem(self) -> str:
        """What its runs are called."""
        if self.name:
            return self.name
        if self._source is not None:
            return self._source.stem
        if isinstance(self.model, nn.Module):
            return type(self.model).__name__
        return str(describe_model(self.model)).rpartition(":")[2] if callable(self.model) else Spec.parse(self.model).name

    @property
    def source(self) -> Path | None:
        """The file it was read from."""
        return self._source

    @property
    def folder(self) -> Path:
        """Relative paths are from here."""
        return self._folder

    @property
    def given(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """The overrides and pins that came on top of its file."""
        return self._given

    def with_share(self, batch: int, pins: Mapping[str, Any]) -> Recipe:
        """Of a process that has so many rows of each batch; the same for another process that reads its file."""
        share: Recipe = self.model_copy(update={"batch": batch, "settings": dict(pins)})
        share._given = ((*self._given[0], f"batch={batch}"), dict(pins))
        return share

    def written(self) -> dict[str, Any]:
        """As JSON: what a run folder keeps, and what makes two recipes the same."""
        written = {name: getattr(self, name) for name in type(self).model_fields}
        written["data"] = self.data if not isinstance(self.data, Data) else self.data.describe()
        written["model"] = describe_model(self.model)
        written["objective"] = describe_objective(self.objective)
        if callable(self.optimizer):
            written["optimizer"] = (
                f"{self.optimizer.__module__}:{getattr(self.optimizer, '__qualname__', type(self.optimizer).__qualname__)}"
            )
        written["knobs"] = [knob if isinstance(knob, str) else _own_knob(knob).name for knob in self.knobs] or None
        written["init_from"] = str(self.init_from) if isinstance(self.init_from, Path) else self.init_from
        if "inputs" not in self.model_fields_set:
            del written["inputs"]  # the data says
        return {name: value for name, value in written.items() if value is not None}


def _validate(recipe: Recipe, given: dict[str, Any]) -> None:
    folder, where, stored = given.pop("_folder", FOLDER.get()), given.pop("_where", "recipe"), given.pop("_stored", False)
    problems = list(given.pop("_problems", ()))
    problems += [f"{key}: no such key; {did_you_mean(key, Recipe.model_fields)}" for key in given.pop("_strays", ())]
    try:
        recipe.__pydantic_validator__.validate_python(given, self_instance=recipe)
    except ValidationError as error:
        problems += [_problem(detail) for detail in error.errors()]
    if stored:
        pass  # it was checked when its run began, and its files may be gone since
    elif isinstance(given.get("data"), str | Mapping):
        problems += [
            problem if problem.startswith("data") else f"data: {problem}" for problem in _data_problems(given["data"], folder)
        ]
    elif "data" in given and not isinstance(given["data"], Data):
        came = type(given["data"]).__name__
        problems.append(f"data: expected what fo.data.arrays(...) and its like return, or a written form; got {came}")
    if given.get("exchange") is not None and given.get("ema") is not None:
        problems.append("ema: with exchange every process would have an average of its own; leave one of them out")
    own = _own_names(() if stored else given.get("knobs", ()), problems)
    pins = _stored_pins(given.get("settings")) if stored else _typed_pins(given.get("settings"), own, problems)
    if problems:
        raise RecipeError(problems, where)
    recipe._folder, recipe._pins = folder, (dict(recipe.settings), pins)


def _typed_pins(written: Any, own: list[str], problems: list[str]) -> dict[str, Any]:
    if not isinstance(written, Mapping):
        return {}  # none, or said by its type
    pins, mistakes = parse_pins(written, own)
    problems += mistakes
    return pins


def _stored_pins(written: Any) -> dict[str, Any]:
    """Checked when the run began, and its knobs may be gone since: a name that is no setting was one of theirs."""
    return parse_pins(written, [name for name in written if not is_setting(name)])[0] if isinstance(written, Mapping) else {}


_WORDS = {
    "int_parsing": "expected a whole number", "int_type": "expected a whole number",
    "int_from_float": "expected a whole number", "float_parsing": "expected a number", "float_type": "expected a number",
    "finite_number": "expected a finite number", "string_type": "expected text", "tuple_type": "expected a list",
    "dict_type": "expected keys and values", "greater_than": "expected more than {gt:g}",
    "greater_than_equal": "expected {ge:g} or more", "less_than": "expected less than {lt:g}",
    "less_than_equal": "expected {le:,} or less", "int_parsing_size": "expected a smaller number",
}  # fmt: skip


def _problem(detail: Any) -> str:
    place, kind = ".".join(str(part) for part in detail["loc"]), detail["type"]
    if kind == "extra_forbidden":
        return f"{place}: no such key; {did_you_mean(place, Recipe.model_fields)}"
    if kind == "missing":
        return f"{place}: missing; write {place}: {_EXAMPLES[place]}, for example"
    if kind == "value_error":  # from our own checks, which say what came
        return f"{place}: {detail['msg'].removeprefix('Value error, ')}"
    words = _WORDS[kind].format(**detail.get("ctx", {})) if kind in _WORDS else detail["msg"]
    return f"{place}: {words}, got {detail['input']!r}"


def _own_knob(written: Any) -> Any:
    found = import_named(written, "knob") if isinstance(written, str) else written
    made = found() if isinstance(found, type) else found
    if lacks := [part for part in _KNOB if not hasattr(made, part)]:
        raise UsageError(f"knob {written!r} has no {', '.join(lacks)}: see docs/extend.md")
    if made.name in {one.name for one in fields(Settings)}:
        raise UsageError(f"knob {written!r}: {made.name} is a setting of flatout's own; give it another name")
    return made


def _data_problems(written: Any, folder: Path) -> list[str]:
    try:
        return check_data(written, folder)
    except OSError as error:  # a path that the system itself refuses: too long, or not for us
        return [f"{error.filename}: {error.strerror or error}"]
    except (ValueError, RuntimeError) as error:  # a path with a character that none can have, or of a user who is not there
        return [f"{error}, got {written!r}"]


def _own_names(knobs: Any, problems: list[str]) -> list[str]:
    if not isinstance(knobs, list | tuple):
        return []  # said by its type
    try:
        return [_own_knob(knob).name for knob in knobs]
    except FlatoutError as error:
        problems.append(f"knobs: {error}")
        return []


def _early_stop(written: Any, metric: str) -> EarlyStop:
    if isinstance(written, int) and not isinstance(written, bool) and written > 0:
        return EarlyStop(metric, written)
    if isinstance(written, Mapping) and not set(written) - {"metric", "patience"}:
        patience, name = written.get("patience", 3), written.get("metric", metric)
        if isinstance(patience, int) and not isinstance(patience, bool) and patience > 0 and isinstance(name, str):
            return EarlyStop(name, patience)
    raise UsageError(f"early_stop is a number of evaluations, or {{metric: loss, patience: 3}}; got {written!r}")
