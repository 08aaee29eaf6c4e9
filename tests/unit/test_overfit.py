"""overfit: a sound model learns one batch by heart; of others it says which part can't."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Command, table
from torch import Tensor, nn

import flatout as fo


@pytest.fixture(autouse=True)
def made_up_machine(desk: Path) -> Path:
    return desk


def asked(model: Any, **given: Any) -> fo.Recipe:
    data = given.pop("data", None) or fo.data.arrays(table(64))
    base = {"batch": 32, "lr": 1e-2, "budget": "1 epoch", "evaluate": None, "settings": {"device": "cpu"}}
    return fo.Recipe(data=data, model=model, **{**base, **given})


def overfit(model: Any, **given: Any) -> Any:
    return fo.overfit(asked(model, **given), cache=None)


def test_a_sound_model_with_dropout_learns_and_stays_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 2))
    before = model[0].weight.detach().clone()
    found = overfit(model)
    assert found.learned and found.loss < 0.05 * found.first_loss and found.stuck == () and found.rows == 32
    assert torch.equal(model[0].weight, before)


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.spare = nn.Linear(5, 4), nn.Linear(4, 2), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)).detach() * 0.01)


def dead() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))
    nn.init.constant_(model[0].bias, -1000.0)
    return model


def saturated() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 16), nn.Sigmoid(), nn.Linear(16, 2))
    nn.init.constant_(model[0].bias, 1e4)
    return model


@pytest.mark.parametrize(
    ("model", "given", "part", "what"),
    [
        (Detached, {}, "body.weight", "no gradient"),
        (Detached, {"freeze": ("body.*",)}, "body.weight", "frozen"),
        (dead, {}, "1", "dead"),
        (saturated, {}, "1", "saturated"),
    ],
)
def test_the_part_that_can_not_learn_is_named(model: Any, given: dict[str, Any], part: str, what: str) -> None:
    found = fo.overfit(asked(model(), **given), steps=60, cache=None)
    assert not found.learned
    assert any(part in one.part and what in one.what and one.remedy for one in found.stuck), found.stuck


def test_labels_that_contradict_have_a_known_lowest_loss() -> None:
    x = np.zeros((32, 5), dtype="float32")
    y = np.arange(32) % 4 == 0  # one row, a quarter of them of class 1
    found = overfit({"mlp": {"hidden": [16]}}, data=fo.data.arrays({"x": x, "y": y.astype("int64")}))
    expected = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    assert found.floor == pytest.approx(expected) and any("same input" in one.what for one in found.stuck)


def test_label_smoothing_is_no_failure() -> None:
    found = overfit({"mlp": {"hidden": [32]}}, objective={"classify": {"label_smoothing": 0.1}})
    assert found.learned and found.loss == pytest.approx(found.floor, rel=0.1) and found.floor > 0.1


def test_other_objectives_learn_too() -> None:
    x = table(32)["x"]
    model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1))
    assert overfit(model, data=fo.data.arrays({"x": x, "y": x.sum(1)}), objective="regress").learned


def test_the_command(desk: Path, flatout: Command) -> None:
    answer = flatout("overfit", "table.yaml", "--json")
    assert answer.code == 0 and json.loads(answer.out)["learned"] and not (desk / "runs").exists()
    failed = flatout("overfit", "table.yaml", "--steps", "1")
    assert failed.code == 1 and "did not learn one batch of 16 rows" in failed.out
