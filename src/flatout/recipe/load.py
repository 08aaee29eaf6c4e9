"""Reads a recipe from YAML, or from Python that defines `recipe`, and applies overrides of the command line."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from flatout.base.errors import FlatoutError, RecipeError, UsageError
from flatout.base.plain_yaml import MOST_CHARACTERS, read_yaml
from flatout.data.workers.parcel import RECIPE_MODULE, SOURCE_ATTRIBUTE
from flatout.models.model_spec import BESIDE, LIBRARIES
from flatout.recipe.schema import FOLDER, SPECS, Recipe

_DEEPEST_KEY = 8


def read_recipe(
    path: Path, overrides: Sequence[str] = (), pins: Mapping[str, Any] | None = None, *, moved_from: Path | None = None
) -> Recipe:
    """A recipe from a YAML file, or from a Python file that defines `recipe` (a Recipe, or a function that makes one).

    `moved_from`: the original place of a copied Python file; relative paths start there.
    """
    if not _is_file(path):
        if _is_folder(path):
            raise UsageError(f"{path} is a folder, not a recipe: `flatout new {path}` writes a recipe for data in it")
        raise UsageError(f"recipe not found: {path}; `flatout demo` shows one that works")
    if path.suffix == ".py":
        return _from_python(path, overrides, pins or {}, moved_from or path)
    if path.suffix not in (".yaml", ".yml"):
        more = f": `flatout new {path}` writes a recipe for data" if path.suffix not in ("", ".json", ".toml", ".ini") else ""
        raise UsageError(f"a recipe is a .yaml or a .py file, got {path.name}{more}")
    written, problems = written_in(path)
    return recipe_from(written, path.parent, overrides, pins or {}, source=path, problems=problems)


def recipe_given(given: Any) -> Recipe:
    """A recipe itself, or that of a file."""
    if isinstance(given, Recipe):
        return given
    if isinstance(given, str | Path):
        return read_recipe(Path(given))
    raise UsageError(f"expected a fo.Recipe or the path of a recipe file, got {type(given).__name__}")


def written_in(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The keys and values of a YAML file, and the mistakes in it."""
    try:
        if path.stat().st_size > 4 * MOST_CHARACTERS:  # UTF-8 uses at most four bytes
            raise UsageError(f"{path} has {path.stat().st_size:,} bytes: too long for a recipe")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not YAML in UTF-8: {error}") from error
    try:
        written, problems = read_yaml(text)
    except UsageError as error:
        raise UsageError(f"{path} is not YAML: {error}") from error
    if not isinstance(written, dict):
        if problems:
            raise RecipeError(problems, str(path))
        came = "an empty file" if written is None else type(written).__name__
        raise UsageError(f"{path} must hold keys and values (data:, model:, ...), got {came}")
    return written, problems


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # for example a name that is too long
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def recipe_from(
    written: Mapping[str, Any],
    folder: Path,
    overrides: Sequence[str] = (),
    pins: Mapping[str, Any] | None = None,
    source: Path | None = None,
    stored: bool = False,
    problems: Sequence[str] = (),
) -> Recipe:
    """From keys and values. Relative paths start at `folder`. `stored`: from a run's folder. `problems`: found earlier."""
    merged, more = _overridden(dict(written), overrides, pins or {})
    strays = [key for key in merged if not isinstance(key, str) or key.startswith("_") or key == "self"]
    told: dict[str, Any] = {"_where": str(source) if source else "recipe", "_strays": strays, "_problems": [*problems, *more]}
    recipe = Recipe(**{key: merged[key] for key in merged if key not in strays}, _folder=folder, _stored=stored, **told)
    recipe._source, recipe._given = source, (tuple(overrides), dict(pins or {}))
    return recipe


