"""Sixteen tables and a folder of photos as they are: a guard that finds something in them may be wrong."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Mapping

import numpy as np
from _guard_cases import _ADULT, MOST_ROWS, Columns, RealTable, _path, _read
from _guard_planted import Photos, _yellow_table

FAR_OUT = 8.0
"""A finding about the tail of a column as it is, is right if a value lies this many standard deviations out."""


def _whole(columns: Columns, label: str, *drop: str) -> RealTable:
    rows = len(columns[label])
    kept = np.arange(min(rows, MOST_ROWS)) * rows // min(rows, MOST_ROWS)
    return RealTable({name: values[kept] for name, values in columns.items() if name not in drop}, label)


def _adult_raw(label: str, *drop: str) -> RealTable:
    return _whole(_read("adult/adult.data.gz", names=tuple(_ADULT)), label, *drop)


def _bank_raw(label: str, *drop: str) -> RealTable:
    return _whole(_read("bank-marketing/bank-full.csv.gz", ";"), label, "duration", *drop)


def _higgs_raw() -> RealTable:
    names = ("signal", *(f"f{place}" for place in range(28)))
    return _whole(_read("higgs-7k/binary.train.gz", "\t", names), "signal")


def _demand_lags() -> RealTable:
    """The last three days' values of the same half hour, and the value a week ago: no value of the last hours."""
    value = _read("nab-nyc-taxi/nyc_taxi.csv")["value"]
    back = {f"back_{lag}": value[336 - lag : len(value) - lag] for lag in (48, 96, 144, 336)}
    return RealTable({**back, "value": value[336:]}, "value")


def _pixels() -> RealTable:
    with gzip.open(_path("fashion-mnist/t10k-images-idx3-ubyte.gz")) as file:
        pictures = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 7, 4, 7, 4).mean((2, 4))[:, 1:6, 1:6]
    with gzip.open(_path("fashion-mnist/t10k-labels-idx1-ubyte.gz")) as file:
        kinds = np.frombuffer(file.read(), np.uint8, offset=8).astype(np.int64)
    columns = {f"p{row}{place}": np.round(pictures[:, row, place], 2) for row in range(5) for place in range(5)}
    return RealTable({**columns, "garment": kinds}, "garment")


def _colours() -> RealTable:
    import json

    from PIL import Image

    with Image.open(_path("cifar10/test_batch_first5000.png")) as sheet:
        pictures = np.asarray(sheet).reshape(-1, 4, 8, 4, 8, 3).mean((2, 4)).reshape(-1, 48)
    kinds = np.array(json.loads(_path("cifar10/test_labels.json").read_text()))
    return RealTable({**{f"c{place}": np.round(pictures[:, place], 1) for place in range(48)}, "kind": kinds}, "kind")


_TRIP = ("VendorID", "passenger_count", "trip_distance", "RatecodeID", "PULocationID", "DOLocationID")


AS_THEY_ARE: Mapping[str, Callable[[], RealTable | Photos]] = {
    "adult": lambda: _adult_raw("income"),
    "adult, hours of work": lambda: _adult_raw("hours_per_week"),
    "adult, education": lambda: _adult_raw("education", "education_num"),
    "bank": lambda: _bank_raw("y"),
    "bank, who has a mortgage": lambda: _bank_raw("housing"),
    "bank, additional": lambda: _whole(_read("bank-marketing/bank-additional-full.csv.gz", ";"), "y", "duration"),
    "california": lambda: _whole(_read("california-housing/housing.csv.gz"), "median_house_value"),
    "titanic": lambda: _whole(_read("titanic/train.csv"), "Survived", "PassengerId", "Name", "Ticket"),
    "higgs": _higgs_raw,
    "covertype": lambda: _whole(_read("covertype/covtype.csv.xz", most=MOST_ROWS, every=23), "Cover_Type"),
    "ETTh1, oil temperature": lambda: _whole(_read("ett/ETTh1.csv.gz"), "OT", "date"),
    "taxis, who pays by card": lambda: _whole(_read("nyc-taxi/taxis.csv.gz"), "payment", "pickup", "dropoff", "total", "tip"),
    "yellow cabs, tip": lambda: _yellow_table(10, "tip_amount", *_TRIP, "payment_type"),
    "taxi demand by the days before": _demand_lags,
    "Fashion-MNIST, 25 grey values": _pixels,
    "CIFAR-10, 48 colours": _colours,
    "photos of ants and bees": lambda: Photos(0, shutil.copyfile),
}
