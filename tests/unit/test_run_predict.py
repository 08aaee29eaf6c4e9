"""`run.predict` and `run.evaluate`: a DataFrame for a DataFrame, arrays for the rest, and in another process too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from commands import Command
from torch import nn
from torch.utils.data import TensorDataset

import flatout as fo
from flatout.base.errors import DataError, StoreError, UsageError

pd = pytest.importorskip("pandas", reason="pandas is not installed")
HOW: dict[str, Any] = {"budget": "6 epochs", "settings": {"device": "cpu"}, "planning": "off", "fresh": True}


@pytest.fixture(autouse=True)
def _desk(desk: Path) -> None:
    """Nothing is measured; runs are in the test's folder."""


def people(rows: int = 120) -> Any:
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"age": random.integers(20, 70, rows).astype(float), "job": random.choice(["cook", "nurse"], rows)})
    frame["left"] = np.where(frame.age > 45, "yes", "no")
    return frame.set_index(pd.Index([f"p{row}" for row in range(rows)], name="who"))


def test_a_dataframe_gives_a_dataframe_with_its_index() -> None:
    frame = people()
    run = fo.run(data=frame, label="left", **HOW)
    some = frame.drop(columns="left").sample(frac=0.5, random_state=0)
    found = run.predict(some, keep="age")
    assert found.index.equals(some.index)
    assert list(found) == ["age", "prediction", "class", "probability", "probability_no", "probability_yes"]
    expected = fo.predict(run, some)
    assert found["class"].tolist() == expected["class"].tolist()
    np.testing.assert_allclose(found["probability_yes"], expected["probabilities"][:, 1])
    plain = run.predict(some, each_class=False)
    assert list(plain) == ["prediction", "class", "probability", "probabilities_0", "probabilities_1"]
    arrow = run.predict(pa.Table.from_pandas(some, preserve_index=False))
    assert isinstance(arrow, pa.Table) and arrow["class"].to_pylist() == found["class"].tolist()
    columns = run.predict({"age": some["age"].tolist(), "job": some["job"].tolist()})
    assert isinstance(columns["probabilities"], np.ndarray) and columns["probabilities"].shape == (60, 2)
    assert run.evaluate() == fo.evaluate(run) and run.evaluate(frame, metrics=["f1"]) == fo.evaluate(run, frame, metrics=["f1"])


def test_polars_gives_polars() -> None:
    pl = pytest.importorskip("polars", reason="polars is not installed")
    frame = pl.from_pandas(people())
    run = fo.run(data=frame, label="left", **HOW)
    found = run.predict(frame.drop("left"))
    assert isinstance(found, pl.DataFrame) and found["class"].to_list() == fo.predict(run, frame)["class"].tolist()


def test_values_that_training_never_saw_are_counted_where_the_user_called() -> None:
    run = fo.run(data=people(), label="left", **HOW)
    later = pd.DataFrame({"age": [30.0, 60.0, 50.0], "job": ["pilot", "cook", "pilot"], "left": ["no", "yes", "yes"]})
    for ask in (lambda: run.predict(later), lambda: run.evaluate(later)):
        with pytest.warns(UserWarning, match=r"'job' has .* in 2 rows") as said:
            ask()
        assert said[0].filename == __file__
    notes: list[str] = []
    run.predict(later, say=notes.append)
    assert len(notes) == 1


def test_arrays_give_arrays() -> None:
    random = np.random.default_rng(1)
    x = random.normal(size=(96, 4)).astype(np.float32)
    y = np.stack([x.sum(1), x[:, 0]], 1)
    run = fo.run(data=(x, y), model=torch.nn.Linear(4, 2), objective="regress", **HOW)
    found = run.predict(x)["prediction"]
    assert isinstance(found, np.ndarray) and found.shape == (96, 2)
    for given in (torch.from_numpy(x), TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), {"x": x}):
        np.testing.assert_array_equal(run.predict(given)["prediction"], found)
    frame = run.predict(pd.DataFrame(x, index=range(1000, 1096)))
    assert list(frame) == ["prediction_0", "prediction_1"] and frame.index[0] == 1000
    np.testing.assert_array_equal(frame.to_numpy(), found)


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def summed(model: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, float]:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="sum"), float(len(batch["y"]))


def test_a_run_of_classes_and_functions_is_used_from_its_folder_once_they_are_given(desk: Path) -> None:
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    keys: dict[str, Any] = {"data": (x, (x[:, 0] > 0).astype("int64")), "batch": 16, "lr": 0.1, **HOW, "budget": "4 steps"}
    made = fo.run(model=Line, objective="classify", **keys)
    for model in (Line, Line()):
        loaded = fo.load("last", model=model)
        assert np.array_equal(loaded.predict(x)["probabilities"], made.predict(x)["probabilities"])
    assert loaded.evaluate(keys["data"]) == made.evaluate(keys["data"])
    with pytest.raises(StoreError, match=r"give model again, fo.load\('Line-1', model=...\)"):
        fo.load("last").predict(x)
    with pytest.raises(UsageError, match="did you mean 'model'"):
        fo.load("last", modle=Line)
    with pytest.raises(AttributeError, match=r"run.result\['metrics'\]\['train_loss'\]"):
        _ = loaded.train_loss
    own = fo.run(model=Line, objective=summed, **keys)
    with pytest.raises(StoreError, match=r"give objective again, fo.load\('Line-2', model=..., objective=...\)"):
        fo.load("last", model=Line)
    assert fo.load("last", model=Line, objective=summed).evaluate(keys["data"]) == own.evaluate(keys["data"])


def test_a_run_on_data_in_memory_is_used_from_its_folder(flatout: Command) -> None:
    """As after the kernel of a notebook was restarted, and from the command line."""
    frame = people()
    made = fo.run(data=frame, label="left", **HOW)
    run = fo.load("last")
    assert run.predict(frame).equals(made.predict(frame)) and run.evaluate(frame) == made.evaluate(frame)
    with pytest.raises(DataError, match="another process"):
        run.evaluate()
    frame.to_csv("people.csv")
    answer = flatout("predict", "last", "people.csv", "--keep", "who", "--out", "answers.csv", "--device", "cpu")
    assert answer.code == 0 and pd.read_csv("answers.csv", index_col="who")["class"].equals(made.predict(frame)["class"])
