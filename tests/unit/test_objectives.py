"""What objectives promise: the same gradient however a batch is split, words where model and data do not fit, predictions."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatout.base.errors import DataError, ModelError, UsageError
from flatout.models.gpt import gpt
from flatout.models.mlp import mlp
from flatout.objectives.build import OBJECTIVES, build, describe
from flatout.objectives.classify import Classify
from flatout.objectives.inputs import Inputs
from flatout.objectives.objective import Objective

INTEGERS = torch.tensor([0, 1, 2, 1])
REALS = torch.tensor([0.5, 1.0, 2.0, 1.0])


def pinball(model: nn.Module, batch: dict[str, Tensor], share: float = 0.9) -> tuple[Tensor, float]:
    apart = batch["y"] - model(batch["x"]).flatten()
    return torch.maximum(share * apart, (share - 1) * apart).sum(), float(len(apart))


def text_with_gaps(rows: int) -> Tensor:
    target = torch.randint(11, (rows, 6))
    return target.masked_fill(torch.rand(rows, 6) < torch.linspace(0, 0.9, rows)[:, None], -100)


def parts_for(written: object) -> tuple[nn.Module, dict[str, Tensor]]:
    """A float64 model and a batch of 12 rows for each objective; token weights differ from row to row."""
    torch.manual_seed(3)
    x = torch.randn(12, 5, dtype=torch.float64)
    name = written if isinstance(written, str) else next(iter(written)) if isinstance(written, dict) else "custom"
    if name == "next_token":
        model: nn.Module = gpt(11, 6, layers=1, heads=2, width=16).double()
        return model, {"x": torch.randint(11, (12, 6)), "y": text_with_gaps(12)}
    target = {
        "classify": torch.randint(3, (12,)),
        "binary": torch.randint(2, (12,)),
        "multilabel": torch.randint(2, (12, 3)),
        "regress": torch.randn(12, 3, dtype=torch.float64),
        "custom": torch.randn(12, dtype=torch.float64),
    }[name]
    return mlp((5,), 1 if name in ("binary", "custom") else 3).double(), {"x": x, "y": target}


def gradients(objective: Objective, model: nn.Module, batches: list[dict[str, Tensor]], total: Any) -> list[Tensor]:
    model.zero_grad()
    for batch in batches:
        loss_sum, _ = objective(model, batch)
        (loss_sum / total).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize(
    "written",
    [
        "classify",
        {"classify": {"label_smoothing": 0.1}},
        "binary",
        "multilabel",
        "regress",
        {"regress": "mae"},
        {"regress": "huber"},
        {"regress": {"centre": 5.0, "spread": 2.0}},
        "next_token",
        pinball,
    ],
)
def test_a_split_batch_gives_the_same_gradient(written: object) -> None:
    objective = build(written)
    model, batch = parts_for(written)
    loss, total = objective(model, batch)
    whole = gradients(objective, model, [batch], total)
    columns = [column.split([1, 7, 4]) for column in batch.values()]
    pieces = [dict(zip(batch, rows, strict=True)) for rows in zip(*columns, strict=True)]
    losses = [objective(model, piece) for piece in pieces]
    torch.testing.assert_close(sum(piece for piece, _ in losses), loss, rtol=1e-12, atol=1e-12)
    assert float(sum(weight for _, weight in losses)) == float(total)
    for split, once in zip(gradients(objective, model, pieces, total), whole, strict=True):
        torch.testing.assert_close(split, once, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(
    ("written", "bare"),
    [
        ("classify", F.cross_entropy),
        ({"classify": {"label_smoothing": 0.1}}, lambda o, y: F.cross_entropy(o, y, label_smoothing=0.1)),
        ("binary", lambda o, y: F.binary_cross_entropy_with_logits(o.flatten(), y.to(o.dtype))),
        ("multilabel", lambda o, y: F.binary_cross_entropy_with_logits(o, y.to(o.dtype))),
        ("regress", F.mse_loss),
        ({"regress": "mae"}, F.l1_loss),
        ({"regress": {"error": "huber"}}, F.huber_loss),
        ({"regress": {"centre": 5.0, "spread": 2.0}}, lambda o, y: F.mse_loss(o, (y - 5) / 2)),
        ("next_token", lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten())),
    ],
)
def test_the_mean_loss_is_that_of_bare_torch(written: object, bare: Callable[[Tensor, Tensor], Tensor]) -> None:
    model, batch = parts_for(written)
    loss_sum, weight = build(written)(model, batch)
    torch.testing.assert_close(loss_sum / weight, bare(model(batch["x"]), batch["y"]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_half_precision_outputs_are_summed_in_float32(name: str, dtype: torch.dtype) -> None:
    model, batch = parts_for(name)
    output = model(batch["x"]).to(dtype)
    with torch.autocast("cpu", dtype=dtype):
        loss, _ = build(name).loss(output, batch)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, build(name).loss(output.float(), batch)[0])


def test_the_weight_of_next_token_stays_on_the_device_and_can_come_from_shapes() -> None:
    logits, target = torch.randn(2, 3, 5), torch.tensor([[1, 2, -100], [-100, -100, 4]])
    _, weight = build("next_token").loss(logits, {"y": target})
    assert isinstance(weight, Tensor) and weight.dim() == 0 and weight == 3
    _, known = build({"next_token": {"ignore": None}}).loss(logits, {"y": target.clamp(0)})
    assert known == 6.0 and isinstance(known, float)
    _, other = build({"next_token": {"ignore": 4}}).loss(logits, {"y": target.clamp(0)})
    assert other == 5


@pytest.mark.parametrize("name", ["classify", "next_token"])
def test_the_loss_compiles_in_one_piece(name: str) -> None:
    objective, (model, batch) = build(name), parts_for(name)
    compiled = torch.compile(objective, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(model, batch)[0], objective(model, batch)[0])


def test_classify_works_pixel_by_pixel() -> None:
    objective, batch = build("classify"), {"y": torch.randint(3, (2, 4, 4))}
    output = torch.randn(2, 3, 4, 4)
    objective.check(output, batch, 3)
    assert objective.loss(output, batch)[1] == 32
    assert objective.decode(output)["prediction"].shape == (2, 4, 4)


# does the model fit the data?


@pytest.mark.parametrize(
    ("written", "output", "target", "outputs", "words"),
    [
        (
            "classify",
            torch.zeros(4, 7),
            INTEGERS,
            10,
            "data has 10 classes but the model returns 7 columns: make its last layer 10",
        ),
        ("classify", torch.zeros(4, 2), INTEGERS, None, "labels are 0 to 2, but the model returns 2 columns.*3 wide"),
        ("classify", torch.zeros(4, 3), INTEGERS - 1, None, "labels are -1 to 1.*number the classes from 0"),
        ("classify", torch.zeros(4, 3), REALS, None, "integer labels in 'y', got torch.float32: use objective: regress"),
        ("classify", torch.zeros(4), INTEGERS, None, r"shape \[rows, classes\] for labels \[4\], got \[4\]"),
        ("classify", torch.zeros(5, 3), INTEGERS, None, r"for labels \[4\], got \[5, 3\]"),
        (
            "classify",
            torch.zeros(4, 3),
            INTEGERS[:, None],
            None,
            r"for labels \[4, 1\], got \[4, 3\].*one integer per row",
        ),
        (
            "classify",
            torch.zeros(4, 3, dtype=torch.long),
            INTEGERS,
            None,
            "real numbers from the model, got torch.int64.*argmax",
        ),
        ("classify", (torch.zeros(4, 3),), INTEGERS, None, "needs a tensor from the model.*got tuple.*forward"),
        (
            "binary",
            torch.zeros(4, 2),
            INTEGERS % 2,
            None,
            r"one logit per row.*got \[4, 2\]: make the last layer 1 wide.*classify",
        ),
        ("binary", torch.zeros(4), INTEGERS, None, "0 and 1 in 'y', got 2: .*objective: classify"),
        ("binary", torch.zeros(4, 2), torch.ones(4, 2), None, r"one 0 or 1 per row in 'y', got \[4, 2\].*multilabel"),
        ("multilabel", torch.zeros(4, 3), torch.ones(4, 2), None, r"for each label, \[4, 2\], got \[4, 3\].*2 wide"),
        ("multilabel", torch.zeros(4, 3), INTEGERS, None, r"\[rows, labels\], got \[4\]: use classify"),
        ("multilabel", torch.zeros(4, 2), torch.full((4, 2), 0.5), None, "0 and 1 in 'y', got 0.5"),
        ("regress", torch.zeros(4, 2), REALS, None, r"for each target \[4\], got \[4, 2\]: make the last layer 1 wide"),
        ("regress", torch.zeros(4, 4), torch.zeros(4, 3), None, r"target \[4, 3\], got \[4, 4\].*3 wide"),
        (
            "next_token",
            torch.zeros(2, 3, 50),
            torch.ones(2, 3).long(),
            65,
            "65 tokens, the model returns 50 logits.*vocabulary: 65",
        ),
        (
            "next_token",
            torch.zeros(2, 3, 50),
            torch.full((2, 3), 64),
            None,
            "are 64 to 64, but the model returns 50.*vocabulary: 65",
        ),
        ("next_token", torch.zeros(2, 3, 50), torch.full((2, 3), -1), None, "are -1 to -1.*ignore with -100"),
        (
            "next_token",
            torch.zeros(2, 50),
            torch.ones(2, 3).long(),
            None,
            r"for targets \[2, 3\], got \[2, 50\].*every position",
        ),
        ("next_token", torch.zeros(2, 3, 50), torch.ones(2, 3), None, "integer tokens in 'y', got torch.float32"),
        ("next_token", torch.zeros(2, 3, 50), torch.full((2, 3), -100), None, "every target of the first batch is -100"),
    ],
)
def test_what_does_not_fit_is_said(written: str, output: Any, target: Tensor, outputs: int | None, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        build(written).check(output, {"y": target}, outputs)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_what_fits_passes_and_missing_targets_are_said(name: str) -> None:
    objective, (model, batch) = build(name), parts_for(name)
    objective.check(objective.forward(model, batch), batch)
    with pytest.raises(DataError, match=f"{name} needs targets in a column 'y'; the data has only x"):
        objective.check(model(batch["x"]), {"x": batch["x"]})


def test_a_padded_vocabulary_and_unused_classes_fit() -> None:
    build("next_token").check(torch.zeros(2, 3, 128), {"y": torch.full((2, 3), 64)}, 65)
    build("classify").check(torch.zeros(4, 1000), {"y": INTEGERS}, 10)


@pytest.mark.parametrize(("output", "target"), [((4, 1), (4,)), ((4,), (4, 1)), ((4,), (4,)), ((4, 1), (4, 1))])
def test_regress_never_broadcasts(output: tuple[int, ...], target: tuple[int, ...]) -> None:
    objective, values = build("regress"), torch.arange(4.0)
    objective.check(values.view(output), {"y": values.view(target)})
    loss, weight = objective.loss(values.view(output), {"y": values.view(target)})
    assert (loss, weight) == (0, 4)
    assert objective.decode(values.view(output))["prediction"].shape == (4,)


def test_the_width_of_the_last_layer() -> None:
    assert build("classify").outputs_for(classes=10) == 10
    assert build("binary").outputs_for(classes=2) == 1
    assert build("multilabel").outputs_for(target_shape=(7,)) == 7
    assert build("regress").outputs_for() == 1
    assert build("regress").outputs_for(target_shape=(3,)) == 3
    assert build("next_token").outputs_for(vocabulary=65) == 65
    assert build(pinball).outputs_for(classes=4) == 4
    for name, words in (("classify", "no classes"), ("multilabel", "one number per row"), ("next_token", "vocabulary")):
        with pytest.raises(DataError, match=words):
            build(name).outputs_for()


# predictions


def test_predictions_are_decoded() -> None:
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.0, 5.0]])
    classes = build("classify").decode(logits.bfloat16())
    assert classes["prediction"].tolist() == [0, 2]
    torch.testing.assert_close(classes["probabilities"], logits.softmax(1))
    assert build("binary").decode(torch.tensor([[-1.0], [3.0]]))["prediction"].tolist() == [0, 1]
    assert build("multilabel").decode(logits - 1)["prediction"].tolist() == [[1, 0, 0], [0, 0, 1]]
    assert build("next_token").decode(logits[None])["prediction"].tolist() == [[0, 2]]
    assert build(pinball).decode(logits)["output"] is logits
    assert {"a"} == build(pinball).decode({"a": logits, "b": "words"}).keys()


# inputs


class Adds(nn.Module):
    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return first - second


def test_inputs_by_position_and_by_keyword() -> None:
    batch = {"a": torch.tensor(5), "b": torch.tensor(3)}
    assert Inputs.parse(["a", "b"]).call(Adds(), batch) == 2
    assert Inputs.parse({"second": "a", "first": "b"}).call(Adds(), batch) == -2
    for written in ("x", ["a", "b"], {"input_ids": "x"}):
        assert Inputs.parse(written).written() == written
        assert Inputs.parse(Inputs.parse(written)) == Inputs.parse(written)


@pytest.mark.parametrize("wrap", [lambda x: {"logits": x, "loss": None}, lambda x: SimpleNamespace(logits=x), lambda x: x])
def test_logits_are_taken_from_what_transformers_return(wrap: Callable[[Tensor], Any]) -> None:
    class Wrapped(nn.Module):
        def forward(self, input_ids: Tensor) -> Any:
            return wrap(input_ids)

    batch = {"x": torch.randn(4, 3), "y": INTEGERS}
    objective = build("classify", {"input_ids": "x"})
    assert torch.equal(objective.forward(Wrapped(), batch), batch["x"])
    assert objective.predict(Wrapped(), batch)["prediction"].shape == (4,)


def test_wrong_inputs_are_said() -> None:
    with pytest.raises(DataError, match="column 'imgae' that the data does not have; did you mean 'image'"):
        build("classify", "imgae").forward(nn.Identity(), {"image": REALS, "y": INTEGERS})
    for written in (3, [], [1], {}, {"a": 1}, ""):
        with pytest.raises(UsageError, match=r"inputs must be a column 'x'"):
            Inputs.parse(written)


# building and custom objectives


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("clasify", "unknown objective 'clasify'; did you mean 'classify'"),
        ({"classify": {"smoothing": 0.1}}, "no option 'smoothing'; did you mean 'label_smoothing'"),
        ({"classify": {"label_smoothing": 1.5}}, "label_smoothing must be .* below 1, got 1.5"),
        ({"regress": "mean"}, "unknown regress error 'mean'"),
        ({"regress": {"spread": 0}}, "spread must be greater than 0, got 0"),
        ({"regress": {"centre": "abc"}}, "centre: expected a number, got 'abc'"),
        (f"{__name__}:REALS", "must be a function .* got Tensor"),
        (f"{__name__}:nothing", "has no 'nothing'"),
        ({f"{__name__}:pinball": {"shar": 1}}, "no option 'shar'; did you mean 'share'"),
        ({f"{__name__}:pinball": 0.5}, "takes options by name"),
    ],
)
def test_a_wrong_objective_is_said(written: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        build(written)


def test_a_custom_objective_trains_and_reports_its_loss() -> None:
    model, batch = nn.Linear(2, 1), {"x": torch.randn(6, 2), "y": torch.randn(6)}
    by_name, by_hand = build({f"{__name__}:pinball": {"share": 0.5}}), build(pinball)
    assert torch.equal(build(f"{__name__}:pinball")(model, batch)[0], by_hand(model, batch)[0])
    assert not torch.equal(by_name(model, batch)[0], by_hand(model, batch)[0])
    output = by_hand.forward(model, batch)
    by_hand.check(output, batch)
    loss_sum, weight = by_hand.loss(output, batch)
    meter = by_hand.meter(torch.device("cpu"))
    meter.update(output, loss_sum, weight, batch)
    assert meter.result()["loss"] == pytest.approx(loss_sum.item() / 6)
    assert torch.equal(by_hand.predict(model, batch)["output"], model(batch["x"]))


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (torch.tensor(1.0), r"returns \(loss_sum, weight\).*got Tensor: write `return loss \* n, n`"),
        ((torch.ones(3), 3), r"one real number, got \[3\] of torch.float32: add .sum\(\)"),
        ((1.5, 3), "one real number, got float"),
        ((torch.tensor(1.0), "3"), "weight must be a number.*got str"),
        ((torch.tensor(1.0), torch.ones(3)), r"weight must be a number.*got a tensor \[3\]"),
        ((torch.tensor(1.0), 0), "weight must be greater than 0, got 0"),
    ],
)
def test_what_a_custom_objective_may_not_return(returned: object, words: str) -> None:
    objective = build(lambda model, batch: returned)
    with pytest.raises(ModelError, match=words):
        objective.check(objective.forward(nn.Identity(), {}), {})


def test_an_objective_and_its_class_are_taken_as_they_are() -> None:
    mine = Classify(Inputs.parse("image"), label_smoothing=0.2)
    assert build(mine) is mine
    assert build({"flatout.objectives.classify:Classify": {"label_smoothing": 0.2}}, "image") == mine


def test_describe_is_what_was_written() -> None:
    for written in ("classify", {"classify": {"label_smoothing": 0.1}}, {"regress": {"error": "mae"}}, "next_token"):
        assert describe(written) == describe(build(written)) == written
        json.dumps(describe(written))
    assert describe(pinball) == describe(build(pinball)) == f"{__name__}:pinball"
    assert describe({"regress": "mae"}) == {"regress": "mae"}


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_the_primary_metric_is_one_that_is_measured(name: str) -> None:
    objective, (model, batch) = build(name), parts_for(name)
    output, meter = objective.forward(model, batch), objective.meter(torch.device("cpu"))
    meter.update(output, *objective.loss(output, batch), batch)
    assert objective.metric in meter.result() and "loss" in meter.result()
    assert objective.better in ("max", "min")


@pytest.mark.parametrize("ignore", [-100, None])
def test_token_loss_over_a_large_vocabulary(ignore: int | None) -> None:
    logits = torch.randn(3, 5, 5000)
    y = torch.randint(0, 5000, (3, 5))
    y[0, 0] = 7 if ignore is None else ignore
    loss, _ = build({"next_token": {"ignore": ignore}}).loss(logits.bfloat16(), {"y": y})
    exact = torch.nn.functional.cross_entropy(logits.bfloat16().double().flatten(0, 1), y.flatten(), reduction="sum")
    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=1e-5)


def test_mixed_rows_share_their_labels() -> None:
    logits, y, other, mix = torch.randn(6, 4), torch.randint(0, 4, (6,)), torch.randint(0, 4, (6,)), torch.rand(6)
    loss, weight = build("classify").loss(logits, {"y": y, "y_other": other, "mix": mix})
    shares = mix[:, None] * F.one_hot(y, 4) + (1 - mix)[:, None] * F.one_hot(other, 4)
    torch.testing.assert_close(loss, F.cross_entropy(logits, shares, reduction="sum"))
    assert weight == 6.0
