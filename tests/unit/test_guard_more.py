"""Faults of data that single columns, exact copies and well-written dates do not show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import yaml
from PIL import Image

from flatout.explore.drafting.new import draft
from flatout.explore.guard.finding import GuardFinding

ROWS = 1_000


def people(rows: int = ROWS) -> dict[str, Any]:
    random = np.random.default_rng(1)
    age, income = random.integers(18, 80, rows), np.round(random.normal(50, 10, rows), 2)
    height, weight = np.round(random.normal(170, 12, rows), 1), np.round(random.normal(70, 12, rows), 1)
    y = np.where(age / 80 + random.normal(0, 0.4, rows) > 0.6, "yes", "no")
    towns = random.choice(["Bern", "Genf", "Chur"], rows)
    return {"age": age, "income": income, "height": height, "weight": weight, "shoe": random.integers(36, 47, rows),
            "town": towns, "y": y}  # fmt: skip


def found(folder: Path, columns: dict[str, Any], label: str = "y") -> dict[tuple[str, str], GuardFinding]:
    parquet.write_table(pa.table(columns), folder / "train.parquet")
    drafted = draft([str(folder / "train.parquet")], label, folder)
    return {(one.guard, one.column): one for one in drafted.findings}


def written(folder: Path, columns: dict[str, Any], name: str = "train.csv") -> str:
    lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    (folder / name).write_text("\n".join([",".join(columns), *lines]) + "\n")
    return str(folder / name)


def test_an_honest_table_has_no_finding(tmp_path: Path) -> None:
    assert found(tmp_path, people()) == {}


def test_a_word_that_most_of_one_answer_have(tmp_path: Path) -> None:
    columns = people()
    answered = (columns["y"] == "yes") & (np.arange(ROWS) % 10 > 0)
    columns["boat"] = np.where(answered, np.char.add("B", (np.arange(ROWS) % 17).astype(str)), "")
    finding = found(tmp_path, columns)["leak", "boat"]
    assert 0.7 < finding.value < 0.95
    assert found(tmp_path, {**people(), "kept": columns["boat"]}, "y")["leak", "kept"].value == finding.value


def test_a_code_of_the_label_is_a_leak_and_no_group_whatever_it_is_called(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    columns = people(6_000)
    columns["site"] = [f"s{random.integers(30) * 2 + (one == 'yes')}" for one in columns["y"]]
    assert set(found(tmp_path, columns)) == {("leak", "site")}


def test_columns_that_tell_only_together(tmp_path: Path) -> None:
    columns = people()
    key = np.random.default_rng(0).integers(0, 2, ROWS)
    columns |= {"key": key, "lock": key ^ (columns["y"] == "yes")}
    finding = found(tmp_path, columns)["leak", "key"]
    assert finding.value == 1 and "key and lock together explain 100% of y" in finding.figure


def test_a_sum_and_its_other_part(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    columns = {**people(), "extra": np.round(random.uniform(0, 900, ROWS), 2)}
    columns["billed"] = columns["income"] + columns["extra"]
    (finding,) = found(tmp_path, columns, "income").values()
    assert finding.guard == "leak" and "extra and billed together explain 100% of income" in finding.figure


@pytest.mark.parametrize("form", ["%d.%m.%Y", "%m/%d/%y %I:%M %p", "%a %b %d %Y", "%d/%b/%Y:%H:%M:%S +0000"])
def test_dates_written_otherwise_are_named_and_left_out(tmp_path: Path, form: str) -> None:
    moments = np.datetime64("2023-01-05T10:00", "s") + np.arange(ROWS) * np.timedelta64(7 * 3600, "s")
    columns = {**people(), "when": [moment.strftime(form) for moment in moments.astype(object)]}
    (finding,) = found(tmp_path, columns).values()
    assert (finding.guard, finding.column) == ("time", "when")
    assert "from 2023-01-05 to 2023-10-2" in finding.figure and "2024-12-31" in finding.advice
    assert finding.change == {"drop": ["when"]}


def test_dates_of_digits_are_dates(tmp_path: Path) -> None:
    days = np.datetime64("2023-01-05") + np.arange(ROWS) // 3
    columns = {**people(), "n": [int(str(day).replace("-", "")) for day in days]}
    (finding,) = found(tmp_path, columns).values()
    assert finding.change == {"holdout_latest": "n"} and "from 2023-01-05 to 2023-12-04" in finding.figure


def test_one_value_in_every_row_and_a_spread_that_float32_can_not_tell(tmp_path: Path) -> None:
    tiny = 1013.25 + np.random.default_rng(0).normal(0, 1e-3, ROWS)
    columns = {"source": ["lab"] * ROWS, "pressure": tiny, "never": np.zeros(ROWS, np.int64), **people()}
    findings = found(tmp_path, columns)
    assert set(findings) == {("near_constant", "source"), ("near_constant", "pressure")}
    assert findings["near_constant", "source"].change == {"drop": ["source"]}


def test_a_number_that_means_missing_and_a_label_far_out(tmp_path: Path) -> None:
    columns = people()
    columns["weight"][::30] = -9999
    columns["income"][7] = 1e6
    findings = found(tmp_path, columns, "income")
    assert {name for guard, name in findings if guard == "tail"} == {"weight", "income"}
    assert "-9999 in 34 rows" in findings["tail", "weight"].figure and "['-9999']" in findings["tail", "weight"].advice


def test_other_spellings_and_words_for_missing_among_labels(tmp_path: Path) -> None:
    columns = people()
    yes = np.flatnonzero(columns["y"] == "yes")
    labels = columns["y"].astype(object)
    labels[yes[:60]], labels[yes[60:80]] = "YES", "N/A"
    where = written(tmp_path, {**columns, "y": labels})
    findings = {one.figure: one.advice for one in draft([where], "y", tmp_path).findings}
    assert set(findings) == {"'YES' in 60 rows is a class of its own", "'N/A' in 20 rows is a class of its own"}
    assert "may be 'yes'" in findings["'YES' in 60 rows is a class of its own"]


def test_a_usual_word_for_missing_among_labels_that_are_numbers_is_named(tmp_path: Path) -> None:
    columns = people()
    labels = (columns["y"] == "yes").astype(int).astype(object)
    labels[5:35] = "unknown"
    drafted = draft([written(tmp_path, {**columns, "y": labels})], "y", tmp_path)
    (finding,) = drafted.findings
    assert "30 rows" in finding.figure and "'unknown', first in row 6" in finding.figure
    assert yaml.safe_load(drafted.text(["flatout"], "recipe.yaml"))["data"]["on_bad"] == "skip"


def test_copies_with_one_value_changed(tmp_path: Path) -> None:
    columns = people()
    train = {name: values[:900] for name, values in columns.items()}
    held = {name: np.concatenate([values[900:], values[:20]]) for name, values in columns.items()}
    held["weight"][100:] += 1
    paths = [written(tmp_path, train), written(tmp_path, held, "test.csv")]
    (finding,) = draft(paths, "y", tmp_path).findings
    assert "20 of its 120 rows (16.7%) are also training rows, but for weight" in finding.figure
    twice = {name: np.concatenate([values, values[:100]]) for name, values in columns.items()}
    twice["weight"][ROWS:] += 1
    (finding,) = found(tmp_path, twice).values()
    assert finding.change == {"holdout_group": ["age", "income", "height", "shoe", "town"]}


def test_groups_of_numbers_with_gaps(tmp_path: Path) -> None:
    user = (np.arange(ROWS) // 4 * 3.0)[np.random.default_rng(0).permutation(ROWS)]
    user[::40] = np.nan
    assert found(tmp_path, {**people(), "user": user})["group", "user"].change["holdout_group"] == "user"


def test_the_same_photo_twice(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for part in ("train", "val"):
        for kind in ("ants", "bees"):
            (tmp_path / part / kind).mkdir(parents=True)
            for number in range(6):
                rough = Image.fromarray(random.integers(0, 255, (6, 6, 3), dtype=np.uint8)).resize(
                    (90, 60), Image.Resampling.BICUBIC
                )
                rough.save(tmp_path / part / kind / f"{number}.png")
    assert draft([str(tmp_path)], None, tmp_path).findings == ()
    with Image.open(tmp_path / "train" / "ants" / "0.png") as photo:
        photo.resize((60, 40)).save(tmp_path / "val" / "ants" / "x.jpg", quality=80)
    (finding,) = draft([str(tmp_path)], None, tmp_path).findings
    assert finding.column == "val" and "1 of 13 photos are also training photos" in finding.figure
    assert draft([str(tmp_path)], None, tmp_path, guard={"duplicate": False}).findings == ()
    (tmp_path / "train" / "bees" / "again.png").write_bytes((tmp_path / "train" / "ants" / "1.png").read_bytes())
    (finding,) = draft([str(tmp_path / "train")], None, tmp_path).findings
    assert "1 of 13 are copies of others" in finding.figure and "1 of them under another class" in finding.figure
