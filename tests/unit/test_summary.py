"""summary: every layer once, with the figures of all its calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Command, table
from torch import Tensor, nn

import flatout as fo
from flatout.base.errors import UsageError


@pytest.fixture(autouse=True)
def made_up_machine(desk: Path) -> Path:
    return desk


def by_name(found: Any) -> dict[str, Any]:
    return {one.name: one for one in found.layers}


def test_figures_of_a_recipe() -> None:
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Sequential(nn.Linear(16, 2)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    recipe = fo.Recipe(data=fo.data.arrays(table(64)), model=model, batch=32, lr=1e-2, budget="1 epoch", freeze=("0.*",),
                       evaluate=None, settings={"device": "cpu"})  # fmt: skip
    found = fo.summary(recipe, cache=None)
    rows = by_name(found)
    assert (found.rows, found.parameters, found.trained) == (32, 5 * 16 + 16 + 16 * 2 + 2, 16 * 2 + 2)
    assert rows["0"].outputs == ((32, 16),) and rows["0"].trained == 0 and rows["2.0"].depth == 2
    assert rows["0"].flops == 2 * 32 * 5 * 16 and rows["2"].flops == rows["2.0"].flops == 2 * 32 * 16 * 2
    assert found.flops > rows["model"].flops == rows["0"].flops + rows["2"].flops, "the backward counts too"
    assert rows["2.0"].activation_bytes == 32 * 16 * 4, "its input, which the backward needs"
    assert found.step_s is not None and all(one.share is not None and 0 <= one.share <= 1 for one in found.layers)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(one.grad is None for one in model.parameters())


class Twice(nn.Module):
    """One layer called twice, known by two names; inputs by name; a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.spare = nn.Linear(4, 4), nn.Linear(4, 1)
        self.again = self.body

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"logits": self.again(torch.relu(self.body(left))) + right}


def test_shared_layers_and_inputs_by_name() -> None:
    found = fo.summary(Twice(), {"left": torch.zeros(3, 4), "right": torch.zeros(3, 4)}, measure=False)
    rows = by_name(found)
    assert set(rows) == {"model", "body", "spare"} and rows["body"].calls == 2 and rows["spare"].calls == 0
    assert rows["body"].flops == 2 * (2 * 3 * 4 * 4) and found.parameters == 20 + 5 and found.step_s is None
    assert "body x2" in found.explain() and "not called" in found.explain() and "body" not in found.explain(depth=0)
    with pytest.raises(UsageError, match="inputs"):
        fo.summary(Twice())


def test_a_transformers_model() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    model = transformers.BertForSequenceClassification(config)
    ids = torch.zeros(2, 7, dtype=torch.int64)
    found = fo.summary(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, measure=True)
    assert found.parameters == sum(one.numel() for one in model.parameters())
    assert by_name(found)["bert.encoder"].outputs[0] == (2, 7, 16) and found.flops > 0 and found.activation_bytes > 0


def test_the_command_of_a_recipe_and_of_a_run(desk: Path, flatout: Command) -> None:
    shown = flatout("summary", "table.yaml", "--depth", "1", "--no-time")
    assert shown.code == 0 and "model" in shown.out and "share of time" not in shown.out and not (desk / "runs").exists()
    assert flatout("run", "table.yaml", "budget=2 steps", "--quiet").code == 0
    of_run, of_recipe = (json.loads(flatout("summary", what, "--json").out) for what in ("last", "table.yaml"))
    assert of_run["parameters"] == of_recipe["parameters"] and len(of_run["layers"]) == len(of_recipe["layers"])
    assert flatout("summary", "last", "batch=3").code == 2
