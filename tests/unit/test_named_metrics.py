"""Metrics by name against scikit-learn: streamed in uneven batches, and put together from the shares of several processes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import RECIPE, Command, table
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve
from sklearn.dummy import DummyClassifier, DummyRegressor
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import flatout as fo
from flatout.base.errors import FlatoutError, ModelError, StoreError, UsageError
from flatout.objectives import joining
from flatout.objectives.build import build
from flatout.objectives.inputs import Batch
from flatout.objectives.named import waiting
from flatout.objectives.named.measured import measured
from flatout.objectives.named.parse import named_metrics_of
from flatout.objectives.objective import Meter, Objective, is_shared
from flatout.recipe.build import build_job

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def judge(objective: Any, metrics: Any, names: tuple[str, ...] | None = None) -> Objective:
    made = build(objective)
    return measured(made, named_metrics_of(metrics, made), names)


def fed(objective: Objective, output: Tensor, target: Tensor) -> Meter:
    meter = objective.meter(CPU)
    if len(target):
        meter.update(output, *objective.loss(output, {"y": target}), {"y": target})
    return meter


def scores(
    objective: Any, metrics: Any, output: Tensor, target: Tensor, names: tuple[str, ...] | None = None
) -> dict[str, float]:
    """In batches of different sizes; the shares of three processes, one of them without rows, must give the same."""
    made = judge(objective, metrics, names)
    meter = made.meter(CPU)
    sizes = [7, 1, 64, len(target) - 72]
    for part, labels in zip(output.split(sizes), target.split(sizes), strict=True):
        meter.update(part, *made.loss(part, {"y": labels}), {"y": labels})
    found = meter.result()
    cut = [0, len(target) // 3, len(target) // 3, len(target)]
    shares = [fed(made, output[a:b], target[a:b]) for a, b in pairwise(cut)]
    collected = [share.collected() for share in shares if is_shared(share)]
    assert [bool(share) for share in collected] == [True, False, True]
    for meter in shares:
        assert is_shared(meter)
        meter.put_together([share for share in collected if share])
        together = meter.result()
        assert together.keys() == found.keys()
        for name, value in found.items():
            exact = 1e-5 if "loss" in name or "perplexity" in name else 1e-9  # losses of rows are float32
            assert together[name] == pytest.approx(value, rel=exact, abs=1e-12, nan_ok=True), name
    return found


# ---- classes ----


def test_metrics_of_classes_are_those_of_scikit_learn() -> None:
    logits, y = torch.randn(300, 6) * 2, torch.randint(5, (300,))  # class 5 never occurs, and is predicted
    logits[torch.arange(300), y] += 1.0
    logits[:, 4] -= 20  # class 4 occurs, and is never predicted
    guess, p = logits.argmax(1), logits.double().softmax(1)
    averages = [f"{which}_{how}" for which in ("f1", "precision", "recall") for how in ("macro", "micro", "weighted")]
    asked = ["accuracy", {"top_k": 2}, {"top_k": {"k": 3}}, "f1", "precision", "recall", *averages, "mcc", "log_loss"]
    found = scores("classify", asked, logits, y)
    by_name: dict[str, Callable[..., Any]] = {"f1": sk.f1_score, "precision": sk.precision_score, "recall": sk.recall_score}
    for name in averages:
        which, how = name.split("_")
        assert found[name] == pytest.approx(by_name[which](y, guess, average=how, zero_division=0), abs=1e-12), name
    assert [found[which] for which in by_name] == [found[f"{which}_macro"] for which in by_name]
    assert found["accuracy"] == sk.accuracy_score(y, guess)
    for k in (2, 3):
        assert found[f"top_{k}"] == pytest.approx(sk.top_k_accuracy_score(y, p, k=k, labels=range(6)))
    assert found["mcc"] == pytest.approx(sk.matthews_corrcoef(y, guess), abs=1e-12)
    assert found["log_loss"] == pytest.approx(sk.log_loss(y, p, labels=range(6)), rel=1e-6)


def test_areas_of_classes_are_those_of_scikit_learn() -> None:
    logits, y = torch.randn(300, 5) * 8, torch.randint(5, (300,))
    found = scores("classify", ["auroc", "average_precision"], logits, y)
    p, each = logits.double().softmax(1), np.eye(5)[y.numpy()]
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(y, p, multi_class="ovr", average="macro"), abs=1e-12)
    assert found["average_precision"] == pytest.approx(sk.average_precision_score(each, p, average="macro"), abs=1e-12)


def test_a_confusion_matrix_and_values_per_class_carry_the_names_of_classes() -> None:
    logits, y = torch.randn(200, 3), torch.randint(3, (200,))
    found = scores(
        "classify", ["confusion_matrix", "recall_per_class", {"f1": {"average": "per_class"}}], logits, y, ("a", "b", "c")
    )
    cells, each = sk.confusion_matrix(y, logits.argmax(1)), sk.recall_score(y, logits.argmax(1), average=None)
    for i, true in enumerate("abc"):
        assert found[f"recall_per_class.{true}"] == pytest.approx(each[i])
        assert [found[f"confusion_matrix.{true}.{guess}"] for guess in "abc"] == list(cells[i])
    assert found["f1_per_class.b"] == pytest.approx(sk.f1_score(y, logits.argmax(1), average=None)[1])


def test_classes_of_pixels_are_counted_pixel_by_pixel() -> None:
    logits, y = torch.randn(80, 4, 3, 2), torch.randint(4, (80, 3, 2))
    found = scores("classify", ["f1", "mcc"], logits, y)
    assert found["f1"] == pytest.approx(sk.f1_score(y.flatten(), logits.argmax(1).flatten(), average="macro"))
    assert found["mcc"] == pytest.approx(sk.matthews_corrcoef(y.flatten(), logits.argmax(1).flatten()))


@pytest.mark.parametrize("bins", [15, 4])
def test_calibration_error_is_that_of_the_calibration_curve(bins: int) -> None:
    logits, y = torch.randn(400) * 3, torch.randint(2, (400,))
    p = logits.double().sigmoid().numpy()
    found = scores("binary", {"calibration_error": bins}, logits, y)["calibration_error"]
    right, said = calibration_curve(y, p, n_bins=bins)
    rows = np.histogram(p, bins, (0, 1))[0]
    assert found == pytest.approx(float((rows[rows > 0] * abs(right - said)).sum() / 400), rel=1e-5)
    many, labels = torch.randn(400, 5) * 2, torch.randint(5, (400,))
    sure, hit = many.double().softmax(1).max(1).values.numpy(), (many.argmax(1) == labels).numpy()
    right, said = calibration_curve(hit, sure, n_bins=bins)
    rows = np.histogram(sure, bins, (0, 1))[0]
    found = scores("classify", {"calibration_error": {"bins": bins}}, many, labels)["calibration_error"]
    assert found == pytest.approx(float((rows[rows > 0] * abs(right - said)).sum() / 400), rel=1e-5)


def test_a_model_whose_logits_are_all_equal_or_nan_gets_no_credit() -> None:
    y = torch.arange(10).repeat(30)
    assert scores("classify", {"top_k": 5}, torch.zeros(300, 10), y)["top_5"] == 0.5
    assert scores("classify", {"top_k": 5}, torch.full((300, 10), math.nan), y)["top_5"] == 0


# ---- yes or no, labels ----


@pytest.mark.parametrize("shape", [(300,), (300, 1)])
def test_metrics_of_yes_or_no_are_those_of_scikit_learn(shape: tuple[int, ...]) -> None:
    logits, y = (torch.randn(shape) * 3).round(decimals=1), torch.randint(2, shape)  # with ties
    asked = [
        "accuracy",
        "f1",
        "precision",
        "recall",
        "f1_macro",
        "recall_micro",
        "auroc",
        "average_precision",
        "log_loss",
        "mcc",
    ]
    found = scores("binary", [*asked, "confusion_matrix"], logits, y)
    flat, guess, target = logits.flatten().double(), logits.flatten() >= 0, y.flatten()
    assert found["auroc"] == found["auc"] == pytest.approx(sk.roc_auc_score(target, flat), abs=1e-12)
    assert found["average_precision"] == pytest.approx(sk.average_precision_score(target, flat), abs=1e-12)
    assert [found[name] for name in ("f1", "precision", "recall", "accuracy")] == pytest.approx(
        [score(target, guess) for score in (sk.f1_score, sk.precision_score, sk.recall_score, sk.accuracy_score)]
    )
    assert found["f1_macro"] == pytest.approx(sk.f1_score(target, guess, average="macro"))
    assert found["mcc"] == pytest.approx(sk.matthews_corrcoef(target, guess))
    assert found["log_loss"] == pytest.approx(sk.log_loss(target, flat.sigmoid()), rel=1e-6)
    assert found["confusion_matrix.1.0"] == sk.confusion_matrix(target, guess)[1, 0]


def test_metrics_of_labels_are_those_of_scikit_learn() -> None:
    logits, y = torch.randn(300, 4), torch.randint(2, (300, 4))
    asked = ["f1", "f1_macro", "precision", "recall_weighted", "auroc", "average_precision", "log_loss", "accuracy"]
    found = scores("multilabel", asked, logits, y)
    guess = logits >= 0
    assert found["f1"] == pytest.approx(sk.f1_score(y, guess, average="micro"))
    assert found["f1_macro"] == pytest.approx(sk.f1_score(y, guess, average="macro"))
    assert found["precision"] == pytest.approx(sk.precision_score(y, guess, average="micro"))
    assert found["recall_weighted"] == pytest.approx(sk.recall_score(y, guess, average="weighted"))
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(y, logits, average="macro"))
    assert found["average_precision"] == pytest.approx(sk.average_precision_score(y, logits, average="macro"))
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(y.flatten(), guess.flatten()))


# ---- numbers, tokens ----


@pytest.mark.parametrize("columns", [None, 3, 20])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_metrics_of_numbers_are_those_of_scikit_learn(columns: int | None, offset: float) -> None:
    y = torch.randn(300 if columns is None else (300, columns), dtype=torch.float64) + offset
    output = y + torch.randn_like(y) * 0.5
    found = scores({"regress": {"centre": 2.0, "spread": 3.0}}, ["mae", "mse", "rmse", "r2", "mape"], (output - 2.0) / 3.0, y)
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(y, output))
    assert found["mse"] == pytest.approx(sk.mean_squared_error(y, output))
    assert found["rmse"] == pytest.approx(math.sqrt(sk.mean_squared_error(y, output)))
    assert found["mape"] == pytest.approx(sk.mean_absolute_percentage_error(y, output))
    assert found["r2"] == pytest.approx(sk.r2_score(y, output), abs=1e-9)


def test_metrics_of_tokens_leave_out_what_is_ignored() -> None:
    logits, y = torch.randn(100, 6, 11), torch.randint(11, (100, 6))
    y[torch.rand(100, 6) < 0.4] = -100
    found = scores("next_token", ["perplexity", "token_accuracy", {"top_k": 3}, "log_loss", "f1", "mcc"], logits, y)
    counted = y != -100
    target, flat = y[counted], logits[counted].double()
    expected = sk.log_loss(target, flat.softmax(1), labels=range(11))
    assert found["log_loss"] == pytest.approx(expected, rel=1e-6) and found["perplexity"] == pytest.approx(math.exp(expected))
    assert found["token_accuracy"] == pytest.approx(sk.accuracy_score(target, flat.argmax(1)))
    assert found["top_3"] == pytest.approx(sk.top_k_accuracy_score(target, flat, k=3, labels=range(11)))
    assert found["f1"] == pytest.approx(sk.f1_score(target, flat.argmax(1), average="macro"))
    assert found["mcc"] == pytest.approx(sk.matthews_corrcoef(target, flat.argmax(1)))


def test_where_every_target_is_ignored_nothing_is_known() -> None:
    found = scores(
        "next_token",
        ["token_accuracy", {"top_k": 2}, "mcc", "f1", "log_loss"],
        torch.randn(90, 2, 5),
        torch.full((90, 2), -100),
    )
    assert all(math.isnan(found[name]) for name in ("accuracy", "token_accuracy", "top_2", "mcc", "f1", "log_loss")), found


def test_shares_of_counts_are_as_exact_as_float64() -> None:
    y = (torch.arange(300) % 3 == 0).long()
    labels = scores("multilabel", ["accuracy"], y[:, None].float() - 0.5, 1 - y[:, None] * (torch.arange(300) > 2)[:, None])
    assert labels["accuracy"] in (1 / 300, 2 / 300, 3 / 300) and labels["baseline.accuracy"] == 201 / 300
    assert scores("classify", ["average_precision"], torch.randn(300, 3), y)["baseline.average_precision"] == 0.5


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_outputs_of_half_precision_are_measured_as_the_numbers_they_are(kind: torch.dtype) -> None:
    logits, y = (torch.randn(300, 4) * 3).to(kind), torch.randint(3, (300,))  # class 3 never occurs
    found, same = (
        scores("classify", ["auroc", "average_precision", "log_loss", "f1"], one, y) for one in (logits, logits.float())
    )
    assert found == pytest.approx(same, rel=1e-6)
    odds = logits.double().softmax(1).logit()
    each = [sk.roc_auc_score(y == place, odds[:, place].numpy().round(5)) for place in range(3)]
    assert found["auroc"] == pytest.approx(sum(each) / 3, abs=1e-4)


# ---- baselines ----


def test_baselines_are_those_of_scikit_learns_dummies() -> None:
    logits, y = torch.randn(300, 4), torch.tensor([0] * 50 + [2] * 130 + [3] * 120)[torch.randperm(300)]
    found = scores("classify", ["accuracy", "f1", "precision_weighted", "log_loss", "mcc", "auroc", {"top_k": 2}], logits, y)
    dummy = DummyClassifier(strategy="prior").fit(logits, y)
    guess = dummy.predict(logits)
    assert found["baseline.accuracy"] == pytest.approx(sk.accuracy_score(y, guess))
    assert found["baseline.f1"] == pytest.approx(sk.f1_score(y, guess, average="macro"))
    assert found["baseline.precision_weighted"] == pytest.approx(
        sk.precision_score(y, guess, average="weighted", zero_division=0)
    )
    assert found["baseline.log_loss"] == pytest.approx(sk.log_loss(y, dummy.predict_proba(logits)))
    assert (found["baseline.mcc"], found["baseline.auroc"]) == (0, 0.5)
    assert found["baseline.top_2"] == pytest.approx(250 / 300)
    values, shown = torch.rand(300, dtype=torch.float64) + 1, torch.rand(300, dtype=torch.float64)
    mean = DummyRegressor().fit(shown[:, None], values).predict(shown[:, None])
    found = scores("regress", ["mae", "rmse", "r2", "mape"], shown, values)
    assert found["baseline.mae"] == pytest.approx(sk.mean_absolute_error(values, mean))
    assert found["baseline.rmse"] == pytest.approx(math.sqrt(sk.mean_squared_error(values, mean)))
    assert found["baseline.mape"] == pytest.approx(sk.mean_absolute_percentage_error(values, mean))
    assert found["baseline.r2"] == 0
    yes = torch.tensor([1] * 200 + [0] * 100)[torch.randperm(300)]
    found = scores("binary", ["f1", "log_loss", "average_precision", "accuracy"], torch.randn(300), yes)
    assert found["baseline.f1"] == pytest.approx(sk.f1_score(yes, torch.ones(300)))
    assert found["baseline.log_loss"] == pytest.approx(sk.log_loss(yes, torch.full((300,), 2 / 3, dtype=torch.float64)))
    assert found["baseline.average_precision"] == pytest.approx(2 / 3)
    labels = (torch.rand(300, 3) < torch.tensor([0.2, 0.5, 0.9])).long()
    found = scores("multilabel", ["accuracy", "log_loss"], torch.randn(300, 3), labels)
    assert found["baseline.accuracy"] == pytest.approx(sum(float(max(c.mean(), 1 - c.mean())) for c in labels.double().T) / 3)


# ---- losses and metrics of one's own ----


def hinge(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    return (1 - (2 * batch["y"] - 1) * model(batch["x"]).flatten()).clamp_min(0).sum(), float(len(batch["y"]))


def squares(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    return (model(batch["x"]).flatten() - batch["y"]).square().sum(), float(len(batch["y"]))


@pytest.mark.parametrize(
    ("loss", "wide", "asked", "expected"),
    [
        (hinge, 1, ["f1", "auroc"], lambda y, o: [sk.f1_score(y, o[:, 0] >= 0), sk.roc_auc_score(y, o[:, 0])]),
        (squares, 1, ["mae", "r2"], lambda y, o: [sk.mean_absolute_error(y, o[:, 0]), sk.r2_score(y, o[:, 0])]),
        (
            lambda model, batch: (nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="sum"), len(batch["y"])),
            3,
            ["accuracy", "mcc"],
            lambda y, o: [sk.accuracy_score(y, o.argmax(1)), sk.matthews_corrcoef(y, o.argmax(1))],
        ),
    ],
)
def test_a_loss_of_ones_own_has_metrics_by_name(loss: Any, wide: int, asked: list[str], expected: Any) -> None:
    x, y, model = torch.randn(90, 4), torch.randint(2, (90,)), nn.Linear(4, wide)
    made = judge(loss, asked)
    meter = made.meter(CPU)
    with torch.no_grad():
        for part in range(0, 90, 40):
            batch = {"x": x[part : part + 40], "y": y[part : part + 40]}
            output = made.forward(model, batch)
            meter.update(output, *made.loss(output, batch), batch)
        found = meter.result()
        assert [found[name] for name in asked] == pytest.approx(expected(y, model(x)), rel=1e-5)
    assert "loss" in found


def test_a_loss_of_ones_own_and_a_metric_that_does_not_fit_its_shapes() -> None:
    made = judge(lambda model, batch: (model(batch["x"]).sum(), 1.0), ["f1"])
    batch = {"x": torch.randn(6, 4), "y": torch.zeros(6, 2)}
    output = made.forward(nn.Linear(4, 3), batch)
    with pytest.raises(UsageError, match=r"f1 can't be computed from output \[6, 3\] and y \[6, 2\]"):
        made.meter(CPU).update(output, *made.loss(output, batch), batch)


def gini(output: Tensor, y: Tensor, scale: float = 1.0) -> float:
    assert output.shape == (300,)
    return float(2 * sk.roc_auc_score(y, output) - 1) * scale


def test_a_function_gets_all_rows_at_once() -> None:
    logits, y = torch.randn(300), torch.randint(2, (300,))
    found = scores("binary", [gini, "auroc"], logits, y)
    assert found["gini"] == pytest.approx(2 * found["auroc"] - 1)
    named = scores("binary", [{"test_named_metrics:gini": {"scale": 10}}], logits, y)
    assert named["gini"] == pytest.approx(10 * found["gini"])
    both = scores("binary", [lambda output, y: {"low": output.min(), "high": output.max()}], logits, y)
    assert both["<lambda>.low"] == logits.min()


def test_a_function_that_fails_is_named() -> None:
    with pytest.raises(ModelError, match="metric broken failed: ZeroDivisionError"):

        def broken(output: Tensor, y: Tensor) -> float:
            return 1 / 0

        scores("binary", broken, torch.randn(300), torch.randint(2, (300,)))
    with pytest.raises(ModelError, match=r"must return a number or a dict of numbers, got a tensor \[300\]"):
        scores("binary", lambda output, y: output, torch.randn(300), torch.randint(2, (300,)))


# ---- mistakes ----


@pytest.mark.parametrize(
    ("objective", "written", "message"),
    [
        ("classify", ["acuracy"], "unknown metric 'acuracy'; did you mean 'accuracy'"),
        ("classify", ["acc"], "unknown metric 'acc'; here it is accuracy"),
        ("binary", ["roc_auc_score"], "here it is auroc"),
        ("classify", ["f1", "f1"], "f1 is given twice"),
        ("classify", [{"f1": {"averge": "macro"}}], "f1 has no option 'averge'; did you mean 'average'"),
        ("classify", [{"f1": {"average": "marco"}}], "unknown average 'marco'; did you mean 'macro'"),
        ("classify", [{"top_k": 0}], "top_k: expected 1 or more, got 0"),
        ("classify", [{"top_k": "many"}], "expected a whole number, got 'many'"),
        ("classify", [{"accuracy": 3}], "accuracy takes no value, got 3"),
        ("classify", 7, "expected a list of names, .*got 7"),
        ("classify", [7], "expected a name, .*got 7"),
        ("classify", ["rmse"], "rmse does not fit objective classify, which has accuracy, "),
        ("regress", ["f1"], "f1 does not fit objective regress, which has mae, mape, mse, r2, rmse"),
        ("next_token", ["auroc"], "auroc does not fit objective next_token"),
        ("next_token", [gini], "gini does not fit objective next_token"),
        ("binary", ["no_such_module:gini"], "can't import 'no_such_module'"),
        ("binary", [{"test_named_metrics:gini": {"scal": 1}}], "no option 'scal'; did you mean 'scale'"),
    ],
)  # fmt: skip
def test_mistakes_say_what_was_expected(objective: str, written: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        judge(objective, written)


def test_a_k_that_is_always_right_is_refused() -> None:
    with pytest.raises(UsageError, match="top_k 5 is always 1 for 3 classes"):
        scores("classify", ["top_k"], torch.randn(300, 3), torch.randint(3, (300,)))


@pytest.mark.parametrize(
    ("objective", "shape", "metrics"),
    [
        ("classify", (9, 7), ["accuracy", "top_k", "f1", "auroc", "log_loss", "calibration_error", "mcc", "confusion_matrix"]),
        ("binary", (9, 1), ["accuracy", "f1", "auroc", "log_loss", "calibration_error", "mcc", "confusion_matrix"]),
        ("multilabel", (9,), ["f1", "log_loss", "auroc"]),
        ("regress", (9, 1), ["mae", "r2", "mape"]),
        ("next_token", (9, 3, 7), ["perplexity", "token_accuracy", "top_k", "f1", "calibration_error"]),
    ],
)
def test_updates_of_named_metrics_never_read_the_device(objective: str, shape: tuple[int, ...], metrics: list[str]) -> None:
    target = torch.zeros((9, 4) if objective == "multilabel" else shape[:-1], dtype=torch.long)
    made, output = judge(objective, metrics), torch.randn((9, 4) if objective == "multilabel" else shape)
    with torch.profiler.profile() as profile:
        meter = made.meter(CPU)
        meter.update(output, *made.loss(output, {"y": target}), {"y": target})
    called = {event.key for event in profile.key_averages()}
    assert not any("_local_scalar_dense" in name or "bincount" in name or "nonzero" in name for name in called)


# ---- in a run ----

EVERY_RUN: dict[str, Any] = {"planning": "off", "cache": None}


def digits(**more: Any) -> fo.Recipe:
    return fo.Recipe(data="digits", model="mlp", batch=256, lr=1e-3, budget="2 epochs", **more)


def test_a_run_has_the_metrics_of_its_recipe_and_is_otherwise_the_same(tmp_path: Path) -> None:
    plain = fo.run(digits(), runs=tmp_path, **EVERY_RUN)
    named = fo.run(digits(metrics=["f1", "auroc", {"top_k": 3}]), runs=tmp_path, **EVERY_RUN)
    own, more = plain.result["metrics"], named.result["metrics"]
    assert {name: more[name] for name in own} == own
    assert set(more) - set(own) == {"f1", "auroc", "top_3", "baseline.f1", "baseline.auroc", "baseline.top_3"}
    assert "metrics" not in plain.folder.read("recipe.json") and "best" not in plain.folder.read("recipe.json")
    assert fo.evaluate(named)["f1"] == pytest.approx(more["f1"])


def test_the_metric_that_decides_can_be_chosen(tmp_path: Path) -> None:
    run = fo.run(digits(metrics=["log_loss"], best="log_loss", early_stop=5), runs=tmp_path, **EVERY_RUN)
    assert run.result["best"]["metric"] == "log_loss"
    found = [event["metrics"]["log_loss"] for event in run.events() if event["kind"] == "evaluation"]
    assert run.result["best"]["value"] == min(found)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"best": "logloss", "metrics": ["log_loss"]}, "best names the metric 'logloss'; did you mean 'log_loss'"),
        ({"best": "f1", "metrics": ["f1"], "early_stop": {"metric": "loss"}}, "best is f1 and early_stop waits for loss"),
        ({"best": "confusion_matrix.1.1", "metrics": ["confusion_matrix"]}, "does not say whether more is better"),
        ({"best": {"metric": "f1"}}, "best is the name of a metric"),
        ({"metrics": ["f3"]}, "unknown metric 'f3'"),
    ],
)
def test_a_wrong_choice_of_the_best_is_refused(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(FlatoutError, match=message):
        fo.run(digits(**more), runs=tmp_path, **EVERY_RUN)
    assert not list(tmp_path.iterdir())


def test_the_best_checkpoint_of_a_finished_run_is_evaluated(tmp_path: Path) -> None:
    asked = digits(metrics=["f1"], best="f1", evaluate="2 steps").model_copy(update={"lr": 0.5, "schedule": "constant"})
    run = fo.run(asked, runs=tmp_path, **EVERY_RUN)
    best = run.result["best"]
    assert best["metric"] == "f1" and best["step"] < run.result["steps"], "the last step is the best: nothing is shown"
    assert fo.evaluate(run, best=True)["f1"] == pytest.approx(best["value"])
    assert fo.evaluate(run)["f1"] == pytest.approx(run.result["metrics"]["f1"]) != best["value"]
    found = fo.evaluate(run, metrics=["mcc", "confusion_matrix"], part="train")
    assert "f1" not in found and sum(found[name] for name in found if name.startswith("confusion")) == len(
        build_job(run.recipe).data.train
    )
    with pytest.raises(UsageError, match="rmse does not fit objective classify"):
        fo.evaluate(run, metrics="rmse")


def test_a_run_without_evaluations_has_no_best_checkpoint(tmp_path: Path) -> None:
    data = fo.data.arrays(torch.randn(40, 3), torch.randint(2, (40,)))
    run = fo.run(fo.Recipe(data=data, model="mlp", batch=20, lr=1e-3, budget="2 steps"), runs=tmp_path, **EVERY_RUN)
    with pytest.raises(StoreError, match="has no best checkpoint: no evaluation has marked one"):
        fo.evaluate(run, part="train", best=True)


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flatout: Command) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("train.npz", **table())
    Path("recipe.yaml").write_text(RECIPE)
    asked = ("metrics=[f1, recall, confusion_matrix]", "class_weights=balanced", "best=f1")
    done = flatout("run", "recipe.yaml", *asked, "--planning", "off")
    assert done.code == 0 and "baselines: f1 " in done.out and "the best weights, by f1 " in done.out, done
    assert "confusion_matrix" not in done.out + done.err
    best = flatout("evaluate", "last", "--best")
    assert best.code == 0 and "by f1 " in best.err and "(baseline " in best.out and "confusion_matrix.0.1" in best.out, best
    other = flatout("evaluate", "last", "--metrics", "[mcc, {top_k: 1}]", "--json")
    assert other.code == 0 and {"mcc", "top_1", "baseline.mcc"} <= set(json.loads(other.out)), other
    for given, message in (("[mc]", "did you mean 'mcc'"), ("", "--metrics needs names"), ("rmse", "does not fit")):
        wrong = flatout("evaluate", "last", "--metrics", given)
        assert wrong.code == 2 and message in wrong.err, wrong
    wrong = flatout("run", "recipe.yaml", "metrics=[f1, recal]", "class_weights=balancd")
    assert wrong.code == 2 and "did you mean 'recall'" in wrong.err and "did you mean 'balanced'" in wrong.err, wrong


# ---- what a batch costs ----


class Launches(TorchDispatchMode):
    """Counts operations that compute; on a GPU each is a kernel launch."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view and "empty" not in func.name()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("metrics", "most"), [(["perplexity"], 4), (["token_accuracy"], 4), (["token_accuracy", "perplexity", "f1", "mcc"], 4)]
)
def test_a_batch_of_large_outputs_costs_few_launches(metrics: list[str], most: int) -> None:
    made = judge("next_token", metrics)
    output, target = torch.randn(4, 64, 300), torch.randint(0, 300, (4, 64))
    loss, weight = made.loss(output, {"y": target})
    meter = made.meter(CPU)
    meter.update(output, loss, weight, {"y": target})
    with Launches() as launches:
        meter.update(output, loss, weight, {"y": target})
    own = build("next_token").meter(CPU)
    own.update(output, loss, weight, {"y": target})
    with Launches() as of_own:
        own.update(output, loss, weight, {"y": target})
    assert launches.count <= of_own.count + most


