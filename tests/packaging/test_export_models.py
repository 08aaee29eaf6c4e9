"""Models that are hard to write as a graph: they are captured exactly, kept as code, or refused with the reason."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packaged_runs import Exported, same, trained
from torch import Tensor, nn

import flatout as fo
from flatout.base.errors import DataError, FlatoutError, ModelError
from flatout.packaging import export as exporting
from flatout.packaging.capture import Captured, capture
from flatout.packaging.package import open_package
from flatout.packaging.program import Program
from flatout.recipe.load import read_recipe

CPU = torch.device("cpu")


class Named(nn.Module):
    """As capture wants it: columns by position in, a dict out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *columns: Tensor) -> dict[str, Tensor]:
        return {"output": self.model(*columns)}


def answers_the_same(model: nn.Module, *others: Tensor, rows: Tensor | None = None) -> Captured:
    """Captured on 6 rows, written as JSON and read again, it gives what the model gives for 6, 1 and 5 rows."""
    torch.manual_seed(0)
    model.eval()
    x = torch.randn(6, 8) if rows is None else rows
    captured = capture(Named(model), {"x": x, **{f"other_{place}": one for place, one in enumerate(others)}})
    again = Program.from_json(captured.program.to_json()).module(captured.weights, CPU)
    with torch.no_grad():
        for size in (6, 1, 5):
            given = [one[:size] for one in (x, *others)]
            torch.testing.assert_close(again(*given)[0], model(*given), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(again(*given)[0], again(*given)[0], rtol=0, atol=0)
    return captured


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.tokens(x).mean(1))
        return out


def test_tied_weights_are_kept_once() -> None:
    captured = answers_the_same(Tied(), rows=torch.randint(0, 11, (6, 4)))
    assert [tuple(one.shape) for one in captured.weights.values()] == [(11, 8)]


def test_statistics_of_batch_norm_are_kept() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    for _ in range(3):
        model(torch.randn(16, 8) * 5 + 3)
    answers_the_same(model)


class OwnBuffers(nn.Module):
    """Rotary angles as complex numbers, which no state dict has, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.polar(torch.ones(4), torch.arange(4.0)), persistent=False)
        self.register_buffer("scale", torch.tensor(2.5), persistent=False)
        self.shift = torch.full((8,), 0.5)

    def forward(self, x: Tensor) -> Tensor:
        turned = torch.view_as_complex(x.reshape(x.shape[0], 4, 2)) * self.angles
        return torch.view_as_real(turned).flatten(1) * self.scale + self.shift


def test_buffers_outside_of_the_state_dict_are_kept() -> None:
    captured = answers_the_same(OwnBuffers())
    assert not any(one.is_complex() for one in captured.weights.values()), "safetensors files of all versions hold real numbers"


class Spectrum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(x) * 1j, n=8) + torch.fft.rfft(x).abs().sum(-1, keepdim=True)


def test_complex_numbers_inside() -> None:
    answers_the_same(Spectrum())


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.LSTM(2, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out, (hidden, cell) = self.steps(x.reshape(x.shape[0], 4, 2))
        last: Tensor = out[:, -1] + 2 * hidden[-1] + 3 * cell[-1]
        return last


def test_an_lstm_with_its_state() -> None:
    answers_the_same(Remembering())


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[:, 0] = 7
        y.detach_().relu_().add_(1)
        return y.index_fill_(1, torch.tensor([2]), 3.0)


def test_changes_in_place_of_inner_tensors() -> None:
    answers_the_same(InPlace())


class Counting(nn.Module):
    """`seen` changes with every call."""

    def __init__(self, matters: bool) -> None:
        super().__init__()
        self.matters, self.head = matters, nn.Linear(8, 2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        out: Tensor = self.head(x)
        return out + self.seen if self.matters else out


def test_a_buffer_that_changes_is_refused_if_it_matters() -> None:
    captured = capture(Named(Counting(matters=False)).eval(), {"x": torch.randn(6, 8)})
    assert not any("seen" in name for name in captured.weights)
    with pytest.raises(ModelError, match=r"'model\.seen'.*changes with every call"):
        capture(Named(Counting(matters=True)).eval(), {"x": torch.randn(6, 8)})


class InputChanged(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2) + 1


class Deciding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if float(x.sum()) > 0 else x * 3


@torch.library.custom_op("flatout_tests::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return x * 2


@doubled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class OwnOperator(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = doubled(x)
        return out


@pytest.mark.parametrize(
    ("model", "names"),
    [(InputChanged(), "input in place"), (Deciding(), "torch.export can't"), (OwnOperator(), "flatout_tests.doubled")],
    ids=["input", "control-flow", "operator"],
)
def test_models_that_no_graph_can_hold_say_why(model: nn.Module, names: str) -> None:
    with pytest.raises(ModelError) as error:
        capture(Named(model).eval(), {"x": torch.randn(6, 8)})
    assert names in str(error.value) and "\n" not in str(error.value)


# ---- whole runs of models that stay code ----

OWN_CODE = """\
import torch
from torch import Tensor, nn


