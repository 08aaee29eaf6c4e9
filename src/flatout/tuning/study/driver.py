"""Drives a study: what the search asks for is trained, rung by rung, and every answer is written down before it is used.

A study that was killed is driven again from its log: the search gets the same answers and makes the same decisions, up to where
the log ends. Then it goes on with training.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from flatout.base.answering_child import HUNG, NoAnswer
from flatout.base.errors import FlatoutError, StoreError, TrainingError
from flatout.base.events import EventLog
from flatout.base.units import show_seconds
from flatout.recipe.load import with_overrides
from flatout.recipe.schema import Recipe
from flatout.tuning.crew.crew import TrialCrew
from flatout.tuning.crew.placing import Trials, TrialWork
from flatout.tuning.search.search import TrialSearch
from flatout.tuning.search.trials import Rung, RungAnswer
from flatout.tuning.space.space import Space
from flatout.tuning.study.finals import RECIPE, Size, size_for
from flatout.tuning.study.interrupts import interrupts_wait
from flatout.tuning.study.ledger import FINALS, LAYOUTS, RUNGS, SAVING, SEARCH, TRAINING, StudyLedger
from flatout.tuning.study.packing import packed_if_faster
from flatout.tuning.study.saving import UnsavedTraining
from flatout.tuning.study.spending import Spending, Spent
from flatout.tuning.training.candidate import TrialCandidate
from flatout.tuning.training.layout import NONE, SERIAL, Layout
from flatout.tuning.training.shared import CHOOSE

_SHORT = 0.2  # of the budget: a trial that is trained although the budget is spent
_MEASURING_S, _MEASURING = 5.0, 0.05  # of layouts: seconds, and a share of the study's time
_MOST_LOOKED_AT = 256  # trials, when layouts are measured
_MOST_BESIDE = 4  # trainings of the finals that surely find a device each
_UNFIT = (
    "the study's log does not fit its space and seed: another version wrote it, or it was changed; --fresh starts a new study"
)


@dataclass
class TrialStanding:
    """Where a trial is."""

    number: int
    point: Mapping[str, Any]
    overrides: list[str]
    group: str = ""
    step: int = 0
    failed: str = ""


class Driver:
    def __init__(
        self,
        recipe: Recipe,
        space: Space,
        search: TrialSearch,
        crew: TrialCrew,
        log: EventLog,
        spending: Spending,
        ledger: StudyLedger,
        *,
        total: int,
        state_bytes: float,
    ) -> None:
        """`total`: steps of a whole trial; `state_bytes`: what it takes to go on with one."""
        self._ledger = ledger
        self._recipe, self._space, self._search, self._crew = recipe, space, search, crew
        self._log, self._spending, self._total = log, spending, total
        self.standings: dict[int, TrialStanding] = {}
        self.layouts: dict[str, Layout] = {}
        self.training_s = 0.0  # in trials, of all the study
        self._measured_s = 0.0  # spent on choosing layouts
        self.degraded: list[str] = []  # why trials were trained slower than they could be
        self.lost: list[str] = []  # processes that ended before they should
        self._scores: dict[int, float] = {}  # the last of each trial
        self._unsaved = UnsavedTraining(state_bytes)

    @property
    def last_scores(self) -> list[float]:
        """The last score of each trial that has one."""
        return list(self._scores.values())

    def replay(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Give the search the answers that are in the log."""
        try:
            self._replay(events)
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # a line without a checksum, written by hand
            raise StoreError(f"{_UNFIT} ({type(error).__name__}: {error})") from error

    def limited(self, trials: int | None, share: float | None, once: float) -> None:
        """From here on the search may train so many trials, and has used these shares of its budget; None: as before."""
        self._search.limit(trials, share, once)

    @property
    def share(self) -> float:
        """Of the budget, without what is set aside to judge the winner."""
        return self._spending.share() / (1 - self._reserve)

    @property
    def once(self) -> float:
        """The part of that share that more rungs would not take again."""
        return self._spending.share_of_seconds(self._ledger.once_s) / (1 - self._reserve)

    def _replay(self, events: Sequence[Mapping[str, Any]]) -> None:
        for event in events:
            if event["kind"] in ("begun", "resumed"):
                self.limited(event["trials"], event.get("share"), event.get("once", 0.0))
            elif event["kind"] == "layout":
                if (
                    self.layouts
                ):  # all but the first are measured when the search has asked for a rung, which they do not change
                    self._search.next()
                self._laid_out(event["group"], Layout(**event["layout"]), event.get("devices", 1))
            elif event["kind"] == "degraded":
                self.degraded.append(event["why"])
            elif event["kind"] == "rung":
                rung = self._best_alive(event["to"]) if event.get("beyond") else self._search.next()
                if rung is None or rung.to != event["to"] or _written(rung) != event["trials"]:
                    raise StoreError(_UNFIT)
                for trial in rung.trials:
                    self._standing(trial.number, trial.point).step = rung.to
                for number, why in event["failed"].items():
                    self.standings[int(number)].failed = why
                self.training_s += event["training_s"]
                self._hear(event)

    def look(self, most_trials: int | None) -> None:
        """Measure before the first wave how trials of the space are trained fastest: a wave is as wide as pays."""
        if self.layouts:
            return
        count = min(_MOST_LOOKED_AT, most_trials or _MOST_LOOKED_AT)
        overrides = self._space.overrides(self._space.point([0.5] * len(self._space.parameters)))
        try:
            group = TrialCandidate(RECIPE, with_overrides(self._recipe, overrides)).group
        except FlatoutError:  # two keys that do not go together
            group, overrides = TrialCandidate(RECIPE, self._recipe).group, []
        self._layout_of(group, [(RECIPE - place, overrides) for place in range(count)], self._total)

    def run(self) -> None:
        """Until the search is finished. KeyboardInterrupt leaves a log from which the study goes on."""
        while (rung := self._next_while_saving()) is not None:
            self._note(self._trained(rung))
        is_short = self._spending.share_of_seconds(self._seconds_of_one) <= _SHORT
        if not self._search.best(1) and is_short and (rung := self._best_alive(self._total)) is not None:
            self._note({**self._trained(rung), "beyond": True})

    def _next_while_saving(self) -> Rung | None:
        """Processes of trials forget and save while this one chooses: neither needs the other."""
        if not self._crew.isolated:  # nobody else would do it
            rung = self._next()
            with self._ledger.timed(SAVING):
                self._prepare()
            return rung
        with ThreadPoolExecutor(1) as beside:
            preparing = beside.submit(self._prepare)
            rung = self._next()
            with self._ledger.timed(SAVING):  # what choosing did not hide
                preparing.result()
        return rung

    def _next(self) -> Rung | None:
        with self._ledger.timed(SEARCH):
            return self._search.next()

    def _best_alive(self, to: int) -> Rung | None:
        """A budget may be spent on measuring before any trial has ended: the best so far is then trained all the same."""
        alive = {number: score for number, score in self._scores.items() if not self.standings[number].failed}
        if not alive:
            return None
        best = max(alive, key=lambda number: (self._search.sign * alive[number], -number))
        self._search.asked = Rung((self._search.trials[best].trial,), to)
        return self._search.asked

    def _note(self, fields: Mapping[str, Any]) -> None:
        """A rung is in the log and known to the search, or neither."""
        with interrupts_wait(), self._ledger.timed(RUNGS):
            self._hear(self._log.emit("rung", **fields))

    def _hear(self, event: Mapping[str, Any]) -> None:
        self.lost += event["lost"]
        self._scores |= {int(number): score for number, score in event["scores"].items() if score is not None}
        self._search.tell(_answer_in(event))

    def whole(self, trials: Trials, which: str) -> dict[int, float | str]:
        """Whole trainings, apart from the search's: the scores by number, or why one failed."""
        groups: dict[str, list[tuple[int, Sequence[str]]]] = {}
        for number, overrides in trials:
            candidate = TrialCandidate(number, with_overrides(self._recipe, overrides))
            groups.setdefault(candidate.group, []).append((number, overrides))
        found: dict[int, float | str] = {}
        works: list[TrialWork] = []
        for group, ones in groups.items():
            layout = self._layout_of(group, ones, self._total)
            if layout.kind == NONE:
                found |= {number: layout.why for number, _ in ones}
            else:
                works.append(TrialWork(ones, 0, self._total, layout))
        with self._ledger.timed(RUNGS):
            trained = self._crew.train(works, which, keep=False)
            self._ledger.add(FINALS, trained.seconds)
        self.training_s += trained.seconds
        scores = found | trained.scores
        return {number: scores[number] for number, _ in trials}

    @property
    def finals_size(self) -> Size:
        """As many trainings as the budget has room for."""
        return size_for(self._share_of_one)

    @property
    def _reserve(self) -> float:
        """The share of the budget that is left for the trainings that judge the winner."""
        return min(0.5, size_for(self._share_of_one).trainings * self._share_of_one)

    @property
    def _share_of_one(self) -> float:
        """Of the budget, for one of several whole trainings, which share the devices."""
        return self._spending.share_of_seconds(self._seconds_of_one / min(self._crew.devices, _MOST_BESIDE))

    @property
    def _seconds_of_one(self) -> float:
        """Of a whole training, by the slowest layout so far."""
        return self._total / self._slowest if self._slowest else 0.0

    @property
    def _slowest(self) -> float:
        """Trial-steps a second of the group that is trained slowest; 0: none was measured."""
        return min((max(layout.rates.values()) for layout in self.layouts.values() if layout.rates), default=0.0)

    def why_nothing(self) -> str:
        """Why there is no winner, in words."""
        reasons = Counter(one.failed for one in self.standings.values() if one.failed)
        if not reasons:
            return (
                f"the budget ended before any trial was trained to its end ({self._spending.words}): a whole trial takes about "
                f"{show_seconds(self._seconds_of_one)} here; give more, --budget"
            )
        why, count = reasons.most_common(1)[0]
        return f"all {sum(reasons.values())} trials failed, {count} of them so: {why}"

    def _prepare(self) -> None:
        """Trials that have ended are forgotten; others may go on later and are written down, if that is worth it."""
        ended = [one.number for one in self.standings.values() if one.failed or one.step == self._total]
        if ended:
            self.lost += self._crew.ask_all({"forget": {"numbers": ended}})
        if numbers := self._unsaved.worth_saving(ended):
            began_s = time.monotonic()
            if whys := self._crew.ask_all({"save": {"numbers": numbers}}):
                self._log.emit("not_saved", why="; ".join(whys))  # a killed study trains these trials again
            self._unsaved.saved(len(numbers), time.monotonic() - began_s)

    def _trained(self, rung: Rung) -> Mapping[str, Any]:
        began_s = time.monotonic()
        with self._ledger.timed(RUNGS):
            found = self._at_work(rung)
        spent = self._spending.spent
        return {
            **found,
            "seconds": time.monotonic() - began_s,
            "spent": {"seconds": spent.seconds, "joules": spent.joules},
            "parts": self._ledger.parts(spent.seconds),
            "share": self._spending.share(spent) / (1 - self._reserve),
            "once": self.once,
        }

    def _at_work(self, rung: Rung) -> dict[str, Any]:
        standings = [self._standing(one.number, one.point) for one in rung.trials]
        scores: dict[int, float | None] = {one.number: None for one in standings}
        works: list[TrialWork] = []
        for group, ones in _by_group([one for one in standings if not one.failed]).items():
            layout = self._layout_of(group, [(one.number, one.overrides) for one in ones], rung.to)
            if layout.kind == NONE:
                for one in ones:
                    one.failed = layout.why
                continue
            self._refuse_what_takes_too_long(layout, sum(rung.to - one.step for one in ones))
            works += [
                TrialWork([(one.number, one.overrides) for one in ones if one.step == start], start, rung.to, layout)
                for start in sorted({one.step for one in ones})
            ]
        trained = self._crew.train(works, CHOOSE)
        self._say_degraded()
        for number, score in trained.scores.items():
            if isinstance(score, str):
                self.standings[number].failed = score
            else:
                scores[number] = score
        for one in standings:
            one.step = rung.to
        self._unsaved.add((one.number for one in standings), trained.seconds)
        self.training_s += trained.seconds
        self._ledger.add(TRAINING, trained.seconds)
        return {
            "to": rung.to,
            "trials": _written(rung),
            "scores": {str(number): score for number, score in scores.items()},
            "failed": {str(one.number): one.failed for one in standings if one.failed},
            "lost": list(trained.lost),
            "training_s": trained.seconds,
        }

    def _say_degraded(self) -> None:
        """Once each, and only what no layout has said already."""
        for why in self._crew.degraded:
            if why not in self.degraded and not any(why in layout.why for layout in self.layouts.values()):
                self._log.emit("degraded", what="trials", why=why)
                self.degraded.append(why)

    def _refuse_what_takes_too_long(self, layout: Layout, steps: int) -> None:
        """The search learns what a step costs from its first rung, which may take longer than the whole budget."""
        limit_s, rate = self._spending.seconds, max(layout.rates.values(), default=0.0) * self._crew.devices
        if self._scores or limit_s is None or not rate or steps / rate <= limit_s:
            return
        raise TrainingError(
            f"the first comparison of trials takes about {show_seconds(steps / rate)} here, and the budget is "
            f"{show_seconds(limit_s)}: give more, --budget, or fewer, --trials"
        )

    def _layout_of(self, group: str, trials: Trials, to: int) -> Layout:
        """Chosen by measuring when a group is first met; again if it then had one trial, which says nothing of several."""
        known = self.layouts.get(group)
        if known is not None and (known.measured_with > 1 or len(trials) == 1):
            return known
        if (alike := self._unmeasured(len(trials))) is not None:
            return self._laid_out(group, alike, self._crew.devices, len(trials))
        began_s = time.monotonic()
        with self._ledger.timed(LAYOUTS):
            layout = self._measured(trials, to)
        self._measured_s += time.monotonic() - began_s
        return self._laid_out(group, layout, self._crew.devices, len(trials))

    def _measured(self, trials: Trials, to: int) -> Layout:
        try:
            layout = self._crew.measure_layout(trials, self._measuring_s)
        except (NoAnswer, FlatoutError) as none:  # training them one by one finds out which of them it is
            layout = Layout(SERIAL, why=f"measuring other layouts failed: {none}", measured_with=len(trials))
            if isinstance(none, NoAnswer) and none.kind == HUNG:
                layout = replace(layout, kind=NONE)
        return packed_if_faster(self._crew, trials, to, layout) if layout.kind == SERIAL else layout

    def _unmeasured(self, count: int) -> Layout | None:
        """For a group whose layout is not worth measuring; None: it is."""
        others = [layout for layout in self.layouts.values() if layout.rates]
        if not others:
            return None
        whole_s = self._spending.seconds or self._spending.spent.seconds
        if count > 1 and self._measured_s < max(_MEASURING_S, _MEASURING * whole_s):
            return None
        why = "one trial of this shape" if count == 1 else "measuring layouts has taken its share of the time"
        return Layout(SERIAL, threads=others[0].threads, why=why, measured_with=count, rate_elsewhere=self._slowest)

    def _laid_out(self, group: str, layout: Layout, devices: int, trials: int = 0) -> Layout:
        """On so many devices. `trials`: of a choice that is not in the log yet."""
        self.layouts[group] = layout
        self._search.together = max(self._search.together, layout.width * devices, layout.processes)
        self._search.nearly_free = layout.nearly_free * devices if len(self.layouts) == 1 else 0  # of one group
        if trials:
            self._log.emit("layout", group=group, layout=layout.to_dict(), trials=trials, devices=devices)
        return layout

    @property
    def _measuring_s(self) -> float:
        """Time to measure layouts of a group: little of the budget."""
        seconds = self._spending.seconds
        return 5.0 if seconds is None else max(1.0, min(10.0, 0.01 * seconds))

    def _standing(self, number: int, point: Mapping[str, Any]) -> TrialStanding:
        if number not in self.standings:
            standing = TrialStanding(number, point, self._space.overrides(point))
            try:
                standing.group = TrialCandidate(number, with_overrides(self._recipe, standing.overrides)).group
            except FlatoutError as error:
                standing.failed = f"its recipe is not possible: {error}"
            self.standings[number] = standing
        return self.standings[number]


def _written(rung: Rung) -> list[Any]:
    """As it is read from a log."""
    found: list[Any] = json.loads(json.dumps([[one.number, dict(one.point)] for one in rung.trials], default=str))
    return found


def _by_group(ones: Sequence[TrialStanding]) -> dict[str, list[TrialStanding]]:
    found: dict[str, list[TrialStanding]] = {}
    for one in ones:
        found.setdefault(one.group, []).append(one)
    return found


def _answer_in(event: Mapping[str, Any]) -> RungAnswer:
    return RungAnswer({int(number): score for number, score in event["scores"].items()}, event["share"], event.get("once", 0.0))


def spent_in(events: Sequence[Mapping[str, Any]]) -> Spent:
    """By the study so far."""
    for event in reversed(events):
        if "spent" in event:
            return Spent(**event["spent"])
    return Spent()


def so_far(events: Sequence[Mapping[str, Any]]) -> str:
    rungs = [event for event in events if event["kind"] == "rung"]
    return f"{len(rungs)} rungs, {show_seconds(spent_in(events).seconds)}"
