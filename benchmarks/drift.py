"""Of 100 weeks of rows like those of the training at most 5 cause an alarm for drift; of 100 shifted weeks 90 do.

A week is seven periods; half of the weeks are of each data set. Adult: trained on one file, served from the other, 200 rows a
day. Taxi: trained on the trips of yellow cabs from 1 to 16 March 2019; served are real later days, each in the order of time.
Shifts of Adult: younger people, hours in another unit, workclass missing, more of one occupation; of taxi: mostly at night,
fares in cents, more long trips. Taxi by date: trained on 10 January 2022, served 2,000 trips a day of 11 January, and of March
2019 as the shift, with 3 points allowed: the two years differ by 8 points at most, which the default allows.
"""

from __future__ import annotations

import csv
import gzip
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch
from _data import real_data
from evidence import Bar, Report, options

import flatout as fo
from flatout.data.data import Data
from flatout.packaging.answering import Preparation
from flatout.packaging.statistics import RowStatistics, statistics_of
from flatout.serving.drift.watch import DriftJudge

WEEKS, DAYS, LITTLE = 100, 7, 0.03
Columns = dict[str, Any]
Days = Callable[[np.random.Generator, int], Columns]


@dataclass(frozen=True)
class Case:
    """`weeks` of each kind, of 100."""

    data: Data
    clean: Days
    shifts: Mapping[str, Days]
    weeks: int
    allowed: float = 0.1


ADULT = ("age", "workclass", "weight", "education", "years", "marital", "occupation", "relationship", "race", "sex", "gain",
         "loss", "hours", "country", "income")  # fmt: skip
NUMBERS = ("age", "years", "gain", "loss", "hours")
MANY, CLEAN = 2000, "like the training"
TAXI = ("hour", "passengers", "distance", "fare", "tolls", "payment")


def adult(path: Path) -> Columns:
    with gzip.open(path, "rt") as file:
        rows = [[one.strip(" .") for one in row] for row in csv.reader(file) if len(row) == len(ADULT)]
    columns = {name: list(values) for name, values in zip(ADULT, zip(*rows, strict=True), strict=True) if name != "weight"}
    numbers = {name: [float(one) for one in columns[name]] for name in NUMBERS}
    return {name: numbers.get(name, [None if one == "?" else one for one in column]) for name, column in columns.items()}


