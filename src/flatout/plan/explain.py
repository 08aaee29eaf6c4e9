"""A plan as one tree: each setting with its value and reason, and its measured gain after the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.base.tree import Cell, Doc, Fields, Node, Table, TableColumn, TextLine
from flatout.base.units import show_flops, show_gain, show_joules, show_rate, show_seconds, show_share, show_value
from flatout.engine.settings import Settings
from flatout.measure.receipt import UNTRIED, Receipt
from flatout.plan.knobs.all import rules_of
from flatout.plan.plan import Choice, Plan
from flatout.plan.roofline import roofline

_NAMED = 6  # up to this many default settings are listed by name
_PLAIN = Settings()


def explain(
    plan: Plan,
    result: Mapping[str, Any] | None = None,
    degraded: tuple[Mapping[str, Any], ...] = (),
    receipt: Receipt | None = None,
    short_of_memory: str | None = None,
    busy: str | None = None,
) -> Doc:
    """`degraded`: deviations from the plan, from the run's events. `receipt`: of the trials before the run.

    `short_of_memory`: why the job does not fit the device. `busy`: what other processes use, if it is much.
    """
    predicted = plan.prediction.rate(plan.batch)
    measured = (result or {}).get("samples_per_s")
    rate = measured or predicted
    share = _share(plan, rate)
    shown = [c for c in plan.choices if c.source == "pinned" or _matters(c, plan)]
    folded = [c for c in plan.choices if c not in shown]
    return Doc(
        (
            TextLine(_headline(plan, predicted, measured, share), strong=True),
            *_short_of_memory(short_of_memory),
            *_busy(busy),
            *_frozen(plan),
            TextLine(),
            Fields({"model": plan.model, "machine": plan.machine, "rate": _per_unit(plan, rate), "unit": plan.unit}),
            Fields({"bound": plan.prediction.bound, "ceiling_share": share}),
            Table(
                "settings", _columns(plan), [_row(c) for c in shown], fold=[_row(c) for c in folded], fold_note=_names(folded)
            ),
            *_unforeseen(plan),
            *_rejected(plan),
            *_trials(receipt),
            *_degraded(degraded),
            *_roofline(plan),
        )
    )


def _busy(line: str | None) -> list[Node]:
    return [] if line is None else [TextLine(line), Fields({"busy": line})]


def _frozen(plan: Plan) -> list[Node]:
    return [TextLine(plan.frozen), Fields({"frozen": plan.frozen})] if plan.frozen else []


def _short_of_memory(why: str | None) -> list[Node]:
    return [] if why is None else [TextLine(f"memory: {why}"), Fields({"short_of_memory": why})]


def _matters(choice: Choice, plan: Plan) -> bool:
    """Whether it gets its own row; other settings at their default are folded into one line."""
    if (shown := rules_of(choice.name).shown) is not None:
        return shown(plan.settings)
    return bool(choice.value != vars(_PLAIN).get(choice.name, choice.value))


def _columns(plan: Plan) -> tuple[TableColumn, ...]:
    """The factor columns are shown only if there are factors; in JSON always."""
    tried = any(choice.measured is not None for choice in plan.choices)
    return (
        TableColumn("name", "setting"),
        TableColumn("value", "value"),
        TableColumn("why", "why"),
        TableColumn("source", "source", shown=False),
        TableColumn("predicted", "predicted", right=True, shown=tried),
        TableColumn("measured", "measured", right=True, shown=tried),
        TableColumn("step_j", "energy a step", right=True, shown=any(choice.step_j is not None for choice in plan.choices)),
    )


def _headline(plan: Plan, predicted: float | None, measured: float | None, share: float | None) -> str:
    parts = [f"Plan for {plan.model} on {plan.machine}"]
    if measured:
        of_ceiling = ""
        if share is not None:
            of_ceiling = f", {show_share(share)} of its {show_flops(plan.prediction.ceiling_flops or 0)}"
        parts.append(f"{show_rate(measured * plan.per_sample, plan.unit)} measured{of_ceiling}")
    if predicted:
        parts.append(f"{show_rate(predicted * plan.per_sample, plan.unit)} predicted, bound by {plan.prediction.bound}")
    elif plan.prediction.reason:
        parts.append(f"no prediction: {plan.prediction.reason}")
    return " · ".join(parts)


def _row(choice: Choice) -> dict[str, Any]:
    return {
        "name": Cell(choice.name, choice.name.replace("_", " ")),
        "value": Cell(choice.value, _shown_value(choice)),
        "why": choice.why,
        "source": choice.source,
        "predicted": _factor(choice.predicted),
        "measured": _factor(choice.measured, " *" if choice.unforeseen else ""),
        "step_j": None if choice.step_j is None else Cell(choice.step_j, show_joules(choice.step_j)),
    }


def _factor(value: float | None, mark: str = "") -> Cell | None:
    return None if value is None else Cell(value, f"{show_gain(value)}{mark}")


def _unforeseen(plan: Plan) -> list[TextLine]:
    marked = any(choice.unforeseen for choice in plan.choices)
    return [TextLine("* the setting's own gain differs from its prediction by more than the noise")] if marked else []


def _trials(receipt: Receipt | None) -> list[TextLine | Fields]:
    if receipt is None:
        return []
    if receipt.gain is None:
        return [TextLine(), TextLine(f"no trials: {receipt.stopped}")]
    tried = sum(1 for entry in receipt.entries if entry.verdict != UNTRIED)
    learned = f"same training loss over {receipt.paired['n']} steps; " if receipt.paired else ""
    gained = f"{receipt.gain:.2f}x the baseline's speed"
    if receipt.reference_step_j and receipt.step_j:
        gained += f", {show_joules(receipt.step_j)} a step instead of {show_joules(receipt.reference_step_j)} ({receipt.meter})"
    line = f"trials: {tried} in {show_seconds(receipt.took_s)}, {gained}; {learned}{receipt.stopped}"
    return [TextLine(), TextLine(line), *(TextLine(note) for note in receipt.notes)]


def _roofline(plan: Plan) -> list[Node]:
    found = roofline(plan.prediction)
    return [TextLine(), *found] if found else []


def _shown_value(choice: Choice) -> str:
    return (rules_of(choice.name).zero if choice.value == 0 else "") or show_value(choice.value)


def _names(choices: list[Choice]) -> str:
    if len(choices) > _NAMED:
        return "more at default; explain --json shows them with reasons"
    return "more at default: " + ", ".join(f"{c.name.replace('_', ' ')} {_shown_value(c)}" for c in choices)


def _rejected(plan: Plan) -> list[TextLine | Fields]:
    fields = Fields({"rejected": [{"name": r.name, "value": r.value, "why": r.why} for r in plan.rejected]})
    if not plan.rejected:
        return [fields]
    text = "; ".join(f"{r.name.replace('_', ' ')} {show_value(r.value)} ({r.why})" for r in plan.rejected)
    return [TextLine(), TextLine(f"rejected: {text}"), fields]


def _degraded(events: tuple[Mapping[str, Any], ...]) -> list[TextLine | Fields]:
    if not events:
        return []
    lines = [TextLine(f"degraded: {event.get('what')}: {event.get('why')}") for event in events]
    return [TextLine(), *lines, Fields({"degraded": [{"what": e.get("what"), "why": e.get("why")} for e in events]})]


def _share(plan: Plan, rate: float | None) -> float | None:
    prediction = plan.prediction
    if rate is None or not prediction.flops_per_sample or not prediction.ceiling_flops:
        return None
    return rate * prediction.flops_per_sample / prediction.ceiling_flops


def _per_unit(plan: Plan, rate: float | None) -> float | None:
    return None if rate is None else rate * plan.per_sample
