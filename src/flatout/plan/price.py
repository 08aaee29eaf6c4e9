"""What a promise costs: the settings that came out of a search once more, with the promise the other way round.

That is never kept, whatever it gains. But whoever wants the promise, or could do without it, should know its price.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from flatout.engine.settings import Settings, value_of, with_values
from flatout.measure.receipt import REJECTED, Entry
from flatout.measure.stats import Comparison, compare, compare_paired
from flatout.plan.knobs.all import conflicts
from flatout.plan.knobs.knob import Candidate, Priced
from flatout.plan.options import MARGIN, MEASURE_S, STEPS_LOOKED_AT
from flatout.plan.situation import Situation
from flatout.plan.trials.reports import NOT_RECORDED, Ask, Report, Tries

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
                    found.append(entry_of(knob, candidate, value_of(settings, knob.name), report, steps_s))
    except KeyboardInterrupt:
        interrupted()
    return found


def entry_of(knob: Priced, candidate: Candidate, stands: Any, report: Report, steps_s: Sequence[float]) -> Entry:
    if not report.ran:
        why = knob.unpriced(f"{report.failure}: {report.why}")
        return Entry(knob.name, candidate.value, stands, REJECTED, why, took_s=report.took_s)
    found = _compared(report, steps_s)
    why = knob.price(candidate.value, found)
    if report.check is not None and not report.check["passed"]:
        why = f"not the same: {report.check['why']}; {why}"
    return Entry(
        name=knob.name,
        value=candidate.value,
        instead_of=stands,
        verdict=REJECTED,
        why=why,
        measured=1 / found.ratio,
        low=1 / found.high,
        high=1 / found.low,
        n=found.n,
        step_s=median(report.steps_s),
        against_s=median(report.against_s) if report.against_s else None,
        first_s=report.first_s,
        peak_bytes=report.peak_bytes,
        check=report.check,
        took_s=report.took_s,
    )


def _compared(report: Report, steps_s: Sequence[float]) -> Comparison:
    if report.against_s:
        return compare_paired(report.steps_s, report.against_s, prefer="min", margin=MARGIN)
    return compare(report.steps_s, steps_s, prefer="min", margin=MARGIN)