class Chooses(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(5, width), nn.Linear(width, 3)
        self.same = self.inner  # its tensors have two names

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x).relu()
        return self.head(hidden if float(hidden.detach().mean()) >= 0 else -hidden)
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of a class in `choosing.py`, which decides by the data, and its package."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "code").mkdir()
    (folder / "code" / "choosing.py").write_text(OWN_CODE)
    x = np.random.default_rng(0).normal(size=(24, 5)).astype(np.float32)
    np.savez(folder / "rows.npz", x=x, y=np.arange(24) % 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder / "code"))
        run = trained(folder, {"arrays": str(folder / "rows.npz"), "normalize": "auto"}, {"choosing:Chooses": {"width": 6}})
        done = exporting.export(run, folder / "package")
        wanted = fo.predict(run, x, device="cpu")
        made = Exported(run, folder / "package", lambda rows: x[:rows])
    sys.modules.pop("choosing")
    return made, done, wanted


def test_a_model_without_a_graph_keeps_its_import_path(code: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, done, wanted = code
    (note,) = [note for note in done.notes if "choosing:Chooses" in note]
    assert "installed" in note and "torch.export can't write" in note
    assert done.package.card["code"] == "choosing:Chooses"
    names = {path.name for path in made.path.iterdir()}
    assert "code.json" in names and not names & {"program.json", "model.onnx"}
    monkeypatch.syspath_prepend(str(made.path.parent / "code"))
    package = open_package(made.path)
    same(package.predict(made.rows(5)), wanted, slice(5))
    same(package.model()(made.rows(1)), wanted, slice(1))
    sys.modules.pop("choosing")


def test_code_that_is_not_there_is_named(code: Any) -> None:
    made, _, _ = code
    package = open_package(made.path)
    for ask in (lambda: package.predict(made.rows(2)), lambda: package.model()):
        with pytest.raises(ModelError, match=r"choosing:Chooses.*not installed here.*'choosing'"):
            ask()


def test_code_that_has_changed_since_is_named(code: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _, _ = code
    (tmp_path / "choosing.py").write_text(OWN_CODE.replace("nn.Linear(width, 3)", "nn.Linear(width, 4)"))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModelError, match=r"choosing:Chooses.*head\.weight"):
        open_package(made.path).predict(made.rows(2))
    sys.modules.pop("choosing")
    (tmp_path / "choosing.py").write_text(OWN_CODE.replace(".relu()", ".tanh()"))
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    with pytest.raises(ModelError, match=r"does not give the run's outputs.*differs"):
        open_package(made.path).predict(made.rows(2))
    sys.modules.pop("choosing")


RECIPE = """\
import numpy as np
import flatout as fo
from torch import nn

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(x if float(x.detach().sum()) < 1e9 else -x)

x = np.random.default_rng(0).normal(size=(24, 5)).astype(np.float32)
recipe = fo.Recipe(
    data=fo.data.arrays(x, np.arange(24) % 3), model=MODEL, batch=8, lr=1e-2, budget="2 steps",
    evaluate=None, settings={"device": "cpu"},
)
"""


@pytest.mark.parametrize("model", ["Mine", "Mine()"])
def test_a_class_of_the_recipe_is_refused_with_the_remedy(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name would be found here, and nowhere else."""
    monkeypatch.chdir(tmp_path)
    Path("recipe.py").write_text(RECIPE.replace("MODEL", model))
    run = fo.run(read_recipe(Path("recipe.py")), cache=None, planning="off")
    with pytest.raises(ModelError, match=r"torch\.export can't write.*installed module.*module:Name"):
        exporting.export(run, tmp_path / "package")
    assert {path.name for path in tmp_path.iterdir()} <= {"runs", "cache", "recipe.py"}


class Rolling(nn.Module):
    """Dropout that never ends: every call has another answer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.head(x), 0.5, training=True)


def test_a_model_with_other_answers_each_time_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(exporting, "_write_onnx", lambda *given: None)
    x = np.random.default_rng(0).normal(size=(24, 5)).astype(np.float32)
    run = trained(tmp_path, fo.data.arrays(x, np.arange(24) % 3), Rolling)
    with pytest.raises(FlatoutError, match=r"no runtime gives the run's own outputs.*eager.*differs"):
        exporting.export(run, tmp_path / "package")
    assert {path.name for path in tmp_path.iterdir()} <= {"runs", "cache"}


class OnlyX(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        return out


def test_columns_that_the_model_does_not_use_need_not_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(exporting, "_write_onnx", lambda *given: None)
    x = np.random.default_rng(0).normal(size=(24, 5)).astype(np.float32)
    data = fo.data.arrays(x, np.arange(24) % 3, weight=x[:, 0], normalize="auto")
    run = trained(tmp_path, data, OnlyX, inputs=["x"])
    package = exporting.export(run, tmp_path / "package").package
    assert [port.name for port in package.program.inputs] == ["x"]
    same(package.predict({"x": x[:4]}), fo.predict(run, {"x": x[:4]}, device="cpu"))
    same(package.model()({"x": x[:4]}), fo.predict(run, x[:4], device="cpu"))
    with pytest.raises(DataError, match="'x'"):
        package.model()({"weight": x[:4, 0]})
