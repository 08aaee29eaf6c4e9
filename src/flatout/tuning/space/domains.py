"""The values that a key of a space can have: a range, choices, or a mixture of single values and ranges.

`at` maps a number of [0, 1) to a value, evenly on the range's scale; `unit_of` gives back the middle of the numbers that map to
a value. Values of a range have few digits, so that what a table shows is exactly what was trained.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

BELOW_ONE = math.nextafter(1.0, 0.0)
_MIDDLE = 0.3819660113  # 16.0 and 64.0 can be whole numbers, this far between them is none
_DIGITS = 4  # of the width of a range; and of a value on a log scale
_SHARE_OF_A_RANGE = 3  # in a mixture, relative to a single value


class Domain(Protocol):
    @property
    def count(self) -> int | None:
        """The number of distinct values; None: infinitely many."""

    def at(self, unit: float) -> Any: ...

    def unit_of(self, value: Any) -> float | None:
        """None if it never has that value."""

    def probes(self) -> list[float]:
        """Numbers of [0, 1) at which a check sees every kind of value."""
        ...

    def describe(self) -> str: ...

    def written(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Range:
    low: float
    high: float
    log: bool = False
    whole: bool = False

    @property
    def count(self) -> int | None:
        return int(self.high) - int(self.low) + 1 if self.whole else None

    def at(self, unit: float) -> Any:
        unit = min(max(unit, 0.0), BELOW_ONE)
        low, high = self._scaled()
        found = math.exp(low + unit * (high - low)) if self.log else low + unit * (high - low)
        if self.whole:
            return min(max(math.floor(found + 0.5), int(self.low)), int(self.high))
        return min(max(self._rounded(found), float(self.low)), float(self.high))

    def unit_of(self, value: Any) -> float | None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            return None
        if self.whole and value != int(value):
            return None
        low, high = self._scaled()
        return min(max(((math.log(value) if self.log else value) - low) / (high - low), 0.0), BELOW_ONE)

    def probes(self) -> list[float]:
        return [0.0, _MIDDLE, BELOW_ONE]

    def describe(self) -> str:
        what = "whole numbers " if self.whole else ""
        return f"{what}{self.low:,.6g} to {self.high:,.6g}{', log scale' if self.log else ''}"

    def written(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, "log": self.log, "whole": self.whole}

    def _scaled(self) -> tuple[float, float]:
        # whole numbers have cells of one unit, so that both ends are as likely as the others
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        return (math.log(low), math.log(high)) if self.log else (low, high)

    def _rounded(self, value: float) -> float:
        if not self.log:
            return round(value, _DIGITS - math.floor(math.log10(self.high - self.low))) + 0.0  # no -0.0
        narrow = max(0, math.ceil(-math.log10(self.high / self.low - 1)))
        return float(f"{value:.{_DIGITS + narrow}g}")


@dataclass(frozen=True)
class Choices:
    values: tuple[Any, ...]

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def ordered(self) -> bool:
        """Numbers in rising or falling order: neighbours are alike."""
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values):
            return False
        return list(self.values) in (sorted(self.values), sorted(self.values, reverse=True))

    def at(self, unit: float) -> Any:
        return self.values[min(int(max(unit, 0.0) * len(self.values)), len(self.values) - 1)]

    def unit_of(self, value: Any) -> float | None:
        names = [same_as(one) for one in self.values]
        return (names.index(same_as(value)) + 0.5) / len(names) if same_as(value) in names else None

    def probes(self) -> list[float]:
        return [(place + 0.5) / len(self.values) for place in range(len(self.values))]

    def describe(self) -> str:
        return " | ".join(shown(value) for value in self.values)

    def written(self) -> dict[str, Any]:
        return {"choices": list(self.values)}


@dataclass(frozen=True)
class Mixture:
    """Single values and ranges. A range is tried three times as often as a single value."""

    parts: tuple[Range | Choices, ...]  # choices of one value each

    @property
    def count(self) -> int | None:
        counts = [part.count for part in self.parts]
        return None if None in counts else sum(count or 0 for count in counts)

    def at(self, unit: float) -> Any:
        for part, begin, end in self.shares():
            if unit < end:
                return part.at((unit - begin) / (end - begin))
        return self.parts[-1].at(BELOW_ONE)

    def unit_of(self, value: Any) -> float | None:
        for part, begin, end in self.shares():
            if (inner := part.unit_of(value)) is not None:
                return begin + inner * (end - begin)
        return None

    def probes(self) -> list[float]:
        return [begin + unit * (end - begin) for part, begin, end in self.shares() for unit in part.probes()]

    def describe(self) -> str:
        return ", or ".join(part.describe() for part in self.parts)

    def written(self) -> dict[str, Any]:
        return {"mixture": [part.values[0] if isinstance(part, Choices) else part.written() for part in self.parts]}

    def shares(self) -> list[tuple[Range | Choices, float, float]]:
        """Each part with the begin and the end of its numbers in [0, 1)."""
        weights = [_SHARE_OF_A_RANGE if isinstance(part, Range) else 1 for part in self.parts]
        ends = [sum(weights[: place + 1]) / sum(weights) for place in range(len(weights))]
        return list(zip(self.parts, [0.0, *ends[:-1]], ends, strict=True))


def shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def same_as(value: Any) -> str:
    """Equal for equal values, of a list too: 1 and 1.0 are one value, 1 and true are two."""
    return json.dumps(_plain(value), sort_keys=True, default=repr)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, Sequence) and not isinstance(value, str) else value
