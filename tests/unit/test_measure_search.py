"""The shared search, with a minimal client: a set of optional pieces."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from flatout.measure.judging import ComparedTimes, Judgement, Rejection, judge, speed_up, times_of
from flatout.measure.loss_proof import LossVerdict, compare_losses, with_more_steps
from flatout.measure.receipt import KEPT, REJECTED, UNTRIED, Entry, Receipt
from flatout.measure.recording import Answers
from flatout.measure.search import Attempt, Confirmation, NoBaseline, Search
from flatout.measure.standing import Standing
from flatout.measure.taking_back import TakingBack
from flatout.measure.time_limit import TimeLimit
from flatout.measure.trial_record import TrialRecord, entry_of

NOISE = (0.0, 0.004, -0.003, 0.002, -0.002, 0.001, -0.001, 0.003)
FINE = {"passed": True, "why": "agrees"}
State = frozenset[str]


@dataclass(frozen=True)
class Trial:
    steps_s: tuple[float, ...] = ()
    failure: str = ""
    why: str = ""
    check: Mapping[str, Any] | None = None
    against_s: tuple[float, ...] = ()
    first_s: float | None = None
    peak_bytes: int | None = None
    took_s: float = 0.0


@dataclass(frozen=True)
class Piece:
    name: str
    state: State


class Pieces:
    """Tries one piece after another. `gains`: speed-up of each. `worse`: by how much a state's losses are worse."""

    def __init__(self, gains: dict[str, float], **planted: Any) -> None:
        self.gains, self.planted, self.asked = gains, planted, list[State]()
        self.worse: Callable[[State], float] = planted.get("worse", lambda state: 0.0)
        self.record, self.lines = TrialRecord(), list[str]()
        self._left = list(gains)

    def trial(self, state: State) -> Trial:
        self.asked.append(state)
        if self.planted.get("ctrl_c") == len(self.asked):
            raise KeyboardInterrupt
        if not state and "no_baseline" in self.planted:
            return Trial(failure="crashed")
        if broken := state & self.planted.get("broken", frozenset()):
            return Trial(failure="crashed", why=f"without {min(broken)}")
        wrong = {"passed": False, "why": "other gradients"}
        step_s = self.planted.get("times", self._step_s)(state)
        check = wrong if state & self.planted.get("wrong", frozenset()) else FINE
        return Trial(tuple(step_s * (1 + noise) for noise in NOISE), check=check)

    def _step_s(self, state: State) -> float:
        return 0.01 / math.prod(self.gains[name] for name in state)

    def baseline(self) -> Standing[State, Trial] | NoBaseline:
        found = self.trial(frozenset())
        return NoBaseline(f"no baseline: {found.failure}") if found.failure else Standing(frozenset(), found)

    def attempt(self, option: Piece, standing: Standing[State, Trial]) -> Attempt[State, Trial]:
        found = self.trial(option.state)
        unless_slower = option.name in self.planted.get("needs", {})
        judgement = judge(found, times_of(found, standing.result), margin=0.01, unless_slower=unless_slower)
        return Attempt(judgement, found, standing)

    def prove(self, option: Piece, attempt: Attempt[State, Trial], proven: Standing[State, Trial]) -> Attempt[State, Trial]:
        if option.name in self.planted.get("exact", ()):
            return attempt
        verdict = self.prove_state(Standing(option.state, attempt.result), proven)
        if not verdict["passed"]:
            return attempt.rejected(Rejection.UNPROVEN, verdict["why"])
        return replace(attempt, proof=verdict)

    def prove_state(self, standing: Standing[State, Trial], proven: Standing[State, Trial]) -> LossVerdict:
        base = [2.0 - 0.01 * step for step in range(40)]
        return compare_losses([base], [loss * (1 + self.worse(standing.state)) for loss in base])

    def together(
        self, standing: Standing[State, Trial], baseline: Standing[State, Trial], *, may_measure: bool
    ) -> Iterator[Confirmation[Trial]]:
        now = self.planted.get("together", standing.result)
        yield Confirmation(now, baseline.result, speed_up(times_of(now, baseline.result), 0.01))

    def note_together(self, together: Confirmation[Trial], stays: bool) -> None:
        if not stays:
            self.record.take_all_back("slower together")

    def next_option(self, standing: Standing[State, Trial]) -> Piece | None:
        if not self._left or self.planted.get("time_limit", TimeLimit(9e9)).is_over:
            return None
        name = self._left.pop(0)
        return Piece(name, standing.state | {name})

    def why_no_more(self, standing: Standing[State, Trial]) -> str:
        return "no time" if self._left else "all were tried"

    def untried(self, standing: Standing[State, Trial]) -> Iterator[Entry]:
        left, self._left = self._left, []
        yield from (Entry(name, True, False, UNTRIED, "no time") for name in left)

    def note(self, option: Piece, attempt: Attempt[State, Trial]) -> None:
        self.record.add(entry_of(option.name, True, False, attempt.result, attempt.judgement), attempt.judgement.rejection)

    def interrupted(self) -> None:
        if self.planted.get("ends_by_ctrl_c"):
            raise KeyboardInterrupt
        self.lines.append("interrupted")

    def is_in(self, entry: Entry, state: State) -> bool:
        return entry.name in state

    def without(self, entry: Entry, standing: Standing[State, Trial]) -> Standing[State, Trial]:
        state = standing.state - {entry.name}
        return Standing(state, self.trial(state))


