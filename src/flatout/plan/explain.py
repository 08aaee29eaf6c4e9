"""A plan as one tree: what was chosen, why, and what it was measured to give once the run is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.base.tree import Cell, Column, Doc, Fields, Line, Table
from flatout.base.units import show_flops, show_rate, show_share
from flatout.plan.plan import Choice, Plan

_COLUMNS = (
    Column("name", "setting"),
    Column("value", "value"),
    Column("why", "why"),
    Column("source", "source", shown=False),
    Column("predicted", "predicted", right=True, shown=False),
    Column("measured", "measured", right=True, shown=False),
)
_HEAVY = (
    "device", "tier", "cache_compression", "precision", "compile", "graph", "fused_optimizer", "channels_last",
    "deterministic", "micro_batch",
)  # fmt: skip


def explain(plan: Plan, result: Mapping[str, Any] | None = None, degraded: tuple[Mapping[str, Any], ...] = ()) -> Doc:
    """`degraded`: what had to be done otherwise than planned, from the run's events."""
    predicted = plan.prediction.rate(plan.batch)
    measured = (result or {}).get("samples_per_s")
    rate = measured or predicted
    share = _share(plan, rate)
    shown = [c for c in plan.choices if c.name in _HEAVY or c.source == "pinned"]
    folded = [c for c in plan.choices if c not in shown]
    return Doc(
        (
            Line(_headline(plan, predicted, measured, share), strong=True),
            Line(),
            Fields({"model": plan.model, "machine": plan.machine, "rate": _per_unit(plan, rate), "unit": plan.unit}),
            Fields({"bound": plan.prediction.bound, "ceiling_share": share}),
            Table("settings", _COLUMNS, [_row(c) for c in shown], fold=[_row(c) for c in folded], fold_note=_names(folded)),
            *_rejected(plan),
            *_degraded(degraded),
        )
    )


def _headline(plan: Plan, predicted: float | None, measured: float | None, share: float | None) -> str:
    parts = [f"Plan for {plan.model} on {plan.machine}"]
    if measured:
        of_ceiling = ""
        if share is not None:
            of_ceiling = f", {show_share(share)} of its {show_flops(plan.prediction.ceiling_flops or 0)}"
        parts.append(f"{show_rate(measured * plan.per_sample, plan.unit)} measured{of_ceiling}")
    if predicted:
        parts.append(f"at most {show_rate(predicted * plan.per_sample, plan.unit)}, bound by {plan.prediction.bound}")
    elif plan.prediction.reason:
        parts.append(f"no prediction: {plan.prediction.reason}")
    return " · ".join(parts)


def _row(choice: Choice) -> dict[str, Any]:
    return {
        "name": Cell(choice.name, choice.name.replace("_", " ")),
        "value": Cell(choice.value, _shown_value(choice)),
        "why": choice.why,
        "source": choice.source,
        "predicted": choice.predicted,
        "measured": choice.measured,
    }


def _shown_value(choice: Choice) -> str:
    if isinstance(choice.value, bool):
        return "on" if choice.value else "off"
    if choice.name in ("micro_batch", "evaluation_batch") and choice.value == 0:
        return "whole"
    if choice.name == "log_every" and choice.value == 0:
        return "auto"
    return str(choice.value)


def _names(choices: list[Choice]) -> str:
    return "more at default: " + ", ".join(f"{c.name.replace('_', ' ')} {_shown_value(c)}" for c in choices)


def _rejected(plan: Plan) -> list[Line | Fields]:
    fields = Fields({"rejected": [{"name": r.name, "value": r.value, "why": r.why} for r in plan.rejected]})
    if not plan.rejected:
        return [fields]
    text = "; ".join(f"{r.name.replace('_', ' ')} {r.value} ({r.why})" for r in plan.rejected)
    return [Line(), Line(f"rejected: {text}"), fields]


def _degraded(events: tuple[Mapping[str, Any], ...]) -> list[Line | Fields]:
    if not events:
        return []
    lines = [Line(f"degraded: {event.get('what')}: {event.get('why')}") for event in events]
    return [Line(), *lines, Fields({"degraded": [{"what": e.get("what"), "why": e.get("why")} for e in events]})]


def _share(plan: Plan, rate: float | None) -> float | None:
    prediction = plan.prediction
    if rate is None or not prediction.flops_per_sample or not prediction.ceiling_flops:
        return None
    return rate * prediction.flops_per_sample / prediction.ceiling_flops


def _per_unit(plan: Plan, rate: float | None) -> float | None:
    return None if rate is None else rate * plan.per_sample
