"""A table's ONNX file takes raw columns and gives what the run's predict gives, in plain onnxruntime."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx_models import answers, exported, metadata, pass_table

from flatout.base.errors import NotExportable
from flatout.data.fitted.codings import Category, Coding, Codings, Date, Label, Number, TargetEncoding
from flatout.data.fitted.dates import PARTS
from flatout.data.fitted.device import DevicePart
from flatout.data.fitted.fitted import Fitted
from flatout.data.fitted.table_features import CategoryFeatures, NumberFeatures, TableFeatures
from flatout.data.fitted.table_rows import TableHost
from flatout.data.source import Column
from flatout.engine.prepared_model import PreparedModel
from flatout.models.mlp import MLP
from flatout.objectives.build import build
from flatout.packaging.onnx_graph import OPSET
from flatout.packaging.onnx_table import with_raw_columns

MISSING_DATE = np.iinfo(np.int64).min
JOB = Category("job", ("clerk", None, "cook", "3"))
TOWN = TargetEncoding("town", Category("town", ("Ulm", None)), ((0.1, 0.5), (1 / 3, 0.25), (0.9, -2.0)), (".a", ".b"))
COLUMNS: tuple[Coding, ...] = (
    Number("age"), Date("since", PARTS), JOB, Number("time", shift=1.7e9), TOWN, Date("born", ("day", "year")),
)  # fmt: skip


def host_of(*columns: Coding, classes: tuple[str, ...] | None = ("no", "yes")) -> TableHost:
    return TableHost(Codings(columns), Label("answer", classes), {coding.name: "" for coding in columns})


def micros(when: dt.datetime | None) -> int:
    return MISSING_DATE if when is None else (when - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)


def as_inputs(raw: dict[str, list[Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Raw columns as the file's metadata says they are given."""
    given: dict[str, np.ndarray[Any, Any]] = {}
    for name, column in raw.items():
        if name in ("since", "born"):
            given[name] = np.array([micros(value) for value in column], np.int64)
        elif name in ("job", "town"):
            given[name] = np.array(["" if value is None else value for value in column], object)
        else:
            given[name] = np.array([np.nan if value is None else value for value in column], np.float64)
    return given


def people(rows: int) -> dict[str, list[Any]]:
    """Missing values, unknown categories, and dates before 1970 in turn."""
    random = np.random.default_rng(rows)
    days = [dt.datetime(1900, 1, 1) + dt.timedelta(seconds=float(s)) for s in random.integers(0, 6_000_000_000, rows)]
    pick = random.integers(0, 5, (4, rows))
    return {
        "age": [None if p == 0 else float(v) for p, v in zip(pick[0], random.normal(40, 20, rows), strict=True)],
        "since": [None if p == 0 else day for p, day in zip(pick[1], days, strict=True)],
        "job": [("clerk", "cook", None, "3", "astronaut")[p] for p in pick[2]],
        "time": [1.7e9 + float(v) for v in random.normal(0, 1e6, rows)],
        "town": [("Ulm", None, "Bonn", "Ulm", "Köln")[p] for p in pick[3]],
        "born": [day.replace(microsecond=7) for day in reversed(days)],
    }


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_raw_columns_are_encoded_as_in_training(rows: int) -> None:
    host = host_of(*COLUMNS, classes=None)
    raw = people(rows)
    raw["since"][0] = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)
    found = answers(with_raw_columns(pass_table(len(host.codings.numeric), 1), host), as_inputs(raw))
    wanted = host.rows(raw)
    assert found["numeric_out"].dtype == np.float32 and found["ids_out"].dtype == np.int32
    np.testing.assert_array_equal(found["numeric_out"], wanted["numeric"].numpy())
    np.testing.assert_array_equal(found["ids_out"], wanted["ids"].numpy())


