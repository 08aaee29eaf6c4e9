"""What a shrink tries, in which order: changes of the whole model on the shared search, then with layers in float32; then
models with fewer weights, factored or trained, each with the change that was kept before and, if it is kept, with the rest."""

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
from flatout.shrinking.changes.all import TRAINED, comes_first, untrained
from flatout.shrinking.fallback import Fallback
from flatout.shrinking.goal import ShrinkGoal
from flatout.shrinking.latencies import latency_s
from flatout.shrinking.step import ShrinkStep, ShrinkSteps, named
from flatout.shrinking.trained_steps import TrainedSteps
from flatout.shrinking.trials import ShrinkAttempt, ShrinkOption, ShrinkStanding, ShrinkTrials, Tried

_FALLBACKS = 3  # looks at the held-out rows, for each change

Changes = Mapping[str, Mapping[str, Mapping[str, Any]]]


class ShrinkSearch:
    def __init__(
        self,
        trials: ShrinkTrials,
        fallback: Fallback,
        changes: Changes,
        trained: TrainedSteps,
        goal: ShrinkGoal,
        batches: Sequence[int],
        time_limit: TimeLimit,
        say: Callable[[str], None],
    ) -> None:
        """`changes`: by name and value, why each does not apply to this model, or its layers."""
        self._trials, self._fallback, self._changes, self._goal = trials, fallback, changes, goal
        self._batches, self._time_limit, self._say = tuple(batches), time_limit, say
        self._record = TrialRecord()
        self._trained = trained
        every = [ShrinkStep(name, value) for name, value in self._in_order()]
        self._steps = [step for step in every if not comes_first(step.change)]
        self._firsts = [step for step in every if comes_first(step.change)]  # without a training
        self._left: list[ShrinkSteps] = [(step,) for step in self._steps]  # candidates
        self._first: ShrinkStep | None = None  # the first step of the candidates that are tried now
        self._unproven: set[ShrinkStep] = set()  # steps of candidates that were not accurate enough
        self._fallbacks: dict[ShrinkSteps, int] = {}
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
        if self._left:
            return ShrinkOption(self._left.pop(0))
        self._end_of_first(standing)
        step = self._firsts.pop(0) if self._firsts else self._next_trained()
        if step is None:
            return None
        self._first = step
        before = tuple(one for one in standing.state if not comes_first(one.change))
        if before:
            self._left.append((step,))  # alone, if the two lose too much together
        return ShrinkOption((step, *before), self._trained.takes_s(step))

    def _next_trained(self) -> ShrinkStep | None:
        if (why := self._trials.why_no_proof()) is not None:
            self._trained.leave_all(f"no smaller model could be proven as accurate: {why}")
        return self._trained.next_step()

    def _end_of_first(self, standing: ShrinkStanding) -> None:
        """Nothing more is tried with the last first step: if that was for its accuracy, nothing that cuts more is."""
        step, self._first = self._first, None
        if step is None or step in standing.state or step not in self._unproven:
            return
        if step.change in TRAINED:
            self._trained.not_accurate(step)
            return
        for more in [one for one in self._firsts if one.change == step.change]:
            self._firsts.remove(more)
            why = f"{step.named} is not proven as accurate, and this cuts more"
            self._record.add(Entry(more.change, more.value, None, UNTRIED, why))

    def why_no_more(self, standing: ShrinkStanding) -> str:
        if self._is_met(standing):
            return f"the goal is met: {self._goal}"
        if self._left:
            return f"the {show_seconds(self._time_limit.limit_s)} of --within are over"
        return "everything that applies was tried"

    def untried(self, standing: ShrinkStanding) -> Iterator[Entry]:
        over = "interrupted" if self.is_interrupted else "no time left"
        why = "the goal was met before" if self._is_met(standing) else over
        for state in self._left:
            if state[-1] != self._first:  # it was tried with another change
                yield Entry(_name(state), state[-1].value, None, UNTRIED, why)
        yield from (Entry(step.change, step.value, None, UNTRIED, why) for step in self._firsts)
        yield from self._trained.rest(why)

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
        for name in [*first, *(one for one in self._changes if one not in first)]:
            if name in self._changes and untrained(name).only_for_size and self._goal.kind != "size":
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
        entry = entry_of(_name(option.state), value, None, attempt.result, attempt.judgement)
        entry = replace(entry, check={**(entry.check or {}), **_facts(attempt.result)})
        if attempt.judgement.kept:
            for earlier in self._record.kept:  # candidates are changes of the source, one instead of the other
                self._record.take_back(earlier, f"replaced by {named(option.state)}; {earlier.why}")
        self._record.add(entry, attempt.judgement.rejection)
        self.tried[option.state] = attempt.result
        self._say(f"  {entry.verdict}: {entry.why}")
        if attempt.judgement.rejection is Rejection.UNPROVEN:
            self._unproven.update(option.state)
            self._fall_back(option)
        elif attempt.judgement.kept and option.state[0] == self._first:
            self._left = [state for step in self._steps if (state := (option.state[0], step)) not in self.tried]

    def _fall_back(self, option: ShrinkOption) -> None:
        step, checks = option.step, self._trials.checks.get(option.state, [])
        if comes_first(step.change) or not untrained(step.change).is_by_layer:
            return
        if any(one.is_open for one in checks) or self._time_limit.is_over:
            return
        layers = self._changes[step.change][step.value]["layers"]
        key = (*option.state[:-1], replace(step, floats=()))
        self._fallbacks[key] = self._fallbacks.get(key, 0) + 1
        if len(layers) < 2 or self._fallbacks[key] > _FALLBACKS:
            return
        wider = self._fallback.next_step(option.state, layers)
        if wider is None:
            self._say("  no choice of layers in float32 is accurate enough on the tuning rows")
        else:
            self._left.insert(0, (*option.state[:-1], wider))

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


def _name(state: ShrinkSteps) -> str:
    """Of an entry, whose value is that of the last step."""
    before = [f"{step.change} {step.value}".strip() for step in state[:-1]]
    return ", ".join([*before, state[-1].change])
