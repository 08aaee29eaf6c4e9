"""The newest trips as two tables: most of them to train with, the last of them to judge by. Put the source of yours here."""

from __future__ import annotations

from pathlib import Path

import trips
from pyarrow import parquet

DATA = Path("data")  # with the files that trips.py names

if __name__ == "__main__":
    newest = trips.of_2022(DATA, 11)
    kept = round(0.8 * len(newest))
    parquet.write_table(newest.slice(0, kept), "trips.parquet")
    parquet.write_table(newest.slice(kept), "later.parquet")
