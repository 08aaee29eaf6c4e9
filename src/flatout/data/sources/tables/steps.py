"""The steps of a column, as a recipe writes them: `[log, standardise]`, `{fill: median, clip: 0.01}`, `[{hash: 1000}]`.

A list names all steps of a column; a mapping changes some of the default steps. Steps of numbers always run in one order (fill,
clip, log, then standardise or quantile_buckets): a list in another order is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flatout.base.errors import UsageError, did_you_mean
from flatout.base.specs import Spec
from flatout.data.fitted.dates import PARTS

NUMBER_STEPS = ("fill", "clip", "log", "standardise", "quantile_buckets")
CATEGORY_STEPS = ("min_count", "onehot", "hash", "target_encode")
DATE_STEPS = ("date",)
MOST_BUCKETS = 256
_FILLS = ("mean", "median", "zero")


@dataclass(frozen=True)
class NumberSteps:
    """`clip` has a lower and an upper limit (None: no limit): numbers, or with `clip_quantiles` shares of the rows."""

    fill: str | float = "mean"
    clip: tuple[float | None, float | None] = (None, None)
    clip_quantiles: bool = False
    log: bool = False
    standardise: bool = True
    buckets: int | None = None
    bucket_ranks: bool = False


@dataclass(frozen=True)
class TargetSteps:
    """A category becomes the mean of the target over its rows. `smoothing` rows with the overall mean are added to each."""

    smoothing: float = 20.0
    folds: int = 5


@dataclass(frozen=True)
class CategorySteps:
    """Values that occur fewer than `min_count` times are unknown. Up to `onehot` categories are one-hot, more are embedded."""

    min_count: int = 2
    onehot: int = 32
    hash: int | None = None
    target: TargetSteps | None = None


@dataclass(frozen=True)
class DateSteps:
    """`format` is a strptime format for dates in text; None: ISO 8601."""

    parts: tuple[str, ...] = PARTS
    cycles: bool = True
    format: str | None = None


@dataclass(frozen=True)
class ColumnSteps:
    """The steps of one column; its kind decides which of the three apply. `named` are the steps that the user wrote."""

    number: NumberSteps = field(default_factory=NumberSteps)
    category: CategorySteps = field(default_factory=CategorySteps)
    date: DateSteps = field(default_factory=DateSteps)
    named: tuple[str, ...] = ()


@dataclass(frozen=True)
class ColumnPlan:
    """One input column: its kind ("number", "category" or "date"), its steps, and its Arrow type."""

    name: str
    kind: str
    steps: ColumnSteps
    type: Any


def parse_steps(written: Mapping[str, Any] | None, usual: ColumnSteps) -> dict[str, ColumnSteps]:
    """Column -> its steps, for the columns that `written` names."""
    if written is None:
        return {}
    if not isinstance(written, Mapping):
        raise UsageError(f"steps is a mapping of columns to steps, such as {{fare: [log, standardise]}}, got {written!r}")
    return {str(column): _column_steps(str(column), given, usual) for column, given in written.items()}


def _column_steps(column: str, written: Any, usual: ColumnSteps) -> ColumnSteps:
    try:
        if isinstance(written, Mapping):
            specs = [Spec.parse({name: given}) for name, given in written.items()]
        else:
            items = written if isinstance(written, Sequence) and not isinstance(written, str) else [written]
            specs = [Spec.parse(item) for item in items]
            usual = replace(usual, number=replace(usual.number, standardise=False))
        _check_names([spec.name for spec in specs], in_order=not isinstance(written, Mapping))
        steps = replace(usual, named=tuple(spec.name for spec in specs))
        for spec in specs:
            steps = _READERS[spec.name](steps, spec)
        return steps
    except UsageError as error:
        raise UsageError(f"steps of {column!r}: {error}") from error


def _check_names(names: Sequence[str], in_order: bool) -> None:
    for name in names:
        if name not in _READERS:
            raise UsageError(f"unknown step {name!r}; {did_you_mean(name, _READERS)}")
        if names.count(name) > 1:
            raise UsageError(f"{name!r} is given twice")
    kinds = [kind for kind in (NUMBER_STEPS, CATEGORY_STEPS, DATE_STEPS) if any(name in kind for name in names)]
    if len(kinds) > 1:
        one, other = (next(name for name in names if name in kind) for kind in kinds[:2])
        raise UsageError(f"{one!r} and {other!r} are for different kinds of columns: a column has one kind")
    if "standardise" in names and "quantile_buckets" in names and in_order:
        raise UsageError("'standardise' and 'quantile_buckets' can't be combined: buckets have no scale")
    places = [NUMBER_STEPS.index(name) for name in names if name in NUMBER_STEPS]
    if in_order and places != sorted(places):
        order = ", ".join(name for name in NUMBER_STEPS if name in names)
        raise UsageError(f"got the order {', '.join(names)}; these steps always run as {order}: write them in this order")


def _fill(steps: ColumnSteps, spec: Spec) -> ColumnSteps:
    how = spec.value
    if how not in _FILLS and not _is_number(how):
        raise UsageError(f"fill is mean, median, zero or a number, got {how!r}")
    return _number(steps, fill=how if isinstance(how, str) else float(how))


def _clip(steps: ColumnSteps, spec: Spec) -> ColumnSteps:
    if spec.options:
        if set(spec.options) != {"quantiles"}:
            raise UsageError(f"clip: expected {{quantiles: [0.01, 0.99]}}, got {dict(spec.options)!r}")
        low, high = _pair(spec.options["quantiles"], "clip: quantiles")
        if not 0 <= (0 if low is None else low) < (1 if high is None else high) <= 1:
            raise UsageError(f"clip: quantiles are shares from 0 to 1, the lower first, got {spec.options['quantiles']!r}")
        return _number(steps, clip=(low, high), clip_quantiles=True)
    if _is_number(spec.value):
        if not 0 < spec.value < 0.5:
            raise UsageError(
                f"clip: one number is the share to clip at both ends, 0 to 0.5, got {spec.value!r}; or [low, high]"
            )
        return _number(steps, clip=(float(spec.value), 1 - float(spec.value)), clip_quantiles=True)
    low, high = _pair(spec.value, "clip")
    if low is not None and high is not None and low >= high:
        raise UsageError(f"clip: the lower limit comes first, got {spec.value!r}")
    return _number(steps, clip=(low, high), clip_quantiles=False)


def _log(steps: ColumnSteps, spec: Spec) -> ColumnSteps:
    return _number(steps, log=_switch(spec))


def _standardise(steps: ColumnSteps, spec: Spec) -> ColumnSteps:
    return _number(steps, standardise=_switch(spec))


def _quantile_buckets(steps: ColumnSteps, spec: Spec) -> ColumnSteps:
    options = _options(spec, {"count": 10, "as": "onehot"})
    count = _whole(options["count"], "quantile_buckets", 2, MOST_BUCKETS)
    if options["as"] not in ("onehot", "rank"):
        raise UsageError(f"quantile_buckets: 'as' is onehot or rank, got {options['as']!r}")
    return _number(steps, buckets=count, bucket_ranks=options["as"] == "rank", standardise=False)


def _min_count(steps: ColumnSteps, spec: Spec) -> ColumnSteps:
    return _category(steps, min_count=_whole(spec.value, "min_count", 1))


def _onehot(steps: ColumnSteps, spec: Spec) -> ColumnSteps:
    return _category(steps, onehot=_whole(spec.value, "onehot", 0))


def _hash(steps: ColumnSteps, spec: Spec) -> ColumnSteps:
    return _category(steps, hash=_whole(spec.value, "hash", 1, (1 << 31) - 2))


def _target_encode(steps: ColumnSteps, spec: Spec) -> ColumnSteps:
    options = _options(spec, {"smoothing": 20.0, "folds": 5})
    if not _is_number(options["smoothing"]) or options["smoothing"] < 0:
        raise UsageError(f"target_encode: smoothing is a number of rows, 0 or more, got {options['smoothing']!r}")
    folds = _whole(options["folds"], "target_encode: folds", 2, 100)
    return _category(steps, target=TargetSteps(float(options["smoothing"]), folds))


def _date(steps: ColumnSteps, spec: Spec) -> ColumnSteps:
    options = _options(spec, {"parts": list(PARTS), "cycles": True, "format": None})
    parts = [options["parts"]] if isinstance(options["parts"], str) else list(options["parts"])
    for part in parts:
        if part not in PARTS:
            raise UsageError(f"date: unknown part {part!r}; {did_you_mean(str(part), PARTS)}")
    if not isinstance(options["cycles"], bool):
        raise UsageError(f"date: cycles is true or false, got {options['cycles']!r}")
    kept = tuple(part for part in PARTS if part in parts)
    return replace(steps, date=DateSteps(kept, options["cycles"], options["format"]))


_READERS = {
    "fill": _fill, "clip": _clip, "log": _log, "standardise": _standardise, "quantile_buckets": _quantile_buckets,
    "min_count": _min_count, "onehot": _onehot, "hash": _hash, "target_encode": _target_encode, "date": _date,
}  # fmt: skip


def _number(steps: ColumnSteps, **changes: Any) -> ColumnSteps:
    return replace(steps, number=replace(steps.number, **changes))


def _category(steps: ColumnSteps, **changes: Any) -> ColumnSteps:
    return replace(steps, category=replace(steps.category, **changes))


def _options(spec: Spec, usual: dict[str, Any]) -> dict[str, Any]:
    """The given options over the defaults; a single value is the first option."""
    for name in spec.options:
        if name not in usual:
            raise UsageError(f"{spec.name} has no option {name!r}; {did_you_mean(name, usual)}")
    lone = {} if spec.value is None or spec.value is True else {next(iter(usual)): spec.value}
    return {**usual, **lone, **spec.options}


def _switch(spec: Spec) -> bool:
    if spec.options or spec.value not in (None, True, False):
        raise UsageError(f"{spec.name} is true or false, got {spec.value if spec.value is not None else dict(spec.options)!r}")
    return spec.value is not False


def _pair(given: Any, what: str) -> tuple[float | None, float | None]:
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise UsageError(f"{what} is a pair [low, high], got {given!r}")
    pair = list(given)
    if len(pair) != 2 or not all(limit is None or _is_number(limit) for limit in pair) or pair == [None, None]:
        raise UsageError(f"{what} is a pair [low, high] of numbers, got {given!r}")
    low, high = (None if limit is None else float(limit) for limit in pair)
    return low, high


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value and abs(value) != float("inf")


def _whole(value: Any, what: str, least: int, most: int | None = None) -> int:
    if not _is_number(value) or value != int(value) or value < least or (most is not None and value > most):
        span = f"{least} or more" if most is None else f"{least} to {most}"
        raise UsageError(f"{what} is a whole number, {span}, got {value!r}")
    return int(value)
