"""The answer to "which machine", as one tree: all offers by price, which is best at what, and what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flatout.base.tree import Cell, Doc, Fields, Node, Table, TableColumn, TextLine
from flatout.base.units import show_count, show_rate, show_seconds
from flatout.fleet.choosing import ERROR, MeasuredOn, TrainingAsked, TrainingOffer, meeting

_COLUMNS = (
    TableColumn("name", "machine"),
    TableColumn("layout", "layout"),
    TableColumn("rate", "rate", right=True),
    TableColumn("seconds", "time", right=True),
    TableColumn("price", "price", right=True),
    TableColumn("kwh", "kWh", right=True),
    TableColumn("co2_kg", "CO2 kg", right=True),
    TableColumn("interruptions", "interruptions", right=True),
    TableColumn("save_every_s", "save every", right=True),
    TableColumn("problem", ""),
)


def chosen_doc(
    asked: TrainingAsked,
    found: Sequence[TrainingOffer],
    *,
    currency: str,
    deadline_s: float | None,
    measured: MeasuredOn | None,
    factor: float,
    notes: Sequence[str],
) -> Doc:
    chosen, nearest = meeting(found, deadline_s)
    unit = asked.shape.unit
    head = f"{asked.shape.name}: {show_count(asked.units)} {unit}, batch {asked.load.batch}"
    nodes: list[Node] = [
        Fields(
            {
                "model": asked.shape.name, "unit": unit, "units": asked.units, "currency": currency,
                "deadline_s": deadline_s, "chosen": None if chosen is None else chosen.name,
                "nearest": None if nearest is None else nearest.name, "correction": factor,
            }
        ),
        TextLine(head, strong=True),
        TextLine(),
        Table("offers", _COLUMNS, [_row(one, unit, currency) for one in found]),
        TextLine(),
        *(TextLine(line) for line in _best(found, chosen, nearest, deadline_s, currency)),
        TextLine(),
        *(TextLine(f"note: {note}") for note in (*_unknown(found, measured, factor), *notes)),
    ]  # fmt: skip
    return Doc(nodes)


def _row(one: TrainingOffer, unit: str, currency: str) -> dict[str, Any]:
    def cell(value: float | None, shown: str) -> Cell:
        return Cell(value, "" if one.problem else "?" if value is None else shown)

    said: dict[str, Any] = {
        "name": one.name,
        "layout": one.layout,
        "rate": cell(one.rate, "" if one.rate is None else show_rate(one.rate, unit)),
        "seconds": cell(one.seconds, "" if one.seconds is None else show_seconds(one.seconds)),
        "price": cell(one.price, "" if one.price is None else money(one.price, currency)),
        "kwh": cell(one.kwh, "" if one.kwh is None else show_count(one.kwh)),
        "co2_kg": cell(one.co2_kg, "" if one.co2_kg is None else show_count(one.co2_kg)),
        "problem": one.problem,
    }
    if one.interruptions is not None and one.save_every_s is not None:
        said["interruptions"] = Cell(one.interruptions, f"{one.interruptions:.2g}")
        said["save_every_s"] = Cell(one.save_every_s, show_seconds(one.save_every_s))
    return said


def money(amount: float, currency: str) -> str:
    return f"{amount:,.2f} {currency}" if amount < 1e4 else f"{amount:,.0f} {currency}"


def _best(
    found: Sequence[TrainingOffer],
    chosen: TrainingOffer | None,
    nearest: TrainingOffer | None,
    deadline_s: float | None,
    currency: str,
) -> list[str]:
    possible = [one for one in found if one.seconds is not None and one.price is not None]
    if not possible:
        return ["no machine of the list can do it, or none is known well enough"]
    lines = []
    if chosen is not None:
        within = "" if deadline_s is None else f" within {show_seconds(deadline_s)}"
        lines.append(f"cheapest{within}: {_told(chosen, currency)}")
    elif nearest is not None and deadline_s is not None:
        lines.append(f"none ends within {show_seconds(deadline_s)}; the nearest: {_told(nearest, currency)}")
    fastest = min(possible, key=lambda one: (one.seconds or 0.0, one.price or 0.0))
    if fastest is not chosen and fastest is not nearest:
        lines.append(f"fastest: {_told(fastest, currency)}")
    metered = [one for one in possible if one.kwh is not None]
    if metered and len(metered) == len(possible):
        least = min(metered, key=lambda one: one.kwh or 0.0)
        if least is not chosen:
            lines.append(f"least energy: {_told(least, currency)}, {show_count(least.kwh or 0.0)} kWh")
    return lines


def _told(one: TrainingOffer, currency: str) -> str:
    return f"{one.name}, {show_seconds(one.seconds or 0.0)}, {money(one.price or 0.0, currency)}"


def _unknown(found: Sequence[TrainingOffer], measured: MeasuredOn | None, factor: float) -> list[str]:
    notes = []
    if measured is not None and factor != 1.0:
        notes.append(f"rates are estimates, corrected by {factor:.3g}x: what was {measured.words} over its estimate")
    else:
        notes.append(
            f"rates are estimates, off by {ERROR:.0%} in the median of published trainings; --measured or --run corrects them"
        )
    notes.append("not in the time: starting, compiling, evaluation, data that is read too slowly, waiting for machines")
    possible = [one for one in found if not one.problem]
    if any(one.kwh is None for one in possible):
        notes.append("energy is not known where the price list has no watts; it is not estimated from data sheets")
    elif any(one.co2_kg is None for one in possible):
        notes.append("CO2 is not known: the price list has no co2_kg_per_kwh")
    return notes
