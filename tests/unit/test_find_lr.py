"""find-lr and `lr: auto`: the rate, what it leaves unchanged, what it says where there is none, and a resume that keeps it."""

from __future__ import annotations

import copy
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Command, signal_at, table
from torch import Tensor, nn

import flatout as fo
from flatout.base.errors import RecipeError, TrainingError, UsageError
from flatout.drill.difference import differing_bits
from flatout.runs.rates.narrowing import Narrowing
from flatout.runs.rates.range_test import curve_of, rate_of, read_range
from flatout.runs.rates.short_runs import ShortRun
from flatout.runs.record import load


def asked(**given: Any) -> fo.Recipe:
    x = table(256)
    data = fo.data.arrays({"x": x["x"], "y": x["y"]}, holdout=0.25)
    base = {"data": data, "model": {"mlp": {"hidden": [16]}}, "batch": 16, "lr": "auto", "budget": "3 epochs"}
    return fo.Recipe(**{**base, "settings": {"device": "cpu"}, **given})


def find(recipe: fo.Recipe, limit: str = "30 s") -> Any:
    return fo.find_lr(recipe, limit=limit, cache=None)


@pytest.fixture(autouse=True)
def made_up_machine(desk: Path) -> Path:
    return desk


def loss_with(lr: float, **given: Any) -> float:
    result = fo.run(asked(lr=lr, **given), planning="off", cache=None, quiet=True).result
    return float(result["metrics"]["loss"])


@pytest.mark.parametrize("given", [{}, {"optimizer": "sgd", "schedule": {"linear": {"warmup": 3}}, "clip": 1.0}])
def test_the_rate_trains_better_than_a_far_lower_one(given: dict[str, Any]) -> None:
    found = find(asked(**given))
    assert found.low <= found.lr <= found.high and found.why and found.total_steps == 36
    assert loss_with(found.lr, **given) < 0.9 * loss_with(found.lr / 50, **given)


def test_a_search_changes_nothing_and_can_be_stored() -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    found = find(asked(model=model, ema=0.9, rates={"3.*": 0.5}))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state) and model.training
    assert type(found).from_dict(json.loads(json.dumps(found.to_dict()))) == found


def squared(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, float]:
    return (model(batch["x"]).mean(1) - batch["y"]).square().sum(), float(len(batch["y"]))


@pytest.mark.parametrize("given", [{"objective": "regress"}, {"objective": squared}])
def test_other_objectives(given: dict[str, Any]) -> None:
    x = table(128)
    data = fo.data.arrays({"x": x["x"], "y": x["x"].sum(1)})
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
    assert 1e-4 < find(asked(data=data, model=model, evaluate=None, **given)).lr < 1


