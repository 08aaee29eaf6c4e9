"""A recipe as a pod will see it: its text and other files, and references to files that would be missing there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flatout.base.errors import FlatoutError, UsageError
from flatout.fleet.saving import SaveTime, predict_save
from flatout.recipe.load import read_recipe, recipe_from, written_in
from flatout.recipe.schema import Recipe


def pack(path: Path, overrides: Sequence[str] = (), along: Sequence[Path] = ()) -> dict[str, str]:
    """File names and contents, the recipe first. Checks its keys; its data may exist only in the cluster."""
    if not path.is_file():
        raise UsageError(f"recipe not found: {path}; `flatout demo` shows a working one")
    if path.suffix not in (".yaml", ".yml", ".py"):
        raise UsageError(f"a recipe must be a .yaml or .py file, got {path.name}")
    files = {path.name: _text(path)}
    if path.suffix == ".py":
        _check_python(path, files[path.name])
    else:
        _check_yaml(path, overrides)
    for other in along:
        if not other.is_file():
            raise UsageError(f"--with: file not found: {other}")
        if other.name in files:
            raise UsageError(f"--with: two files are named {other.name}, but in a pod all files are in one folder")
        files[other.name] = _text(other)
    return files


def predicted_save(path: Path, overrides: Sequence[str] = (), cache: Path | None = None) -> SaveTime:
    """Predicted if possible here: a Python recipe would have to be run, and the data may be elsewhere."""
    if path.suffix == ".py":
        return SaveTime(None, "unknown: Python recipes are not run to find out")
    try:
        recipe = read_recipe(path, overrides)
    except FlatoutError as error:
        return SaveTime(None, f"unknown: {str(error).splitlines()[-1].strip(' -')}")
    return predict_save(recipe, cache)


def _check_python(path: Path, text: str) -> None:
    try:
        compile(text, str(path), "exec")
    except SyntaxError as error:
        raise UsageError(f"{path} is not valid Python: {error.msg} (line {error.lineno})") from error


def _check_yaml(path: Path, overrides: Sequence[str]) -> None:
    written, problems = written_in(path)
    recipe = recipe_from(written, path.parent, overrides, source=path, stored=True, problems=problems)
    if left := list(_left_behind(recipe)):
        places = "\n".join(f"  - {place}: {value}" for place, value in left)
        place, value = left[0]
        raise UsageError(
            f"{path.name} names local files, but a pod only gets the recipe:\n{places}\n"
            f"put them on a volume and give their path there: {place}=/data/{Path(value).name} --data-claim NAME"
        )


def _left_behind(recipe: Recipe) -> Iterator[tuple[str, str]]:
    for key in ("data", "init_from"):
        for place, value in _texts(getattr(recipe, key), key):
            is_kind = place == "data"  # `data: digits` is not a file name
            if not is_kind and not Path(value).is_absolute() and _is_beside(recipe.folder, value):
                yield place, value


def _texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, f"{place}.{key}")
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, place)


def _is_beside(folder: Path, value: str) -> bool:
    try:
        return (folder / value).exists() or ("*" in value and any(folder.glob(value)))
    except (OSError, ValueError, NotImplementedError):  # a query is not a path and may be too long for one
        return False


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read as text: {error}") from error
