"""Predictions keep columns of the data, row by row, and `probability` is that of the predicted class in every objective."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from commands import Command
from PIL import Image

import flatout as fo
from flatout.base.errors import DataError, UsageError
from flatout.data.fitted.fitted import by_class
from flatout.objectives.build import build


def rows_of(path: str) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def people(desk: Path, flatout: Command) -> fo.Run:
    random = np.random.default_rng(0)
    lines = ["id,name,age,left"]
    for number in range(60):
        age = int(random.integers(20, 60))
        lines.append(f"{number:04},p{number},{age},{'yes' if age > 40 else 'no'}")
    Path("people.csv").write_text("\n".join(lines) + "\n")
    recipe = "data: {table: people.csv, label: left, drop: [id, name], on_bad: skip}\nmodel: {mlp: {hidden: [4]}}\n"
    recipe += "objective: binary\nbatch: 16\nlr: 5e-2\nbudget: 30 epochs\nsettings: {device: cpu}\n"
    Path("people.yaml").write_text(recipe)
    assert flatout("run", "people.yaml", "--quiet", "--planning", "off").code == 0
    found = fo.load("people-1")
    assert isinstance(found, fo.Run)
    return found


def test_a_table_keeps_columns_as_they_are_written(people: fo.Run, flatout: Command) -> None:
    other = "id,note,age,weight\n0007,ab,39,3.10\n0008,,1e39,4.25\n0010,cd,50,5.5\n"  # the second age fits no float32
    Path("new.csv").write_text(other)
    answer = flatout("predict", "people-1", "new.csv", "--keep", "id,note,age, kg=weight", "--out", "p.csv", "--device", "cpu")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("wrote 2 rows with id, note, age, kg, prediction, class, probability")
    found = rows_of("p.csv")
    assert [(row["id"], row["note"], float(row["age"]), row["kg"]) for row in found] == [
        ("0007", "ab", 39.0, "3.10"), ("0010", "cd", 50.0, "5.5"),
    ]  # fmt: skip
    Path("numbers.csv").write_text("id,age\n12,39\n,50\n")
    for name in ("p.npz", "p.parquet"):
        assert flatout("predict", "people-1", "numbers.csv", "--keep", "id", "--out", name, "--device", "cpu").code == 0
    assert parquet.read_table("p.parquet")["id"].to_pylist() == [12, None]
    with np.load("p.npz") as arrays:  # no pickle
        assert arrays["id"].tolist() == ["12", ""]


def test_rows_in_memory_keep_columns(people: fo.Run) -> None:
    table: dict[str, list[Any]] = {"age": [39, 50], "id": [2**60 + 1, None], "who": ["a", None]}
    for given in (table, pa.table(table)):
        found = fo.predict(people, given, keep=["id", "name=who"], device="cpu")
        assert list(found)[:3] == ["id", "name", "prediction"]
        assert found["id"].tolist() == [2**60 + 1, None] and found["name"].tolist() == ["a", None]
        with pytest.raises(DataError, match=r"keep.*'idd'"):
            fo.predict(people, given, keep="idd", device="cpu")
    with pytest.raises(UsageError, match="own_class=who"):
        fo.predict(people, table, keep="class=who", device="cpu")


def test_probability_is_of_the_predicted_class(people: fo.Run) -> None:
    ages = {"age": list(range(20, 60))}
    found = fo.predict(people, ages, device="cpu")
    assert set(found["class"]) == {"no", "yes"} and (found["probability"] >= 0.5).all()
    each = fo.predict(people, ages, each_class=True, device="cpu")
    assert list(each) == ["prediction", "class", "probability", "probability_no", "probability_yes"]
    torch.testing.assert_close(each["probability_no"] + each["probability_yes"], torch.ones(40))
    chosen = torch.where(each["prediction"] == 1, each["probability_yes"], each["probability_no"])
    assert torch.equal(chosen, each["probability"])


def test_binary_is_exact_at_both_ends() -> None:
    made = build("binary").decode(torch.tensor([[-60.0], [0.0], [60.0]]))
    assert made["prediction"].tolist() == [0, 1, 1] and made["probability"].tolist() == [1.0, 0.5, 1.0]
    assert 0 < made["probabilities"][0, 1] < 1e-20 and 0 < made["probabilities"][2, 0] < 1e-20


def test_a_package_of_an_older_version_keeps_its_meaning() -> None:
    old = {"prediction": torch.tensor([0, 1]), "probability": torch.tensor([0.25, 0.75])}  # of the second class
    found = by_class(old, ("no", "yes"), "binary")
    assert found["probability_yes"].tolist() == [0.25, 0.75] and found["probability_no"].tolist() == [0.75, 0.25]
    assert found["probability"].tolist() == [0.25, 0.75]
    with pytest.raises(UsageError, match="regress"):
        by_class({"prediction": torch.zeros(2)}, None, "regress")


def test_arrays_and_photos(desk: Path, flatout: Command) -> None:
    assert flatout("run", "table.yaml", "--quiet", "--planning", "off").code == 0
    np.savez("more.npz", x=np.zeros((3, 5), "float32"), id=np.array([5, 6, 7]))
    found = fo.predict(fo.load("table-1"), "more.npz", keep="id", each_class=True, device="cpu")
    assert list(found) == ["id", "prediction", "probability", "probability_0", "probability_1"]
    assert found["id"].tolist() == [5, 6, 7]
    with pytest.raises(DataError, match="keep"):
        fo.predict(fo.load("table-1"), np.zeros((3, 5), "float32"), keep="id", device="cpu")
    for number in range(8):
        Path(f"photos/{'ab'[number % 2]}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((16, 16, 3), number * 9, np.uint8)).save(f"photos/{'ab'[number % 2]}/{number}.png")
    data = fo.data.images("photos", size=8)
    recipe = fo.Recipe(
        data=data,
        model={"convnet": {"channels": [4], "hidden": 4}},
        batch=4,
        lr=1e-3,
        budget="1 epochs",
        settings={"device": "cpu"},
    )
    run = fo.run(recipe, runs="runs", cache=None, planning="off")
    kept = fo.predict(run, "photos", keep="file", device="cpu", cache=None)
    assert kept["file"].tolist() == [f"a/{n}.png" for n in (0, 2, 4, 6)] + [f"b/{n}.png" for n in (1, 3, 5, 7)]


def test_a_photo_that_cannot_be_decoded_gets_no_other_photos_prediction(desk: Path) -> None:
    for part, number in ((part, number) for part in ("photos", "later") for number in range(6)):
        path = Path(part, *("ab"[number % 2] if part == "photos" else ""), f"{number}.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((16, 16, 3), number * 9, np.uint8)).save(path)
    data = fo.data.images("photos", size=8, on_bad="skip")
    model = {"convnet": {"channels": [4], "hidden": 4}}
    settings = {"device": "cpu"}
    recipe = fo.Recipe(data=data, model=model, batch=2, lr=1e-3, budget="1 epochs", settings=settings)
    run = fo.run(recipe, runs="runs", cache=None, planning="off")
    whole = fo.predict(run, "later", keep="file", device="cpu", cache=None)
    content = Path("later/2.jpg").read_bytes()
    Path("later/2.jpg").write_bytes(content[: len(content) * 2 // 3])  # its header is whole: only decoding finds it
    notes: list[str] = []
    found = fo.predict(run, "later", keep="file", device="cpu", cache=None, say=notes.append)
    assert found["file"].tolist() == [f"{number}.jpg" for number in (0, 1, 3, 4, 5)]
    torch.testing.assert_close(found["probability"], whole["probability"][[0, 1, 3, 4, 5]])
    assert "1 bad sample was left out" in notes[-1] and "2.jpg" in notes[-1]
