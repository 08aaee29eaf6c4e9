"""Data as it comes out of pandas, Polars, Arrow and DataLoaders: read right, or refused with what to do."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

import flatout as fo
from flatout.base.errors import FlatoutError, UsageError
from flatout.data.given import as_data

pd = pytest.importorskip("pandas", reason="pandas is not installed")
ROWS = 60
HOW: dict[str, Any] = {"budget": "2 steps", "settings": {"device": "cpu"}, "planning": "off", "fresh": True}


@pytest.fixture(autouse=True)
def _desk(desk: Path) -> None:
    """Nothing is measured; runs are in the test's folder."""


def frame(**columns: Any) -> Any:
    random = np.random.default_rng(0)
    made = {"age": random.normal(40, 10, ROWS), "job": random.choice(["cook", "nurse"], ROWS)}
    return pd.DataFrame({**made, **columns, "y": random.choice(["no", "yes"], ROWS)})


def inputs(data: Any) -> dict[str, tuple[int, ...]]:
    return {name: column.shape for name, column in data.train.schema.items() if name != "y"}


WHOLE, MISSING = pd.array(np.arange(ROWS) % 7, dtype="Int64"), pd.array(np.arange(ROWS) % 7, dtype="Int64")
MISSING[3] = pd.NA
READ = {  # one more column; how many numbers and categories there are with it
    "Int64": (WHOLE, 2, 1),
    "Int64 with NA": (MISSING, 2 + 1, 1),
    "boolean": (pd.array(np.arange(ROWS) % 2 == 0, dtype="boolean"), 1, 2),
    "string[pyarrow]": (pd.array(["a", "b"] * (ROWS // 2), dtype="string[pyarrow]"), 1, 2),
    "category with unused levels": (pd.Categorical(["a", "b"] * (ROWS // 2), categories=["z", "a", "b"]), 1, 2),
    "Decimal": ([Decimal("1.50") + row for row in range(ROWS)], 2, 1),
    "time zones": (pd.date_range("2020-01-01", periods=ROWS, tz="Europe/Berlin", freq="36h"), None, 1),
    "dates": ([datetime.date(2020, 1, 1 + row % 28) for row in range(ROWS)], None, 1),
    "float16": (np.arange(ROWS, dtype=np.float16), 2, 1),
    "uint64": (np.arange(ROWS, dtype=np.uint64), 2, 1),
    "no value": ([None] * ROWS, 1, 1),
}


@pytest.mark.parametrize("name", READ)
def test_columns_of_pandas_that_are_read(name: str) -> None:
    column, numbers, categories = READ[name]
    data = as_data(frame(odd=column), label="y")
    assert data.classes == 2 and len(data.train) == ROWS
    assert inputs(data)["ids"] == (categories,)
    wide = inputs(data)["numeric"][0]
    assert wide > 1 if numbers is None else wide in (numbers, numbers - 1)  # whether a missing value is marked with it or later


REFUSED = {  # what the answer names
    "mixed types": ([1, "a"] * (ROWS // 2), r"'odd' holds int and str.*astype\(str\)"),
    "huge whole numbers": ([2**70 + row for row in range(ROWS)], r"'odd' holds int.*astype\(float\)"),
    "objects": ([object()] * ROWS, "'odd' holds object.*drop"),
    "complex": (np.ones(ROWS, complex), "'odd'.*complex.*drop"),
    "intervals": (pd.cut(np.arange(ROWS), 4), "'odd'.*interval.*drop"),
    "durations": (pd.to_timedelta(np.arange(ROWS), unit="h"), r"'odd'.*total_seconds\(\)"),
    "sparse": (pd.arrays.SparseArray(np.arange(ROWS) % 2), "'odd'.*Sparse.*drop"),
    "lists": ([[1, 2]] * ROWS, "'odd'.*list.*drop"),
    "infinity": ([np.inf] + [1.0] * (ROWS - 1), "row 1.*'odd' is inf.*skip"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_columns_of_pandas_that_are_refused(name: str) -> None:
    column, answer = REFUSED[name]
    with pytest.raises(FlatoutError, match=answer):
        as_data(frame(odd=column), label="y")


def test_frames_that_are_refused_say_what_to_do() -> None:
    rows = frame()
    with pytest.raises(FlatoutError, match="'age': rename"):
        as_data(pd.concat([rows, rows[["age"]]], axis=1), label="y")
    with pytest.raises(FlatoutError, match=r"reset_index\(\)"):
        as_data(rows.set_index(["age", "job"]), label="y")
    with pytest.raises(FlatoutError, match="'yes' in all 60"):
        as_data(rows.assign(y="yes"), label="y")
    with pytest.raises(FlatoutError, match=r"row 2: the label 'y' is missing.*skip"):
        as_data(rows.assign(y=["no", None] * (ROWS // 2)), label="y")
    with pytest.raises(UsageError, match=r"pd\.DataFrame\(rows\)"):
        as_data(rows.to_dict("records"), label="y")
    with pytest.raises(UsageError, match=r"pd\.DataFrame\(rows\)"):
        as_data(rows.to_records(index=False), label="y")


def test_columns_with_several_levels_or_numbers_as_names() -> None:
    rows = frame()
    rows.columns = pd.MultiIndex.from_tuples([("who", "age"), ("who", "job"), ("out", "y")])
    assert as_data(rows, label=("out", "y")).labels == ("no", "yes")
    numbered = pd.DataFrame(np.random.default_rng(0).normal(size=(ROWS, 2))).assign(y=frame().y)  # names: 0, 1 and "y"
    assert inputs(as_data(numbered, label="y")) == {"numeric": (2,)}


def test_options_of_the_data_are_keywords_of_run() -> None:
    rows = frame(place=np.arange(ROWS) % 5)
    run = fo.run(data=rows.assign(y=[None, *rows.y[1:]]), label="y", categorical=["place", "job"], on_bad="skip", **HOW)
    assert run.result["bad_row_count"] == 1
    assert inputs(run.recipe.data)["ids"] == (2,)


# ---- Polars and Arrow ----


def test_categories_of_polars() -> None:
    pl = pytest.importorskip("polars", reason="polars is not installed")
    plain = pl.from_pandas(frame())
    run = fo.run(data=plain, label="y", **HOW)
    for kind in (pl.Categorical, pl.Enum(["cook", "pilot", "nurse"])):
        cast = plain.with_columns(pl.col("job").cast(kind))
        assert as_data(cast, label="y").train.fingerprint() == as_data(plain, label="y").train.fingerprint()
        assert run.predict(cast).equals(run.predict(plain))
        fo.run(data=cast, label="y", **HOW)
    for ask in (lambda: run.predict(plain.lazy()), lambda: fo.run(data=plain.lazy(), label="y", **HOW)):
        with pytest.raises(FlatoutError, match=r"collect\(\)"):
            ask()


def test_forms_of_arrow() -> None:
    table = pa.Table.from_pandas(frame())
    views = table.set_column(1, "job", table["job"].cast(pa.string_view()))
    expected = as_data(table, label="y").train.fingerprint()
    for given in (views, table.to_batches()[0], table.set_column(1, "job", table["job"].dictionary_encode())):
        assert as_data(given, label="y").train.fingerprint() == expected


# ---- arrays ----


def test_labels_of_pandas_beside_an_array() -> None:
    rows = frame()
    x = rows[["age"]].to_numpy(dtype=np.float32)
    run = fo.run(data=(x, rows["y"]), **HOW)
    assert run.recipe.objective == "binary" and set(run.predict(x)["class"]) <= {"no", "yes"}
    assert run.evaluate((x, rows["y"].to_numpy(dtype=object))) == run.evaluate((x, rows["y"]))


@pytest.mark.parametrize(
    "y, answer",
    [
        (np.eye(3)[np.arange(ROWS) % 3], r"argmax\(1\)"),
        (np.where(np.arange(ROWS) % 5, 1.0, np.nan), "row 0"),
        (np.zeros(ROWS, np.int64), "nothing to learn"),
    ],
    ids=["one-hot", "nan", "one class"],
)
def test_labels_that_are_refused(y: Any, answer: str) -> None:
    with pytest.raises(FlatoutError, match=answer) as said:
        fo.run(data=(np.zeros((ROWS, 2), np.float32), y), **HOW)
    assert "lr" not in str(said.value)


# ---- Datasets and DataLoaders ----

TENSORS = TensorDataset(torch.randn(ROWS, 6), torch.arange(ROWS) % 2)


class Few(Sampler[int]):
    def __iter__(self) -> Any:
        return iter(range(5))

    def __len__(self) -> int:
        return 5


def test_a_loader_trains_on_the_samples_that_it_gives() -> None:
    half = as_data(DataLoader(TENSORS, batch_size=4, sampler=SubsetRandomSampler(range(30))))
    assert len(half.train) == 30
    shuffled = BatchSampler(RandomSampler(TENSORS), 10, drop_last=False)
    run = fo.run(data=DataLoader(TENSORS, batch_sampler=shuffled), model=nn.Linear(6, 2), **HOW)
    assert run.recipe.batch == 10
    for loader in (DataLoader(TENSORS, sampler=Few()), DataLoader(TENSORS, batch_size=None)):
        with pytest.raises(UsageError, match=r"give .*Dataset"):
            as_data(loader)
    with pytest.raises(UsageError, match="Few"):
        as_data(TENSORS, validation=DataLoader(TENSORS, sampler=Few()))
    assert len(as_data(TENSORS, validation=DataLoader(Subset(TENSORS, range(7)))).validation) == 7  # type: ignore[arg-type]


class Named(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> dict[str, Tensor | int]:
        x, y = TENSORS[number]
        return {"pixels": x, "label": int(y)}


def test_names_in_samples_are_asked_for() -> None:
    with pytest.raises(UsageError, match=r"columns=.*'pixels'"):
        fo.run(data=Named(), model=nn.Linear(6, 2), **HOW)
    run = fo.run(data=Named(), columns={"x": "pixels", "y": "label"}, workers=0, model=nn.Linear(6, 2), **HOW)
    assert run.recipe.objective == "classify"


def test_columns_that_are_dropped_are_dropped_besides_the_drafted_ones() -> None:
    rows = frame(customer=[f"c{row}" for row in range(ROWS)])
    run = fo.run(data=rows.assign(gives_away=np.where(rows.y == "yes", 1.0, 0.0)), label="y", drop=["gives_away"], **HOW)
    assert "drop: [customer, gives_away]" in run.recipe.draft, "an id is left out as ever"
    assert "leak" not in run.recipe.draft, "a column that is dropped gives nothing away"
