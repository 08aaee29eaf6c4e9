"""A shallower twin: which blocks are left out, and a real one that is taught and judged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import flatout as fo
from flatout.models.gpt import gpt
from flatout.packaging.export import export
from flatout.packaging.own_data import data_behind
from flatout.packaging.package import open_package
from flatout.shrinking.rows import rows_of_run
from flatout.shrinking.training.blocks import BlockRow, rows_of_blocks, shallower
from flatout.shrinking.training.lessons import Lessons
from flatout.shrinking.training.sizes import flops_of
from flatout.shrinking.workshop.workshop import Workshop


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Counting(nn.Module):
    """Whose own code has the number of its blocks written out."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual(8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for place in range(4):
            x = self.blocks[place](x)
        return x


def test_rows_are_of_one_class_and_shape_and_the_outermost() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(*(Residual(8) for _ in range(5)), nn.ReLU(), nn.ReLU()))
    assert rows_of_blocks(model) == [BlockRow("1", (0, 1, 2, 3, 4))]
    assert rows_of_blocks(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))) == [], "single layers are no blocks"
    one = nn.Sequential(Residual(8), nn.ReLU(), Residual(8))
    assert rows_of_blocks(one) == [BlockRow("0.inner", (0, 1)), BlockRow("2.inner", (0, 1))], "only inside of them"


@pytest.mark.parametrize(("share", "left"), [(1 / 2, [0, 4]), (1 / 3, [0, 4]), (0.6, [0, 2, 4]), (0.1, [0])])
def test_the_first_and_the_last_stay_with_their_weights(share: float, left: list[int]) -> None:
    model = nn.Sequential(*(Residual(8) for _ in range(5)))
    made = shallower(model, rows_of_blocks(model), share)
    assert len(model) == 5, "the run's model is not changed"
    wanted = nn.Sequential(*(model[place] for place in left))
    x = torch.randn(3, 8)
    torch.testing.assert_close(made(x), wanted(x), rtol=0, atol=0)


def test_a_gpt_with_half_of_its_blocks_runs() -> None:
    model = gpt(50, 16, layers=6, heads=2, width=32).eval()
    (row,) = rows_of_blocks(model)
    made = shallower(model, [row], 1 / 2)
    assert len(row.places) == 6 and made(torch.zeros(2, 16, dtype=torch.long)).shape == (2, 16, 50)
    assert sum(w.numel() for w in made.parameters()) < 0.7 * sum(w.numel() for w in model.parameters())


def test_a_twin_is_trained_and_judged(tmp_path: Path) -> None:
    data = {"text": ["module:json"], "encoding": "bytes", "window": 16, "holdout": 0.3}
    recipe = fo.Recipe(data=data, model={"gpt": {"layers": 2, "heads": 2, "width": 32}}, objective="next_token", batch=64,
                       lr=1e-2, budget="40 steps", evaluate=None, settings={"device": "cpu"})  # fmt: skip
    export(fo.run(recipe, runs=tmp_path / "runs", cache=None, planning="off"), tmp_path / "package")
    package = open_package(tmp_path / "package")
    with Workshop(package, rows_of_run(package, data_behind(package, None)), "next_token", isolated=False) as workshop:
        workshop.serve_with("onnxruntime")
        workshop.ask({"ask": "start", "batch": 1}, 100.0)
        assert workshop.ask({"ask": "lessons"}, 100.0)["changes"]["shallow"]["1/2"]["why_not"] is None
        step = {"change": "shallow", "value": "1/2", "floats": []}
        made = workshop.ask({"ask": "make", "steps": [step], "name": "twin"}, 100.0)
        assert made["notes"]["weights"] < 0.75 and made["notes"]["flops"] < 0.75 and made["notes"]["steps"] == 40
        losses = [_loss(workshop, name) for name in ("source", "twin")]
    assert losses[1] < 1.3 * losses[0] < 4.0, "it has learned as the source has, and not from nothing"


def test_code_with_the_number_of_blocks_is_left_alone_with_the_reason() -> None:
    class Given(Lessons):
        def __init__(self) -> None:
            self.model = Counting()

        def flops(self, model: nn.Module) -> int:
            return flops_of(lambda: model(torch.randn(2, 8)))

    assert "without half of its blocks" in (Given().why_not_shallower or "")
    other = Given()
    other.model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    assert "no blocks that follow one another" in (other.why_not_shallower or "")


def _loss(workshop: Workshop, name: str) -> float:
    asked = {"ask": "judge", "name": name, "which": "judging", "batch": 64}
    with np.load(workshop.ask(asked, 100.0)["file"]) as kept:
        return float(next(kept[key] for key in kept.files if "loss" in key).mean())
