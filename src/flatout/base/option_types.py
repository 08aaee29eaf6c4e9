"""Check a recipe's options against type hints: `width: 1e3` becomes 1000, `width: x` is an error."""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import lru_cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from flatout.base.errors import UsageError

LARGEST = 2**31 - 1  # for whole numbers: larger sizes overflow in torch
_LONGEST = 80


@dataclass(frozen=True)
class MakerOptions:
    """The parameters of a function or class: their names, and type hints by name."""

    names: tuple[str, ...]
    hints: Mapping[str, Any]


def options_of(maker: Callable[..., Any]) -> MakerOptions:
    return _known_options(maker) if isinstance(maker, types.FunctionType | type) else _options(maker)


def _options(maker: Callable[..., Any]) -> MakerOptions:
    of_fields = not isinstance(maker, type) or is_dataclass(maker)  # base classes may be in other modules
    return MakerOptions(tuple(inspect.signature(maker).parameters), get_type_hints(maker if of_fields else maker.__init__))


_known_options = lru_cache(256)(_options)  # a search checks the recipe of each trial


def fitted(value: Any, hint: Any) -> Any:
    """Convert `value` to the hinted type. UsageError says what was expected; unknown kinds of hints accept every value."""
    if hint is None:
        return value
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    expected = []
    for one in options:
        try:
            return _fitted(value, one)
        except UsageError as error:
            expected += [] if one is type(None) else [str(error)]
    raise UsageError(f"expected {' or '.join(expected)}, got {_shown(value)}")


def _fitted(value: Any, hint: Any) -> Any:
    origin = get_origin(hint)
    if hint is type(None):
        return _same(value, value is None, "null")
    if hint is bool:
        return _same(value, isinstance(value, bool), "true or false")
    if hint is int:
        return _whole(value)
    if hint is float:
        return _same(value, _is_number(value) and math.isfinite(value), "a finite number" if _is_number(value) else "a number")
    if hint is str:
        return _same(value, isinstance(value, str), "text")
    if origin in (tuple, list, Sequence):
        return _list(value, get_args(hint), origin)
    if origin is Mapping or origin is dict:
        return _same(value, isinstance(value, Mapping), "keys and values")
    return value


def _list(value: Any, inner: tuple[Any, ...], origin: Any) -> Any:
    several = "a list" if not inner else f"a list of {_NAMES.get(inner[0], 'values')}"
    exact = origin is tuple and Ellipsis not in inner
    if origin is tuple and not exact and _is_number(value):
        return _fitted(value, inner[0])  # one value for all
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise UsageError(several)
    if exact and len(value) != len(inner):
        raise UsageError(f"{len(inner)} values in {several}")
    try:
        made = [_fitted(item, inner[at] if exact else inner[0]) if inner else item for at, item in enumerate(value)]
    except UsageError:
        raise UsageError(several) from None
    return tuple(made) if origin is tuple else made


_NAMES = {int: "whole numbers", float: "numbers", str: "strings", bool: "true or false"}


def _whole(value: Any) -> int:
    if not _is_number(value) or not math.isfinite(value) or value != int(value):
        raise UsageError("a whole number")
    if abs(value) > LARGEST:
        raise UsageError(f"a whole number of at most {LARGEST:,}")
    return int(value)


def _same(value: Any, fits: bool, expected: str) -> Any:
    if not fits:
        raise UsageError(expected)
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