def searched(gains: dict[str, float], *, must_gain: bool = False, **planted: Any) -> tuple[set[str] | None, Receipt, Pieces]:
    client = Pieces(gains, **planted)
    back = TakingBack(client.record, client, planted.get("needs", {}), 0.01)
    limit = planted.get("time_limit", TimeLimit(9e9))
    search: Search[State, Trial, Piece] = Search(
        client, client, client, client.record, limit, proof=client, confirming=client, must_gain=must_gain, taking_back=back
    )
    receipt = search.run()
    return set(search.standing.state) if search.standing else None, receipt, client


def verdicts(receipt: Receipt) -> dict[str, str]:
    return {entry.name: entry.verdict for entry in receipt.entries}


def test_each_change_is_tried_on_top_of_those_kept_before() -> None:
    state, receipt, client = searched({"a": 1.5, "b": 0.9, "c": 1.2})
    assert state == {"a", "c"} and verdicts(receipt) == {"a": KEPT, "b": REJECTED, "c": KEPT}
    assert client.asked == [set(), {"a"}, {"a", "b"}, {"a", "c"}]
    assert receipt.gain == pytest.approx(1.8, rel=0.01) and receipt.paired is not None and receipt.paired["passed"]
    assert receipt.stopped == "all were tried"


def test_failed_and_different_trials_are_rejected_and_the_search_continues() -> None:
    state, receipt, client = searched({"a": 2.0, "b": 2.0, "c": 1.2}, broken={"a"}, wrong={"b"})
    assert state == {"c"} and [entry.why for entry in receipt.entries[:2]] == [
        "crashed: without a",
        "not the same: other gradients",
    ]
    assert [one.rejection for name in "ab" for one in client.record.of(name, True)] == [Rejection.FAILED, Rejection.DIFFERENT]


def test_a_change_with_a_worse_loss_is_rejected_without_timing_again() -> None:
    state, receipt, client = searched({"a": 2.0, "b": 1.2}, worse=lambda state: 0.1 * ("a" in state))
    assert state == {"b"} and "the loss is worse" in receipt.entries[0].why
    assert client.asked == [set(), {"a"}, {"b"}]


def test_an_unproven_change_is_dropped_if_the_next_proof_fails() -> None:
    state, receipt, _ = searched({"a": 1.5, "b": 1.5, "c": 1.2}, exact={"a"}, worse=lambda state: 0.1 * ("a" in state))
    assert state == {"c"} and receipt.entries[0].why.startswith("not proven")
    assert verdicts(receipt) == {"a": REJECTED, "b": REJECTED, "c": KEPT}


@pytest.mark.parametrize(("other", "state"), [(1.5, {"a", "b"}), (0.8, set())])
def test_a_change_kept_to_help_another_is_dropped_with_it(other: float, state: set[str]) -> None:
    found, receipt, _ = searched({"a": 1.0, "b": other}, needs={"a": ("b",)})
    assert found == state and set(verdicts(receipt).values()) == {KEPT if state else REJECTED}
    assert (receipt.paired is not None) is bool(state)


def test_a_useless_change_stays_if_the_rest_can_not_be_proven_without_it() -> None:
    needs = {"a": ("c",)}
    state, receipt, _ = searched({"a": 1.0, "b": 1.5, "c": 0.9}, needs=needs, worse=lambda s: 0.1 * (s == {"b"}))
    assert state == {"a", "b"} and verdicts(receipt) == {"a": KEPT, "b": KEPT, "c": REJECTED}


@pytest.mark.parametrize(("factor", "must_gain", "stays"), [(1.1, False, False), (1.0, False, True), (1.0, True, False)])
def test_the_result_is_never_slower_than_the_baseline(factor: float, must_gain: bool, stays: bool) -> None:
    whole = Trial(tuple(0.01 * factor * (1 + noise) for noise in NOISE))
    state, receipt, _ = searched({"a": 1.5}, together=whole, must_gain=must_gain)
    assert (state == {"a"}) is stays and (receipt.gain == 1) >= (not stays)


