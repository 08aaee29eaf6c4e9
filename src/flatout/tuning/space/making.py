"""Makes ranges, choices and mixtures, and says what is wrong with their ends and values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flatout.base.errors import UsageError
from flatout.tuning.space.domains import Choices, Mixture, Range, same_as, shown

_LOG_FROM = 100  # two decades


def make_range(low: Any, high: Any, log: bool | None = None, whole: bool | None = None) -> Range:
    """`log` None: a log scale for two decades or more. `whole` None: if both ends are whole numbers."""
    for name, end in (("low", low), ("high", high)):
        if isinstance(end, bool) or not isinstance(end, int | float):
            raise UsageError(f"a range needs two numbers, such as 1e-4..1e-1; its {name} end is {end!r}")
        if not math.isfinite(end):
            raise UsageError(f"a range needs finite ends, its {name} end is {end}")
    if low == high:
        raise UsageError(f"the range {low}..{high} is empty: both ends are equal; give two ends, or only the value {low}")
    if low > high:
        raise UsageError(f"the range {low}..{high} is reversed: write {high}..{low}")
    if log and low <= 0:
        raise UsageError(f"a log scale needs a low end above 0, got {low}: write 0,{high / 1000:g}..{high:g} for 0 or a range")
    if whole and (low != int(low) or high != int(high)):
        raise UsageError(f"a range of whole numbers needs whole ends, got {low}..{high}")
    if whole is None:
        whole = isinstance(low, int) and isinstance(high, int)
        if whole and (low, high) == (0, 1):
            raise UsageError("0..1 has only the whole numbers 0 and 1: write 0|1 for these, 0.0..1.0 for numbers between them")
    if log is None:
        log = low > 0 and high / low >= _LOG_FROM
    return Range(int(low), int(high), log, True) if whole else Range(float(low), float(high), log, False)


def make_choices(values: Sequence[Any], conditional: bool = False) -> Choices:
    """One value alone is a choice only for a key that has a condition."""
    if not values:
        raise UsageError("expected choices, got an empty list: write at least two values")
    names = [same_as(value) for value in values]
    twice = [shown(value) for place, value in enumerate(values) if names[place] in names[:place]]
    if twice:
        raise UsageError(f"{twice[0]} is written twice among the choices {' | '.join(map(shown, values))}: remove one")
    if len(values) == 1 and not conditional:
        raise UsageError(f"one value is no choice, got {shown(values[0])}: write a second, or set it in the recipe")
    return Choices(tuple(values))


def make_mixture(parts: Sequence[Range | Choices]) -> Mixture:
    """Single values must not repeat, nor lie in a range: they would be tried twice."""
    seen: list[Range | Choices] = []
    for part in parts:
        for earlier in seen:
            if isinstance(part, Range) and isinstance(earlier, Range):
                overlap = part.low < earlier.high and earlier.low < part.high
            else:
                single, other = (part, earlier) if isinstance(part, Choices) else (earlier, part)
                overlap = isinstance(single, Choices) and other.unit_of(single.values[0]) is not None
            if overlap:
                raise UsageError(f"{earlier.describe()} and {part.describe()} overlap: leave one out, or change its ends")
        seen.append(part)
    return Mixture(tuple(seen))
