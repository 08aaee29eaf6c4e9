"""The study's side: gives trials to processes, and finds out which of them took a process down.

Stacked trials and trials one after another are trained by one process; packed ones by several, each with its share. If a
process crashes, hangs or runs out of memory, its trials are split in two and tried again, until the one that does it is known:
that trial has failed, the others go on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from flatout.base.answering_child import CRASHED, FAILED, NoAnswer
from flatout.base.errors import FlatoutError
from flatout.tuning.crew.worker import TrialWorker
from flatout.tuning.training.layout import PACKED, Layout

_WARM_S = 0.05
_LEAST_LIMIT_S, _PATIENCE = 120.0, 20.0  # a unit of trials may take so many times as long as its layout's rate predicts
_LARGER = 10.0  # times as many: a shape that was not measured may need more time than those that were
_MEASURING_LIMIT_S = 900.0  # to measure how a group is trained fastest, which takes some dozens of steps

Trials = Sequence[tuple[int, Sequence[str]]]  # the number of a trial, and its overrides


class Member(Protocol):
    """Answers the questions of `TrialWorker`."""

    def ask(self, question: Mapping[str, Any], limit_s: float | None) -> dict[str, Any]: ...
    def stop(self) -> None: ...


class Here:
    """Without a process of its own: for models and data that exist only in this one."""

    def __init__(self, worker: TrialWorker) -> None:
        self._worker = worker

    def ask(self, question: Mapping[str, Any], limit_s: float | None) -> dict[str, Any]:
        try:
            return self._worker.answer(question)
        except FlatoutError:
            raise
        except Exception as error:
            raise NoAnswer(FAILED, f"{type(error).__name__}: {error}") from error

    def stop(self) -> None:
        self._worker.close()


@dataclass(frozen=True)
class Trained:
    """`scores`: of each trial, or why it failed. `lost`: processes that ended before they should."""

    scores: dict[int, float | str] = field(default_factory=dict)
    seconds: float = 0.0
    lost: tuple[str, ...] = ()


class TrialCrew:
    def __init__(self, make: Callable[[], Member], *, isolated: bool, most: int) -> None:
        """`most`: processes side by side at the most."""
        self._make, self.isolated, self.most = make, isolated, most if isolated else 1
        self._members: list[Member | None] = []  # None: it ended, and the next question gets a new one
        self._states: Path | None = None
        self._is_leaving = False  # nobody waits for the answers any more

    def keep_states_in(self, folder: Path) -> None:
        """Where trials are written down that go on later."""
        self._states = folder
        self.ask_all(self._where)

    @property
    def _where(self) -> dict[str, Any]:
        return {"states": {"folder": str(self._states)}}

    def ask(self, question: Mapping[str, Any], limit_s: float | None = None, member: int = 0) -> dict[str, Any]:
        """The answer, or NoAnswer; after a crash the next question gets a new process."""
        if self._is_leaving:
            raise NoAnswer(FAILED, "the study was interrupted")
        try:
            return self._member(member).ask(question, limit_s)
        except NoAnswer as none:
            if none.kind != FAILED:
                self._members[member] = None
            raise

    def ask_all(self, question: Mapping[str, Any]) -> list[str]:
        """Returns why processes could not do it: what they knew of trials is lost, and trained again when it is needed."""
        lost = []
        for place, member in enumerate(self._members):
            if member is None:
                continue
            try:
                self.ask(question, None, place)
            except (NoAnswer, FlatoutError) as none:
                lost.append(str(none))
        return lost

    def measure_layout(self, trials: Trials, limit_s: float) -> Layout:
        """Raises NoAnswer if that ended the process, or took far longer than it should."""
        return Layout(**self.ask({"layout": {"trials": list(trials), "limit_s": limit_s}}, self._at_most(_MEASURING_LIMIT_S)))

    def rate_packed(self, trial: tuple[int, Sequence[str]], seconds: float) -> float:
        """Trial-steps a second of as many processes as there are cores, at work at the same time; 0 if one of them ended."""

        def rate(place: int, seconds: float) -> float:
            question = {"rate": {"trial": trial, "seconds": seconds}}
            return float(self.ask(question, self._at_most(_MEASURING_LIMIT_S), place)["rate"])

        try:
            self._at_once([partial(rate, place, _WARM_S) for place in range(self.most)])  # until all of them have started
            return math.fsum(self._at_once([partial(rate, place, seconds) for place in range(self.most)]))
        except NoAnswer:
            return 0.0

    def train(self, trials: Trials, start: int, to: int, layout: Layout, which: str) -> Trained:
        """One group of trials, from step `start` to step `to`."""
        if layout.kind != PACKED:
            return self._train_on(0, trials, start, to, layout, which)
        shares = [[one for one in trials if one[0] % self.most == place] for place in range(self.most)]
        work = [partial(self._train_on, place, share, start, to, layout, which) for place, share in enumerate(shares) if share]
        began_s = time.perf_counter()
        parts = self._at_once(work)
        scores = {number: score for part in parts for number, score in part.scores.items()}
        return Trained(scores, time.perf_counter() - began_s, tuple(why for part in parts for why in part.lost))

    def stop(self) -> None:
        self._stop_all()
        self._members = []
        self._is_leaving = False

    def _stop_all(self) -> None:
        for member in self._members:
            if member is not None:
                member.stop()

    def _train_on(
        self, place: int, trials: Trials, start: int, to: int, layout: Layout, which: str, *, again: bool = False
    ) -> Trained:
        question = {"train": {"trials": list(trials), "start": start, "to": to, "layout": layout.to_dict(), "which": which}}
        try:
            answer = self.ask(question, self._limit_s(len(trials), to, layout), place)
            why, kind = answer.get("failed", ""), FAILED
        except NoAnswer as none:
            if self._is_leaving:
                raise
            answer, why, kind = {"seconds": 0.0}, str(none), none.kind
        if not why:
            return Trained({int(number): score for number, score in answer["scores"].items()}, answer["seconds"])
        lost = () if kind == FAILED else (why,)
        if len(trials) == 1:
            if kind == CRASHED and not again:  # it may have been another program that ended the process
                retried = self._train_on(place, trials, start, to, layout, which, again=True)
                return Trained(retried.scores, retried.seconds, (why, *retried.lost))
            return Trained({trials[0][0]: why}, answer["seconds"], lost)
        half = len(trials) // 2
        parts = [self._train_on(place, part, start, to, layout, which) for part in (trials[:half], trials[half:])]
        return Trained(
            {number: score for part in parts for number, score in part.scores.items()},
            answer["seconds"] + sum(part.seconds for part in parts),
            (*lost, *(why for part in parts for why in part.lost)),
        )

    def _limit_s(self, count: int, to: int, layout: Layout) -> float | None:
        rate = max(layout.rates.values(), default=layout.rate_elsewhere / _LARGER)
        return self._at_most(max(_LEAST_LIMIT_S, _PATIENCE * count * to / rate)) if rate else None

    def _at_most(self, seconds: float) -> float | None:
        """Nothing can end what this process does itself."""
        return seconds if self.isolated else None

    def _member(self, place: int) -> Member:
        self._members += [None] * (place + 1 - len(self._members))
        found = self._members[place]
        if found is None:
            found = self._members[place] = self._make()
            if self._states is not None:
                found.ask(self._where, None)
        return found

    def _at_once(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        self._members += [None] * (len(work) - len(self._members))  # here, not in several threads
        with ThreadPoolExecutor(len(work)) as threads:
            asked = [threads.submit(part) for part in work]
            try:
                return [one.result() for one in asked]
            except BaseException:  # Ctrl-C: do not wait for what the others do
                self._is_leaving = True
                self._stop_all()
                raise
