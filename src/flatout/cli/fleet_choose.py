"""fleet choose: which machine of a price list trains a recipe, or serves a package, and for how much."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.base.errors import UsageError
from flatout.cli.durations import seconds_if
from flatout.cli.output import print_json
from flatout.cli.places import cache_folder
from flatout.cli.training import Json, Offs, Overrides, Sets, read_asked

if TYPE_CHECKING:
    from flatout.fleet.choosing import MeasuredOn, TrainingAsked
    from flatout.fleet.prices import PriceList

_MISSED = 1


def choose(
    recipe: Annotated[Path, typer.Argument(help="Recipe file, or the folder of a package.", show_default=False)],
    overrides: Overrides = None,
    prices: Annotated[
        Path | None, typer.Option("--prices", help="YAML file with machines and their prices.", show_default=False)
    ] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", help="The training ends within this time: '3 h'.", show_default=False)
    ] = None,
    measured: Annotated[
        str | None,
        typer.Option(
            "--measured",
            help="A measured rate of this recipe: h100:8=46000, or cpu:4=900. Of a package: what a replica holds.",
            show_default=False,
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", help="Take the rate from this finished run of the recipe.", show_default=False)
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", help="Requests per second that a package must serve.", show_default=False)
    ] = None,
    burst: Annotated[float, typer.Option("--burst", help="The load may be this many times the rate for a while.")] = 1.5,
    runs: Annotated[Path, typer.Option("--runs", help="The folder with all runs.")] = Path("runs"),
    sets: Sets = None,
    offs: Offs = None,
    as_json: Json = False,
) -> None:
    """Which machine of a price list trains a recipe: time, price, energy and CO2. Exits with 1 if none meets --deadline.

    Of a package: machines, replicas and price that serve --rate.

    Example: flatout fleet choose mine.yaml --prices prices.yaml --deadline '3 h'
    """
    from flatout.base.tree import to_data, to_text
    from flatout.fleet.choosing import MeasuredOn, calibration, meeting, offers
    from flatout.fleet.choosing_view import chosen_doc
    from flatout.fleet.prices import read_prices, said_prices
    from flatout.packaging.folder import is_package

    if prices is None:
        raise UsageError("--prices is missing: a YAML file with machines and their prices; docs/fleet.md shows one")
    if measured is not None and run is not None:
        raise UsageError("--measured and --run both give the measured rate: give only one of them")
    today, deadline_s = dt.date.today(), seconds_if("--deadline", deadline)
    known = read_prices(prices, today)
    on = None if measured is None else MeasuredOn.parse(measured)
    if is_package(recipe):
        _serving(recipe, known, on, rate, burst, list(said_prices(known, today)), as_json)
        return
    if rate is not None:
        raise UsageError("--rate is for packages, which serve; a recipe is trained")
    asked = _asked(recipe, overrides, sets, offs)
    if run is not None:
        on = _of_run(run, runs, asked.shape.unit)
    found = offers(asked, known, on)
    doc = chosen_doc(
        asked,
        found,
        currency=known.currency,
        deadline_s=deadline_s,
        measured=on,
        factor=calibration(asked, on),
        notes=list(said_prices(known, today)),
    )
    print_json(to_data(doc)) if as_json else print(to_text(doc))
    if meeting(found, deadline_s)[0] is None:
        raise typer.Exit(_MISSED)


def _serving(
    package: Path, prices: PriceList, held: MeasuredOn | None, rate: float | None, burst: float, notes: list[str], as_json: bool
) -> None:
    from flatout.base.tree import to_data, to_text
    from flatout.fleet.choosing_service import serving_doc, serving_offers
    from flatout.packaging.package import open_package

    open_package(package)
    if rate is None or not 0 < rate < 1e9:
        raise UsageError("--rate: say how many requests per second are to be served, such as --rate 2000")
    if held is None:
        raise UsageError(
            "--measured: what one replica holds is measured, not estimated: flatout fleet manifest serve, or flatout load URL "
            "--find --slo GOAL on such a machine, then --measured cpu:2=640"
        )
    if not 1 <= burst <= 100:
        raise UsageError(f"--burst: the load grows 1 to 100 times, got {burst:g}")
    found = serving_offers(prices, held, rate, burst)
    load = f"{rate:g} requests/s, up to {burst:g} times as many for a while"
    head = f"{package.resolve().name}: {load}; a replica holds {held.rate:g}/s"
    notes = ["replicas are on at least two machines, so that one may be away", "the goal is that of the measured rate", *notes]
    doc = serving_doc(found, prices, head, notes)
    print_json(to_data(doc)) if as_json else print(to_text(doc))
    if not any(one.per_hour is not None for one in found):
        raise typer.Exit(_MISSED)


def _asked(recipe: Path, overrides: list[str] | None, sets: list[str] | None, offs: list[str] | None) -> TrainingAsked:
    from flatout.fleet.choosing import TrainingAsked
    from flatout.models.dataless import WeightsBudget, sparing_weights
    from flatout.plan.layouts.estimate import TrainingLoad
    from flatout.plan.layouts.fitting import state_bytes
    from flatout.plan.layouts.jobs import shape_of_job
    from flatout.plan.layouts.layout import ParallelLayout
    from flatout.plan.make import label_of
    from flatout.recipe.build import build_job

    budget = WeightsBudget()
    with sparing_weights(budget):
        read = read_asked(recipe, overrides, sets, offs)
    job = build_job(read, cache_folder(), weights_budget=budget)
    if not job.budget.counted:
        raise UsageError(
            f"budget: {job.budget} is spent, not counted, so it is the same on every machine; for a comparison give one in "
            "epochs, steps, samples or tokens, such as budget='3 epochs'"
        )
    shape = shape_of_job(job, name=label_of(read, job))
    samples = job.budget.samples(job.epoch_samples(job.budget), job.rows_per_step, job.data.tokens_per_row)
    compiled = read.pins.get("compile", "on") != "off"  # what a plan chooses on a GPU, unless it is pinned
    return TrainingAsked(
        shape,
        TrainingLoad(job.data.typical_batch(job.batch)[0], state_bytes(job)),
        samples * shape.per_sample,
        ParallelLayout(compiled=compiled, compiled_loss=compiled),
    )


def _of_run(name: str, runs: Path, unit: str) -> MeasuredOn:
    from flatout.fleet.measured_run import measured_in
    from flatout.store.run_folder import find

    return measured_in(find(runs, name), unit)
