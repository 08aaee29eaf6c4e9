"""Applies the search's result to the default plan: proven settings, each with its evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flatout.base.units import show_value
from flatout.engine.settings import Settings, value_of
from flatout.measure.receipt import KEPT, REJECTED, Entry, Receipt
from flatout.plan.knobs.knob import Knob
from flatout.plan.plan import Choice, Plan, RejectedSetting
from flatout.plan.situation import Situation


def steps_to_come(s: Situation) -> float | None:
    """Steps of the run as requested; None: unknown."""
    if s.total_steps is not None:
        return float(s.total_steps)
    if s.expected_s is not None and s.plain.step_s:
        return s.expected_s / s.plain.step_s
    return None


def with_receipt(plan: Plan, receipt: Receipt, s: Situation, knobs: Sequence[Knob], source: str) -> Plan:
    """The plan with the proven settings; unchanged if nothing could be measured."""
    if receipt.step_s is None:
        return plan
    searched = {knob.name for knob in knobs if knob.name not in s.pins}
    settings = Settings(**receipt.settings)
    cumulative = _cumulative(receipt)
    choices = tuple(
        _tried(choice, receipt, cumulative, source) if choice.name in searched else choice for choice in plan.choices
    )
    told = [RejectedSetting(entry.name, entry.value, entry.why) for entry in receipt.entries if entry.verdict != KEPT]
    rejected = (*(r for r in plan.rejected if r.name not in searched), *told)
    prediction = s.predicted(settings)
    return replace(plan, settings=settings, choices=choices, rejected=rejected, prediction=prediction)


def _cumulative(receipt: Receipt) -> dict[str, tuple[float, float]]:
    """Predicted and measured speed-up over the baseline after each kept knob."""
    found: dict[str, tuple[float, float]] = {}
    predicted = measured = 1.0
    for entry in receipt.entries:
        if entry.verdict == KEPT:
            predicted *= entry.predicted or 1.0
            measured *= entry.measured or 1.0
            found[entry.name] = (predicted, measured)
    return found


def _tried(choice: Choice, receipt: Receipt, cumulative: Mapping[str, tuple[float, float]], source: str) -> Choice:
    value: Any = value_of(Settings(**receipt.settings), choice.name)
    entries = [entry for entry in receipt.entries if entry.name == choice.name]
    kept = [entry for entry in entries if entry.verdict == KEPT and entry.value == value]
    if kept:
        predicted, measured = cumulative[choice.name]
        return Choice(choice.name, value, kept[-1].why, source, predicted, measured, kept[-1].step_j, _unforeseen(kept[-1]))
    tried = [entry for entry in entries if entry.verdict == REJECTED]
    if tried:
        return Choice(choice.name, value, f"tried {show_value(tried[-1].value)}: {tried[-1].why}", source)
    if entries:
        untried, why = entries[-1].value, entries[-1].why
        return Choice(choice.name, value, why if untried == value else f"{show_value(untried)} not tried: {why}", source)
    return choice if value == choice.value else Choice(choice.name, value, "nothing else applies here", source)


def _unforeseen(entry: Entry) -> bool:
    """Compares the knob's own factor; the table's columns multiply the factors so far."""
    if entry.predicted is None or entry.low is None or entry.high is None:
        return False
    return not entry.low <= entry.predicted <= entry.high
