"""All built-in objectives pass the conformance suite in flatout.testing.objectives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flatout.objectives.binary import Binary
from flatout.objectives.build import build
from flatout.objectives.classify import Classify
from flatout.objectives.inputs import Batch
from flatout.objectives.multilabel import Multilabel
from flatout.objectives.next_token import NextToken
from flatout.objectives.objective import Loss
from flatout.objectives.regress import Regress
from flatout.testing.objectives import ObjectiveConformance

ROWS = 9


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


class OfRows(ObjectiveConformance):
    outputs = 3

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, self.outputs))

    def batch(self) -> Batch:
        return {"x": numbers(ROWS, 4), "y": self.targets()}

    def targets(self) -> Tensor:
        return torch.arange(ROWS) % 3


class TestClassify(OfRows):
    objective = Classify()
    known: ClassVar[dict[str, Any]] = {"classes": 3}


class TestBinary(OfRows):
    objective = Binary()
    known: ClassVar[dict[str, Any]] = {"classes": 2}
    outputs = 1

    def targets(self) -> Tensor:
        return torch.arange(ROWS) % 2


class TestMultilabel(OfRows):
    objective = Multilabel()
    known: ClassVar[dict[str, Any]] = {"target_shape": (3,)}

    def targets(self) -> Tensor:
        return (numbers(ROWS, 3) > 0).float()


class TestRegress(OfRows):
    objective = Regress()
    known: ClassVar[dict[str, Any]] = {"target_shape": ()}
    outputs = 1

    def targets(self) -> Tensor:
        return numbers(ROWS)


class TestRegressInItsOwnUnits(TestRegress):
    objective = Regress(error="huber", centre=2.0, spread=3.0)


class TestNextToken(ObjectiveConformance):
    objective = NextToken()
    known: ClassVar[dict[str, Any]] = {"vocabulary": 7}

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 7))

    def batch(self) -> Batch:
        x = torch.arange(ROWS * 5).view(ROWS, 5) % 7
        return {"x": x, "y": ((x + 1) % 7).masked_fill(x % 4 == 0, -100)}


class TestNextTokenThatIgnoresNone(TestNextToken):
    objective = NextToken(ignore=None)

    def batch(self) -> Batch:
        x = torch.arange(ROWS * 5).view(ROWS, 5) % 7
        return {"x": x, "y": (x + 1) % 7}


def squares(model: nn.Module, batch: Batch) -> Loss:
    return F.mse_loss(model(batch["x"]).flatten(), batch["y"].float(), reduction="sum"), len(batch["y"])


class TestFunctionOfOnesOwn(OfRows):
    objective = build(squares)
    outputs = 1


class OfMeans(OfRows):
    """A common mistake: returns the mean."""

    objective = replace(build(lambda model, batch: (F.cross_entropy(model(batch["x"]), batch["y"]), 1.0)))


def test_an_objective_that_returns_a_mean_fails() -> None:
    with pytest.raises(AssertionError, match="weights"):
        OfMeans().test_parts_of_a_batch_add_up_to_the_whole()
    with pytest.raises(AssertionError):
        OfMeans().test_the_gradients_of_parts_add_up_to_those_of_the_whole()
