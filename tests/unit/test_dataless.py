"""Models larger than memory: explained without their weights, and the same in every number as if they had them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from commands import Command
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.init import trunc_normal_

import flatout as fo
from flatout.base.errors import ModelError, UsageError
from flatout.base.shapes import Shapes
from flatout.engine.job import Job
from flatout.engine.settings import Settings
from flatout.measure.counts import Operation, fuse
from flatout.models import repeats
from flatout.models.build import build
from flatout.models.dataless import WeightsBudget, fake_copy, is_dataless, sparing_weights
from flatout.models.gpt import gpt
from flatout.plan.layouts.jobs import shape_of_job
from flatout.plan.work import work_of
from flatout.recipe.build import build_job, check_job

TEXT = "to be or not to be " * 40
SHAPES = Shapes((4,), 3)
GPT = {"gpt": {"layers": 7, "heads": 2, "width": 16, "dropout": 0.1}}


@pytest.fixture
def job_of(tmp_path: Path) -> Callable[..., Job]:
    """`limit_bytes` of real weights; None: all of them are."""
    (tmp_path / "text.txt").write_text(TEXT)

    def made(model: Any, limit_bytes: int | None = None, **options: Any) -> Job:
        data = fo.data.text(str(tmp_path / "text.txt"), window=16)
        how: dict[str, Any] = {"objective": "next_token", "batch": 4, "lr": 1e-3, "budget": "5 steps"}
        budget = None if limit_bytes is None else WeightsBudget(limit_bytes)
        return build_job(fo.Recipe(data=data, model=model, **how, **options), weights_budget=budget)

    return made


class Odd(nn.Module):
    """A block that does twice the work if its index is odd, which only its forward knows."""

    def __init__(self, index: int, width: int = 16) -> None:
        super().__init__()
        self.index, self.keep = index, False
        self.inner = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.keep:
            self.kept = x.sum()
        for _ in range(1 + self.index % 2):
            x = x + self.inner(x)
        return x


class Tower(nn.Module):
    def __init__(self, layers: int = 10, width: int = 16, keep: bool = False) -> None:
        super().__init__()
        rates = [rate.item() for rate in torch.linspace(0, 0.1, layers)]
        self.tokens = nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Odd(index, width) for index in range(layers))
        for block, rate in zip(self.blocks, rates, strict=True):
            block.rate, block.keep = rate, keep  # type: ignore[assignment]
        self.head = nn.Linear(width, 64, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        kept = [block.kept for block in self.blocks if block.kept is not None]
        logits: Tensor = self.head(x)
        return logits + sum(kept) if kept else logits


class Initialised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(256, 512)
        trunc_normal_(self.inner.weight, std=0.02)
        for fill in (nn.init.orthogonal_, nn.init.xavier_normal_, nn.init.kaiming_uniform_, nn.init.eye_):
            fill(self.inner.weight)
        nn.init.normal_(tensor=self.inner.weight)


class NeedsNumbers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Linear(4096, 65536)
        self.scale = self.large.weight.detach().std().item()


def canonical(operations: tuple[Operation, ...]) -> list[object]:
    """With memory numbered in the order in which it is first touched."""
    numbers: dict[int, int] = {}

    def of(touched: Any) -> list[tuple[int, int]]:
        return [(numbers.setdefault(number, len(numbers)), size) for number, size in touched]

    return [(one.name, one.group, one.dtype, one.flops, one.backward, of(one.reads), of(one.writes)) for one in operations]


def test_a_model_within_the_limit_has_the_weights_of_a_run() -> None:
    spared = build("mlp", SHAPES, seed=3, budget=WeightsBudget()).state_dict()
    plain = build("mlp", SHAPES, seed=3).state_dict()
    assert all(torch.equal(plain[name], spared[name]) for name in plain)


def test_what_is_too_large_has_no_data_and_all_else_as_it_was() -> None:
    large = build(lambda: Tower(width=512), SHAPES, seed=0, budget=WeightsBudget(2**20))
    assert isinstance(large, Tower) and is_dataless(large) and not is_dataless(Tower())
    assert large.head.weight is large.tokens.weight
    assert {name: (p.shape, p.dtype, p.device) for name, p in large.named_parameters()} == {
        name: (p.shape, p.dtype, p.device) for name, p in Tower(width=512).named_parameters()
    }
    assert large.blocks[9].rate == pytest.approx(0.1)
    copied, _ = fake_copy(large)
    assert isinstance(copied, Tower) and copied.head.weight is copied.tokens.weight


def test_layers_that_are_made_as_copies_have_no_data_either() -> None:
    def encoder() -> nn.Module:
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True), 3)

    large = build(encoder, SHAPES, seed=0, budget=WeightsBudget(0))
    names = [[id(p) for p in layer.parameters()] for layer in large.layers]  # type: ignore[union-attr]
    assert is_dataless(large) and len({one for layer in names for one in layer}) == len(list(encoder().parameters()))


def test_torchs_own_ways_to_initialise_take_no_numbers() -> None:
    assert is_dataless(build(Initialised, SHAPES, seed=0, budget=WeightsBudget(0)))
    assert nn.init.trunc_normal_ is trunc_normal_, "as it was"


@pytest.mark.parametrize("settings", [{}, {"precision": "bf16"}, {"activation_checkpointing": True}], ids=str)
@pytest.mark.parametrize(
    "model", [{"gpt": {"layers": 7, "heads": 2, "width": 16, "dropout": 0.1}}, Tower, lambda: Tower(keep=True)]
)
def test_a_few_blocks_are_traced_and_the_operators_are_those_of_all(
    job_of: Callable[..., Job], model: Any, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Settings(device="cpu", **settings)
    found = work_of(job_of(model), asked).counts.operations
    monkeypatch.setattr(repeats, "_TRACED_FIRST", 99)
    all_of_them = work_of(job_of(model), asked).counts.operations
    assert canonical(found) == canonical(all_of_them)
    assert [one.bytes for one in fuse(found)] == [one.bytes for one in fuse(all_of_them)]


@pytest.mark.parametrize("model", [GPT, Tower], ids=["gpt", "by index"])
def test_the_shape_of_a_model_is_the_same_without_data_and_with_all_blocks_traced(
    job_of: Callable[..., Job], model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = shape_of_job(job_of(model, limit_bytes=0))
    monkeypatch.setattr(repeats, "_TRACED_FIRST", 99)
    assert without == shape_of_job(job_of(model))


def test_70_billion_weights_are_explained_here_and_on_64_devices(flatout: Command, desk: Path) -> None:
    (desk / "text.txt").write_text(TEXT * 50)
    (desk / "large.yaml").write_text(
        "data: {text: text.txt, window: 256}\nmodel: {gpt: {layers: 80, width: 8192, heads: 64}}\n"
        "objective: next_token\nbatch: 64\nlr: 1e-4\nbudget: 10 steps\n"
    )
    many = flatout("explain", "large.yaml", "--devices", "64", "--device-kind", "h100")
    assert many.code == 0 and "64.4G weights in 80 blocks" in many.out
    one = flatout("explain", "large.yaml")
    assert one.code == 0 and "predicted, bound by" in one.out
    assert "does not fit: weights, gradients and optimizer state take 1.03 TB" in one.out


INSTANCE = """
import flatout as fo
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(64, 16384)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16384, 65536), nn.Linear(65536, 16384)) for _ in range(33))
        self.head = nn.Linear(16384, 64)

    def forward(self, x):
        x = self.tokens(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)

