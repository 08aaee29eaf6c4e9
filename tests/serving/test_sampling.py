"""A share of the requests is kept as Parquet: as they came, as one table, and without any effect on answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as datasets
import pytest
import tritonclient.http as triton
from front_server import Front, front, served

from flatout.base.errors import UsageError
from flatout.serving.front.hooks import RowHooks
from flatout.serving.options import FrontOptions, ServeOptions, WantedModel
from flatout.serving.sample_files import SampleFiles, SampleSizes
from flatout.serving.serve import check

PERSON = {"age": 39, "job": "cook", "since": "2023-05-01T10:00:00", "code": 2}


@contextmanager
def sampling(path: Path, folder: Path, said: list[str] | None = None, share: float = 1.0, **more: Any) -> Iterator[Front]:
    """A front of the model `m`; the samples are written at the end."""
    sizes = more.pop("sizes", None)
    samples = SampleFiles(folder, share, (said if said is not None else []).append, sizes)
    with front(served(path), samples=samples, **more) as running:
        yield running
        running.do(lambda: None)  # the last sample was kept: it is noted after its answer is sent
    samples.close()


def rows_in(folder: Path) -> list[dict[str, Any]]:
    table = datasets.dataset(folder, partitioning="hive").to_table()
    return sorted(table.to_pylist(), key=lambda row: (row["request_time"], row["request_row"]))


def test_rows_as_they_came(packaged: Callable[[str], Any], tmp_path: Path) -> None:
    exported = packaged("classes_table")
    with sampling(exported.path, tmp_path) as running:
        answer = running.post("/predict", PERSON, {"x-request-id": "order-7"}).json
        many = running.post("/predict", [PERSON, {**PERSON, "age": None, "job": None}]).json["predictions"]
        assert running.post("/predict", {"age": 1}).status == 400  # refused: not kept
    first, *others = rows_in(tmp_path)
    assert {name: first[name] for name in PERSON} == PERSON
    assert (first["model"], first["version"], first["request_id"], first["request_row"]) == ("m", 1, "order-7", 0)
    assert first["answer_class"] == answer["class"] and first["answer_prediction"] == answer["prediction"]
    assert first["answer_probability"] == pytest.approx(answer["probability"])
    assert len(first["answer_probabilities"]) == 3 and first["request_ms"] > 0
    assert first["input_extra"] is None and first["prepared_ids"] is None
    assert [row["age"] for row in others] == [39, None] and [row["job"] for row in others] == ["cook", None]
    assert [row["request_row"] for row in others] == [0, 1]
    assert [row["answer_class"] for row in others] == [row["class"] for row in many]


def test_columns_whose_type_changes(packaged: Callable[[str], Any], tmp_path: Path) -> None:
    """In one file, and over files: a category as a number and as text, other columns, columns of a hook."""

    def words(columns: Any, headers: Any) -> Any:
        changed = {**columns, "code": [2 if code == "two" else code for code in columns["code"]]}
        changed["job"][0] = "nurse"  # in place: the sample has what came
        return changed

    def after(columns: Any, headers: Any) -> Any:
        return {"class": columns["class"], "prediction": [f"{one}!" for one in columns["prediction"]], "why": ["x"]}

    exported = packaged("classes_table")
    requests = [
        PERSON,
        {**PERSON, "job": 5, "code": "two"},
        {**PERSON, "job": True, "order": "A-1"},
        {**PERSON, "job": "\ud83d\ude00"},
    ]
    for number, some in enumerate((requests[:2], requests[2:])):
        hooks = RowHooks(words, after if number else None)
        with sampling(exported.path, tmp_path, hooks=hooks) as running:
            for one in some:
                assert running.post("/predict", one).status == 200
    assert len(list(tmp_path.glob("model=m/version=1/*.parquet"))) == 2
    rows = rows_in(tmp_path)
    assert [row["job"] for row in rows] == ["cook", "5", "true", "\U0001f600"]
    assert [row["code"] for row in rows] == [2, None, 2, 2]
    assert json.loads(rows[1]["input_extra"]) == {"code": "two"}
    assert json.loads(rows[2]["input_extra"]) == {"order": "A-1"}
    assert rows[2]["answer_class"] is not None and rows[2]["answer_prediction"] is None
    extra = json.loads(rows[2]["answer_extra"])
    assert extra["why"] == "x" and extra["prediction"].endswith("!")


@pytest.mark.parametrize("kind", ["photos", "chars", "sequences", "images", "several", "labels"])
def test_every_kind_of_data(packaged: Callable[[str], Any], tmp_path: Path, kind: str) -> None:
    exported = packaged(kind)
    given = exported.rows(3)
    columns = given if isinstance(given, dict) else {"photo" if kind == "photos" else "text" if kind == "chars" else "x": given}
    with sampling(exported.path, tmp_path) as running:
        if kind == "photos":
            for file in given:
                assert running.post("/predict", file, {"Content-Type": "application/octet-stream"}).status == 200
        else:
            lists = {name: column.tolist() if isinstance(column, np.ndarray) else column for name, column in columns.items()}
            assert running.post("/predict", lists).status == 200
    rows = rows_in(tmp_path)
    assert len(rows) == 3
    for name, column in columns.items():
        for row, value in zip(rows, column, strict=True):
            assert row[name] == value if isinstance(value, bytes | str) else np.array_equal(row[name], value), name
    assert all(row["input_extra"] is None and row["answer_extra"] is None for row in rows)
    answers = [name for name in rows[0] if name.startswith("answer_") and name != "answer_extra"]
    assert answers and all(row[name] is not None for row in rows for name in answers)


def test_prepared_tensors_are_lists(packaged: Callable[[str], Any], tmp_path: Path) -> None:
    with (
        sampling(packaged("classes_table").path, tmp_path) as running,
        triton.InferenceServerClient(f"127.0.0.1:{running.port}") as client,
    ):
        wanted = client.get_model_metadata("m")["parameters"]["prepared_inputs"]
        inputs = []
        for one in wanted:
            made = triton.InferInput(one["name"], [2, *one["shape"][1:]], one["datatype"])
            made.set_data_from_numpy(np.ones([2, *one["shape"][1:]], "f4" if one["datatype"] == "FP32" else "i4"))
            inputs.append(made)
        client.infer("m", inputs)
    rows = rows_in(tmp_path)
    assert len(rows) == 2 and rows[0]["age"] is None
    for one in wanted:
        assert rows[1][f"prepared_{one['name']}"] == [1] * one["shape"][1]


def test_a_share(packaged: Callable[[str], Any], tmp_path: Path) -> None:
    with sampling(packaged("classes_table").path, tmp_path, share=0.3) as running:
        for _ in range(60):
            assert running.post("/predict", PERSON).status == 200
    assert 0 < len(rows_in(tmp_path)) < 60


def test_files_by_rows(packaged: Callable[[str], Any], tmp_path: Path) -> None:
    """A full file is there before the end, and nothing but whole files has a name that readers see."""
    with sampling(packaged("classes_table").path, tmp_path, sizes=SampleSizes(file_rows=4)) as running:
        running.post("/predict", [PERSON] * 5)
        while not list(tmp_path.glob("*/*/*.parquet")):
            running.get("/v2/health/live")
        running.post("/predict", [PERSON] * 2)
    assert len(rows_in(tmp_path)) == 7
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2


def test_too_much_is_dropped_and_said_once(packaged: Callable[[str], Any], tmp_path: Path) -> None:
    said: list[str] = []
    with sampling(packaged("classes_table").path, tmp_path, said, sizes=SampleSizes(held_bytes=2000)) as running:
        for _ in range(3):
            assert running.post("/predict", [PERSON] * 100).status == 200
        assert running.post("/predict", PERSON).status == 200
    assert len(rows_in(tmp_path)) == 1
    assert len(said) == 2 and "dropped" in said[0] and "1 sampled requests are in" in said[1] and "3 were dropped" in said[1]


def test_a_disk_that_fails(packaged: Callable[[str], Any], tmp_path: Path) -> None:
    """Here a file is where a folder should be: root may write everywhere."""
    said: list[str] = []
    (tmp_path / "model=m").write_text("")
    with sampling(packaged("classes_table").path, tmp_path, said, sizes=SampleSizes(file_rows=1)) as running:
        for _ in range(5):
            assert running.post("/predict", PERSON).status == 200
    assert len(said) == 2 and "can't be written" in said[0] and "5 were dropped" in said[1]


def test_a_folder_that_can_not_be_written_is_an_error_at_the_start(packaged: Callable[[str], Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    options = ServeOptions(front=FrontOptions(sample_share=0.1, sample_folder=str(tmp_path / "file")))
    with pytest.raises(UsageError, match="sampled requests"):
        check([WantedModel("m", packaged("classes_table").path)], options)
