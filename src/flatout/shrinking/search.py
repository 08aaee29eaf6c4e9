"""What a shrink tries, in which order: changes of the whole model on the shared search, then with layers in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flatout.base.units import show_seconds
from flatout.measure.judging import Rejection
from flatout.measure.receipt import ALL_TOGETHER, KEPT, REJECTED, UNTRIED, Entry, Receipt
from flatout.measure.search import Confirmation, Search
from flatout.measure.standing import median_s
from flatout.measure.time_limit import TimeLimit
from flatout.measure.trial_record import TrialRecord, entry_of
from flatout.shrinking.changes.all import CHANGES
from flatout.shrinking.fallback import Fallback
from flatout.shrinking.goal import ShrinkGoal
from flatout.shrinking.step import ShrinkStep, ShrinkSteps
from flatout.shrinking.trials import ShrinkAttempt, ShrinkOption, ShrinkStanding, ShrinkTrials, Tried, latency_s

_FALLBACKS = 3  # looks at the held-out rows, for each change

Changes = Mapping[str, Mapping[str, Mapping[str, Any]]]


class ShrinkSearch:
    def __init__(
        self,
        trials: ShrinkTrials,
        fallback: Fallback,
        changes: Changes,
        goal: ShrinkGoal,
        batches: Sequence[int],
        time_limit: TimeLimit,
        say: Callable[[str], None],
    ) -> None:
        """`changes`: by name and value, why each does not apply to this model, or its layers."""
        self._trials, self._fallback, self._changes, self._goal = trials, fallback, changes, goal
        self._batches, self._time_limit, self._say = tuple(batches), time_limit, say
        self._record = TrialRecord()
        self._left = [ShrinkStep(name, value) for name, value in self._in_order()]
        self._fallbacks: dict[str, int] = {}
        self.tried: dict[ShrinkSteps, Tried] = {}
        self.kept: ShrinkSteps = ()
        self.result: Tried | None = None
        self.is_interrupted = False
        self._not_applicable()

    def run(self) -> Receipt:
        search: Search[ShrinkSteps, Tried, ShrinkOption] = Search(
            self, self._trials, self, self._record, self._time_limit, proof=self._trials, confirming=self, must_gain=True
        )
        receipt = search.run()
        if search.standing is not None:
            self.kept, self.result = search.standing.state, search.standing.result
        if not self.kept:  # the confirmation took it back
            self._record.take_all_back("not faster when it was timed again against the source")
        return replace(receipt, settings={one.change: one.to_dict() for one in self.kept}, entries=self._record.entries)

    # ---- what to try ----

    def next_option(self, standing: ShrinkStanding) -> ShrinkOption | None:
        if self._time_limit.is_over or self._is_met(standing):
            return None
        if not self._left:
            return None
        step = self._left.pop(0)
        return ShrinkOption(step, (step,))

    def why_no_more(self, standing: ShrinkStanding) -> str:
        if self._is_met(standing):
            return f"the goal is met: {self._goal}"
        if self._left:
            return f"the {show_seconds(self._time_limit.limit_s)} of --within are over"
        return "everything that applies was tried"

    def untried(self, standing: ShrinkStanding) -> Iterator[Entry]:
        over = "interrupted" if self.is_interrupted else "no time left"
        why = "the goal was met before" if self._is_met(standing) else over
        for step in self._left:
            yield Entry(step.change, step.value, None, UNTRIED, why)

    def _is_met(self, standing: ShrinkStanding) -> bool:
        """As far as this is known before the last measurement."""
        if not self._goal.is_asked or not standing.state:
            return False
        speed = standing.result.batches.get(self._batches[0])
        seconds = median_s(standing.result.steps_s) or 0.0
        tail = self._trials.source_latencies
        stretched = seconds * latency_s(tail, self._goal.percentile) / (tail["p50"] or 1.0) if tail else seconds
        size = self._trials.ratio_of_sizes(standing.result)
        return self._goal.is_met(None if speed is None else speed.ratio, size, stretched)

    def _in_order(self) -> Iterator[tuple[str, str]]:
        """What gained most on measured models comes first: fixed ranges where there are convolutions."""
        static = self._changes.get("int8_static", {}).get("", {}).get("layers", [])
        dynamic = self._changes.get("int8_dynamic", {}).get("", {}).get("layers", [])
        first = ["int8_static", "int8_dynamic"] if len(static) > len(dynamic) else ["int8_dynamic", "int8_static"]
        for name in [*first, *(one for one in CHANGES if one not in first)]:
            if CHANGES[name].only_for_size and self._goal.kind != "size":
                continue
            for value, about in self._changes.get(name, {}).items():
                if about["why_not"] is None:
                    yield name, value

    def _not_applicable(self) -> None:
        for name, values in self._changes.items():
            for value, about in values.items():
                if about["why_not"] is not None:
                    self._record.add(Entry(name, value, None, UNTRIED, str(about["why_not"])))

    # ---- what is told ----

    def note(self, option: ShrinkOption, attempt: ShrinkAttempt) -> None:
        step = option.step
        value = step.value if not step.floats else f"{step.value} with {', '.join(step.floats)} in float32".strip()
        entry = entry_of(step.change, value, None, attempt.result, attempt.judgement)
        entry = replace(entry, check={**(entry.check or {}), **_facts(attempt.result)})
        if attempt.judgement.kept:
            for earlier in self._record.kept:  # candidates are changes of the source, one instead of the other
                self._record.take_back(earlier, f"replaced by {step.named}; {earlier.why}")
        self._record.add(entry, attempt.judgement.rejection)
        self.tried[option.state] = attempt.result
        self._say(f"  {entry.verdict}: {entry.why}")
        if attempt.judgement.rejection is Rejection.UNPROVEN:
            self._fall_back(option)

    def _fall_back(self, option: ShrinkOption) -> None:
        step, checks = option.step, self._trials.checks.get(option.state, [])
        if not CHANGES[step.change].is_by_layer or any(one.is_open for one in checks) or self._time_limit.is_over:
            return
        layers = self._changes[step.change][step.value]["layers"]
        key = f"{step.change} {step.value}"
        self._fallbacks[key] = self._fallbacks.get(key, 0) + 1
        if len(layers) < 2 or self._fallbacks[key] > _FALLBACKS:
            return
        wider = self._fallback.next_step(step, layers)
        if wider is None:
            self._say("  no choice of layers in float32 is accurate enough on the tuning rows")
        else:
            self._left.insert(0, wider)

    def together(
        self, standing: ShrinkStanding, baseline: ShrinkStanding, *, may_measure: bool
    ) -> Iterator[Confirmation[Tried]]:
        return self._trials.together(standing, baseline, may_measure=may_measure)

    def note_together(self, together: Confirmation[Tried], stays: bool) -> None:
        speed = together.speed
        entry = Entry(ALL_TOGETHER, "", "the source", KEPT if stays else REJECTED, together.failure)
        if speed is not None and self._goal.kind != "size":
            why = "timed again against the source, in turns" if stays else "not faster when it was timed again"
            now_s, was_s = median_s(together.result.steps_s), median_s(together.baseline.steps_s)
            entry = replace(
                entry, why=together.failure or why, measured=speed.ratio, low=speed.low, high=speed.high, n=speed.n,
                step_s=now_s, against_s=was_s,
            )  # fmt: skip
            self._record.add(entry)

    def interrupted(self) -> None:
        self.is_interrupted = True
        self._say("interrupted: what is proven so far is kept. Press Ctrl-C again to stop.")


def _facts(tried: Tried) -> dict[str, Any]:
    speeds = {
        str(batch): {"speed": one.ratio, "low": one.low, "high": one.high, "n": one.n} for batch, one in tried.batches.items()
    }
    return {"bytes": tried.bytes, "batches": speeds}
