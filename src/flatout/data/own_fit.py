"""A run goes on with its own fitted numbers, also on a machine that fits them with another last bit.

Kinds of processors add in different orders, so means and deviations of equal data may differ by rounding. The fingerprint
of the data holds these numbers: with those of the run in place of fresh ones it tells whether everything else is equal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flatout.base.errors import DataError, UsageError
from flatout.data.data import Data
from flatout.data.fitted.device import DevicePart
from flatout.data.transforms import parse_transforms

_ROUNDING = 1e-9  # relative; one other row among a million changes a mean by more


def with_fit_of(data: Data, kept: Mapping[str, Any]) -> Data:
    """The data with the fitted numbers of a run, whose data.json is `kept`. The same object, unless they differ, by rounding
    only, and everything else is equal."""
    mine, theirs = _fitted(data.describe()), _fitted(kept)
    if mine == theirs or not differs_by_rounding(mine, theirs):
        return data
    try:
        known = replace(
            data,
            prepare=DevicePart.from_json(theirs["prepare"] or []).steps,
            training=None if theirs["training"] is None else parse_transforms(theirs["training"]),
            target_scale=kept.get("target_scale") and tuple(kept["target_scale"]),
        )
    except (DataError, UsageError):  # a step of an older version, or a Python object of the user
        return data
    return known if known.fingerprint() == kept["fingerprint"] else data


def has_fit(data: Data) -> bool:
    return bool(data.prepare or data.training or data.target_scale)


def differs_by_rounding(mine: Any, theirs: Any, sizes: Sequence[float] = ()) -> bool:
    """Whether two values of JSON are equal but for rounding. `sizes`: of the numbers that describe the same column."""
    if isinstance(mine, float | int) and isinstance(theirs, float | int):
        return mine == theirs or abs(mine - theirs) <= _ROUNDING * max(abs(mine), *sizes, 0.0)
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        return mine.keys() == theirs.keys() and all(
            differs_by_rounding(value, theirs[name], _sizes(mine)) for name, value in mine.items()
        )
    if isinstance(mine, list) and isinstance(theirs, list):
        return len(mine) == len(theirs) and all(
            differs_by_rounding(one, other, sizes[place : place + 1])
            for place, (one, other) in enumerate(zip(mine, theirs, strict=True))
        )
    return bool(mine == theirs)


def _sizes(written: Mapping[str, Any]) -> list[float]:
    """For each place of the lists of numbers, the largest one: a mean near 0 is rounded on the scale of its deviation."""
    lists = [value if isinstance(value, list) else [value] for value in written.values()]
    numbers = [[abs(one) if isinstance(one, float | int) else 0.0 for one in each] for each in lists]
    longest = max(map(len, numbers), default=0)
    return [max((each[place] for each in numbers if place < len(each)), default=0.0) for place in range(longest)]


def _fitted(written: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON; the scale of the target as one column with its mean and deviation."""
    found: dict[str, Any] = json.loads(json.dumps({name: written.get(name) for name in ("prepare", "training")}))
    mean, deviation = written.get("target_scale") or (None, None)
    return {**found, "target_scale": {"mean": mean, "deviation": deviation}}
