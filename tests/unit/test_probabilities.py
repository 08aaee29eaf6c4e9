"""A model that ends in softmax or sigmoid is told so when it begins to train; a model that returns logits never is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flatout as fo
from flatout.base.tree import to_text
from flatout.objectives.build import build
from flatout.objectives.classify import Classify
from flatout.objectives.probabilities import why_no_logits
from flatout.runs.one_batch.view import one_batch_doc

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
BODY = nn.Linear(4, 3)


class InForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.body(x)).squeeze(1)


class Shares(nn.Module):
    """Rows that sum to one, without a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        made = self.body(x).exp()
        return made / made.sum(1, keepdim=True)


@pytest.mark.parametrize(
    "objective, model, said",
    [
        ("classify", nn.Sequential(BODY, nn.Softmax(dim=1)), "softmax"),
        ("classify", nn.Sequential(BODY, nn.Softmax(dim=1), nn.Flatten()), "softmax"),
        ("classify", nn.Sequential(BODY, nn.Sigmoid()), "sigmoid"),
        ("classify", Shares(), "sum to 1"),
        ("binary", InForward(), "sigmoid"),
        ("binary", nn.Sequential(nn.Linear(4, 1), nn.Softmax(dim=1)), "softmax"),
        ("multilabel", nn.Sequential(BODY, nn.Sigmoid()), "sigmoid"),
    ],
)
def test_probabilities_are_noticed(objective: str, model: nn.Module, said: str) -> None:
    why = why_no_logits(build(objective), model(X))
    assert why is not None and said in why and f"{objective} expects logits" in why
    assert why_no_logits(build(objective), model(X).bfloat16()) is not None, "also in half precision"


class MeanOfShares(Classify):
    """A loss of one's own, on probabilities."""

    def loss(self, output: Tensor, batch: dict[str, Tensor]) -> tuple[Tensor, float]:
        return -output.gather(1, batch["y"][:, None]).sum(), float(len(output))


def test_logits_are_not_probabilities() -> None:
    small = nn.Linear(4, 1)
    with torch.no_grad():
        small.weight.mul_(0.01)
        small.bias.fill_(0.5)  # as close to 0.5 as a sigmoid's outputs
    logits = small(X)
    assert ((logits > 0) & (logits < 1)).all()
    assert why_no_logits(build("binary"), logits) is None
    assert why_no_logits(build("multilabel"), logits) is None
    assert why_no_logits(build("classify"), logits.expand(6, 3)) is None
    gate = nn.Sequential(BODY, nn.Sigmoid(), nn.Linear(3, 3))
    for seed in range(20):
        torch.manual_seed(seed)
        gate[2].reset_parameters()  # type: ignore[operator]
        assert why_no_logits(build("classify"), gate(X)) is None
    assert why_no_logits(build("classify"), nn.Sequential(BODY, nn.LogSoftmax(dim=1))(X)) is None, "its softmax is the same"
    assert why_no_logits(build("regress"), nn.Sequential(BODY, nn.Sigmoid())(X)) is None
    assert why_no_logits(MeanOfShares(), BODY(X).softmax(1)) is None


def test_what_the_message_advises_is_right() -> None:
    """The loss of the logarithm of probabilities is that of the logits."""
    y, logits = torch.arange(6) % 3, BODY(X)
    of_logits = build("classify").loss(logits, {"y": y})[0]
    assert "output.log()" in (why_no_logits(build("classify"), logits.softmax(1)) or "")
    torch.testing.assert_close(build("classify").loss(logits.softmax(1).log(), {"y": y})[0], of_logits)
    yes = (y > 0)[:, None].expand(6, 3)
    assert "output.logit()" in (why_no_logits(build("multilabel"), logits.sigmoid()) or "")
    torch.testing.assert_close(*(build("multilabel").loss(one, {"y": yes})[0] for one in (logits, logits.sigmoid().logit())))


@pytest.mark.parametrize("ends, told", [((nn.Softmax(dim=1),), 1), ((), 0)])
def test_a_run_says_it_once(ends: Any, told: int, desk: Path) -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3), *ends)
    run = fo.run(
        data=fo.data.arrays(X, torch.arange(6) % 3), model=model, objective="classify", batch=2, lr=1e-2, budget="2 steps",
        planning="off", quiet=True,
    )  # fmt: skip
    events = [event["why"] for event in run.events() if event["kind"] == "degraded" and event["what"] == "output"]
    assert len(events) == told and all("Remove the softmax" in why for why in events)


@pytest.mark.parametrize("ends, told", [((nn.Softmax(dim=1),), True), ((), False)])
def test_searches_before_a_run_say_it_too(ends: Any, told: bool, desk: Path) -> None:
    recipe = fo.Recipe(
        data=fo.data.arrays(X, torch.arange(6) % 3), model=nn.Sequential(nn.Linear(4, 3), *ends), objective="classify", batch=2,
        lr=1e-2, budget="2 steps",
    )  # fmt: skip
    learned, found = fo.overfit(recipe, steps=2, cache=None), fo.find_lr(recipe, limit="0.1 s", cache=None)
    for warning in (learned.warning, found.warning):
        assert (warning is not None and "Remove the softmax" in warning) == told
    shown = found.explain(), to_text(one_batch_doc(learned))
    assert all(("warning: the model ends in a softmax" in text) == told for text in shown)
