"""The guards of a table: faults are found with the column and a figure, and the recipe that is drafted deals with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import yaml
from commands import Command

import flatout as fo
from flatout.base.errors import UsageError
from flatout.data.data import Data
from flatout.data.specs import parse_data
from flatout.explore.drafting.new import draft
from flatout.explore.guard.finding import GuardFinding

ROWS = 600


def honest(rows: int = ROWS) -> dict[str, Any]:
    """Three numbers and a town, which say something about `y`, and not everything."""
    random = np.random.default_rng(1)
    age, income = random.integers(18, 80, rows), np.round(random.normal(50, 10, rows), 2)
    y = np.where(age / 80 + random.normal(0, 0.4, rows) > 0.6, "yes", "no")
    height = np.round(random.normal(170, 12, rows), 1)
    return {"age": age, "income": income, "height": height, "town": random.choice(["Bern", "Genf", "Chur"], rows), "y": y}


def found(folder: Path, columns: dict[str, Any], label: str = "y", **options: Any) -> dict[tuple[str, str], GuardFinding]:
    parquet.write_table(pa.table(columns), folder / "train.parquet")
    drafted = draft([str(folder / "train.parquet")], label, folder, **options)
    return {(one.guard, one.column): one for one in drafted.findings}


def data_of(folder: Path, columns: dict[str, Any], label: str = "y") -> dict[str, Any]:
    """The data of the drafted recipe."""
    parquet.write_table(pa.table(columns), folder / "train.parquet")
    text = draft([str(folder / "train.parquet")], label, folder).text(["flatout", "new"], "recipe.yaml")
    return dict(yaml.safe_load(text)["data"])


def loaded(folder: Path, written: dict[str, Any]) -> Data:
    return parse_data(written, folder)


def test_an_honest_table_has_no_finding(tmp_path: Path) -> None:
    assert found(tmp_path, honest()) == {}


def test_ids(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    codes = [f"{code:x}" for code in random.integers(0, 1 << 50, ROWS)]
    codes[1] = codes[0]  # near-unique
    columns = {"row": random.permutation(ROWS), "code": codes, "account_id": random.permutation(10 * ROWS)[:ROWS], **honest()}
    findings = found(tmp_path, columns)
    assert {name for guard, name in findings if guard == "id"} == {"row", "code", "account_id"}
    assert "599 different values in 600 rows" in findings["id", "code"].figure
    assert data_of(tmp_path, columns)["drop"] == ["row", "code", "account_id"]


def test_a_column_that_gives_the_label_away(tmp_path: Path) -> None:
    columns = honest()
    wrong = np.random.default_rng(0).random(ROWS) < 0.005
    columns["answer"] = np.where((columns["y"] == "yes") ^ wrong, 7.25, 3.5) + np.arange(ROWS) * 1e-3
    columns["reason"] = [None if y == "yes" else "no interest" for y in columns["y"]]
    findings = found(tmp_path, columns)
    assert set(findings) == {("leak", "answer"), ("leak", "reason")}
    assert findings["leak", "reason"].value == 1
    assert "drop" not in data_of(tmp_path, columns)  # only the user knows what is known when predicting
    number = {**honest(), "price": 3 * honest()["income"] + np.random.default_rng(0).normal(0, 0.3, ROWS)}
    assert ("leak", "income") in found(tmp_path, number, "price")


def test_a_day_that_is_almost_always_the_same(tmp_path: Path) -> None:
    """The next day must not be far outside of what the model has seen."""
    random = np.random.default_rng(0)
    start = np.datetime64("2022-01-10T00:00:00")
    when = start + random.integers(0, 86_400, ROWS).astype("timedelta64[s]")
    when[:4] -= np.timedelta64(1, "D")
    columns = {"when": when, "day": np.where(np.arange(ROWS) < 4, 9, 10), **honest()}
    findings = found(tmp_path, columns)
    assert {name for guard, name in findings if guard == "near_constant"} == {"when", "day"}
    assert (
        "10 in 99.3% of the rows, deviation 0.0814: the nearest other value is 12 deviations out"
        in findings["near_constant", "day"].figure
    )
    written = data_of(tmp_path, columns)
    data = loaded(tmp_path, written)
    next_day = {
        "when": [np.datetime64("2022-01-11T12:00")],
        "day": [11],
        "age": [40],
        "income": [50.0],
        "height": [170.0],
        "town": ["Bern"],
    }
    x = data.fitted.device(data.fitted.rows(next_day))["x"]
    assert float(x.abs().max()) < 4
    plain = loaded(tmp_path, {"table": "train.parquet", "label": "y", "drop": ["day"]})
    assert float(plain.fitted.device(plain.fitted.rows(next_day))["x"].abs().max()) < 4


def test_heavy_tails_are_scaled_and_not_only_pointed_at(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    columns = {"gain": np.exp(random.normal(0, 3, ROWS)), "change": random.normal(0, 1, ROWS), **honest()}
    columns["change"][5] = -9_999.0
    findings = found(tmp_path, columns)
    assert {name for guard, name in findings if guard == "tail"} == {"gain", "change"}
    written = data_of(tmp_path, columns)
    assert written["steps"] == {"gain": ["log", "standardise"], "change": [{"clip": 0.001}, "standardise"]}
    loaded(tmp_path, written)


@pytest.mark.parametrize("numbers", [False, True])
def test_a_rare_label_is_named(tmp_path: Path, numbers: bool) -> None:
    columns = honest()
    labels = [str(int(y == "yes")) if numbers else y for y in columns["y"]]
    labels[417] = "maybe"
    lines = [",".join(map(str, row)) for row in zip(columns["age"], columns["income"], labels, strict=True)]
    (tmp_path / "train.csv").write_text("\n".join(["age,income,y", *lines]) + "\n")
    drafted = draft([str(tmp_path / "train.csv")], "y", tmp_path)
    (finding,) = drafted.findings
    assert (finding.guard, finding.column) == ("rare_label", "y")
    assert "'maybe'" in finding.figure and "row 418" in finding.figure
    recipe = yaml.safe_load(drafted.text(["flatout"], "recipe.yaml"))
    assert "na" not in recipe["data"]
    assert recipe["objective"] == ("binary" if numbers else "classify")


def test_copies_across_files(tmp_path: Path) -> None:
    columns = honest()
    rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    (tmp_path / "train.csv").write_text("\n".join([",".join(columns), *rows[:500]]) + "\n")
    (tmp_path / "test.csv").write_text("\n".join([",".join(columns), *rows[500:], *rows[:10]]) + "\n")
    (finding,) = draft([str(tmp_path / name) for name in ("train.csv", "test.csv")], "y", tmp_path).findings
    assert (finding.guard, finding.column) == ("duplicate", "test.csv")
    assert "10 of its 110 rows (9.1%)" in finding.figure


def test_copies_with_other_ids_stay_on_one_side(tmp_path: Path) -> None:
    twice = {name: np.concatenate([values, values[:200]]) for name, values in honest().items()}
    columns = {"id": np.arange(ROWS + 200), **twice}
    assert found(tmp_path, columns)["duplicate", "rows"].value == pytest.approx(0.5, abs=0.02)
    written = data_of(tmp_path, columns)
    assert written["holdout_group"] == ["age", "income", "height", "town"]
    data = loaded(tmp_path, written)
    assert data.validation is not None
    parts = [source.stored() for source in (data.train, data.validation)]
    train, held = ({tuple(row) for row in part["numeric"].tolist()} for part in parts)
    assert not train & held


def test_dates_are_split_by_time(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    days = np.datetime64("2020-01-01") + random.integers(0, 900, ROWS)
    columns = {"born": days - 9_000, "sold": days, **honest()}
    assert ("time", "sold") in found(tmp_path, columns)
    written = data_of(tmp_path, columns)
    assert written["holdout_latest"] == "sold" and written["holdout"] == 0.2
    data = loaded(tmp_path, {**written, "drop": ["born", "town"], "steps": {"sold": {"date": {"parts": ["year"]}}}})
    assert data.validation is not None
    years = [source.stored()["numeric"][:, 0] for source in (data.train, data.validation)]
    assert years[0].max() <= years[1].min()
    assert len(years[1]) == pytest.approx(0.2 * ROWS, abs=5)
    late = {**columns, "y": np.where(days > np.sort(days)[-60], "new", columns["y"])}
    assert "holdout_latest" not in data_of(tmp_path, late)  # "new" would have no training row
    gaps = {**columns, "sold": pa.array([None if row % 9 == 0 else day for row, day in enumerate(days.tolist())])}
    assert "67 rows have none" in found(tmp_path, gaps)["time", "sold"].advice


def test_groups_stay_on_one_side(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    users = random.integers(0, 100, ROWS)
    columns = {"user_id": users, **honest()}
    assert found(tmp_path, columns)["group", "user_id"].value == pytest.approx(6, abs=0.1)
    written = data_of(tmp_path, columns)
    assert (written["holdout_group"], written["drop"]) == ("user_id", ["user_id"])
    data = loaded(tmp_path, {**written, "drop": []})
    assert data.validation is not None
    train, held = (set(source.stored()["numeric"][:, 0].tolist()) for source in (data.train, data.validation))
    assert train and held and not train & held


def test_values_of_all_kinds_are_looked_at(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    moments = np.datetime64("2020-01-01T00:00") + np.arange(ROWS)
    columns = {
        "nothing": pa.nulls(ROWS),
        "nan": np.full(ROWS, np.nan),
        "infinite": np.where(np.arange(ROWS) % 9, random.normal(size=ROWS), np.inf),
        "hour": pa.array((np.arange(ROWS) % 24 * 3600).astype(np.int32)).cast(pa.time32("s")),
        "lists": [[1]] * ROWS,
        "took": pa.array((moments - moments[0]).astype("timedelta64[us]")),
        "kind": pa.array(random.choice(["a", "b"], ROWS)).dictionary_encode(),
        "large": np.arange(ROWS, dtype=np.uint64) * np.uint64(2**50),
        "zoned": pa.array(moments.astype("datetime64[us]"), pa.timestamp("us", "UTC")),
        **honest(),
    }
    assert set(found(tmp_path, columns)) == {("time", "zoned"), ("id", "large")}
    assert set(found(tmp_path, {**columns, "y": random.normal(size=ROWS)})) == {("time", "zoned"), ("id", "large")}


def test_guards_are_switched_off_by_name(tmp_path: Path) -> None:
    columns = {"id": np.arange(ROWS), **honest(), "gain": np.exp(np.random.default_rng(0).normal(0, 3, ROWS))}
    assert set(found(tmp_path, columns)) == {("id", "id"), ("tail", "gain")}
    assert set(found(tmp_path, columns, guard={"tail": False})) == {("id", "id")}
    assert found(tmp_path, columns, guard=False) == {}


def test_commands(desk: Path, flatout: Command) -> None:
    columns = {"id": np.arange(ROWS), **honest(), "gain": np.round(np.exp(np.random.default_rng(0).normal(0, 3, ROWS)), 4)}
    lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    (desk / "people.csv").write_text("\n".join([",".join(columns), *lines]) + "\n")
    answer = flatout("data", "people.csv", "--label", "y")
    assert answer.code == 0 and not (desk / "recipe.yaml").exists()
    assert "id: another value in every row" in answer.out and "deviations from the mean" in answer.out
    as_json = json.loads(flatout("data", "people.csv", "--json").out)
    assert [one["guard"] for one in as_json["findings"]] == ["id", "tail"]
    assert flatout("new", "people.csv", "--guard", "tail=off").code == 0
    recipe = yaml.safe_load((desk / "recipe.yaml").read_text())
    assert recipe["data"]["guard"] == {"tail": False} and "steps" not in recipe["data"]
    shown = json.loads(flatout("data", "recipe.yaml", "--seconds", "0.1", "--json").out)
    assert shown["findings"] == []
    shown = json.loads(flatout("data", "recipe.yaml", "data.guard=on", "--seconds", "0.1", "--json").out)
    assert [(one["guard"], one["column"]) for one in shown["findings"]] == [("tail", "gain")]
    assert "tail: gain: " in flatout("data", "recipe.yaml", "data.guard=on", "--seconds", "0.1").out
    assert "tail: gain: " in flatout("explain", "recipe.yaml", "data.guard=on").out
    assert "tail: gain: " not in flatout("explain", "recipe.yaml").out
    wrong = flatout("new", "people.csv", "--guard", "tails=off", "--force")
    assert wrong.code == 2 and "--guard: expected off, or single guards such as leak=off" in wrong.err


def test_options_that_contradict_each_other(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"user": np.arange(ROWS), **honest()}), tmp_path / "train.parquet")
    where = str(tmp_path / "train.parquet")
    with pytest.raises(UsageError, match="give one of them"):
        fo.data.table(where, label="y", holdout=0.2, holdout_latest="age", holdout_group="user")
    with pytest.raises(UsageError, match="give holdout too"):
        fo.data.table(where, label="y", holdout_latest="age")


def test_unknown_categories_are_counted_when_predicting(desk: Path, flatout: Command) -> None:
    columns = honest()
    head, lines = ",".join(columns), [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    (desk / "people.csv").write_text("\n".join([head, *lines]) + "\n")
    (desk / "later.csv").write_text("\n".join([head, *(line.replace("Bern", "Brig") for line in lines[:50])]) + "\n")
    brig = sum("Bern" in line for line in lines[:50])
    assert flatout("new", "people.csv").code == 0
    assert flatout("run", "recipe.yaml", "budget=5 steps", "--quiet").code == 0
    note = f"note: 'town' has a value unknown from training in {brig} rows"
    answer = flatout("predict", "last", "later.csv", "--out", "p.csv")
    assert answer.code == 0 and note in answer.err and "note" not in answer.out
    assert note in flatout("evaluate", "last", "--data", "later.csv").err
    assert flatout("predict", "last", "people.csv", "--out", "p.csv").err == ""
    said: list[str] = []
    fo.predict(
        fo.load("last"), {**{name: values[:2] for name, values in columns.items()}, "town": ["Brig", "Bern"]}, say=said.append
    )
    assert said == ["'town' has a value unknown from training in 1 rows"]
