"""Mistakes in a pipeline file: all are said at once, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pipelines_here import Here, script

from flatout.base.errors import FlatoutError, RecipeError, UsageError
from flatout.pipelines.asked.documents import plain, remembering
from flatout.pipelines.stages.verb import open_pipeline


def problems(here: Here, **stages: Any) -> str:
    with pytest.raises(RecipeError) as found:
        open_pipeline(here.stages(**stages).file)
    return "\n".join(found.value.problems)


def test_every_mistake_is_said_with_its_place(here: Here) -> None:
    here.write("mine.yaml", "data: digits\nmodel: mlp\n")
    told = problems(
        here,
        first={"run": "python twice.py a.txt b.txt", "outptus": ["b.txt"]},
        second={"train": "mine.yaml", "limit": "soon", "needs": {"cores": 0, "memroy": "1 GB"}},
        third={"trian": "mine.yaml"},
        fourth={"train": "mine.yaml", "export": "second"},
        fifth={"data": "a.txt", "expect": {"age": {"type": "nubmer", "missing": 2, "range": [3, 1]}}},
        sixth={"gate": "second", "data": "a.txt", "after": ["frist"]},
        seventh={"train": "mien.yaml"},
        eighth={"export": "fifth", "when": "often"},
        ninth="train",
    )  # fmt: skip
    for place in (
        "stages.first.outptus: no such key; did you mean 'outputs'?", "stages.first.outputs: missing", "stages.second.limit:",
        "stages.second.needs.cores: expected more than 0", "stages.second.needs.memroy: no such key; did you mean 'memory'?",
        "stages.third: needs one of", "did you mean 'train'?", "stages.fourth: a stage has one kind",
        "stages.fifth.expect.age.type:", "stages.fifth.expect.age.missing:", "stages.fifth.expect.age.range:",
        "stages.sixth.floor: missing", "stages.eighth.when:", "did you mean 'first'?", "stages.ninth:",
    ):  # fmt: skip
        assert place in told
    told = problems(here, data={"data": "a.txt"}, out={"export": "data"}, model={"train": "mien.yaml"})
    assert "stages.out.export: data is a stage of kind data; here it takes one of kind train" in told
    assert "mien.yaml is neither a stage nor a recipe file" in told and "did you mean 'mine.yaml'?" in told


def test_a_circle_names_its_stages(here: Here) -> None:
    told = problems(
        here,
        one=script("python twice.py c.txt b.txt", "b.txt"),
        two=script("python twice.py b.txt c.txt", "c.txt"),
        three=script("python twice.py a.txt d.txt", "d.txt"),
    )
    assert "in a circle: one -> two -> one" in told or "in a circle: two -> one -> two" in told


def test_a_missing_input_names_what_is_near(here: Here) -> None:
    here.write("mine.yaml", "data: {table: calls.csv, label: y}\nmodel: mlp\n")
    told = problems(here, one=script("python twice.py a.txt b.txt", "b.txt", inputs=["a.text"]), two={"train": "mine.yaml"})
    assert "stages.one: reads a.text, which does not exist and which no stage writes; did you mean 'a.txt'?" in told
    assert "stages.two: data.table: there is no calls.csv" in told


def test_one_file_has_one_writer_that_does_not_read_it(here: Here) -> None:
    told = problems(
        here,
        one=script("python twice.py a.txt b.txt", "b.txt"),
        two=script("python twice.py a.txt b.txt", "b.txt"),
        three=script("python twice.py a.txt out/c.txt", "out/c.txt"),
        four=script("python twice.py a.txt out", "out"),
        five=script("python twice.py a.txt a.txt", "e.txt", "a.txt", inputs=["a.txt"]),
        six=script("python twice.py a.txt .", "."),
        seven=script("python twice.py a.txt x", "built/.pipeline"),
    )
    assert "two: writes b.txt, as one does" in told and "four: writes out, as three does" in told
    assert "a.txt is also read by five" in told and "built/.pipeline would hold the state" in told
    assert "stages.six" in told


@pytest.mark.parametrize(
    "content",
    ["", "- a\n", "stages: [a]\n", "stages: {}\n", "stages: {a: {run: x, outputs: [y]}", "model: mlp\ndata: digits\n", "\0"],
)
def test_what_is_no_pipeline_file_is_a_usage_error(here: Here, content: str) -> None:
    here.write("pipeline.yaml", content)
    with pytest.raises(UsageError):
        open_pipeline(here.file)
    with pytest.raises(UsageError, match="not found"):
        open_pipeline(here.folder / "other.yaml")


def test_garbage_in_keys_is_said_and_never_a_crash(here: Here) -> None:
    values: list[Any] = [None, 3, True, [], {}, [None], {"a": None}, "\0", "x" * 5000, [[1]], -1.5, float("nan")]
    keys = (
        "run",
        "outputs",
        "data",
        "expect",
        "train",
        "tune",
        "gate",
        "against",
        "floor",
        "when",
        "needs",
        "inputs",
        "deploy",
    )
    for key in keys:
        for value in values:
            for base in ({}, {"run": "python twice.py a.txt b.txt", "outputs": ["b.txt"]}):
                try:
                    open_pipeline(here.stages(stage={**base, key: value}).file)
                except FlatoutError as error:
                    assert str(error)


@pytest.mark.parametrize(
    "text", ["a: [1, 1.5, yes, ~, '1', 0x10]\non: {b: 1e3}\n", "- .nan\n", "- .inf\n", "", "a: 1\na: 2\n", "é: ü\n"]
)
def test_yaml_that_is_remembered_is_what_would_be_read(tmp_path: Path, text: str) -> None:
    place = tmp_path / "a.yaml"
    for _ in range(3):
        value, wrong = remembering(tmp_path / "cache")(place, text)
        assert repr((value, wrong)) == repr(plain(place, text))
    assert remembering(tmp_path / "cache")(place, "a: 7")[0] == {"a": 7}, "another text at the same place"
    for kept in (tmp_path / "cache" / "yaml").iterdir():
        for damage in (b"{", b"[]", b'{"of": 3}', b"\xff"):
            kept.write_bytes(damage)
            assert remembering(tmp_path / "cache")(place, "a: 7")[0] == {"a": 7}
