"""What is asked: data, model, objective, batch, optimizer, budget. Frozen; written in Python, or in YAML for built-in parts.

A bad recipe reports all its mistakes at once. How it is carried out on a machine is not asked here, except for what the user
pins under `settings`.
"""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError

from flatout.base.budget import COUNTED, Budget
from flatout.base.errors import FlatoutError, RecipeError, UsageError, did_you_mean
from flatout.base.specs import Spec, pick
from flatout.data.data import Data
from flatout.data.specs import check_data, parse_data
from flatout.engine.job import EarlyStop
from flatout.engine.optimizers import check_optimizer
from flatout.engine.schedules import parse_schedule
from flatout.engine.settings import parse_pins
from flatout.models.build import BUILDERS
from flatout.models.build import describe as describe_model
from flatout.objectives.build import build as build_objective
from flatout.objectives.build import describe as describe_objective


def _checked(check: Callable[[Any], object]) -> AfterValidator:
    """Our own errors as pydantic's, so that all mistakes of a recipe come together."""

    def validate(value: Any) -> Any:
        try:
            check(value)
        except FlatoutError as error:
            raise ValueError(str(error)) from error
        return value

    return AfterValidator(validate)


def _check_model(model: Any) -> None:
    if callable(model):
        return
    spec = Spec.parse(model)
    if ":" not in spec.name:
        pick(BUILDERS, spec.name, "model")


def _check_optimizer(optimizer: Any) -> None:
    if not callable(optimizer):
        check_optimizer(Spec.parse(optimizer))


def _check_every(text: str | None) -> None:
    if text is not None and Budget.parse(text).unit not in COUNTED:
        raise UsageError(f"evaluation is asked for in epochs, steps, samples or tokens, got {text!r}")


def _check_early_stop(written: Any) -> None:
    if written is not None:
        _early_stop(written, "loss")


def _check_init(written: Any) -> None:
    if written is None or isinstance(written, str | Path):
        return
    if not isinstance(written, Mapping) or "path" not in written or set(written) - {"path", "skip"}:
        raise UsageError(f"init_from is a path, or {{path: ..., skip: [patterns]}}; got {written!r}")


