"""The study's side: gives trials to processes, on one device or several, and goes on without those that are lost.

Stacked trials and trials one after another are trained by one process for each device; packed ones by several, each with its
share. A trial stays with the process that has its weights; if another one goes on with it, the weights go through a file.
"""

from __future__ import annotations

import math
import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flatout.base.answering_child import FAILED, GONE, NoAnswer
from flatout.base.errors import FlatoutError, TrainingError
from flatout.tuning.crew.attempts import Trained, attempt
from flatout.tuning.crew.placing import Homes, Trials, TrialWork, placed
from flatout.tuning.crew.queues import Queues
from flatout.tuning.crew.seats import CrewMember, CrewSeat
from flatout.tuning.training.layout import PACKED, Layout

_WARM_S = 0.05
_MEASURING_LIMIT_S = 900.0  # to measure how a group is trained fastest, which takes some dozens of steps


@dataclass(frozen=True)
class PackedRate:
    """Trial-steps a second of several processes together; memory of the device that each takes, and that is free."""

    steps_s: float
    bytes_each: int
    free_bytes: int | None


class TrialCrew:
    """`most`: processes side by side at the most; the first `devices` of them have a device each."""

    def __init__(self, seats: Sequence[CrewSeat], *, isolated: bool, packed: int = 1) -> None:
        """`packed`: processes on each device, for trials that are packed. Not isolated: trials run in this process."""
        self._seats, self.isolated = list(seats), isolated
        self.devices, self.most = len(seats), len(seats) * packed
        self._members: list[CrewMember | None] = [None] * self.most  # None: the next question gets a new process
        self._gone: set[int] = set()  # seats that nobody answers from any more
        self._homes: dict[int, int] = {}  # who has the weights of a trial
        self._sees: set[int] = set()  # who sees the folder of states
        self._states: Path | None = None
        self._mark = ""  # a file there that other machines look for
        self._is_leaving = False  # nobody waits for the answers any more
        self.degraded: list[str] = []  # why trials were trained slower than they could be

    @property
    def names(self) -> list[str]:
        """Of the devices that are left."""
        return [seat.name for number, seat in enumerate(self._seats) if number not in self._gone]

    def meet(self) -> dict[str, Any]:
        """What the study has to know of its trials; all devices must agree on it. Raises NoAnswer."""
        about = self.ask({"about": {}})
        if "refused" in about:
            return about
        others = self._usable(self.devices)[1:]
        for place, answer in zip(others, self._at_once([partial(self._asked_about, place) for place in others]), strict=True):
            if "refused" in answer:
                raise TrainingError(f"{self._name(place)} can't train these trials: {answer['refused']}")
            if differing := [key for key in ("identity", "total_steps", "metric") if answer[key] != about[key]]:
                raise TrainingError(
                    f"{self._name(place)} has another {' and '.join(differing)} than {self._name(0)}: the recipe, its code and "
                    "its data must be the same on all machines"
                )
        return about

    def keep_states_in(self, folder: Path) -> None:
        """Where trials are written down that go on later."""
        self._states = folder.resolve()
        folder.mkdir(exist_ok=True)
        self._mark = f".seen-{secrets.token_hex(8)}"  # another machine may have a folder of that name, of another study
        (folder / self._mark).touch()
        for place, member in enumerate(self._members):
            if member is not None:
                self._show_states(place, member)

    def ask(self, question: Mapping[str, Any], limit_s: float | None = None) -> dict[str, Any]:
        """The answer of the first process that is there, or NoAnswer; after a crash the next question gets a new process."""
        while True:
            place = self._usable(self.devices)[0]
            try:
                return self._ask(place, question, limit_s)
            except NoAnswer as none:
                if none.kind != GONE or self._is_leaving:
                    raise

    def ask_all(self, question: Mapping[str, Any]) -> list[str]:
        """Returns why processes could not do it: what they knew of trials is lost, and trained again when it is needed."""

        def told(place: int) -> str:
            try:
                self._ask(place, question, None)
            except (NoAnswer, FlatoutError) as none:
                return str(none)
            return ""

        if numbers := question.get("forget", {}).get("numbers"):
            self._homes = {number: place for number, place in self._homes.items() if number not in set(numbers)}
        places = [place for place, member in enumerate(self._members) if member is not None]
        return [why for why in self._at_once([partial(told, place) for place in places]) if why]

    def measure_layout(self, trials: Trials, limit_s: float) -> Layout:
        """Raises NoAnswer if that ended the process, or took far longer than it should."""
        return Layout(**self.ask({"layout": {"trials": list(trials), "limit_s": limit_s}}, _MEASURING_LIMIT_S))

    def rate_packed(self, trial: tuple[int, Sequence[str]], seconds: float, processes: int) -> PackedRate:
        """Of so many processes, at work at the same time; 0 if one of them ended."""

        def rate(place: int, seconds: float) -> dict[str, Any]:
            return self._ask(place, {"rate": {"trial": trial, "seconds": seconds}}, _MEASURING_LIMIT_S)

        try:
            places = self._usable(processes)
            self._at_once([partial(rate, place, _WARM_S) for place in places])  # until all of them have started
            found = self._at_once([partial(rate, place, seconds) for place in places])
        except NoAnswer:
            return PackedRate(0.0, 0, 0)
        free = [one["free_bytes"] for one in found if one["free_bytes"] is not None]
        rates = math.fsum(one["rate"] for one in found)
        return PackedRate(rates, max(one["bytes"] for one in found), min(free, default=None))

    def dismiss_all_but(self, processes: int) -> None:
        """The others have no weights of a trial that goes on: they only hold memory."""
        for place in range(processes, self.most):
            if (member := self._members[place]) is not None:
                member.stop()
                self._lose(place)

    def train(self, works: Sequence[TrialWork], which: str, *, keep: bool = True) -> Trained:
        """All of them, on all devices. `keep`: the trials go on later."""
        parts: list[Trained] = []
        for is_packed in (False, True):
            left = [work for work in works if (work.layout.kind == PACKED) is is_packed]
            while left:
                most = max(work.layout.processes for work in left)
                places = self._usable(min(most, self.most) if is_packed else self.devices)
                queues = Queues(placed(left, places, Homes(self._homes, frozenset(self._sees))))
                self._move(queues)
                found = self._at_once([partial(self._attend, place, queues, which, keep) for place in queues.places])
                longest_s = max(part.seconds for part in found)
                scores = {number: score for part in found for number, score in part.scores.items()}
                parts.append(Trained(scores, longest_s, tuple(why for part in found for why in part.lost)))
                left = queues.rest()
        return Trained(
            {number: score for part in parts for number, score in part.scores.items()},
            math.fsum(part.seconds for part in parts),
            tuple(why for part in parts for why in part.lost),
        )

    def stop(self) -> None:
        self._stop_all()
        self._members = [None] * self.most
        self._homes.clear()
        self._is_leaving = False

    def _stop_all(self) -> None:
        for member in self._members:
            if member is not None:
                member.stop()

    def _attend(self, place: int, queues: Queues, which: str, keep: bool) -> Trained:
        """One process trains its units, one after the other."""
        scores: dict[int, float | str] = {}
        seconds, lost = 0.0, list[str]()
        while (unit := queues.next(place)) is not None:
            try:
                found = attempt(partial(self._ask, place), unit, which)
            except NoAnswer as gone:
                if self._is_leaving:
                    raise
                queues.back(place, unit)
                return Trained(scores, seconds, (*lost, str(gone)))
            scores |= found.scores
            seconds += found.seconds
            lost += found.lost
            if keep and self._members[place] is not None:
                self._homes |= {number: place for number, score in found.scores.items() if not isinstance(score, str)}
            elif not keep:
                self._try(place, {"forget": {"numbers": unit.numbers}})
        return Trained(scores, seconds, tuple(lost))

    def _move(self, queues: Queues) -> None:
        """Who has weights that another one needs writes them down. Where that fails they are trained again."""
        leaving: dict[int, list[int]] = defaultdict(list)
        for place in queues.places:
            for number in (number for unit in queues.units(place) for number in unit.numbers):
                if (home := self._homes.get(number, place)) != place:
                    leaving[home].append(number)
        self._at_once([partial(self._hand_over, home, numbers) for home, numbers in leaving.items()])

    def _hand_over(self, home: int, numbers: Sequence[int]) -> None:
        if home not in self._sees or self._try(home, {"save": {"numbers": list(numbers)}}):
            self._try(home, {"forget": {"numbers": list(numbers)}})

    def _try(self, place: int, question: Mapping[str, Any]) -> bool:
        try:
            self._ask(place, question, None)
        except (NoAnswer, FlatoutError):
            return False
        return True

    def _ask(self, place: int, question: Mapping[str, Any], limit_s: float | None) -> dict[str, Any]:
        if self._is_leaving:
            raise NoAnswer(GONE, "the study was interrupted")
        try:
            answer = self._member(place).ask(
                question, limit_s if self.isolated else None
            )  # nothing ends what this process does
        except NoAnswer as none:
            if none.kind != FAILED:
                self._lose(place)
            if none.kind == GONE and not self._is_leaving:
                self._gone.add(place % len(self._seats))
            raise
        if (why := answer.get("degraded")) and why not in self.degraded:
            self.degraded.append(why)
        return answer

    def _asked_about(self, place: int) -> dict[str, Any]:
        try:
            return self._ask(place, {"about": {}}, None)
        except NoAnswer as none:
            return {"refused": str(none)}

    def _lose(self, place: int) -> None:
        """With the process, the weights that it had are gone."""
        self._members[place] = None
        self._homes = {number: home for number, home in self._homes.items() if home != place}

    def _member(self, place: int) -> CrewMember:
        found = self._members[place]
        if found is None:
            found = self._members[place] = self._seats[place % len(self._seats)].make()
            if self._states is not None:
                self._show_states(place, found)
        return found

    def _show_states(self, place: int, member: CrewMember) -> None:
        answer = member.ask({"states": {"folder": str(self._states), "seen": self._mark}}, None)
        (self._sees.add if answer["seen"] else self._sees.discard)(place)

    def _name(self, place: int) -> str:
        return self._seats[place % len(self._seats)].name

    def _usable(self, count: int) -> list[int]:
        places = [place for place in range(count) if place % len(self._seats) not in self._gone]
        if not places:
            raise TrainingError(
                "all processes that train trials are gone: the same command goes on with the study, with those that are there"
            )
        return places

    def _at_once(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        if len(work) < 2:
            return [part() for part in work]
        with ThreadPoolExecutor(len(work)) as threads:
            asked = [threads.submit(part) for part in work]
            try:
                return [one.result() for one in asked]
            except BaseException:  # Ctrl-C: do not wait for what the others do
                self._is_leaving = True
                self._stop_all()
                raise
