"""`run.model()` takes rows as the data has them, of every kind of data, and says what `fo.predict` says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pytest
import torch
from commands import Command
from PIL import Image
from torch import Tensor, nn

import flatout as fo
from flatout.base.errors import DataError
from flatout.engine.prepared_model import PreparedModel


def trained(recipe: fo.Recipe, desk: Path) -> fo.Run:
    return fo.run(recipe, runs=desk / "runs", cache=None, planning="off")


def from_file(flatout: Command, written: str) -> fo.Run:
    Path("mine.yaml").write_text(written)
    answer = flatout("run", "mine.yaml", "--quiet", "--planning", "off")
    assert answer.code == 0, answer.err
    return fo.load("mine-1")


def far_from_zero(rows: int = 200) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    y = random.integers(0, 3, rows)
    return (random.normal(size=(rows, 5)) * 40 + 500 + 90 * np.eye(5)[y]).astype(np.float32), y


def same(run: fo.Run, raw: Any, other: Any = None) -> Tensor:
    """The raw output, once `predict` of the model and of flatout agree on all columns."""
    model = run.model()
    assert isinstance(model, PreparedModel) and not model.training and next(model.parameters()).device.type == "cpu"
    wanted = fo.predict(run, raw if other is None else other, device="cpu")
    found = model.predict(raw)
    for name, column in found.items():
        torch.testing.assert_close(column, wanted[name], rtol=1e-5, atol=1e-6)  # batches of other sizes
    with torch.no_grad():
        output: Tensor = model(raw)
    return output


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_arrays_come_as_they_are_stored(desk: Path, precision: str) -> None:
    x, y = far_from_zero()
    recipe = fo.Recipe(
        data=fo.data.arrays(x, y, normalize="auto"), model={"mlp": {"hidden": [16]}}, batch=20, lr=1e-2, budget="20 epochs",
        settings={"precision": precision, "device": "cpu"}, evaluate=None,
    )  # fmt: skip
    run = trained(recipe, desk)
    output = same(run, x)
    assert float((output.argmax(1).numpy() == y).mean()) > 0.8
    normalized = torch.from_numpy((x - x.mean(0)) / x.std(0))
    torch.testing.assert_close(run.model(bare=True)(normalized), output.float(), rtol=2e-2, atol=6e-2)
    assert not isinstance(run.model(bare=True), PreparedModel)


def test_bytes_of_images_are_scaled_as_in_training(desk: Path) -> None:
    x, y = np.random.default_rng(0).integers(0, 256, (40, 1, 8, 8), dtype=np.uint8), np.arange(40) % 2
    recipe = fo.Recipe(
        data=fo.data.arrays(x, y, normalize="auto", augment=["flip"]), model="convnet", batch=8, lr=1e-3, budget="2 steps"
    )
    assert same(trained(recipe, desk), x).shape == (40, 2)


def test_photos_come_as_pixels_of_any_size(desk: Path, flatout: Command) -> None:
    random = np.random.default_rng(0)
    photos = []
    for number in range(12):
        (desk / f"photos/{'ab'[number % 2]}").mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (20 + number, 34 - number, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(desk / f"photos/{'ab'[number % 2]}/{number:02}.png")
        photos.append((f"{'ab'[number % 2]}/{number:02}", pixels))
    recipe = "data: {images: photos, size: 16}\nmodel: convnet\nbatch: 4\nlr: 1e-3\nbudget: 3 steps\nsettings: {device: cpu}\n"
    run = from_file(flatout, recipe)
    in_order = [pixels for _, pixels in sorted(photos, key=lambda photo: photo[0])]
    assert same(run, in_order, "photos").shape == (12, 2)
    files = [path.read_bytes() for path in sorted(Path("photos").glob("*/*.png"))]
    torch.testing.assert_close(same(run, files), same(run, files, "photos"))
    with pytest.raises(DataError, match=r"a photo is uint8 \[height, width, 3\].*got float32 \[3, 8, 8\]"):
        run.model()([np.zeros((3, 8, 8), np.float32)])


PEOPLE = {"age": [25.0, 60.0, None], "job": ["cook", "clerk", "astronaut"]}


@pytest.mark.parametrize("target", ["answer", "income"])
def test_tables_come_in_their_own_words_and_numbers_in_their_units(desk: Path, flatout: Command, target: str) -> None:
    random = np.random.default_rng(0)
    age, job = random.integers(20, 70, 200), random.choice(["clerk", "cook", "nurse"], 200)
    answers = {"answer": np.where(age > 40, "yes", "no"), "income": 1000.0 * age + 20_000}
    csv.write_csv(pa.table({"age": age, "job": job, target: answers[target]}), desk / "people.csv")
    how = "label: income, target: number" if target == "income" else "label: answer"
    objective = "regress" if target == "income" else "classify"
    run = from_file(
        flatout,
        f"data: {{table: people.csv, {how}, steps: {{job: {{hash: 100}}}}}}\nobjective: {objective}\n"
        "model: {mlp: {hidden: [8]}}\nbatch: 20\nlr: 1e-2\nbudget: 20 epochs\nsettings: {device: cpu}\n",
    )
    output = same(run, PEOPLE)
    assert len(output) == 3 and len(same(run, pa.table(PEOPLE))) == 3
    if target == "income":
        assert float(output.min()) > 10_000, "in the units of y"


def test_tokens_come_as_ids(desk: Path, flatout: Command) -> None:
    (desk / "text.txt").write_text("to be or not to be " * 60)
    model = "model: {gpt: {layers: 1, heads: 1, width: 8}}"
    run = from_file(
        flatout, f"data: {{text: text.txt, window: 16}}\n{model}\nobjective: next_token\nbatch: 4\nlr: 1e-3\nbudget: 3 steps\n"
    )
    assert same(run, torch.randint(0, 7, (3, 16))).shape[:2] == (3, 16)
    (desk / "text.txt").unlink()  # what the run kept is enough
    (desk / "other.txt").write_text("not to be or to be, not" * 3)
    with pytest.raises(DataError, match=r"other.txt has characters that the training text has not: ','"):
        fo.predict(run, "other.txt")
    (desk / "other.txt").write_text("to be not or to be " * 3)
    found = fo.predict(run, "other.txt", device="cpu")["prediction"]
    assert found.shape == (3, 16)
    model = run.model()
    assert torch.equal(model.predict(["to be not or to ", "be to be not or "])["prediction"], torch.as_tensor(found[:2]))
    assert model(["to be"]).shape[:2] == (1, 5), "a beginning that is shorter than a window"
    for ids in (torch.tensor([[0] * 15 + [7]]), {"x": [[-1] * 16]}, fo.data.arrays(np.full((2, 16), 7))):
        with pytest.raises(DataError, match="token ids are 0 to 6; row 0"):
            fo.predict(run, ids)


def test_sequences_come_as_padded_ids(desk: Path) -> None:
    rows = [[1, 2, 3], [4, 5], [6, 1, 2, 3, 4], [2]] * 4
    data = fo.data.sequences(rows, y=[0, 1, 0, 1] * 4, vocabulary=7)

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.head = nn.Embedding(7, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(self.tokens(x).mean(1))
            return logits

    run = trained(fo.Recipe(data=data, model=Mean, objective="classify", batch=4, lr=1e-3, budget="2 steps"), desk)
    padded = data.train.read(torch.arange(16))["x"]
    torch.testing.assert_close(same(run, rows), same(run, padded, rows))
    with pytest.raises(DataError, match="row 1, token 2: token ids are 0 to 6, got 7"):
        fo.predict(run, [[1], [2, 3, 7]])


def test_several_inputs_come_by_position_or_by_name(desk: Path) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 3), nn.Linear(2, 3)

        def forward(self, first: Tensor, second: Tensor) -> Tensor:
            logits: Tensor = self.a(first) + self.b(second)
            return logits

    x, y = far_from_zero(40)
    other = np.random.default_rng(1).normal(size=(40, 2)).astype(np.float32)
    data = fo.data.arrays(x, y, other=other, normalize="auto")
    run = trained(fo.Recipe(data=data, model=Both, inputs=["x", "other"], batch=8, lr=1e-3, budget="2 steps"), desk)
    by_name = same(run, {"x": x, "other": other})
    model = run.model()
    torch.testing.assert_close(model(torch.from_numpy(x), torch.from_numpy(other)), by_name)
    with pytest.raises(DataError, match=r"2 inputs \(x and other\), got 1"):
        model(torch.from_numpy(x))


def test_layers_that_are_made_when_they_are_called(desk: Path) -> None:
    x, y = far_from_zero(40)
    recipe = fo.Recipe(
        data=fo.data.arrays(x, y, normalize="auto"), model=lambda: nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3)),
        batch=8, lr=1e-2, budget="5 epochs",
    )  # fmt: skip
    assert same(trained(recipe, desk), x).shape == (40, 3)


@pytest.mark.parametrize("kind", ["sequential", "functional", "subclass"])
def test_keras_models(desk: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="Keras 3 is not installed")

    def made() -> Any:
        layers = keras.layers
        if kind == "sequential":
            return keras.Sequential(
                [layers.Input((5,)), layers.Dense(16, "relu"), layers.BatchNormalization(), layers.Dense(3)]
            )
        if kind == "functional":
            given = keras.Input((5,))
            return keras.Model(given, layers.Dense(3)(layers.Dropout(0.2)(layers.Dense(16, "relu")(given))))

        class Own(keras.Model):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.inner, self.head = layers.Dense(16, "relu"), layers.Dense(3)

            def call(self, x: Any) -> Any:
                return self.head(self.inner(x))

        return Own()

    x, y = far_from_zero()
    recipe = fo.Recipe(data=fo.data.arrays(x, y, normalize="auto"), model=made, batch=20, lr=1e-2, budget="10 epochs")
    run = trained(recipe, desk)
    made()  # counts the names of layers on
    output = same(run, x)
    assert float((output.argmax(1).numpy() == y).mean()) > 0.8
    assert "keras" in sys.modules


def test_a_keras_model_learns_with_the_statistics_of_its_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
    from flatout.base.shapes import Shapes
    from flatout.models.build import build

    model = build(lambda: keras.Sequential([keras.layers.Input((5,)), keras.layers.Dropout(0.5)]), Shapes((5,), 5), 0)
    ones = torch.ones(64, 5)
    assert torch.equal(model.eval()(ones), ones) and not torch.equal(model.train()(ones), ones)
