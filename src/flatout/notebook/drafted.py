"""A recipe from keywords: what is missing is drafted as `flatout new` does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from flatout.base.errors import RecipeError, UsageError
from flatout.data.data import Data
from flatout.data.given import batch_of, is_splits, kind_of, split_parts
from flatout.data.specs import KINDS
from flatout.explore.drafting.draft import Draft
from flatout.explore.drafting.in_memory import draft_given
from flatout.explore.drafting.writing import DraftLine, Raw, page
from flatout.recipe.schema import Recipe

_DRAFTED = ("model", "objective", "batch", "lr", "clip", "evaluate", "budget")
_ANY = {"model": "mlp", "batch": 1, "lr": 1.0, "budget": "1 step"}
_NEEDED = ("model", "objective", "batch", "lr", "budget")
_KINDS = {*KINDS, "dataset"}
DATA_OPTIONS = (
    "label", "holdout", "holdout_latest", "holdout_group", "validation", "test", "split", "classes", "size", "window",
    "columns", "drop", "numeric", "categorical", "target", "steps", "guard", "on_bad", "draw", "normalize", "augment",
    "workers", "collate", "derive", "where", "join", "time",
)  # fmt: skip
_OF_TABLES = ("drop", "numeric", "categorical", "steps", "derive", "where", "join", "time")


def recipe_of(data: Any, given: Mapping[str, Any]) -> Recipe:
    """`given` has keys of a recipe and options of the data, such as label. `Recipe.draft` has the text of a drafted recipe."""
    options = {name: given[name] for name in DATA_OPTIONS if given.get(name) is not None}
    keys = {name: value for name, value in given.items() if name not in DATA_OPTIONS}
    if is_splits(data):
        data, parts = split_parts(data)
        options = {**parts, **options}
    strays = [name for name in keys if name not in Recipe.model_fields]
    if strays or (kind_of(data) is None and not isinstance(data, str | Path | Data)):
        return Recipe(data="digits" if strays else data, **{**_ANY, **keys})  # says what is wrong, and only that
    if (others := [name for name in _OF_TABLES if name in options]) and kind_of(data) == "arrays":
        raise UsageError(f"{', '.join(others)}: columns of arrays have no names: give a DataFrame, and label='column'")
    as_written = _is_written(data)
    if all(name in keys for name in _NEEDED if not (as_written and name == "objective")) and (as_written or not options):
        return Recipe(data=_with_options(data, options), **keys)  # nothing to draft
    written_by = None
    if as_written:
        known = Recipe(data=_with_options(data, options), **{**_ANY, **keys})
        written_by, data, options = known.data, known.load_data(), {}
        if data.vocabulary is not None:  # a model of text is a matter of taste and time: it is not drafted from rows
            return Recipe(data=written_by, **keys)
    label = options.pop("label", None)
    draft = draft_given(data, label, options)
    own = "model" in keys
    lines = [line for line in draft.data if not line.off and not (own and line.key == "normalize" and not _is_image(data))]
    if isinstance(written_by, Mapping):
        lines = [DraftLine(name, value) for name, value in written_by.items()]
    training = draft.training
    drafted = {
        "model": training.model,
        "objective": _objective(draft.objective, keys.get("model")),
        "batch": batch_of(data) or training.batch,
        "lr": float(training.lr.text),
        "clip": None if training.clip is None else float(training.clip.text),
        "evaluate": training.evaluate,
        "budget": training.budget,
    }
    chosen = {**{name: value for name, value in drafted.items() if value is not None}, **keys}
    written = {line.key: float(line.value.text) if isinstance(line.value, Raw) else line.value for line in lines}
    recipe = Recipe(data=written_by or (data if isinstance(data, Data) else written), **chosen)
    recipe.drafted_as(_page(draft, lines, recipe, data, keys))
    return recipe


def _is_written(data: Any) -> bool:
    """Data as a recipe file writes it."""
    return data in _KINDS if isinstance(data, str) else isinstance(data, Mapping) and bool(set(data) & _KINDS)


def _with_options(data: Any, options: Mapping[str, Any]) -> Any:
    if not options:
        return data
    if isinstance(data, Data | str | Path):
        raise UsageError(f"{', '.join(options)}: set it where the data is described, in fo.data or in the mapping under data")
    if isinstance(data, Mapping) and set(data) & _KINDS:
        return {**data, **options}
    kind = kind_of(data)
    if kind is None:
        raise RecipeError([f"data: got a {type(data).__name__}"])
    return {kind: data, **options}


def _objective(drafted: str, model: Any) -> str:
    """A model of one's own with several outputs tells two classes apart by the larger one."""
    if drafted != "binary" or model is None:
        return drafted
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)] if isinstance(model, nn.Module) else []
    return "binary" if layers and layers[-1].out_features == 1 else "classify" if layers else drafted


def _is_image(data: Any) -> bool:
    """Bytes of pixels, which a model of one's own can't take as they are."""
    x = data.get("x") if isinstance(data, Mapping) else data[0] if isinstance(data, tuple) else data
    array = x.detach().cpu().numpy() if isinstance(x, Tensor) else x
    return isinstance(array, np.ndarray) and array.dtype == np.uint8 and array.ndim >= 3


def _page(draft: Draft, lines: list[DraftLine], recipe: Recipe, data: Any, keys: Mapping[str, Any]) -> str:
    """The recipe as a file would have it; an object of Python is named by its type."""
    written = recipe.written()
    title = [f"Drafted by fo.run(data=...) from {draft.headline}", *(f"  {name}: {words}" for name, words in draft.facts)]
    entries = [DraftLine("data")]
    entries += [DraftLine(line.key, _named(line.value, data), line.note, depth=1) for line in lines]
    names = [name for name in (*_DRAFTED, *keys) if name in written and (name in _DRAFTED or name in keys)]
    for name in dict.fromkeys(names):
        if name in keys or name in _NEEDED or name in recipe.model_fields_set:
            entries.append(DraftLine(name, written[name], "given" if name in keys else ""))
    return page(title, entries)


def _named(value: Any, data: Any) -> Any:
    if value is None or isinstance(value, str | int | float | Raw):
        return value
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return value
    if isinstance(value, Mapping) and all(isinstance(inner, str | int | float | list) for inner in value.values()):
        return {str(name): _named(inner, data) for name, inner in value.items()}
    return f"<{type(data).__name__}>"
