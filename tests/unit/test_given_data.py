"""Data as people have it in Python: every form trains to the same bits as the recipe that spells it out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

import flatout as fo
from flatout.base.errors import DataError, FlatoutError, RecipeError, UsageError
from flatout.data.given import as_data

pd = pytest.importorskip("pandas", reason="pandas is not installed")

KEYS: dict[str, Any] = {"batch": 16, "lr": 1e-2, "budget": "2 epochs", "settings": {"device": "cpu"}}
HOW: dict[str, Any] = {"planning": "off", "fresh": True}


@pytest.fixture(autouse=True)
def _desk(desk: Path) -> None:
    """Nothing is measured; runs are in the test's folder."""


def people(rows: int = 200, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    age, job = random.integers(20, 70, rows), random.choice(["clerk", "cook", "nurse"], rows)
    joined = pd.Timestamp("2020-01-01") + pd.to_timedelta(random.integers(0, 900, rows), unit="D")
    frame = pd.DataFrame(
        {"age": age.astype(float), "job": pd.Categorical(job), "since": joined, "member": random.random(rows) > 0.5}
    )
    frame.loc[3, "age"] = np.nan
    frame["survived"] = np.where((job == "clerk") | (age > 40), "yes", "no")
    return frame


def numbers(rows: int = 96) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(1)
    x = random.normal(size=(rows, 6)).astype(np.float32)
    return x, (x.sum(1) > 0).astype(np.int64) + (x[:, 0] > 1)


class Net(nn.Module):
    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, outputs))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def seeded(outputs: int = 3) -> Net:
    torch.manual_seed(0)
    return Net(outputs)


def weights(run: fo.Run) -> dict[str, Tensor]:
    return run.model(bare=True).state_dict()


def same_bits(a: fo.Run, b: fo.Run) -> None:
    one, other = weights(a), weights(b)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert a.result["metrics"] == b.result["metrics"]


class Samples(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = torch.as_tensor(x), torch.as_tensor(y)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return self.x[number], self.y[number]


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = torch.as_tensor(x), torch.as_tensor(y)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(self.x, self.y, strict=True))

    def __len__(self) -> int:
        return len(self.x)


# ---- tables ----


def test_a_dataframe_trains_like_its_file(tmp_path: Path) -> None:
    frame = people()
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), tmp_path / "people.parquet")
    options = {"label": "survived", "holdout": 0.2}
    spelled = fo.Recipe(data={"table": str(tmp_path / "people.parquet"), **options}, model="mlp", **KEYS)
    expected = fo.run(spelled, **HOW)
    for given in (frame, frame.to_dict("series")):
        run = fo.run(fo.Recipe(data={"table": given, **options}, model="mlp", **KEYS), **HOW)
        same_bits(run, expected)
    same = [fo.data.table(one, **options) for one in (frame, pa.Table.from_pandas(frame, preserve_index=False))]
    assert {data.fingerprint() for data in same} == {expected.recipe.load_data().fingerprint()}
    answers = [fo.predict(run, given)["probability"] for given in (frame, tmp_path / "people.parquet")]
    assert torch.equal(*answers)  # type: ignore[arg-type]
    assert fo.evaluate(run, frame) == fo.evaluate(expected, str(tmp_path / "people.parquet"))
    assert fo.evaluate(run, (frame.drop(columns="survived"), frame["survived"])) == fo.evaluate(run, frame)


def test_polars_trains_like_pandas() -> None:
    pl = pytest.importorskip("polars", reason="polars is not installed")
    frame = people()
    options = {"label": "survived", "holdout": 0.2}
    both = [as_data(given, **options) for given in (frame, pl.from_pandas(frame))]
    assert both[0].train.fingerprint() == both[1].train.fingerprint()


def test_the_index_of_a_dataframe_is_no_input() -> None:
    frame = people()
    shuffled = frame.sample(frac=1.0, random_state=0)  # an index that is not 0, 1, 2, ...
    named = shuffled.rename_axis("passenger")
    for given in (shuffled, named):
        data = as_data(given, label="survived")
        assert set(data.host.types) == set(frame.columns)  # type: ignore[union-attr]


