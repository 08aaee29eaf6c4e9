"""`flatout new` suggests a derived column where held-out rows are predicted better with it, and only there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from commands import Command

from flatout.explore.drafting.columns import seen
from flatout.explore.guard.derivable import suggest_columns
from flatout.explore.guard.look import TableLook


def drafted(flatout: Command, df: pd.DataFrame, label: str) -> str:
    df.to_csv("t.csv", index=False)
    Path("t.yaml").unlink(missing_ok=True)
    assert flatout("new", "t.csv", "--label", label, "--out", "t.yaml").code == 0
    return Path("t.yaml").read_text()


def test_a_planted_ratio_and_a_duration_are_suggested(desk: Path, flatout: Command) -> None:
    drawn = np.random.default_rng(0)
    rows = 1500
    df = pd.DataFrame({"weight": drawn.uniform(40, 120, rows), "height": drawn.uniform(0.5, 2.1, rows)})
    df["risk"] = (df.weight / df.height + drawn.normal(0, 0.5, rows)).round(3)
    text = drafted(flatout, df, "risk")
    shown = flatout("data", "t.yaml", "--seconds", "0.1")
    assert shown.code == 0 and 'derive: {weight_per_height: "weight / height"}' in shown.out
    assert "try     " not in flatout("data", "t.yaml", "data.guard=off", "--seconds", "0.1").out
    assert "try     " not in flatout("data", "t.yaml", "data.derive={r: weight / height}", "--seconds", "0.1").out
    assert "# derive: {weight_per_height: weight / height}" in text and "weight_per_height removes 99%" in text
    start = pd.Timestamp("2024-03-01") + pd.to_timedelta(drawn.integers(0, 50_000, rows), "min")
    minutes = drawn.integers(3, 90, rows)
    trips = pd.DataFrame({"start": start, "end": start + pd.to_timedelta(minutes, "min"), "x": drawn.normal(size=rows)})
    trips["fare"] = 2 + 0.5 * minutes + drawn.normal(size=rows)
    assert "minutes_between(start, end)" in drafted(flatout, trips, "fare")
    assert "derive" not in drafted(flatout, trips.assign(fare=drawn.permutation(trips.fare)), "fare")


def test_nothing_is_suggested_where_nothing_gains(desk: Path, flatout: Command) -> None:
    drawn = np.random.default_rng(1)
    df = pd.DataFrame({name: drawn.normal(size=800) for name in "abcd"})
    df["y"] = df.a + 2 * df.b + drawn.normal(size=800)
    assert "derive" not in drafted(flatout, df, "y")
    assert "derive" not in drafted(flatout, df.assign(y=np.where(df.a + df.b > 0, "yes", "no")), "y")


def test_real_tables_get_a_suggestion_only_with_a_gain(shared_data: Callable[[str], Path]) -> None:
    def suggested(df: pd.DataFrame, label: str) -> list[str]:
        columns = {name: seen(name, pa.array(df[name], from_pandas=True)) for name in df}
        inputs = [column for name, column in columns.items() if name != label]
        return [one.expression for one in suggest_columns(TableLook(columns, columns[label], "number"), inputs)]

    taxis = pd.read_csv(shared_data("nyc-taxi/taxis.csv.gz"), parse_dates=["pickup", "dropoff"]).drop(columns="total")
    assert "minutes_between(pickup, dropoff)" in suggested(taxis, "fare")
    housing = pd.read_csv(shared_data("california-housing/housing.csv.gz"))
    assert suggested(housing, "median_house_value") == []
