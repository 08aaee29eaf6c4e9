"""The recipe's `exchange`: how often processes exchange weights, and which outer optimizer is applied.

It changes what is learned, so the user decides and no plan chooses it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeGuard

from flatout.base.errors import UsageError, did_you_mean
from flatout.base.units import split_quantity


@dataclass(frozen=True)
class Outer:
    """SGD on the global weights, as torch's. The defaults are those of DiLoCo."""

    rate: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True


AVERAGE = Outer(rate=1.0, momentum=0.0, nesterov=False)


@dataclass(frozen=True)
class Rounds:
    """An exchange every `every` steps, applied `delay` steps after it was started."""

    every: int
    outer: Outer = Outer()
    delay: int = 0


def parse_rounds(written: object) -> Rounds:
    """`50 steps`, or `{every: 50 steps, outer: {rate: 0.7, momentum: 0.9, nesterov: true}, delay: 5 steps}`.

    `outer: average` is the plain average. All mistakes are reported at once.
    """
    given = {"every": written} if isinstance(written, str) else written
    if not isinstance(given, Mapping) or "every" not in given:
        raise UsageError(f"write '50 steps', or {{every: 50 steps, outer: {{rate: 0.7}}, delay: 5 steps}}; got {written!r}")
    problems = _strays(given, Rounds, "")
    every = _read_steps("every", given["every"], 1, problems)
    delay = _read_steps("delay", given.get("delay", 0), 0, problems)
    outer = _read_outer(given.get("outer", {}), problems)
    if problems:
        raise UsageError("; ".join(problems))
    return Rounds(every, outer, delay)


def _read_steps(name: str, written: object, least: int, problems: list[str]) -> int:
    count = written
    if isinstance(written, str):
        try:
            count, unit = split_quantity(written)
        except UsageError:
            unit = ""
        count = count if unit in ("step", "steps") else None
    if not _is_number(count) or count < least or count != int(count):
        problems.append(f"{name}: expected whole steps, {least} or more, such as '50 steps', got {written!r}")
        return least
    return int(count)


def _read_outer(written: object, problems: list[str]) -> Outer:
    if written == "average":
        return AVERAGE
    if not isinstance(written, Mapping):
        problems.append(f"outer: expected average, or {{rate: 0.7, momentum: 0.9, nesterov: true}}, got {written!r}")
        return Outer()
    problems += _strays(written, Outer, "outer.")
    outer = Outer(**{one.name: _number(written[one.name]) for one in fields(Outer) if one.name in written})
    if not _is_number(outer.rate) or outer.rate <= 0:
        problems.append(f"outer.rate: expected a number above 0, got {outer.rate!r}")
    if not _is_number(outer.momentum) or not 0 <= outer.momentum < 1:
        problems.append(f"outer.momentum: expected 0 or more and less than 1, got {outer.momentum!r}")
    if not isinstance(outer.nesterov, bool):
        problems.append(f"outer.nesterov: expected true or false, got {outer.nesterov!r}")
    return outer


def _strays(given: Mapping[Any, Any], of: type, place: str) -> list[str]:
    known = [one.name for one in fields(of)]
    return [f"{place}{key}: no such key; {did_you_mean(str(key), known)}" for key in given if key not in known]


def _number(value: Any) -> Any:
    """YAML reads 7e-1 as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
