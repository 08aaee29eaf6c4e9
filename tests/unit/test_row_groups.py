"""Row groups of Parquet files that a filter leaves out whole are not read, and everything is as if they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import flatout as fo
from flatout.data.sources.tables import encoding
from flatout.data.sources.tables.derive import derivation_of
from flatout.data.sources.tables.kept_rows import KeptRows
from flatout.data.sources.tables.scan import scan
from flatout.data.sources.tables.table import columns_asked_for

ROWS, GROUP = 200, 20


def table() -> pa.Table:
    random = np.random.default_rng(0)
    km = np.arange(ROWS) + random.normal(0, 3, ROWS)
    km[45:50], km[100:120], km[160] = np.nan, np.nan, np.inf  # a group with some, one of nothing else, one with infinity
    days = np.datetime64("2024-01-01T00:00:00", "us") + (np.arange(ROWS) * 3600 * 10**6).astype("timedelta64[us]")
    stops = np.arange(ROWS) // 2 - 10
    return pa.table(
        {
            "km": pa.array(km),
            "missing": pa.array([None if row % 3 else float(row) for row in range(ROWS)]),
            "stops": pa.array(stops, pa.int8()),
            "large": pa.array((stops + (1 << 62)).astype(np.uint64)),
            "day": pa.array(days),
            "zoned": pa.array(days + np.timedelta64(1, "us"), pa.timestamp("ns", "Europe/Berlin")),
            "date": pa.array(days.astype("datetime64[D]")),
            "text": pa.array([str(row) for row in range(ROWS)]),
            "y": pa.array(np.arange(ROWS) % 2),
        }
    )


def read(path: Path, where: Any) -> tuple[pa.Table, list[str], str | None, int]:
    """The rows that are kept, their places, the note, and how many rows were read."""
    found, looked_at = scan(str(path)), list[int]()
    asked = columns_asked_for(None, where, None, None, None)
    assert asked is not None
    kept, changed = KeptRows(derivation_of(asked, found.columns, "y", None), "y"), KeptRows.changed

    def spied(self: KeptRows, batch: Any, *given: Any) -> Any:
        looked_at.append(batch.num_rows)
        return changed(self, batch, *given)

    with patch.object(KeptRows, "changed", spied):
        batches = list(found.changed_by(kept).batches())
    places = [Path(where.of(row)).name for batch, where in batches for row in range(batch.num_rows)]
    whole = pa.Table.from_batches([batch for batch, _ in batches], schema=pa.schema(list(found.columns.items())))
    return whole, places, kept.note(), sum(looked_at)


@pytest.mark.parametrize(
    ("where", "rows_read"),
    [
        ("km > 150", 80),  # groups whose range is not known are read: one of NaN alone, one that reaches infinity
        ("km < 30", 80),
        ("30 <= km < 50", 80),
        (["stops >= 70", "missing > 3"], 40),
        ("stops == 3", 20),
        ("stops > -5 + 2 * 30", 80),
        ("4611686018427387904 + 80 <= large", 200),  # where float64 can not tell the values apart
        ("large >= 4611686018427387904", 200),
        ("day >= '2024-01-08'", 40),
        ("zoned < '2024-01-02 00:00:00'", 40),
        ("date == '2024-01-03'", 40),
        ("km > 150 or stops < -5", 200),
        ("stops != 3", 200),
        ("km > stops", 200),
        ("text == '50'", 200),
        ("not km > 150", 200),
        ("km > null", 40),
        ("km > 1000", 40),
    ],
    ids=str,
)
def test_what_is_kept_is_what_is_kept_without_statistics(where: Any, rows_read: int, tmp_path: Path) -> None:
    for name, told in (("told", True), ("untold", False)):
        (tmp_path / name).mkdir()
        parquet.write_table(table(), tmp_path / name / "t.parquet", row_group_size=GROUP, write_statistics=told)
    found, plain = read(tmp_path / "told" / "t.parquet", where), read(tmp_path / "untold" / "t.parquet", where)
    assert str(found[0].to_pydict()) == str(plain[0].to_pydict()), "NaN equals NaN here"
    assert found[1:3] == plain[1:3] and (found[3], plain[3]) == (rows_read, ROWS)


def test_a_training_does_not_depend_on_it(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"label": "y", "where": "day >= '2024-01-05'", "holdout": 0.2, "seed": 1}
    both = []
    for name, told in (("told", True), ("untold", False)):
        path = tmp_path / f"{name}.parquet"
        parquet.write_table(table().drop(["km", "large"]), path, row_group_size=GROUP, write_statistics=told)
        both.append(fo.data.table(str(path), **keys))
    assert both[0].fingerprint() == both[1].fingerprint() and both[0].notes == both[1].notes


def test_rows_are_counted_once_however_often_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MEMORY_BYTES", 0)  # so every pass reads the file
    parquet.write_table(table().drop(["km", "large"]), tmp_path / "t.parquet", row_group_size=GROUP)
    made = fo.data.table(str(tmp_path / "t.parquet"), label="y", where="stops >= 40", holdout=0.2)
    assert "where stops >= 40: 100 of 200 rows are left out" in made.notes
