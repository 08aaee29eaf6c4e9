"""Budgets end a run where they say: counted ones exactly, spent ones when they are spent, targets as soon as they are met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_engine_kit import blobs, disturbed, equal, kinds, net, recipe, train, weights
from torch import Tensor, nn

import flatout as fo
from flatout.base.budget import Budget
from flatout.base.errors import MachineError, UsageError
from flatout.engine.progress import BudgetMeter, Progress


@pytest.mark.parametrize(
    ("budget", "steps", "samples"),
    [
        ("7 steps", 7, 112),
        ("100 samples", 7, 100),
        ("2 epochs", 12, 192),
        ("1.5 epochs", 9, 144),
        ("1 sample", 1, 1),
        ("0.1 epochs", 1, 10),
    ],
)
def test_counted_budgets_are_exact(tmp_path: Path, budget: str, steps: int, samples: int) -> None:
    seen: list[int] = []

    def count(model: nn.Module, x: Tensor) -> Tensor:
        seen.extend([len(x)] if model.training else [])
        return x

    with disturbed(count):
        run = train(tmp_path, budget=budget)
    assert (run.result["steps"], run.result["samples"]) == (steps, samples) == (len(seen), sum(seen))
    assert run.result["reason"] == "budget spent" and run.result["status"] == "finished"
    assert len(kinds(run, "started")) == 1 and kinds(run, "started")[0]["total_steps"] == steps


def test_an_epoch_sees_every_sample_once(tmp_path: Path) -> None:
    seen: list[Tensor] = []

    def look(model: nn.Module, x: Tensor) -> Tensor:
        seen.extend([x.clone()] if model.training else [])
        return x

    data = blobs(rows=100, holdout=0.0)
    with disturbed(look):
        train(tmp_path, data=data, budget="2 epochs", batch=32)
    rows = torch.cat(seen)
    expected = data.train.read(torch.arange(100))["x"]
    for epoch in (rows[:100], rows[100:]):
        assert torch.equal(epoch[epoch[:, 0].argsort()], expected[expected[:, 0].argsort()])
    assert not torch.equal(rows[:100], rows[100:])


def test_tokens_are_counted_as_tokens(tmp_path: Path) -> None:
    data = fo.data.text("module:this", window=16)
    model = {"gpt": {"layers": 1, "heads": 1, "width": 8}}
    run = train(tmp_path, data=data, model=model, objective="next_token", batch=4, budget="160 tokens")
    assert run.result["samples"] == 10 and run.result["steps"] == 3
    assert run.result["tokens_per_s"] == pytest.approx(16 * run.result["samples_per_s"])


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def meter(budget: str, clock: Clock, **given: Any) -> BudgetMeter:
    return BudgetMeter(Budget.parse(budget), epoch_samples=100, batch=10, tokens_per_sample=1, clock=clock, **given)


@pytest.mark.parametrize(
    ("budget", "whole_s", "price"), [("20 s", 20, None), ("2 min", 120, None), ("5 USD", 3600, 5.0), ("1 usd", 450, 8.0)]
)
def test_spent_budgets_follow_the_clock(budget: str, whole_s: float, price: float | None) -> None:
    clock = Clock()
    spent, progress = meter(budget, clock, price_per_hour=price), Progress()
    spent.begin(progress)
    clock.now_s = whole_s / 2
    spent.spend(progress)
    assert spent.done_share(progress) == pytest.approx(0.5) and not spent.is_spent(progress)
    assert spent.next_size(progress) == 10 and spent.total_steps is None
    resumed = meter(budget, clock, price_per_hour=price)  # what was spent before is counted in
    resumed.begin(progress)
    clock.now_s += whole_s / 2
    resumed.spend(progress)
    assert resumed.is_spent(progress)


def test_energy_follows_the_counter() -> None:
    counter = {"j": 1000.0}
    spent, progress = meter("1 Wh", Clock(), read_energy_j=lambda: counter["j"]), Progress()
    spent.begin(progress)
    spent.spend_energy(progress, 1000.0 + 1800.0)
    assert spent.done_share(progress) == pytest.approx(0.5)
    spent.spend_energy(progress, None)
    assert spent.done_share(progress) == pytest.approx(0.5), "a reading that failed changes nothing"


def test_money_without_a_price_and_energy_without_a_counter_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="price_per_hour"):
        train(tmp_path, budget="5 USD")
    with pytest.raises(MachineError, match="no energy counter"):
        meter("1 Wh", Clock(), read_energy_j=lambda: None)
    assert not list(tmp_path.iterdir()), "nothing was written"


@pytest.mark.parametrize(("budget", "price"), [("0.3 s", None), ("0.001 USD", 12.0)], ids=["time", "money"])
def test_a_run_by_time_or_money_ends_in_time(tmp_path: Path, budget: str, price: float | None) -> None:
    run = train(tmp_path, budget=budget, price_per_hour=price, evaluate=None, settings={"log_every": 5})
    elapsed_s = kinds(run, "step")[-1]["elapsed_s"]
    assert 0.3 <= elapsed_s < 3 and run.result["steps"] > 0 and run.result["reason"] == "budget spent"
    assert run.result["cost_usd"] == (pytest.approx(run.result["wall_seconds"] / 300) if price else None)
    rates = [event["lr"] for event in kinds(run, "step")]
    assert rates[-1] < max(rates), "the schedule follows the budget"


def test_a_target_ends_the_run_as_soon_as_it_is_met(tmp_path: Path) -> None:
    run = train(tmp_path, data=blobs(noise=0.3), budget="accuracy >= 0.9 within 20 epochs", lr=0.05)
    evaluations = kinds(run, "evaluation")
    assert run.result["reason"] == "accuracy >= 0.9 reached" and run.result["steps"] < 120
    assert [event["metrics"]["accuracy"] >= 0.9 for event in evaluations] == [False] * (len(evaluations) - 1) + [True]
    assert run.result["status"] == "finished"


def test_a_target_that_is_not_met_ends_with_the_budget(tmp_path: Path) -> None:
    run = train(tmp_path, budget="loss <= 0.000001 within 2 epochs")
    assert run.result["reason"] == "budget spent" and run.result["steps"] == 12


def test_early_stopping_gives_the_best_weights(tmp_path: Path) -> None:
    """The rate is far too high, so the loss gets worse: the weights of the best evaluation are the result."""
    asked = recipe(
        budget="40 epochs", lr=0.3, schedule="constant", evaluate="2 steps", early_stop={"metric": "loss", "patience": 3},
        data=blobs(noise=3.0), model=net, settings={"checkpoint_every": "3 steps", "keep_checkpoints": 1},
    )  # fmt: skip
    run = train(tmp_path, asked)
    losses = [event["metrics"]["loss"] for event in kinds(run, "evaluation")]
    best = min(losses)
    assert losses[-3:] == [loss for loss in losses[-3:] if loss > best] and losses[-4] == best
    assert run.result["reason"] == "loss has not improved for 3 evaluations"
    assert run.result["best"]["value"] == best and run.result["best"]["step"] == 2 * (losses.index(best) + 1)
    kept = run.folder.checkpoints().load(run.result["best"]["step"])["model"]
    assert equal(weights(run), kept)
    assert fo.evaluate(run, device="cpu")["loss"] == pytest.approx(best, rel=1e-5)


def test_early_stopping_survives_the_loss_of_the_best_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad disk, or someone tidying up: the run ends with the last weights, and says so."""
    values = iter([0.0, 0.9, 0.1, 0.1])  # the check before the run asks once
    monkeypatch.setattr("flatout.objectives.classify._finish", lambda total: {"loss": 1.0, "accuracy": next(values)})

    def lose(event: Any) -> None:
        if event["kind"] == "checkpoint_saved" and event["step"] == 2:
            next(tmp_path.glob("*/checkpoints/step-000000002/state.json")).unlink()

    run = train(tmp_path, budget="8 epochs", evaluate="2 steps", early_stop=2, observers=[lose])
    assert run.result["status"] == "finished" and run.result["steps"] == 6
    (event,) = kinds(run, "degraded")
    assert event["what"] == "best weights" and "step-000000002" in event["why"]
    assert equal(weights(run), run.folder.checkpoints().load(6)["model"])
