"""On a GPU: batches of a token budget train as on the host, one compilation serves all shapes, and a resume is exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import flatout as fo
from flatout.store.tensors import read_tensors

ROWS, TOKENS, BATCH = 400, 640, 48

pytestmark = pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # fp32 is asked for


class Mean(nn.Module):
    """Two classes from the mean of what a row's tokens mean, padding left out."""

    def __init__(self) -> None:
        super().__init__()
        self.meaning = nn.Embedding(200, 32)
        self.body = nn.Linear(32, 64)
        self.head = nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        inside = (x > 0).unsqueeze(2)
        mean = (self.meaning(x) * inside).sum(1) / inside.sum(1).clamp(min=1)
        return self.head(torch.relu(self.body(mean)))


def train(tmp_path: Path, name: str, budget: str = "30 steps", fresh: bool = True, **settings: Any) -> Any:
    draw = np.random.default_rng(0)
    rows = [draw.integers(1, 100 + 100 * (n % 2), draw.integers(1, 60)).tolist() for n in range(ROWS)]
    recipe = fo.Recipe(
        data=fo.data.sequences(rows, [n % 2 for n in range(ROWS)], vocabulary=200, tokens=TOKENS, holdout=0.2),
        model=Mean,
        batch=BATCH,
        lr=1e-2,
        budget=budget,
        schedule="constant",
        settings={"device": "cuda", "deterministic": True, "log_every": 5, **settings},
        name=name,
    )
    return fo.run(recipe, runs=tmp_path, fresh=fresh, cache=tmp_path.parent / "cache")


def weights(run: Any) -> Tensor:
    return torch.cat([tensor.flatten().float() for _, tensor in sorted(read_tensors(run.path / "model.safetensors").items())])


@pytest.mark.parametrize("settings", [{"compile": "off"}, {"compile": "on"}, {"tier": "pinned", "compile": "off"}])
def test_every_form_trains_as_the_host_does(tmp_path: Path, settings: dict[str, Any]) -> None:
    host = train(tmp_path, "host", device="cpu", precision="fp32")
    here = train(tmp_path, "here", precision="fp32", **settings)
    assert here.result["steps"] == host.result["steps"] == 30 and here.result["samples"] == host.result["samples"]
    torch.testing.assert_close(weights(here), weights(host), rtol=2e-3, atol=2e-3)


def test_with_what_the_plan_chooses_it_learns(tmp_path: Path) -> None:
    run = train(tmp_path, "planned", budget="40 epochs", deterministic=False)
    assert run.result["metrics"]["accuracy"] > 0.9


def test_one_seed_gives_one_set_of_weights(tmp_path: Path) -> None:
    assert weights(train(tmp_path, "one")).equal(weights(train(tmp_path, "other")))
