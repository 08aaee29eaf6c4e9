"""Trials of one recipe, trained as a stack and one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import torch

from flatout.recipe.load import with_overrides
from flatout.recipe.schema import Recipe
from flatout.tuning.training.alone import Alone
from flatout.tuning.training.candidate import TrialCandidate
from flatout.tuning.training.shared import Group
from flatout.tuning.training.stack import TrialStack

DIGITS = {
    "data": {"digits": None, "holdout": 0.3},
    "model": {"mlp": {"hidden": [16]}},
    "batch": 64,
    "lr": 1e-2,
    "budget": "12 steps",
    "settings": {"device": "cpu"},
}


def recipe(**changed: Any) -> Recipe:
    return Recipe(**{**DIGITS, **changed})


def candidates(base: Recipe, each: Sequence[Sequence[str]]) -> list[TrialCandidate]:
    return [TrialCandidate(number, with_overrides(base, overrides)) for number, overrides in enumerate(each)]


@contextmanager
def group_of(ones: Sequence[TrialCandidate]) -> Iterator[Group]:
    assert len({one.group for one in ones}) == 1, "these can't be one stack"
    group = Group(ones[0].recipe, None, 1)
    try:
        yield group
    finally:
        group.close()


@contextmanager
def both(base: Recipe, each: Sequence[Sequence[str]], to: int | None = None) -> Iterator[tuple[TrialStack, Alone]]:
    """Each item of `each` has a trial's overrides. Both are trained to the end, or to step `to`."""
    ones = candidates(base, each)
    with group_of(ones) as group:
        stack, alone = TrialStack(group, ones), Alone(group, ones)
        for trainer in (stack, alone):
            trainer.train(group.total_steps if to is None else to)
        yield stack, alone


def assert_equal(stack: TrialStack, alone: Alone, tolerance: float = 2e-4) -> None:
    """Weights, buffers, losses and all metrics."""
    assert stack.failed == alone.failed
    metrics = {which: stack.metrics(which) for which in ("choose", "judge")}
    for number in alone.alive:
        ours, model = stack.weights_of(number), alone.model(number)
        for name, value in chain(model.named_parameters(), model.named_buffers()):
            torch.testing.assert_close(ours[name], value, rtol=tolerance, atol=tolerance, msg=lambda why: f"{name}: {why}")  # noqa: B023
        loss, other = stack.losses(number).last, alone.losses(number).last
        assert loss is not None and other is not None
        np.testing.assert_allclose(loss, other, rtol=tolerance)
        for which, found in metrics.items():
            expected = alone.metrics(number, which)
            assert found[number].keys() == expected.keys()
            for name, figure in expected.items():
                np.testing.assert_allclose(
                    found[number][name], figure, rtol=5 * tolerance, atol=1e-4, err_msg=f"{which} {name}"
                )


def table(rows: int = 240, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Two classes that a line tells apart."""
    x = np.random.default_rng(seed).normal(size=(rows, 5)).astype("float32")
    return {"x": x, "y": (x.sum(1) > 0).astype("int64")}
