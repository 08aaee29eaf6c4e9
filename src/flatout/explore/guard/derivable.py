"""Derived columns that are worth a try: a small linear model predicts held-out rows better with one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any

import numpy as np

from flatout.explore.drafting.columns import SampledColumn
from flatout.explore.guard.look import TableLook, coded, is_numeric, numbers_of

Array = np.ndarray[Any, Any]

_ROWS, _LEAST_ROWS, _BINS = 6_000, 200, 8
_LEAST_GAIN = 0.05  # of the error that the columns as they are leave, in both halves
_SHORT_LIST = 6
_MOST_NUMBERS, _MOST_SUGGESTED, _MOST_CLASSES = 8, 3, 20
_PLAIN = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"


@dataclass(frozen=True)
class ColumnSuggestion:
    """`gain` is the share of the error on held-out rows that goes away."""

    name: str
    expression: str
    gain: float


def suggest_columns(look: TableLook, inputs: Sequence[SampledColumn]) -> list[ColumnSuggestion]:
    """The best first, each measured with those before it in place."""
    rows = look.spread[:_ROWS]
    if len(rows) < _LEAST_ROWS or (look.target == "class" and look.label.distinct > _MOST_CLASSES):
        return []
    targets = _targets(look, rows)
    known = np.concatenate([np.ones((len(rows), 1)), *(_features(column, rows) for column in inputs)], 1)
    left = _left(known, targets)
    candidates = {text: (name, _shaped(values)) for name, text, values in _candidates(inputs, rows, targets)}
    found: list[ColumnSuggestion] = []
    while candidates and len(found) < _MOST_SUGGESTED:
        quick = {text: _gain(features, left) for text, (_, features) in candidates.items()}
        short = sorted(quick, key=quick.__getitem__)[-_SHORT_LIST:]
        gains = {text: _less_error(known, candidates[text][1], targets, left) for text in short}
        best = max(gains, key=gains.__getitem__)
        if gains[best] < _LEAST_GAIN:
            break
        name, features = candidates.pop(best)
        known = np.concatenate([known, features], 1)
        left = _left(known, targets)
        found.append(ColumnSuggestion(name, best, gains[best]))
    return found


def _targets(look: TableLook, rows: Array) -> Array:
    if look.target == "class":
        codes = np.unique(coded(look.label)[rows], return_inverse=True)[1].reshape(-1)
        return np.asarray(np.eye(int(codes.max()) + 1)[codes])
    numbers = np.nan_to_num(numbers_of(look.label)[rows])
    low, high = np.quantile(numbers, [0.005, 0.995])
    return np.asarray(np.clip(numbers, low, high)[:, None])


def _features(column: SampledColumn, rows: Array) -> Array:
    if is_numeric(column):
        return _shaped(numbers_of(column)[rows])
    if _is_moment(column):
        moments = _instants(column)[rows]
        return np.concatenate([_shaped(moments), _shaped(np.mod(moments, 24 * 60))], 1)
    codes = np.unique(coded(column)[rows], return_inverse=True)[1].reshape(-1)
    frequent = np.bincount(codes).argsort()[::-1][: 2 * _BINS]
    return np.asarray(codes[:, None] == frequent, dtype=np.float64)


def _shaped(numbers: Array) -> Array:
    """A number, and its intervals of equally many rows: a model of these needs no logarithm of it."""
    there = np.isfinite(numbers)
    if not there.any():
        return np.zeros((len(numbers), 1))
    low, high = np.quantile(numbers[there], [0.005, 0.995])
    filled = np.clip(np.where(there, numbers, np.median(numbers[there])), low, high)
    scaled = (filled - filled.mean()) / (filled.std() or 1.0)
    edges = np.unique(np.quantile(filled, np.arange(1, _BINS) / _BINS))
    places = np.searchsorted(edges, filled, "right")
    return np.concatenate([scaled[:, None], places[:, None] == np.arange(len(edges) + 1), ~there[:, None]], 1)


def _left(features: Array, targets: Array) -> tuple[Array, Array]:
    """What a linear model of one half leaves unexplained of the other half, for both halves."""
    half = len(features) // 2
    first, second = slice(0, half), slice(half, None)
    return _error(features, targets, second, first), _error(features, targets, first, second)


def _error(features: Array, targets: Array, learn: slice, judge: slice) -> Array:
    x = features[learn]
    weights = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ targets[learn])
    return np.asarray(targets[judge] - features[judge] @ weights)


def _less_error(known: Array, features: Array, targets: Array, left: tuple[Array, Array]) -> float:
    """The share of the error that goes away with these features; the lesser of both halves."""
    now = _left(np.concatenate([known, features], 1), targets)
    pairs = zip(now, left, strict=True)
    return min(1 - float(np.square(one).sum()) / max(float(np.square(before).sum()), 1e-300) for one, before in pairs)


def _gain(features: Array, left: tuple[Array, Array]) -> float:
    """The share of what is left that these features explain, learned on one half of it and judged by the other; the lesser."""
    half = len(left[0])
    gains = []
    first, second = features[:half], features[half:]
    for learn, judge, own, other in ((left[0], left[1], first, second), (left[1], left[0], second, first)):
        weights = np.linalg.solve(own.T @ own + np.eye(own.shape[1]), own.T @ learn)
        gains.append(1 - float(np.square(judge - other @ weights).sum()) / max(float(np.square(judge).sum()), 1e-300))
    return min(gains)


def _candidates(inputs: Sequence[SampledColumn], rows: Array, targets: Array) -> Iterator[tuple[str, str, Array]]:
    """Ratios, products and differences of numbers, and the time between two dates: name, expression, values."""
    numbers = {column.name: numbers_of(column)[rows] for column in inputs if is_numeric(column) and column.distinct > 2}
    chosen = sorted(numbers, key=lambda name: -_related(numbers[name], targets))[:_MOST_NUMBERS]
    with np.errstate(all="ignore"):
        for a, b in permutations(chosen, 2):
            yield _name(f"{a}_per_{b}"), f"{_quoted(a)} / {_quoted(b)}", numbers[a] / numbers[b]
        for a, b in combinations(chosen, 2):
            yield _name(f"{a}_times_{b}"), f"{_quoted(a)} * {_quoted(b)}", numbers[a] * numbers[b]
            yield _name(f"{a}_less_{b}"), f"{_quoted(a)} - {_quoted(b)}", numbers[a] - numbers[b]
    dates = [column for column in inputs if _is_moment(column)]
    for first, last in combinations(dates, 2):
        minutes = _instants(last)[rows] - _instants(first)[rows]
        if np.nanmean(minutes) < 0:
            first, last, minutes = last, first, -minutes
        yield _name(f"{first.name}_to_{last.name}"), f"minutes_between({_quoted(first.name)}, {_quoted(last.name)})", minutes


def _related(numbers: Array, targets: Array) -> float:
    shaped = _shaped(numbers)[:, :1]
    return float(np.abs(shaped.T @ (targets - targets.mean(0))).max())


def _is_moment(column: SampledColumn) -> bool:
    """A date; a time of day without one is a category here."""
    import pyarrow as pa

    return bool(pa.types.is_timestamp(column.values.type) or pa.types.is_date(column.values.type))


def _instants(column: SampledColumn) -> Array:
    """Minutes since 1970, NaN where missing."""
    import pyarrow as pa

    moments = column.values.cast(pa.timestamp("us"), safe=False).to_numpy(zero_copy_only=False).astype("datetime64[us]")
    return np.where(np.isnat(moments), np.nan, moments.astype(np.int64) / 60e6)


def _quoted(name: str) -> str:
    plain = set(name) <= set(_PLAIN) and not name[:1].isdigit()
    return name if plain and name not in ("and", "or", "not", "in", "is", "by", "true", "false", "null") else f"`{name}`"


def _name(text: str) -> str:
    return "".join(letter if letter in _PLAIN else "_" for letter in text)


def as_recipe(found: Sequence[ColumnSuggestion]) -> tuple[Mapping[str, str], str]:
    """The option `derive`, and what was measured."""
    said = ", ".join(f"{one.name} removes {min(one.gain, 0.99):.0%} of the error" for one in found)
    return {one.name: one.expression for one in found}, f"worth a try: on held-out rows of a small linear model {said}"
