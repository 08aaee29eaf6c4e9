"""What runs cost, as a tree: hours, energy and USD by the kind of work, and how much of it was not training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flatout.base.tree import Cell, Doc, Fields, Node, Table, TableColumn, TextLine
from flatout.base.units import show_energy, show_seconds
from flatout.runs.costs import KINDS, WASTED, RunCost

_MOST_RUNS = 5  # that are named
_ADVICE = {
    "evaluation": "evaluate less often, or on fewer rows: evaluate: '2 epochs'",
    "compiling": "the compile cache keeps compiled code between runs of one machine",
    "waiting for data": "`flatout data RECIPE` says which stage is slow",
    "killed work": "save more often: checkpoint_every, or failure_every on spot machines",
    "failed runs": "`flatout overfit RECIPE` and a short budget find most mistakes in seconds",
    "trials of settings": "`--planning '1 min'` limits them; later runs of the same recipe use what was measured",
}


def costs_doc(costs: Sequence[RunCost], unreadable: Mapping[str, str], *, window: str, co2_per_kwh: float | None) -> Doc:
    """`unreadable`: the runs that could not be counted, with the reason. `window`: which runs were asked for, in words."""
    if not costs:
        words = f"no runs {window}" + (f"; {len(unreadable)} could not be read" if unreadable else "")
        return Doc((TextLine(words), Fields(_fields(costs, unreadable, co2_per_kwh)), *_unreadable(unreadable)))
    return Doc(
        (
            TextLine(_headline(costs, window), strong=True),
            TextLine(),
            by_kind(costs),
            *_summary(costs, co2_per_kwh),
            *_most_expensive(costs),
            *_unreadable(unreadable),
            Fields(_fields(costs, unreadable, co2_per_kwh)),
        )
    )


def by_kind(costs: Sequence[RunCost]) -> Table:
    """A row for each kind of work, and the sum."""
    whole_h = math.fsum(cost.hours for cost in costs)
    priced, metered = any(cost.price is not None for cost in costs), any(cost.joules for cost in costs)
    columns = (
        TableColumn("kind", "work"), TableColumn("hours", "time", right=True), TableColumn("share", "share", right=True),
        TableColumn("joules", "energy", right=True, shown=metered), TableColumn("usd", "USD", right=True, shown=priced),
        TableColumn("waste", "waste", shown=False),
    )  # fmt: skip
    rows = []
    for kind in KINDS:
        hours = math.fsum(cost.seconds.get(kind, 0.0) for cost in costs) / 3600
        joules = math.fsum(cost.joules.get(kind, 0.0) for cost in costs)
        if hours or joules:
            usd = math.fsum(cost.seconds.get(kind, 0.0) / 3600 * (cost.price or 0.0) for cost in costs)
            rows.append(_row(kind, hours, whole_h, joules, usd if priced else None, kind in WASTED))
    joules = math.fsum(math.fsum(cost.joules.values()) for cost in costs)
    rows.append(_row("all", whole_h, whole_h, joules, _usd(costs) if priced else None, None))
    return Table("by_kind", columns, rows)


def waste_line(costs: Sequence[RunCost]) -> str:
    """ "Not training: 12.1 h, 29% of all, 43.60 USD; most of it evaluation (8 h): evaluate less often"."""
    hours, wasted = math.fsum(cost.hours for cost in costs), math.fsum(cost.wasted_hours for cost in costs)
    if not wasted:
        return "Not training: nothing"
    usd = f", {_dollars(wasted_usd)} USD" if (wasted_usd := _wasted_usd(costs)) is not None else ""
    each = {kind: math.fsum(cost.seconds.get(kind, 0.0) for cost in costs) / 3600 for kind in KINDS if kind in WASTED}
    most = max(each, key=lambda kind: each[kind])
    advice = f": {_ADVICE[most]}" if most in _ADVICE else ""
    return f"Not training: {_hours(wasted)}, {wasted / hours:.0%} of all{usd}; most of it {most} ({_hours(each[most])}){advice}"


def _row(kind: str, hours: float, whole_h: float, joules: float, usd: float | None, waste: bool | None) -> dict[str, Any]:
    share = hours / whole_h if whole_h else 0.0
    return {
        "kind": kind,
        "hours": Cell(hours, _hours(hours)),
        "share": Cell(share, f"{share:.1%}"),
        "joules": Cell(joules, show_energy(joules)) if joules else None,
        "usd": None if usd is None else Cell(usd, _dollars(usd)),
        "waste": waste,
    }


def _headline(costs: Sequence[RunCost], window: str) -> str:
    statuses: dict[str, int] = {}
    for cost in costs:
        statuses[cost.status] = statuses.get(cost.status, 0) + 1
    words = ", ".join(f"{count:,} {status}" for status, count in sorted(statuses.items(), key=lambda pair: -pair[1]))
    return f"{len(costs):,} run{'' if len(costs) == 1 else 's'} {window}: {words}"


def _summary(costs: Sequence[RunCost], co2_per_kwh: float | None) -> list[Node]:
    lines = ["", waste_line(costs)]
    meters: dict[str, int] = {}
    for cost in costs:
        meters[cost.meter or "unavailable"] = meters.get(cost.meter or "unavailable", 0) + 1
    lines.append("Energy: " + ", ".join(f"{meter} ({count:,})" for meter, count in meters.items()))
    if (co2 := _co2(costs, co2_per_kwh)) is not None:
        unknown = f"; {meters['unavailable']:,} runs without a meter are not in it" if "unavailable" in meters else ""
        lines.append(f"CO2: {co2:.3g} kg at {co2_per_kwh:g} kg/kWh, as given{unknown}")
    elif co2_per_kwh is not None:
        lines.append("CO2: unavailable: no run could read a meter of energy")
    if unpriced := [cost for cost in costs if cost.price is None]:
        hours = math.fsum(cost.hours for cost in unpriced)
        which = "No price is known" if len(unpriced) == len(costs) else f"No price is known of {len(unpriced):,} runs"
        lines.append(f"{which} ({_hours(hours)}): price_per_hour in the recipe, FLATOUT_PRICE_PER_HOUR, or --price")
    return [TextLine(line) for line in lines]


def _most_expensive(costs: Sequence[RunCost]) -> list[Node]:
    if len(costs) < 2:
        return []
    priced = all(cost.price is not None for cost in costs)
    ordered = sorted(costs, key=lambda cost: (cost.usd or 0.0) if priced else cost.hours, reverse=True)[:_MOST_RUNS]
    columns = (
        TableColumn("run", "most expensive" if priced else "longest"), TableColumn("status", "status"),
        TableColumn("hours", "time", right=True), TableColumn("usd", "USD", right=True, shown=priced),
        TableColumn("wasted_hours", "not training", right=True),
    )  # fmt: skip
    rows = [
        {
            "run": cost.name, "status": cost.status, "hours": Cell(cost.hours, _hours(cost.hours)),
            "usd": None if cost.usd is None else Cell(cost.usd, _dollars(cost.usd)),
            "wasted_hours": Cell(cost.wasted_hours, _hours(cost.wasted_hours)),
        }
        for cost in ordered
    ]  # fmt: skip
    return [TextLine(), Table("most_expensive", columns, rows)]


def _unreadable(unreadable: Mapping[str, str]) -> list[Node]:
    shown = [TextLine(f"not counted: {why}") for why in list(unreadable.values())[:_MOST_RUNS]]
    more = len(unreadable) - len(shown)
    return [*([TextLine()] if shown else []), *shown, *([TextLine(f"and {more:,} more")] if more > 0 else [])]


def _fields(costs: Sequence[RunCost], unreadable: Mapping[str, str], co2_per_kwh: float | None) -> dict[str, Any]:
    joules = math.fsum(math.fsum(cost.joules.values()) for cost in costs)
    return {
        "runs": len(costs), "hours": math.fsum(cost.hours for cost in costs),
        "kwh": joules / 3.6e6 if any(cost.joules for cost in costs) else None,
        "runs_with_a_meter": sum(1 for cost in costs if cost.meter), "usd": _usd(costs),
        "wasted_hours": math.fsum(cost.wasted_hours for cost in costs), "wasted_usd": _wasted_usd(costs),
        "runs_without_a_price": sum(1 for cost in costs if cost.price is None), "co2_kg": _co2(costs, co2_per_kwh),
        "unreadable": dict(unreadable),
    }  # fmt: skip


def _usd(costs: Sequence[RunCost]) -> float | None:
    known = [cost.usd for cost in costs if cost.usd is not None]
    return math.fsum(known) if known else None


def _wasted_usd(costs: Sequence[RunCost]) -> float | None:
    known = [cost.wasted_usd for cost in costs if cost.wasted_usd is not None]
    return math.fsum(known) if known else None


def _co2(costs: Sequence[RunCost], co2_per_kwh: float | None) -> float | None:
    if co2_per_kwh is None or not any(cost.joules for cost in costs):
        return None
    return math.fsum(math.fsum(cost.joules.values()) for cost in costs) / 3.6e6 * co2_per_kwh


def _hours(hours: float) -> str:
    return show_seconds(hours * 3600)


def _dollars(usd: float) -> str:
    return f"{usd:,.2f}" if usd >= 0.01 or not usd else f"{usd:.2g}"