def _whole(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a number, got a yes or no")
    return value


Number = Annotated[float, BeforeValidator(_whole)]
Whole = Annotated[int, BeforeValidator(_whole)]


class Recipe(BaseModel):
    """One experiment. `fo.run(recipe)` plans and trains it; `flatout run recipe.yaml` does the same for a file."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())

    data: Any
    model: Annotated[Any, _checked(_check_model)]
    objective: Annotated[Any, _checked(build_objective)] = "classify"
    inputs: Any = "x"
    batch: Annotated[Whole, Field(gt=0)]
    lr: Annotated[Number, Field(gt=0)]
    budget: Annotated[str, _checked(Budget.parse)]
    optimizer: Annotated[Any, _checked(_check_optimizer)] = "adamw"
    weight_decay: Annotated[Number, Field(ge=0)] = 0.01
    schedule: Annotated[Any, _checked(parse_schedule)] = "cosine"
    clip: Annotated[Number, Field(gt=0)] | None = None
    ema: Annotated[Number, Field(gt=0, lt=1)] | None = None
    evaluate: Annotated[str | None, _checked(_check_every)] = "1 epoch"
    early_stop: Annotated[Any, _checked(_check_early_stop)] = None
    init_from: Annotated[Any, _checked(_check_init)] = None
    freeze: tuple[str, ...] = ()
    rates: dict[str, Number] = Field(default_factory=dict)
    price_per_hour: Annotated[Number, Field(gt=0)] | None = None
    seed: Whole = 0
    settings: dict[str, Any] = Field(default_factory=dict)
    name: str | None = None

    _folder: Path = PrivateAttr(default_factory=Path)
    _source: Path | None = PrivateAttr(default=None)
    _loaded: Data | None = PrivateAttr(default=None)

    def __init__(self, /, **given: Any) -> None:
        _validate(self, given)

    # ---- parts ----

    def load_data(self) -> Data:
        """Read once; everything that is wrong with the data is said here."""
        if self._loaded is None:
            self._loaded = self.data if isinstance(self.data, Data) else parse_data(self.data, self._folder)
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
        return (
            str(describe_model(self.model)).rpartition(":")[2].strip("{}' ")
            if callable(self.model)
            else Spec.parse(self.model).name
        )

    @property
    def source(self) -> Path | None:
        """The file it was read from."""
        return self._source

    @property
    def folder(self) -> Path:
        """Relative paths are from here."""
        return self._folder

    def written(self) -> dict[str, Any]:
        """As JSON: what a run folder keeps, and what makes two recipes the same."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        fields["data"] = self.data if not isinstance(self.data, Data) else self.data.describe()
        fields["model"] = describe_model(self.model)
        fields["objective"] = describe_objective(self.objective)
        if callable(self.optimizer):
            fields["optimizer"] = (
                f"{self.optimizer.__module__}:{getattr(self.optimizer, '__qualname__', type(self.optimizer).__qualname__)}"
            )
        fields["init_from"] = str(self.init_from) if isinstance(self.init_from, Path) else self.init_from
        return {name: value for name, value in fields.items() if value is not None}


def read_recipe(path: Path, overrides: Sequence[str] = (), pins: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe from a YAML file, or from a Python file that defines `recipe` (a Recipe, or a function that makes one)."""
    if not path.is_file():
        raise UsageError(f"there is no recipe at {path}; `flatout demo` shows one that runs")
    if path.suffix == ".py":
        return _from_python(path, overrides, pins or {})
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"a recipe is a .yaml or a .py file, got {path.name}")
    try:
        written = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {error}") from error
    if not isinstance(written, dict):
        raise UsageError(f"{path} must hold keys and values (data:, model:, ...), got {type(written).__name__}")
    return recipe_from(written, path.parent, overrides, pins or {}, source=path)


def recipe_from(
    written: Mapping[str, Any],
    folder: Path,
    overrides: Sequence[str] = (),
    pins: Mapping[str, Any] | None = None,
    source: Path | None = None,
) -> Recipe:
    """From plain keys and values; relative paths are from `folder`."""
    merged = _overridden(dict(written), overrides, pins or {})
    recipe = Recipe(**merged, _folder=folder, _where=str(source) if source else "recipe")
    recipe._source = source
    return recipe


def _from_python(path: Path, overrides: Sequence[str], pins: Mapping[str, Any]) -> Recipe:
    try:
        found = runpy.run_path(str(path), run_name="flatout_recipe").get("recipe")
    except FlatoutError:
        raise
    except Exception as error:
        raise UsageError(f"{path} could not be run: {type(error).__name__}: {error}") from error
    recipe = found() if inspect.isfunction(found) else found
    if not isinstance(recipe, Recipe):
        raise UsageError(
            f"{path} must define `recipe`: a flatout.Recipe, or a function that returns one; got {type(recipe).__name__}"
        )
    if overrides or pins:
        fields = {name: getattr(recipe, name) for name in recipe.model_fields_set}
        recipe = Recipe(**_overridden(fields, overrides, pins), _folder=path.parent, _where=str(path))
    recipe._source, recipe._folder = path, path.parent
    return recipe


def _overridden(written: dict[str, Any], overrides: Sequence[str], pins: Mapping[str, Any]) -> dict[str, Any]:
    """`lr=3e-4` or `data.window=64` on top of what is written, then what was pinned on the command line."""
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise UsageError(f"an override is written key=value, such as lr=3e-4; got {override!r}")
        *parents, last = key.strip().split(".")
        place = written
        for parent in parents:
            inner = place.get(parent)
            inner = dict(inner) if isinstance(inner, Mapping) else {inner: None} if isinstance(inner, str) else {}
            place[parent] = inner
            place = inner
        place[last] = yaml.safe_load(text) if text else None
    if pins:
        written["settings"] = {**(written.get("settings") or {}), **pins}
    return written


def _validate(recipe: Recipe, given: dict[str, Any]) -> None:
    folder, where = given.pop("_folder", Path()), given.pop("_where", "recipe")
    problems = []
    try:
        recipe.__pydantic_validator__.validate_python(given, self_instance=recipe)
    except ValidationError as error:
        problems = [_problem(given, detail) for detail in error.errors()]
    if isinstance(given.get("data"), str | Mapping):
        problems += check_data(given["data"], folder)
    elif "data" in given and not isinstance(given["data"], Data):
        came = type(given["data"]).__name__
        problems.append(f"data: expected what fo.data.arrays(...) and its like return, or a written form; got {came}")
    pins = given.get("settings")
    if isinstance(pins, Mapping):
        problems += parse_pins(pins)[1]
    if problems:
        raise RecipeError(problems, where)
    recipe._folder = folder


def _problem(given: Mapping[str, Any], detail: Any) -> str:
    place = ".".join(str(part) for part in detail["loc"])
    key = str(detail["loc"][0]) if detail["loc"] else ""
    if detail["type"] == "extra_forbidden":
        return f"{place}: no such key; {did_you_mean(place, Recipe.model_fields)}"
    if detail["type"] == "missing":
        return f"{place}: missing"
    message = detail["msg"].removeprefix("Value error, ")
    return f"{place}: {message[0].lower()}{message[1:]}" + ("" if "got" in message else f", got {given.get(key)!r}")


def _early_stop(written: Any, metric: str) -> EarlyStop:
    if isinstance(written, int) and not isinstance(written, bool) and written > 0:
        return EarlyStop(metric, written)
    if isinstance(written, Mapping) and not set(written) - {"metric", "patience"}:
        patience = written.get("patience", 3)
        if isinstance(patience, int) and patience > 0:
            return EarlyStop(str(written.get("metric", metric)), patience)
    raise UsageError(f"early_stop is a number of evaluations, or {{metric: loss, patience: 3}}; got {written!r}")
