"""A recipe's plan with trials: how earlier trials are reused, and what is checked first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from test_plan_search import Machine, times
from torch import Tensor, nn

import flatout as fo
from flatout.base.errors import UsageError
from flatout.measure.receipt import Receipt
from flatout.plan import make as planned
from flatout.plan.make import checked_plan
from flatout.recipe.build import build_job
from flatout.testing.knobs import made_up


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned, "ceilings_of", lambda device, cache, job: made_up())


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(times(channels_last=1.5))

    @contextmanager
    def tries(*given: Any) -> Iterator[Machine]:
        yield made

    monkeypatch.setattr(planned, "tries", tries)
    return made


def plan(cache: Path, budget: str, said: list[str]) -> Receipt:
    recipe = fo.Recipe(data="digits", model="convnet", batch=64, lr=1e-3, budget=budget, settings={"device": "cpu"})
    receipt = checked_plan(recipe, build_job(recipe), cache, say=said.append)[1]
    assert receipt is not None
    return receipt


def test_trials_serve_later_runs_and_the_receipt_has_their_date(tmp_path: Path, machine: Machine) -> None:
    said: list[str] = []
    first = plan(tmp_path, "20000000 steps", said)
    tried = len(machine.asked)
    assert tried > 1 and first.settings["channels_last"] is True and not first.notes
    assert plan(tmp_path / "elsewhere", "20 steps", []).gain is None  # too short for trials
    said.clear()
    short = plan(tmp_path, "20 steps", said)
    assert len(machine.asked) == tried and short.settings["channels_last"] is True and short.gain == pytest.approx(first.gain)
    assert "were made at 2" in short.notes[0] and "nothing now" in short.notes[0] and "measurements of 2" in said[0]


class Capped(nn.Module):
    """Its forward does more than apply the head to the output of `hidden`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.head = nn.Embedding(256, 16), nn.Linear(16, 256)

    def hidden(self, x: Tensor) -> Tensor:
        found: Tensor = self.tokens(x)
        return found

    def forward(self, x: Tensor) -> Tensor:
        return 2 * torch.tanh(self.head(self.hidden(x)))


class Plain(Capped):
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(x))
        return logits


def test_a_chunked_loss_with_another_value_is_rejected_before_training(tmp_path: Path) -> None:
    def run(model: type[nn.Module]) -> Any:
        data = fo.data.text("module:json", encoding="bytes", window=16)
        asked: Any = {"objective": "next_token", "batch": 8, "lr": 1e-3, "budget": "2 steps"}
        recipe = fo.Recipe(data=data, model=model, **asked, settings={"device": "cpu", "loss_head": "chunked"})
        return fo.run(recipe, runs=tmp_path, cache=None)

    assert run(Plain).result["status"] == "finished"
    with pytest.raises(UsageError, match=r"Capped to be head\(hidden\(...\)\), and it is not: the loss is .* from forward"):
        run(Capped)
