"""A recording of trials: the bench's replies, stored by the settings that were asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from flatout.engine.setting_values import SettingScope
from flatout.engine.settings import Settings, settings_of
from flatout.measure.recording import NOT_RECORDED, Answers
from flatout.plan.trials.reports import CRASHED, HUNG, Ask, Losses, PeakMemory, TrialReport, Tries

_PASSING = (CRASHED, HUNG)  # temporary, such as a kill from outside: may succeed next time


_REPORTS, _LOSSES, _HELD = "reports", "losses", "held"


class Recording:
    """`live` answers questions that are not recorded, and its replies are recorded; without it they are failed trials."""

    def __init__(self, written: Mapping[str, Any] | None = None, live: Tries | None = None) -> None:
        self._answers, self._live = Answers((_REPORTS, _LOSSES, _HELD), written, _PASSING), live
        self.clock, self.to_dict = self._answers.clock, self._answers.to_dict

    @property
    def asked_live(self) -> int:
        return self._answers.asked_live

    @property
    def replayed(self) -> int:
        """Replies taken from the recording."""
        return self._answers.replayed

    def attempt(self, ask: Ask) -> TrialReport:
        alone = shown(ask.settings)
        in_turns = f"{alone} beside {shown(ask.against or {})}"  # a key of stored recordings: never change
        if (known := self._answers.known(_REPORTS, in_turns, alone)) is not None:
            return TrialReport.from_dict(known)
        if self._live is None:
            return TrialReport(dict(ask.settings), NOT_RECORDED)
        report = self._live.attempt(ask)
        self._answers.asked(_REPORTS, report.to_dict(), in_turns if report.against_s else alone)
        return report

    def losses(self, settings: Mapping[str, Any], steps: int, seed: int, after: int = 0) -> Losses:
        key = f"{shown(settings)}; {steps} steps, seed {seed}" + (f", after {after}" if after else "")
        if (known := self._answers.known(_LOSSES, key)) is not None:
            return Losses.from_dict(known)
        if self._live is None:
            return Losses(dict(settings), (), NOT_RECORDED)
        found = self._live.losses(settings, steps, seed, after)
        self._answers.asked(_LOSSES, asdict(found), key)
        return found

    def held(self, settings: Mapping[str, Any], rows: int) -> PeakMemory:
        key = f"{shown(settings)}; {rows} rows"
        if (known := self._answers.known(_HELD, key)) is not None:
            return PeakMemory(**known)
        if self._live is None:
            return PeakMemory(rows, 0, 0, NOT_RECORDED)
        found = self._live.held(settings, rows)
        self._answers.asked(_HELD, asdict(found), key)
        return found


def shown(settings: Mapping[str, Any]) -> str:
    """Settings as text: those that change a step, if not at the baseline's value."""
    plain, around = vars(Settings()), settings_of(SettingScope.AROUND_THE_STEP)
    told = {name: value for name, value in settings.items() if name not in around and plain.get(name) != value}
    return ", ".join(f"{name}={value}" for name, value in sorted(told.items())) or "plain"
