"""The verdict on a canary from counts of both versions: promote, roll back, or not enough evidence yet.

Every figure is compared by e-values (`measure.anytime.two_arms`), so looking after every batch costs nothing. Roll back: the
mean of the e-values of all figures against "no figure is more than allowed worse" has reached 1 / roll_back_error. Promote: for
every figure, the e-value against "it is bad" has reached 1 / promote_error.

A latency quantile is compared without estimating it for the canary: with x, the quantile of the stable version's earlier
requests, a version that is at most f times slower exceeds f * x at most as often as the stable version exceeds x.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from flatout.measure.anytime.power import RequestsNeeded, needed
from flatout.measure.anytime.rates import share_interval
from flatout.measure.anytime.two_arms import ArmCounts, ShareNull, TwoArmTest, log_mean
from flatout.serving.canary import tally
from flatout.serving.canary.limits import CanaryLimits
from flatout.serving.canary.tally import Array

QUANTILES = (0.5, 0.9, 0.99)
_FEW_CANARY = 8  # requests: below, a look waits for more
_FEW_STABLE = 200  # earlier requests, from which a quantile is known well enough
_FEW_BEYOND = 10  # latencies beyond a quantile, from which it can be said how many a verdict takes
_MOST_STEPS = 8 * tally.STEPS


class JudgedFigure(StrEnum):
    ERRORS = "errors"
    LATENCY = "latency"
    PREDICTIONS = "predictions"
    WRONG = "wrong answers"
    MISSES = "sizes of errors"


@dataclass(frozen=True)
class _Test:
    """One null. `stage` is None for the tests that roll back. `place` is a class, `quantile` one of the stable version."""

    figure: JudgedFigure
    null: ShareNull
    weight: float
    stage: int | None = None
    place: int = 0
    quantile: float = 0.0
    steps: int = 0  # by how many the canary may be slower, or
    slack_s: float = 0.0  # by how many seconds, whichever is more

    @property
    def name(self) -> str:
        return f"{self.figure} p{100 * self.quantile:g}" if self.quantile else str(self.figure)


class CanaryJudge:
    """`values`: the names of what predictions are counted by; without any they are not compared. `shape` is for simulations:
    that of many experiments at once."""

    def __init__(
        self, limits: CanaryLimits, values: Sequence[str] = (), numeric: bool = False, shape: tuple[int, ...] = ()
    ) -> None:
        self.limits, self._values = limits, values
        self._tests = [*_tests(limits, len(values), numeric)]
        nulls = [one.null for one in self._tests]
        null = ShareNull(*(np.array([vars(one)[name] for one in nulls]) for name in ("ratio", "points", "above")))
        self._evidence = TwoArmTest(null, (*shape, len(nulls)))
        self._worse = np.array([one.stage is None for one in self._tests])
        self._weights = np.array([one.weight for one in self._tests])
        self._pending = [tally.empty(shape), tally.empty(shape)]
        self._seen = [tally.empty(shape), tally.empty(shape)]
        self.highest = np.zeros(shape)  # of the evidence to roll back

    # ---- looking ----

    def look(self, stable: Array, canary: Array) -> None:
        """What was counted since the last look."""
        self._pending = [self._pending[0] + stable, self._pending[1] + canary]
        enough = self._pending[1][..., tally.REQUESTS] >= _FEW_CANARY
        labelled = self._pending[1][..., tally.LABELLED] >= _FEW_CANARY
        taken = []
        for place, pending in enumerate(self._pending):
            part = np.zeros_like(pending)
            part[..., : tally.LABELLED] = pending[..., : tally.LABELLED] * enough[..., None]
            part[..., tally.LABELLED :] = pending[..., tally.LABELLED :] * labelled[..., None]
            self._pending[place] = pending - part
            taken.append(part)
        if not taken[1].any():
            return
        self._evidence.look(self._counts(*taken))
        self._seen = [before + part for before, part in zip(self._seen, taken, strict=True)]
        self.highest = np.maximum(self.highest, self._log_e_worse())

    def _counts(self, stable: Array, canary: Array) -> ArmCounts:
        found = [self._counts_of(one, stable, canary) for one in self._tests]
        return ArmCounts(*(np.stack(some, axis=-1) for some in zip(*found, strict=True)))

    def _counts_of(self, test: _Test, stable: Array, canary: Array) -> tuple[Array, Array, Array, Array]:
        arms = (stable, canary)
        match test.figure:
            case JudgedFigure.ERRORS:
                found = [(arm[..., tally.REQUESTS], arm[..., tally.FAILED]) for arm in arms]
            case JudgedFigure.WRONG:
                found = [(arm[..., tally.LABELLED], arm[..., tally.WRONG]) for arm in arms]
            case JudgedFigure.PREDICTIONS:
                found = [(arm[..., tally.PREDICTED].sum(-1), arm[..., tally.PREDICTED][..., test.place]) for arm in arms]
            case JudgedFigure.LATENCY | JudgedFigure.MISSES:
                where = tally.SLOW if test.figure is JudgedFigure.LATENCY else tally.MISSES
                earlier = self._seen[0][..., where]
                known = earlier.sum(-1) >= _FEW_STABLE
                place = quantile_step(earlier, test.quantile)
                found = []
                for arm, above in zip(arms, (place, tally.step_after(place, test.steps, test.slack_s)), strict=True):
                    some = arm[..., where]
                    found.append((some.sum(-1) * known, slower(some, above) * known))
        return found[0][0], found[0][1], found[1][0], found[1][1]

    # ---- what is known ----

    @property
    def log_e(self) -> Array:
        """Of every test."""
        return self._evidence.log_e

    def _log_e_worse(self) -> Array:
        return log_mean(self.log_e[..., self._worse], self._weights[self._worse])

    def rolls_back(self) -> Array:
        return self.highest >= math.log(1 / self.limits.roll_back_error)

    def passes(self, stage: int) -> Array:
        """Whether everything that this stage rules out is ruled out."""
        threshold = math.log(1 / self.limits.promote_error)
        needs = np.array([one.stage == stage and (one.weight > 0 or self.limits.needs_labels) for one in self._tests])
        return np.asarray((self._evidence.highest[..., needs] >= threshold).all(-1))

    def worst(self) -> str:
        """What is wrong, by the figure with the most evidence against it."""
        shares = np.where(self._worse, self.log_e + np.log(np.maximum(self._weights, 1e-300)), -np.inf)
        test = self._tests[int(shares.argmax())]
        match test.figure:
            case JudgedFigure.PREDICTIONS:
                return f"predictions of {self._values[test.place]} have moved by more than allowed"
            case JudgedFigure.LATENCY:
                return f"{test.name} is worse than allowed"
        return f"{test.name} are worse than allowed"

    def missing(self, stage: int) -> list[str]:
        """The figures for which this stage has not enough evidence yet."""
        threshold = math.log(1 / self.limits.promote_error)
        reached = self._evidence.highest >= threshold
        names = [one.name for one, is_there in zip(self._tests, reached, strict=True)
                 if one.stage == stage and not is_there and (one.weight > 0 or self.limits.needs_labels)]  # fmt: skip
        return list(dict.fromkeys(names))

    def needs(self, stage: int, power: float = 0.97) -> dict[str, dict[str, RequestsNeeded]]:
        """Requests of the canary: until a bad version is rolled back (`caught`), and until one that equals the stable version
        passes (`passed`), by figure. From the stable version's requests so far; a figure without any is left out."""
        found: dict[str, dict[str, RequestsNeeded]] = {}
        share, total = self.limits.stages[stage], self._weights[self._worse].sum()
        seen = [before + pending for before, pending in zip(self._seen, self._pending, strict=True)]
        for one in self._tests:
            rates = _rates(one, seen[0], self.limits)
            if rates is None or one.stage not in (None, stage) or one.figure is JudgedFigure.PREDICTIONS:
                continue
            threshold = math.log(1 / self.limits.promote_error)
            if one.stage is None:
                threshold = math.log(total / one.weight / self.limits.roll_back_error)
            word = "caught" if one.stage is None else "passed"
            counted = _latencies_a_request(seen) if one.figure is JudgedFigure.LATENCY else (1.0, 1.0)
            found.setdefault(one.name, {})[word] = needed(one.null, *rates, share, threshold, power, counted)
        return found

    def figures(self) -> list[dict[str, Any]]:
        """Both versions' figures, with intervals that hold at all times, for pages and receipts."""
        stable, canary = (seen + pending for seen, pending in zip(self._seen, self._pending, strict=True))
        rows = [_share_row(JudgedFigure.ERRORS, stable, canary, tally.REQUESTS, tally.FAILED)]
        if canary[tally.LABELLED]:
            rows.append(_share_row(JudgedFigure.WRONG, stable, canary, tally.LABELLED, tally.WRONG))
        for quantile in QUANTILES:
            values = [_quantile_s(arm[tally.SLOW], quantile) for arm in (stable, canary)]
            rows.append({"figure": f"{JudgedFigure.LATENCY} p{100 * quantile:g}", "stable": values[0], "canary": values[1],
                         "canary_n": int(canary[tally.SLOW].sum())})  # fmt: skip
        return [*rows, *self._moved(stable, canary)]

    def _moved(self, stable: Array, canary: Array) -> Iterator[dict[str, Any]]:
        """The prediction whose share has moved most."""
        counts = [arm[tally.PREDICTED][: len(self._values)] for arm in (stable, canary)]
        totals = [int(one.sum()) for one in counts]
        if all(totals):
            place = int(np.abs(counts[0] / totals[0] - counts[1] / totals[1]).argmax())
            hits = [int(one[place]) for one in counts]
            yield _row(f"{JudgedFigure.PREDICTIONS} of {self._values[place]}", hits, totals)

    # ---- on disk ----

    def to_json(self) -> dict[str, Any]:
        return {
            "evidence": self._evidence.to_json(),
            "pending": [one.tolist() for one in self._pending],
            "seen": [one.tolist() for one in self._seen],
            "highest": float(self.highest),
        }

    def restore(self, written: Mapping[str, Any]) -> None:
        self._evidence.restore(written["evidence"])
        self._pending = [np.array(one, np.int64) for one in written["pending"]]
        self._seen = [np.array(one, np.int64) for one in written["seen"]]
        self.highest = np.array(written["highest"])


