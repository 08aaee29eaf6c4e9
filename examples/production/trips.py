"""Taxi trips of New York by date, as tables with the same columns.

yellow_tripdata_2022-01-10.snappy.parquet, yellow_tripdata_2022-01-11.snappy.parquet: two days of yellow cabs, in the format of
the city's Taxi and Limousine Commission (TLC); from github.com/erkansirin78/datasets, yellow_tripdata_partitioned_by_day.
taxis.csv.gz: some trips of March 2019; from github.com/mwaskom/seaborn-data, taxis.csv, gzipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

PAYMENTS = {1: "card", 2: "cash"}  # the TLC's numbers
SWAPPED = {1: "cash", 2: "card"}  # a mistake
INPUTS = ("hour", "passengers", "distance", "fare", "tolls", "payment")


def of_2022(folder: Path, day: int, payments: Mapping[int, str] = PAYMENTS) -> pa.Table:
    read = parquet.read_table(folder / f"yellow_tripdata_2022-01-{day}.snappy.parquet")
    return pa.table({
        "hour": pc.cast(pc.hour(read["tpep_pickup_datetime"]), pa.float64()),
        "passengers": read["passenger_count"],
        "distance": read["trip_distance"],
        "fare": read["fare_amount"],
        "tolls": read["tolls_amount"],
        "payment": pa.array([payments.get(number) for number in read["payment_type"].to_pylist()]),
        "tip": pc.if_else(pc.greater(read["tip_amount"], 0), "yes", "no"),
    })  # fmt: skip


def of_2019(folder: Path) -> pa.Table:
    read = csv.read_csv(folder / "taxis.csv.gz")
    read = read.filter(pc.equal(read["color"], "yellow"))
    return pa.table({
        "hour": pc.cast(pc.hour(read["pickup"]), pa.float64()),
        "passengers": pc.cast(read["passengers"], pa.float64()),
        "distance": read["distance"],
        "fare": read["fare"],
        "tolls": read["tolls"],
        "payment": pa.array([{"credit card": "card", "cash": "cash"}.get(name) for name in read["payment"].to_pylist()]),
        "tip": pc.if_else(pc.greater(read["tip"], 0), "yes", "no"),
    })  # fmt: skip
