"""One pass over the logits of a CPU gives what torch gives operation by operation: ties, NaN and infinities included."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatout.engine.evaluation import evaluate
from flatout.objectives import joining
from flatout.objectives.build import build
from flatout.objectives.class_rows import class_rows
from flatout.objectives.classify import Classify
from flatout.objectives.inputs import Batch
from flatout.objectives.joining import adder
from flatout.objectives.named.measured import measured
from flatout.objectives.named.parse import named_metrics_of
from flatout.objectives.named.seen import Seen
from flatout.objectives.objective import Loss, Meter, Objective

CPU = torch.device("cpu")


def logits_of(kind: str, rows: int, classes: int) -> Tensor:
    draw = torch.Generator().manual_seed(classes)
    logits = torch.randn(rows, classes, generator=draw) * 3
    if kind == "ties":
        logits = logits.round()
        logits[:5] = 0
    if kind == "bfloat16":
        logits = logits.bfloat16()
    if kind == "sure":
        logits[torch.arange(rows), torch.arange(rows) % classes] += torch.arange(rows) % 150
    if kind == "not finite":
        logits[0, 1], logits[1, :], logits[2, 0], logits[3, 1] = math.nan, math.nan, math.inf, -math.inf
        logits[4, :], logits[5, :], logits[6, 0:2] = -math.inf, math.inf, math.inf
        logits[7, 0], logits[7, 1] = math.nan, math.inf
    return logits


@pytest.mark.parametrize("kind", ["plain", "ties", "bfloat16", "sure", "not finite"])
@pytest.mark.parametrize("classes", [2, 3, 10, 64, 65, 300])
def test_it_is_what_torch_computes(kind: str, classes: int) -> None:
    logits, y = logits_of(kind, 200, classes), torch.arange(200) % classes
    rows, plain = class_rows(logits, y), Seen("classes", logits.float(), y)
    assert rows is not None
    losses = F.cross_entropy(logits.float(), y, reduction="none")
    torch.testing.assert_close(torch.from_numpy(rows.losses), losses, rtol=1e-5, atol=2e-6, equal_nan=True, check_dtype=False)
    assert rows.loss == pytest.approx(losses.double().sum().item(), rel=1e-6, nan_ok=True)
    assert rows.predicted.tolist() == logits.argmax(1).tolist()
    assert rows.hit.tolist() == (logits.argmax(1) == y).tolist() and rows.correct == int((logits.argmax(1) == y).sum())
    torch.testing.assert_close(
        torch.from_numpy(rows.surest), plain.surest, rtol=1e-5, atol=1e-6, equal_nan=True, check_dtype=False
    )
    for k in {1, classes // 2, classes - 1}:
        assert rows.within(k).tolist() == plain.within(k).tolist(), k
    if classes > 2:
        torch.testing.assert_close(rows.log_odds(), plain.log_odds(), rtol=1e-5, atol=1e-4, equal_nan=True, check_dtype=False)


@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("ignore", [-100, 7])
def test_rows_that_do_not_count(classes: int, ignore: int) -> None:
    logits, y = torch.randn(300, classes, generator=torch.Generator().manual_seed(0)), torch.arange(300) % classes
    y[::3] = ignore
    logits[::3] = math.nan
    rows, counts = class_rows(logits, y, ignore), y != ignore
    assert rows is not None and rows.valid is not None and rows.valid.tolist() == counts.tolist()
    assert rows.loss == pytest.approx(F.cross_entropy(logits[counts], y[counts], reduction="sum").item(), rel=1e-6)
    assert (rows.weight, rows.correct) == (counts.sum(), (logits[counts].argmax(1) == y[counts]).sum())


@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("wrong", [-1, -100, 1000])
def test_classes_that_do_not_exist_are_left_to_torch(classes: int, wrong: int) -> None:
    y = torch.zeros(5, dtype=torch.long)
    y[3] = wrong
    assert class_rows(torch.randn(5, classes), y) is None and class_rows(torch.randn(5, classes), y, 5) is None
    if wrong != -100:  # which cross entropy ignores
        with pytest.raises(IndexError, match="out of bounds"):
            taken(build("classify"), [(torch.randn(5, classes), y)])


# ---- evaluation: the loss and the metrics of several batches together ----


def taken(
    objective: Objective, batches: list[tuple[Tensor, Tensor]], *, at_once: bool = True, **more: Tensor
) -> dict[str, float]:
    """As evaluation does it; else with the loss of each batch by itself."""
    meter = objective.meter(CPU)
    add = adder(objective, meter) if at_once else by_hand(objective, meter)
    for output, y in batches:
        add(output, {"y": y, **more})
    return meter.result()


def by_hand(objective: Objective, meter: Meter) -> Any:
    return lambda output, batch: meter.update(output, *objective.loss(output, batch), batch)


def of_many(objective: Any) -> tuple[Tensor, Tensor, list[Any]]:
    name = objective if isinstance(objective, str) else next(iter(objective))
    draw = torch.Generator().manual_seed(0)
    if name == "regress":
        return torch.randn(500, 2, generator=draw), torch.randn(500, 2, generator=draw), ["mae", "r2", "mape"]
    if name == "multilabel":
        return torch.randn(500, 7, generator=draw), torch.randint(2, (500, 7), generator=draw), ["f1", "f1_macro", "auroc"]
    if name == "binary":
        return torch.randn(500, 1, generator=draw), torch.randint(2, (500,), generator=draw), ["f1", "mcc", "log_loss"]
    names = ["accuracy", "f1", "mcc", "log_loss", "calibration_error", {"top_k": 3}]
    if name == "next_token":
        y = torch.randint(90, (500, 4), generator=draw)
        return torch.randn(500, 4, 90, generator=draw), y.where(torch.rand(500, 4, generator=draw) < 0.8, -100), names
    wide = 5 if isinstance(objective, dict) and "class_weights" in objective[name] else 90
    return (
        torch.randn(500, wide, generator=draw),
        torch.randint(wide, (500,), generator=draw),
        [*names, "auroc", "average_precision"],
    )


@pytest.mark.parametrize("limits", [{}, {"_LARGE": 1}, {"_LARGE": 1, "_CELLS": 4000}])  # joined; as they come; in parts
@pytest.mark.parametrize(
    "objective",
    [
        "classify",
        {"classify": {"label_smoothing": 0.1}},
        {"classify": {"class_weights": [1, 2, 3, 4, 5]}},
        "binary",
        {"binary": {"pos_weight": 3.0, "class_weights": [0.5, 2.0]}},
        "multilabel",
        {"regress": {"centre": 2.0, "spread": 3.0}},
        "next_token",
    ],
)
def test_batches_together_give_what_each_by_itself_gives(
    objective: Any, limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, value in limits.items():
        monkeypatch.setattr(joining, limit, value)
    output, y, names = of_many(objective)
    plain = build(objective)
    batches = list(zip(output.split(60), y.split(60), strict=True))
    for made in (plain, measured(plain, named_metrics_of(names, plain), None)):
        found, expected = taken(made, batches), taken(made, batches, at_once=False)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            exact = 1e-6 if "loss" in name or "perplexity" in name or "calibration" in name else 1e-12
            assert found[name] == pytest.approx(value, rel=exact, abs=1e-9), name


@dataclass(frozen=True)
class Squared(Classify):
    """A loss of its own, of which the parts add up in no way that its base class knows."""

    def loss(self, output: Tensor, batch: Batch) -> Loss:
        return output.sum().square(), float(len(output))


class Lent(Objective):
    """A loss of its own, and the metrics of another objective."""

    name, metric, better = "lent", "accuracy", "max"

    def loss(self, output: Tensor, batch: Batch) -> Loss:
        return output.sum().square(), float(len(output))

    def check(self, output: Any, batch: Batch, outputs: int | None = None) -> None: ...

    def outputs_for(self, **known: Any) -> int:
        return 3

    def meter(self, device: torch.device) -> Meter:
        return Classify().meter(device)

    def decode(self, output: Any) -> dict[str, Tensor]:
        return {}


@pytest.mark.parametrize("objective", [Squared(), Lent()])
def test_a_loss_of_ones_own_sees_each_batch_as_it_came(objective: Objective) -> None:
    batches = [(torch.full((4, 3), 0.5), torch.zeros(4, dtype=torch.long)) for _ in range(3)]
    assert taken(objective, batches)["loss"] == 3 * 6.0**2 / 12


def test_rows_that_were_mixed_keep_their_own_loss() -> None:
    output, y = torch.randn(40, 5), torch.arange(40) % 5
    mixed = {"y_other": (y + 1) % 5, "mix": torch.full((40,), 0.25)}
    expected = Classify().loss(output, {"y": y, **mixed})[0].item() / 40
    assert taken(build("classify"), [(output, y)], **mixed)["loss"] == pytest.approx(expected)


class SameMemory(nn.Module):
    """Writes every output to the same place, as a captured graph does."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.linear, self.place = nn.Linear(4, classes), torch.empty(50, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.place.copy_(self.linear(x))


@pytest.mark.parametrize("classes", [3, 80])
def test_a_model_may_use_its_memory_again(classes: int) -> None:
    torch.manual_seed(0)
    model, place = SameMemory(classes), torch.empty(50, 4)
    x, y = torch.randn(4, 50, 4), torch.randint(classes, (4, 50))

    def batches() -> Any:
        for one, labels in zip(x, y, strict=True):
            yield {"x": place.copy_(one), "y": labels}

    plain = build("classify")
    names: list[Any] = ["accuracy", "f1", "auroc", "log_loss", {"top_k": 2}]
    asked = measured(plain, named_metrics_of(names, plain), None)
    found = evaluate(model, asked, batches(), precision="fp32", device=CPU)
    whole = taken(asked, [(model.linear(x.flatten(0, 1)).detach(), y.flatten())])
    assert found == pytest.approx(whole, rel=1e-5)
