"""What a trained run is used for: metrics of any part of its data, and predictions in the words that its labels had."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
import torch
from commands import Answer, Command
from interpreters import run_forked
from PIL import Image

import flatout as fo
from flatout.base.errors import DataError, UsageError

ROOT = Path(__file__).parent.parent.parent

RECIPE = """\
data: {table: people.csv, label: answer, holdout: 0.2}
model: {mlp: {hidden: [8]}}
batch: 16
lr: 1e-2
budget: 30 epochs
settings: {device: cpu}
"""
BRIEF = RECIPE.replace("30 epochs", "2 epochs")  # where it need not have learned anything
SQL_RECIPE = BRIEF.replace("table: people.csv", "sql: \"select age, job, answer from 'people.parquet'\"")
NEW = {"age": [25.0, 60.0, None, 25.0], "job": ["cook", "cook", "clerk", "astronaut"]}


def people(rows: int = 300, seed: int = 0) -> dict[str, Any]:
    """The answer is yes for clerks, and for whoever is past forty."""
    random = np.random.default_rng(seed)
    age, job = random.integers(20, 70, rows), random.choice(["clerk", "cook", "nurse"], rows)
    return {"age": age, "job": job, "answer": np.where((job == "clerk") | (age > 40), "yes", "no")}


def write_csv(path: Path, columns: dict[str, Any]) -> None:
    csv.write_csv(pa.table(columns), path)


@pytest.fixture(scope="module")
def kept_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def table_run(desk: Path, flatout: Command, kept_runs: Path) -> Any:
    """Trained once; each test has a copy."""
    write_csv(desk / "people.csv", people())
    if (kept_runs / "runs").exists():
        shutil.copytree(kept_runs / "runs", desk / "runs")
        return fo.load("mine-1")
    run = trained(flatout, RECIPE)
    shutil.copytree(desk / "runs", kept_runs / "runs")
    return run


def trained(flatout: Command, recipe: str) -> Any:
    Path("mine.yaml").write_text(recipe)
    answer = flatout("run", "mine.yaml", "--quiet")
    assert answer.code == 0, answer.err
    return fo.load("mine-1")


def metrics(answer: Answer) -> dict[str, float]:
    assert answer.code == 0, answer.err
    found: dict[str, float] = json.loads(answer.out)
    return found


def names(columns: Any) -> list[Any]:
    found: list[Any] = columns["class"].tolist()
    return found


# ---- parts of the run's own data ----


def test_each_part_of_a_run_can_be_evaluated(desk: Path, flatout: Command) -> None:
    for name, seed in (("people.csv", 0), ("held.csv", 1), ("last.csv", 2)):
        write_csv(desk / name, people(seed=seed))
    run = trained(flatout, BRIEF.replace("holdout: 0.2", "validation: held.csv, test: last.csv"))
    for part, file in (("train", "people.csv"), ("validation", "held.csv"), ("test", "last.csv")):
        own = metrics(flatout("evaluate", "last", "--part", part, "--json"))
        assert own == pytest.approx(metrics(flatout("evaluate", "last", "--data", file, "--json")))
        assert own == pytest.approx(fo.evaluate(run, part=part, device="cpu"))
    assert metrics(flatout("evaluate", "last", "--json")) == metrics(
        flatout("evaluate", "last", "--part", "validation", "--json")
    )


def test_files_that_were_changed_since_are_not_taken_for_those_it_was_trained_on(
    desk: Path, flatout: Command, table_run: Any
) -> None:
    before = metrics(flatout("evaluate", "last", "--json"))
    columns = people()
    columns["age"][0] += 1
    write_csv(desk / "people.csv", columns)
    answer = flatout("evaluate", "last")
    assert answer.code == 1 and "the data of mine-1 has changed since it was trained" in answer.err and "--data" in answer.err
    assert 0 <= metrics(flatout("evaluate", "last", "--data", "people.csv", "--json"))["accuracy"] <= 1
    write_csv(desk / "people.csv", people())
    assert fo.evaluate(table_run) == pytest.approx(before)


def test_the_train_part_is_evaluated_without_augmentation(desk: Path, flatout: Command) -> None:
    _write_photos(desk)
    run = trained(flatout, PHOTOS.replace("size: 16", "size: 16, holdout: 0.2, augment: [random_resized_crop, flip]"))
    first, again = (fo.evaluate(run, part="train", device="cpu") for _ in range(2))
    assert first == again and first["accuracy"] == 1


def test_a_part_that_is_not_there(desk: Path, flatout: Command, table_run: Any) -> None:
    answer = flatout("evaluate", "last", "--part", "test")
    assert answer.code == 2
    assert "mine-1 has no test part, its data has train and validation: set test: FILE" in answer.err
    assert "--data" in answer.err
    (desk / "bare.yaml").write_text(BRIEF.replace(", holdout: 0.2", ""))
    assert flatout("run", "bare.yaml", "--quiet").code == 0
    answer = flatout("evaluate", "last")
    assert answer.code == 2
    assert "bare-1 has no validation part, its data has train: set holdout: 0.2 or validation: FILE" in answer.err
    answer = flatout("evaluate", "last", "--part", "tests")
    assert (answer.code, answer.err) == (2, "flatout: unknown part 'tests'; did you mean 'test'?\n")


def test_a_part_and_other_data_are_not_one_question(table_run: Any, flatout: Command) -> None:
    answer = flatout("evaluate", "last", "--part", "test", "--data", "people.csv")
    assert answer.code == 2
    assert "part='test'" in answer.err and "other data was given" in answer.err
    with pytest.raises(UsageError, match="give one of them"):
        fo.evaluate(table_run, "people.csv", part="train")


# ---- names of classes ----


PHOTOS = """\
data: {images: photos, size: 16}
model: {mlp: {hidden: [8]}}
batch: 8
lr: 1e-2
budget: 10 epochs
settings: {device: cpu}
"""


def _write_photos(desk: Path) -> None:
    random = np.random.default_rng(0)
    for label, brightness in (("night sky", 50), ("snow", 200)):
        folder = desk / "photos" / label
        folder.mkdir(parents=True)
        for number in range(12):
            noise = random.integers(-40, 40, (24, 24, 3))
            Image.fromarray((brightness + noise).astype(np.uint8)).save(folder / f"{number}.png")


@pytest.mark.parametrize("objective", ["classify", "binary"])
def test_a_table_predicts_in_its_own_words(desk: Path, flatout: Command, objective: str) -> None:
    write_csv(desk / "people.csv", people())
    trained(flatout, RECIPE + f"objective: {objective}\n")
    write_csv(desk / "new.csv", {"age": [25, 60, 60], "job": ["cook", "cook", "nurse"]})
    for name in ("p.parquet", "p.csv", "p.npz"):
        answer = flatout("predict", "last", "new.csv", "--out", name)
        assert answer.code == 0, answer.err
        assert answer.out.startswith("wrote 3 rows with prediction, class, probability")
    read = [pq.read_table("p.parquet").to_pydict(), csv.read_csv("p.csv").to_pydict()]
    read.append({name: column.tolist() for name, column in np.load("p.npz").items()})
    for columns in read:
        assert columns["class"] == ["no", "yes", "yes"]
        assert columns["prediction"] == [0, 1, 1]


def test_names_are_known_to_a_new_process_that_has_no_training_data(desk: Path, flatout: Command) -> None:
    _write_photos(desk)
    trained(flatout, PHOTOS)
    (desk / "photos").rename(desk / "moved")
    program = "import flatout as fo; print(fo.predict(fo.load('mine-1'), 'moved/snow/3.png', device='cpu')['class'].tolist())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    said = run_forked(["-c", program], env=environment, check=True).stdout
    assert said == "['snow']\n"


def test_words_of_arrays_come_back(desk: Path, flatout: Command) -> None:
    x = np.random.default_rng(0).normal(size=(128, 5)).astype("float32")
    np.savez("words.npz", x=x, y=np.where(x.sum(1) > 0, "up", "down"))
    run = trained(flatout, RECIPE.replace("table: people.csv, label: answer", "arrays: words.npz"))
    given = np.array([[2.0] * 5, [-2.0] * 5], dtype="float32")
    assert names(fo.predict(run, given, device="cpu")) == ["up", "down"]
    Path("words.npz").rename("other.npz")  # what the run kept is enough
    assert fo.evaluate(run, "other.npz", device="cpu")["accuracy"] > 0.8
    assert fo.evaluate(run, {"x": given, "y": ["up", "down"]}, device="cpu")["accuracy"] == 1
    with pytest.raises(DataError, match="y: row 1 has label 'sideways', which no training row has"):
        fo.evaluate(run, {"x": given, "y": ["up", "sideways"]}, device="cpu")
    with pytest.raises(DataError, match=r"the data: labels must be 0 to 1 .*; row 0 has 2"):
        fo.evaluate(run, {"x": given, "y": [2, 0]}, device="cpu")


def test_numbers_of_classes_that_do_not_count_from_0_are_names(desk: Path, flatout: Command) -> None:
    columns = people()
    write_csv(desk / "people.csv", {**columns, "answer": np.where(columns["answer"] == "yes", 7, 3)})
    found = fo.predict(trained(flatout, BRIEF), "people.csv", device="cpu")
    assert [{"3": 0, "7": 1}[name] for name in names(found)] == list(found["prediction"])


def test_a_number_is_learned_and_predicted_whatever_its_size(desk: Path, flatout: Command) -> None:
    columns = people()
    pay = 30_000.5 + 500 * columns["age"] + 9_000 * (columns["job"] == "nurse")
    write_csv(desk / "people.csv", {**columns, "answer": pay})
    run = trained(flatout, RECIPE.replace("batch:", "objective: regress\nbatch:"))
    assert run.result["metrics"]["r2"] > 0.9 and run.result["metrics"]["loss"] < 0.1
    assert fo.evaluate(run)["rmse"] == pytest.approx(run.result["metrics"]["rmse"], rel=1e-4)
    (desk / "people.csv").unlink()  # what the run kept is enough
    found = fo.predict(run, {"age": [30.0, 60.0], "job": ["cook", "nurse"]})["prediction"]
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, torch.tensor([45_000.0, 69_000.0]), rtol=0.1, atol=0.0)


def test_a_label_read_as_classes_is_no_number(desk: Path, flatout: Command) -> None:
    columns = people()
    write_csv(desk / "people.csv", {**columns, "answer": 10 * (columns["age"] // 10)})
    Path("mine.yaml").write_text(RECIPE.replace("batch:", "objective: regress\nbatch:"))
    answer = flatout("run", "mine.yaml")
    assert answer.code != 0 and "was read as 5 classes" in answer.err and "target: number" in answer.err
    assert not Path("runs").exists()


def test_classes_that_are_numbers_stay_numbers(desk: Path, flatout: Command) -> None:
    columns = people()
    write_csv(desk / "people.csv", {**columns, "answer": (columns["answer"] == "yes").astype(int)})
    run = trained(flatout, BRIEF)
    assert list(fo.predict(run, "people.csv", device="cpu")) == ["prediction", "probability", "probabilities"]
    np.savez("numbers.npz", x=np.random.rand(64, 5).astype("float32"), y=np.arange(64) % 3)
    (desk / "arrays.yaml").write_text(BRIEF.replace("table: people.csv, label: answer", "arrays: numbers.npz"))
    assert flatout("run", "arrays.yaml", "--quiet").code == 0
    assert "class" not in fo.predict(fo.load("last"), "numbers.npz", device="cpu")


# ---- raw columns ----


class Lent:
    """A DataFrame of some other library: it lends its columns the way Arrow asks for them."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def test_columns_in_memory_are_predicted_as_those_of_a_file(table_run: Any) -> None:
    pq.write_table(pa.table(NEW), "new.parquet")
    expected = fo.predict(table_run, "new.parquet", device="cpu")
    assert names(expected)[:3] == ["no", "yes", "yes"] and len(expected["class"]) == 4
    table = pa.table(NEW)
    forms: list[Any] = [
        NEW,
        {"job": np.array(NEW["job"]), "age": torch.tensor([25, 60, float("nan"), 25])},
        {"age": tuple(NEW["age"]), "job": pa.chunked_array([NEW["job"][:1], NEW["job"][1:]]), "shoe size": [1]},
        table,
        pa.concat_tables([table.slice(0, 1), table.slice(1)]).append_column("answer", pa.array(["?"] * 4)),
        table.set_column(1, "job", table["job"].dictionary_encode()),
        table.set_column(1, "job", table["job"].cast(pa.large_string())),
        Lent(table),
    ]
    for given in forms:
        predicted = fo.predict(table_run, given, device="cpu")
        assert torch.equal(predicted["probabilities"], expected["probabilities"])
        assert names(predicted) == names(expected)