def quantile_step(counts: Array, quantile: float) -> Array:
    """The step up to which this share of the counts lies."""
    reached = np.cumsum(counts, axis=-1)
    return np.asarray((reached < quantile * reached[..., -1:]).sum(-1))


def slower(counts: Array, step: Array) -> Array:
    """How many lie above this step."""
    places = np.arange(counts.shape[-1])
    return np.asarray((counts * (places > np.asarray(step)[..., None])).sum(-1))


def _tests(limits: CanaryLimits, classes: int, numeric: bool) -> list[_Test]:
    made = []
    roles: list[tuple[int | None, float]] = [(None, 0.0), *enumerate(limits.times_bad)]
    for stage, times in roles:
        is_worse = stage is None

        def null(allowed: float, bad: float, is_worse: bool = is_worse, times: float = times) -> ShareNull:
            return ShareNull(1.0, allowed if is_worse else min(0.9, times * bad), not is_worse)

        def steps(allowed: float, bad: float, is_worse: bool = is_worse, times: float = times) -> int:
            return min(_MOST_STEPS, tally.steps_of_factor(allowed if is_worse else bad**times))

        made.append(_Test(JudgedFigure.ERRORS, null(limits.errors_allowed, limits.errors_bad), 1.0, stage))
        slow, how_slow = ShareNull(above=not is_worse), steps(limits.latency_allowed, limits.latency_bad)
        slack_s = limits.latency_slack_s if is_worse else limits.latency_slack_bad_s
        made += [_Test(JudgedFigure.LATENCY, slow, 1 / len(QUANTILES), stage, 0, q, how_slow, slack_s) for q in QUANTILES]
        labels = 1.0 if is_worse or limits.needs_labels else 0.0
        if numeric:
            made += [_Test(JudgedFigure.MISSES, slow, labels / 2, stage, quantile=q, steps=how_slow) for q in QUANTILES[:2]]
        else:
            made.append(_Test(JudgedFigure.WRONG, null(limits.wrong_allowed, limits.wrong_bad), labels, stage))
        if is_worse:
            allowed, each = limits.shift_allowed, 1 / max(1, 2 * classes)
            for place in range(classes):
                made.append(_Test(JudgedFigure.PREDICTIONS, ShareNull(1.0, allowed), each, None, place))
                made.append(_Test(JudgedFigure.PREDICTIONS, ShareNull(1.0, -allowed, True), each, None, place))
    return made


