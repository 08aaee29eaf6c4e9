"""The recipe: data, model, objective, batch, optimizer, budget. Frozen; written in Python, or in YAML for built-in parts.

A bad recipe reports all its mistakes at once. How it runs on a machine is up to the plan, except for what the user pins under
`settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError
from torch import nn

from flatout.base.budget import Budget
from flatout.base.errors import DataError, FlatoutError, RecipeError, UsageError, did_you_mean
from flatout.base.option_types import LARGEST
from flatout.base.specs import import_named
from flatout.data.data import Data
from flatout.data.specs import check_data, parse_data
from flatout.engine.job import EarlyStop
from flatout.engine.optimizers import parse_schedule
from flatout.engine.settings import Settings, is_setting, parse_pins
from flatout.models.build import describe as describe_model
from flatout.models.model_spec import ModelSpec
from flatout.objectives.build import describe as describe_objective
from flatout.objectives.inputs import Inputs
from flatout.objectives.named.parse import describe_metrics, parse_metrics
from flatout.objectives.weighting import check_class_weights
from flatout.recipe.field_checks import (
    AUTO,
    Amount,
    Number,
    Rate,
    Whole,
    check_best,
    check_early_stop,
    check_every,
    check_exchange,
    check_init,
    check_model,
    check_name,
    check_objective,
    check_optimizer,
    check_seed,
    check_unfreeze,
    checked,
    early_stop_of,
)
from flatout.recipe.in_python import with_data
from flatout.recipe.model_data import described, filled, masked_for, normalized_for, takes_its_size_from
from flatout.recipe.slips import answer_to

FOLDER: ContextVar[Path] = ContextVar("folder", default=Path())  # of the recipe file that is being read
_KNOB = ("name", "off", "lossy", "risky", "meets", "default", "candidates", "turn")
SPECS = ("model", "objective", "optimizer", "schedule")  # written as a name, or as a name with options
_DESCRIBED = "train_rows"  # a key of the description that a run keeps of data in memory, and of no data in a recipe
_EXAMPLES = {"data": "digits", "model": "mlp", "batch": "64", "lr": "1e-3", "budget": "3 epochs"}


class Recipe(BaseModel):
    """One experiment. `fo.run(recipe)` plans and trains it; `flatout run recipe.yaml` does the same for a file."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())

    data: Any
    model: Annotated[Any, checked(check_model)]
    objective: Annotated[Any, checked(check_objective)] = "classify"
    metrics: Annotated[Any, checked(parse_metrics)] = None
    class_weights: Annotated[Any, checked(check_class_weights)] = None
    inputs: Annotated[Any, checked(Inputs.parse)] = "x"
    batch: Annotated[Whole, Field(gt=0, le=LARGEST)]
    lr: Rate
    budget: Annotated[Amount, checked(Budget.parse)]
    optimizer: Annotated[Any, checked(check_optimizer)] = "adamw"
    weight_decay: Annotated[Number, Field(ge=0)] = 0.01
    schedule: Annotated[Any, checked(parse_schedule)] = "cosine"
    clip: Annotated[Number, Field(gt=0)] | None = None
    ema: Annotated[Number, Field(gt=0, lt=1)] | None = None
    exchange: Annotated[Any, checked(check_exchange)] = None
    tensor_plan: dict[str, str] | None = None
    evaluate: Annotated[Amount | None, checked(check_every)] = "1 epoch"
    best: Annotated[Any, checked(check_best)] = None
    early_stop: Annotated[Any, checked(check_early_stop)] = None
    init_from: Annotated[Any, checked(check_init)] = None
    freeze: tuple[str, ...] = ()
    unfreeze: Annotated[dict[str, Amount], checked(check_unfreeze)] = Field(default_factory=dict)
    rates: dict[str, Number] = Field(default_factory=dict)
    prefer: Literal["time", "energy"] = "time"
    price_per_hour: Annotated[Number, Field(gt=0)] | None = None
    track: tuple[str, ...] = ()
    seed: Annotated[Whole, checked(check_seed)] = 0
    settings: dict[str, Any] = Field(default_factory=dict)
    knobs: tuple[Any, ...] = ()
    name: Annotated[str | None, checked(check_name)] = None

    _folder: Path = PrivateAttr(default_factory=Path)
    _source: Path | None = PrivateAttr(default=None)
    _loaded: Data | None = PrivateAttr(default=None)
    _pins: tuple[dict[str, Any], dict[str, Any]] = PrivateAttr(default=({}, {}))  # as written, typed
    _given: tuple[tuple[str, ...], dict[str, Any]] = PrivateAttr(default=((), {}))

    _price: float | None = PrivateAttr(default=None)
    _draft: str = PrivateAttr(default="")
    _filled: Any = PrivateAttr(default=None)  # the data with what a pretrained model expects

    def __init__(self, /, **given: Any) -> None:
        _validate(self, given)

    # ---- parts ----

    @property
    def pins(self) -> Mapping[str, Any]:
        """`settings` as typed values: `on` is True, `1e3` is 1000. Typed again only if that dict was changed."""
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
        """The recipe's own knobs: `package.module:Name` is imported, a class is instantiated."""
        return tuple(_own_knob(knob) for knob in self.knobs)

    @property
    def price(self) -> float | None:
        """USD per hour: its own key, else what the machine is known to cost, which is no part of the run's identity."""
        return self.price_per_hour if self.price_per_hour is not None else self._price

    def priced(self, price: float | None) -> Recipe:
        self._price = price
        return self

    @property
    def searches_rate(self) -> bool:
        """With `lr: auto` a run begins by searching for its rate."""
        return str(self.lr) == AUTO

    def load_data(self, cache: Path | None = None) -> Data:
        """Reads the data once, and raises if something is wrong with it. `cache`: a folder for results that take long."""
        if self._loaded is None:
            if isinstance(self.data, Mapping) and _DESCRIBED in self.data:
                raise DataError(
                    "the rows that the run was trained on were in the memory of another process: give rows with data= (or "
                    "--data FILE), or the recipe with fo.load(name, recipe=...)"
                )
            try:
                loaded = self.data if isinstance(self.data, Data) else self._for_model(cache)
                self._loaded = masked_for(loaded, self.model)
            except OSError as error:  # a path that the system rejects, or an unreadable disk
                raise DataError(f"data: {error.filename or 'it'} can't be read: {error.strerror or error}") from error
        return self._loaded

    def _for_model(self, cache: Path | None) -> Data:
        """The data, with what a pretrained model says about its inputs."""
        written, wanted = filled(self.data, self.model, self._folder)
        if wanted is None:
            return parse_data(written, self._folder, cache)
        data, step = normalized_for(parse_data(written, self._folder, cache), wanted)
        if step is not None:
            written = {**({written: None} if isinstance(written, str) else written), **step.written()}
        self._filled = written
        return replace(data, notes=tuple(filter(None, (*data.notes, described(wanted)))))

    def early_stopping(self, metric: str) -> EarlyStop | None:
        return None if self.early_stop is None else early_stop_of(self.early_stop, metric)

    def init_weights(self) -> tuple[Path, tuple[str, ...]] | None:
        if self.init_from is None:
            return None
        if isinstance(self.init_from, Mapping):
            return self._folder / str(self.init_from["path"]), tuple(self.init_from.get("skip", ()))
        return self._folder / str(self.init_from), ()

    @property
    def downloads(self) -> bool:
        """Whether a library fetches the weights that the model starts with."""
        return not callable(self.model) and ModelSpec.parse(self.model).pretrained is True

    @property
    def stem(self) -> str:
        """The name of its runs, without their number."""
        if self.name:
            return self.name
        if self._source is not None:
            return self._source.stem
        if isinstance(self.model, nn.Module):
            return type(self.model).__name__
        if callable(self.model):
            return str(describe_model(self.model)).rpartition(":")[2]
        asked = ModelSpec.parse(self.model)
        return Path(asked.architecture.name).name if asked.library else asked.spec.name

    @property
    def source(self) -> Path | None:
        """The file it was read from."""
        return self._source

    @property
    def folder(self) -> Path:
        """Relative paths start here."""
        return self._folder

    @property
    def given(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """The overrides and pins given in addition to its file."""
        return self._given

    @property
    def draft(self) -> str:
        """The text of a recipe of which some keys were drafted; empty if its user wrote all of it."""
        return self._draft

    def drafted_as(self, text: str) -> None:
        self._draft = text

    def with_share(self, batch: int, pins: Mapping[str, Any]) -> Recipe:
        """The recipe of one process that gets `batch` rows of each batch. Another process can read it from its file."""
        share: Recipe = self.model_copy(update={"batch": batch, "settings": dict(pins)})
        share._given = ((*self._given[0], f"batch={batch}"), dict(pins))
        return share

    def written(self) -> dict[str, Any]:
        """As JSON, for the run's folder. Two recipes with the same JSON are the same."""
        written = {name: getattr(self, name) for name in type(self).model_fields}
        written["data"] = self.data.describe() if isinstance(self.data, Data) else self._filled or self.data
        written["model"] = describe_model(self.model)
        written["objective"] = describe_objective(self.objective)
        written["metrics"] = describe_metrics(self.metrics)
        if callable(self.optimizer):
            written["optimizer"] = (
                f"{self.optimizer.__module__}:{getattr(self.optimizer, '__qualname__', type(self.optimizer).__qualname__)}"
            )
        written["knobs"] = [knob if isinstance(knob, str) else _own_knob(knob).name for knob in self.knobs] or None
        written["init_from"] = str(self.init_from) if isinstance(self.init_from, Path) else self.init_from
        if "inputs" not in self.model_fields_set:
            del written["inputs"]  # they come from the data
        if not self.unfreeze:
            del written["unfreeze"]  # as in recipes of earlier versions
        if self.prefer == "time":
            del written["prefer"]
        if not self.track:
            del written["track"]
        return {name: value for name, value in written.items() if value is not None}


def _validate(recipe: Recipe, given: dict[str, Any]) -> None:
    folder, where, stored = given.pop("_folder", FOLDER.get()), given.pop("_where", "recipe"), given.pop("_stored", False)
    problems = list(given.pop("_problems", ()))
    problems += [_no_such_key(key) for key in given.pop("_strays", ())]
    given, wrong_data = (given, "") if stored else with_data(given, folder)
    problems += [f"data: {wrong_data}"] if wrong_data else []
    try:
        recipe.__pydantic_validator__.validate_python(given, self_instance=recipe)
    except ValidationError as error:
        problems += [_problem(detail) for detail in error.errors()]
    if stored or wrong_data:
        pass  # it was checked when its run began, and its files may be gone; or its mistake is known
    elif isinstance(given.get("data"), str | Mapping):
        problems += [
            problem if problem.startswith("data") else f"data: {problem}"
            for problem in _data_problems(_sized(given["data"], given.get("model")), folder)
        ]
    if given.get("exchange") is not None and given.get("ema") is not None:
        problems.append("ema: not possible with exchange, where processes would have different averages; remove one of them")
    if given.get("unfreeze") and not given.get("freeze"):
        problems.append("unfreeze: nothing is frozen: write freeze: [backbone] too")
    own = _own_names(() if stored else given.get("knobs", ()), problems)
    pins = _stored_pins(given.get("settings")) if stored else _typed_pins(given.get("settings"), own, problems)
    if problems:
        raise RecipeError(problems, where)
    recipe._folder, recipe._pins = folder, (dict(recipe.settings), pins)


def _typed_pins(written: Any, own: list[str], problems: list[str]) -> dict[str, Any]:
    if not isinstance(written, Mapping):
        return {}  # none, or pydantic reports its type
    pins, mistakes = parse_pins(written, own)
    problems += mistakes
    return pins


def _stored_pins(written: Any) -> dict[str, Any]:
    """Checked when the run began. A name that is no setting belonged to one of the recipe's knobs, which may be gone."""
    return parse_pins(written, [name for name in written if not is_setting(name)])[0] if isinstance(written, Mapping) else {}


_WORDS = {
    "int_parsing": "expected a whole number", "int_type": "expected a whole number",
    "int_from_float": "expected a whole number", "float_parsing": "expected a number", "float_type": "expected a number",
    "finite_number": "expected a finite number", "string_type": "expected text", "tuple_type": "expected a list",
    "literal_error": "expected {expected}",
    "dict_type": "expected keys and values", "greater_than": "expected more than {gt:g}",
    "greater_than_equal": "expected {ge:g} or more", "less_than": "expected less than {lt:g}",
    "less_than_equal": "expected {le:,} or less", "int_parsing_size": "expected a smaller number",
}  # fmt: skip


def _problem(detail: Any) -> str:
    place, kind = ".".join(str(part) for part in detail["loc"]), detail["type"]
    if kind == "extra_forbidden":
        return _no_such_key(place)
    if kind == "missing":
        return f"{place}: missing; write for example {place}: {_EXAMPLES[place]}"
    if kind == "value_error":  # from our own checks, which include the value
        return f"{place}: {detail['msg'].removeprefix('Value error, ')}"
    words = _WORDS[kind].format(**detail.get("ctx", {})) if kind in _WORDS else detail["msg"]
    return f"{place}: {words}, got {detail['input']!r}"


def _no_such_key(key: Any) -> str:
    answer = answer_to(key, (one.name for one in fields(Settings)))
    return f"{key}: no such key; {did_you_mean(key, Recipe.model_fields) if answer is None else answer}"


def _own_knob(written: Any) -> Any:
    found = import_named(written, "knob") if isinstance(written, str) else written
    made = found() if isinstance(found, type) else found
    if lacks := [part for part in _KNOB if not hasattr(made, part)]:
        raise UsageError(f"knob {written!r} has no {', '.join(lacks)}: see docs/extend.md")
    if made.name in {one.name for one in fields(Settings)}:
        raise UsageError(f"knob {written!r}: {made.name} is already a setting of flatout; give the knob another name")
    return made


def _data_problems(written: Any, folder: Path) -> list[str]:
    try:
        return check_data(written, folder)
    except OSError as error:  # a path that the system rejects: too long, or no permission
        return [f"{error.filename}: {error.strerror or error}"]
    except (ValueError, RuntimeError) as error:  # an impossible character, or a home folder of an unknown user
        return [f"{error}, got {written!r}"]


def _sized(data: str | Mapping[str, Any], model: Any) -> Any:
    """Photos may leave their size to a pretrained model."""
    if isinstance(data, Mapping) and "images" in data and "size" not in data and takes_its_size_from(model):
        return {**data, "size": 1}
    return data


def _own_names(knobs: Any, problems: list[str]) -> list[str]:
    if not isinstance(knobs, list | tuple):
        return []  # pydantic reports it
    try:
        return [_own_knob(knob).name for knob in knobs]
    except FlatoutError as error:
        problems.append(f"knobs: {error}")
        return []
