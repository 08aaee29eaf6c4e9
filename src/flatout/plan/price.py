"""The cost of a guarantee (such as determinism): times the final settings once more with the guarantee switched.

The switched settings are never kept. The price tells users who want the guarantee, or could do without it, what it costs.
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

_PATIENCE_S, _PATIENCE = 20.0, 4.0  # time limit: this many seconds plus this factor on the expected time
_OF_PLANNING, _OF_THE_RUN = 0.03, 0.01  # largest share of planning time and of the run for measuring a price, unless requested


def cheap_s(limit_s: float, run_s: float) -> float:
    """Time for measuring prices in a run that did not request them."""
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
    """An entry for each knob whose price could be measured in `most_s`.

    `settings` took `steps_s` per step, and `first_s` to build and compile. Ctrl-C ends it with the prices known so far.
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
    found = Judgement(Rejection.NOT_REPAID, why, speed_up(times, MARGIN))  # a guarantee is kept, whatever it costs
    return entry_of(knob.name, candidate.value, stands, report, found)
