"""What `flatout new` drafts for a table with a fault predicts later rows better than what it drafts with --guard off.

Tables in order of time: a day that hardly changes, dates with a random holdout, and a column that is known only later. Each is
drafted with guards and without, trained with the same budget, and scored on rows of a later time. A draft only names a leak, so
a third arm is drafted again without the named column, as a reader of the first draft would.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _guard_cases import RealTable, _path, _read
from evidence import Bar, Report, options, rounds

import flatout as fo
from flatout.explore.drafting.new import draft
from flatout.recipe.load import read_recipe

OFF, ON, FOLLOWED = "guard off", "as drafted", "drafted, without the column it names"
Columns = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Later:
    """`held` of a table are the later rows. `leak`: a column that they do not have yet."""

    name: str
    make: Callable[[int], RealTable]
    leak: str | None = None


def _cabs(rows: int, more: tuple[str, ...] = (), also: tuple[str, ...] = ()) -> RealTable:
    import pyarrow.parquet as parquet

    names = ["tpep_pickup_datetime", "trip_distance", "PULocationID", "DOLocationID", "RatecodeID", "fare_amount", *more, *also]

    def day(number: int) -> dict[str, Any]:
        found = parquet.read_table(_path(f"nyc-taxi/yellow_tripdata_2022-01-{number}.snappy.parquet"))
        kept = np.arange(rows) * found.num_rows // rows
        return {name: found.column(name).to_numpy()[kept] for name in names}

    later = day(11)
    for name in more:
        later[name] = np.zeros_like(later[name])  # nothing is paid before the trip
    return RealTable(day(10), "fare_amount", later, "parquet")


def _transformer(rows: int) -> RealTable:
    found = _read("ett/ETTh1.csv.gz")
    first = len(found["OT"]) * 4 // 5
    every = max(1, first // rows)
    return RealTable(
        {name: one[:first:every] for name, one in found.items()}, "OT", {name: one[first::every] for name, one in found.items()}
    )


PAID = (
    "passenger_count", "payment_type", "extra", "mta_tax", "tip_amount", "tolls_amount", "improvement_surcharge",
    "total_amount", "congestion_surcharge",
)  # fmt: skip

CASES = (
    Later("cabs, all that was paid: the day of the month hardly changes", partial(_cabs, also=PAID)),
    Later("cabs: the day of the month hardly changes", _cabs),
    Later("transformer: dates and a random holdout", _transformer),
    Later("cabs: the amount charged", partial(_cabs, more=("total_amount",)), "total_amount"),
)


def trained(case: Later, arm: str, rows: int, budget: str, seed: int) -> dict[str, Any]:
    """Scores on the rows that the run held out itself, and on later ones."""
    table = case.make(rows)
    with tempfile.TemporaryDirectory(prefix="drafts-") as name:
        folder = Path(name)
        guard = False if arm == OFF else None
        train, later = table.write(folder)
        made = draft([train], table.label, folder, guard)
        leaks = [one.column for one in made.findings if one.guard == "leak"]
        if arm == FOLLOWED:
            train, later = _without(table, leaks).write(folder)
            made = draft([train], table.label, folder, guard)
        (folder / "recipe.yaml").write_text(made.text(["flatout", "new"], "recipe.yaml"))
        recipe = read_recipe(folder / "recipe.yaml", [f"budget={budget}", f"seed={seed}", "evaluate=null"], {"device": "cpu"})
        run = fo.run(recipe, runs=folder / "runs", cache=folder / "cache", planning="off", quiet=True)
        after, own = fo.evaluate(run, later), run.result["metrics"]
        return {"case": case.name, "arm": arm, "seed": seed, "guards": sorted({one.guard for one in made.findings}),
                "named": leaks, "own r2": own["r2"], "later r2": after["r2"], "own mae": own["mae"],
                "later mae": after["mae"]}  # fmt: skip


def _without(table: RealTable, names: Sequence[str]) -> RealTable:
    first, later = (
        {name: one for name, one in side.items() if name not in names} for side in (table.columns, table.held or {})
    )
    return RealTable(first, table.label, later, table.suffix)


def main() -> int:
    parser = options((__doc__ or "").partition("\n")[0], 3)
    asked = parser.parse_args()
    small = asked.quick or asked.smoke
    rows, budget, seeds = (1000, "1 epochs", 1) if small else (6000, "6 epochs", asked.repeats)
    report = Report("guard_drafts", (__doc__ or "").partition("\n")[0], torch.device("cpu"))
    found: list[dict[str, Any]] = []
    for seed in rounds(seeds, asked.within):
        for case in CASES:
            for arm in (OFF, ON, *([FOLLOWED] if case.leak else [])):
                found.append(trained(case, arm, rows, budget, seed))
                print(found[-1], file=sys.stderr, flush=True)
    report.conditions = {
        "rows": f"about {rows}, of the whole file in equal steps", "budget": budget,
        "later": "cabs: the day after; transformer: the last fifth of two years; an amount charged is 0 there",
        "runs": found,
    }  # fmt: skip
    for case in CASES:
        for score in ("own mae", "later mae", "later r2"):
            for arm in (OFF, ON, *([FOLLOWED] if case.leak else [])):
                values = [one[score] for one in found if (one["case"], one["arm"]) == (case.name, arm)]
                report.arm(f"{case.name}: {arm}, {score}", score.split()[1], values)
    for case in CASES:
        error, own = (
            {arm: report.arms[f"{case.name}: {arm}, {which} mae"]["median"] for arm in (OFF, ON)} for which in ("later", "own")
        )
        report.bars.append(
            Bar(f"{case.name}: later error, as drafted over guard off", error[ON] / error[OFF], 1, at_least=False)
        )
        away = {arm: abs(math.log(error[arm] / own[arm])) for arm in (OFF, ON)}
        claim = f"{case.name}: how far its own error is from the later one, as drafted (limit: guard off)"
        report.bars.append(Bar(claim, away[ON], away[OFF], at_least=False))
        if case.leak:
            followed = report.arms[f"{case.name}: {FOLLOWED}, later mae"]["median"]
            claim = f"{case.name}: later error, {FOLLOWED}, over guard off"
            report.bars.append(Bar(claim, followed / error[OFF], 1, at_least=False))
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
