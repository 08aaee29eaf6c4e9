"""`flatout fleet choose` against published trainings: time and price within 25% on rows that nothing was fitted on."""

from __future__ import annotations

import datetime as dt
from typing import Any

import torch
from _described_transformers import Transformer, shape_of_transformer
from _published_trainings import PRICES, TRAININGS, Training
from evidence import Bar, Report, options

from flatout.fleet.choosing import MeasuredOn, TrainingAsked, calibration, offers
from flatout.fleet.prices import MachineOffer, PriceList
from flatout.measure.stats import summarize
from flatout.plan.layouts.estimate import TrainingLoad
from flatout.plan.layouts.layout import ParallelLayout

BAR, AIM = 0.25, 0.15


def asked_of(one: Training) -> TrainingAsked:
    shape = shape_of_transformer(one.model, one.length)
    return TrainingAsked(shape, TrainingLoad(one.batch), one.tokens, ParallelLayout(float8=one.float8))


def predicted(one: Training, here: Training | None) -> tuple[float | None, float | None, str]:
    """Seconds and price, as the command computes them; None where it says that it is not possible. The measured rate may be of
    another batch, so its correction is found apart."""
    factor = 1.0
    if here is not None:
        factor = calibration(asked_of(here), MeasuredOn(here.kind, here.devices, here.rate, here.name))
    machine = MachineOffer(one.kind, one.kind, (one.devices,), PRICES[one.kind])
    (found,) = offers(asked_of(one), PriceList(dt.date(2026, 11, 1), "USD", (machine,)))
    if found.seconds is None or found.price is None:
        return None, None, found.problem
    return found.seconds / factor, found.price / factor, found.layout


def scored(one: Training, here: Training | None) -> dict[str, Any]:
    taken_s = one.tokens / one.rate
    paid = one.usd if one.usd is not None else taken_s / 3600 * one.devices * PRICES[one.kind]
    seconds, price, layout = predicted(one, here)
    return {
        "training": one.name, "measured_on": None if here is None else here.name, "hours": taken_s / 3600, "usd": paid,
        "predicted_hours": None if seconds is None else seconds / 3600, "predicted_usd": price, "layout": layout,
        "time_error": 1.0 if seconds is None else abs(seconds / taken_s - 1),
        "price_error": 1.0 if price is None else abs(price / paid - 1),
    }  # fmt: skip


def main() -> int:
    asked = options(__doc__, 1).parse_args()
    rows = [one for one in TRAININGS if one.devices <= 16] if asked.quick or asked.smoke else list(TRAININGS)
    here: dict[Transformer, Training] = {one.model: one for one in TRAININGS if one.measured_here}
    report = Report("choose", __doc__ or "", torch.device("cpu"))
    report.conditions["rows"] = len(rows)
    for name, corrected in (("measured on one machine", True), ("nothing measured", False)):
        found = [scored(one, here[one.model] if corrected else None) for one in rows if not one.measured_here]
        for one in found:
            hours = one["predicted_hours"]
            shown = "not possible" if hours is None else f"{hours:9.2f} h"
            print(f"{one['training']:32} {one['hours']:9.2f} h, predicted {shown}  {one['time_error']:6.1%}  {one['layout']}")
        report.conditions[name] = found
        errors = [one["time_error"] for one in found]
        report.arm(f"error of the time, {name}", "share", errors)
        report.arm(f"error of the price, {name}", "share", [one["price_error"] for one in found])
        within = sum(error <= BAR for error in errors) / len(errors)
        report.conditions[f"within {BAR:.0%}, {name}"] = within
        if corrected:
            report.bars.append(Bar(f"median error of the time, {name}", summarize(errors).median, AIM, at_least=False))
            report.bars.append(Bar(f"share of trainings within {BAR:.0%}, {name}", within, 1.0))
            prices = [one["price_error"] for one in found]
            report.bars.append(Bar(f"median error of the price, {name}", summarize(prices).median, AIM, at_least=False))
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