def test_dates_are_split_as_in_training() -> None:
    """Every day of two centuries with their leap years, and the ends of what a datetime can be."""
    host = host_of(Date("day", PARTS), classes=None)
    start = dt.datetime(1895, 1, 1)
    days = [start + dt.timedelta(days=day, microseconds=day * 86_399_999_999 // 80_000) for day in range(80_000)]
    days += [dt.datetime.min, dt.datetime.max, dt.datetime(1600, 2, 29), dt.datetime(1700, 3, 1)]
    instants = np.array([micros(day) for day in days], np.int64)
    found = answers(with_raw_columns(pass_table(5, 0), host), {"day": instants})
    wanted = host.rows({"day": instants.astype("datetime64[us]")})
    np.testing.assert_array_equal(found["numeric_out"], wanted["numeric"].numpy())


def test_numbers_that_float32_can_not_hold_are_missing() -> None:
    host = host_of(Number("far", shift=5.0), Number("near"), classes=None)
    numbers = np.array([1e300, -1e300, np.inf, 3.5, np.nan])
    found = answers(with_raw_columns(pass_table(2, 0), host), {"far": numbers, "near": numbers})["numeric_out"]
    np.testing.assert_array_equal(found, host.encode({"far": numbers, "near": numbers})["numeric"])
    assert np.isnan(found[[0, 1, 2, 4]]).all()


def test_empty_text_is_missing_unless_it_is_a_category() -> None:
    host = host_of(
        Category("a", ("x", None)), Category("b", ("", "x", None)), Category("c", ("x",)), Category("d"), classes=None
    )
    model = with_raw_columns(pass_table(0, 4), host)
    texts = np.array(["", "x", "y"], object)
    found = answers(model, dict.fromkeys("abcd", texts))["ids_out"]
    assert found.tolist() == [[2, 1, 0, 0], [1, 2, 1, 0], [0, 0, 0, 0]]
    assert "column 'b'" in metadata(model)["rules"] and "column 'a'" not in metadata(model)["rules"]


def test_hashed_categories_are_refused_by_name() -> None:
    for hashed in (Category("street", buckets=16), TargetEncoding("street", Category("street", buckets=2), ((0.0,),) * 3)):
        with pytest.raises(NotExportable, match="street"):
            with_raw_columns(pass_table(1, 1), host_of(Number("age"), JOB, hashed))


def test_a_column_may_have_the_name_of_an_output() -> None:
    host = host_of(Number("numeric_out"), Number("numeric"), Number("class"), classes=None)
    model = with_raw_columns(pass_table(3, 0), host)
    signature = json.loads(metadata(model)["signature"])
    names = {one["column"]: one["name"] for one in signature["inputs"]}
    assert names == {"numeric_out": "numeric_out_in", "numeric": "numeric", "class": "class_in"}
    given = {names[column]: np.array([float(place)]) for place, column in enumerate(names)}
    assert answers(model, given)["numeric_out"].tolist() == [[0.0, 1.0, 2.0]]


@pytest.fixture(scope="module")
def clerks() -> PreparedModel:
    host = host_of(*COLUMNS, classes=("high", "low", "middle"))
    numbers = [
        NumberFeatures(name, fill=1.0, flag=f"{name} missing" if place == 0 else None, mean=3.0, std=40.0, low=-1e4, high=3e3)
        for place, name in enumerate(host.codings.numeric)
    ]
    steps = TableFeatures(numbers, [CategoryFeatures("job", JOB.cardinality)])
    schema = {
        "numeric": Column(torch.float32, (len(numbers),)), "ids": Column(torch.int32, (1,)), "y": Column(torch.int64, ()),
    }  # fmt: skip
    torch.manual_seed(1)
    model = MLP((len(steps.feature_names),), 3, (16, 8), "relu", 0.1, True, (JOB.cardinality,)).eval()
    objective = build("classify", ["x", "categories"])
    return PreparedModel(model, Fitted(host, DevicePart([steps]), schema), objective, lambda device: "fp32")


@pytest.fixture(scope="module")
def clerks_file(clerks: PreparedModel) -> onnx.ModelProto:
    host = clerks._fitted.host
    assert isinstance(host, TableHost)
    return with_raw_columns(exported(clerks, host.rows(people(2))), host)


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_a_table_is_predicted_as_by_the_run(rows: int, clerks: PreparedModel, clerks_file: onnx.ModelProto) -> None:
    raw = people(rows)
    found = answers(clerks_file, as_inputs(raw))
    wanted = clerks._fitted.name_outputs(clerks.predict(raw), "classify")
    assert list(found) == list(wanted) == ["prediction", "class", "probability", "probabilities"]
    for name in ("probability", "probabilities"):
        np.testing.assert_allclose(found[name], np.asarray(wanted[name]), atol=1e-5)
    assert found["prediction"].tolist() == np.asarray(wanted["prediction"]).tolist()
    assert found["class"].tolist() == np.asarray(wanted["class"]).tolist()


def test_the_file_says_how_rows_are_given(clerks_file: onnx.ModelProto) -> None:
    notes = metadata(clerks_file)
    signature = json.loads(notes["signature"])
    assert [(one["column"], one["kind"], one["dtype"]) for one in signature["inputs"][:3]] == [
        ("age", "number", "float64"), ("since", "date", "int64"), ("job", "category", "string"),
    ]  # fmt: skip
    assert signature["classes"] == ["high", "low", "middle"]
    assert {"name": "class", "dtype": "string", "shape": [None]} in signature["outputs"]
    for fact in ("NaN", "microseconds since 1970-01-01 UTC", str(MISSING_DATE), '3 and 3.0 are "3"', "unknown"):
        assert fact in notes["rules"]
    assert clerks_file.opset_import[0].version == OPSET