def test_a_table_and_its_labels_apart() -> None:
    frame = people()
    inputs, target = frame.drop(columns="survived"), frame["survived"]
    whole, apart = as_data(frame, label="survived", holdout=0.2), as_data((inputs, target), holdout=0.2)
    assert whole.train.fingerprint() == apart.train.fingerprint()
    unnamed = as_data((inputs, target.to_numpy()))
    assert unnamed.labels == ("no", "yes")
    with pytest.raises(UsageError, match="200 rows and y has 10"):
        as_data((inputs, target[:10]))


def test_a_dataframe_for_validation() -> None:
    data = as_data(people(), label="survived", validation=people(50, seed=1))
    assert data.validation is not None and len(data.validation) == 50


def test_what_is_wrong_with_a_table_is_said() -> None:
    frame = people()
    with pytest.raises(RecipeError, match="label") as said:
        fo.Recipe(data=frame, model="mlp", **KEYS)
    assert "survived" in str(said.value), "its columns are listed"
    with pytest.raises(DataError, match="did you mean 'survived'"):
        as_data(frame, label="surived")
    with pytest.raises(DataError, match="no rows"):
        as_data(frame[:0], label="survived")
    with pytest.raises(UsageError, match="one column"):
        as_data(frame["survived"])
    with pytest.raises(UsageError, match="delimiter"):
        as_data(frame, label="survived", delimiter=";")
    doubled = pd.concat([frame, frame[["age"]]], axis=1)
    with pytest.raises(FlatoutError, match="age"):
        as_data(doubled, label="survived")
    mixed = frame.assign(odd=[1, "a"] * 100)
    with pytest.raises(FlatoutError, match="odd"):
        as_data(mixed, label="survived")


# ---- arrays and datasets ----


def test_every_form_of_arrays_trains_to_the_same_bits() -> None:
    x, y = numbers()
    expected = fo.run(fo.Recipe(data=fo.data.arrays(x, y), model=seeded(), **KEYS), **HOW)
    tensors = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    alike: list[Any] = [(torch.from_numpy(x), torch.from_numpy(y)), {"x": x, "y": y}, (x.tolist(), y.tolist())]
    assert {as_data(given).fingerprint() for given in alike} == {expected.recipe.data.fingerprint()}
    for given in ((x, y), {"arrays": {"x": x, "y": y}}, tensors):
        same_bits(fo.run(fo.Recipe(data=given, model=seeded(), **KEYS), **HOW), expected)
    loader = DataLoader(tensors, batch_size=16, shuffle=True)
    rest = {name: value for name, value in KEYS.items() if name != "batch"}
    same_bits(fo.run(fo.Recipe(data=loader, model=seeded(), **rest), **HOW), expected)


def test_a_dataset_trains_like_the_explicit_one() -> None:
    x, y = numbers()
    expected = fo.run(fo.Recipe(data=fo.data.dataset(Samples(x, y), workers=0, classes=3), model=seeded(), **KEYS), **HOW)
    same_bits(fo.run(fo.Recipe(data={"dataset": Samples(x, y), "workers": 0}, model=seeded(), **KEYS), **HOW), expected)
    steps = {**KEYS, "budget": "6 steps"}
    stream = fo.run(fo.Recipe(data=fo.data.dataset(Stream(x, y), workers=0, classes=3), model=seeded(), **steps), **HOW)
    given = {"dataset": Stream(x, y), "workers": 0, "classes": 3}
    same_bits(fo.run(fo.Recipe(data=given, model=seeded(), **steps), **HOW), stream)


def test_evaluate_and_predict_take_every_form() -> None:
    x, y = numbers()
    run = fo.run(fo.Recipe(data=(x, y), model=seeded(), **KEYS), **HOW)
    expected = fo.evaluate(run, fo.data.arrays(x, y))
    tensors = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    for given in ((x, y), {"x": x, "y": y}, tensors, DataLoader(tensors, batch_size=7)):
        assert fo.evaluate(run, given) == expected
        assert torch.equal(fo.predict(run, given)["prediction"], fo.predict(run, x)["prediction"])  # type: ignore[arg-type]