class Deaf(nn.Module):
    """Its output does not depend on its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :2] + 0 * self.weight


class Broken(Deaf):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (float("nan") if self.training else 1.0)


def test_no_rate_is_said_plainly() -> None:
    flat = find(asked(model=Deaf()))
    assert flat.lr is None and "does not fall" in flat.why and "no learning rate" in flat.explain()
    broken = find(asked(model=Broken()))
    assert broken.lr is None and "NaN" in broken.why and "no learning rate" in broken.explain()
    with pytest.raises(TrainingError, match="no learning rate"):
        fo.run(asked(model=Deaf()), cache=None, quiet=True)


def test_lr_is_a_number_or_auto() -> None:
    for wrong in ("atuo", "", True, -1.0):
        with pytest.raises(RecipeError, match="lr"):
            asked(lr=wrong)
    assert asked(lr="1e-3").lr == 1e-3 and not asked(lr="1e-3").searches_rate and asked().written()["lr"] == "auto"
    with pytest.raises(UsageError, match="recipe"):
        fo.find_lr({"data": "digits"})


def test_a_run_stores_its_rate_and_a_resume_keeps_it(
    desk: Path, flatout: Command, during_run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from flatout.runs.rates import auto

    during_run(signal_at(2, signal.SIGTERM))
    assert flatout("run", "table.yaml", "lr=auto").code == 143
    during_run(None)
    monkeypatch.setattr(auto, "search_rate", lambda *given, **named: pytest.fail("a resumed run searches again"))
    assert flatout("run", "table.yaml", "lr=auto").code == 0
    run = load("last")
    found = run.found_lr
    assert found is not None and run.recipe.written()["lr"] == "auto"
    assert "learning rate" in run.explain() and found.why in run.explain()
    kinds = [event["kind"] for event in run.events()]
    assert kinds.count("rate_found") == 1 and "resumed" in kinds
    assert flatout("run", "table.yaml", f"lr={found.lr!r}").code == 0
    given = load("last")
    assert given.name != run.name and differing_bits(run.folder, given.folder)[0] == 0
    assert f"{found.lr:.5g}" in flatout("runs", "--show", "lr").out


def test_the_command(desk: Path, flatout: Command) -> None:
    text = (desk / "table.yaml").read_text().replace("lr: 1e-2\n", "")
    (desk / "no_rate.yaml").write_text(text)
    answer = flatout("find-lr", "no_rate.yaml", "--limit", "25 s", "--plot", "curve.svg")
    assert answer.code == 0 and "lr: " in answer.out and "*" in answer.out and "step takes" in answer.err
    assert (desk / "curve.svg").read_text().startswith("<svg") and not (desk / "runs").exists()
    found = json.loads(flatout("find-lr", "no_rate.yaml", "--limit", "1 s", "--json", "--plot", "page.html").out)
    assert found["low"] <= found["lr"] <= found["high"] and len(found["rates"]) == len(found["losses"])
    assert "data:image/svg+xml" in (desk / "page.html").read_text()
    assert flatout("find-lr", "no_rate.yaml", "--plot", "curve.gif").code == 2
    assert flatout("find-lr", "no_rate.yaml", "--limit", "soon").code == 2


# ---- the choice, on losses that are made up ----


def test_the_steepest_fall_is_where_the_curve_falls_fastest() -> None:
    rates = [rate_of(number, 100) for number in range(100)]
    losses = [1 / (1 + (rate / 1e-3) ** 2) if rate < 0.5 else 50.0 for rate in rates]
    test = read_range([curve_of(losses, 100)] * 3)
    assert test.steepest is not None and 5e-4 < test.steepest < 5e-3 and test.low < test.steepest < test.bottom
    assert test.high < 0.7 and test.curves[0].diverged_at is not None
    assert read_range([curve_of([2.0] * 100, 100)] * 3).why_none == "flat"
    assert read_range([curve_of([float("nan")] * 16, 100)] * 3).why_none == "at_once"


@pytest.mark.parametrize(("best", "width", "kind"), [(3e-2, 0.3, "best"), (1e-3, 30.0, "plateau")])
def test_short_trainings_come_to_the_lowest_loss(best: float, width: float, kind: str) -> None:
    def train(rate: float, steps: int, seed: int) -> ShortRun:
        away = np.log(rate / best) / width
        return ShortRun(rate, seed, (), float(1 + 0.05 * away**2), 0.01)

    narrowed = Narrowing(train, 400, lambda: 100.0, 1e-4).narrow(5e-3)
    assert narrowed is not None and narrowed.kind == kind
    if kind == "best":
        assert best / 1.5 < narrowed.rate < best * 1.5 and narrowed.steps == 400


def test_without_time_for_the_whole_budget_the_rate_is_lowered() -> None:
    def train(rate: float, steps: int, seed: int) -> ShortRun:
        return ShortRun(rate, seed, (), float(1 + abs(np.log(rate / 1e-2))), steps * 1e-3)

    short = Narrowing(train, 100_000, lambda: 10.0, 1e-3).narrow(1e-2)
    assert short is not None and short.kind == "drifted" and 1e-3 < short.rate < 1e-2
    assert Narrowing(train, 100_000, lambda: 0.01, 1e-3).narrow(1e-2) is None