def test_a_data_frame_of_pandas(table_run: Any) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({**NEW, "note": ["a", "b", None, "d"]}, index=[7, 3, 5, 1])
    expected = fo.predict(table_run, NEW, device="cpu")
    for given in (frame, frame.astype({"job": "category"}), {"age": frame["age"], "job": frame["job"]}):
        assert torch.equal(fo.predict(table_run, given, device="cpu")["probabilities"], expected["probabilities"])


def test_a_stranger_is_what_training_calls_unknown(table_run: Any) -> None:
    odd = fo.predict(table_run, {"age": [33, 33, 33], "job": ["astronaut", "pilot", "cook"]}, device="cpu")["probabilities"]
    assert torch.equal(odd[0], odd[1]) and not torch.equal(odd[0], odd[2])


def test_columns_in_memory_can_be_evaluated(table_run: Any) -> None:
    write_csv(Path("other.csv"), people(seed=3))
    expected = fo.evaluate(table_run, "other.csv", device="cpu")
    assert fo.evaluate(table_run, people(seed=3), device="cpu") == expected
    assert fo.evaluate(table_run, pa.table(people(seed=3)), device="cpu") == expected
    with pytest.raises(DataError, match="the data lacks column 'answer'"):
        fo.evaluate(table_run, NEW, device="cpu")
    with pytest.raises(DataError, match="the data, row 1: label 'answer' is 'maybe', which no training row has"):
        fo.evaluate(table_run, {"age": [30], "job": ["cook"], "answer": ["maybe"]}, device="cpu")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"wage": [1]}, "the data lacks columns 'age', 'job', which the model was trained with; it has 'wage'"),
        ({}, "the data lacks columns 'age', 'job', which the model was trained with; it has none"),
        (pa.table({"age": [1]}), "the data lacks column 'job', which the model was trained with; it has 'age'"),
        ({"age": [39, 50], "job": ["cook"]}, "columns differ in length: 'age' has 2, 'job' has 1"),
        ({"age": 39, "job": "cook"}, "column 'age' is a list or an array, one value a row, got 39"),
        ({"age": [39], "job": "cook"}, "column 'job' is a list or an array, one value a row, got 'cook'"),
        ({"age": np.ones((2, 2)), "job": ["cook", "cook"]}, "column 'age' is one value a row, got an array of shape [2, 2]"),
        ({"age": ["old"], "job": ["cook"]}, "column 'age' was numeric in training and is string here"),
        ({"age": [39, "old"], "job": ["cook", "cook"]}, "column 'age' can't be read as values of one kind"),
        ({"age": [], "job": []}, "the data has columns and no rows"),
        (np.zeros((2, 2)), "the run was trained on a table: give its columns by name, as {'age': [...], ...}"),
    ],
)
def test_columns_that_can_not_be_used(table_run: Any, given: Any, said: str) -> None:
    with pytest.raises((DataError, UsageError)) as caught:
        fo.predict(table_run, given, device="cpu")
    assert said in str(caught.value)