data = fo.data.text("text.txt", window=64)
recipe = fo.Recipe(data=data, model=Own(), objective="next_token", batch=8, lr=1e-4, budget="10 steps")
"""


def test_a_module_that_a_recipe_in_python_holds_is_explained_too(flatout: Command, desk: Path) -> None:
    (desk / "text.txt").write_text(TEXT * 50)
    (desk / "own.py").write_text(INSTANCE)
    many = flatout("explain", "own.py", "--devices", "8", "--device-kind", "h100")
    assert many.code == 0 and "70.9G weights in 33 blocks" in many.out
    one = flatout("explain", "own.py")
    assert one.code == 0 and "does not fit" in one.out


def test_data_that_a_recipe_makes_stays_real() -> None:
    with sparing_weights(WeightsBudget(0)):
        x = torch.randn(70_000, 4)
        layer = nn.Linear(4, 70_000)
    assert not is_dataless(nn.ParameterList()) and float(x.std()) > 0.9 and is_dataless(layer)


def test_a_constructor_that_needs_numbers_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=r"explained without their values.*test_dataless.py:\d+\)"):
        build(NeedsNumbers, SHAPES, seed=0, budget=WeightsBudget())


def test_a_large_model_that_does_not_fit_its_data_is_said_before_it_has_weights() -> None:
    x, y = np.zeros((40, 256), np.float32), np.arange(40) % 10
    made = fo.Recipe(data=fo.data.arrays(x, y), model=lambda: nn.Linear(256, 9), batch=4, lr=0.1, budget="1 epoch")
    with pytest.raises(ModelError, match="the data has 10 classes but the model returns 9 columns"):
        check_job(build_job(made, weights_budget=WeightsBudget(0)), torch.device("cpu"))
    other = fo.Recipe(data=fo.data.arrays(x, y), model=lambda: nn.Linear(999, 100), batch=4, lr=0.1, budget="1 epoch")
    with pytest.raises(ModelError, match="failed on its first batch"):
        check_job(build_job(other, weights_budget=WeightsBudget(0)), torch.device("cpu"))


def test_a_metric_that_nobody_measures_is_said_of_a_large_model_too() -> None:
    x, y = np.zeros((40, 256), np.float32), np.arange(40) % 10
    data = fo.data.arrays(x, y, holdout=0.2)
    made = fo.Recipe(data=data, model=lambda: nn.Linear(256, 100), batch=4, lr=0.1, budget="auc >= 0.9 within 2 epochs")
    with pytest.raises(UsageError, match="budget names the metric 'auc'; known: accuracy, loss"):
        check_job(build_job(made, weights_budget=WeightsBudget(0)), torch.device("cpu"))


def test_weights_to_start_from_are_compared_by_name_and_shape(job_of: Callable[..., Job], tmp_path: Path) -> None:
    own = gpt(30, 16, layers=2, heads=2, width=256).state_dict()
    save_file({name: value.clone() for name, value in own.items() if name != "positions.weight"}, tmp_path / "w.safetensors")
    asked = {"gpt": {"layers": 2, "heads": 2, "width": 256, "vocabulary": 30}}
    with pytest.raises(ModelError, match=r"in the model but not in the file: positions\.weight"):
        job_of(asked, limit_bytes=0, init_from=str(tmp_path / "w.safetensors"))
    skipping = {"path": str(tmp_path / "w.safetensors"), "skip": ["positions.weight"]}
    assert is_dataless(job_of(asked, limit_bytes=0, init_from=skipping).model)


def test_a_forward_that_looks_at_its_numbers_is_planned_without_a_prediction() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(256, 100)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.inner(x)
            return y if float(y.sum().detach()) > 0 else F.relu(y)

    x, y = np.zeros((40, 256), np.float32), np.arange(40) % 10
    made = fo.Recipe(data=fo.data.arrays(x, y), model=Looks, batch=4, lr=0.1, budget="1 epoch")
    job = build_job(made, weights_budget=WeightsBudget(0))
    check_job(job, torch.device("cpu"))
    with pytest.raises(ModelError, match=r"tensors without data.* Looks can't run"):
        shape_of_job(job)
