"""Metrics against scikit-learn, streamed in uneven batches."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn import metrics as sklearn_metrics

from flatout.objectives import areas
from flatout.objectives.areas import areas_under_curve
from flatout.objectives.build import build
from flatout.objectives.metrics import area_under_curve
from flatout.objectives.objective import Objective

CPU = torch.device("cpu")


def measured(
    objective: Objective, output: torch.Tensor, target: torch.Tensor, sizes: tuple[int, ...] = (7, 1, 64)
) -> dict[str, float]:
    meter = objective.meter(CPU)
    rest = len(target) - sum(sizes)
    for part, labels in zip(output.split([*sizes, rest]), target.split([*sizes, rest]), strict=True):
        meter.update(part, *objective.loss(part, {"y": labels}), {"y": labels})
    return meter.result()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("levels", [2, 5, 10**6])
def test_auc_is_exact_with_ties(levels: int) -> None:
    scores, labels = torch.randint(levels, (999,)).float(), torch.randint(2, (999,))
    scores = (scores + labels * levels * 0.2).round()
    expected = sklearn_metrics.roc_auc_score(labels, scores)
    assert area_under_curve(scores, labels).item() == pytest.approx(expected, abs=1e-12)


def test_auc_at_its_edges() -> None:
    assert area_under_curve(torch.tensor([0.1, 0.2, 0.9]), torch.tensor([0, 0, 1])) == 1
    assert area_under_curve(torch.tensor([0.1, 0.2, 0.9]), torch.tensor([1, 1, 0])) == 0
    assert area_under_curve(torch.ones(4), torch.tensor([0, 1, 0, 1])) == 0.5
    assert area_under_curve(torch.rand(4), torch.ones(4)).isnan()
    assert area_under_curve(torch.tensor([0.1, math.nan]), torch.tensor([0, 1])).isnan()


@pytest.mark.parametrize("shape", [(300,), (300, 1)])
def test_binary(shape: tuple[int, ...]) -> None:
    logits, labels = torch.randn(shape), torch.randint(2, (300,))
    found = measured(build("binary"), logits, labels)
    assert found["auc"] == pytest.approx(sklearn_metrics.roc_auc_score(labels, logits.flatten()))
    assert found["accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(labels, logits.flatten() > 0))
    assert found["loss"] == pytest.approx(sklearn_metrics.log_loss(labels, logits.flatten().double().sigmoid()), rel=1e-5)


def test_classify() -> None:
    logits, labels = torch.randn(300, 5), torch.randint(5, (300,))
    found = measured(build("classify"), logits, labels)
    assert found["accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(labels, logits.argmax(1)))
    assert found["loss"] == pytest.approx(sklearn_metrics.log_loss(labels, logits.double().softmax(1)), rel=1e-5)


def test_multilabel() -> None:
    logits, labels = torch.randn(300, 4), torch.randint(2, (300, 4))
    found = measured(build("multilabel"), logits, labels)
    assert found["f1"] == pytest.approx(sklearn_metrics.f1_score(labels, logits > 0, average="micro"))
    assert found["accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(labels.flatten(), logits.flatten() > 0))


@pytest.mark.parametrize("columns", [None, 1, 3])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_regress(columns: int | None, offset: float) -> None:
    target = torch.randn(300 if columns is None else (300, columns)) + offset
    output = target + torch.randn_like(target) * 0.5
    found = measured(build("regress"), output, target)
    assert found["rmse"] == pytest.approx(math.sqrt(sklearn_metrics.mean_squared_error(target, output)), rel=1e-5)
    assert found["mae"] == pytest.approx(sklearn_metrics.mean_absolute_error(target, output), rel=1e-5)
    assert found["r2"] == pytest.approx(sklearn_metrics.r2_score(target.double(), output.double()), abs=1e-6)


def test_what_a_model_says_in_units_of_its_own_is_measured_and_predicted_in_those_of_the_data() -> None:
    target = torch.randn(300) * 4e4 + 2e5
    output = (target - 2e5) / 4e4 + torch.randn(300) * 0.3
    objective = build({"regress": {"centre": 2e5, "spread": 4e4}})
    real = output * 4e4 + 2e5
    found = measured(objective, output, target)
    assert found["rmse"] == pytest.approx(math.sqrt(sklearn_metrics.mean_squared_error(target, real)), rel=1e-5)
    assert found["r2"] == pytest.approx(sklearn_metrics.r2_score(target.double(), real.double()), abs=1e-6)
    assert found["loss"] == pytest.approx(((real - target) / 4e4).square().mean().item(), rel=1e-4)
    torch.testing.assert_close(objective.decode(output[:, None])["prediction"], real)
    assert objective.scaled(1.0, 2.0) == objective and build("regress").scaled(1.0, 2.0).spread == 2.0
    half = build({"regress": {"centre": 7.0}}).scaled(1.0, 2.0)
    assert (half.centre, half.spread) == (7.0, 2.0)


def test_r2_of_constant_targets_is_that_of_scikit_learn() -> None:
    target = torch.ones(100)
    for output in (target, target + 1):
        assert measured(build("regress"), output, target)["r2"] == sklearn_metrics.r2_score(target, output)


def test_next_token_counts_only_what_is_not_ignored() -> None:
    logits, target = torch.randn(100, 6, 11), torch.randint(11, (100, 6))
    target[torch.rand(100, 6) < 0.4] = -100
    found = measured(build("next_token"), logits, target)
    counted = target != -100
    assert found["accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(target[counted], logits.argmax(-1)[counted]))
    expected = sklearn_metrics.log_loss(target[counted], logits[counted].double().softmax(-1), labels=range(11))
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(expected), rel=1e-4)


def test_a_loss_beyond_all_bounds_is_infinite_perplexity_not_a_crash() -> None:
    logits = torch.zeros(100, 2, 3)
    logits[..., 0] = 1e5
    assert measured(build("next_token"), logits, torch.ones(100, 2, dtype=torch.long))["perplexity"] == math.inf


def test_many_small_batches_lose_no_digits() -> None:
    objective, batch = build("classify"), {"y": torch.zeros(1, dtype=torch.long)}
    meter = objective.meter(CPU)
    for _ in range(2000):
        meter.update(torch.tensor([[0.0, 1.0]]), torch.tensor(0.1), 1.0, batch)
    assert meter.result()["loss"] == pytest.approx(0.1, rel=1e-7)


def test_weights_that_are_tensors_lose_no_digits() -> None:
    """As those of class weights are, in batches of a row."""
    objective, batch = build("classify"), {"y": torch.zeros(1, dtype=torch.long)}
    meter = objective.meter(CPU)
    for _ in range(2000):
        meter.update(torch.tensor([[0.0, 1.0]]), torch.tensor(0.1), torch.tensor(0.1), batch)
    assert meter.result()["loss"] == pytest.approx(1.0, rel=1e-12)


def test_r2_of_nan_is_nan_also_for_constant_targets() -> None:
    output = torch.ones(100)
    output[3] = math.nan
    assert math.isnan(measured(build("regress"), output, torch.ones(100))["r2"])


def test_an_unused_meter_has_nothing_to_say() -> None:
    for name in ("classify", "binary", "multilabel", "regress", "next_token"):
        assert build(name).meter(CPU).result() == {}


@pytest.mark.parametrize(
    ("name", "shape"),
    [("classify", (4, 5)), ("next_token", (4, 3, 5)), ("binary", (4, 1)), ("multilabel", (4,)), ("regress", (4, 1))],
)
def test_updates_never_read_the_device(name: str, shape: tuple[int, ...]) -> None:
    """What would be a host sync on a GPU shows as a scalar read on a CPU."""
    target = torch.zeros(shape if name == "multilabel" else shape[:-1], dtype=torch.long)
    objective, output = build(name), torch.randn(shape)
    with torch.profiler.profile() as profile:
        meter = objective.meter(CPU)
        meter.update(output, *objective.loss(output, {"y": target}), {"y": target})
    assert not any("_local_scalar_dense" in event.key for event in profile.key_averages())


@pytest.mark.parametrize("levels", [3, 400, 0])
def test_areas_are_those_of_scikit_learn_on_every_kind_of_device(levels: int) -> None:
    """`levels` different scores, or all different; the formula of GPUs gives the same on a CPU."""
    scores = torch.randn(600, 4) if not levels else torch.randint(-levels, levels, (600, 4)) / levels
    scores[:5] = torch.tensor([0.0, -0.0, 0.0, -0.0, 0.0])[:, None]
    labels = torch.rand(600, 4) < torch.tensor([0.5, 0.02, 0.97, 0.3])
    for ours, there, theirs in (
        (areas.areas_under_curve, areas._auroc_there, sklearn_metrics.roc_auc_score),
        (areas.average_precisions, areas._precision_there, sklearn_metrics.average_precision_score),
    ):
        expected = [theirs(labels[:, place], scores[:, place]) for place in range(4)]
        assert ours(scores, labels).tolist() == pytest.approx(expected, abs=1e-12)
        assert there(scores.t(), labels.t()).tolist() == pytest.approx(expected, abs=1e-12)


def test_areas_without_positives_or_with_nan() -> None:
    scores = torch.tensor([[0.1, 0.2, math.nan], [0.3, 0.4, 0.5]])
    labels = torch.tensor([[False, True, True], [False, True, False]])
    for ours, expected in ((areas.areas_under_curve, math.nan), (areas.average_precisions, 1.0)):
        found = ours(scores, labels).tolist()
        assert math.isnan(found[0]) and math.isnan(found[2])
        assert found[1] == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
@pytest.mark.parametrize("levels", [3, 1000, None])
@pytest.mark.parametrize("columns", [1, 3])
def test_areas_of_few_and_of_many_positives(share: float, levels: int | None, columns: int) -> None:
    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(4000, columns, generator=draw)
    scores = scores if levels is None else (scores * levels / 8).round()  # ties, also of 0.0 and -0.0
    scores[:2], scores[2:4] = torch.inf, -torch.inf
    labels = torch.rand(4000, columns, generator=draw) < share
    here = areas_under_curve(scores, labels)
    one_by_one = [(a[:, None] > b).double().mean() + (a[:, None] == b).double().mean() / 2 for a, b in (
        (scores[labels[:, place], place], scores[~labels[:, place], place]) for place in range(columns)
    )]  # fmt: skip
    assert here.tolist() == pytest.approx([float(one) for one in one_by_one], abs=1e-12)
    assert here.tolist() == areas_under_curve(scores.double(), labels).tolist()
    scores[7] = torch.nan
    assert areas_under_curve(scores, labels).isnan().all()


def test_areas_do_not_depend_on_the_number_of_threads() -> None:
    scores, labels = torch.randn(40_000, 8, generator=torch.Generator().manual_seed(0)), torch.arange(40_000) % 8
    before = torch.get_num_threads()
    found = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        found.append(areas_under_curve(scores, labels).tolist())
    torch.set_num_threads(before)
    assert found[0] == found[1]


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1.0, 1e4, 3e37])
@pytest.mark.parametrize("apart", [False, True])
def test_areas_of_scores_of_any_size_are_exact(scale: float, apart: bool) -> None:
    """They are sorted as integers with one bit less, where that is exact. `apart`: some are tiny beside others."""
    draw = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(700, 2, generator=draw) * scale, torch.rand(700, 2, generator=draw) < 0.4
    if apart:
        scores[::2] *= 1e-6 if scale > 1 else 1e6
        scores[1::7] *= 1e-34
    scores[::11] = 0.0
    for ours, theirs in (
        (areas.areas_under_curve, sklearn_metrics.roc_auc_score),
        (areas.average_precisions, sklearn_metrics.average_precision_score),
    ):
        expected = [theirs(labels[:, place], scores[:, place].double()) for place in range(2)]
        assert ours(scores, labels).tolist() == pytest.approx(expected, abs=1e-12)


def test_areas_of_class_numbers_are_those_of_marks() -> None:
    draw = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(900, 40, generator=draw), torch.randint(0, 39, (900,), generator=draw)  # one never occurs
    labels[labels == 3] = 5  # common
    marks = labels[:, None] == torch.arange(40)
    for ours in (areas.areas_under_curve, areas.average_precisions):
        assert ours(scores, labels).tolist() == pytest.approx(ours(scores, marks).tolist(), abs=1e-12, nan_ok=True)
        assert ours(scores.t().contiguous().t(), labels).tolist() == pytest.approx(ours(scores, labels).tolist(), nan_ok=True)