def test_classes_are_counted_where_labels_are_in_memory() -> None:
    x, y = numbers()
    tensors = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    assert as_data((x, y)).classes == as_data(tensors).classes == as_data(DataLoader(tensors)).classes == 3
    assert as_data((x, x[:, 0])).classes is None


def test_what_a_loader_was_told_is_kept() -> None:
    x, y = numbers()
    weights = torch.arange(1.0, 97.0).double()
    tensors = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    loader = DataLoader(tensors, batch_size=8, sampler=WeightedRandomSampler(weights, 96))  # type: ignore[arg-type]
    recipe = fo.Recipe(data=loader, model=seeded(), lr=1e-2, budget="1 epoch")
    assert recipe.batch == 8 and torch.equal(torch.as_tensor(recipe.data.draw).double(), weights)
    assert fo.Recipe(data=loader, model=seeded(), batch=4, lr=1e-2, budget="1 epoch").batch == 4


def test_parts_by_name() -> None:
    x, y = numbers()
    data = as_data({"train": Samples(x[:64], y[:64]), "test": Samples(x[64:], y[64:])}, workers=0)
    assert len(data.train) == 64 and data.validation is not None and len(data.validation) == 32


@pytest.mark.parametrize("given", [None, 3, "nowhere", nn.Linear(1, 1), Net, 2.5, b"bytes"], ids=lambda given: str(given)[:12])
def test_what_is_no_data_is_one_mistake(given: Any) -> None:
    with pytest.raises(RecipeError) as said:
        fo.Recipe(data=given, model="mlp", **KEYS)
    assert len(said.value.problems) == 1 and said.value.problems[0].startswith("data")


# ---- keywords: what is missing is drafted ----


def test_two_lines_from_a_dataframe_to_a_score() -> None:
    frame = people(400)
    run = fo.run(data=frame, label="survived", planning="off", settings={"device": "cpu"}, budget="8 epochs")
    assert run.result["metrics"]["accuracy"] > 0.7
    text = (run.path / "draft.yaml").read_text()
    assert text == run.recipe.draft and "label: survived" in text and "budget: 8 epochs" in text
    spelled = fo.Recipe(
        data={**yaml.safe_load(text)["data"], "table": frame},  # with what the guardian found, if anything
        **{name: getattr(run.recipe, name) for name in ("model", "objective", "batch", "lr", "budget", "settings")},
    )
    same_bits(fo.run(spelled, **HOW), run)


def test_a_drafted_recipe_is_shown() -> None:
    x, y = numbers()
    lines: list[str] = []
    fo.run((x, y), model=seeded(), lr=1e-2, budget="2 steps", planning="off", settings={"device": "cpu"},
           observers=[lambda event: lines.append(event.get("line", ""))])  # fmt: skip
    assert "objective: classify" in lines[0] and "holdout: 0.2" in lines[0]
    assert "normalize" not in lines[0], "a model of one's own gets the rows as they are"


def test_keys_that_are_given_are_kept() -> None:
    x, y = numbers()
    keys: dict[str, Any] = {"model": seeded(), "objective": "classify", **KEYS}
    run = fo.run(data=(x, y), **keys, **HOW)
    assert not run.recipe.draft, "nothing was missing"
    keys["model"] = seeded()
    same_bits(run, fo.run(fo.Recipe(data=fo.data.arrays(x, y), **keys), **HOW))


@pytest.mark.parametrize("outputs, objective", [(1, "binary"), (2, "classify")])
def test_two_classes_go_by_the_outputs_of_the_model(outputs: int, objective: str) -> None:
    x, y = numbers()
    run = fo.run(data=(x, (y > 0).astype(np.int64)), model=seeded(outputs), budget="2 steps", settings={"device": "cpu"}, **HOW)
    assert run.recipe.objective == objective


