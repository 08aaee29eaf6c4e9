"""`gate`: is a new model as good as the old one, on the same rows? Pass, fail or no verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.base.errors import DataError, UsageError
from flatout.base.units import show_bytes
from flatout.data.source import Batch
from flatout.measure.stats import Comparison, compare_paired
from flatout.packaging.package import Package
from flatout.pipelines.gate.checks import FAIL, NO_VERDICT, PASS, GateCheck, above_floor, compared, slices_of
from flatout.pipelines.gate.side import GateSide
from flatout.shrinking.metric import Costs, metrics_of
from flatout.shrinking.workshop.turns import in_turns

_TURNS, _MOST_TURNS, _TURNS_S = 24, 216, 4.0


@dataclass(frozen=True)
class GateLimits:
    """How much slower and larger the new model may be, as shares of the old one; None: as it likes."""

    slower: float | None = 0.25
    larger: float | None = 0.25
    batch: int = 1


@dataclass(frozen=True)
class CostCheck:
    """Of a call's time or of the size: the new model's over the old one's. Sizes have no interval."""

    what: str
    verdict: str
    new: float
    old: float
    ratio: float
    low: float
    high: float
    limit: float | None
    words: str


@dataclass(frozen=True)
class GateResult:
    """`notes`: what was left out, and what slices do not tell."""

    verdict: str
    checks: tuple[GateCheck, ...]
    costs: tuple[CostCheck, ...]
    notes: tuple[str, ...]
    about: Mapping[str, Any]

    @property
    def sentence(self) -> str:
        if self.verdict == PASS:
            return "; ".join(f"{one.metric} {one.words}" for one in self.checks if not one.slice)
        checks = [one for one in self.checks if one.verdict == self.verdict and (self.verdict == FAIL or not one.slice)]
        told = [f"{one.metric} of {one.slice}: {one.words}" if one.slice else f"{one.metric}: {one.words}" for one in checks]
        return "; ".join([*told, *(f"{one.what}: {one.words}" for one in self.costs if one.verdict == self.verdict)])


