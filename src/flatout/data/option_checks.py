"""Checks of the options of data: each returns what was expected, or None."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from flatout.base.errors import FlatoutError
from flatout.base.option_types import LARGEST
from flatout.data.transforms import parse_transforms

Check = Callable[[Any], str | None]

GUARDS = ("id", "leak", "near_constant", "tail", "rare_label", "duplicate", "time", "group")
"""The checks of a table that `guard` switches off by name."""


def share(value: Any) -> str | None:
    return None if _is_number(value) and 0 <= value < 1 else "expected a share of the rows, from 0 to below 1"


def count(value: Any) -> str | None:
    return None if value is None or _is_whole(value, 1) else "expected a whole number, 1 or more"


def amount(value: Any) -> str | None:
    return None if _is_whole(value, 0) else "expected a whole number, 0 or more"


def seed(value: Any) -> str | None:
    fits = isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return None if fits else "expected a whole number of 64 bits"


def truth(value: Any) -> str | None:
    return None if isinstance(value, bool) else "expected true or false"


def text_value(value: Any) -> str | None:
    if isinstance(value, str) and value:
        return None
    return "expected text: in quotes, where it looks like something else" if isinstance(value, int | float) else "expected text"


def names(value: Any) -> str | None:
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        return None
    return "expected a name, or a list of names"


def strip(value: Any) -> str | None:
    return None if isinstance(value, bool | str) else "expected true, false or the characters to trim"


def end_of_text(value: Any) -> str | None:
    fits = value is None or isinstance(value, str) or _is_whole(value, 0)
    return None if fits else "expected auto, a token, its number, or null"


def classes(value: Any) -> str | None:
    fits = names(value) is None if isinstance(value, list) else count(value) is None
    return None if fits else "expected a number, or a list of names"


def choice(*known: str) -> Check:
    return lambda value: None if value in known else f"expected one of {', '.join(known)}"


def guards(value: Any) -> str | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, Mapping) and all(name in GUARDS and isinstance(on, bool) for name, on in value.items()):
        return None
    return f"expected off, or single guards such as {{leak: off}}, of {', '.join(GUARDS)}"


def normalize(value: Any) -> str | None:
    if value is None or value in ("auto", "imagenet"):
        return None
    if not isinstance(value, Mapping):
        return "expected 'auto', or a mapping with scale, mean and std"
    return _said([{"normalize": value}])


def augment(value: Any) -> str | None:
    return _said(value) if isinstance(value, list) else "expected a list, such as [flip, {crop: 4}]"


def any_value(value: Any) -> str | None:
    """Checked where it is used."""
    return None


def _is_whole(value: Any, least: int) -> bool:
    return _is_number(value) and math.isfinite(value) and value == int(value) and least <= value <= LARGEST


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _said(transforms: Any) -> str | None:
    try:
        parse_transforms(transforms)
    except FlatoutError as error:
        return str(error)
    return None