def test_a_loader_and_its_validation() -> None:
    x, y = (torch.from_numpy(one) for one in numbers())
    train, held = TensorDataset(x[:64], y[:64]), TensorDataset(x[64:], y[64:])
    run = fo.run(
        data=DataLoader(train, batch_size=8), validation=DataLoader(held), budget="2 steps", settings={"device": "cpu"}, **HOW
    )
    assert run.recipe.batch == 8 and len(run.recipe.data.validation) == 32


def test_a_stream_is_drafted_in_steps() -> None:
    x, _ = numbers()
    stream = {"data": Stream(x, x[:, 0]), "model": seeded(1), "batch": 8, "settings": {"device": "cpu"}}
    with pytest.raises(FlatoutError, match="unknown length"):
        fo.run(**stream, budget="1 epoch", **HOW)
    run = fo.run(**stream, budget="3 steps", **HOW)
    assert run.recipe.objective == "regress" and run.result["steps"] == 3


def test_a_path_is_drafted_like_flatout_new(tmp_path: Path) -> None:
    people().to_csv(tmp_path / "people.csv", index=False)
    run = fo.run("people.csv", label="survived", budget="2 steps", settings={"device": "cpu"}, **HOW)
    assert run.recipe.data["table"] == "people.csv"
    assert fo.load(run.name).recipe.data == run.recipe.data, "another process can read it"


def test_the_question_for_a_label_is_asked_in_python() -> None:
    with pytest.raises(UsageError, match="such as label='answer'"):
        fo.run(data=people().rename(columns={"survived": "answer"}), **HOW)


def test_only_the_slip_is_reported() -> None:
    with pytest.raises(RecipeError) as said:
        fo.run(data=people(), label="survived", epochs=3)
    assert len(said.value.problems) == 1 and "budget" in said.value.problems[0]


def test_data_as_a_file_writes_it_is_drafted_too() -> None:
    x, y = numbers()
    brief: dict[str, Any] = {"budget": "2 steps", "settings": {"device": "cpu"}, **HOW}
    for given in ({"arrays": (x, y), "holdout": 0.1}, {"dataset": Samples(x, y), "workers": 0}, fo.data.arrays(x, y)):
        run = fo.run(data=given, **brief)
        assert run.recipe.objective == "classify" and run.recipe.draft
    assert fo.run(data="digits", **brief).recipe.data == "digits"


def test_types_that_no_model_takes_are_named() -> None:
    frame = people()
    with pytest.raises(DataError, match="'odd' is of the type"):
        as_data(frame.assign(odd=pd.period_range("2020", periods=len(frame), freq="D")), label="survived")


def test_derived_columns_and_filters_are_options_of_the_data() -> None:
    run = fo.run(
        data=people(), label="survived", derive={"decade": "floor(age / 10)"}, where="age > 25", quiet=True, **HOW, **KEYS
    )
    features = run.recipe.load_data().prepare[0].feature_names
    assert "decade" in features and "derive: {decade: floor(age / 10)}" in run.recipe.draft
    with pytest.raises(UsageError, match="derive, where: columns of arrays have no names: give a DataFrame"):
        fo.run(data=numbers(), derive={"a": "x"}, where="x > 1", **HOW, **KEYS)
    with pytest.raises(DataError, match=r"no row is left to use; where age > 1000: 200 of 200 rows are left out"):
        as_data(people(), label="survived", where="age > 1000")


def test_samples_without_x_and_y_are_told_how_to_name_them() -> None:
    samples = [{"input_ids": torch.ones(4), "labels": row % 2} for row in range(8)]
    keys: dict[str, Any] = {"model": "mlp", "batch": 4, "lr": 0.1, "budget": "1 step", "planning": "off", "quiet": True}
    for given in (keys, {**keys, "batch": 2, "objective": "classify"}):  # drafted, or with all keys
        with pytest.raises(UsageError, match=r"a sample has 'input_ids', 'y': .* columns=\{'x': 'input_ids', 'y': ...\}"):
            fo.run(data=samples, **given)
    assert fo.run(data=samples, columns={"x": "input_ids", "y": "labels"}, **keys).result["steps"] == 1
