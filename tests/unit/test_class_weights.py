"""Class weights, pos_weight and focal loss against torch and scikit-learn, and in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor, nn

import flatout as fo
from flatout.base.errors import FlatoutError, ModelError, RecipeError, UsageError
from flatout.objectives.binary import Binary
from flatout.objectives.build import build, describe
from flatout.objectives.classify import Classify
from flatout.objectives.inputs import Batch
from flatout.objectives.multilabel import Multilabel
from flatout.objectives.weighting import weights_of
from flatout.recipe.build import build_job
from flatout.testing.objectives import ObjectiveConformance

ROWS = 8


class OfClasses(ObjectiveConformance):
    known: ClassVar[dict[str, Any]] = {"classes": 3}
    wide: ClassVar[int] = 3

    def model(self) -> nn.Module:
        return nn.Linear(4, self.wide)

    def batch(self) -> Batch:
        return {"x": torch.linspace(-1, 1, ROWS * 4).view(ROWS, 4), "y": torch.arange(ROWS) % self.wide}


class TestWeightedClassify(OfClasses):
    objective = Classify(class_weights=(1.0, 4.0, 0.5), label_smoothing=0.1)


class TestFocalClassify(OfClasses):
    objective = Classify(focal=2.0, class_weights=(1.0, 4.0, 0.5))


class TestWeightedMixedRows(OfClasses):
    objective = Classify(class_weights=(1.0, 4.0, 0.5), focal=1.5)

    def batch(self) -> Batch:
        return {**super().batch(), "y_other": (torch.arange(ROWS) + 1) % 3, "mix": torch.linspace(0, 1, ROWS)}


class TestWeightedBinary(OfClasses):
    objective = Binary(pos_weight=3.0, class_weights=(1.0, 2.0), focal=2.0)
    wide = 1

    def batch(self) -> Batch:
        return {**super().batch(), "y": torch.arange(ROWS) % 2}


class TestWeightedMultilabel(OfClasses):
    objective = Multilabel(pos_weight=(1.0, 2.0, 3.0), focal=2.0)
    known: ClassVar[dict[str, Any]] = {"target_shape": (3,)}

    def batch(self) -> Batch:
        return {**super().batch(), "y": (torch.arange(ROWS * 3).view(ROWS, 3) % 4 == 0).long()}


def mean(objective: Any, output: Tensor, y: Tensor) -> float:
    total, weight = build(objective).loss(output, {"y": y})
    return float(total) / float(weight)


def test_weighted_means_are_those_of_torch() -> None:
    torch.manual_seed(0)
    logits, y = torch.randn(50, 3), torch.randint(3, (50,))
    weights = torch.tensor([1.0, 4.0, 0.5])
    for smoothing in (0.0, 0.2):
        written = {"classify": {"class_weights": [1, 4, 0.5], "label_smoothing": smoothing}}
        assert mean(written, logits, y) == pytest.approx(float(F.cross_entropy(logits, y, weights, label_smoothing=smoothing)))
    p = logits.softmax(1).gather(1, y[:, None])[:, 0]
    assert mean({"classify": {"focal": 2}}, logits, y) == pytest.approx(float((-(p.log()) * (1 - p) ** 2).mean()), rel=1e-5)
    flat, yes = torch.randn(50), torch.randint(2, (50,)).float()
    expected = F.binary_cross_entropy_with_logits(flat, yes, pos_weight=torch.tensor(3.0))
    assert mean({"binary": {"pos_weight": 3}}, flat, yes) == pytest.approx(float(expected))
    pair = F.cross_entropy(torch.stack([torch.zeros(50), flat], 1), yes.long(), torch.tensor([1.0, 5.0]))
    assert mean({"binary": {"class_weights": [1, 5]}}, flat, yes) == pytest.approx(float(pair))
    q = torch.where(yes > 0, flat.sigmoid(), 1 - flat.sigmoid())
    assert mean({"binary": {"focal": 0.5}}, flat, yes) == pytest.approx(float((-(q.log()) * (1 - q) ** 0.5).mean()), rel=1e-5)
    many, labels = torch.randn(50, 2), torch.randint(2, (50, 2)).float()
    expected = F.binary_cross_entropy_with_logits(many, labels, pos_weight=torch.tensor([2.0, 7.0]))
    assert mean({"multilabel": {"pos_weight": [2, 7]}}, many, labels) == pytest.approx(float(expected))


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_the_focal_loss_of_a_sure_model_has_a_finite_gradient(gamma: float) -> None:
    logits = torch.tensor([[200.0, -200.0], [-200.0, 200.0]], requires_grad=True)
    build({"classify": {"focal": gamma}}).loss(logits, {"y": torch.tensor([0, 0])})[0].backward()
    one = torch.tensor([200.0, -200.0], requires_grad=True)
    build({"binary": {"focal": gamma}}).loss(one, {"y": torch.tensor([1, 1])})[0].backward()
    assert logits.grad is not None and logits.grad.isfinite().all() and one.grad is not None and one.grad.isfinite().all()


@pytest.mark.parametrize("fresh", [True, False])
def test_a_weighted_loss_compiles_in_one_piece(fresh: bool) -> None:
    objective, model = build({"classify": {"class_weights": [1, 4, 0.5], "focal": 2}}), nn.Linear(4, 3)
    batch = {"x": torch.randn(6, 4), "y": torch.arange(6) % 3}
    if not fresh:
        objective(model, batch)
    torch.compiler.reset()
    compiled = torch.compile(objective, backend="eager", fullgraph=True)
    for found, expected in zip(compiled(model, batch), objective(model, batch), strict=True):
        torch.testing.assert_close(found, expected)


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    y = torch.tensor([0] * 5 + [1] * 30 + [3] * 65)
    expected = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=y.numpy())
    found = weights_of("balanced", 4, None, y)
    assert [found[0], found[1], found[3]] == pytest.approx(list(expected)) and found[2] == 1


def test_options_are_described_as_written() -> None:
    for written in ({"classify": {"focal": 2.0}}, {"binary": {"pos_weight": 3.0}}, "classify", "multilabel"):
        assert describe(build(written)) == written


# ---- in a run ----


def arrays(classes: int = 3, labels: Any = None) -> Any:
    y = torch.tensor([0] * 80 + [1] * 30 + [2] * 10)[torch.randperm(120, generator=torch.Generator().manual_seed(1))]
    x = torch.randn(120, 4, generator=torch.Generator().manual_seed(2)) + y[:, None]
    return fo.data.arrays(x, y if classes == 3 else (y > 0).long(), holdout=0.25)


def recipe(**more: Any) -> fo.Recipe:
    return fo.Recipe(**{"data": arrays(), "model": "mlp", "batch": 30, "lr": 1e-2, "budget": "2 epochs", **more})


def test_a_recipe_balances_its_classes(tmp_path: Path) -> None:
    asked = recipe(class_weights="balanced", metrics=["recall_per_class", "f1"])
    job = build_job(asked)
    counts = torch.bincount(job.data.train.column("y")).double()
    assert isinstance(job.objective, Classify) and job.objective.class_weights == pytest.approx((90 / (3 * counts)).tolist())
    found = fo.run(asked, runs=tmp_path, planning="off", cache=None).result["metrics"]
    assert {"recall_per_class.0", "recall_per_class.2", "f1", "baseline.f1"} <= set(found)
    binary = build_job(recipe(data=arrays(2), objective="binary", class_weights=[1, 3])).objective
    assert isinstance(binary, Binary) and binary.class_weights == (1.0, 3.0)
    named = build_job(recipe(class_weights={2: 5})).objective
    assert isinstance(named, Classify) and named.class_weights == (1.0, 1.0, 5.0)
    assert "class_weights" not in recipe().written()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"class_weights": "balance"}, "class_weights: expected balanced.*did you mean 'balanced'"),
        ({"class_weights": 3}, "expected balanced, a list of weights, or .*got 3"),
        ({"class_weights": [1, 0, 2]}, "weights must be numbers greater than 0"),
        ({"class_weights": [1, "x", 2]}, "weights must be numbers greater than 0"),
        ({"class_weights": [1, 2]}, "expected 3 weights, one for each class, got 2"),
        ({"class_weights": {"9": 2}}, "unknown class '9'; known: 0, 1, 2"),
        ({"class_weights": "balanced", "objective": "regress"}, "needs objective classify or binary, this is regress"),
        ({"class_weights": [1, 2, 3], "objective": {"classify": {"class_weights": [1, 2, 3]}}}, "given twice"),
        ({"objective": {"classify": {"focal": 0}}}, "focal must be greater than 0"),
        ({"objective": {"binary": {"pos_weight": -1}}}, "pos_weight must be greater than 0"),
        ({"objective": {"classify": {"pos_weight": 2}}}, "classify has no option 'pos_weight'"),
    ],
)
def test_wrong_weights_say_what_was_expected(more: dict[str, Any], message: str) -> None:
    with pytest.raises(FlatoutError, match=message):
        build_job(recipe(**more))


def test_weights_that_do_not_fit_the_model_are_refused() -> None:
    with pytest.raises(ModelError, match="class_weights has 2 weights, but the model returns 3 columns"):
        Classify(class_weights=(1.0, 2.0)).check(torch.randn(4, 3), {"y": torch.arange(4) % 3})
    with pytest.raises(UsageError, match="two weights"):
        Binary(class_weights=(1.0, 2.0, 3.0))
    with pytest.raises(RecipeError):
        recipe(class_weights=[])
