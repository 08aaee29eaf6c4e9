"""What a promise costs: the settings that came out of a search once more, with the promise the other way round.

That is never kept, whatever it gains. But whoever wants the promise, or could do without it, should know its price.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from flatout.engine.settings import Settings, value_of, with_values
from flatout.measure.judging import Judgement, Rejection, speed_up, time_ratio, times_of
from flatout.measure.receipt import Entry
from flatout.measure.recording import NOT_RECORDED
from flatout.measure.trial_record import entry_of
from flatout.plan.knobs.all import conflicts
from flatout.plan.knobs.knob import Candidate, Priced
from flatout.plan.options import MARGIN, MEASURE_S, STEPS_LOOKED_AT
from flatout.plan.situation import Situation
from flatout.plan.trials.reports import Ask, TrialReport, Tries

_PATIENCE_S, _PATIENCE = 20.0, 4.0  # some time, and so many times what it should take
_OF_PLANNING, _OF_THE_RUN = 0.03, 0.01  # the most that a price may cost to know, unless somebody asks for it


def cheap_s(limit_s: float, run_s: float) -> float:
    """What a price may cost in a run that did not ask for it."""
    return min(_OF_PLANNING * limit_s, _OF_THE_RUN * run_s)


def prices(
    s: Situation,
    knobs: Sequence[Priced],
    tries: Tries,
    settings: Settings,
    reference: Settings,
    steps_s: Sequence[float],
    *,
    first_s: float = 0.0,
    most_s: float,
    interrupted: Callable[[], None] = lambda: None,
) -> list[Entry]:
    """An entry for each knob whose price could be had in `most_s`.

    `settings` took `steps_s` a step, and `first_s` to build and compile. Ctrl-C ends it with what is known until then.
    """
    found: list[Entry] = []
    expected_s = MEASURE_S + first_s + STEPS_LOOKED_AT * median(steps_s)
    try:
        for knob in knobs:
            if knob.name in s.pins or not knob.priced:
                continue
            for candidate in knob.candidates(s, settings):
                turned = with_values(settings, {knob.name: candidate.value})
                if expected_s > most_s or conflicts(turned):
                    continue
                most_s -= expected_s
                arms = (turned.to_dict(), settings.to_dict(), reference.to_dict())
                report = tries.attempt(Ask(*arms, MEASURE_S, patience_s=_PATIENCE_S + _PATIENCE * expected_s))
                if report.failure != NOT_RECORDED:
                    found.append(_entry(knob, candidate, value_of(settings, knob.name), report, steps_s))
    except KeyboardInterrupt:
        interrupted()
    return found


def _entry(knob: Priced, candidate: Candidate, stands: Any, report: TrialReport, steps_s: Sequence[float]) -> Entry:
    if not report.ran:
        found = Judgement(Rejection.FAILED, knob.unpriced(f"{report.failure}: {report.why}"))
        return entry_of(knob.name, candidate.value, stands, report, found)
    times = times_of(report, TrialReport(report.settings, steps_s=tuple(steps_s)))
    why = knob.price(candidate.value, time_ratio(times, MARGIN))
    if report.check is not None and not report.check["passed"]:
        why = f"not the same: {report.check['why']}; {why}"
    found = Judgement(Rejection.NOT_REPAID, why, speed_up(times, MARGIN))  # a promise is kept, whatever it costs
    return entry_of(knob.name, candidate.value, stands, report, found)