def _rates(test: _Test, stable: Array, limits: CanaryLimits) -> tuple[float, float] | None:
    """Of the hits of a test, in the stable version and in a canary that is bad (roll back) or equal (promote)."""
    if test.figure in (JudgedFigure.ERRORS, JudgedFigure.WRONG):
        n, hits = (tally.REQUESTS, tally.FAILED) if test.figure is JudgedFigure.ERRORS else (tally.LABELLED, tally.WRONG)
        if not stable[n]:
            return None
        rate = float(stable[hits] + 0.5) / float(stable[n] + 1)
        bad = limits.errors_bad if test.figure is JudgedFigure.ERRORS else limits.wrong_bad
        return rate, min(1.0, rate + bad) if test.stage is None else rate
    counts = stable[tally.SLOW if test.figure is JudgedFigure.LATENCY else tally.MISSES]
    if counts.sum() * (1 - test.quantile) < _FEW_BEYOND:
        return None
    place, total = quantile_step(counts, test.quantile), float(counts.sum())
    rate = float(slower(counts, place)) / total
    above = int(tally.step_after(place, test.steps, test.slack_s))
    if test.stage is not None:
        return rate, float(slower(counts, np.asarray(above))) / total
    slack_s = limits.latency_slack_bad_s if test.slack_s else 0.0
    worse = tally.step_after(place, tally.steps_of_factor(limits.latency_bad), slack_s)
    return rate, _slower_tail(counts / total, test.quantile, 2 ** (float(worse - place) / tally.STEPS), above)


