"""Real tables without known faults, and forty faults planted in them. Chosen before the guards were tuned."""

from __future__ import annotations

import csv
import gzip
import io
import lzma
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from _data import real_data

Array = np.ndarray[Any, Any]
Columns = dict[str, Array]
MOST_ROWS = 20_000

_ADULT = [
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship", "race", "sex",
    "capital_gain", "capital_loss", "hours_per_week", "native_country", "income",
]  # fmt: skip


@dataclass(frozen=True)
class RealTable:
    """`held` is another file of the same columns."""

    columns: Columns
    label: str
    held: Columns | None = None
    suffix: str = "csv"

    def write(self, folder: Path) -> list[str]:
        paths = [_written(self.columns, folder / f"train.{self.suffix}")]
        return paths if self.held is None else [*paths, _written(self.held, folder / f"test.{self.suffix}")]


@dataclass(frozen=True)
class Planted:
    """`columns`: a finding about one of these counts; the guard has to be `guard`."""

    name: str
    guard: str
    columns: tuple[str, ...]
    make: Callable[[np.random.Generator], RealTable] = field(repr=False)


# ---- real tables ----


def _path(name: str) -> Path:
    found = real_data(name)
    if found is None:
        raise SystemExit(f"this benchmark needs the real data sets: {name} is not below $FLATOUT_DATA")
    return found


@cache
def _read(name: str, delimiter: str = ",", names: tuple[str, ...] = (), most: int | None = None, every: int = 1) -> Columns:
    path = _path(name)
    opened = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opened(path, "rt", encoding="utf-8") as file:  # type: ignore[operator]
        lines = [line for number, line in enumerate(file) if line.strip() and not line.startswith("|")
                 and (number == 0 or number % every == 0) and (most is None or number // every <= most)]  # fmt: skip
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO("".join(lines)), delimiter=delimiter)]
    header = list(names) if names else rows.pop(0)
    return {name: _typed([row[place] for row in rows]) for place, name in enumerate(header)}


def _typed(cells: list[str]) -> Array:
    try:
        return np.array([int(cell) for cell in cells])
    except ValueError:
        pass
    try:
        return np.array([float(cell) if cell else np.nan for cell in cells])
    except ValueError:
        return np.array(cells, dtype=object)


def _plain(columns: Columns, label: str, drop: tuple[str, ...] = ()) -> RealTable:
    """Without the columns of known faults, at most MOST_ROWS rows, and numbers within 99% of their values."""
    rows = len(columns[label])
    kept = np.arange(min(rows, MOST_ROWS)) * rows // min(rows, MOST_ROWS)
    made = {}
    for name, values in columns.items():
        if name in drop:
            continue
        values = values[kept]
        if name != label and values.dtype.kind in "if" and len(np.unique(values)) > 20:
            low, high = np.nanquantile(values, [0.005, 0.995])
            values = np.clip(values, low, high).astype(values.dtype)
        made[name] = values
    return RealTable(made, label)


def adult(part: str = "data") -> RealTable:
    found = dict(_read(f"adult/adult.{part}.gz", names=tuple(_ADULT)))
    found["income"] = np.array([text.rstrip(".") for text in found["income"]], dtype=object)
    return _plain(found, "income", ("capital_gain", "capital_loss"))


def bank_full() -> RealTable:
    return _plain(_read("bank-marketing/bank-full.csv.gz", ";"), "y", ("duration",))


def bank_additional() -> RealTable:
    return _plain(_read("bank-marketing/bank-additional-full.csv.gz", ";"), "y", ("duration",))


def california() -> RealTable:
    return _plain(_read("california-housing/housing.csv.gz"), "median_house_value")


def titanic() -> RealTable:
    return _plain(_read("titanic/train.csv"), "Survived", ("PassengerId", "Name", "Ticket", "Cabin"))


def higgs(part: str = "train") -> RealTable:
    return _plain(_read(f"higgs-7k/binary.{part}.gz", "\t", ("signal", *(f"f{place}" for place in range(28)))), "signal")


def covertype(every: int = 29) -> RealTable:
    return _plain(_read("covertype/covtype.csv.xz", most=MOST_ROWS, every=every), "Cover_Type")


def ett(number: int) -> RealTable:
    return _plain(_read(f"ett/ETTh{number}.csv.gz"), "OT", ("date",))


