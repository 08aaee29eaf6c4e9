"""Which machine serves: replicas and price for a rate, from what one replica was measured to hold.

Nothing is estimated here: how much a replica holds is measured on the kind of machine that it will run on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flatout.base.tree import Cell, Doc, Fields, Node, Table, TableColumn, TextLine
from flatout.base.units import show_count
from flatout.fleet.choosing import MeasuredOn
from flatout.fleet.choosing_view import money
from flatout.fleet.prices import CPU, MachineOffer, PriceList

_MONTH_H = 730.0
_LEAST_REPLICAS = 2  # one may be away


@dataclass(frozen=True)
class ServingOffer:
    machine: MachineOffer
    devices: int
    spot: bool
    problem: str = ""
    replicas: int = 0
    machines: int = 0
    per_hour: float | None = None
    kwh_per_hour: float | None = None

    @property
    def name(self) -> str:
        size = "" if self.machine.kind == CPU else f" of {self.devices}"
        return f"{self.machine.name}{size}{' spot' if self.spot else ''}"


def serving_offers(prices: PriceList, held: MeasuredOn, requests_per_s: float, burst: float) -> list[ServingOffer]:
    """`held`: what one replica of so many devices or cores holds. The cheapest first, then those that are not known."""
    wanted = max(_LEAST_REPLICAS, math.ceil(requests_per_s * burst / held.rate - 1e-9))
    found = [one for machine in prices.machines for one in _offers_of(machine, held, wanted)]
    return sorted(found, key=lambda one: (one.per_hour is None, one.per_hour or 0.0))


def _offers_of(machine: MachineOffer, held: MeasuredOn, wanted: int) -> list[ServingOffer]:
    found: list[ServingOffer] = []
    for count in machine.counts:
        plain = ServingOffer(machine, count, spot=machine.per_hour is None)
        has = (machine.cores or 0) if machine.kind == CPU else count
        unit = f"{held.devices} cores" if held.kind == CPU else f"{held.devices} x {held.kind}"
        if machine.kind != held.kind:
            found.append(replace(plain, problem=f"not known: measured on {unit}, another kind of machine"))
            continue
        each = has // held.devices
        if not each:
            found.append(replace(plain, problem=f"too small: a replica was measured on {unit}"))
            continue
        machines = max(_LEAST_REPLICAS, math.ceil(wanted / each))  # on one machine alone all replicas go at once
        size = 1 if machine.kind == CPU else count
        watts = None if machine.watts is None else machines * size * machine.watts / 1e3
        plain = replace(plain, replicas=wanted, machines=machines, kwh_per_hour=watts)
        for price, spot in ((machine.per_hour, False), (machine.spot_per_hour, True)):
            if price is not None:
                found.append(replace(plain, spot=spot, per_hour=machines * size * price))
    return found


def serving_doc(found: Sequence[ServingOffer], prices: PriceList, head: str, notes: Sequence[str]) -> Doc:
    def row(one: ServingOffer) -> dict[str, object]:
        if one.per_hour is None:
            return {"name": one.name, "problem": one.problem}
        month, kwh = one.per_hour * _MONTH_H, None if one.kwh_per_hour is None else one.kwh_per_hour * _MONTH_H
        grid = None if kwh is None or prices.co2_kg_per_kwh is None else kwh * prices.co2_kg_per_kwh
        return {
            "name": one.name,
            "machines": one.machines,
            "replicas": one.replicas,
            "per_hour": Cell(one.per_hour, money(one.per_hour, prices.currency)),
            "per_month": Cell(month, money(month, prices.currency)),
            "kwh_per_month": Cell(kwh, "?" if kwh is None else show_count(kwh)),
            "co2_kg_per_month": Cell(grid, "?" if grid is None else show_count(grid)),
        }

    columns = [
        TableColumn("name", "machine"),
        TableColumn("machines", "machines", right=True),
        TableColumn("replicas", "replicas", right=True),
        TableColumn("per_hour", "an hour", right=True),
        TableColumn("per_month", "a month", right=True),
        TableColumn("kwh_per_month", "kWh a month", right=True),
        TableColumn("co2_kg_per_month", "CO2 kg a month", right=True),
        TableColumn("problem", ""),
    ]
    known = [one for one in found if one.per_hour is not None]
    best = (
        f"cheapest: {known[0].machines} x {known[0].name}, {money(known[0].per_hour or 0.0, prices.currency)} an hour"
        if known
        else "no machine of the list is of the kind that was measured"
    )
    nodes: list[Node] = [
        TextLine(head, strong=True),
        Fields({"currency": prices.currency, "chosen": known[0].name if known else None}),
        TextLine(),
        Table("offers", columns, [row(one) for one in found]),
        TextLine(),
        TextLine(best),
        TextLine(),
        *(TextLine(f"note: {note}") for note in notes),
    ]
    return Doc(nodes)
