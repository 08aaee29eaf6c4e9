"""Trials, each in a fresh process that may crash or hang without harm."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from flatout.base.units import show_seconds
from flatout.boost.forks import PAUSED, Forks
from flatout.boost.trial import WARM_UP, Asked, Told
from flatout.doctor.script import Script
from flatout.measure.stats import compare_paired, summarize

HUNG, CRASHED = "hung", "crashed"
_FIRST_LIMIT_S = 600.0
_COMPILE_S = 240.0
_LAST_CHARACTERS = 4000
WORTH = 0.01  # what is gained by less is not worth the change
_TURN_S, _MOST_IN_A_TURN = 0.06, 200  # beside that, what going on costs is small; and steps
_LOOKS = (15, 30, 60, 120, 240, 480)  # it is looked at after so many turns
_TURNS_S, _LONGEST_S = 30.0, 90.0  # what they may take together; and where there seems to be a gain


class Trials:
    def __init__(
        self,
        forks: Forks,
        script: Script,
        folder: Path,
        steps: int,
        seed: int = 0,
        evaluates: Sequence[tuple[str, bool]] = (),
        by_turns: bool = False,
    ) -> None:
        """`by_turns`: two trials share the minute and not the cores, so that a machine which others slow down slows both.
        Not on a device: there two may not fit, and its own clock is steady."""
        self._forks, self._script, self._folder, self._evaluates = forks, script, folder, tuple(evaluates)
        self.steps, self._seed = steps, seed
        self.by_turns = by_turns
        self._count = 0
        self._reference_s: float | None = None  # a whole trial of it
        self._steps_s: dict[tuple[tuple[str, Any], ...], float] = {}  # one of those that were tried
        self._ends_at: int | None = None  # the script has no more steps than that
        self.reference_file = folder / "reference.pt"

    def attempt(
        self,
        remedies: Sequence[tuple[str, Any]],
        *,
        against: Sequence[tuple[str, Any]] | None = None,
        keep: bool = False,
        slow_s: float | None = None,
        exact: bool = False,
    ) -> Told:
        """`keep`: this one is the reference that later ones are held against. `against`: what it is timed beside, by turns."""
        if against is not None and self.by_turns:
            told = self._beside(remedies, against, slow_s)
            if not told.failure and self._is_short(told, against):
                told = self._beside(remedies, against, slow_s)
            return self._noted(told, remedies)
        began_s = time.monotonic()
        told = self._run(self._asked(remedies, keep=keep, slow_s=slow_s, exact=exact))
        if keep and not told.failure:
            self._reference_s = time.monotonic() - began_s
        return self._noted(told, remedies)

    def _noted(self, told: Told, remedies: Sequence[tuple[str, Any]]) -> Told:
        if told.steps_s:
            self._steps_s[tuple(remedies)] = summarize(told.steps_s).median
        return told

    def _asked(self, remedies: Sequence[tuple[str, Any]], **more: Any) -> Asked:
        """A trial gets a folder of its own."""
        self._count += 1
        place = self._folder / f"t{self._count}"
        (place / "scratch").mkdir(parents=True)
        keep = more.pop("keep", False)
        return Asked(
            self._script.name,
            self._script.arguments,
            self._script.as_module,
            tuple(remedies),
            more.pop("steps", self.steps),
            self._seed,
            str(place / "scratch"),
            str(place / "answer.json"),
            None if keep else str(self.reference_file),
            str(self.reference_file) if keep else None,
            evaluates=self._evaluates,
            **more,
        )

    def _start(self, asked: Asked) -> int:
        question = Path(asked.answer).with_name("question.json")
        question.write_text(json.dumps(asdict(asked)))
        return self._forks.start("try", question, _words(asked))

    @property
    def _limit_s(self) -> float:
        return _FIRST_LIMIT_S if self._reference_s is None else 3 * self._reference_s + _COMPILE_S

    def _run(self, asked: Asked) -> Told:
        began_s = time.monotonic()
        pid = self._start(asked)
        try:
            code = self._forks.wait(pid, self._limit_s)
        finally:
            self._forks.end(pid)
        return self._told(asked, code, time.monotonic() - began_s)

    def _told(self, asked: Asked, code: int | None, took_s: float) -> Told:
        answer = Path(asked.answer)
        if code is None:
            return Told(HUNG, f"no answer within {show_seconds(self._limit_s)}", took_s=took_s)
        if code == PAUSED:
            return Told(CRASHED, "it had more turns than the one that it was held against", took_s=took_s)
        if answer.exists():
            return Told.from_dict(json.loads(answer.read_text()))
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return Told(CRASHED, f"the trial {how}{last_words(_words(asked))}", took_s=took_s)

    # by turns

    def _beside(self, remedies: Sequence[tuple[str, Any]], against: Sequence[tuple[str, Any]], slow_s: float | None) -> Told:
        """Each warms up, then one goes some steps while the other is paused, until it is clear which one is faster."""
        turn = self._turn(against)
        steps = max(self.steps, WARM_UP + 1 + (_LOOKS[-1] + 1) * turn)
        asked = [self._asked(remedies, turn=turn, steps=steps, slow_s=slow_s), self._asked(against, turn=turn, steps=steps)]
        began_s = time.monotonic()
        codes = self._codes_by_turns(asked)
        told, beside = (self._told(one, code, time.monotonic() - began_s) for one, code in zip(asked, codes, strict=True))
        if told.failure:
            return told
        if beside.failure:
            return replace(told, failure=beside.failure, why=f"the trial beside it, without this remedy: {beside.why}")
        pairs = min(len(told.steps_s), len(beside.steps_s))
        return replace(
            told,
            steps_s=told.steps_s[:pairs],
            beside_s=beside.steps_s[:pairs],
            beside_evaluations_s=beside.evaluations_s,
            took_s=time.monotonic() - began_s,
        )

    def _codes_by_turns(self, asked: Sequence[Asked]) -> list[int | None]:
        """How each ended. If the first ends before it was told to, nobody waits for the other."""
        codes: list[int | None] = []
        pids: list[int] = []
        try:
            for one in asked:
                pids.append(self._start(one))
                codes.append(self._forks.wait(pids[-1], self._limit_s))
            order, began_s = list(range(len(asked))), time.monotonic()
            while codes[0] == PAUSED:
                if self._is_clear(asked, time.monotonic() - began_s):
                    for one in asked:
                        one.enough.touch()
                for at in order:
                    if codes[at] == PAUSED:
                        self._forks.go_on(pids[at])
                        codes[at] = self._forks.wait(pids[at], self._limit_s)
                order.reverse()
            return codes
        finally:
            for pid in pids:
                self._forks.end(pid)

    def _is_clear(self, asked: Sequence[Asked], took_s: float) -> bool:
        """Looked at a few times only: with every look chance gets one more."""
        mine, beside = ([float(line) for line in one.turns.read_text().split()] if one.turns.exists() else [] for one in asked)
        turns = min(len(mine), len(beside))
        if len(mine) * asked[0].turn + WARM_UP < self.steps:
            return False  # its losses have to be told, too
        if turns not in _LOOKS and took_s < _TURNS_S:
            return False
        found = compare_paired(beside[:turns], mine[:turns], prefer="max")
        hopeless = found.ratio < 1 + WORTH / 2 and found.high < 1 + 3 * WORTH
        if turns in _LOOKS and (found.low > 1 + WORTH or found.high < 1 + WORTH or hopeless):
            return True
        return took_s > (_LONGEST_S if found.ratio > 1 + 2 * WORTH else _TURNS_S)

    def _turn(self, against: Sequence[tuple[str, Any]]) -> int:
        """Steps: as many as take a while, if the script has enough of them."""
        step_s = self._steps_s.get(tuple(against), _TURN_S)
        wanted = max(1, min(math.ceil(_TURN_S / max(step_s, 1e-6)), _MOST_IN_A_TURN))
        return wanted if self._ends_at is None else max(1, min(wanted, (self._ends_at - WARM_UP - 1) // _LOOKS[0]))

    def _is_short(self, told: Told, against: Sequence[tuple[str, Any]]) -> bool:
        """Did the script end before there was anything to look at? Then turns have to be shorter."""
        turn = self._turn(against)
        if len(told.steps_s) >= _LOOKS[0]:
            return False
        self._ends_at = told.steps_done
        return self._turn(against) < turn


def _words(asked: Asked) -> Path:
    return Path(asked.answer).with_name("words.txt")


def last_words(words: Path) -> str:
    """The last line that it wrote."""
    text = words.read_text(errors="replace")[-_LAST_CHARACTERS:] if words.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f": {lines[-1][:300]}" if lines else ""