def taxis() -> RealTable:
    return _plain(_read("nyc-taxi/taxis.csv.gz"), "fare", ("pickup", "dropoff", "total", "tolls"))


def nab() -> RealTable:
    found = _read("nab-nyc-taxi/nyc_taxi.csv")
    moments = found["timestamp"].astype("datetime64[m]")
    minutes = moments.astype(np.int64)
    made = {"half_hour": minutes // 30 % 48, "weekday": (minutes // 1440 + 3) % 7, "value": found["value"]}
    made["day"] = (moments.astype("datetime64[D]") - moments.astype("datetime64[M]").astype("datetime64[D]")).astype(
        np.int64
    ) + 1
    return _plain(made, "value")


def yellow() -> RealTable:
    import pyarrow.parquet as parquet

    found = parquet.read_table(_path("nyc-taxi/yellow_tripdata_2022-01-10.snappy.parquet"))
    kept = np.arange(MOST_ROWS) * found.num_rows // MOST_ROWS
    names = ["tpep_pickup_datetime", "trip_distance", "PULocationID", "DOLocationID", "RatecodeID", "fare_amount"]
    return RealTable({name: found.column(name).to_numpy()[kept] for name in names}, "fare_amount", suffix="parquet")


CLEAN: Mapping[str, Callable[[], RealTable]] = {
    "adult": adult, "adult, test file": lambda: adult("test"), "bank": bank_full, "bank, additional": bank_additional,
    "california": california, "titanic": titanic, "higgs": higgs, "higgs, test file": lambda: higgs("test"),
    "covertype": covertype, "covertype, first rows": lambda: covertype(1), "ETTh1": lambda: ett(1), "ETTh2": lambda: ett(2),
    "taxis": taxis, "taxi demand": nab,
}  # fmt: skip


# ---- faults ----


def _with(table: RealTable, **columns: Array) -> RealTable:
    return RealTable({**table.columns, **columns}, table.label, table.held, table.suffix)


def _rows(table: RealTable) -> int:
    return len(table.columns[table.label])


def _row_number(draw: np.random.Generator) -> RealTable:
    return _with(adult(), row=draw.permutation(_rows(adult())))


def _uuids(draw: np.random.Generator) -> RealTable:
    return _with(
        california(), block=np.array([f"{draw.integers(1 << 60):015x}" for _ in range(_rows(california()))], dtype=object)
    )


def _client_id(draw: np.random.Generator) -> RealTable:
    return _with(bank_full(), client_id=1_000_000 + draw.choice(9_000_000, _rows(bank_full()), replace=False))


def _trip_keys(draw: np.random.Generator) -> RealTable:
    numbers = draw.integers(0, 1 << 40, _rows(taxis()))
    numbers[1::20] = numbers[::20][: len(numbers[1::20])]
    return _with(taxis(), trip=np.array([f"t{number:010x}" for number in numbers], dtype=object))


def _raw_titanic(draw: np.random.Generator) -> RealTable:
    found = _read("titanic/train.csv")
    return _with(titanic(), Name=found["Name"])


def _income_code(draw: np.random.Generator) -> RealTable:
    rich = adult().columns["income"] == ">50K"
    return _with(adult(), bracket=np.where(draw.random(len(rich)) < 0.01, ~rich, rich).astype(int) + 1)


def _settled(draw: np.random.Generator) -> RealTable:
    return _with(bank_full(), settled=np.where(bank_full().columns["y"] == "yes", "by phone", "").astype(object))


def _euros(draw: np.random.Generator) -> RealTable:
    value = california().columns["median_house_value"]
    return _with(california(), value_eur=np.round(value * 0.92 * (1 + draw.normal(0, 0.01, len(value))), 1))


def _cover_name(draw: np.random.Generator) -> RealTable:
    names = np.array(["", "spruce", "lodgepole", "ponderosa", "willow", "aspen", "fir", "krummholz"], dtype=object)
    return _with(covertype(), cover=names[covertype().columns["Cover_Type"]])


def _charged(draw: np.random.Generator) -> RealTable:
    fare = taxis().columns["fare"]
    return _with(taxis(), charged=np.round(fare * 1.08 + draw.choice([0.3, 0.8], len(fare)), 2))


def _mostly(make: Callable[[], RealTable], name: str, usual: float, others: list[float], share: float) -> Any:
    def planted(draw: np.random.Generator) -> RealTable:
        rows = _rows(make())
        return _with(make(), **{name: np.where(draw.random(rows) < share, draw.choice(others, rows), usual)})

    return planted


def _far_out(make: Callable[[], RealTable], name: str, how: Callable[[Array], Any], count: int) -> Any:
    def planted(draw: np.random.Generator) -> RealTable:
        values = make().columns[name].astype(np.float64)
        chosen = draw.choice(np.flatnonzero(~np.isnan(values)), count, replace=False)
        values[chosen] = how(values[chosen])
        return _with(make(), **{name: values})

    return planted


def _labelled(make: Callable[[], RealTable], word: str, count: int = 1) -> Any:
    def planted(draw: np.random.Generator) -> RealTable:
        table = make()
        labels = table.columns[table.label].astype(object)
        labels[draw.choice(len(labels), count, replace=False)] = word
        return _with(table, **{table.label: labels})

    return planted


def _shared_rows(make: Callable[[], RealTable], other: Callable[[], RealTable] | None, share: float) -> Any:
    """A test file of which that share are training rows."""

    def planted(draw: np.random.Generator) -> RealTable:
        table = make()
        order = draw.permutation(_rows(table))
        cut = len(order) * 4 // 5
        train = {name: values[order[:cut]] for name, values in table.columns.items()}
        test = {name: values[order[cut:]] for name, values in table.columns.items()} if other is None else other().columns
        count = int(share * len(test[table.label]))
        copied = draw.choice(cut, count, replace=False)
        test = {name: np.concatenate([values[count:], train[name][copied]]) for name, values in test.items()}
        return RealTable(train, table.label, test)

    return planted


def _copied_rows(make: Callable[[], RealTable], share: float) -> Any:
    """Copies with ids of their own."""

    def planted(draw: np.random.Generator) -> RealTable:
        rows = _rows(make())
        places = draw.permutation(np.concatenate([np.arange(rows), draw.choice(rows, int(share * rows), replace=False)]))
        table = RealTable({name: values[places] for name, values in make().columns.items()}, make().label)
        return RealTable({"id": np.arange(len(places)) + 1000, **table.columns}, table.label)

    return planted


def _dated(name: str, source: str, make: Callable[[], RealTable]) -> Any:
    def planted(draw: np.random.Generator) -> RealTable:
        moments = _read(source)[name]
        rows = len(moments)
        kept = np.arange(min(rows, MOST_ROWS)) * rows // min(rows, MOST_ROWS)
        return _with(make(), **{name: moments[kept]})

    return planted


def _epochs(draw: np.random.Generator) -> RealTable:
    return _with(ett(2), timestamp=1_467_331_200 + 3600 * np.arange(_rows(ett(2))))


def _grouped(make: Callable[[], RealTable], name: str, sizes: tuple[int, int], word: str, jitter: tuple[str, ...]) -> Any:
    """Some rows again and again, slightly changed, under the name of whom they are from."""

    def planted(draw: np.random.Generator) -> RealTable:
        table = make()
        times = draw.integers(sizes[0], sizes[1] + 1, _rows(table) // 4)
        places = np.repeat(draw.choice(_rows(table), len(times), replace=False), times)
        group = np.repeat(np.arange(len(times)), times)
        order = draw.permutation(len(places))
        columns = {key: values[places[order]] for key, values in table.columns.items()}
        for key in jitter:
            columns[key] = np.round(columns[key] + draw.normal(0, 1, len(order)), 2)
        named = np.array([word.format(number) for number in group[order]], dtype=object) if word else group[order] + 70_000
        return RealTable({name: named, **columns}, table.label)

    return planted


def _pickups(draw: np.random.Generator) -> RealTable:
    return yellow()


PLANTED = (
    Planted("adult: the number of the row", "id", ("row",), _row_number),
    Planted("california: a code in hex", "id", ("block",), _uuids),
    Planted("bank: client_id", "id", ("client_id",), _client_id),
    Planted("taxis: a key, 5% of them twice", "id", ("trip",), _trip_keys),
    Planted("titanic: names", "id", ("Name",), _raw_titanic),
    Planted("adult: a code of the income, 1% wrong", "leak", ("bracket",), _income_code),
    Planted("bank: a word where the answer was yes", "leak", ("settled",), _settled),
    Planted("california: the value in euros, 1% off", "leak", ("value_eur",), _euros),
    Planted("covertype: the name of the cover", "leak", ("cover",), _cover_name),
    Planted("taxis: the amount charged", "leak", ("charged",), _charged),
    Planted("yellow cabs: the day of the month", "near_constant", ("tpep_pickup_datetime",), _pickups),
    Planted("adult: a day, 10 and few 9", "near_constant", ("day",), _mostly(adult, "day", 10, [9], 0.006)),
    Planted("bank: a version", "near_constant", ("version",), _mostly(bank_full, "version", 2.0, [2.1], 0.005)),
    Planted("california: the year of the survey", "near_constant", ("year",), _mostly(california, "year", 1990, [1991], 0.003)),
    Planted("higgs: the number of the run", "near_constant", ("run",), _mostly(higgs, "run", 7, [8, 9], 0.01)),
    Planted("higgs: 7 values times 1000", "tail", ("f0",), _far_out(higgs, "f0", lambda v: v * 1000, 7)),
    Planted("california: 5 populations times 500", "tail", ("population",),
            _far_out(california, "population", lambda v: v * 500, 5)),
    Planted("titanic: 3 fares in pence", "tail", ("Fare",), _far_out(titanic, "Fare", lambda v: v * 240 + 1e4, 3)),
    Planted("ETTh1: 4 errors of a sensor", "tail", ("HULL",), _far_out(lambda: ett(1), "HULL", lambda v: -99_999, 4)),
    Planted("bank: 10 balances of 9,999,999", "tail", ("balance",), _far_out(bank_full, "balance", lambda v: 9_999_999, 10)),
    Planted("adult: one maybe", "rare_label", ("income",), _labelled(adult, "maybe")),
    Planted("bank, additional: one Yes", "rare_label", ("y",), _labelled(bank_additional, "Yes")),
    Planted("covertype: one x7", "rare_label", ("Cover_Type",), _labelled(covertype, "x7")),
    Planted("titanic: one maybe among 0 and 1", "rare_label", ("Survived",), _labelled(titanic, "maybe")),
    Planted("higgs: two unsure", "rare_label", ("signal",), _labelled(higgs, "unsure", 2)),
    Planted("adult: 5% of the test file", "duplicate", ("test.csv",), _shared_rows(adult, lambda: adult("test"), 0.05)),
    Planted("california: 3% copied with other ids", "duplicate", ("rows",), _copied_rows(california, 0.03)),
    Planted("higgs: 10% of the test file", "duplicate", ("test.csv",), _shared_rows(higgs, lambda: higgs("test"), 0.10)),
    Planted("covertype: 2% copied with other ids", "duplicate", ("rows",), _copied_rows(covertype, 0.02)),
    Planted("bank: 1.5% of the test file", "duplicate", ("test.csv",), _shared_rows(bank_full, None, 0.015)),
    Planted("taxis: pickup", "time", ("pickup",), _dated("pickup", "nyc-taxi/taxis.csv.gz", taxis)),
    Planted("ETTh1: date", "time", ("date",), _dated("date", "ett/ETTh1.csv.gz", lambda: ett(1))),
    Planted("taxi demand: timestamp", "time", ("timestamp",), _dated("timestamp", "nab-nyc-taxi/nyc_taxi.csv", nab)),
    Planted("yellow cabs: pickup", "time", ("tpep_pickup_datetime",), _pickups),
    Planted("ETTh2: seconds since 1970", "time", ("timestamp",), _epochs),
    Planted("adult: three rows a person", "group", ("person_id",), _grouped(adult, "person_id", (3, 3), "", ("age",))),
    Planted("higgs: four rows a photo", "group", ("photo",),
            _grouped(higgs, "photo", (4, 4), "img{:05d}.jpg", ("f0", "f1", "f2"))),
    Planted("bank: 2 to 6 rows a customer", "group", ("customer",),
            _grouped(bank_full, "customer", (2, 6), "C-{:06d}", ("balance",))),
    Planted("titanic: households", "group", ("household",), _grouped(titanic, "household", (2, 5), "", ("Age",))),
    Planted("covertype: 2 to 8 rows a cell, no telling name", "group", ("cell",),
            _grouped(covertype, "cell", (2, 8), "c{:x}", ("Slope",))),
)  # fmt: skip


def _written(columns: Columns, path: Path) -> str:
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as parquet

        parquet.write_table(pa.table(columns), path)
        return str(path)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in zip(*(values.tolist() for values in columns.values()), strict=True):
            writer.writerow(["" if value != value else value for value in row])
    return str(path)