def _from_python(path: Path, overrides: Sequence[str], pins: Mapping[str, Any], home: Path) -> Recipe:
    module = ModuleType(RECIPE_MODULE)
    module.__file__ = str(home)
    sys.modules[module.__name__] = module  # stays, because `inspect` finds the source of its classes here
    before = FOLDER.set(home.parent)
    try:
        source = path.read_bytes()
        setattr(module, SOURCE_ATTRIBUTE, importlib.util.decode_source(source))
        exec(compile(source, str(path), "exec"), vars(module))
        found = vars(module).get("recipe")
        recipe = found() if inspect.isfunction(found) else found
    except FlatoutError:
        raise
    except Exception as error:
        line = next((f" (line {frame.lineno})" for frame in _frames(error) if frame.filename == str(path)), "")
        raise UsageError(f"{path} could not be run: {type(error).__name__}: {error}{line}") from error
    finally:
        FOLDER.reset(before)
    if not isinstance(recipe, Recipe):
        came = "no such name" if "recipe" not in vars(module) else type(recipe).__name__
        raise UsageError(f"{path} must define `recipe`: a flatout.Recipe, or a function that returns one; got {came}")
    if overrides or pins:
        recipe = _changed(recipe, overrides, pins, home.parent, str(path))
    recipe._source, recipe._folder, recipe._given = path, home.parent, (tuple(overrides), dict(pins))
    return recipe


def with_overrides(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """The same recipe with other values. Data that was read stays in memory if the overrides are of other keys."""
    made = _changed(recipe, overrides, {}, recipe.folder, "recipe")
    made._source, made._given = recipe.source, ((*recipe.given[0], *overrides), dict(recipe.given[1]))
    if not any(_reads_again(recipe, override) for override in overrides):
        made._loaded, made._filled = recipe._loaded, recipe._filled
    return made


def _reads_again(recipe: Recipe, override: str) -> bool:
    """Whether other rows, or rows prepared in another way, may follow: a pretrained model says how it wants its input."""
    key = override.partition("=")[0].split(".")[0]
    if key != "model":
        return key == "data"
    written = recipe.model, override.partition("=")[2]
    return any(name in str(one) for one in written for name in LIBRARIES)


def _changed(recipe: Recipe, overrides: Sequence[str], pins: Mapping[str, Any], folder: Path, where: str) -> Recipe:
    fields = {name: getattr(recipe, name) for name in recipe.model_fields_set}
    merged, problems = _overridden(fields, overrides, pins)
    return Recipe(**merged, _folder=folder, _where=where, _problems=problems)


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Frames of the traceback, innermost first."""
    return traceback.extract_tb(error.__traceback__)[::-1]


def _overridden(written: dict[str, Any], overrides: Sequence[str], pins: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Applies overrides such as `lr=3e-4` or `data.window=64`, then the pins. Also returns the mistakes."""
    problems: list[str] = []
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not all(key.strip().split(".")):
            raise UsageError(f"an override is written key=value, such as lr=3e-4; got {override!r}")
        if key.count(".") > _DEEPEST_KEY:
            raise UsageError(f"an override can be at most {_DEEPEST_KEY} keys deep; got {override!r}")
        try:
            value, wrong = read_yaml(text) if text else (None, [])
        except UsageError as error:
            raise UsageError(f"the value of {override!r} is not YAML: {error}") from error
        problems += [f"{key}: {one}" for one in wrong]
        *parents, last = _place(written, key.strip().split("."))
        place = written
        for parent in parents:
            inner = place.get(parent)
            if not (inner is None or isinstance(inner, str | Mapping)):
                raise UsageError(f"{override!r}: {parent} is a {type(inner).__name__}, which has no keys to set; set it whole")
            inner = dict(inner) if isinstance(inner, Mapping) else {inner: None} if isinstance(inner, str) else {}
            place[parent] = inner
            place = inner
        place[last] = value
    if pins and isinstance(written.get("settings") or {}, Mapping):  # other types are reported by the recipe's checks
        written["settings"] = {**(written.get("settings") or {}), **pins}
    return written, problems


def _place(written: Mapping[str, Any], path: list[str]) -> list[str]:
    """`model.hidden` means the option `hidden` of the model in the recipe: `model.mlp.hidden`."""
    if len(path) < 2 or path[0] not in SPECS:
        return path
    spec = written.get(path[0], Recipe.model_fields[path[0]].default)
    if path[0] == "model" and path[1] in BESIDE:
        return path
    keys = [key for key in spec if key not in BESIDE] if isinstance(spec, Mapping) else [spec]
    name = keys[0] if len(keys) == 1 and isinstance(keys[0], str) else path[1]
    return path if path[1] == name else [path[0], name, *path[1:]]