@pytest.mark.parametrize(
    "objective",
    [
        "next_token",
        {"next_token": {"ignore": None}},
        "classify",
        {"classify": {"label_smoothing": 0.2}},
        {"classify": {"class_weights": [1.0] * 20 + [3.0] * 280}},
        {"classify": {"focal": 2.0}},
    ],
)
def test_the_log_loss_is_that_of_the_output_whatever_the_loss_is(objective: Any) -> None:
    tokens = "next_token" in str(objective)
    output = torch.randn(*((90, 5) if tokens else (400,)), 300)
    target = torch.randint(0, 300, output.shape[:-1])
    expected = sk.log_loss(target.flatten(), output.flatten(0, -2).double().softmax(1), labels=range(300))
    assert scores(objective, ["log_loss"], output, target)["log_loss"] == pytest.approx(expected, rel=1e-6)


def test_rows_that_wait_are_counted_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_ROWS", 1000)
    monkeypatch.setattr(joining, "_LARGE", 1)
    output, target = torch.randn(1700, 90), torch.randint(0, 90, (1700,))
    found = scores("classify", ["f1", "log_loss", {"top_k": 3}, "auroc"], output, target)
    guess, p = output.argmax(1), output.double().softmax(1)
    assert found["f1"] == pytest.approx(sk.f1_score(target, guess, average="macro"))
    assert found["log_loss"] == pytest.approx(sk.log_loss(target, p, labels=range(90)), rel=1e-6)
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(target, p, multi_class="ovr"), abs=1e-6)


@pytest.mark.parametrize("classes", [5, 80])
def test_areas_tell_apart_what_is_surely_of_a_class(classes: int) -> None:
    """Probabilities that are rounded to 1 still have an order."""
    target = torch.arange(600) % classes
    output = torch.randn(600, classes, dtype=torch.float64)
    output[torch.arange(600), (target + (torch.rand(600) < 0.2).long()) % classes] += 20 + 80 * torch.rand(
        600, dtype=torch.float64
    )
    others = torch.stack([output.index_select(1, torch.tensor([j for j in range(classes) if j != i])).logsumexp(1)
                          for i in range(classes)], 1)  # fmt: skip
    odds = output - others
    expected = np.mean([sk.roc_auc_score(target == i, odds[:, i]) for i in range(classes)])
    assert scores("classify", ["auroc"], output.float(), target)["auroc"] == pytest.approx(expected, abs=1e-5)
