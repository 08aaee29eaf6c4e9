"""Derived columns from a recipe to a package: evaluation, predict, the package and a server give one answer for one row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from commands import Command

import flatout as fo
from flatout.serving.asking import ServedModel
from flatout.serving.front.preparing import Preparer

RECIPE = """
data:
  table: trips.csv
  label: fare
  drop: [start, end]
  holdout: 0.25
  where: [km > 0.5]
  derive:
    minutes: minutes_between(start, end)
    speed: 60 * km / minutes
    usual: mean(speed) by zone
    night: hour(start) < 6 or hour(start) >= 22
  join: {file: zones.csv, on: zone, columns: [fee]}
model: {mlp: {hidden: [4]}}
objective: regress
batch: 32
lr: 1e-2
budget: 3 epochs
settings: {device: cpu}
"""


def trips(rows: int = 160) -> pd.DataFrame:
    drawn = np.random.default_rng(0)
    start = pd.Timestamp("2024-03-01") + pd.to_timedelta(drawn.integers(0, 50_000, rows), "min")
    km = drawn.gamma(2, 3, rows).round(2)
    minutes = (km * drawn.uniform(1, 4, rows)).round() + 1
    fare = (2 + km + minutes / 3).round(2)
    end = start + pd.to_timedelta(minutes, "min")
    return pd.DataFrame({"km": km, "start": start, "end": end, "zone": drawn.choice(["A", "B", "C"], rows), "fare": fare})


@pytest.fixture
def trained(desk: Path, flatout: Command) -> fo.Run:
    trips().to_csv("trips.csv", index=False)
    pd.DataFrame({"zone": ["A", "B"], "fee": [1.5, 2.5]}).to_csv("zones.csv", index=False)
    Path("trips.yaml").write_text(RECIPE)
    answer = flatout("run", "trips.yaml", "--quiet", "--planning", "off")
    assert answer.code == 0, answer.err
    found = fo.load("trips-1")
    assert isinstance(found, fo.Run)
    return found


def test_one_row_has_one_answer_everywhere(trained: fo.Run, flatout: Command) -> None:
    rows = trips()
    rows[rows.km > 0.5].to_csv("kept.csv", index=False)
    rows.to_csv("all.csv", index=False)
    # evaluation of the run itself, of a file, and of a file with rows that `where` leaves out
    own = fo.evaluate(trained)
    assert fo.evaluate(trained, data="all.csv") == fo.evaluate(trained, data="kept.csv") and own["loss"] > 0
    answer = flatout("evaluate", "trips-1", "--data", "all.csv", "--device", "cpu")
    left_out = int((rows.km <= 0.5).sum())
    assert f"where km > 0.5: {left_out} of 160 rows are left out" in answer.err and left_out
    # predictions are for every row, from raw columns alone
    said: list[str] = []
    raw = rows[["km", "start", "end", "zone"]]
    predicted = fo.predict(trained, raw, device="cpu", say=said.append)["prediction"]
    assert len(predicted) == 160
    assert any(
        f"does not hold in {left_out} rows: training left such rows out, and they are predicted too" in line for line in said
    )
    assert any("'zone' has no row in zones.csv" in line for line in said)
    alone = torch.cat([fo.predict(trained, raw.iloc[[row]], device="cpu")["prediction"] for row in range(3)])
    assert torch.equal(alone, predicted[:3])
    assert flatout("export", "trips-1", "--out", "package").code == 0
    package = fo.load("package")
    written = [{**row, "start": row["start"].isoformat(), "end": row["end"].isoformat()} for row in raw.to_dict("records")]
    together = {name: [row[name] for row in written] for name in written[0]}
    assert torch.equal(torch.as_tensor(package.predict(together)["prediction"]), predicted)  # type: ignore[union-attr]
    preparer = Preparer(ServedModel("it", "1", 0, package))  # type: ignore[arg-type]
    prepared, one = preparer.rows(written), preparer.row(written[7])
    for name, column in prepared.items():
        np.testing.assert_array_equal(np.asarray(dict(one)[name])[0], column[7])


def test_another_expression_is_another_run(trained: fo.Run, flatout: Command) -> None:
    changed = RECIPE.replace("60 * km / minutes", "60 * km / (minutes + 1)")
    Path("trips.yaml").write_text(changed)
    assert flatout("run", "trips.yaml", "--quiet", "--planning", "off").code == 0
    assert Path("runs/trips-2").exists()
    Path("trips.yaml").write_text(changed.replace("minutes_between(start", "minutes_betwen(strt"))
    answer = flatout("run", "trips.yaml", "--quiet", "--planning", "off")
    assert answer.code == 2 and "did you mean 'minutes_between'?" in answer.err and "^~~~" in answer.err
    assert "Traceback" not in answer.err