def _latencies_a_request(seen: Sequence[Array]) -> tuple[float, float]:
    """One of each batch counts. A canary that has answered little is taken to have no batches."""
    found = [float(arm[tally.SLOW].sum()) / max(1.0, float(arm[tally.REQUESTS])) for arm in seen]
    return found[0], found[1] if seen[1][tally.SLOW].sum() >= _FEW_CANARY else 1.0


def _slower_tail(shares: Array, quantile: float, factor: float, step: int) -> float:
    """How many requests of a version lie above a step whose quantile is slower by a factor, and of which only the slowest part,
    ten times as many as are beyond the quantile, is slower at all: one that is slower altogether is seen sooner."""
    reached = np.cumsum(shares) - shares / 2  # by the middle of each step
    begin = max(0.0, 1 - 10 * (1 - quantile))
    stretch = np.interp(reached, [begin, quantile], [1.0, factor])
    moved = np.arange(len(shares)) + tally.STEPS * np.log2(stretch)
    return float((shares * np.clip(moved - step, 0.0, 1.0)).sum())


def _share_row(figure: JudgedFigure, stable: Array, canary: Array, n: int, hits: int) -> dict[str, Any]:
    return _row(str(figure), [int(arm[hits]) for arm in (stable, canary)], [int(arm[n]) for arm in (stable, canary)])


def _row(figure: str, hits: Sequence[int], totals: Sequence[int]) -> dict[str, Any]:
    row: dict[str, Any] = {"figure": figure}
    for name, hit, count in zip(("stable", "canary"), hits, totals, strict=True):
        row |= {name: hit / count if count else None, f"{name}_n": count, f"{name}_interval": share_interval(hit, count)}
    return row


def _quantile_s(counts: Array, quantile: float) -> float | None:
    return tally.step_end_s(int(quantile_step(counts, quantile))) if counts.sum() else None
