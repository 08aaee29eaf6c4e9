"""A stack learns exactly what its trials learn alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import own_models
import pytest
from stacking import assert_equal, both, candidates, group_of, recipe, table

import flatout as fo
from flatout.tuning.training import joined_outputs
from flatout.tuning.training.alone import Alone
from flatout.tuning.training.stack import TrialStack
from flatout.tuning.training.unfolded import UNFOLDED

RATES = [["lr=3e-3"], ["lr=1e-2"], ["lr=3e-2"]]
DIFFERENT = [
    ["lr=3e-3", "weight_decay=0.3", "clip=0.5", "schedule=linear"],
    ["lr=2e-2", "weight_decay=0", "schedule={warmup_stable_decay: {warmup: 3}}"],
    ["lr=1e-2", "clip=0.1", "schedule={constant: {warmup: 0}}"],
]


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_the_numbers_of_each_trial_are_its_own(optimizer: str) -> None:
    option = [["optimizer.momentum=0"], ["optimizer.momentum=0.5"], []]
    if optimizer != "sgd":
        option = [["optimizer.betas=[0.8, 0.9]"], ["optimizer.eps=1e-3"], []]
    each = [own + more for own, more in zip(DIFFERENT, option, strict=True)]
    with both(recipe(optimizer=optimizer, weight_decay=0.1), each) as (stack, alone):
        assert_equal(stack, alone)


@pytest.mark.parametrize(
    "changed",
    [
        {"optimizer": {"sgd": {"momentum": 0.8, "nesterov": True}}, "lr": 0.1},
        {"budget": "500 samples"},  # the last of its steps has fewer rows
        {"rates": {"body": 0.1}},
        {"freeze": ["body"]},
        {"class_weights": "balanced"},
        {"metrics": ["f1", "auroc", {"top_k": 3}, "calibration_error", "log_loss"]},
        {"data": {"digits": None, "holdout": 0.3, "draw": "balanced"}},
        {"model": {"mlp": {"hidden": [8], "norm": True, "activation": "gelu"}}},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_a_recipe_may_ask_for(changed: dict[str, Any]) -> None:
    with both(recipe(**changed), RATES) as (stack, alone):
        assert_equal(stack, alone)


def test_several_rates_of_dropout() -> None:
    base = recipe(model={"mlp": {"hidden": [32, 16], "dropout": 0.1}})
    with both(base, [["model.dropout=0.1"], ["model.dropout=0.6"], ["model.dropout=0.3", "seed=4"]]) as (stack, alone):
        assert_equal(stack, alone)
        assert len({round(loss, 6) for one in stack.alive if (loss := stack.losses(one).last)}) == 3


def test_each_seed_has_its_weights_and_order() -> None:
    with both(recipe(), [["seed=1"], ["seed=2"], ["seed=1", "lr=3e-3"], ["seed=7"]]) as (stack, alone):
        assert_equal(stack, alone)


def test_bf16() -> None:
    """Adam moves a weight whose gradient is nothing but rounding as far as any other: all weights together are compared."""
    with both(recipe(settings={"device": "cpu", "precision": "bf16"}), RATES) as (stack, alone):
        for number in alone.alive:
            ours = stack.weights_of(number)
            theirs = {name: one.detach() for name, one in alone.model(number).named_parameters()}
            for name, value in theirs.items():
                assert (ours[name] - value).norm() < 0.05 * value.norm() + 0.01, name
            assert stack.losses(number).last == pytest.approx(alone.losses(number).last, rel=0.03)
            assert stack.metrics()[number]["accuracy"] == pytest.approx(alone.metrics(number)["accuracy"], abs=0.03)


@pytest.mark.parametrize("name", ["Normed", "RandomFeatures"])
def test_buffers_and_frozen_parameters_belong_to_a_trial(name: str) -> None:
    kind = getattr(own_models, name)
    base = recipe(model=lambda: kind(), budget="6 steps")
    with both(base, [["seed=1"], ["seed=2"], ["seed=3"]]) as (stack, alone):
        assert_equal(stack, alone)


def test_images() -> None:
    with both(recipe(model={"convnet": {"channels": [4], "hidden": 8, "dropout": 0.2}}, budget="4 steps"), RATES) as (
        stack,
        alone,
    ):
        assert_equal(stack, alone)


@pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel lengths")
@pytest.mark.parametrize("name", ["Normed", "Convolved"])
def test_convolutions_as_products_of_matrices(name: str) -> None:
    kind = getattr(own_models, name)
    ones = candidates(recipe(model=lambda: kind(), budget="4 steps"), RATES)
    with group_of(ones) as group:
        stack, alone = TrialStack(group, ones, UNFOLDED), Alone(group, ones)
        for trainer in (stack, alone):
            trainer.train(4)
        assert_equal(stack, alone)


@pytest.mark.parametrize("objective", ["binary", "regress"])
def test_other_objectives(objective: str) -> None:
    data = table()
    if objective == "regress":
        data["y"] = data["x"].sum(1)
    base = fo.Recipe(
        data={"arrays": data, "holdout": 0.3}, model={"mlp": {"hidden": [8]}}, objective=objective, batch=16, lr=1e-2,
        budget="2 epochs", settings={"device": "cpu"},
    )  # fmt: skip
    with both(base, RATES) as (stack, alone):
        assert_equal(stack, alone)


@pytest.mark.parametrize("most", [0, 3000])
def test_batches_that_are_scored_together_score_the_same(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    base = recipe(batch=32, metrics=["f1", "auroc", "log_loss"])
    with both(base, RATES, to=4) as (stack, _):
        together = stack.metrics()
        monkeypatch.setattr(joined_outputs, "_MOST_CELLS", most)
        for number, found in stack.metrics().items():
            assert found == pytest.approx(together[number], rel=1e-5)


def test_a_compacted_stack_learns_the_same() -> None:
    with both(recipe(), RATES, to=5) as (stack, alone):
        for trainer in (stack, alone):
            trainer.keep([2, 0])
            trainer.train(12)
        assert_equal(stack, alone)
        assert list(stack.scores()) == [2, 0]


def test_states_go_on_in_another_stack() -> None:
    ones = candidates(recipe(model={"mlp": {"hidden": [16], "dropout": 0.2}}), RATES)
    with group_of(ones) as group:
        whole, first = TrialStack(group, ones), TrialStack(group, ones)
        whole.train(12)
        first.train(5)
        later = TrialStack(group, [ones[2], ones[1]])
        later.resume(5, {number: first.state_of(number) for number in (2, 1)})
        later.train(12)
        for number in (2, 1):
            assert later.losses(number).last == pytest.approx(whole.losses(number).last, rel=1e-5)


def test_a_trial_alone_goes_on_bit_for_bit() -> None:
    ones = candidates(recipe(model={"mlp": {"hidden": [16], "dropout": 0.2}}), RATES)
    with group_of(ones) as group:
        whole, first, later = (Alone(group, ones) for _ in range(3))
        whole.train(12)
        first.train(5)
        later.resume(5, {one.number: first.state_of(one.number) for one in ones})
        later.train(12)
        for one in ones:
            assert all(
                value.equal(whole.model(one.number).state_dict()[name])
                for name, value in later.model(one.number).state_dict().items()
            )


def test_only_the_trial_that_diverges_fails() -> None:
    each = [["lr=1e-2"], ["lr=1e30"], ["lr=3e-3"]]
    base = recipe(optimizer="sgd", budget="24 steps")
    with both(base, each) as (stack, alone), both(base, [["lr=1e-2"]]) as (quiet, _):
        assert_equal(stack, alone)
        assert list(stack.failed) == [1] and "diverged" in stack.failed[1]
        assert stack.scores()[1] is None
        assert stack.scores()[0] == pytest.approx(quiet.scores()[0], abs=1e-6)


def test_only_trials_with_a_clip_watch_the_norm() -> None:
    """A gradient may overflow where the loss does not: with a clip such a step is skipped."""
    each = [["clip=1.0"], [], ["clip=0.01"]]
    with both(recipe(optimizer="sgd", lr=0.05), each) as (stack, alone):
        assert_equal(stack, alone)


def test_a_loss_of_ones_own() -> None:
    with both(recipe(objective="own_models:squared"), RATES) as (stack, alone):
        assert_equal(stack, alone)


def test_tokens(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 40)
    base = recipe(
        data={"text": str(tmp_path / "text.txt"), "window": 8, "holdout": 0.2},
        model={"gpt": {"layers": 1, "heads": 2, "width": 8}}, objective="next_token", batch=8, budget="4 steps",
    )  # fmt: skip
    with both(base, RATES) as (stack, alone):
        assert_equal(stack, alone)


def test_categories_of_a_table() -> None:
    import pandas as pd

    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "city": [f"city{one}" for one in draw.integers(0, 40, 300)],
            "size": draw.normal(size=300),
            "y": draw.integers(0, 2, 300),
        }
    )
    base = recipe(data={"table": frame, "label": "y", "holdout": 0.3}, batch=32)
    with both(base, RATES) as (stack, alone):
        assert_equal(stack, alone)
