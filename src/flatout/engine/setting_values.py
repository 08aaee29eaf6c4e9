"""The allowed values of a setting, from the type of its field, and the conversion of a written value to it.

`bool` is on or off, a `Literal` one of its words, `int` a whole number, `str` any text; `Annotated` restricts a number or text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, get_args, get_origin

from flatout.base.budget import Budget
from flatout.base.errors import UsageError
from flatout.base.option_types import LARGEST
from flatout.base.units import parse_bytes, parse_seconds

_ON = {"on", "true", "yes", "1"}
_OFF = {"off", "false", "no", "0"}


@dataclass(frozen=True)
class NumberRange:
    """Allowed whole numbers."""

    least: int = 0
    most: int = LARGEST


@dataclass(frozen=True)
class TextForm:
    """Allowed texts: one of `words`, or what `parse` accepts without a UsageError."""

    expected: str
    parse: Callable[[str], object]
    words: tuple[str, ...] = ()


class SettingScope(Enum):
    """What a setting affects, if it is not the computation of a step."""

    AROUND_THE_STEP = "trials of a step can't compare its values"
    PROCESSES = "how processes and threads share a run: not part of its identity"


def _interval(text: str) -> None:
    every = Budget.parse(text)
    if every.target or every.unit not in ("seconds", "steps"):
        raise UsageError(f"expected a time or steps, got {text!r}")


TIME = TextForm("a time, such as 30 s", parse_seconds)
SIZE = TextForm("auto or a size, such as 50 GB", parse_bytes, ("auto",))
INTERVAL = TextForm("auto, end, a time or steps, such as 2 min or 500 steps", _interval, ("auto", "end"))


def typed(hint: Any, written: object) -> Any:
    """The written value converted to that type, or a UsageError that says what was expected."""
    kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    text = str(written).strip().lower()
    if get_origin(kind) is Literal:
        return _one_of(get_args(kind), text, written)
    if kind is bool:
        if text not in _ON | _OFF:
            raise UsageError(f"expected on or off, got {written!r}")
        return text in _ON
    if kind is int:
        return _number(next((note for note in notes if isinstance(note, NumberRange)), NumberRange()), text, written)
    for note in notes:
        if isinstance(note, TextForm):
            _check_text(note, str(written), written)
    return str(written)


def is_of(hint: Any, scope: SettingScope) -> bool:
    return get_origin(hint) is Annotated and scope in get_args(hint)


def untyped(written: object) -> object:
    """The value of one of the recipe's own knobs: text from a command line becomes a number or a bool if it looks like one."""
    if not isinstance(written, str):
        return written
    for number in (int, float):
        try:
            return number(written)
        except ValueError:
            continue
    text = written.strip().lower()
    return text in _ON if text in _ON | _OFF else written


def _one_of(values: tuple[str, ...], text: str, written: object) -> str:
    if "on" in values and text in _ON | _OFF:  # YAML reads a bare on/off as a boolean
        return "on" if text in _ON else "off"
    if text not in values:
        raise UsageError(f"expected one of {', '.join(values)}, got {written!r}")
    return text


def _number(allowed: NumberRange, text: str, written: object) -> int:
    number = None if isinstance(written, bool) else _whole(text)
    if number is None:
        raise UsageError(f"expected a whole number, got {written!r}")
    if number < 0:
        raise UsageError(f"expected 0 or more, got {written!r}")
    if number < allowed.least:
        raise UsageError(f"expected {allowed.least:,} or more, got {number}")
    if number > allowed.most:
        raise UsageError(f"expected {allowed.most:,} or less, got {written!r}")
    return number


def _whole(text: str) -> int | None:
    """1000, 1e3 and 1000.0 are all accepted, as anywhere in a recipe."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if math.isfinite(number) and number.is_integer() else None


def _check_text(note: TextForm, text: str, written: object) -> None:
    if text in note.words:
        return
    try:
        note.parse(text)
    except UsageError:
        raise UsageError(f"expected {note.expected}, got {written!r}") from None
