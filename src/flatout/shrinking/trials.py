"""Runs, judges and proves candidates: speed in turns with the current one, accuracy against the source."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from flatout.base.answering_child import NoAnswer
from flatout.base.units import show_bytes, show_gain, show_seconds
from flatout.measure.judging import HARMLESS, Judgement, Rejection
from flatout.measure.row_proof import RowCheck
from flatout.measure.search import Attempt, Confirmation, NoBaseline
from flatout.measure.standing import Standing
from flatout.measure.stats import Comparison, compare_paired
from flatout.measure.time_limit import TimeLimit
from flatout.shrinking.goal import ShrinkGoal
from flatout.shrinking.latencies import latencies_of
from flatout.shrinking.metric import Costs, Metric
from flatout.shrinking.rows import JUDGING
from flatout.shrinking.step import ShrinkStep, ShrinkSteps, named
from flatout.shrinking.why import why_no_gain
from flatout.shrinking.workshop.questions import SOURCE

MARGIN = 0.02  # smaller speed-ups are not worth other answers
_SMALLER = 1.05
_TURNS, _MOST_TURNS, _FINAL_TURNS = 20, 120, 60
_TURNS_S, _FINAL_S = 4.0, 6.0
_PATIENCE_S = 600.0
_TRAINING_PATIENCE = 5.0  # times the predicted time
JUDGED_BATCH = 64
_OTHER_SIZES = (1, 7)  # an odd one has a rest in every kernel
_MOVED = 0.1  # the mean of the largest difference of a row's probabilities
_AS_FAR, _NEAR = 3.0, 1e-3  # a change's error may be so much larger in calls of other sizes

Ask = Callable[[Mapping[str, Any], float], dict[str, Any]]


@dataclass(frozen=True)
class Tried:
    """A trial. `steps_s` are seconds of a call at the first batch size; `batches` has the comparison at each."""

    name: str = SOURCE
    failure: str = ""
    why: str = ""
    first_s: float | None = None
    steps_s: tuple[float, ...] = ()
    against_s: tuple[float, ...] = ()
    peak_bytes: int | None = None
    check: Mapping[str, Any] | None = None
    took_s: float = 0.0
    bytes: int = 0
    batches: Mapping[int, Comparison] = field(default_factory=dict)


ShrinkStanding = Standing[ShrinkSteps, Tried]
ShrinkAttempt = Attempt[ShrinkSteps, Tried]


@dataclass(frozen=True)
class ShrinkOption:
    """`training_s`: about how long making it takes, if a model is trained for it."""

    state: ShrinkSteps
    training_s: float = 0.0

    @property
    def step(self) -> ShrinkStep:
        """The last one."""
        return self.state[-1]


class ShrinkTrials:
    def __init__(
        self,
        ask: Ask,
        metrics: Sequence[Metric],
        batches: Sequence[int],
        goal: ShrinkGoal,
        source_bytes: int,
        time_limit: TimeLimit,
        say: Callable[[str], None],
    ) -> None:
        self._ask, self._metrics, self._batches, self._goal = ask, tuple(metrics), tuple(batches), goal
        self._source_bytes, self._time_limit, self._say = source_bytes, time_limit, say
        self._names: dict[ShrinkSteps, str] = {(): SOURCE}
        self._costs: dict[str, Costs] = {}
        self.looks = 0  # at the judging rows
        self.checks: dict[ShrinkSteps, list[RowCheck]] = {}
        self.final: dict[int, dict[str, Any]] = {}  # of the kept candidate, by batch size
        self.source_latencies: dict[str, float | None] = {}

    # ---- how to run it ----

    def baseline(self) -> ShrinkStanding | NoBaseline:
        try:
            first = self._timed(SOURCE, SOURCE, self._batches[0], 8)[0]
            self.source_latencies = latencies_of(first)
            costs = self._costs_of(SOURCE)
        except NoAnswer as none:
            return NoBaseline(f"the source can't be measured: {none}")
        broken = [name for name, column in costs.items() if not np.isfinite(column).all()]
        if broken:
            return NoBaseline("the source's own answers are not finite on the held-out rows")
        return Standing((), Tried(SOURCE, steps_s=tuple(first["blocks_s"]), bytes=self._source_bytes))

    def source_values(self) -> dict[str, float]:
        return {metric.name: metric.of(self._costs_of(SOURCE)) for metric in self._metrics}

    def attempt(self, option: ShrinkOption, standing: ShrinkStanding) -> ShrinkAttempt:
        about = f"; its training takes about {show_seconds(option.training_s)}" if option.training_s else ""
        self._say(f"trying {named(option.state)}{about}")
        began_s, name = time.monotonic(), f"candidate-{len(self._names)}"
        try:
            question = {"ask": "make", "steps": [one.to_dict() for one in option.state], "name": name}
            made = self._ask(question, _PATIENCE_S + _TRAINING_PATIENCE * option.training_s)
            self._names[option.state] = name
            tried = Tried(name, bytes=made["bytes"], check={"notes": made["notes"]})
            if self._goal.kind == "size" and tried.bytes * _SMALLER > standing.result.bytes:
                judged = Judgement(Rejection.NO_GAIN, f"not smaller: {_sizes(tried.bytes, standing.result.bytes)}")
                return Attempt(judged, replace(tried, took_s=time.monotonic() - began_s), standing)
            tried = self._all_batches(tried, standing.result.name)
        except NoAnswer as none:
            failed = Tried(name, failure=none.kind, why=str(none), took_s=time.monotonic() - began_s)
            return Attempt(Judgement(Rejection.FAILED, f"{none.kind}: {none}"), failed, standing)
        tried = replace(tried, took_s=time.monotonic() - began_s)
        return Attempt(self._judged(tried, standing.result), tried, standing)

    def _all_batches(self, tried: Tried, against: str) -> Tried:
        found: dict[int, Comparison] = {}
        for place, batch in enumerate(self._batches):
            turns = _TURNS
            while True:
                now, was = self._timed(tried.name, against, batch, turns)
                speed = _speed(now["blocks_s"], was["blocks_s"])
                if speed.better is not None or speed.ratio < 1 or turns >= _MOST_TURNS or self._time_limit.is_over:
                    break
                turns = min(3 * turns, _MOST_TURNS)
            found[batch] = speed
            if place == 0:
                tried = replace(tried, steps_s=tuple(now["blocks_s"]), against_s=tuple(was["blocks_s"]))
        return replace(tried, batches=found)

    def _timed(self, first: str, second: str, batch: int, turns: int) -> tuple[dict[str, Any], dict[str, Any]]:
        question = {"ask": "time", "first": first, "second": second, "batch": batch, "turns": turns, "most_s": _TURNS_S}
        told = self._ask(question, _PATIENCE_S)
        return told["first"], told["second"]

    def _judged(self, tried: Tried, was: Tried) -> Judgement:
        """Faster at one batch size at least, and slower at none. With a goal of size: smaller."""
        speeds = tried.batches
        first = speeds[self._batches[0]]
        if self._goal.kind == "size":
            return Judgement(None, _sizes(tried.bytes, was.bytes), first)
        slower = {batch: one for batch, one in speeds.items() if one.better is False and one.ratio < 1 - HARMLESS}
        if slower:
            worst = min(slower, key=lambda batch: slower[batch].ratio)
            why = f"slower: {slower[worst].ratio:.2f}x{self._at(worst)}; {self._why(tried.name, worst)}"
            return Judgement(Rejection.SLOWER, why, speeds[worst])
        if not any(one.better for one in speeds.values()):
            interval = f"[{first.low:.2f}, {first.high:.2f}], n={first.n}"
            why = f"no gain above the noise: {show_gain(first.ratio)} {interval}; {self._why(tried.name, self._batches[0])}"
            return Judgement(Rejection.NO_GAIN, why, first)
        best = max(speeds, key=lambda batch: speeds[batch].ratio)
        return Judgement(None, "", first if first.better else speeds[best])

    def _at(self, batch: int) -> str:
        return f" at batch {batch}" if len(self._batches) > 1 else ""

    def _why(self, name: str, batch: int) -> str:
        try:
            both = [self._ask({"ask": "profile", "name": one, "batch": batch}, _PATIENCE_S) for one in (SOURCE, name)]
        except NoAnswer as none:
            return f"no profile: {none}"
        return why_no_gain(both[0], both[1], batch)

    # ---- how to prove it ----

    def prove(self, option: ShrinkOption, attempt: ShrinkAttempt, proven: ShrinkStanding) -> ShrinkAttempt:
        """Against the source, whatever was kept before: losses would add up."""
        try:
            if (odd := self._why_odd(attempt.result.name)) is not None:
                return attempt.rejected(Rejection.DIFFERENT, odd)
            source, costs = self._costs_of(SOURCE), self._costs_of(attempt.result.name)
        except NoAnswer as none:
            failed = replace(attempt.result, failure=none.kind, why=str(none))
            return replace(attempt.rejected(Rejection.FAILED, f"{none.kind}: {none}"), result=failed)
        self.looks += 1
        checks = [metric.check(source, costs, self.looks) for metric in self._metrics]
        self.checks[option.state] = checks
        values = {metric.name: metric.of(costs) for metric in self._metrics}
        lost = [asdict(one) | {"metric": metric.name} for metric, one in zip(self._metrics, checks, strict=True)]
        judged = {
            **(attempt.result.check or {}),
            "metrics": values,
            "checks": lost,
            "passed": all(one.passed for one in checks),
        }
        words = [f"{metric.name} {one.why}" for metric, one in zip(self._metrics, checks, strict=True)]
        result = replace(attempt.result, check={**judged, "why": "; ".join(words)})
        attempt = replace(attempt, result=result)
        wrong = [f"{metric.name} {one.why}" for metric, one in zip(self._metrics, checks, strict=True) if not one.passed]
        if wrong:
            return attempt.rejected(Rejection.UNPROVEN, "; ".join(wrong))
        why = "; ".join(part for part in (attempt.judgement.why, *words) if part)
        proof = {"passed": True, "why": "; ".join(words), "test": checks[0].test}
        return replace(attempt, judgement=replace(attempt.judgement, why=why), proof=proof)

    def _why_odd(self, name: str) -> str | None:
        """What accuracy does not show. A server calls with any number of rows up to the largest: what is proven in calls of one
        size has to hold there. And classes can be right where the probabilities mean nothing any more."""
        judged = self._judged_batch
        sizes = [one for one in sorted({*_OTHER_SIZES, *self._batches}) if one != judged]
        told = self._ask({"ask": "sizes", "name": name, "judged": judged, "sizes": sizes}, _PATIENCE_S)
        if told["moved"] > _MOVED:
            return f"its probabilities are {told['moved']:.2g} away from the source's in the mean, more than {_MOVED:g}"
        for size in sizes:
            here, there = told["sizes"][str(size)]["error"], told["sizes"][str(size)]["judged"]
            if not here <= _AS_FAR * there + _NEAR:
                return (
                    f"its answers depend on the rows in a call: in calls of {size} they are {here:.2g} away from the source's, "
                    f"in calls of {judged} {there:.2g}"
                )
        return None

    @property
    def _judged_batch(self) -> int:
        return max(JUDGED_BATCH, *self._batches)

    def why_no_proof(self) -> str | None:
        """Why the next look can't show that a candidate is as accurate, even one that answers as the source does."""
        costs = self._costs_of(SOURCE)
        checks = [metric.check(costs, costs, self.looks + 1) for metric in self._metrics]
        return next(
            (f"{metric.name} {one.why}" for metric, one in zip(self._metrics, checks, strict=True) if not one.passed), None
        )

    def _costs_of(self, name: str) -> Costs:
        if name not in self._costs:
            question = {"ask": "judge", "name": name, "which": JUDGING, "batch": self._judged_batch}
            told = self._ask(question, _PATIENCE_S)
            with np.load(told["file"]) as kept:
                self._costs[name] = {key: kept[key] for key in kept.files}
        return self._costs[name]

    # ---- all together ----

    def together(
        self, standing: ShrinkStanding, baseline: ShrinkStanding, *, may_measure: bool
    ) -> Iterator[Confirmation[Tried]]:
        """The kept candidate against the source, once more: it was chosen because it was measured as fast."""
        if not may_measure:
            return
        self._say("timing the kept change against the source")
        for turns in (_FINAL_TURNS, 2 * _FINAL_TURNS):
            try:
                confirmed = self._confirmed(standing, baseline, turns)
            except NoAnswer as none:
                yield Confirmation(standing.result, baseline.result, failure=f"it failed when it was timed again: {none}")
                return
            yield confirmed

    def _confirmed(self, standing: ShrinkStanding, baseline: ShrinkStanding, turns: int) -> Confirmation[Tried]:
        speeds: dict[int, Comparison] = {}
        now_s: tuple[float, ...] = ()
        was_s: tuple[float, ...] = ()
        for batch in self._batches:
            question = {"ask": "time", "first": standing.result.name, "second": SOURCE, "batch": batch, "turns": turns}
            told = self._ask({**question, "most_s": _FINAL_S}, _PATIENCE_S)
            speeds[batch] = _speed(told["first"]["blocks_s"], told["second"]["blocks_s"])
            pair = {"first": standing.result.name, "second": SOURCE, "batch": batch}
            joules = self._ask({"ask": "joules", **pair}, _PATIENCE_S)
            self.final[batch] = {
                "speed": speeds[batch].ratio, "low": speeds[batch].low, "high": speeds[batch].high, "n": speeds[batch].n,
                "now": latencies_of(told["first"], joules["first"]), "was": latencies_of(told["second"], joules["second"]),
            }  # fmt: skip
            if not now_s:
                now_s, was_s = tuple(told["first"]["blocks_s"]), tuple(told["second"]["blocks_s"])
        result = replace(standing.result, steps_s=now_s, against_s=was_s, batches=speeds)
        was = replace(baseline.result, steps_s=was_s)
        if self._goal.kind == "size":
            return Confirmation(result, was, Comparison(1.0, 1.0, 1.0, True, turns))
        slower = [one for one in speeds.values() if one.better is False and one.ratio < 1 - HARMLESS]
        best = max(speeds.values(), key=lambda one: one.ratio)
        first = speeds[self._batches[0]]
        return Confirmation(result, was, slower[0] if slower else first if first.better else best)

    def note_together(self, together: Confirmation[Tried], stays: bool) -> None:
        """Told by the caller, who has the record."""

    def ratio_of_sizes(self, tried: Tried) -> float:
        return self._source_bytes / tried.bytes if tried.bytes else math.nan


def _speed(now_s: Sequence[float], was_s: Sequence[float]) -> Comparison:
    return compare_paired(was_s, now_s, prefer="max", margin=MARGIN)


def _sizes(now: int, was: int) -> str:
    return f"{show_bytes(now)} instead of {show_bytes(was)}: {was / now:.2f}x smaller"
