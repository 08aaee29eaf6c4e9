"""Ten derived columns train as fast as the same columns computed by pandas into the file; on taxi trips they score better."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import torch
from evidence import Report, options, take_turns

import flatout
from flatout.data.data import Data
from flatout.recipe.load import recipe_from

BESIDE = Path(__file__).parent.parent.parent / "shared" / "data"
ROWS, QUICK_ROWS, SEEDS = 60_000, 20_000, 2
DERIVE = {
    "minutes": "minutes_between(start, end)",
    "speed": "60 * km / minutes",
    "log_km": "log1p(km)",
    "hour": "hour(start)",
    "weekend": "is_weekend(start)",
    "far": "if(km > 5, 1, 0)",
    "band": "bin(km, [1, 2, 5, 10])",
    "usual": "mean(km) by zone",
    "trips": "count() by zone",
    "letters": "length(zone)",
}
BASE: dict[str, Any] = {
    "model": {"mlp": {"hidden": [64, 64]}}, "objective": "regress", "batch": 512, "lr": 3e-3, "settings": {"device": "cpu"}
}  # fmt: skip
TAXI = ["tpep_pickup_datetime", "tpep_dropoff_datetime", "passenger_count", "trip_distance", "PULocationID", "DOLocationID"]
TAXI_DERIVE = {
    "minutes": "minutes_between(tpep_pickup_datetime, tpep_dropoff_datetime)",
    "log_km": "log1p(trip_distance)",
    "speed": "60 * trip_distance / minutes",
    "hour": "hour(tpep_pickup_datetime)",
    "usual_km": "mean(trip_distance) by [PULocationID, DOLocationID]",
    "usual_minutes": "mean(minutes) by [PULocationID, DOLocationID]",
}


def trips(rows: int) -> pd.DataFrame:
    drawn = np.random.default_rng(0)
    start = pd.Timestamp("2024-01-01") + pd.to_timedelta(drawn.integers(0, 500_000, rows), "min")
    km = drawn.gamma(2, 3, rows)
    minutes = np.round(km * drawn.uniform(1, 4, rows)) + 1
    zones = np.array([f"zone {'x' * (number % 9)}{number}" for number in range(200)])
    fare = 2 + km + minutes / 3 + drawn.normal(size=rows)
    end = start + pd.to_timedelta(minutes, "min")
    return pd.DataFrame({"km": km, "start": start, "end": end, "zone": drawn.choice(zones, rows), "fare": fare})


def by_pandas(df: pd.DataFrame) -> pd.DataFrame:
    """The ten columns; the groups over all rows, which are the training rows here."""
    minutes = (df.end - df.start) / pd.Timedelta("1min")
    return df.assign(
        minutes=minutes, speed=60 * df.km / minutes, log_km=np.log1p(df.km), hour=df.start.dt.hour.astype(float),
        weekend=df.start.dt.day_of_week >= 5, far=np.where(df.km > 5, 1.0, 0.0), 
        band=np.digitize(df.km, [1, 2, 5, 10]).astype(float),
        usual=df.groupby("zone").km.transform("mean"), trips=df.groupby("zone").km.transform("size").astype(float),
        letters=df.zone.str.len().astype(float),
    )  # fmt: skip


def speeds(report: Report, folder: Path, repeats: int, rows: int) -> None:
    df = trips(rows)
    df.to_parquet(folder / "raw.parquet", row_group_size=50_000)
    recipes: dict[str, dict[str, Any]] = {
        "derived": {"table": "raw.parquet", "derive": DERIVE},
        "computed": {"table": "wide.parquet"},
    }

    def prepared(name: str) -> float:
        """Rows a second from the raw file to encoded rows; pandas reads, computes and writes before."""
        began_s = time.perf_counter()
        if name == "computed":
            by_pandas(pd.read_parquet(folder / "raw.parquet")).to_parquet(folder / "wide.parquet", row_group_size=50_000)
        made = flatout.data.table(folder / str(recipes[name]["table"]), label="fare", derive=recipes[name].get("derive"))
        assert isinstance(made, Data) and len(made.train) == rows
        return rows / (time.perf_counter() - began_s)

    def trained(name: str) -> float:
        data = {**recipes[name], "label": "fare"}
        asked = recipe_from({**BASE, "data": data, "budget": "2 epochs"}, folder)
        return float(flatout.run(asked, runs=folder / "runs", planning="off").result["samples_per_s"])

    for name, values in take_turns({name: partial(prepared, name) for name in recipes}, repeats).items():
        report.arm(f"{name}: preparation", "rows/s", values)
    rates = take_turns({name: partial(trained, name) for name in recipes}, repeats)
    for name, values in rates.items():
        report.arm(f"{name}: training", "samples/s", values)
    report.ratio("training, against columns computed by pandas", "derived: training", "computed: training", 0.95)
    report.ratio("raw file to encoded rows, against pandas and its file", "derived: preparation", "computed: preparation", 1.0)


def taxi(report: Report, data: Path, folder: Path, seeds: int, budget: str) -> None:
    """The fare of a trip that is over, by its columns alone and with derived ones; the same rows and filter in both."""
    paths = sorted((data / "nyc-taxi").glob("yellow*.parquet"))
    table: dict[str, Any] = {
        "table": [str(path) for path in paths], "label": "fare_amount", "columns": [*TAXI, "fare_amount"], "holdout": 0.2,
        "categorical": ["PULocationID", "DOLocationID"], "numeric": ["passenger_count", "trip_distance", *TAXI[:2]],
        "where": ["2.5 <= fare_amount <= 200", "0 < trip_distance < 60",
                  "0 < minutes_between(tpep_pickup_datetime, tpep_dropoff_datetime) < 180"],
    }  # fmt: skip
    wide = {**table, "derive": TAXI_DERIVE, "numeric": [*table["numeric"], *TAXI_DERIVE]}
    for name, written in (("raw columns", table), ("with derived columns", wide)):
        scores = []
        for seed in range(seeds):
            asked = recipe_from({**BASE, "data": written, "budget": budget, "seed": seed}, folder)
            metrics = flatout.run(asked, runs=folder / "runs", planning="off").result["metrics"]
            print(f"taxi, {name}, seed {seed}: {metrics}", file=sys.stderr, flush=True)
            scores.append(float(metrics["mae"]))
        report.arm(f"taxi, {name}: mean absolute error", "dollars", scores)
    errors = [
        np.array(report.arms[f"taxi, {name}: mean absolute error"]["values"])
        for name in ("raw columns", "with derived columns")
    ]
    report.arm("taxi: error of raw columns, of that with derived ones", "times", (errors[0] / errors[1]).tolist())
    report.bar("taxi: the error without derived columns, times", "taxi: error of raw columns, of that with derived ones", 1.0)


def main() -> int:
    parser = options(__doc__, repeats=3)
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("FLATOUT_DATA", BESIDE)), help="folder of the data sets"
    )
    asked = parser.parse_args()
    trial = asked.quick or asked.smoke
    report = Report("derived", str(__doc__), torch.device("cpu"))
    rows = QUICK_ROWS if trial else ROWS
    report.conditions = {"rows": rows, "derive": DERIVE, "taxi": TAXI_DERIVE, "load_before": os.getloadavg()}
    with tempfile.TemporaryDirectory() as folder:
        speeds(report, Path(folder), 1 if trial else asked.repeats, rows)
        if (asked.data / "nyc-taxi").is_dir():
            taxi(report, asked.data, Path(folder), 1 if trial else SEEDS, "20 steps" if trial else "3 epochs")
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