def test_ctrl_c_keeps_proven_changes_and_lists_untried_ones() -> None:
    state, receipt, client = searched({"a": 1.5, "b": 1.5, "c": 1.5}, ctrl_c=3)
    assert state == {"a"} and verdicts(receipt) == {"a": KEPT, "c": UNTRIED} and client.lines == ["interrupted"]
    assert receipt.stopped.startswith("interrupted")


def test_ctrl_c_while_dropping_a_change_leaves_the_record_unchanged() -> None:
    state, receipt, _ = searched({"a": 1.0, "b": 1.5}, needs={"a": ("c",)}, ctrl_c=4)
    assert state == {"a", "b"} and set(verdicts(receipt).values()) == {KEPT}


def test_ctrl_c_before_the_baseline_changes_nothing() -> None:
    state, receipt, _ = searched({"a": 1.5}, ctrl_c=1)
    assert state is None and receipt.step_s is None and receipt.stopped.startswith("interrupted before")


def test_a_client_may_raise_on_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt):
        searched({"a": 1.5}, ctrl_c=2, ends_by_ctrl_c=True)


def test_without_a_baseline_nothing_is_tried() -> None:
    state, receipt, client = searched({"a": 1.5}, no_baseline=True)
    assert state is None and client.asked == [set()] and receipt.stopped == "no baseline: crashed" and receipt.gain is None


def test_when_the_time_is_over_the_rest_is_listed_as_untried() -> None:
    ticks = iter(range(0, 1000, 10))
    limit = TimeLimit(15.0, lambda: float(next(ticks)))
    state, receipt, _ = searched({"a": 1.5, "b": 1.5}, time_limit=limit)
    assert state == {"a"} and verdicts(receipt) == {"a": KEPT, "b": UNTRIED} and receipt.stopped == "no time"


def test_a_trial_is_compared_with_the_times_taken_in_turns_with_it() -> None:
    slow_minute = Trial(tuple(0.02 * (1 + n) for n in NOISE), check=FINE, against_s=tuple(0.03 * (1 - n) for n in NOISE))
    before = Trial(tuple(0.015 * (1 + n) for n in NOISE))
    found = judge(slow_minute, times_of(slow_minute, before), margin=0.01)
    assert found.kept and found.speed is not None and found.speed.ratio == pytest.approx(1.5, rel=0.01)
    alone = ComparedTimes(slow_minute.steps_s, before.steps_s, paired=False)
    assert judge(slow_minute, alone, margin=0.01) == Judgement(Rejection.SLOWER, "slower: 0.75x", speed_up(alone, 0.01))


def test_a_trial_tried_again_may_replace_the_first_one() -> None:
    record = TrialRecord()
    for verdict, rejection in ((REJECTED, Rejection.NO_GAIN), (KEPT, None)):
        record.add_instead(Entry("a", 1, 0, verdict, ""), rejection)
    record.add(Entry("b", 1, 0, REJECTED, ""), Rejection.SLOWER)
    latest = record.latest("b", 1)
    assert [entry.verdict for entry in record.entries] == [KEPT, REJECTED]
    assert latest is not None and latest.rejection is Rejection.SLOWER and record.latest("c", 1) is None


def test_noisy_losses_get_as_many_steps_as_needed_if_there_is_time() -> None:
    def verdict(steps: int) -> LossVerdict:
        draw = random.Random(0)
        return compare_losses([[2.0] * steps], [2.0 + draw.gauss(0, 0.12) for _ in range(steps)])

    asked: list[int] = []

    def longer(steps: int) -> LossVerdict:
        asked.append(steps)
        return verdict(steps)

    first = verdict(40)
    assert with_more_steps(first, 40, longer, ample=1.25, fits=lambda steps: False) is first and not asked
    found = with_more_steps(first, 40, longer, ample=1.25, fits=lambda steps: steps < 10_000, in_parts_of=40)
    assert found["passed"] and found["n"] == asked[-1] and all(steps % 40 == 0 for steps in asked)


def test_too_few_losses_are_not_enough_evidence() -> None:
    found = compare_losses([[2.0] * 40], [2.0] * 7)
    assert not found["passed"] and found["why"].startswith("not enough evidence: 7 paired steps")


def test_answers_replay_but_temporary_failures_do_not() -> None:
    first = Answers(("times",), None, ("crashed",))
    first.asked("times", {"failure": "", "took_s": 40.0}, "a")
    first.asked("times", {"failure": "crashed", "took_s": 1.0}, "b")
    again = Answers(("times",), first.to_dict(), ("crashed",))
    began_s = again.clock()
    assert again.known("times", "none", "a") is not None and again.known("times", "b") is None
    assert (again.replayed, first.asked_live, again.asked_live) == (1, 2, 0)
    assert again.clock() - began_s >= 40.0
