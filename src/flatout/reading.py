"""A recipe from its file: YAML, or Python that defines `recipe`; with what the command line puts on top of it."""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from flatout.base.errors import FlatoutError, UsageError
from flatout.recipe import FOLDER, SPECS, Recipe


class _Loader(yaml.SafeLoader):
    """Also reads 3e-4 as a number, which YAML 1.1 takes for a word."""


_EXPONENT = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))


def read_recipe(
    path: Path, overrides: Sequence[str] = (), pins: Mapping[str, Any] | None = None, *, moved_from: Path | None = None
) -> Recipe:
    """A recipe from a YAML file, or from a Python file that defines `recipe` (a Recipe, or a function that makes one).

    `moved_from` is where a kept copy of a Python file came from: what it names beside it is still there.
    """
    if not path.is_file():
        raise UsageError(f"there is no recipe at {path}; `flatout demo` shows one that runs")
    if path.suffix == ".py":
        return _from_python(path, overrides, pins or {}, moved_from or path)
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"a recipe is a .yaml or a .py file, got {path.name}")
    try:
        written = _parse_yaml(path.read_text())
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {error}") from error
    if not isinstance(written, dict):
        came = "an empty file" if written is None else type(written).__name__
        raise UsageError(f"{path} must hold keys and values (data:, model:, ...), got {came}")
    return recipe_from(written, path.parent, overrides, pins or {}, source=path)


def recipe_from(
    written: Mapping[str, Any],
    folder: Path,
    overrides: Sequence[str] = (),
    pins: Mapping[str, Any] | None = None,
    source: Path | None = None,
    stored: bool = False,
) -> Recipe:
    """From plain keys and values; relative paths are from `folder`. `stored`: as a run keeps it."""
    merged = _overridden(dict(written), overrides, pins or {})
    strays = [key for key in merged if not isinstance(key, str) or key.startswith("_")]
    kept = {key: value for key, value in merged.items() if key not in strays}
    recipe = Recipe(**kept, _folder=folder, _where=str(source) if source else "recipe", _strays=strays, _stored=stored)
    recipe._source, recipe._given = source, (tuple(overrides), dict(pins or {}))
    return recipe


def _from_python(path: Path, overrides: Sequence[str], pins: Mapping[str, Any], home: Path) -> Recipe:
    module = ModuleType("flatout_recipe")
    module.__file__ = str(home)
    sys.modules[module.__name__] = module  # stays: whoever asks for the source of a class in it looks here
    before = FOLDER.set(home.parent)
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
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
        came = "nothing of that name" if "recipe" not in vars(module) else type(recipe).__name__
        raise UsageError(f"{path} must define `recipe`: a flatout.Recipe, or a function that returns one; got {came}")
    if overrides or pins:
        fields = {name: getattr(recipe, name) for name in recipe.model_fields_set}
        recipe = Recipe(**_overridden(fields, overrides, pins), _folder=home.parent, _where=str(path))
    recipe._source, recipe._folder, recipe._given = path, home.parent, (tuple(overrides), dict(pins))
    return recipe


def _parse_yaml(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Innermost first."""
    return traceback.extract_tb(error.__traceback__)[::-1]


def _overridden(written: dict[str, Any], overrides: Sequence[str], pins: Mapping[str, Any]) -> dict[str, Any]:
    """`lr=3e-4` or `data.window=64` on top of what is written, then what was pinned on the command line."""
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not all(key.strip().split(".")):
            raise UsageError(f"an override is written key=value, such as lr=3e-4; got {override!r}")
        try:
            value = _parse_yaml(text) if text else None
        except yaml.YAMLError as error:
            why = error.problem if isinstance(error, yaml.MarkedYAMLError) else error
            raise UsageError(f"the value of {override!r} is not YAML: {why}") from error
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
    if pins:
        written["settings"] = {**(written.get("settings") or {}), **pins}
    return written


def _place(written: Mapping[str, Any], path: list[str]) -> list[str]:
    """`model.hidden` means the option `hidden` of the one model that is written there: `model.mlp.hidden`."""
    if len(path) < 2 or path[0] not in SPECS:
        return path
    spec = written.get(path[0], Recipe.model_fields[path[0]].default)
    name = spec if isinstance(spec, str) else next(iter(spec)) if isinstance(spec, Mapping) and len(spec) == 1 else path[1]
    return path if path[1] == name else [path[0], name, *path[1:]]