def gate(
    new: Package,
    data: Any,
    *,
    against: Package | None = None,
    margin: float | None = None,
    slices: Sequence[str] = (),
    floors: Mapping[str, float] | None = None,
    look: int = 1,
    limits: GateLimits | None = None,
    cache: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> GateResult:
    """`data`: labelled rows that neither model was trained on. `margin`: what may be lost at most, in points, loss or percent.
    `floors`: values that the new model has to reach by itself. `look`: this is the n-th gate on these rows."""
    _check(margin, look, floors, against)
    side = GateSide("new", new, data, cache, slices)
    metrics = metrics_of(side.objective, margin, "gate")
    unknown = sorted(set(floors or {}) - {one.name for one in metrics})
    if unknown:
        raise UsageError(
            f"--floor {unknown[0]}: a {side.objective} model is judged by {', '.join(one.name for one in metrics)}"
        )
    say("reading rows")
    rows, columns = side.read(say)
    parts, notes = slices_of(columns)
    say(f"asking the new model for {len(rows['y']):,} answers")
    costs = side.costs(rows)
    other = None if against is None else _other(side, against, data, cache, rows, say)
    among = len(floors or {}) + (len(metrics) * (1 + len(parts)) if other else 0)
    checks = [
        above_floor(metric, costs, floors[metric.name], look, among) for metric in metrics if floors and metric.name in floors
    ]
    spent: list[CostCheck] = []
    if other is not None:
        theirs, their_costs, their_rows = other
        for metric in metrics:
            checks.append(compared(metric, costs, their_costs, "", look, among))
            for name, mask in parts.items():
                picked = _picked(costs, mask), _picked(their_costs, mask)
                if metric.name != "auc" or _has_both(picked[0]):
                    checks.append(compared(metric, *picked, name, look, among))
        say("timing both models in turns")
        spent = [_speed(side, theirs, rows, their_rows, limits or GateLimits()), _size(side, theirs, limits or GateLimits())]
    verdict = _verdict(checks, spent)
    notes += _undecided(checks)
    about = {
        "new": str(new.path), "old": None if against is None else str(against.path), "rows": len(rows["y"]), "look": look,
        "comparisons": among, "objective": side.objective,
    }  # fmt: skip
    return GateResult(verdict, tuple(checks), tuple(spent), tuple(notes), about)


def _check(margin: float | None, look: int, floors: Mapping[str, float] | None, against: Package | None) -> None:
    if margin is not None and not 0 < margin < 100:
        raise UsageError(f"--margin is above 0 and below 100, got {margin:g}: no number of rows proves that nothing is lost")
    if look < 1:
        raise UsageError(f"--look counts from 1, got {look}")
    if against is None and not floors:
        raise UsageError(
            "a gate compares with an old model, --against OLD, or where there is none yet with a floor, such as "
            "--floor accuracy=0.9"
        )


def _other(
    side: GateSide, against: Package, data: Any, cache: Path | None, rows: Batch, say: Callable[[str], None]
) -> tuple[GateSide, Costs, Batch]:
    other = GateSide("old", against, data, cache)
    if other.objective != side.objective:
        raise UsageError(
            f"the new model's objective is {side.objective}, the old one's {other.objective}: they can't be compared"
        )
    if other.classes != side.classes and side.objective == "binary":
        raise UsageError(
            f"the new model's classes are {', '.join(side.classes or [])}, the old one's {', '.join(other.classes or [])}: "
            "the second one counts as positive, so their AUC can't be compared"
        )
    theirs, _ = other.read(say)
    if len(theirs["y"]) != len(rows["y"]):
        raise DataError(
            f"the new model reads {len(rows['y']):,} rows of this data and the old one {len(theirs['y']):,} (by `where` in "
            "their recipes): a gate needs the same rows for both, so filter them before"
        )
    say(f"asking the old model for {len(theirs['y']):,} answers")
    return other, other.costs(theirs), theirs


def _picked(costs: Costs, mask: Any) -> Costs:
    return {name: column[mask] for name, column in costs.items()}


def _has_both(costs: Costs) -> bool:
    truth = costs["truth"] > 0
    return bool(truth.sum() > 1 and (~truth).sum() > 1)


def _verdict(checks: Sequence[GateCheck], costs: Sequence[CostCheck]) -> str:
    """One failure fails; a slice alone that does not tell leaves the rest as it is, and is noted."""
    if FAIL in [*(one.verdict for one in checks), *(one.verdict for one in costs)]:
        return FAIL
    whole = [one.verdict for one in checks if not one.slice] + [one.verdict for one in costs]
    return NO_VERDICT if NO_VERDICT in whole else PASS


def _undecided(checks: Sequence[GateCheck]) -> list[str]:
    open_ones = [one for one in checks if one.slice and one.verdict == NO_VERDICT]
    if not open_ones:
        return []
    worst = max(open_ones, key=lambda one: one.lost)
    count = f"{len(open_ones)} comparisons" if len(open_ones) > 1 else "1 comparison"
    return [
        f"{count} of slices have too few rows for a verdict; the worst so far is {worst.slice}: {worst.metric}, {worst.words}"
    ]


def _speed(new: GateSide, old: GateSide, rows: Batch, their_rows: Batch, limits: GateLimits) -> CostCheck:
    ours, theirs = ({name: one for name, one in some.items() if name != "y"} for some in (rows, their_rows))
    turns = _TURNS
    while True:
        first, second = in_turns(new.runtime, old.runtime, ours, limits.batch, turns, _TURNS_S, theirs)
        found: Comparison = compare_paired(first.blocks_s, second.blocks_s)
        if _within(found.low, found.high, limits.slower) != NO_VERDICT or turns >= _MOST_TURNS:
            break
        turns = min(3 * turns, _MOST_TURNS)
    ours_s, theirs_s = (sum(arm.blocks_s) / len(arm.blocks_s) for arm in (first, second))
    verdict = _within(found.low, found.high, limits.slower)
    words = f"{found.ratio:.2f} [{found.low:.2f}, {found.high:.2f}] times the old one's{_at_most(limits.slower)}, n={found.n}"
    what = "seconds of a call" + (f" with {limits.batch:,} rows" if limits.batch > 1 else "")
    return CostCheck(what, verdict, ours_s, theirs_s, found.ratio, found.low, found.high, limits.slower, words)


def _size(new: GateSide, old: GateSide, limits: GateLimits) -> CostCheck:
    ratio = new.bytes / max(old.bytes, 1)
    words = f"{show_bytes(new.bytes)} instead of {show_bytes(old.bytes)}{_at_most(limits.larger)}"
    verdict = _within(ratio, ratio, limits.larger)
    return CostCheck("bytes", verdict, new.bytes, old.bytes, ratio, ratio, ratio, limits.larger, words)


def _within(low: float, high: float, more: float | None) -> str:
    if more is None or high <= 1 + more:
        return PASS
    return FAIL if low > 1 + more else NO_VERDICT


def _at_most(more: float | None) -> str:
    return "" if more is None else f"; at most {1 + more:g} times is allowed"
