"""What was fitted, alone: without pyarrow and without the training data, raw rows become what evaluation feeds."""

from __future__ import annotations

import datetime as dt
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

import flatout as fo
from flatout.base.errors import DataError
from flatout.data.data import Data
from flatout.data.fitted import Fitted
from flatout.data.serving.evaluation import EvalFeed

ROOT = Path(__file__).parent.parent.parent
ALONE = """
import json, pickle, sys
sys.modules["pyarrow"] = None
from flatout.data.fitted import Fitted
folder = sys.argv[1]
fitted = Fitted.from_json(json.load(open(folder + "/fitted.json")))
raw = pickle.load(open(folder + "/raw.pickle", "rb"))
pickle.dump(fitted.device(fitted.rows(raw)), open(folder + "/batch.pickle", "wb"))
"""


def alone(fitted: Fitted, raw: Any, folder: Path) -> dict[str, Tensor]:
    """The batch that a fresh process makes of raw rows, from the JSON."""
    (folder / "fitted.json").write_text(json.dumps(fitted.to_json(), allow_nan=False))
    (folder / "raw.pickle").write_bytes(pickle.dumps(raw))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", ALONE, str(folder)], check=True, env=environment, cwd=folder)
    batch: dict[str, Tensor] = pickle.loads((folder / "batch.pickle").read_bytes())
    return batch


def fed(data: Data) -> dict[str, Tensor]:
    """All rows of the validation part as one batch, as evaluation feeds it."""
    assert data.validation is not None
    (batch,) = EvalFeed(data.validation, data.prepare, len(data.validation), "cpu")
    return batch


def check_equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Bit for bit; y is no input."""
    names = sorted(set(wanted) - {"y"})
    assert sorted(set(found) - {"y"}) == names
    for name in names:
        assert found[name].dtype == wanted[name].dtype and found[name].shape == wanted[name].shape
        assert torch.equal(found[name].view(torch.uint8), wanted[name].contiguous().view(torch.uint8)), name


# ---- tables ----

PEOPLE = {
    "age": [39, 50, None, 28, 61, 33] * 5,
    "pay": [1.5, 2.25, 1e30, None, -3.0, 0.1] * 5,
    "job": ["cook", "clerk", None, "nurse", "cook", "pilot"] * 5,
    "zip": ["007", "7", "A7", "12", "007", "7"] * 5,
    "since": [dt.date(2020, 1, day) for day in range(1, 31)],
    "answer": ["yes", "no", "yes", "no", "no", "yes"] * 5,
}
OTHERS = {
    "age": [41, None, 2.5], "pay": [None, 7.0, 0.3], "job": ["astronaut", "cook", None], "zip": ["7", "007", "x"],
    "since": [dt.date(2024, 2, 29), None, dt.date(1999, 12, 31)], "answer": ["no", "yes", "no"],
}  # fmt: skip


@pytest.fixture
def people(tmp_path: Path) -> Data:
    pq.write_table(pa.table(PEOPLE), tmp_path / "people.parquet")
    pq.write_table(pa.table(OTHERS), tmp_path / "others.parquet")
    return fo.data.table(
        tmp_path / "people.parquet", label="answer", validation=str(tmp_path / "others.parquet"), onehot=2,
        steps={"zip": [{"hash": 9}], "pay": ["log"], "job": ["target_encode"]},
    )  # fmt: skip


def test_a_table(people: Data, tmp_path: Path) -> None:
    raw = {name: column for name, column in OTHERS.items() if name != "answer"}
    check_equal(alone(people.fitted, raw, tmp_path), fed(people))
    signature = people.fitted.signature
    assert [(one.name, one.kind) for one in signature.inputs] == [
        ("age", "number"), ("pay", "number"), ("job", "category"), ("zip", "category"), ("since", "date"),
    ]  # fmt: skip
    assert signature.classes == ("no", "yes") and {*signature.columns} == {"x", "categories"}


def test_rows_of_a_table_as_dicts(people: Data) -> None:
    raw = [dict(zip(OTHERS, row, strict=True)) for row in zip(*OTHERS.values(), strict=True)]
    check_equal(people.fitted.device(people.fitted.rows(raw)), fed(people))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"age": [1.0, "old", 2.0]}, "column 'age' holds numbers; row 1 has 'old'"),
        ({"pay": [1.0, 2.0, 1e300]}, r"row 2: column 'pay' is 1e\+300, which float32 can't hold"),
        ({"since": ["2020-01-01", None, "soon"]}, "row 2: column 'since' has 'soon', which is no date in ISO 8601"),
        ({"job": ["cook", {}, None]}, r"row 1: column 'job': \{\} can't be a category"),
        ({"job": "cook"}, "column 'job' is a list or an array, one value a row, got 'cook'"),
        ({"job": ["cook"]}, "columns differ in length: .*job has 1"),
    ],
)
def test_bad_rows_of_a_table_are_named(people: Data, change: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        people.fitted.rows({**OTHERS, **change})


def test_rows_of_a_table_that_lack_a_value_are_named(people: Data) -> None:
    rows = [{name: column[place] for name, column in OTHERS.items()} for place in range(3)]
    del rows[1]["job"]
    with pytest.raises(DataError, match="row 1 has no 'job'"):
        people.fitted.rows(rows)
    with pytest.raises(DataError, match="no column 'age'"):
        people.fitted.rows({"job": ["cook"]})
    with pytest.raises(DataError, match="columns by name"):
        people.fitted.rows([[39, "cook"]])
