"""A stack is used only if it is proven to learn what its trials learn alone; the reason is said in words."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import own_models
import pytest
import torch
from stacking import candidates, group_of, recipe, table
from torch import Tensor

from flatout.tuning.training import layout, unfolded
from flatout.tuning.training.layout import SERIAL, STACKED, Layout, choose_layout
from flatout.tuning.training.proof import prove
from flatout.tuning.training.shared import Group
from flatout.tuning.training.stack import TrialStack
from flatout.tuning.training.stacked_update import StackedUpdate
from flatout.tuning.training.unfolded import GROUPED, UNFOLDED

RATES = [["lr=3e-3"], ["lr=1e-2"], ["lr=3e-2"]]


def test_a_right_stack_passes() -> None:
    ones = candidates(recipe(), RATES)
    with group_of(ones) as group:
        proof = prove(group, ones)
    assert proof.passed and max(proof.gradient, proof.update, proof.loss) < 1e-4


def _doubled(gradients: list[Tensor]) -> list[Tensor]:
    return [2 * one for one in gradients]


def _without_bias(gradients: list[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(one) if one.ndim == 2 else one for one in gradients]


@pytest.mark.parametrize("planted", [_doubled, _without_bias])
def test_wrong_gradients_are_noticed(planted: Callable[[list[Tensor]], list[Tensor]], monkeypatch: pytest.MonkeyPatch) -> None:
    right = TrialStack.gradients

    def wrong(self: TrialStack, batch: Any) -> tuple[Tensor, list[Tensor]]:
        losses, gradients = right(self, batch)
        return losses, planted(gradients)

    monkeypatch.setattr(TrialStack, "gradients", wrong)
    _refused("gradients")


def test_wrong_labels_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = TrialStack.gradients
    monkeypatch.setattr(TrialStack, "gradients", lambda self, batch: right(self, {**batch, "y": (batch["y"] + 1) % 10}))
    _refused("gradients")


def test_a_wrong_update_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = StackedUpdate.__call__

    def wrong(self: StackedUpdate, losses: Tensor, gradients: Sequence[Tensor], rates: Tensor) -> None:
        right(self, losses, gradients, rates.flip(0))

    monkeypatch.setattr(StackedUpdate, "__call__", wrong)
    _refused("updates")


def test_wrong_scores_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = TrialStack.metrics

    def wrong(self: TrialStack, which: str = "choose") -> dict[int, dict[str, float]]:
        return {number: {"accuracy": found["accuracy"] / 2} for number, found in right(self, which).items()}

    monkeypatch.setattr(TrialStack, "metrics", wrong)
    _refused("scores")


def _refused(what: str) -> None:
    ones = candidates(recipe(), RATES)
    with group_of(ones) as group:
        proof = prove(group, ones)
        layout = choose_layout(group, ones, 0.5)
    assert not proof.passed and what in proof.why
    assert layout.kind == SERIAL and layout.why == proof.why


@pytest.mark.parametrize("name", ["ByValue", "Noisy", "DropsInForward"])
def test_models_that_cannot_be_stacked_are_trained_one_after_another(name: str) -> None:
    kind = getattr(own_models, name)
    layout = _chosen(model=lambda: kind())
    assert layout.kind == SERIAL and "can't be stacked" in layout.why and len(layout.why) > 40


@pytest.mark.parametrize(
    ("changed", "word"),
    [({"ema": 0.9}, "ema"), ({"optimizer": lambda groups, lr: torch.optim.RMSprop(groups, lr=lr)}, "optimizer")],
    ids=["ema", "optimizer"],
)
def test_recipes_that_cannot_be_stacked_are_trained_one_after_another(changed: dict[str, Any], word: str) -> None:
    layout = _chosen(**changed)
    assert layout.kind == SERIAL and word in layout.why


def test_attention_with_dropout_is_not_shared_between_rates() -> None:
    """Its rate is a number in each attention, not a layer that could be set."""
    gpt = {"gpt": {"layers": 1, "heads": 1, "width": 8, "dropout": 0.1}}
    one, other = candidates(recipe(model=gpt), [["model.dropout=0.2"], ["model.dropout=0.4"]])
    assert one.group != other.group
    one, other = candidates(recipe(model={"mlp": {"dropout": 0.1}}), [["model.dropout=0.2"], ["model.dropout=0.4"]])
    assert one.group == other.group


def test_the_layout_says_what_it_measured() -> None:
    layout = _chosen()
    assert layout.kind in (STACKED, SERIAL)
    assert {"serial, 1 thread", "3 stacked, 1 thread"} <= set(layout.rates)
    assert all(rate > 0 for rate in layout.rates.values())
    assert layout.proof.startswith("equal to trials alone")


CONVNET = {"model": {"convnet": {"channels": [4], "hidden": 8}}}


def test_the_layout_names_the_form_of_its_convolutions() -> None:
    layout = _chosen(10.0, **CONVNET)
    assert {"3 stacked, 1 thread", "3 stacked, 1 thread, convolutions unfolded"} <= set(layout.rates)
    if layout.kind == STACKED:
        assert layout.convolutions == (UNFOLDED if "; convolutions as products" in layout.why else GROUPED)
        assert "x the rate of" in layout.why


def test_a_form_of_convolutions_that_learns_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = unfolded._Unfolded.__call__
    monkeypatch.setattr(unfolded._Unfolded, "__call__", lambda self, x, weight, bias: right(self, x, weight, bias) * 1.01)
    layout = _chosen(10.0, **CONVNET)
    assert layout.convolutions == GROUPED and "3 stacked, 1 thread, convolutions unfolded" not in layout.rates


def test_a_layout_of_an_earlier_version_is_read() -> None:
    earlier = Layout(STACKED, 16).to_dict()
    del earlier["convolutions"]
    assert Layout(**earlier) == Layout(STACKED, 16)


def test_the_layout_says_why_its_steps_are_slower_than_they_could_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrialStack, "degraded", "no CUDA graph: it was refused")
    assert _chosen().why.endswith("; no CUDA graph: it was refused")


def test_one_trial_is_no_stack() -> None:
    ones = candidates(recipe(), [[]])
    with group_of(ones) as group:
        assert choose_layout(group, ones).kind == SERIAL


def _chosen(limit_s: float = 0.5, **changed: Any) -> Any:
    ones = candidates(recipe(**changed), RATES)
    with group_of(ones) as group:
        return choose_layout(group, ones, limit_s)


def test_halves_choose_and_judge() -> None:
    """Disjoint, complete, the same in every process and at each pass."""

    def rows(group: Group, which: str) -> list[bytes]:
        return [bytes(row.numpy()) for batch in group.scoring(which) for row in batch["x"]]

    ones = candidates(recipe(), [[]])
    with group_of(ones) as group, group_of(ones) as other:
        choose, judge = rows(group, "choose"), rows(group, "judge")
        assert not set(choose) & set(judge)
        assert len(choose) + len(judge) == len(group.job.data.validation or ())
        assert 0.4 < len(judge) / len(choose + judge) < 0.6
        assert choose == rows(group, "choose") == rows(other, "choose") and judge == rows(other, "judge")
        assert "half of the 539" in group.judged_on


def test_a_test_part_judges() -> None:
    train, validation, test = table(128), table(64, 1), table(32, 2)
    data = recipe(data={"train": train, "validation": validation}).load_data()
    other = recipe(data={"train": train, "validation": test}).load_data()
    ones = candidates(recipe(data=replace(data, test=other.validation)), [[]])
    with group_of(ones) as group:
        assert sum(len(batch["x"]) for batch in group.scoring("choose")) == 64
        assert sum(len(batch["x"]) for batch in group.scoring("judge")) == 32
        assert "test" in group.judged_on


@pytest.mark.parametrize(("rate", "is_measured"), [(1e4, True), (1.0, False)])
def test_a_stack_is_measured_on_a_busy_machine_if_it_is_short(
    rate: float, is_measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials one after another took all of the time: without a stack of them nothing would be known."""

    def alone(*_: Any, **__: Any) -> float:
        time.sleep(0.3)
        return rate

    monkeypatch.setattr(layout, "alone_rate", alone)
    found = _chosen(0.2)
    assert ("3 stacked, 1 thread" in found.rates) is is_measured
    assert is_measured or "there was no time" in found.why
