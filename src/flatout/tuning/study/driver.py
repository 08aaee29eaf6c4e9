"""Drives a study: what the search asks for is trained, rung by rung, and every answer is written down before it is used.

A study that was killed is driven again from its log: the search gets the same answers and makes the same decisions, up to where
the log ends. Then it goes on with training.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flatout.base.answering_child import HUNG, NoAnswer
from flatout.base.errors import FlatoutError, StoreError, TrainingError
from flatout.base.events import EventLog
from flatout.base.units import show_seconds
from flatout.recipe.load import with_overrides
from flatout.recipe.schema import Recipe
from flatout.tuning.crew.crew import Trained, TrialCrew, Trials
from flatout.tuning.search.search import TrialSearch
from flatout.tuning.search.trials import Rung, RungAnswer
from flatout.tuning.space.space import Space
from flatout.tuning.study.finals import RECIPE, Size, size_for
from flatout.tuning.study.interrupts import interrupts_wait
from flatout.tuning.study.spending import Spending, Spent
from flatout.tuning.training.candidate import TrialCandidate
from flatout.tuning.training.layout import NONE, SERIAL, STACKED, Layout, packed
from flatout.tuning.training.shared import CHOOSE

_WORTH_PACKING_S = 60.0  # of training one after another, above which it is tried in several processes
_SHORT = 0.2  # of the budget: a trial that is trained although the budget is spent
_BETTER = 1.1  # several processes must be faster by this factor
_MEASURING_S, _MEASURING = 5.0, 0.05  # of layouts: seconds, and a share of the study's time
_MOST_LOOKED_AT = 256  # trials, when layouts are measured
_WORTH_SAVING_S = 2.0  # of training since the last save
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
        *,
        total: int,
    ) -> None:
        """`total`: steps of a whole trial."""
        self._recipe, self._space, self._search, self._crew = recipe, space, search, crew
        self._log, self._spending, self._total = log, spending, total
        self.standings: dict[int, TrialStanding] = {}
        self.layouts: dict[str, Layout] = {}
        self.training_s = 0.0  # in trials, of all the study
        self._measured_s = 0.0  # spent on choosing layouts
        self.lost: list[str] = []  # processes that ended before they should
        self._scores: dict[int, float] = {}  # the last of each trial
        self._unsaved_s = 0.0
        self._unsaved: set[int] = set()  # trials that were trained since the last save

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

    def limited(self, trials: int | None, share: float | None) -> None:
        """From here on the search may train so many trials, and has used that share of its budget; None: as before."""
        self._search.limit(trials, share)

    @property
    def share(self) -> float:
        """Of the budget, without what is set aside to judge the winner."""
        return self._spending.share() / (1 - self._reserve)

    def _replay(self, events: Sequence[Mapping[str, Any]]) -> None:
        for event in events:
            if event["kind"] in ("begun", "resumed"):
                self.limited(event["trials"], event.get("share"))
            elif event["kind"] == "layout":
                self._laid_out(event["group"], Layout(**event["layout"]))
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
        """Measure before the first wave how trials like the recipe are trained fastest: a wave is as wide as pays."""
        count = min(_MOST_LOOKED_AT, most_trials or _MOST_LOOKED_AT)
        group = TrialCandidate(RECIPE, self._recipe).group
        if group not in self.layouts:
            self._layout_of(group, [(RECIPE - place, []) for place in range(count)], self._total)

    def run(self) -> None:
        """Until the search is finished. KeyboardInterrupt leaves a log from which the study goes on."""
        while (rung := self._search.next()) is not None:
            self._prepare()
            self._note(self._trained(rung))
        is_short = self._spending.share_of_seconds(self._seconds_of_one) <= _SHORT
        if not self._search.best(1) and is_short and (rung := self._best_alive(self._total)) is not None:
            self._note({**self._trained(rung), "beyond": True})

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
        with interrupts_wait():
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
        for group, ones in groups.items():
            layout = self._layout_of(group, ones, self._total)
            if layout.kind == NONE:
                found |= {number: layout.why for number, _ in ones}
                continue
            for first in range(0, len(ones), max(layout.width, 1) if layout.kind == STACKED else len(ones)):
                part = ones[first : first + layout.width] if layout.kind == STACKED else ones
                trained = self._crew.train(part, 0, self._total, layout, which)
                self.training_s += trained.seconds
                found |= trained.scores
                self._crew.ask_all({"forget": {"numbers": [number for number, _ in part]}})
        return found

    @property
    def finals_size(self) -> Size:
        """As many trainings as the budget has room for."""
        return size_for(self._spending.share_of_seconds(self._seconds_of_one))

    @property
    def _reserve(self) -> float:
        """The share of the budget that is left for the trainings that judge the winner."""
        share = self._spending.share_of_seconds(self._seconds_of_one)
        return min(0.5, size_for(share).trainings * share)

    @property
    def _seconds_of_one(self) -> float:
        """Of a whole training, by the slowest layout so far."""
        rates = [max(layout.rates.values()) for layout in self.layouts.values() if layout.rates]
        return self._total / min(rates) if rates else 0.0

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
        if self._unsaved_s >= _WORTH_SAVING_S:
            if whys := self._crew.ask_all({"save": {"numbers": sorted(self._unsaved - set(ended))}}):
                self._log.emit("not_saved", why="; ".join(whys))  # a killed study trains these trials again
            self._unsaved_s, self._unsaved = 0.0, set()

    def _trained(self, rung: Rung) -> Mapping[str, Any]:
        began_s = time.monotonic()
        standings = [self._standing(one.number, one.point) for one in rung.trials]
        scores: dict[int, float | None] = {one.number: None for one in standings}
        lost: list[str] = []
        training_s = 0.0
        for group, ones in _by_group([one for one in standings if not one.failed]).items():
            layout = self._layout_of(group, [(one.number, one.overrides) for one in ones], rung.to)
            if layout.kind == NONE:
                for one in ones:
                    one.failed = layout.why
                continue
            self._refuse_what_takes_too_long(layout, sum(rung.to - one.step for one in ones))
            for start, trials in _units(ones, layout):
                found: Trained = self._crew.train(trials, start, rung.to, layout, CHOOSE)
                training_s += found.seconds
                lost += found.lost
                for number, score in found.scores.items():
                    if isinstance(score, str):
                        self.standings[number].failed = score
                    else:
                        scores[number] = score
        for one in standings:
            one.step = rung.to
            self._unsaved.add(one.number)
        self.training_s += training_s
        self._unsaved_s += training_s
        spent = self._spending.spent
        return {
            "to": rung.to,
            "trials": _written(rung),
            "scores": {str(number): score for number, score in scores.items()},
            "failed": {str(one.number): one.failed for one in standings if one.failed},
            "lost": lost,
            "seconds": time.monotonic() - began_s,
            "training_s": training_s,
            "spent": {"seconds": spent.seconds, "joules": spent.joules},
            "share": self._spending.share(spent) / (1 - self._reserve),
        }

    def _refuse_what_takes_too_long(self, layout: Layout, steps: int) -> None:
        """The search learns what a step costs from its first rung, which may take longer than the whole budget."""
        limit_s, rate = self._spending.seconds, max(layout.rates.values(), default=0.0)
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
            return self._laid_out(group, alike, len(trials))
        began_s = time.monotonic()
        try:
            layout = self._crew.measure_layout(trials, self._measuring_s)
        except (NoAnswer, FlatoutError) as none:  # training them one by one finds out which of them it is
            layout = Layout(SERIAL, why=f"measuring other layouts failed: {none}", measured_with=len(trials))
            if isinstance(none, NoAnswer) and none.kind == HUNG:
                layout = replace(layout, kind=NONE)
        alone = max(layout.rates.values(), default=0.0)
        worth = alone > 0 and len(trials) * to / alone > _WORTH_PACKING_S
        if layout.kind == SERIAL and self._crew.most > 1 and len(trials) > 1 and worth:
            rate = self._crew.rate_packed(trials[0], 1.0)
            if rate > _BETTER * alone:
                layout = packed(layout, self._crew.most, rate)
        self._measured_s += time.monotonic() - began_s
        return self._laid_out(group, layout, len(trials))

    def _unmeasured(self, count: int) -> Layout | None:
        """For a group whose layout is not worth measuring; None: it is."""
        others = [layout for layout in self.layouts.values() if layout.rates]
        if not others:
            return None
        if count > 1 and self._measured_s < max(_MEASURING_S, _MEASURING * self._spending.spent.seconds):
            return None
        why = "one trial of this shape" if count == 1 else "measuring layouts has taken its share of the time"
        slowest = min(max(layout.rates.values()) for layout in others)
        return Layout(SERIAL, threads=others[0].threads, why=why, measured_with=count, rate_elsewhere=slowest)

    def _laid_out(self, group: str, layout: Layout, trials: int = 0) -> Layout:
        """`trials`: of a choice that is not in the log yet."""
        self.layouts[group] = layout
        self._search.together = max(self._search.together, layout.width, layout.processes)
        if trials:
            self._log.emit("layout", group=group, layout=layout.to_dict(), trials=trials)
        return layout

    @property
    def _measuring_s(self) -> float:
        """Time to measure layouts of a group: little of the budget."""
        seconds = self._spending.seconds
        return 5.0 if seconds is None else max(0.5, min(10.0, 0.02 * seconds))

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


def _units(ones: Sequence[TrialStanding], layout: Layout) -> Iterator[tuple[int, Trials]]:
    """What is trained together: trials at one step, as many as a stack holds."""
    for start in sorted({one.step for one in ones}):
        trials = [(one.number, one.overrides) for one in ones if one.step == start]
        width = layout.width if layout.kind == STACKED else len(trials)
        for first in range(0, len(trials), width):
            yield start, trials[first : first + width]


def _answer_in(event: Mapping[str, Any]) -> RungAnswer:
    return RungAnswer({int(number): score for number, score in event["scores"].items()}, event["share"])


def spent_in(events: Sequence[Mapping[str, Any]]) -> Spent:
    """By the study so far."""
    for event in reversed(events):
        if "spent" in event:
            return Spent(**event["spent"])
    return Spent()


def so_far(events: Sequence[Mapping[str, Any]]) -> str:
    rungs = [event for event in events if event["kind"] == "rung"]
    return f"{len(rungs)} rungs, {show_seconds(spent_in(events).seconds)}"