# ---- queries ----


def test_a_query_is_predicted_and_evaluated(desk: Path, flatout: Command) -> None:
    pytest.importorskip("duckdb")
    pq.write_table(pa.table(people()), "people.parquet")
    trained(flatout, SQL_RECIPE)
    (desk / "elsewhere").mkdir()
    pq.write_table(pa.table({**people(rows=50, seed=4), "kept": np.arange(50) % 2}), "elsewhere/all.parquet")
    query = "select job, age from 'elsewhere/all.parquet' where kept = 1"
    answer = flatout("predict", "last", query, "--out", "p.parquet")
    assert answer.code == 0, answer.err
    assert answer.out == "wrote 25 rows with prediction, class, probability, probabilities to p.parquet\n"
    half = {name: column[1::2] for name, column in people(rows=50, seed=4).items()}
    assert pq.read_table("p.parquet")["class"].to_pylist() == names(fo.predict(fo.load("last"), half, device="cpu"))
    labelled = metrics(flatout("evaluate", "last", "--data", query.replace("age", "age, answer"), "--json"))
    assert labelled == fo.evaluate(fo.load("last"), half, device="cpu")


def test_what_a_query_may_lack(desk: Path, flatout: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb")
    pq.write_table(pa.table(people()), "people.parquet")
    trained(flatout, SQL_RECIPE)
    answer = flatout("predict", "last", "select age from 'people.parquet'")
    assert answer.code == 1 and "no column 'job'" in answer.err
    assert flatout("predict", "last", "select age from").code == 2
    monkeypatch.setitem(sys.modules, "duckdb", None)
    answer = flatout("predict", "last", "select age, job from 'people.parquet'")
    assert answer.code == 1
    assert "needs duckdb, which is not installed: pip install 'flatout[sql]'" in answer.err


def test_files_elsewhere_are_read_by_their_address(desk: Path, table_run: Any) -> None:
    fsspec.filesystem("memory").pipe("/elsewhere/people.csv", (desk / "people.csv").read_bytes())
    here, there = (fo.predict(table_run, path, device="cpu") for path in ("people.csv", "memory://elsewhere/people.csv"))
    assert torch.equal(torch.as_tensor(here["prediction"]), torch.as_tensor(there["prediction"]))
