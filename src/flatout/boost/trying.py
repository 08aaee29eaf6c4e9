"""Runs trials, each in a fresh process that may crash or hang without harm."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from flatout.base.exits import exit_words, printed_to
from flatout.base.fork_server import PAUSED
from flatout.boost.forks import Forks
from flatout.boost.protection import protecting
from flatout.boost.settling import Repeat
from flatout.boost.step_recorder import WARM_UP
from flatout.boost.trial import SLOWER, Told, TrialRequest
from flatout.doctor.script import Script
from flatout.machine.host import usable_cores
from flatout.measure.judging import ComparedTimes, speed_up
from flatout.measure.stats import summarize

HUNG, CRASHED = "hung", "crashed"
BESIDE = "the baseline trial did not end"
FOR_TWO = "it failed while two trials ran"  # it may work alone
_FIRST_LIMIT_S = 600.0
_COMPILE_S = 240.0
WORTH = 0.01  # smaller speed-ups are not worth a change
_TURN_S, _TURN_ON_DEVICE_S = 0.06, 0.1  # long enough that the cost of resuming is small
_LOOKS = (15, 30, 60, 120, 240, 480)  # numbers of turns after which the result is checked
_HOPELESS_AFTER, _HOPELESS = 6, 1.5  # turns that were all so much slower
_PRECISE = 0.1  # widest relative confidence interval to report, if time allows
_TURNS_S, _LONGEST_S = 30.0, 90.0  # time limit of all turns; the same if there seems to be a speed-up
_ON_DEVICE_S = 8.0  # the same on a device: differences between processes exceed what more turns would resolve
_FEW_TURNS = 4  # times as long for the first turns
_SHARE = 1 / 6  # most of the time for all trials (--within) that the turns of one take
_FILLING, _LEAST_IN_A_TURN = 2, 6  # steps of a turn on a device: untimed, until the host is ahead; least timed
_SHORT_S, _HALF = 0.03, 0.4  # longest step, and largest share of memory, for two trials to alternate on a device
_MOST_AT_ONCE, _FULL, _CORES = 4, 0.8, 4  # trials that are not timed; share of the memory for all; cores for each
_NO_ROOM = ("OutOfMemoryError", "was killed by SIGKILL")  # may be caused by running two trials


class Trials:
    def __init__(
        self,
        forks: Forks,
        script: Script,
        folder: Path,
        steps: int,
        protection: str,
        seed: int = 0,
        evaluates: Sequence[tuple[str, bool]] = (),
        device: str = "cpu",
        within_s: float = math.inf,
    ) -> None:
        """After `within_s`, a trial no longer gets extra time for a likely speed-up."""
        self._over_at_s, self._one_s = time.monotonic() + within_s, _SHARE * within_s
        self._protection = protection
        self._forks, self._script, self._folder, self._evaluates = forks, script, folder, tuple(evaluates)
        self.steps, self._seed = steps, seed
        self._on_device = device != "cpu"
        # trials alternate, so that other load on the machine slows both
        self.by_turns = not self._on_device  # there it takes the first trial to say so
        self._may_take_turns = True
        self._count = 0
        self._reference_s: float | None = None  # a whole trial of it
        self._steps_s: dict[tuple[tuple[str, Any], ...], float] = {}  # one of those that were tried
        self._memory_share = 1.0  # of the device's memory, for one trial
        self._ends_at: int | None = None  # the script has no more steps
        self.reference_file, self._noise_file = folder / "reference.pt", folder / "noise.json"
        self.place = 0  # where steps are compared

    def compare_at(self, place: int, noise: Mapping[str, Any]) -> None:
        """From here on, trials are compared after `place` steps, with limits that include this noise."""
        self.place = place
        self._noise_file.write_text(json.dumps(noise))

    def repeats(self, asked: Sequence[Repeat]) -> list[Told]:
        """On a device several at once, as memory and cores allow: they wait for the host most of the time."""
        questions = [
            self._asked(
                (), places=one.places, repeats=one.precision, shaken=one.shaken, only_compares=not one.whole, noise=None
            )
            for one in asked
        ]
        told: list[Told] = []
        while questions:
            some, questions = questions[: self._at_once], questions[self._at_once :]
            told += self._run_at_once(some)
        return told

    def keep_at(self, places: Sequence[int]) -> Told:
        return self._run(self._asked((), keep=True, places=tuple(places), only_compares=True, noise=None))

    @property
    def _at_once(self) -> int:
        if not self._on_device or not self._may_take_turns:
            return 1
        return max(1, min(_MOST_AT_ONCE, int(_FULL / max(self._memory_share, 0.01)), usable_cores() // _CORES))

    def attempt(
        self,
        remedies: Sequence[tuple[str, Any]],
        *,
        against: Sequence[tuple[str, Any]] | None = None,
        keep: bool = False,
        slow_s: float | None = None,
        exact: bool = False,
        losses: bool = True,
        patched: Sequence[tuple[str, str]] = (),
        repeats: str = "",
        shaken: bool = False,
        part: int = 0,
    ) -> Told:
        """`keep`: save this trial as the reference for later ones. `against`: the baseline's remedies, timed in alternation.
        Without `losses`, an alternating trial ends once the speed-up is known. `patched`: files with the remedies written into
        them, which are then not applied from outside. `repeats`: measure how far this unmodified run is from the reference;
        `shaken`: with weights changed by rounding. `part`: put the weights back every so many steps."""
        if against is not None and self.by_turns:
            turn_s = self._turn_s(against)
            told = self._beside(remedies, against, slow_s, losses)
            if not told.failure and self._turn_s(against) < turn_s:  # the script ended after too few turns
                told = self._beside(remedies, against, slow_s, losses)
            if told.failure not in (BESIDE, FOR_TWO):
                return self._noted(told, remedies)
            alone = self._run(self._asked(remedies, slow_s=slow_s))
            if told.failure == BESIDE or not alone.failure:
                self.by_turns = self._may_take_turns = False  # the script holds a port, a lock or much memory
            return self._noted(alone, remedies)
        began_s = time.monotonic()
        how = {"exact": exact, "patched": tuple(patched), "repeats": repeats, "shaken": shaken, "part": part}
        told = self._run(self._asked(remedies, keep=keep, slow_s=slow_s, **how))
        if patched or part:
            return told
        if keep and not told.failure:
            self._reference_s = time.monotonic() - began_s
            self._memory_share = told.memory_share or self._memory_share
            if self._on_device:
                # long steps depend on the device, whose speed is steady; short ones wait for the host, whose speed is not
                short = bool(told.steps_s) and summarize(told.steps_s).median < _SHORT_S
                self.by_turns = self._may_take_turns and short and (told.memory_share or 1.0) < _HALF
        return told if exact else self._noted(told, remedies)

    def _noted(self, told: Told, remedies: Sequence[tuple[str, Any]]) -> Told:
        if told.steps_s:
            self._steps_s[tuple(remedies)] = summarize(told.steps_s).median
        return told

    def _asked(self, remedies: Sequence[tuple[str, Any]], **more: Any) -> TrialRequest:
        place = self._new_place()
        keep = more.pop("keep", False)
        return TrialRequest(
            self._script.name,
            self._script.arguments,
            self._script.as_module,
            tuple(remedies),
            more.pop("steps", self.steps),
            self._seed,
            str(place / "scratch"),
            str(place / "answer.json"),
            self._protection,
            None if keep else str(self.reference_file),
            str(self.reference_file) if keep else None,
            evaluates=self._evaluates,
            places=more.pop("places", (self.place,)),
            noise=more.pop("noise", str(self._noise_file) if self._noise_file.exists() else None),
            **more,
        )

    def _new_place(self) -> Path:
        """Each trial gets its own folder."""
        self._count += 1
        place = self._folder / f"t{self._count}"
        (place / "scratch").mkdir(parents=True)
        return place

    def _afresh(self, asked: TrialRequest) -> TrialRequest:
        place = self._new_place()
        return replace(asked, scratch=str(place / "scratch"), answer=str(place / "answer.json"))

    def _start(self, asked: TrialRequest) -> int:
        question = Path(asked.answer).with_name("question.json")
        question.write_text(json.dumps(asdict(asked)))
        return self._forks.start("try", question, _words(asked))

    @property
    def _limit_s(self) -> float:
        return _FIRST_LIMIT_S if self._reference_s is None else 3 * self._reference_s + _COMPILE_S

    def _run(self, asked: TrialRequest) -> Told:
        began_s = time.monotonic()
        pid = self._start(asked)
        try:
            code = self._forks.wait(pid, self._limit_s)
        finally:
            self._forks.end(pid)
        return self._told(asked, code, time.monotonic() - began_s)

    def _run_at_once(self, asked: Sequence[TrialRequest]) -> list[Told]:
        """One that fails beside others runs again alone."""
        if len(asked) == 1:
            return [self._run(asked[0])]
        began_s, pids = time.monotonic(), list[int]()
        try:
            for question in asked:
                pids.append(self._start(question))
            codes = [self._forks.wait(pid, self._limit_s) for pid in pids]
        finally:
            for pid in pids:
                self._forks.end(pid)
        told = [self._told(one, code, time.monotonic() - began_s) for one, code in zip(asked, codes, strict=True)]
        for at, found in enumerate(told):
            if found.failure:
                told[at] = self._run(self._afresh(asked[at]))
                if not told[at].failure:
                    self._may_take_turns = self.by_turns = False  # the script holds a port, a lock or much memory
        return told

    def _told(self, asked: TrialRequest, code: int | None, took_s: float) -> Told:
        protecting.remove(Path(asked.scratch))  # with checkpoints, all trials together may fill a disk
        answer = Path(asked.answer)
        if code is not None and answer.exists():
            return Told.from_dict(json.loads(answer.read_text()))
        how = exit_words(code, printed_to(_words(asked)), self._limit_s)
        return Told(HUNG if code is None else CRASHED, f"the trial {how}", took_s=took_s)

    # in alternation

    def _beside(
        self, remedies: Sequence[tuple[str, Any]], against: Sequence[tuple[str, Any]], slow_s: float | None, losses: bool = True
    ) -> Told:
        """Both warm up, then run some steps in turn while the other is paused, until the speed-up is known."""
        how: dict[str, Any] = {
            "turn_s": self._turn_s(against),
            "steps": sys.maxsize,
            "losses": self.steps if losses else WARM_UP,
        }
        if self._on_device:
            how |= {"filling": _FILLING, "least": _LEAST_IN_A_TURN if self._ends_at is None else 1}
        asked = [self._asked(remedies, slow_s=slow_s, **how), self._asked(against, **how)]
        began_s = time.monotonic()
        codes = self._codes_by_turns(asked, _PRECISE if not losses else math.inf)
        told, beside = (
            Told(BESIDE) if code == PAUSED else self._told(one, code, time.monotonic() - began_s)
            for one, code in zip(asked, codes, strict=True)
        )
        if told.differs:
            return told
        if told.failure and told.failure != BESIDE:
            # on a device both start at once, and either may find a resource in use
            is_its_own = told.failure == SLOWER or not (self._on_device or any(words in told.why for words in _NO_ROOM))
            return told if is_its_own else Told(FOR_TWO, told.why)
        if told.failure or beside.failure:
            return Told(BESIDE, beside.why)
        pairs = min(len(told.steps_s), len(beside.steps_s))
        if pairs < _LOOKS[0] and not all(one.enough.exists() for one in asked):
            self._ends_at = min(told.steps_done, beside.steps_done)
        return replace(
            told,
            steps_s=told.steps_s[:pairs],
            against_s=beside.steps_s[:pairs],
            against_evaluations_s=beside.evaluations_s,
            against_first_s=beside.first_s,
            took_s=time.monotonic() - began_s,
        )

    def _codes_by_turns(self, asked: Sequence[TrialRequest], precise: float) -> list[int | None]:
        """The exit codes of both; PAUSED for one that was not waited for because the other failed."""
        codes: list[int | None] = [PAUSED for _ in asked]
        pids: list[int] = []

        def goes_on(at: int) -> None:
            self._say_until(asked[at], asked[1 - at])
            self._forks.go_on(pids[at])
            codes[at] = self._forks.wait(pids[at], self._limit_s)

        try:
            if self._on_device:  # there are enough cores to start both at once
                pids += [self._start(one) for one in asked]
            for at, one in enumerate(asked):
                if at == len(pids):
                    pids.append(self._start(one))
                codes[at] = self._forks.wait(pids[at], self._limit_s)
                if codes[at] != PAUSED:
                    return codes
            order, began_s = [1, 0], time.monotonic()  # the baseline goes first and sets the length of a turn
            while all(code == PAUSED for code in codes):
                if self._is_clear(asked, precise, time.monotonic() - began_s):
                    self._say_enough(asked)
                for at in order:
                    goes_on(at)
                order.reverse()
            for at, code in enumerate(codes):  # scripts with a time limit do not end together
                if code == PAUSED and 0 in codes:
                    self._say_enough(asked[at : at + 1])
                    goes_on(at)
            return codes
        finally:
            for pid in pids:
                self._forks.end(pid)

    def _say_until(self, one: TrialRequest, other: TrialRequest) -> None:
        """Both run the same steps in a turn, so that the end of an epoch, a longer batch or a checkpoint occurs in both. The
        number of steps is chosen for the wanted length of a turn."""
        mine, beside = one.turns_until_now(), other.turns_until_now()
        if len(beside) > len(mine):
            last = beside[len(mine)][1]
        elif mine and beside:
            times = [fmean(step_s for step_s, _ in turns) for turns in (mine, beside)]
            step_s = math.sqrt(math.prod(times)) if self._ends_at is None else max(times)
            last = mine[-1][1] + max(one.least + one.filling, round(one.turn_s / step_s))
        else:
            return
        one.until.write_text(str(last))

    @staticmethod
    def _say_enough(asked: Sequence[TrialRequest]) -> None:
        for one in asked:
            one.enough.touch()

    def _is_clear(self, asked: Sequence[TrialRequest], precise: float, took_s: float) -> bool:
        """Is the speed-up known? Checked a few times only, because every check may be right or wrong by chance."""
        mine, beside = (one.turns_until_now() for one in asked)
        turns, proves = min(len(mine), len(beside)), asked[0].losses or 0
        if turns == _HOPELESS_AFTER and all(mine[at][0] > _HOPELESS * beside[at][0] for at in range(turns)):
            return True
        unproven = sum(step < proves for _, step in mine)  # turns before all losses were recorded
        if turns <= unproven:
            return False
        longest_s, most_s = (_ON_DEVICE_S, _ON_DEVICE_S) if self._on_device else (_TURNS_S, _LONGEST_S)
        if time.monotonic() > self._over_at_s:
            most_s = longest_s
        if turns < _LOOKS[0]:  # late compilation or the end of a short epoch takes most of the time
            longest_s = most_s = _FEW_TURNS * longest_s
        longest_s, most_s = min(longest_s, self._one_s), min(most_s, self._one_s)
        is_due = turns in _LOOKS or turns == unproven + 1 > _LOOKS[0]
        if not is_due and took_s < longest_s:
            return False
        was, now = ([step_s for step_s, _ in one[:turns]] for one in (beside, mine))
        found = speed_up(ComparedTimes(now, was, paired=True), margin=0.0)
        hopeless = found.ratio < 1 + WORTH / 2 and (self._on_device or found.high < 1 + 3 * WORTH)
        is_known = found.high - found.low < precise * found.ratio
        if is_due and is_known and (found.low > 1 + WORTH or found.high < 1 + WORTH or hopeless):
            return True
        return turns >= _LOOKS[-1] or took_s > (most_s if found.ratio > 1 + 2 * WORTH else longest_s)

    def _turn_s(self, against: Sequence[tuple[str, Any]]) -> float:
        """Length of a turn; shorter for a script with few steps, so that there are enough turns."""
        wanted_s = _TURN_ON_DEVICE_S if self._on_device else _TURN_S
        if self._ends_at is None:
            return wanted_s
        return min(wanted_s, self._steps_s.get(tuple(against), 0.0) * (self._ends_at - WARM_UP - 1) / _LOOKS[0])


def _words(asked: TrialRequest) -> Path:
    return Path(asked.answer).with_name("words.txt")
