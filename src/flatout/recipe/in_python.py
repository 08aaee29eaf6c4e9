"""`data` of a recipe that is written in Python: objects become `Data` when the recipe is made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.base.errors import FlatoutError, UsageError
from flatout.data.data import Data
from flatout.data.files.array_files import file_format
from flatout.data.files.places import located
from flatout.data.given import as_data, batch_of, is_splits, kind_of
from flatout.data.specs import KINDS

_MAIN = ("table", "arrays", "dataset")  # kinds whose first value may be an object


def with_data(given: dict[str, Any], folder: Path) -> tuple[dict[str, Any], str]:
    """The keys of a recipe, with `Data` for objects, and with the batch size of a DataLoader if no batch is given.

    Names and mappings that a recipe file could have written stay as they are. The second value is a mistake, if there is one.
    """
    if "data" not in given:
        return given, ""
    try:
        main, options = _parts(given["data"])
        if main is None:
            return {**given, "data": _as_written(given["data"], folder)}, ""
        batch = batch_of(main)
        return {**({} if batch is None else {"batch": batch}), **given, "data": as_data(main, **options)}, ""
    except FlatoutError as error:
        return given, str(error)
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        return given, f"can't be used ({type(error).__name__}: {error}), got {type(given['data']).__name__}"


def _parts(data: Any) -> tuple[Any, dict[str, Any]]:
    """The object and the options beside it; (None, {}) if there is no object."""
    if isinstance(data, str | Path | Data):
        return None, {}
    if not isinstance(data, Mapping) or is_splits(data):
        if kind_of(data) is None:
            as_data(data)  # says what was expected
        return data, {}
    named = [name for name in _MAIN if name in data]
    if len(named) == 1 and _is_object(data[named[0]]):
        main = data[named[0]]
        if kind_of(main) != named[0]:
            raise UsageError(f"{named[0]}: got a {type(main).__name__}, which is {kind_of(main) or 'no data'}")
        return main, {name: value for name, value in data.items() if name != named[0]}
    return (data, {}) if "x" in data and not set(data) & set(KINDS) else (None, {})


def _is_object(value: Any) -> bool:
    """Whether a recipe file can't hold it."""
    if isinstance(value, Mapping):
        return any(isinstance(inner, list) or _is_object(inner) for inner in value.values())
    if isinstance(value, list | tuple):
        return any(_is_object(inner) for inner in value)
    return not (value is None or isinstance(value, str | Path | int | float))


def _as_written(data: Any, folder: Path) -> Any:
    """A path to a file of arrays needs no more than its name."""
    if not isinstance(data, str | Path):
        return data
    place = Path(located(str(data), folder)) if str(data) not in KINDS else None
    if place is not None and file_format(place) in ("npz", "safetensors"):
        return {"arrays": str(data)}
    return str(data)
