"""Words of a command line: `1e-4..1e-1`, `log(1e-4,1e-1)`, `64|128|256`, `0,1e-5..1e-1`, and ` if KEY is VALUE` after them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from flatout.base.errors import UsageError
from flatout.base.plain_yaml import read_yaml
from flatout.tuning.space.domains import Choices, Domain, Range
from flatout.tuning.space.making import make_choices, make_mixture, make_range
from flatout.tuning.space.parameter import Parameter, condition_of

_SCALED = re.compile(r"(log|linear)\s*\((.*)\)", re.DOTALL)
_IF = re.compile(r"(.*?)\s+if\s+(.*)", re.DOTALL)
_BRACKETS = {"[": 1, "{": 1, "(": 1, "]": -1, "}": -1, ")": -1}


def parameter_of(key: str, text: str) -> Parameter | None:
    """None for a plain value: an override, and no part of the space."""
    conditioned = _IF.fullmatch(text)
    if conditioned is not None:
        found = domain_of(conditioned[1]) or make_choices([value_of(conditioned[1])], conditional=True)
        return Parameter(key, found, condition_of(conditioned[2], values_of))
    domain = domain_of(text)
    return None if domain is None else Parameter(key, domain)


def domain_of(text: str) -> Domain | None:
    text = text.strip()
    if len(choices := list(_split(text, "|"))) > 1:
        return make_choices([_choice(part, text) for part in choices])
    parts = [part.strip() for part in _split(text, ",")]
    if len(parts) == 1:
        return _range_in(text)
    if any(_range_in(part) is not None for part in parts):
        return make_mixture([_range_in(part) or Choices((value_of(part),)) for part in parts])
    return None


def values_of(text: str) -> list[Any]:
    return [_choice(part, text) for part in _split(text, "|")]


def value_of(text: str) -> Any:
    value, problems = read_yaml(text)
    if problems:
        raise UsageError("; ".join(problems))
    return value


def _choice(part: str, text: str) -> Any:
    if not part.strip():
        raise UsageError(f"a choice is missing between the bars of {text!r}; write null for no value")
    if _range_in(part) is not None:
        raise UsageError(f"a range among choices, got {text!r}: separate single values and ranges by commas: 0,1e-5..1e-1")
    return value_of(part)


def _range_in(text: str) -> Range | None:
    scaled = _SCALED.fullmatch(text.strip())
    if scaled is not None:
        ends = [_number(end) for end in scaled[2].split(",")]
        if len(ends) != 2:
            raise UsageError(f"{scaled[1]} needs a low and a high end, such as {scaled[1]}(1e-4,1e-1); got {text!r}")
        low, high = (scaled[2].split(",")[place] if end is None else end for place, end in enumerate(ends))
        # linear(0,1) is no range of two whole numbers
        return make_range(low, high, log=scaled[1] == "log", whole=False if (low, high) == (0, 1) else None)
    begin, dots, end_text = text.partition("..")
    if not dots:
        return None
    low, high = _number(begin), _number(end_text)
    if low is None and high is None:
        return None  # a path such as ../data
    return make_range(begin if low is None else low, end_text if high is None else high)


def _number(text: str) -> int | float | None:
    try:
        value, problems = read_yaml(text)
    except UsageError:
        return None
    return None if problems or isinstance(value, bool) or not isinstance(value, int | float) else value


def _split(text: str, at: str) -> Iterator[str]:
    """At a character outside of brackets and quotes."""
    depth, quote, begin = 0, "", 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == at and depth == 0:
            yield text[begin:place]
            begin = place + 1
        else:
            depth += _BRACKETS.get(letter, 0)
    yield text[begin:]