def taxi_2019(path: Path) -> Columns:
    with gzip.open(path, "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["color"] == "yellow" and row["pickup"].startswith("2019-03")]
    rows.sort(key=lambda row: row["pickup"])
    found: Columns = {name: [float(row[name]) for row in rows] for name in ("passengers", "distance", "fare", "tip", "tolls")}
    found |= {"day": [int(row["pickup"][8:10]) for row in rows], "hour": [float(row["pickup"][11:13]) for row in rows]}
    found["payment"] = [row["payment"] or None for row in rows]
    found["airport"] = ["Airport" in row["pickup_zone"] for row in rows]
    return found


def taxi_2022(folder: Path, day: int) -> Columns:
    names = {"passenger_count": "passengers", "trip_distance": "distance", "fare_amount": "fare", "tip_amount": "tip",
             "tolls_amount": "tolls"}  # fmt: skip
    rows = parquet.read_table(folder / f"yellow_tripdata_2022-01-{day}.snappy.parquet").sort_by("tpep_pickup_datetime")
    found: Columns = {
        ours: [None if one is None else float(one) for one in rows[theirs].to_pylist()] for theirs, ours in names.items()
    }
    found["hour"] = [float(one.hour) for one in rows["tpep_pickup_datetime"].to_pylist()]
    found["payment"] = [{1: "credit card", 2: "cash"}.get(one) for one in rows["payment_type"].to_pylist()]
    return found


def data_file(path: str) -> Path:
    found = real_data(path)
    if found is None:
        print(f"this benchmark needs {path} of the shared data", file=sys.stderr)
        raise SystemExit(2)
    return found


def picked(columns: Columns, places: Any) -> Columns:
    return {name: [column[place] for place in places] for name, column in columns.items()}


def heavier(columns: Columns, weights: Any, n: int, rng: np.random.Generator) -> Columns:
    shares = np.asarray(weights, np.float64)
    return picked(columns, rng.choice(len(shares), n, p=shares / shares.sum()))


def main() -> int:
    asked = options(__doc__, 1).parse_args()
    trial = asked.quick or asked.smoke
    report = Report("drift", (__doc__ or "").strip().splitlines()[0], torch.device("cpu"))
    alarms: dict[str, list[bool]] = {}
    blamed: dict[str, Counter[str]] = {}
    folder, weeks = Path(tempfile.mkdtemp()), 0
    for name, case in {"adult": adult_case(folder), **taxi_cases(folder)}.items():
        statistics = statistics_of(case.data)
        assert statistics is not None
        for number in range(2 if trial else case.weeks):
            weeks += 1
            rng = np.random.default_rng([number, len(name)])
            moved = week(case, statistics, [case.clean(rng, day) for day in range(DAYS)])
            alarms.setdefault(f"{name}: {CLEAN}", []).append(bool(moved))
            kind, shifted = list(case.shifts.items())[number % len(case.shifts)]
            moved = week(case, statistics, [shifted(rng, day) for day in range(DAYS)])
            alarms.setdefault(f"{name}: {kind}", []).append(bool(moved))
            blamed.setdefault(f"{name}: {kind}", Counter()).update(moved[:1])
    for name, found in alarms.items():
        report.arm(name, "alarm", [float(one) for one in found])
    clean_alarms = sum(sum(found) for name, found in alarms.items() if name.endswith(CLEAN))
    found_shifts = sum(sum(found) for name, found in alarms.items() if not name.endswith(CLEAN))
    report.conditions = {"weeks": 2 * weeks, "first column": {key: dict(one) for key, one in blamed.items()}}
    report.bars.append(Bar("clean weeks with an alarm, of 100", 100 * clean_alarms / weeks, 5, at_least=False))
    report.bars.append(Bar("shifted weeks found, of 100", 100 * found_shifts / weeks, 90))
    return report.finish(asked)


def week(case: Case, statistics: RowStatistics, days: list[Columns]) -> list[str]:
    """The columns of the first alarm, as a server's watch has them."""
    judge, preparation = DriftJudge(statistics, case.allowed), Preparation(case.data.fitted)
    for columns in days:
        prepared = preparation.before(case.data.fitted.rows(columns))
        counts = [column.counts(prepared[column.port].numpy()) for column in statistics.columns]
        moved = judge.period(counts)
        if moved:
            return moved
    return []


def adult_case(folder: Path) -> Case:
    training, later = (adult(data_file(f"adult/{name}")) for name in ("adult.data.gz", "adult.test.gz"))
    data, n = table(training, "income", folder), 200
    total = len(later["age"])
    ages = np.array(later["age"])
    crafts = np.array([one == "Craft-repair" for one in later["occupation"]])

    def like(rng: np.random.Generator, day: int) -> Columns:
        return picked(later, rng.integers(0, total, n))

    def other_hours(rng: np.random.Generator, day: int) -> Columns:
        columns = like(rng, day)
        return {**columns, "hours": [one / 5 for one in columns["hours"]]}

    def without_class(rng: np.random.Generator, day: int) -> Columns:
        columns = like(rng, day)
        return {**columns, "workclass": [None if rng.random() < 0.2 else one for one in columns["workclass"]]}

    shifts: dict[str, Days] = {
        "younger people": lambda rng, day: heavier(later, np.where(ages < 35, 2.5, 1.0), n, rng),
        "hours in days of work": other_hours,
        "workclass missing in a fifth": without_class,
        "three times as many in crafts": lambda rng, day: heavier(later, np.where(crafts, 3.5, 1.0), n, rng),
    }
    return Case(data, like, shifts, WEEKS // 2)


def taxi_cases(folder: Path) -> dict[str, Case]:
    trips = taxi_2019(data_file("nyc-taxi/taxis.csv.gz"))
    days = np.array(trips["day"])
    earlier = picked(trips, np.nonzero(days <= 16)[0])
    tipped = ["yes" if tip else "no" for tip in earlier["tip"]]  # a label is needed, and any would do
    data = table({"tipped": tipped, **{name: earlier[name] for name in TAXI}}, "tipped", folder)
    seven = [np.nonzero(days == day)[0] for day in range(17, 32)]

    def of_day(rng: np.random.Generator, day: int) -> Columns:
        """Trips of one real day in the order of time, drawn with replacement so that weeks differ."""
        one = seven[int(rng.integers(0, 8)) + day]
        return picked(trips, np.sort(rng.choice(one, len(one))))

    def at_night(rng: np.random.Generator, day: int) -> Columns:
        hours, nights = of_day(rng, day), np.array(trips["hour"])
        return heavier(trips, np.where((nights < 6) | (nights > 20), 1.0, 0.25), len(hours["hour"]), rng)

    def in_cents(rng: np.random.Generator, day: int) -> Columns:
        columns = of_day(rng, day)
        return {**columns, "fare": [100 * one for one in columns["fare"]]}

    airports = np.where(np.array(trips["distance"]) > 8, 4.0, 1.0)
    shifts: dict[str, Days] = {
        "mostly at night": at_night,
        "fares in cents": in_cents,
        "four times as many long trips": lambda rng, day: heavier(trips, airports, 175, rng),
    }
    return {"taxi": Case(data, of_day, shifts, WEEKS // 4), "taxi by date": by_date(folder, trips)}


def by_date(folder: Path, trips: Columns) -> Case:
    monday, tuesday = (taxi_2022(data_file("nyc-taxi"), day) for day in (10, 11))
    tipped = ["yes" if tip else "no" for tip in monday["tip"]]
    data = table({"tipped": tipped, **{name: monday[name] for name in TAXI}}, "tipped", folder)
    total = len(trips["hour"])

    def next_day(rng: np.random.Generator, day: int) -> Columns:
        return picked(tuesday, np.sort(rng.choice(len(tuesday["hour"]), MANY, replace=False)))

    def of_2019(rng: np.random.Generator, day: int) -> Columns:
        """No trip comes twice."""
        return picked(trips, range(day * total // DAYS, (day + 1) * total // DAYS))

    return Case(data, next_day, {"March 2019": of_2019}, WEEKS // 4, LITTLE)


def table(columns: Mapping[str, Any], label: str, folder: Path) -> Data:
    file = folder / f"{label}.parquet"
    parquet.write_table(pa.table(dict(columns)), file)
    asked = {"table": str(file), "label": label}
    return fo.Recipe(model="mlp", data=asked, batch=64, lr=1e-3, budget="1 epoch").load_data(None)


if __name__ == "__main__":
    sys.exit(main())
