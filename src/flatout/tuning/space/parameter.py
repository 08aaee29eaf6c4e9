"""One key of a space: its values, and the condition under which it exists."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flatout.base.errors import UsageError
from flatout.tuning.space.domains import Domain, same_as, shown

IS, IS_NOT, IN = "is", "is not", "in"
_CONDITION = re.compile(r"(?P<key>[\w.\-]+)\s+(?P<relation>is\s+not|is|in)\s+(?P<values>\S.*)", re.DOTALL)
CONDITION_FORM = "a condition is written KEY is VALUE, KEY is not VALUE or KEY in VALUE|VALUE, such as optimizer is sgd"


@dataclass(frozen=True)
class OnlyIf:
    """`optimizer is sgd`: the parameter exists only then."""

    key: str
    relation: str
    values: tuple[Any, ...]

    def holds(self, point: Mapping[str, Any]) -> bool:
        if self.key not in point:
            return False
        found = same_as(point[self.key]) in {same_as(value) for value in self.values}
        return found != (self.relation == IS_NOT)

    def written(self) -> dict[str, Any]:
        return {"key": self.key, "relation": self.relation, "values": list(self.values)}

    def describe(self) -> str:
        return f"{self.key} {self.relation} {'|'.join(shown(value) for value in self.values)}"


def condition_of(written: object, values_of: Any) -> OnlyIf:
    """From its words, or as `written` gave it. `values_of` splits `a|b` into values."""
    if isinstance(written, Mapping) and set(written) == {"key", "relation", "values"}:
        return OnlyIf(written["key"], written["relation"], tuple(written["values"]))
    found = _CONDITION.fullmatch(written.strip()) if isinstance(written, str) else None
    if found is None:
        raise UsageError(f"{CONDITION_FORM}; got {written!r}")
    relation = " ".join(found["relation"].split())
    values = tuple(values_of(found["values"]))
    if relation != IN and len(values) > 1:
        raise UsageError(f"several values need the word in: {found['key']} in {found['values']}; got {written!r}")
    return OnlyIf(found["key"], relation, values)


@dataclass(frozen=True)
class Parameter:
    key: str
    domain: Domain
    only_if: OnlyIf | None = None

    @property
    def count(self) -> int | None:
        """The number of distinct values; None: infinitely many."""
        return self.domain.count

    def at(self, unit: float) -> Any:
        """The value at a number of [0, 1)."""
        return self.domain.at(unit)

    def unit_of(self, value: Any) -> float:
        unit = self.domain.unit_of(value)
        if unit is None:
            raise UsageError(f"{self.key}: expected {self.domain.describe()}, got {value!r}")
        return unit

    def has(self, value: Any) -> bool:
        return self.domain.unit_of(value) is not None

    def describe(self) -> str:
        condition = "" if self.only_if is None else f", if {self.only_if.describe()}"
        return f"{self.key}: {self.domain.describe()}{condition}"

    def written(self) -> dict[str, Any]:
        return {**self.domain.written(), **({} if self.only_if is None else {"if": self.only_if.written()})}
